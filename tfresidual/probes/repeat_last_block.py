"""What happens when the last block of a stage is applied repeatedly. TensorFlow only."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_int, check_ints
from tfresidual.definitions.averages import counted_weights, standard_error, weighted_mean
from tfresidual.definitions.metrics import change_of, cosine, norm, ratio
from tfresidual.probes.block_metrics import block_metrics
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.routing import routes
from tfresidual.routing.data import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.gradients import filled_gradients, is_half, loss_gradients
from tfresidual.routing.positions import (
    check_any_counts,
    counted_images,
    masks_of,
    only_counted,
    valid_images,
    without_padding,
)
from tfresidual.routing.routes import check_scale, check_times, unperturbed
from tfresidual.routing.runs import WEIGHTS, run_over

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

# A backward pass keeps the values computed in every block after the repeated one.
IMAGES_AT_ONCE = 64

# What the figures show of the trained blocks.
TRAINED = ("split", "stage", "block", "cosine_loss", "l2_ratio")


def repeat_last_block(
    chain: Chain | ChainSource,
    data: Data,
    *,
    times: int = 16,
    scale: float = 1.0,
    blocks: int = 1,
    stages: Iterable[int] | None = None,
    block_metrics: bool = True,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network when the last block of a stage is repeated.

    One stage is changed at a time, with every number of repetitions from 0 (the unperturbed
    network) to `times`. The metrics are those of `evaluate_routes`; the distance is that of the
    stage. Two more metrics describe the last of these applications, in the network whose stage
    ends with it:

    - `cosine_loss`: the cosine between what the application adds to the state and the gradient of
      the loss with respect to its input, through the application itself and everything after it,
      in [-1, 1] (see `block_metrics`); `cosine_loss_se` is its standard error over the images.
    - `l2_ratio`: the norm of what the application adds divided by the norm of its input, 0 or
      more.

    At repetition 0, these are those of `block_metrics`. They are NaN if numbers overflow, and are
    measured on 64 images at a time, whatever the memory limit. A stage one of whose last `blocks`
    changes the shape of the state has no rows.

    Example:

    >>> frame = repeat_last_block(tfresidual.chain(net), test, times=20, scale=0.3)

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        times: int, the largest number of extra applications, 1 or more.
        scale: float, the factor of the branch in the extra applications.
        blocks: int, how many blocks at the end of a stage are repeated, one after the other: 2 for
            a layer of a transformer whose attention and MLP are blocks (docs/concepts/probes.md).
        stages: ints, the stages that are measured, counted from 1; by default all.
        block_metrics: whether to measure the cosine and the ratio of each application, which takes
            a backward pass through the rest of the network: little in the last stage, much in the
            first one of a deep network.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `repetition` (from 0), `scale`,
        `error`, `cross_entropy`, `entropy`, `agreement`, `distance` and, with `block_metrics`,
        `cosine_loss`, `l2_ratio` and `cosine_loss_se`. If `data` is a dict, `split` is the first
        column.

    Raises:
        ValueError: if an argument cannot be used, or no stage has a last block to repeat.

    Reference:
        Jastrzebski et al. 2018, section 4.4 and fig. 20; "Iterative convergent computation is not
        a useful inductive bias for ResNets", section 3.3 and fig. 2a, 6b, c.
    """
    chain = sources.numbered(chain)
    if stages is not None:
        stages = check_ints("stages", stages, at_least=1)
        if max(stages) > len(chain.stages):
            known = ", ".join(str(stage.index) for stage in chain.stages)
            raise ArgumentError("stages", f"hold stages of {chain.name}: {known}", stages)
    rows = rows_of(chain, times, scale, blocks, stages)
    if not rows:
        last = "last block keeps" if blocks == 1 else f"last {blocks} blocks keep"
        raise ArgumentError(
            "chain",
            f"have a stage whose {last} the shape of the state",
            received=f"{chain.name}, where no stage has one",
        )
    tables = {"repeat_last_block": rows}
    frame = frames_of_rows(chain, data, tables, memory_limit, progress)[0]["repeat_last_block"]
    if not block_metrics:
        return frame
    stages = [stage.index for stage in _stages(chain, blocks, stages)]
    measured = [
        _application_metrics(chain, stages, times, scale, blocks, part, progress)
        for part in splits_of(data).values()
    ]
    for name in ("cosine_loss", "l2_ratio", "cosine_loss_se"):
        frame[name] = np.concatenate([values[name] for values in measured])
    return frame


