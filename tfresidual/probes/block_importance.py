"""How much a network needs each of its blocks, by several criteria. TensorFlow only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from keras import ops

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_int
from tfresidual.definitions.metrics import change_of, cosine_distance_and_angle, norm, ratio
from tfresidual.definitions.settings import CRITERIA
from tfresidual.probes.drop_blocks import drop_blocks
from tfresidual.probes.first_order import first_order_values
from tfresidual.probes.measure import measure
from tfresidual.probes.predictions import scored_chain
from tfresidual.routing.block_values import shown_states, stacked
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

OF_STATES = ("influence", "angular_distance", "l2_ratio")
OF_LOSS = ("error_rise", "error_rise_se", "cross_entropy_rise", "cross_entropy_rise_se")
PLACE = ("stage", "block")


def block_importance(
    chain: Chain | ChainSource,
    data: Data,
    *,
    by: Literal["loss", "influence", "angular", "first_order", "l2_ratio"] | Iterable[str] = tuple(
        CRITERIA
    ),
    run: int = 1,
    per_position: bool = False,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures how much the network needs each of its blocks, by several criteria.

    With h the state before a block and F = block(h) - h, each per image and averaged:

    - `"loss"`: `error_rise` and `cross_entropy_rise`, what is lost without the block, with their
      standard errors, as in `drop_blocks`. The others are guesses of these numbers.
    - `"influence"`: 1 - cos(h, h + F), in [0, 2], the block influence of Men et al. 2024.
    - `"angular"`: `angular_distance`, the angle between the states before the first of `run` blocks
      of a stage and after the last one, over pi, in [0, 1]. NaN where fewer blocks follow, or one
      of them changes the shape of the state. The run with the lowest one is that which Gromov et
      al. 2024 take out.
    - `"first_order"`: `predicted_rise`, -<F, g>, with its standard error; g is the gradient of the
      loss at h.
    - `"l2_ratio"`: |F| / |h|, 0 or more.

    A block with a low value is one that may go; what several of them cost together, none of these
    numbers tells: `tfresidual.surgery.plan` measures it. Blocks that change the shape of the state
    cannot be taken out: their values are NaN.

    Example:

    >>> frame = block_importance(tfresidual.chain(net), test, by=["influence", "l2_ratio"])
    >>> len(frame.dropna().sort_values("influence").head(2))
    2

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`. Influence, angles and
            ratios do not depend on the labels.
        by: one criterion or several; all by default. The first and the fourth need outputs that are
            classes.
        run: int, the number of blocks of `"angular"`, 1 or more.
        per_position: whether influence, angles and ratios are those of single positions, as Men et
            al. 2024 have them, see `block_metrics`.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0) and those of the
        criteria, in the order above. If `data` is a dict, `split` is the first column.

    Raises:
        ValueError: if an argument cannot be used.

    Reference:
        Men et al. 2024, https://arxiv.org/abs/2403.03853, section 2.2; Gromov et al. 2024,
        https://arxiv.org/abs/2403.17887, eq. 3; Molchanov et al. 2017,
        https://arxiv.org/abs/1611.06440, on first-order terms.
    """
    by, run = checked_criteria(by), check_int("run", run, at_least=1)
    check_memory_limit(memory_limit)
    needs_labels = {"loss", "first_order"} & set(by)
    chain = scored_chain(chain) if needs_labels else sources.numbered(chain)
    parts = []
    if "loss" in by:
        frame = drop_blocks(chain, data, memory_limit=memory_limit, progress=progress)
        parts.append(_chosen(frame, OF_LOSS))
    function = functools.partial(turn_values, chain, run=run)
    names = [CRITERIA[one] for one in by if CRITERIA[one] in OF_STATES]
    if names:
        frame = measure(
            chain,
            f"turns by {run}",
            function,
            data,
            progress=progress,
            with_labels=False,
            per_position=per_position,
            of_states=OF_STATES,
        )
        parts.append(_chosen(frame, names))
    if "first_order" in by:
        name = "first_order"
        function = functools.partial(first_order_values, chain)
        frame = measure(chain, "first-order terms", function, data, with_errors=(name,))
        frame = frame.assign(predicted_rise=-frame[name], predicted_rise_se=frame[f"{name}_se"])
        parts.append(_chosen(frame, ("predicted_rise", "predicted_rise_se")))
    first, *others = parts
    for other in others:
        first = first.join(other[[name for name in other if name not in first]])
    return first


def checked_criteria(by):
    """Returns criteria as a list without repetition; raises a `ValueError` if one is unknown."""
    given = [by] if isinstance(by, str) or not hasattr(by, "__iter__") else list(by)
    if not given or not all(isinstance(one, str) and one in CRITERIA for one in given):
        raise ArgumentError("by", f"be one or more of {', '.join(map(repr, CRITERIA))}", by)
    return [one for one in CRITERIA if one in given]


def _chosen(frame, names):
    place = [name for name in ("split", *PLACE) if name in frame]
    return frame[[*place, *names]]


def turn_values(chain, images, labels, run=1, per_position=False):
    """Returns how far every block turns the state of each image, and by how much it changes it."""
    del labels
    chain = chain.with_context(images)
    pairs, _ = chain.walk(chain.stem(images))
    shown = shown_states(chain, pairs, per_position)
    blocks, rows = chain.blocks, []
    undefined = ops.full_like(norm(shown(pairs[0][0])), float("nan"))
    for index, (block, pair) in enumerate(zip(blocks, pairs, strict=True)):
        row = dict.fromkeys(OF_STATES, undefined)
        if block.keeps_shape:
            before, after = map(shown, pair)
            row["influence"], _ = cosine_distance_and_angle(before, after)
            row["l2_ratio"] = ratio(norm(change_of(before, after)), norm(before))
        following = blocks[index : index + run]
        if len(following) == run and all(
            one.keeps_shape and one.stage == block.stage for one in following
        ):
            ends = map(shown, (pair[0], pairs[index + run - 1][1]))
            _, row["angular_distance"] = cosine_distance_and_angle(*ends)
        rows.append(row)
    return stacked(chain, pairs[0][0], rows, OF_STATES, None, per_position, OF_STATES)
