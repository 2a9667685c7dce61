"""How state and gradient propagate through the network, and how much the shortcuts carry.

TensorFlow only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tensorflow as tf
from keras import backend, ops

from tfresidual import sources
from tfresidual.definitions.metrics import change_of, cosine, norm, ratio
from tfresidual.probes.measure import measure
from tfresidual.routing.gradients import (
    carried_gradients,
    filled_gradients,
    is_half,
    loss_gradients,
)
from tfresidual.routing.positions import counted_images, only_counted, valid_images, without_padding

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

# Those that do not depend on the loss.
STATE_METRICS = ("state_norm", "state_l1", "sum_deviation")
METRICS = (
    "state_norm",
    "state_l1",
    "state_gradient_norm",
    "gradient_ratio",
    "shortcut_share",
    "shortcut_norm",
    "shortcut_product",
    "sum_deviation",
)


def signal_propagation(
    chain: Chain | ChainSource, data: Data, *, per_image: bool = False, progress: bool = False
) -> Frame:
    """Measures state and gradient at every block, and how much gradient the shortcuts carry.

    Let L be the loss of one image, h the state before a block, g = dL/dh through the rest of the
    network, and g_s the part of g that arrives from the last state of the stage through the
    shortcuts alone. Norms are over all features of one image, without padding.
    docs/concepts/probes.md says what belongs to a shortcut, and how to measure at initialization.

    - `state_norm`: the Euclidean norm of the state after the block, 0 or more.
    - `state_l1`: the sum of the absolute values of that state, 0 or more. For the last block of a
      network, this is the number in fig. 9 of Jastrzebski et al. 2018.
    - `state_gradient_norm`: the norm of dL/d(state after the block), 0 or more.
    - `gradient_ratio`: |g| of the first block of the network divided by |g| of this block, 0 or
      more. For the first block of the last stage, this is r of Jastrzebski et al. 2018, fig. 8.
    - `shortcut_share`: <g_s, g> / |g|^2, the share of the gradient that comes through the
      shortcuts. The rest, up to 1, comes through the branches. It may leave [0, 1].
    - `shortcut_norm`: |g_s| / |g|, 0 or more, and at least the absolute value of the share.
    - `shortcut_product`: |g_s| divided by the norm of the last gradient of the stage, 0 or more:
      the factor by which the shortcuts from this block to the end of the stage multiply the
      gradient (He et al. 2016, eq. 5 and 8).
    - `sum_deviation`: how far the state after the block is from the first state of the stage plus
      the sum of the branches up to this one, divided by the norm of the state; 0 or more (ibid.,
      eq. 4 and 7). NaN for a block that changes the shape.

    Each metric is computed per image and then averaged over the images. What is not known of
    shortcuts in a chain built by hand is NaN.

    Example:

    >>> frame = signal_propagation(tfresidual.chain(net), test)
    >>> r = frame[frame["stage"] == 3]["gradient_ratio"].iloc[0]

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        per_image: whether to return the values of every image instead of their means.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0) and the metrics. If
        `data` is a dict, `split` is the first column. With `per_image`, `image` (from 0) comes
        after `block`.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, section 2 and 3; Jastrzebski et al.
        2018, https://arxiv.org/abs/1710.04773, section 4.5, fig. 8 and 9.
    """
    chain = sources.numbered(chain)
    function = functools.partial(_batch_values, chain)
    return measure(
        chain,
        "signal propagation",
        function,
        data,
        per_image=per_image,
        progress=progress,
        of_states=STATE_METRICS,
    )


def _batch_values(chain, images, labels):
    """Returns all metrics of a batch, each `(images, blocks)`."""
    # The stem needs no gradient, so it is outside the tape.
    chain = chain.with_context(images)
    state = chain.stem(images)
    with tf.GradientTape(persistent=is_half(state), watch_accessed_variables=False) as tape:
        tape.watch(state)
        pairs, last = chain.walk(state)
        outputs = chain.head(last)
        losses = chain.loss(labels, outputs)
    counted = counted_images(chain, labels, tuple(outputs.shape)[1:])
    before, after = zip(*pairs, strict=True)
    # A state that a stage with an anchor does not use has no gradient.
    gradients, gradients_after = loss_gradients(tape, losses, [before, after])
    gradients = filled_gradients(chain, before, gradients)
    gradients_after = filled_gradients(chain, after, gradients_after)
    clean = without_padding(chain)
    through_shortcuts, ends, deviations, end = [], [], [], 0
    for stage in chain.stages:
        if stage.blocks:
            begin, end = end, end + len(stage.blocks)
            last_gradient = gradients_after[end - 1]
            arriving = _through_shortcuts(stage.blocks, before[begin:end], last_gradient)
            through_shortcuts += [None if part is None else clean(part) for part in arriving]
            ends += [norm(clean(last_gradient))] * len(stage.blocks)
            deviations += _sum_deviations(stage.blocks, pairs[begin:end], clean)
    first_size = norm(clean(gradients[0]))
    values = [
        {
            "state_norm": norm(clean(state)),
            "state_l1": _one_norm(clean(state)),
            "state_gradient_norm": norm(clean(gradient_after)),
            "gradient_ratio": ratio(first_size, norm(clean(gradient))),
            **_shortcut_values(clean(gradient), through_shortcut, end_size),
            "sum_deviation": deviation,
        }
        for state, gradient, gradient_after, through_shortcut, end_size, deviation in zip(
            after, gradients, gradients_after, through_shortcuts, ends, deviations, strict=True
        )
    ]
    stacked = {name: ops.stack([value[name] for value in values], axis=1) for name in METRICS}
    return only_counted(stacked, valid_images(chain), counted, STATE_METRICS)


def _through_shortcuts(blocks, states, gradient):
    """Returns the part of a stage's last gradient that shortcuts alone carry to each block."""
    unknown = [block.index for block in blocks if not (block.keeps_shape or block.join)]
    first = unknown[-1] + 1 if unknown else 0
    if first == len(blocks):
        return [None] * first
    # Computes the same states again, in a walk whose branches pass no gradient. The graph computes
    # the parts that both walks have in common only once.
    state = anchor = tf.stop_gradient(states[first])
    copies = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(state)
        for block in blocks[first:]:
            copies.append(state)
            state = block.changed(state, anchor, tf.stop_gradient)
            anchor = anchor if block.keeps_shape else state
    return [None] * first + carried_gradients(tape, state, copies, gradient)


