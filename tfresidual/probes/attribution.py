"""What every block adds to a logit, by the head linearised at the last state. TensorFlow only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.probes.measure import joined_splits
from tfresidual.probes.predictions import (
    COUNTED,
    LABEL,
    MARGIN,
    check_positions,
    checked_target,
    chosen_logit,
    frame_of,
    has_logit,
    label_check,
    labels_of,
    logits_of,
    over_positions,
    scored_chain,
)
from tfresidual.routing.data import splits_of
from tfresidual.routing.gradients import filled_gradients, is_half, loss_gradients
from tfresidual.routing.readouts import FIRST
from tfresidual.routing.runs import WEIGHTS, run_over
from tfresidual.sources.normalizations import Setting, check_normalizations, frozen_normalizations

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

TARGETS = (LABEL, MARGIN)
# The parts of a logit.
FIRST_STATE, BLOCK, HEAD = "first state", "block", "head"
VALUES = ("attribution", "logit", "deviation")
FROZEN = Setting("`freeze_normalization` must be False", "freeze_normalization=True")
# The largest deviation, as a share of the sum of the sizes of all products that are added up. They
# are computed in float64, whose rounding is 1e-16 of a number.
ALLOWED = 1e-12
# The largest share of the gradient at other positions, in float32, that is taken for rounding.
ALLOWED_ELSEWHERE = 1e-4


def attribution(
    chain: Chain | ChainSource,
    data: Data,
    *,
    target: int
    | Literal["label", "margin"]
    | tuple[int | Literal["label"], int | Literal["label"]] = "label",
    freeze_normalization: bool = False,
    per_image: bool = False,
    per_position: bool = False,
    progress: bool = False,
) -> Frame:
    """Measures what every block adds to the logit of the label.

    Let z be that logit as a function of the last state, the input of the head, g its gradient
    there, and F = block(h) - h. docs/concepts/probes.md says which blocks have a part, what
    `freeze_normalization` does, which logits are read, and which positions count.

    - `attribution`, over 0 if the part raises the logit: of part `"first state"`, <g, h> with the
      state h before the first block with a part of its own; of `"block"`, <g, F>, NaN if a later
      block, or the block itself, has no identity as its shortcut; of `"head"`, what is left of z,
      such as biases, so that the parts add up to z by definition.
    - `logit`: z, the same in all rows.
    - `deviation`: |z - sum of the parts|, which is rounding; over 1e-12 of the sum of the sizes of
      all products, it is an error.

    Costs a forward pass and the backward pass of the head.

    Example:

    >>> frame = attribution(tfresidual.chain(net), test)
    >>> bool(abs(frame["attribution"].sum() - frame["logit"].iloc[0]) < 1e-4)
    True

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        target: which logit: `"label"`, `"margin"` (the lowest logit of a label minus the highest of
            another class), the index of a class, or a pair for the first minus the second, such as
            `("label", 7)`.
        freeze_normalization: whether the head is linearised with the statistics of its layer or RMS
            normalizations held fixed.
        per_image: whether to return the values of every image instead of their means.
        per_position: whether to return the values of every position that counts, for heads that
            read each position by itself.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (-1 for the first state, the
        number of blocks of the last stage for the head), `part`, `attribution`, `logit` and
        `deviation`, in the order of the network. If `data` is a dict, `split` is the first column.
        With `per_image`, `image` (from 0) comes after `part`; with `per_position`, `image` and
        `position`.

    Raises:
        ValueError: if an argument cannot be used, the outputs of the network are not classes, its
            head has no gradient, or the parts do not add up to the logit; with
            `freeze_normalization`, if no normalization of every state by itself is seen in the head
            (such as in chains by hand and in SavedModels), or a layer that may hold one is not of
            that form.

    Reference:
        Elhage et al. 2021, "A mathematical framework for transformer circuits", on direct effects
        on the logits; Wang et al. 2022, https://arxiv.org/abs/2211.00593, section 3, on
        differences of logits.
    """
    target = checked_target(target, TARGETS)
    chain = scored_chain(chain)
    # The kind of outputs is part of the name, since a copy of a chain that declares another kind
    # shares what is compiled.
    name = f"attribution of {target} in {chain.outputs}{' per position' if per_position else ''}"
    name += " with frozen normalization" if freeze_normalization else ""
    function = functools.partial(_batch_values, chain, target, per_position, freeze_normalization)
    frames = {}
    for split, part in splits_of(data).items():
        check = label_check(chain, target)
        values = run_over(chain, name, function, part, progress, check=check, with_losses=False)
        counted, weights, size = (values.pop(name) for name in (COUNTED, WEIGHTS, "size"))
        is_there = counted if per_position else counted.reshape(len(counted), -1).any(axis=1)
        # The logits of a network that explodes are not sums of anything.
        is_finite = np.isfinite(values["logit"][..., 0])
        _check_deviation(chain, values["deviation"][..., 0], size, is_there & is_finite)
        _check_elsewhere(chain, values.pop("elsewhere"), is_there & is_finite)
        frames[split] = frame_of(_places(chain), values, counted, weights, per_image, per_position)
    return joined_splits(frames)


def blocks_with_part(chain):
    """Returns the blocks of a chain that have parts of their own."""
    return chain.blocks[first_with_part(chain) :]


def first_with_part(chain):
    """Returns the place from which on blocks have parts of their own; their number if none has."""
    place = len(chain.blocks)
    for stage in reversed(chain.stages):
        for block in reversed(stage.blocks):
            is_identity = block.shortcut in (None, "identity") and not block.takes_anchor
            if not (is_identity and block.keeps_shape):
                return place
            place -= 1
        if stage.transition is not None:
            return place
    return place


def _places(chain):
    """Returns a frame with a row per part of a logit, in the order of the network."""
    first = first_with_part(chain)
    last = chain.stages[-1]
    rows = [(block.stage, block.index, BLOCK) for block in chain.blocks]
    stage = chain.blocks[first].stage if first < len(rows) else last.index
    # After the blocks of earlier stages, and before those of its own.
    before = sum(block.stage < stage for block in chain.blocks)
    rows.insert(before, (stage, FIRST, FIRST_STATE))
    rows.append((last.index, len(last.blocks), HEAD))
    return pd.DataFrame(rows, columns=["stage", "block", "part"])


def _batch_values(chain, target, per_position, is_frozen, images, labels):
    """Returns all values of a batch by name, each `(images, [positions,] parts)`."""
    chain = chain.with_context(images)
    pairs, last = chain.walk(chain.stem(images))
    logit, gradient, elsewhere, counted = _linearised(
        chain, target, per_position, is_frozen, last, labels
    )
    along = functools.partial(_products, 2 if per_position else 1)
    wide = tf.cast(gradient, tf.float64)
    whole, size = along(wide, last), along(tf.abs(wide), tf.abs(last))
    first = first_with_part(chain)
    undefined = tf.fill(tf.shape(whole), tf.constant(np.nan, tf.float64))
    columns, parts = [], []
    for place, (before, after) in enumerate(pairs):
        if place < first:
            columns.append(undefined)
            continue
        if place == first:
            parts.append(along(wide, before))
        # In float64, in which the difference of two float32 numbers is exact.
        added = tf.cast(after, tf.float64) - tf.cast(before, tf.float64)
        columns.append(along(wide, added))
        parts.append(columns[-1])
        size += along(tf.abs(wide), tf.abs(added))
    if not parts:
        parts.append(whole)
    logit = tf.cast(logit, tf.float64)
    rest = logit - whole
    deviation = tf.abs(logit - sum(parts) - rest)
    places = _places(chain)["part"].tolist()
    columns.insert(places.index(FIRST_STATE), parts[0])
    columns.append(rest)
    return {
        "attribution": tf.stack(columns, axis=-1),
        "logit": tf.stack([logit] * len(columns), axis=-1),
        "deviation": tf.stack([deviation] * len(columns), axis=-1),
        "size": size + tf.abs(logit),
        "elsewhere": tf.zeros_like(whole) if elsewhere is None else elsewhere,
        COUNTED: counted,
    }


def _linearised(chain, target, per_position, is_frozen, last, labels):
    """Returns logits, their gradient at the last state and elsewhere, and which examples count."""
    is_persistent = per_position or is_half(last)
    with tf.GradientTape(persistent=is_persistent, watch_accessed_variables=False) as tape:
        tape.watch(last)
        outputs = _with_fixed_statistics(chain, last) if is_frozen else chain.head(last)
        logits, has_several = logits_of(chain.outputs, outputs)
        check_positions(per_position, logits)
        read = labels_of(chain, labels, outputs, logits, has_several)
        chosen, counted = chosen_logit(target, logits, read.sets), has_logit(target, read)
        # Those of an image together; the images do not depend on one another.
        logit = chosen if per_position else over_positions(chosen, counted)
        total, by_sign = logit, logit
        if per_position:
            total, by_sign = (tf.reduce_sum(one, axis=1) for one in (logit, logit * _signs(logit)))
    (gradient,) = filled_gradients(chain, [last], [loss_gradients(tape, total, last)])
    elsewhere = None
    if per_position:
        if not (len(last.shape) > 2 and last.shape[1:2].is_compatible_with(logit.shape[1:2])):
            raise _no_positions(chain)
        (signed,) = filled_gradients(chain, [last], [loss_gradients(tape, by_sign, last)])
        elsewhere = _share_elsewhere(gradient, signed, _signs(logit))
    return logit, gradient, elsewhere, counted


def _with_fixed_statistics(chain, last):
    """Returns what the head returns, with gradients for fixed statistics of normalizations."""
    with frozen_normalizations(FROZEN) as found:
        outputs = chain.head(last)
    check_normalizations(found, chain.name, FROZEN)
    return outputs


def _share_elsewhere(gradient, signed, signs):
    """Returns the share of the gradients of logits at other positions, `(images, positions)`."""
    # If each logit depends on the state of its own position alone, the gradient of the sum with
    # signs is the one without times the sign of the position; the difference is what logits of the
    # other sign contribute. Signs have no period, at whose distance a head may read positions.
    gradient, signed = tf.cast(gradient, tf.float64), tf.cast(signed, tf.float64)
    signs = tf.reshape(tf.cast(signs, tf.float64), [1, -1] + [1] * (len(signed.shape) - 2))
    return _largest(signed - gradient * signs) / (_largest(gradient) + 1e-300)


def _products(begin, left, right):
    """Returns the scalar products over all axes from one on."""
    return tf.reduce_sum(left * tf.cast(right, left.dtype), axis=range(begin, len(left.shape)))


def _signs(logit):
    """Returns 1 or -1 for every position, in an order that has no period, `(positions,)`."""
    golden = 0.6180339887498949
    steps = tf.cast(tf.range(tf.shape(logit)[-1]), tf.float64) * golden
    return tf.cast(tf.where(steps - tf.floor(steps) < 0.5, 1.0, -1.0), logit.dtype)


def _largest(values):
    """Returns the largest absolute value of each position, `(images, positions)`."""
    return tf.reduce_max(tf.abs(values), axis=range(2, len(values.shape)))


def _check_deviation(chain, deviation, size, is_known):
    is_over = is_known & ~(deviation <= ALLOWED * size)
    if is_over.any():
        raise ArgumentError(
            "chain",
            "have blocks whose changes add up to the last state; they do not add up to the logit",
            received=f"{chain.name}, with a deviation of up to {deviation[is_over].max():.3g}",
        )


def _check_elsewhere(chain, elsewhere, is_known):
    is_over = ~(elsewhere <= ALLOWED_ELSEWHERE) & (is_known | ~np.isnan(elsewhere))
    if is_over.any():
        raise _no_positions(chain)


def _no_positions(chain):
    return ArgumentError(
        "per_position",
        "be False for a network whose head does not read every position by itself",
        received=f"per_position=True for {chain.name}",
    )
