"""What the state of one run does in another. TensorFlow only."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_int,
    check_ints,
    is_int,
)
from tfresidual.definitions.averages import STANDARD_ERRORS, standard_error, weighted_mean
from tfresidual.definitions.warning import warn
from tfresidual.machine.compiled import compiled
from tfresidual.machine.console import progress_bar
from tfresidual.probes.measure import joined_splits, repeated
from tfresidual.probes.predictions import (
    LABEL,
    MARGIN,
    SOURCE_LABEL,
    checked_target,
    chosen_logit,
    divergence,
    has_logit,
    label_check,
    labels_of,
    logits_of,
    over_positions,
    probabilities_of,
    scored_chain,
)
from tfresidual.routing.data import (
    batches_of,
    chosen_of,
    concatenated,
    joined,
    key_of,
    rebatched,
    shape_of_outputs,
    sliced,
    spec_of,
    splits_of,
)
from tfresidual.routing.evaluator import MOST_IMAGES
from tfresidual.routing.gradients import filled_gradients, is_half, loss_gradients
from tfresidual.routing.heads import checked_heads, heads_by_block, without_heads
from tfresidual.routing.positions import (
    check_any_counts,
    check_positions,
    counted_images,
    has_them,
    known_positions,
    valid_positions,
)
from tfresidual.routing.readouts import FIRST
from tfresidual.routing.runs import WEIGHTS, begun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from tfresidual.definitions.types import Array, ChainSource, Data, Frame
    from tfresidual.routing import Chain

TARGETS = (LABEL, MARGIN, SOURCE_LABEL)
EACH = "each"
# What is put in.
STATE, ADDITION = "state", "addition"
# How what it does is computed.
EXACT, GRADIENT = "exact", "gradient"
# What a run is measured by, and the columns of the runs if it is the logit.
LOGIT, PROBABILITY, KL = METRICS = ("logit", "probability", "kl")
RUNS = ("logit", "source_logit", "patched_logit")
CHECKED = "exact_logit"
# The largest deviation of the sum of heads, as a share of their sizes: rounding in half precision.
ALLOWED = 0.02


def patching(
    chain: Chain | ChainSource,
    data: Data,
    source: Data | None = None,
    *,
    what: Literal["state", "addition"] = "state",
    positions: int | Sequence[int] | Array | Literal["each"] | None = None,
    heads: Literal["each"] | None = None,
    target: int
    | Literal["label", "margin", "source label"]
    | tuple[int | Literal["label", "source label"], int | Literal["label", "source label"]] = (
        "label"
    ),
    metric: Literal["logit", "probability", "kl"] = "logit",
    by: Literal["exact", "gradient"] = "exact",
    checked: int = 8,
    seed: int = 0,
    per_image: bool = False,
    progress: bool = False,
) -> Frame:
    """Puts the state of one run into another, at every block, and measures what that does.

    The network runs on the images of the data. After one block, the state, or its part at some
    positions, is replaced by the one that the network has there for the image of the source at the
    same place, and the rest of the network follows. With `what="addition"`, the block returns h + F
    with h of the data and F = block(h) - h of the source. docs/concepts/probes.md says what of
    padding is put in, which positions count, and which logits are read.

    - `logit`: in the run on the data, as it is.
    - `source_logit`: in the run on the source.
    - `patched_logit`: in the run on the data with the state of the source.
    - `difference`: `patched_logit` minus `logit`.
    - `effect`: `difference` divided by `source_logit` minus `logit`: 0 if the state changes
      nothing, 1 if it carries all that distinguishes the runs. Without `per_image`, it is a ratio
      of means, with a warning if the runs differ by less than two standard errors. NaN if the
      logits of both runs are the same.

    A whole state brings all that follows with it: without `positions`, the effect of states is 1
    after every block, with a warning, except where blocks read more than the state.

    With `metric="probability"`, the first three are `probability`, `source_probability` and
    `patched_probability`, those of the target. With `metric="kl"`, they are `kl`, `source_kl` and
    `patched_kl`, the divergence of the prediction of the run from that of the run on the source, in
    nats, 0 or more.

    With `heads="each"`, it is one head of an attention layer of a block whose part in the branch is
    that of the source. The part of a head is its output times its rows of the kernel of the output
    projection; the branch is the sum of these parts and what does not depend on a head, such as the
    bias. What follows the addition in a block is computed anew.

    With `by="gradient"`, `difference` is estimated for all places from one forward and one backward
    pass: the sum over the features of what would change in the state times the gradient, in the run
    on the data, of what is measured. That is exact in a network that is linear, and close where the
    change is small. At a few random places, the exact difference stands beside it:

    - `exact_difference`: `difference` as without `by="gradient"`; NaN at places not checked.
    - `error`: `difference` minus `exact_difference`.

    Example:

    >>> frame = patching(
    ...     tfresidual.chain(net),
    ...     (images, labels),
    ...     (images[::-1], labels[::-1]),
    ...     what="addition",
    ...     target="margin",
    ... )
    >>> frame.columns.tolist()[-3:]
    ['patched_logit', 'difference', 'effect']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        source: the same, with as many images of the same shapes in the order of the data. By
            default, the source of an image is the next one of its batch that has other labels.
        what: `"state"`, or `"addition"` for what a block adds.
        positions: which positions of the states `(images, positions, features)` are put in: `None`
            for the whole state, whatever its shape; the index of one; the indices of several, which
            are put in together; or `"each"`, for one after the other.
        heads: `"each"`, with `what="addition"`, for the heads of `keras.layers.MultiHeadAttention`,
            `GroupQueryAttention` and what is derived from them, such as the attention of
            keras-hub's GPT-2 and BERT, one after the other. Only in chains of Keras models.
        target: which logit: `"label"`, that of the label of the data; `"source label"`, that of the
            label of the source; `"margin"`, the lowest logit of a label minus the highest of
            another class; the index of a class; or a pair for the first minus the second, such as
            `("label", "source label")`.
        metric: `"logit"`, `"probability"` or `"kl"`.
        by: `"exact"`, with a run for every place; or `"gradient"`, an estimate.
        checked: int, 0 or more, at how many places `by="gradient"` also measures the exact
            difference. A place is a state or a head, with `positions="each"` at one position, of
            those that count in the first batch. Each costs up to a run.
        seed: int, 0 or more, by which these places are drawn.
        per_image: whether to return the values of every image instead of their means.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0, and -1 for the
        state before the first block), `logit`, `source_logit`, `patched_logit`, `difference` and
        `effect`. With `what="addition"`, there is no block -1, and the last three are NaN for
        blocks that change the shape of the state. If `data` is a dict, `split` is the first column.
        With `heads="each"`, there are the blocks with heads alone, and `head` (from 0) comes after
        `block`; a block with several attention layers counts their heads on. With
        `positions="each"`, `position` comes next, without positions that are padding in the image
        or its source; otherwise, an image has NaN if all positions put in are, or none counts. With
        `per_image`, `image` (from 0) follows. With `by="gradient"`, `exact_difference` and `error`
        are the last columns.

    Raises:
        ValueError: if an argument cannot be used, the outputs of the network are not classes, no
            block has heads, a branch is not the sum of their parts (to 2 %), its states have no
            such positions, or, with `positions=None`, an image and its source have different
            padding and some of the states other positions than the padding.

    Reference:
        Vig et al. 2020, https://arxiv.org/abs/2004.12265; Meng et al. 2022,
        https://arxiv.org/abs/2202.05262, section 2; Wang et al. 2022,
        https://arxiv.org/abs/2211.00593; Zhang and Nanda 2023, https://arxiv.org/abs/2309.16042.
        For the estimate: Syed et al. 2023, https://arxiv.org/abs/2310.10348; Kramar et al. 2024,
        https://arxiv.org/abs/2403.00745, also on where it is wrong.
    """
    check_choice("what", what, (STATE, ADDITION))
    if heads not in (None, EACH) or (heads and what != ADDITION):
        raise ArgumentError("heads", f"be None or, with what={ADDITION!r}, {EACH!r}", heads)
    target = checked_target(target, TARGETS)
    check_choice("metric", metric, METRICS)
    check_choice("by", by, (EXACT, GRADIENT))
    check_int("checked", checked, 0)
    check_int("seed", seed, 0)
    if metric == KL and target != LABEL:
        raise ArgumentError(
            "target",
            f"be left out with metric={KL!r}, which compares predictions of all classes",
            target,
        )
    if positions is not None and not (isinstance(positions, str) and positions == EACH):
        positions = _checked_positions(positions)
    chain = scored_chain(chain)
    places, settings = _places(chain, what, heads), (what, positions, target, metric)
    parts, others = splits_of(data), splits_of(source)
    if source is not None and set(parts) != set(others):
        raise ArgumentError(
            "source",
            "have the splits of `data`",
            received=f"splits {list(others)!r} for {list(parts)!r}",
        )
    frames = {}
    for split, part in parts.items():
        drawing = (checked, np.random.default_rng(seed)) if by == GRADIENT else None
        values, drawn = _values_of(
            chain, part, others.get(split), places, settings, drawing, progress
        )
        frame = _frame(places, values, positions == EACH, per_image, drawn)
        frames[split] = frame.rename(columns={run: run.replace(LOGIT, metric) for run in RUNS})
    found = joined_splits(frames)
    if what == STATE and positions is None:
        _warn_of_whole_states(found["effect"].dropna())
    return found


class _Place(NamedTuple):
    """What is put in at once: after the block `state` - 1, what it adds or what its head does."""

    stage: int
    block: int
    head: int | None
    state: int
    is_defined: bool


def _places(chain, what, heads):
    """Returns all places of a chain, in their order."""
    blocks = [*enumerate(chain.blocks, start=1)]
    if heads == EACH:
        of_blocks = checked_heads(chain)
        return [
            _Place(block.stage, block.index, head, state, block.keeps_shape)
            for state, block in blocks
            for head, _ in enumerate(of_blocks.get((block.stage, block.index), ()))
        ]
    is_state = what == STATE
    first = [_Place(chain.blocks[0].stage, FIRST, None, 0, True)] if is_state else []
    return first + [
        _Place(block.stage, block.index, None, state, is_state or block.keeps_shape)
        for state, block in blocks
    ]


def _values_of(chain, data, source, places, settings, drawing, progress):
    """Returns values and masks of all images by name, `(images, [positions,] places)`.

    And the places of values that are measured exactly beside an estimate, of which `drawing` is the
    number and a generator; `None` without an estimate.
    """
    _, positions, target, _ = settings
    runs = max(len(places), drawing[0] if drawing else 0)
    at_once = max(1, MOST_IMAGES // (runs + 2))
    check, functions, parts, checked = label_check(chain, target), {}, [], None
    chosen = tf.constant((), tf.int32) if positions in (None, EACH) else tf.constant(positions)
    with progress_bar("patching" if progress else None, None) as advance:
        for batch in _pairs(chain, data, source, at_once):
            *batch, weights = batch
            images, labels, source_images, source_labels = batch
            key = key_of(batch)
            if key not in functions:
                if positions is not None:
                    _check_positions(chain, sliced(images, slice(1)), positions)
                if drawing is not None and checked is None:
                    checked = _drawn(chain, places, positions, *drawing, images, source_images)
                functions[key] = _compiled(chain, places, settings, checked, batch)
            check(images, labels)
            check(source_images, source_labels)
            values = {name: value.numpy() for name, value in functions[key](*batch, chosen).items()}
            if not values.pop("can_replace").all():
                raise _other_padding(chain)
            if values.pop("deviation", np.zeros(1)).max() > ALLOWED:
                raise _not_a_sum(chain)
            parts.append(values | {WEIGHTS: weights.numpy()})
            advance(1)
    return {name: concatenated([part[name] for part in parts]) for name in parts[0]}, checked


def _drawn(chain, places, positions, count, rng, images, source_images):
    """Returns random pairs of the index of a place and a position, or `None`, in their order."""
    among = [None]
    if positions == EACH:
        own, other = (
            valid_positions(chain.with_context(inputs), chain.stem(inputs)).numpy()
            for inputs in (images, source_images)
        )
        among = np.flatnonzero((own & other).any(axis=0)).tolist()
    indices = [index for index, place in enumerate(places) if place.is_defined]
    every = [*itertools.product(indices, among)]
    chosen = rng.choice(len(every), min(count, len(every)), replace=False)
    return tuple(every[index] for index in sorted(chosen))


def _pairs(chain, data, source, at_once):
    """Yields images and labels of the data, those of the source for them, and weights."""
    batches = begun(chain, data, with_losses=False, with_all=source is not None)
    if source is None:
        yield from rebatched(with_others(chain, batches, places_of_next), at_once)
        return
    others = rebatched(batches_of(source, chain, with_all=True), at_once)
    for own, other in itertools.zip_longest(rebatched(batches, at_once), others):
        counts = [0 if part is None else len(part[1]) for part in (own, other)]
        if counts[0] != counts[1]:
            raise ArgumentError(
                "source",
                "hold as many images as `data`",
                received=f"{'more' if counts[1] > counts[0] else 'fewer'} images",
            )
        specs = [[spec_of(part) for part in pair] for pair in (own, other)]
        if specs[0] != specs[1]:
            raise ArgumentError(
                "source",
                "hold images and labels of the shapes and dtypes of those of `data`",
                received=f"{specs[1]} for {specs[0]}",
            )
        # A pair of which one has the weight 0 is not there.
        pairs = chosen_of((*own[:2], *other[:2], own[2]), (own[2] > 0) & (other[2] > 0))
        if len(pairs[-1]):
            yield pairs


def with_others(chain, batches, places_of):
    """Yields batches with another image of its batch, and its labels, for every image.

    `places_of(chain, images, labels)` returns the places of the other images. A batch of one image,
    such as the last one may be, follows on the batch before it.
    """
    before = None
    for images, labels, weights in batches:
        among, number = (images, labels), are_sources(chain, images, labels).sum()
        if number == 1 and before is not None and key_of(before) == key_of(among):
            among = joined([before, among])
        places = places_of(chain, *among)[-len(labels) :]
        gather = functools.partial(tf.gather, indices=places)
        yield images, labels, *keras.tree.map_structure(gather, among), weights
        before = (images, labels) if number else before


def are_sources(chain, images, labels):
    """Returns which images of a batch count, a bool array `(images,)`."""
    shape = shape_of_outputs(chain, images)
    key = ("counted images", getattr(chain.loss, "ignore_class", None), *key_of([images, labels]))
    if key not in chain.compiled:
        chain.compiled[key] = compiled(
            lambda images, labels: counted_images(chain.with_context(images), labels, shape),
            [spec_of(images), spec_of(labels)],
        )
    found = chain.compiled[key](images, labels)
    return np.ones(len(labels), bool) if found is None else found.numpy()


def places_of_next(chain, images, labels):
    """Returns the places of the sources of the images of a batch, which are of the same batch."""
    count, sources = len(labels), np.flatnonzero(are_sources(chain, images, labels))
    if not len(sources):
        return (np.arange(count) + 1) % count
    if len(sources) == 1:
        raise ArgumentError(
            "source",
            "be given for a batch with a single image that counts, since no other one can be its "
            "source",
            received=f"source=None, and a batch of {count} image{'' if count == 1 else 's'}",
        )
    kinds = _numbered(labels)[sources]
    # Where the labels change: what comes next with other labels is one of these.
    changes = sources[kinds != np.roll(kinds, 1)]
    ahead = changes if len(changes) else sources
    return ahead[np.searchsorted(ahead, np.arange(count), side="right") % len(ahead)]


def _numbered(labels):
    """Returns a number for the labels of every image, the same for the same labels."""
    rows = labels.numpy().reshape(len(labels), -1)
    if labels.dtype.is_floating:
        # Zeros of both signs are the same, and all NaN.
        rows = rows.astype(float) + 0.0
        rows[np.isnan(rows)] = np.nan
    numbers = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows])


def _checked_positions(positions):
    """Returns positions as a tuple of ints, from 0: where an image ends depends on its padding."""
    listed = [positions] if is_int(positions) else positions
    return check_ints("positions", listed, 0)


def _check_positions(chain, image, positions):
    """Raises a `ValueError` unless all states have the positions asked for."""
    given = chain.with_context(image)
    state = given.stem(image)
    pairs, _ = given.walk(state)
    check_positions(chain, [state, *(after for _, after in pairs)], "positions")
    count = state.shape[1]
    if positions != EACH and max(positions) >= count:
        raise ArgumentError("positions", f"be from 0 to {count - 1}", positions)


def _other_padding(chain):
    return ArgumentError(
        "source",
        "have the padding of `data` for a network with states that have other positions, of "
        "which it is not known what is padding",
        received=f"images and sources with different padding for {chain.name}",
    )


def _not_a_sum(chain):
    return ArgumentError(
        "heads",
        "be None for a network with blocks that do not add up what their heads return",
        received=f"heads={EACH!r} for {chain.name}",
    )


def _compiled(chain, places, settings, checked, batch):
    what, positions, *measured = settings
    signature = [*map(spec_of, batch), tf.TensorSpec([None], tf.int32)]
    kind = positions if positions in (None, EACH) else "some"
    key = ("patching", chain.outputs, what, kind, *measured, *places, checked, *key_of(signature))
    if key not in chain.compiled:
        function = functools.partial(_batch_values, chain, places, what, kind, measured, checked)
        chain.compiled[key] = compiled(function, signature)
    return chain.compiled[key]


def _batch_values(
    chain,
    places,
    what,
    kind,
    measured,
    checked,
    images,
    labels,
    source_images,
    source_labels,
    positions,
):
    """Returns the logits of all runs of a batch by name, see `RUNS`, and masks."""
    target, metric = measured
    heads = heads_by_block(chain) if places[0].head is not None else {}
    source, chain = chain.with_context(source_images), chain.with_context(images)
    first = source.stem(source_images)
    others, last = source.walk(first)
    others = [(None, first), *others]
    outputs = source.head(last)
    logits, has_several = logits_of(chain.outputs, outputs)
    read, of_source = (
        labels_of(given, rows, outputs, logits, has_several)
        for given, rows in ((chain, labels), (source, source_labels))
    )
    is_counted = has_logit(target, read) & of_source.counted

    def logit_of(others):
        if metric == KL:
            return over_positions(divergence(logits, others, has_several), is_counted)
        if metric == PROBABILITY:
            others = probabilities_of(others, has_several)
        chosen = chosen_logit(target, others, read.sets, of_source.sets)
        return over_positions(chosen, is_counted)

    def logit_at(state):
        return logit_of(logits_of(chain.outputs, chain.head(state))[0])

    start = chain.stem(images)
    with tf.GradientTape(persistent=is_half(start), watch_accessed_variables=False) as tape:
        if checked is not None:
            tape.watch(start)
        own, last = chain.walk(start)
        logit = logit_at(last)
    own = [(None, start), *own]
    values = {"logit": logit, "source_logit": logit_of(logits)}
    defined = [place for place in places if place.is_defined]
    if heads:
        new, values["deviation"] = _with_heads(chain, source, defined, heads, own, others)
    else:
        new = [_put_in(what, own[place.state], others[place.state]) for place in defined]

    def patched(chosen):
        """Returns the logits of runs patched by places with masks, `(runs, images)`."""
        starts = [[] for _ in own]
        for index, mask in chosen:
            state = defined[index].state
            starts[state].append(_masked(mask, new[index], own[state][1]))
        spec = tf.TensorSpec(None, logits.dtype)
        return tf.map_fn(
            logit_at, _run(chain, own, starts), parallel_iterations=1, fn_output_signature=spec
        )

    values["counted"] = tf.reduce_any(tf.reshape(is_counted, (tf.shape(first)[0], -1)), axis=1)
    values["can_replace"] = tf.ones_like(values["counted"])
    in_source, in_data = (known_positions(given) for given in (source, chain))
    mask = in_source
    if kind is None and in_source is None:
        values["valid"] = values["can_replace"][:, None]
    elif kind is None:
        values["valid"] = tf.reduce_any(in_source & in_data, 1, keepdims=True)
        if not all(len(one.shape) == 2 or has_them(one, in_source) for _, one in others):
            is_same = tf.reduce_all(in_source == in_data, axis=1)
            values["can_replace"] = is_same | ~values["counted"]
    else:
        in_source = valid_positions(source, first)
        values["valid"] = in_source & valid_positions(chain, first)
        every, mask = tf.range(tf.shape(first)[1]), None
    if kind not in (None, EACH):
        is_chosen = tf.reduce_any(every[:, None] == positions, axis=1)
        mask = is_chosen & in_source
        values["valid"] = tf.reduce_any(is_chosen & values["valid"], axis=1, keepdims=True)
    indices = range(len(defined))
    if checked is not None:
        states = [after for _, after in own]
        gradients = filled_gradients(chain, states, loss_gradients(tape, logit, states))
        pairs = [(states[place.state], gradients[place.state]) for place in defined]
        changes = [
            _predicted(_masked(mask, one, state) - state, gradient, 2 if kind == EACH else 1)
            for one, (state, gradient) in zip(new, pairs, strict=True)
        ]
        changes = tf.stack(changes, axis=-1)
        # In float64, so that what is added to a logit is not rounded to it.
        whole = tf.cast(logit, tf.float64)
        values["patched_logit"] = changes + tf.reshape(whole, [-1, *[1] * (len(changes.shape) - 1)])
        chosen = [
            (defined.index(places[index]), mask if position is None else (every == position)[None])
            for index, position in checked
        ]
        if chosen:
            values[CHECKED] = tf.transpose(patched(chosen))
    elif kind == EACH:
        found = tf.map_fn(
            lambda mask: patched([(index, mask[None]) for index in indices]),
            tf.eye(tf.shape(first)[1], dtype=tf.bool),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec(None, logits.dtype),
        )
        values["patched_logit"] = tf.transpose(found, (2, 0, 1))
    else:
        values["patched_logit"] = tf.transpose(patched([(index, mask) for index in indices]))
    return values


def _predicted(change, gradient, axis):
    """Returns what a gradient predicts of a change, the sum of their products from an axis on."""
    products = tf.cast(change, tf.float64) * tf.cast(gradient, tf.float64)
    return tf.reduce_sum(products, axis=range(axis, len(products.shape)))


def _put_in(what, own, other):
    """Returns the state that is put in for a pair of states before and after a block."""
    (before, after), (other_before, other) = own, other
    if what == ADDITION:
        other = tf.cast(before, other.dtype) + (other - other_before)
    return tf.cast(other, after.dtype)


def _with_heads(chain, source, places, heads, own, others):
    """Returns the states after blocks with a head of the source, and how far heads are from a sum.

    The deviation is the largest one of each image, as a share of the largest sum.
    """
    new, deviations = [], []
    for state, of_block in itertools.groupby(places, lambda place: place.state):
        kernels = heads[chain.blocks[state - 1].stage, chain.blocks[state - 1].index]
        before = own[state][0]
        branch, parts, deviation = _head_parts(chain.blocks[state - 1], before, kernels)
        _, of_source, _ = _head_parts(source.blocks[state - 1], others[state][0], kernels)
        deviations.append(deviation)
        for place in of_block:
            added = branch + (of_source[place.head] - parts[place.head])
            block = chain.blocks[state - 1]
            after = before + added if block.join is None else block.join(before, added)
            new.append(tf.cast(after, own[state][1].dtype))
    return new, tf.stack(deviations, axis=-1)


def _head_parts(block, state, heads):
    """Returns the branch of a block at a state, what each head adds to it, and their deviation."""

    def branch(*dropped):
        kernels = {id(kernel): kernel for kernel, _ in dropped}.values()
        mapping = [
            (kernel, without_heads(kernel.value, [head for one, head in dropped if one is kernel]))
            for kernel in kernels
        ]
        with keras.StatelessScope(state_mapping=mapping):
            return block(state) - state if block.branch is None else block.branch(state)

    whole, nothing = branch(), branch(*heads)
    parts = [whole - branch(head) for head in heads]
    sizes = [
        tf.reduce_max(tf.abs(one), axis=range(1, len(one.shape)))
        for one in (tf.add_n(parts) - (whole - nothing), *parts)
    ]
    return whole, parts, tf.math.divide_no_nan(sizes[0], tf.add_n(sizes[1:]))


def _masked(mask, new, state):
    """Returns a state with another one in it where the mask says so."""
    if mask is None or not has_them(state, mask):
        return new
    return tf.where(mask[(..., *[tf.newaxis] * (len(state.shape) - 2))], new, state)


def _run(chain, own, starts):
    """Returns the last states of runs, one after the other in a leading axis.

    `own` holds the states before and after every block of the run as it is, and `starts`, for each
    of them, the states that runs go on with instead.
    """
    pairs, starts = iter(own), iter(starts)
    (_, after), runs = next(pairs), next(starts)
    count, size = len(runs), tf.shape(after)[0]
    for place, stage in enumerate(chain.stages):
        anchors = None
        for index, block in enumerate(stage.blocks):
            (before, after), new = next(pairs), next(starts)
            if count:
                within = chain.repeat(count).stages[place]
                state = tf.concat(runs, axis=0)
                if index == 0 and stage.transition is not None:
                    state = within.transition(state)
                if anchors is None:
                    anchors = [state]
                runs = [within.blocks[index](state, tf.concat(anchors, axis=0))]
            if index == 0:
                anchor, anchors = before, anchors or []
            if block.keeps_shape:
                anchors = anchors + [anchor] * len(new)
            else:
                anchor, anchors = after, runs + new
            runs, count = runs + new, count + len(new)
    runs = tf.concat(runs, axis=0)
    return tf.reshape(runs, tf.concat([[count, size], tf.shape(runs)[1:]], axis=0))


def _frame(places, values, is_each, per_image, checked):
    """Returns the frame of one split."""
    is_defined = np.array([place.is_defined for place in places])
    columns = ["stage", "block"] if places[0].head is None else ["stage", "block", "head"]
    places = pd.DataFrame(places)[columns]
    # (images, places, positions)
    valid, found = values["valid"], values["patched_logit"]
    patched = np.full((len(found), len(places), valid.shape[1]), np.nan)
    patched[:, is_defined] = found.transpose(0, 2, 1) if is_each else found[..., None]
    is_there = values["counted"]
    weights = values[WEIGHTS][:, None] * (valid & is_there[:, None])
    check_any_counts(weights)
    logits = [np.where(is_there, values[name], np.nan)[:, None, None] for name in RUNS[:2]]
    logits = [np.broadcast_to(logit, patched.shape) for logit in logits]
    runs = dict(zip(RUNS, [*(logit.astype(float) for logit in logits), patched], strict=True))
    if checked is not None:
        runs[CHECKED] = np.full_like(patched, np.nan)
        for index, (place, position) in enumerate(checked):
            runs[CHECKED][:, place, position or 0] = values[CHECKED][:, index]
    for name in (*RUNS[2:], *runs.keys() - RUNS):
        runs[name][~np.broadcast_to((valid & is_there[:, None])[:, None], patched.shape)] = np.nan
    if not per_image:
        _warn_of_noise(logits[1][:, 0, 0] - logits[0][:, 0, 0], values[WEIGHTS] * is_there)
    if per_image:
        position, image = np.nonzero((valid if is_each else np.ones_like(valid)).T)
        examples = {"position": position, "image": image}
        runs = {name: run[image, :, position] for name, run in runs.items()}
    else:
        shown = np.flatnonzero(valid.any(axis=0))
        examples = {"position": shown}
        runs = {
            name: np.array([weighted_mean(run[..., one], weights[:, one]) for one in shown])
            for name, run in runs.items()
        }
    if not is_each:
        del examples["position"]
    # In the order of the network, and in each state of the positions.
    frame = repeated(places, examples, runs)
    frame["difference"] = frame["patched_logit"] - frame["logit"]
    whole = frame["source_logit"] - frame["logit"]
    frame["effect"] = frame["difference"] / whole.where(whole != 0)
    if checked is not None:
        frame["exact_difference"] = frame.pop(CHECKED) - frame["logit"]
        frame["error"] = frame["difference"] - frame["exact_difference"]
    return frame


def _warn_of_noise(differences, weights):
    """Warns if the runs on data and source differ by less than noise in what is measured."""
    mean, error = weighted_mean(differences, weights), standard_error(differences, weights)
    if mean == 0 or abs(mean) < STANDARD_ERRORS * error:
        warn(
            f"The runs on `data` and `source` differ by {mean:.3g} in what is measured, "
            f"with a standard error of {error:.2g}: `effect`, a share of this difference, is "
            "noise, and NaN over 0. Read `difference`, or choose pairs or a `target` for which the "
            'runs differ, such as `target=("label", "source label")`.'
        )


def _warn_of_whole_states(effects):
    """Warns if the effects are 1 because whole states bring all that follows with them."""
    if len(effects) and np.allclose(effects, 1, rtol=0, atol=0.01):
        warn(
            "The whole state is put in, so the effect is 1 after every block by construction: ask "
            "for `positions`, or for `what='addition'`."
        )


def frames(chain, data, options, progress):
    """Measures what the addition of another image's block does, with images paired by label."""
    del options
    # A whole state brings all that follows with it, in every network without a context.
    return {"patching": patching(chain, data, what=ADDITION, progress=progress)}