def _sum_deviations(blocks, pairs, clean):
    """Returns the deviations of the states of a stage from the sum of branches, per image."""
    total, deviations = None, []
    for block, (before, after) in zip(blocks, pairs, strict=True):
        if not block.keeps_shape:
            total = None
            deviations.append(ops.full_like(norm(after), float("nan")))
            continue
        # The dtype in which states of low precision are added up.
        wide = backend.result_type(before.dtype, "float32")
        branch = change_of(before, after) if block.branch is None else block.branch(before)
        total = ops.cast(before, wide) if total is None else total
        total = total + ops.cast(branch, wide)
        deviations.append(ratio(norm(clean(change_of(total, after))), norm(clean(after))))
    return deviations


def _one_norm(state):
    """Returns the sum of the absolute values of the features of each image, `(images,)`."""
    # In float64, since a sum of so many terms loses digits in float32 and most of them in bfloat16.
    return ops.sum(ops.abs(ops.cast(state, "float64")), axis=tuple(range(1, len(state.shape))))


def _shortcut_values(gradient, through_shortcut, end_size):
    size = norm(gradient)
    if through_shortcut is None:
        names = ("shortcut_share", "shortcut_norm", "shortcut_product")
        return dict.fromkeys(names, ops.full_like(size, float("nan")))
    carried = norm(through_shortcut)
    relative = ratio(carried, size)
    return {
        "shortcut_share": relative * cosine(through_shortcut, gradient),
        "shortcut_norm": relative,
        "shortcut_product": ratio(carried, end_size),
    }
