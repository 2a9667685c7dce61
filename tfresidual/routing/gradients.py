"""The states and loss gradients of one forward and one backward pass. TensorFlow only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

from tfresidual.routing.positions import counted_images

if TYPE_CHECKING:
    from tfresidual.routing.chain import Chain


@dataclasses.dataclass(frozen=True)
class Walk:
    """The states and gradients of one pass over a batch.

    Attributes:
        pairs: for every block, the pair of states before and after it, each
            `(images, height, width, channels)`.
        gradients: for every block, the gradient of each image's loss with respect to the state
            before the block, through the rest of the network.
        gradients_after: for every block, the same with respect to the state after the block.
        readout_gradients: for every block of the last stage whose state the head can take, the
            gradient of the loss of the head applied directly to the state before it; `None` for
            all other blocks.
        counted: which images have a loss that counts, see
            `tfresidual.routing.positions.counted_images`.
    """

    pairs: list[tuple[tf.Tensor, tf.Tensor]]
    gradients: list[tf.Tensor]
    gradients_after: list[tf.Tensor]
    readout_gradients: list[tf.Tensor | None]
    counted: tf.Tensor | None


def walk_with_gradients(chain: Chain, images: tf.Tensor, labels: tf.Tensor) -> Walk:
    """Runs a batch forwards and backwards through a chain.

    The losses are summed over the images, so that each image gets its own gradient. Weights are
    not watched: their gradients are never computed.

    Args:
        chain: a `tfresidual.routing.Chain`.
        images: `(images, height, width, channels)`.
        labels: labels as the loss of the chain takes them.

    Returns:
        A `Walk`.

    Raises:
        ValueError: if the loss has no gradient at the states.
    """
    chain = chain.given(images)
    # The stem needs no gradient, so it is outside the tape.
    state = chain.stem(images)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(state)
        pairs, last = chain.walk(state)
        outputs = chain.head(last)
        total = tf.reduce_sum(chain.loss(labels, outputs))
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
            outputs = chain.times(len(readouts)).head(tf.concat(states, axis=0))
            repeats = [len(readouts)] + [1] * (len(labels.shape) - 1)
            total += tf.reduce_sum(chain.loss(tf.tile(labels, repeats), outputs))
    before, after = zip(*pairs, strict=True)
    gradients, gradients_after, copies = tape.gradient(total, [before, after, readouts])
    return Walk(
        pairs,
        known_gradients(chain, before, gradients),
        known_gradients(chain, after, gradients_after),
        [copies.get(index) for index in range(len(pairs))],
        counted_images(chain, labels, shape),
    )


def known_gradients(chain, states, gradients):
    """Returns the gradients at the states of a chain, zeros at states that nothing later uses.

    Raises:
        ValueError: if no state has a gradient.
    """
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            "Argument `chain` must have a loss with a gradient at its states; `stop_gradient`, or "
            "a function outside of TensorFlow, passes none. "
            f"Received: {chain.name}, whose head or loss has none"
        )
    return [
        tf.zeros_like(state) if gradient is None else gradient
        for state, gradient in zip(states, gradients, strict=True)
    ]
