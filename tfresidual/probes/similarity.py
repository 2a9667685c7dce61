"""How similar the states after all pairs of blocks are, in one network or in two."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_choice, check_int
from tfresidual.probes.measure import block_places, check_blocks, joined_splits
from tfresidual.probes.pooled import added, pooled_states, saved_states
from tfresidual.probes.states import States
from tfresidual.probes.untrained import initial_weights, weights_replaced
from tfresidual.routing.data import check_data, raw_batches, splits_of
from tfresidual.routing.positions import VALID_IMAGES
from tfresidual.routing.runs import batches_over

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

CKA, PROCRUSTES, ANGULAR = "cka", "procrustes", "angular"
# Fewer images have no unbiased estimate.
FEWEST = 4
# Images of states on disk that are read at once.
BATCH = 256


def similarity(
    a: Chain | ChainSource | States | Mapping[str, States],
    data: Data | None = None,
    b: Chain | ChainSource | States | Mapping[str, States] | None = None,
    *,
    kind: Literal["cka", "procrustes", "angular"] = "cka",
    control: bool = True,
    seed: int | None = 0,
    progress: bool = False,
) -> Frame:
    """Compares the states after all pairs of blocks, of one network or of two.

    The state of an image is the mean of its channels over all positions (of a sequence, over those
    that are not padding), X `(images, channels)` after one block and Y after the other, whose
    numbers of channels may differ. All kinds are unchanged if a state is moved, rotated or
    multiplied by a number, and are computed in float64 from sums of products over the images: the
    size of the batches does not matter, and memory is needed for two matrices of as many rows and
    columns as all blocks have channels.

    - `cka`: centred kernel alignment with the linear kernel, HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y,
      Y)) with the unbiased estimate of HSIC over all images: 1 for equal states, 0 in the mean for
      independent ones, where it may be below 0. 0 if a state is the same for all images.
    - `procrustes`: the squared distance of states centred and divided by their Frobenius norm,
      after the best rotation of one of them: 2 - 2 |X'Y|, with the nuclear norm, the sum of the
      singular values; from 0 to 2, and 2 if a state is the same for all images.
    - `angular`: the angle of the same states, arccos |X'Y|, from 0 to pi / 2.

    The last two are not debiased: with fewer images than some multiple of the channels, independent
    states are close as well, as `untrained` shows.

    Example:

    >>> frame = similarity(tfresidual.chain(net), test)
    >>> table = frame.pivot_table("cka", ["stage", "block"], ["other_stage", "other_block"])

    Args:
        a: a chain, or anything that `tfresidual.chain` accepts; or what `load_states` returns.
        data: images and labels, see `tfresidual.definitions.types.Data`, unless `a` are states.
            Labels are not used, nor sample weights, but that images of weight 0 are left out.
        b: another one that takes the same images, or states of the same images in the same order;
            `None` for pairs of blocks of `a`.
        kind: what is measured, the name of the column.
        control: whether two independent networks with new initial weights are compared too.
        seed: int, 0 or more, of the initial weights, or `None` for others in every call.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with a row per pair and the columns `stage` (from 1) and `block` (from
        0) in `a`, `other_stage` and `other_block` in `b`, the measure under the name of its kind,
        and `..._se`, half the difference between its values on every other image and on those
        between: a standard error that is itself uncertain, to be averaged over many pairs.
        With `control`, `untrained` is the measure between a network of the configuration of `a` and
        one of that of `b`, both with new initial weights that have nothing to do with each other;
        NaN if one cannot be made, such as for a SavedModel. If `data` is a dict, `split` is the
        first column. All are NaN for states that are not finite.

    Raises:
        ValueError: if an argument cannot be used, or there are fewer than 4 images.

    Reference:
        Song et al. 2012, "Feature selection via dependence maximization", for the estimate;
        Nguyen, Raghu and Kornblith 2021, "Do wide and deep networks learn the same things?",
        section 2, for CKA with it (here over all images at once, not averaged over batches); Ding,
        Denain and Steinhardt 2021, "Grounding representation similarity through statistical
        testing", for the Procrustes distance; Williams et al. 2021, "Generalized shape metrics on
        neural representations", proposition 1, for the angle.
    """
    check_choice("kind", kind, (CKA, PROCRUSTES, ANGULAR))
    check_int("seed", seed, at_least=0, or_none=True)
    pair = [a] if b is None else [a, b]
    if any(isinstance(one, Mapping) for one in pair):
        return joined_splits(_of_states(pair, data, kind, control))
    if data is None:
        raise ArgumentError("data", "be given, unless `a` are states", data)
    chains = [sources.numbered(one) for one in pair]
    for chain in chains:
        check_blocks(chain)
    both = chains[0], chains[-1]
    places = [block_places(chain) for chain in both]
    seeds = (None, None) if seed is None else (seed, seed + 1)
    drawn = [*map(initial_weights, both, seeds)] if control else []
    frames = {}
    for split, part in splits_of(data).items():
        check_data(part, again=control)
        untrained = None
        if drawn and all(weights is not None for weights in drawn):
            untrained, _ = _measured(_networks(both, part, progress, drawn), kind)
        values, errors = _measured(_networks(chains, part, progress), kind)
        frames[split] = _frame(places, kind, values, errors, control, untrained)
    return joined_splits(frames)


def _of_states(pair, data, kind, control):
    """Returns the frames of states on disk by split."""
    is_split = [not isinstance(one, States) for one in pair]
    if not all(isinstance(one, Mapping) for one in pair) or len(set(is_split)) > 1:
        raise ArgumentError(
            ("a", "b"),
            "be two networks, or states of two, both with splits or without",
            received=" and ".join(str(type(one)) for one in pair),
        )
    if data is not None:
        raise ArgumentError("data", "be left out: states are those of their images", data)
    frames = {}
    for split in pair[0] if is_split[0] else [None]:
        sides = [one[split] if is_split[0] else one for one in pair]
        labels = [one.labels for one in sides]
        is_same = len({len(one.weights) for one in sides}) == 1
        if not is_same or not _are_equal(labels):
            raise ArgumentError("b", "hold states of the same images", received=f"{sides}")
        steps = [((rows, valid) for rows, valid, _ in saved_states(one, BATCH)) for one in sides]
        places = [one.index[["stage", "block"]] for one in (sides[0], sides[-1])]
        frames[split] = _frame(places, kind, *_measured(steps, kind), control)
    return frames


def _are_equal(labels):
    return any(one is None for one in labels) or np.array_equal(labels[0], labels[-1])


def _frame(places, kind, values, errors, control, untrained=None):
    """Returns a frame with a row per pair of blocks, of arrays `(blocks, blocks)`."""
    columns = {kind: values.ravel(), f"{kind}_se": errors.ravel()}
    if control:
        columns["untrained"] = np.nan if untrained is None else untrained.ravel()
    return places[0].merge(places[1].add_prefix("other_"), how="cross").assign(**columns)


def _networks(chains, part, progress, weights=(None, None)):
    """Returns the states of every chain as iterators, see `_states`."""
    # The same batches for both networks, whose order may change from one reading to the next.
    parts = itertools.tee(raw_batches(part), len(chains))
    return [
        _states(chain, batches, progress and not place, weights[place])
        for place, (chain, batches) in enumerate(zip(chains, parts, strict=True))
    ]


def _measured(steps, kind):
    """Returns the measure of all pairs of blocks, and its standard errors, `(blocks, blocks)`.

    Args:
        steps: for each of one or two networks, an iterator over batches of a list of the states
            after all blocks and of which images count.
    """
    halves, images, origins = [None, None], 0, None
    for sides in zip(*steps, strict=True):
        is_counted = np.logical_and.reduce([valid for _, valid in sides])
        sides = [[state[is_counted] for state in states] for states, _ in sides]
        if not is_counted.any():
            continue
        if origins is None:
            # Small differences keep their digits in sums of squares, and equal states are 0.
            origins = [[state[0] for state in states] for states in sides]
        with np.errstate(invalid="ignore", over="ignore"):
            sides = [list(map(np.subtract, *pair)) for pair in zip(sides, origins, strict=True)]
            for half in range(2):
                first = (images + half) % 2
                left, right = ([state[first::2] for state in sides[one]] for one in (0, -1))
                halves[half] = added(halves[half], _sums(left, right))
        images += int(is_counted.sum())
    if images < FEWEST:
        raise ArgumentError(
            "data", f"hold at least {FEWEST} images that count", received=f"{images}"
        )
    widths = [[len(origin) for origin in origins[one]] for one in (0, -1)]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        even, odd, whole = (_values(sums, kind, widths) for sums in (*halves, added(*halves)))
    errors = np.abs(even - odd) / 2 if images >= 2 * FEWEST else np.full(whole.shape, np.nan)
    return whole, errors


def _states(chain, batches, progress, weights):
    """Yields the states of batches after every block, and which images count, as arrays.

    Those of the network with other weights, if they are not `None`, which it has only while it
    computes.
    """
    steps = batches_over(
        chain,
        "pooled states",
        functools.partial(pooled_states, chain),
        batches,
        progress,
        with_labels=False,
    )
    while True:
        with weights_replaced(chain, weights):
            values = next(steps, None)
        if values is None:
            return
        values = {name: value.numpy() for name, value in values.items()}
        yield [values[str(place)] for place in range(len(chain.blocks))], values[VALID_IMAGES]


# Sums over images. HSIC is estimated from pairs of different images; with a linear kernel, sums
# over these are products of sums over images, less those of the pairs of an image with itself.


def _sums(left, right):
    """Returns the sums of a batch that the measures of all pairs of states need, by name.

    And `own`, the same of each state with itself, as a list of the blocks on either side.
    """
    own = [[_products([state], [state]) for state in side] for side in (left, right)]
    return _products(left, right) | {"own": own}


def _products(left, right):
    """Returns sums over images of products of states x of one list and y of another, by name.

    The features of the states of a list are put into one axis.
    """
    x, y = (np.concatenate(states, axis=1) for states in (left, right))
    xx, yy = (
        np.stack([(state**2).sum(axis=1) for state in states], axis=1) for states in (left, right)
    )
    return {
        "count": len(x),
        "x": x.sum(axis=0),
        "y": y.sum(axis=0),
        "xx": xx.sum(axis=0),
        "yy": yy.sum(axis=0),
        "xy": x.T @ y,
        "x_yy": x.T @ yy,
        "y_xx": y.T @ xx,
        "xx_yy": xx.T @ yy,
    }


def _values(sums, kind, widths):
    """Returns the measure of all pairs of states, given how many features each of them has."""
    edges = [np.cumsum([0, *of_side]) for of_side in widths]
    places = [[slice(*pair) for pair in itertools.pairwise(side)] for side in edges]
    measure, size = (_hsic, _hsic) if kind == CKA else (_nuclear_norm, _squares)
    found = [
        [measure(sums, i, j, left, right) for j, right in enumerate(places[1])]
        for i, left in enumerate(places[0])
    ]
    whole = slice(None)
    own = [[size(one, 0, 0, whole, whole) for one in side] for side in sums["own"]]
    sizes = np.sqrt(np.maximum(np.outer(*own), 0))
    # A state that is the same for all images has nothing in common with another one.
    cosine = np.where(sizes == 0, 0, np.array(found) / sizes)
    if kind == CKA:
        return cosine
    cosine = np.minimum(cosine, 1)
    return 2 - 2 * cosine if kind == PROCRUSTES else np.arccos(cosine)


def _hsic(sums, i, j, left, right):
    """Returns the unbiased estimate of HSIC of states i and j (Song et al. 2012).

    K and L are the kernel matrices with zeros on the diagonal.
    """
    n, x, y = sums["count"], sums["x"][left], sums["y"][right]
    xy, same = sums["xy"][left, right], sums["xx_yy"][i, j]
    trace = (xy**2).sum() - same  # of K L
    totals = (x @ x - sums["xx"][i]) * (y @ y - sums["yy"][j])  # 1'K1 1'L1
    # 1'K L 1
    both = x @ xy @ y - x @ sums["x_yy"][left, j] - y @ sums["y_xx"][right, i] + same
    return (trace + totals / ((n - 1) * (n - 2)) - 2 * both / (n - 2)) / (n * (n - 3))


def _nuclear_norm(sums, i, j, left, right):
    """Returns the sum of the singular values of the product of centred states."""
    product = sums["xy"][left, right] - np.outer(sums["x"][left], sums["y"][right]) / sums["count"]
    if not np.isfinite(product).all():
        return np.nan
    return np.linalg.svd(product, compute_uv=False).sum()


def _squares(sums, i, j, left, right):
    """Returns the squared Frobenius norm of a centred state, from its products with itself."""
    del j, right
    return sums["xx"][i] - sums["x"][left] @ sums["x"][left] / sums["count"]
