"""Several outputs of a model as one, with the sum of their losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras import ops

from tfresidual.routing.arrangement import Arrangement
from tfresidual.routing.losses import loss_of
from tfresidual.sources.outputs import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The attribute of joined outputs that holds the outputs themselves. Their logits, which Keras
# stores on the tensor that a softmax returns, are needed for an accurate gradient.
_PARTS = "_tfresidual_parts"


class JoinedOutputs(keras.layers.Layer):
    """Puts outputs `(images, ...)` side by side, as one row per image."""

    def __init__(self) -> None:
        # Of a cast copy of an output, the logits are lost.
        super().__init__(autocast=False, dtype="float32")

    def call(self, outputs: Sequence[Any]) -> Any:
        rows = [ops.reshape(one, (-1, math.prod(one.shape[1:]))) for one in outputs]
        joined = ops.concatenate([ops.cast(row, self.compute_dtype) for row in rows], axis=-1)
        setattr(joined, _PARTS, list(outputs))
        return joined


class JoinedArrangement(Arrangement):
    """An arrangement of which the labels of several outputs are taken, side by side.

    Args:
        arrangements: the `Arrangement` of every one of these outputs.
    """

    def __init__(self, arrangements: Sequence[Arrangement]) -> None:
        first = arrangements[0]
        super().__init__(
            first.inputs, first.is_checked, first.outputs, first.names, first.losses, first.output
        )
        self.arrangements = list(arrangements)
        # The shapes of the labels of one image, which no row of numbers shows.
        self.shapes: list[tuple[int, ...]] | None = None

    def labels(self, labels: Any, weights: Any = None) -> tuple[tf.Tensor, Any]:
        """Returns the labels of the outputs as rows of floats, and the sample weights of all.

        Raises:
            ValueError: if Keras refuses the structures, the outputs have different weights, or
                their labels other shapes than those before.
        """
        pairs = [one.labels(labels, weights) for one in self.arrangements]
        given = [tf.convert_to_tensor(of_output) for of_output, _ in pairs]
        shapes = [tuple(one.shape[1:]) for one in given]
        if self.shapes not in (None, shapes):
            raise ValueError(
                "Argument `data` must hold labels of the same shapes in every run of a chain of "
                f"several outputs. Received: labels of shapes {shapes} after {self.shapes}"
            )
        self.shapes = shapes
        of_outputs = [one for _, one in pairs]
        if any(not _are_same(one, of_outputs[0]) for one in of_outputs):
            raise ValueError(
                "Argument `data` must hold the same sample weights for all outputs of a chain that "
                "has several, since probes weigh images. Received: different ones"
            )
        rows = [
            tf.reshape(tf.cast(one, tf.float32), [len(one), math.prod(one.shape[1:])])
            for one in given
        ]
        return tf.concat(rows, axis=1), of_outputs[0]


def joined_loss(
    models: Sequence[keras.Model], arrangement: JoinedArrangement
) -> Callable[[Any, Any], Any]:
    """Returns the sum of the losses of models, of their labels and outputs side by side.

    Args:
        models: for every output, a model with that one output, compiled with its loss.
        arrangement: the arrangement that made the labels.
    """
    losses = [loss_of(model, kind_of(model)) for model in models]

    def joined(labels: Any, outputs: Any) -> Any:
        parts, shapes = getattr(outputs, _PARTS, None), arrangement.shapes
        if parts is None or shapes is None:
            raise ValueError("it takes the outputs of the model itself; export one output")
        of_outputs = tf.split(labels, list(map(math.prod, shapes)), axis=1)
        values = [
            loss(ops.reshape(own, (-1, *shape)), part)
            for loss, own, shape, part in zip(losses, of_outputs, shapes, parts, strict=True)
        ]
        return sum(ops.cast(one, "float32") for one in values)

    return joined


def _are_same(one, other):
    if one is None or other is None:
        return one is other
    one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
    return one.shape == other.shape and bool(tf.reduce_all(one == tf.cast(other, one.dtype)))
