"""The states and loss gradients of one forward and one backward pass. TensorFlow only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.positions import counted_images

if TYPE_CHECKING:
    from tfresidual.routing.chain import Chain


@dataclasses.dataclass(frozen=True)
class Walk:
    """The states and gradients of one pass over a batch.

    Attributes:
        pairs: for every block, the pair of states before and after it, each `(images, height,
            width, channels)`.
        gradients: for every block, the gradient of each image's loss with respect to the state
            before the block, through the rest of the network.
        gradients_after: for every block, the same with respect to the state after the block.
        readout_gradients: for every block of the last stage whose state the head can take, the
            gradient of the loss of the head applied directly to the state before it; otherwise
            `None`.
        readout_losses: for the same blocks, this loss, `(images,)`; otherwise `None`.
        losses: the loss of each image, `(images,)`.
        counted: which images have a loss that counts, bool, `(images,)`; `None` for all.
    """

    pairs: list[tuple[tf.Tensor, tf.Tensor]]
    gradients: list[tf.Tensor]
    gradients_after: list[tf.Tensor]
    readout_gradients: list[tf.Tensor | None]
    readout_losses: list[tf.Tensor | None]
    losses: tf.Tensor
    counted: tf.Tensor | None


def walk_with_gradients(chain: Chain, images: tf.Tensor, labels: tf.Tensor) -> Walk:
    """Runs a batch forwards and backwards through a chain.

    The losses are summed over the images, so that each image gets its own gradient. The gradients
    of weights are never computed.

    Args:
        chain: a `tfresidual.routing.Chain`.
        images: `(images, height, width, channels)`.
        labels: labels as the loss of the chain takes them.

    Returns:
        A `Walk`, with the states in `pairs` and the gradients in `gradients`, one per block.

    Raises:
        ValueError: if the loss has no gradient at the states.
    """
    chain = chain.with_context(images)
    # The stem needs no gradient, so it is outside the tape.
    state = chain.stem(images)
    with tf.GradientTape(persistent=is_half(state), watch_accessed_variables=False) as tape:
        tape.watch(state)
        pairs, last = chain.walk(state)
        outputs = chain.head(last)
        losses, of_readouts = chain.loss(labels, outputs), None
        shape = tuple(outputs.shape)[1:]
        # Copies without a gradient to the network, so that read-outs do not change its gradients.
        readouts = {
            index: tf.stop_gradient(before)
            for index, (block, (before, _)) in enumerate(zip(chain.blocks, pairs, strict=True))
            if block.stage == chain.stages[-1].index and before.shape[1:] == last.shape[1:]
        }
        for copy in readouts.values():
            tape.watch(copy)
        if readouts:
            # The head treats each image by itself, so all read-outs go through it as one batch.
            states = [tf.cast(copy, last.dtype) for copy in readouts.values()]
            outputs = chain.repeat(len(readouts)).head(tf.concat(states, axis=0))
            repeats = [len(readouts)] + [1] * (len(labels.shape) - 1)
            of_readouts = chain.loss(tf.tile(labels, repeats), outputs)
    before, after = zip(*pairs, strict=True)
    if is_half(state):
        gradients, gradients_after = loss_gradients(tape, losses, [before, after])
        copies = loss_gradients(tape, of_readouts, readouts, have_own=True) if readouts else {}
    else:
        both = [losses, of_readouts] if readouts else [losses]
        gradients, gradients_after, copies = tape.gradient(both, [before, after, readouts])
    parts = tf.split(of_readouts, len(readouts)) if readouts else []
    of_blocks = dict(zip(readouts, parts, strict=True))
    return Walk(
        pairs,
        filled_gradients(chain, before, gradients),
        filled_gradients(chain, after, gradients_after),
        [copies.get(index) for index in range(len(pairs))],
        [of_blocks.get(index) for index in range(len(pairs))],
        losses,
        counted_images(chain, labels, shape),
    )


def is_half(state):
    """Returns whether a tensor is in float16, whose gradients `loss_gradients` computes twice."""
    return state.dtype == tf.float16


def loss_gradients(tape, losses, states, have_own=False):
    """Returns the gradients of losses at states; in float32 at states in float16.

    In float16, numbers below 6e-8 are 0: every loss is multiplied by a power of two for which its
    largest gradient is near 16, and its gradients are divided by it.

    Args:
        tape: a `tf.GradientTape` that recorded the losses; a persistent one for states in float16.
        losses: one per image, `(images,)`.
        states: a structure of tensors `(images, ...)`.
        have_own: whether every state has losses of its own, one state after the other.

    Returns:
        The gradients in the same structure, `None` for states that the losses do not depend on.
    """
    flat = tf.nest.flatten(states)
    if not any(map(is_half, flat)):
        return tape.gradient(losses, states)
    shares = len(flat) if have_own else 1

    def gradients(powers):
        """Returns the gradients of losses times powers of two, and the size of the largest."""
        scales = tf.pow(2.0, powers)
        found = tape.gradient(losses, flat, output_gradients=tf.cast(scales, losses.dtype))
        of_states = tf.unstack(tf.reshape(scales, [shares, -1])) * (len(flat) // shares)
        wide = [None if one is None else tf.cast(one, tf.float32) for one in found]
        sizes = [
            tf.zeros_like(scale) if one is None else _largest(one)
            for one, scale in zip(wide, of_states, strict=True)
        ]
        sizes = tf.reduce_max(tf.reshape(tf.stack(sizes), [-1, tf.size(scales)]), axis=0)
        divided = [
            None if one is None else one / _of_rows(scale, one)
            for one, scale in zip(wide, of_states, strict=True)
        ]
        return divided, sizes

    # A first pass finds the sizes: infinite ones were too large, and 0 is too small.
    first = tf.fill(tf.shape(losses), 8.0)
    _, sizes = gradients(first)
    wanted = first + 4.0 - tf.math.ceil(tf.math.log(sizes) / np.log(2.0))
    wanted = tf.minimum(tf.where(sizes > 0, wanted, 24.0), 14.0 if is_half(losses) else 60.0)
    found, _ = gradients(tf.where(tf.math.is_finite(sizes), wanted, -4.0))
    return tf.nest.pack_sequence_as(states, found)


def carried_gradients(tape, after, before, gradient):
    """Returns the gradients at a list of earlier states that lead to a gradient at a later one.

    They are in float32 at states in float16, as those of `loss_gradients`.
    """
    zero = tf.UnconnectedGradients.ZERO
    if not is_half(after):
        return tape.gradient(after, before, gradient, unconnected_gradients=zero)
    size = _largest(gradient)
    scale = tf.where((size > 0) & tf.math.is_finite(size), size, 1.0) / 16.0
    given = tf.cast(gradient / _of_rows(scale, gradient), after.dtype)
    found = tape.gradient(after, before, given, unconnected_gradients=zero)
    return [tf.cast(one, tf.float32) * _of_rows(scale, one) for one in found]


def is_float8(weight):
    """Returns whether a weight is a scale of a float8 layer, which the optimizer overwrites."""
    return getattr(weight, "overwrite_with_gradient", False)


def check_no_float8(chain):
    """Raises a `ValueError` for blocks whose gradients are rounded to what training has."""
    if any(is_float8(weight) for block in chain.blocks for weight in block.variables):
        raise ArgumentError(
            "chain",
            "have blocks without float8, whose gradients are cut off at the largest of training",
            received=chain.name,
        )


def _of_rows(scale, tensor):
    """Returns numbers `(images,)` in a shape that multiplies those of a tensor `(images, ...)`."""
    return tf.reshape(scale, [-1, *[1] * (len(tensor.shape) - 1)])


def _largest(tensor):
    """Returns the largest absolute value of each image, `(images,)`."""
    return tf.reduce_max(tf.abs(tensor), axis=range(1, len(tensor.shape)))


def filled_gradients(chain, states, gradients):
    """Returns the gradients at the states of a chain, zeros at states that nothing later uses."""
    if all(gradient is None for gradient in gradients):
        raise ArgumentError(
            "chain",
            "have a loss with a gradient at its states; `stop_gradient`, or a function outside "
            "of TensorFlow, passes none",
            received=f"{chain.name}, whose head or loss has none",
        )
    check_no_float8(chain)
    return [
        tf.zeros_like(state) if gradient is None else gradient
        for state, gradient in zip(states, gradients, strict=True)
    ]