def rows_of(chain, times, scale=1.0, blocks=1, stages=None):
    """Returns pairs of the place columns of a row of the frame and its route."""
    check_times(times)
    check_scale(scale)
    check_int("blocks", blocks, at_least=1)
    rows = []
    for stage in _stages(chain, blocks, stages):
        for repetition in range(times + 1):
            route = unperturbed(chain)
            if repetition:
                route = routes.repeat_last_block(chain, stage.index, repetition, scale, blocks)
            place = {"stage": stage.index, "repetition": repetition, "scale": float(scale)}
            rows.append((place, route))
    return rows


def _stages(chain, blocks, chosen=None):
    """Returns the stages whose last blocks can be repeated, all or those that were chosen."""
    return [
        stage
        for stage in chain.stages
        if stage.can_repeat_last(blocks) and (chosen is None or stage.index in chosen)
    ]


def _application_metrics(chain, stages, times, scale, blocks, data, progress):
    """Returns a dict of the means over the images and the standard error of the cosine.

    They are of all applications in one stage after the other.
    """
    scales = [1.0] + [float(scale)] * times
    function = functools.partial(_batch_values, chain, stages, scales, blocks)
    name = f"last {blocks} of {stages} x{times} scaled {scale}"
    values = run_over(chain, name, function, data, progress, at_once=IMAGES_AT_ONCE)
    valid, counted = masks_of(values)
    check_any_counts(counted)
    masks = {"cosine_loss": counted, "l2_ratio": valid}
    weights = values.pop(WEIGHTS)
    shares = {name: counted_weights(weights, masks[name]) for name in values}
    # Values outside the range of the floats have no direction and no size.
    values = {name: np.where(np.isfinite(value), value, np.nan) for name, value in values.items()}
    means = {name: weighted_mean(value, shares[name]) for name, value in values.items()}
    name = "cosine_loss"
    return means | {f"{name}_se": standard_error(values[name], shares[name])}


def _batch_values(chain, stages, scales, blocks, images, labels):
    """Returns both metrics of all applications on a batch, each `(images, applications)`."""
    chain, parts = chain.with_context(images), []
    for stage in stages:
        # One after the other: each holds what its gradients need.
        with tf.control_dependencies([value for part in parts[-1:] for value in part[0].values()]):
            parts.append(_stage_values(chain, stage, scales, blocks, images, labels))
    values = {name: tf.concat([own[name] for own, _ in parts], axis=1) for name in parts[0][0]}
    counted = counted_images(chain, labels, parts[0][1])
    return only_counted(values, valid_images(chain), counted, of_states=("l2_ratio",))


def _stage_values(chain, stage, scales, blocks, images, labels):
    """Returns both metrics of all applications in one stage, and the shape of the outputs."""
    repeated = chain.stages[stage - 1].blocks[-blocks:]
    state, anchor = chain.walk_to(chain.stem(images), stage, repeated[0].index)
    rest = dataclasses.replace(chain, stages=chain.stages[stage:])
    clean, shapes = without_padding(chain), []

    def apply(index, state, cosines, ratios):
        with tf.GradientTape(persistent=is_half(state), watch_accessed_variables=False) as tape:
            tape.watch(state)
            after = state
            for block in repeated:
                after = block(after, anchor, tf.gather(scales, index))
            _, last = rest.walk(after)
            outputs = chain.head(last)
            losses = chain.loss(labels, outputs)
        shapes.append(tuple(outputs.shape)[1:])
        change = clean(change_of(state, after))
        (gradient,) = filled_gradients(chain, [state], loss_gradients(tape, losses, [state]))
        gradient, size = clean(gradient), norm(clean(state))
        cosines = cosines.write(index, tf.cast(cosine(change, gradient), tf.float32))
        ratios = ratios.write(index, tf.cast(ratio(norm(change), size), tf.float32))
        return index + 1, after, cosines, ratios

    # This is a graph loop: it is traced once, however often the block is applied.
    values = [tf.TensorArray(tf.float32, len(scales)) for _ in range(2)]
    _, _, cosines, ratios = tf.while_loop(
        lambda index, *_: index < len(scales),
        apply,
        (0, state, *values),
        parallel_iterations=1,
    )
    cosines, ratios = tf.transpose(cosines.stack()), tf.transpose(ratios.stack())
    return {"cosine_loss": cosines, "l2_ratio": ratios}, shapes[0]


def frames(chain, data, options, progress):
    """Measures the repetition, and the trained blocks that the figures compare it with."""
    frame = repeat_last_block(
        chain,
        data,
        times=options.times,
        scale=options.scale,
        memory_limit=options.memory_limit,
        progress=progress,
    )
    blocks = block_metrics(chain, data, progress=progress)
    drawn = [name for name in TRAINED if name in blocks]
    return {"repetition_metrics": frame, "trained_blocks": blocks[drawn]}
