"""Whether repeating the last block of a stage leads to a fixed point. TensorFlow only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.averages import counted_weights, weighted_mean
from tfresidual.definitions.metrics import change_of, norm
from tfresidual.probes.measure import joined_splits
from tfresidual.routing.data import splits_of
from tfresidual.routing.positions import (
    check_any_counts,
    masks_of,
    only_counted,
    valid_images,
    without_padding,
)
from tfresidual.routing.routes import check_times
from tfresidual.routing.runs import WEIGHTS, run_over

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

METRICS = ("change", "contraction", "largest_contraction", "distance")
# The distance from 1 to the next larger number.
ULPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# A change of this many ulps of the state is known to within a few percent: rounding moves a state
# at rest by about a fifth of an ulp per repetition.
SMALLEST_CHANGE = 4


def fixed_point(
    chain: Chain | ChainSource, data: Data, *, times: int = 50, progress: bool = False
) -> Frame:
    """Measures where the state of a stage goes when its last block is applied repeatedly.

    Each stage is measured by itself, without the stages after it. Let z_0 be the input of the
    last block of the stage and z_{t+1} the output of its application t, where application 0 is the
    trained one. The anchor of the stage stays the same. Norms are over all features of one image,
    without padding.

    - `change`: |z_{t+1} - z_t|, 0 or more.
    - `contraction`: |z_{t+1} - z_t| / |z_t - z_{t-1}|, 0 or more: the factor by which the block
      changes the distance between two of its inputs, and therefore at most its Lipschitz constant.
      NaN at repetition 0, because z_0 is the output of another block.
    - `largest_contraction`: the largest contraction over the images instead of the mean.
    - `distance`: |z_{t+1} - z_{times+1}|, the distance to the state after all applications, 0 or
      more. At the last repetition, only rounding errors remain.

    Images whose last change was close to rounding (docs/concepts/probes.md) are left out of the
    contractions, which are NaN if no image remains. All metrics are NaN if numbers overflow. Labels
    are not used. A stage whose last block changes the shape of the state has no rows.

    Example:

    >>> frame = fixed_point(tfresidual.chain(net), test, times=100)
    >>> largest = frame.groupby("stage")["largest_contraction"].max()

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        times: int, the number of extra applications, 1 or more.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `repetition` (extra applications of
        the last block, from 0 to `times`), `change`, `contraction`, `largest_contraction` and
        `distance`, means over the images but for the largest. If `data` is a dict, `split` is the
        first column.

    Raises:
        ValueError: if an argument cannot be used, or no stage has a last block to repeat.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        4.2 (Banach's fixed point theorem).
    """
    chain = sources.numbered(chain)
    check_times(times)
    stages = [stage for stage in chain.stages if stage.can_repeat]
    if not stages:
        raise ArgumentError(
            "chain",
            "have a stage whose last block keeps the shape of the state",
            received=f"{chain.name}, where no stage has one",
        )
    function = functools.partial(_batch_values, chain, times)
    frames = {}
    for split, part in splits_of(data).items():
        name = f"fixed point x{times}"
        values = run_over(chain, name, function, part, progress, with_labels=False)
        valid, _ = masks_of(values)
        check_any_counts(valid)
        weights = counted_weights(values.pop(WEIGHTS), valid)
        of_stages = []
        for index, stage in enumerate(stages):
            of_stage = {name: value[:, index] for name, value in values.items()}
            places = {"stage": stage.index, "repetition": range(times + 1)}
            of_stages.append(pd.DataFrame(places | means_of(**of_stage, weights=weights)))
        frames[split] = pd.concat(of_stages)
    return joined_splits(frames)


def means_of(change, distance, smallest, weights=None):
    """Returns the means over the images of arrays `(images, repetitions)` of one stage, by metric.

    If a change is at most `smallest`, the next contraction is noise. Images of weight 0 do not
    count; by default, all weights are 1.
    """
    weights = np.ones(len(change)) if weights is None else weights
    is_counted = weights > 0
    change, distance, smallest = (
        values[is_counted].astype(float) for values in (change, distance, smallest)
    )
    weights = weights[is_counted]
    # Values outside the range of the floats have no size.
    change, distance = (
        np.where(np.isfinite(values), values, np.nan) for values in (change, distance)
    )
    before, after = change[:, :-1], change[:, 1:]
    is_noise = before <= smallest[:, :-1]
    is_left = ~is_noise.all(axis=0)
    quotients = np.divide(after, before, out=np.zeros_like(after), where=~is_noise)
    shares = weights[:, None] * ~is_noise
    shares = shares / np.where(is_left, shares.sum(axis=0), 1)
    of_first = [np.nan]
    return {
        "change": weighted_mean(change, weights),
        "contraction": np.append(of_first, np.where(is_left, (quotients * shares).sum(0), np.nan)),
        "largest_contraction": np.append(of_first, np.where(is_left, quotients.max(0), np.nan)),
        "distance": weighted_mean(distance, weights),
    }


def _batch_values(chain, times, images, labels):
    """Returns the values on a batch, each `(images, stages, repetitions)`."""
    del labels
    chain = chain.with_context(images)
    pairs, _ = chain.walk(chain.stem(images))
    values, end = [], 0
    for stage in chain.stages:
        begin, end = end, end + len(stage.blocks)
        if stage.can_repeat:
            states = [before for before, _ in pairs[begin:end]]
            # The anchor is the state after the last block that changes the shape.
            fixed = [block.index for block in stage.blocks if not block.keeps_shape]
            anchor = states[fixed[-1] + 1 if fixed else 0]
            clean = without_padding(chain)
            values.append(_stage_values(stage.blocks[-1], states[-1], anchor, times, clean))
    stacked = {name: tf.stack([value[name] for value in values], axis=1) for name in values[0]}
    return only_counted(stacked, valid_images(chain))


def _stage_values(block, state, anchor, times, clean):
    """Returns the values of one stage, each `(images, repetitions)`."""
    # Both loops are graph loops, traced once. The first one only computes the last state, because
    # all states together might not fit into memory.
    _, last = tf.while_loop(
        lambda index, _: index <= times,
        lambda index, state: (index + 1, block(state, anchor)),
        (0, state),
    )

    def apply(index, state, *arrays):
        after = block(state, anchor)
        values = (
            norm(clean(change_of(state, after))),
            norm(clean(change_of(after, last))),
            _rounding(state.dtype) * tf.maximum(norm(clean(state)), norm(clean(after))),
        )
        written = [
            array.write(index, tf.cast(value, tf.float32))
            for array, value in zip(arrays, values, strict=True)
        ]
        return index + 1, after, *written

    arrays = [tf.TensorArray(tf.float32, times + 1) for _ in range(3)]
    _, _, changes, distances, smallest = tf.while_loop(
        lambda index, *_: index <= times, apply, (0, state, *arrays)
    )
    arrays = {"change": changes, "distance": distances, "smallest": smallest}
    return {
        name: tf.transpose(array.stack())  # noqa: PD013
        for name, array in arrays.items()
    }


def _rounding(dtype):
    """Returns the share of the norm of a state up to which a change of the state is noise."""
    return SMALLEST_CHANGE * ULPS[dtype.name]
