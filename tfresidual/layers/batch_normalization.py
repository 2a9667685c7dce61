"""Batch normalization with TensorFlow's fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.backends import BACKEND

if BACKEND == "tensorflow":
    from tfresidual.layers import fused_batch_norm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import Tensor

# What can be shared. All weights but these two are statistics.
LEARNED = ("gamma", "beta")
PARTS = ("statistics", *LEARNED)


def check_parts(name: str, parts: Any) -> tuple[str, ...]:
    """Returns an argument that names parts of batch normalization, in the order of `PARTS`."""
    is_listed = isinstance(parts, (list, tuple, set, frozenset))
    if not is_listed or not set(parts) <= set(PARTS):
        raise ArgumentError(name, f"hold any of {', '.join(map(repr, PARTS))}", parts)
    return tuple(part for part in PARTS if part in parts)


@keras.saving.register_keras_serializable(package="tfresidual")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` on TensorFlow's fused kernel.

    It takes the same arguments, has the same weights under the same names, and gives the same
    outputs, gradients and moving statistics up to rounding, in less time. Weight files of either
    layer load into the other. Second-order gradients in training differ, since Keras stops the
    gradient of one of their terms; those of the fused kernel agree with finite differences.

    The fused kernel is used for inputs of rank 4, in float32, bfloat16 or float16, when the last
    axis is normalised. All other cases (other ranks and axes, float64, masks, `renorm`,
    `synchronized` over several replicas, an epsilon under 1.001e-5, other Keras backends) use
    Keras' own computation.

    Example:

    >>> layer = BatchNormalization()
    >>> layer(keras.ops.ones((2, 8, 8, 3)), training=True).shape
    TensorShape([2, 8, 8, 3])

    The arguments are those of `keras.layers.BatchNormalization`.

    Reference:
        Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """

    def share(self, other: BatchNormalization, parts: Iterable[str] = PARTS) -> None:
        """Makes this layer use weights of another layer. Must be called before it is built.

        Args:
            other: a built `BatchNormalization` of the same number of channels.
            parts: which of them, any of `"statistics"` (moving mean and variance), `"gamma"` and
                `"beta"`; by default all.
        """
        shared = check_parts("parts", parts)

        def find(name):
            part = name if name in LEARNED else "statistics"
            return getattr(other, name) if part in shared else None

        # Hidden in a function, since Keras would track a layer in an attribute as a sublayer.
        self._shared = find

    def add_weight(self, *args: Any, name: str | None = None, **kwargs: Any) -> keras.Variable:
        shared = self._shared(name) if hasattr(self, "_shared") else None
        return super().add_weight(*args, name=name, **kwargs) if shared is None else shared

    def save_own_variables(self, store: Any) -> None:
        for index, variable in enumerate(self._unshared()):
            store[str(index)] = variable

    def load_own_variables(self, store: Any) -> None:
        variables = self._unshared()
        if len(variables) == len(self.variables):
            super().load_own_variables(store)
            return
        # The shared variables are stored with the other layer.
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])

    def _unshared(self):
        """Returns the layer's own variables, in the order in which Keras stores them."""
        if not hasattr(self, "_shared"):
            return self.variables
        return [variable for variable in self.variables if self._shared(variable.name) is None]

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None
    ) -> Tensor:
        if not self._is_fusable(inputs, mask):
            return super().call(inputs, training=training, mask=mask)
        outputs, _, _ = fused_batch_norm.normalized(self, inputs, training)
        return outputs

    def call_multiplied(
        self, inputs: Tensor, factor: Tensor, training: bool | None = None
    ) -> Tensor:
        """Returns the outputs times a factor, up to rounding, at no further cost.

        The factor is a number or one per channel, in the dtype of the weights.
        """
        if self._is_fusable(inputs, None):
            outputs, _, _ = fused_batch_norm.normalized(self, inputs, training, factor)
            return outputs
        outputs = super().call(inputs, training=training)
        shape = [1] * len(outputs.shape)
        if len(factor.shape):
            shape[self.axis] = -1
        return outputs * ops.cast(ops.reshape(factor, shape), outputs.dtype)

    def call_with_slope(
        self, inputs: Tensor, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the factor by which each input channel was multiplied.

        The factor is that of `slope`, with the variance of the batch in training and the moving
        variance otherwise. Gradients flow through both.
        """
        of_batch = training and self.trainable
        if self._is_fusable(inputs, None):
            outputs, mean, variance = fused_batch_norm.normalized(self, inputs, training)
            if of_batch:
                variance = fused_batch_norm.with_gradient(inputs, mean, variance)
        else:
            outputs = super().call(inputs, training=training)
            variance = variance_of(self, inputs) if of_batch else self.moving_variance
        return outputs, self.slope(variance)

    def slope(self, variance: Tensor | None = None) -> Tensor:
        """Returns gamma / sqrt(variance + epsilon), `(channels,)`; default: the moving variance."""
        return slope_of(self, variance)

    def _is_fusable(self, inputs, mask):
        return (
            BACKEND == "tensorflow" and mask is None and fused_batch_norm.is_fusable(self, inputs)
        )


def variance_of(layer: keras.layers.BatchNormalization, inputs: Tensor) -> Tensor:
    """Returns the variance of a batch by channel, in the dtype of the layer's weights."""
    rank = len(inputs.shape)
    axes = [axis for axis in range(rank) if axis != layer.axis % rank]
    return ops.moments(ops.cast(inputs, layer.variable_dtype), axes=axes)[1]


def slope_of(layer: keras.layers.BatchNormalization, variance: Tensor | None = None) -> Tensor:
    """Returns what `BatchNormalization.slope` does, for a layer of Keras, too."""
    variance = ops.convert_to_tensor(layer.moving_variance if variance is None else variance)
    slope = ops.rsqrt(variance + layer.epsilon)
    return slope * layer.gamma if layer.scale else slope
