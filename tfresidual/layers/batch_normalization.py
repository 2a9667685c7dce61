"""Batch normalization with TensorFlow's fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras import ops

if TYPE_CHECKING:
    from tfresidual.types import Tensor

# The fused kernel silently increases a smaller epsilon to this value.
SMALLEST_FUSED_EPSILON = 1.001e-5


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

    Args:
        **kwargs: the arguments of `keras.layers.BatchNormalization`.

    Reference:
        Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """

    def share(
        self, other: BatchNormalization, statistics: bool = False, scale: bool = False
    ) -> None:
        """Makes this layer use weights of another layer. Must be called before it is built.

        Args:
            other: a built `BatchNormalization` of the same number of channels.
            statistics: whether to use the moving mean and variance of the other layer.
            scale: whether to use its gamma and beta.
        """
        names: tuple[str, ...] = ("moving_mean", "moving_variance") if statistics else ()
        names += ("gamma", "beta") if scale else ()
        # Hidden in a function, since Keras would track a layer in an attribute as a sublayer.
        self._shared = lambda name: getattr(other, name) if name in names else None

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
        outputs, _, _ = self._fused(inputs, training)
        return outputs

    def call_with_slope(
        self, inputs: Tensor, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the factor by which each input channel was multiplied.

        Returns:
            A tuple `(outputs, slope)`: `slope` is gamma / sqrt(variance + epsilon), `(channels,)`,
            with the variance of the batch in training and the moving variance otherwise. Gradients
            flow through both.
        """
        of_batch = training and self.trainable
        if self._is_fusable(inputs, None):
            outputs, mean, variance = self._fused(inputs, training)
            variance = _with_gradient(inputs, mean, variance) if of_batch else variance
        else:
            outputs = super().call(inputs, training=training)
            variance = self.moving_variance
            if of_batch:
                values = ops.cast(inputs, self.variable_dtype)
                _, variance = ops.moments(values, axes=self._reduction_axes)
        return outputs, self.slope(variance)

    def slope(self, variance: Tensor | None = None) -> Tensor:
        """Returns gamma / sqrt(variance + epsilon), `(channels,)`; default: the moving variance."""
        variance = ops.convert_to_tensor(self.moving_variance if variance is None else variance)
        slope = ops.rsqrt(variance + self.epsilon)
        return slope * self.gamma if self.scale else slope

    def _fused(self, inputs, training):
        """Returns the outputs, and the mean and variance they were normalised with."""
        gamma = tf.convert_to_tensor(self.gamma if self.scale else tf.ones_like(self.moving_mean))
        beta = tf.convert_to_tensor(self.beta if self.center else tf.zeros_like(self.moving_mean))
        if not (training and self.trainable):
            mean = tf.convert_to_tensor(self.moving_mean)
            variance = tf.convert_to_tensor(self.moving_variance)
            return _normalize(inputs, gamma, beta, mean, variance, self.epsilon), mean, variance
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs, gamma, beta, epsilon=self.epsilon, is_training=True
        )
        # The kernel returns the variance with Bessel's correction; Keras stores it without.
        count = _count(inputs, variance.dtype)
        variance *= tf.maximum(count - 1, 1) / count
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return outputs, mean, variance

    def _is_fusable(self, inputs, mask):
        return (
            isinstance(inputs, tf.Tensor)
            and mask is None
            and not getattr(self, "renorm", False)  # an argument since Keras 3.14
            and inputs.shape.rank == 4
            and self.axis in (-1, 3)
            and inputs.dtype in (tf.float32, tf.bfloat16, tf.float16)
            and self.variable_dtype == "float32"
            and self.epsilon >= SMALLEST_FUSED_EPSILON
            and not (self.synchronized and _replicas() > 1)
        )


# This function and the next are compiled on their own and shared by all layers: TensorFlow
# registers a custom gradient forever, together with the graph it was traced in. That way it is
# this small graph, and not that of a whole network.
@tf.function(autograph=False, reduce_retracing=True)
def _normalize(inputs, gamma, beta, mean, variance, epsilon):
    """Applies the fused kernel with given statistics; computes only the requested gradients.

    The kernel's own gradient function always computes the gradients of gamma and beta as well as
    that of the inputs. The probes need only the latter.
    """

    @tf.custom_gradient
    def function(inputs, gamma, beta, mean, variance):
        outputs, _, _ = tf.compat.v1.nn.fused_batch_norm(
            inputs, gamma, beta, mean=mean, variance=variance, epsilon=epsilon, is_training=False
        )

        def gradient(upstream):
            wide = tf.cast(upstream, gamma.dtype)
            inverse = tf.math.rsqrt(variance + epsilon)
            total = tf.reduce_sum(wide, axis=(0, 1, 2))
            centred = tf.cast(inputs, gamma.dtype) - mean
            product = tf.reduce_sum(wide * centred, axis=(0, 1, 2))
            return (
                tf.cast(wide * (gamma * inverse), inputs.dtype),
                product * inverse,
                total,
                -gamma * inverse * total,
                -0.5 * gamma * inverse**3 * product,
            )

        return outputs, gradient

    return function(inputs, gamma, beta, mean, variance)


@tf.function(autograph=False, reduce_retracing=True)
def _with_gradient(inputs, mean, variance):
    """Returns the kernel's batch variance with the gradient that the kernel does not provide."""

    @tf.custom_gradient
    def function(inputs, mean, variance):
        def gradient(upstream):
            centred = tf.cast(inputs, variance.dtype) - mean
            slope = 2.0 / _count(inputs, variance.dtype) * upstream
            return tf.cast(centred * slope, inputs.dtype), None, None

        return tf.identity(variance), gradient

    return function(inputs, mean, variance)


def _count(inputs, dtype):
    """Returns the number of values per channel in a batch."""
    size = tf.shape(inputs, tf.int64)
    return tf.cast(tf.reduce_prod(size[:-1]), dtype)


def _replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync
