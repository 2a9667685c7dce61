"""Batch normalization with TensorFlow's fused kernel."""

import keras
import tensorflow as tf

# The kernel silently raises a smaller epsilon to this value.
SMALLEST_FUSED_EPSILON = 1.001e-5


@keras.saving.register_keras_serializable(package="tfresidual")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` on TensorFlow's fused kernel.

    Takes the same arguments, holds the same weights under the same names and gives the same
    outputs and moving statistics to rounding; only the time differs. Weight files of the one
    load into the other.

    The fused kernel serves inputs of rank 4 whose last axis is normalised, in float32,
    bfloat16 or float16. Everything else (other ranks and axes, float64, masks, `renorm`,
    `synchronized` over several replicas, an epsilon under 1.001e-5, other Keras backends)
    goes through Keras' own computation.

    Example:

    >>> layer = BatchNormalization()
    >>> layer(keras.ops.ones((2, 8, 8, 3)), training=True).shape
    TensorShape([2, 8, 8, 3])

    Args:
        **kwargs: the arguments of `keras.layers.BatchNormalization`.

    Reference:
        Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """

    def call(self, inputs, training=None, mask=None):
        if not self._is_fusable(inputs, mask):
            return super().call(inputs, training=training, mask=mask)
        gamma = self.gamma if self.scale else tf.ones_like(self.moving_mean)
        beta = self.beta if self.center else tf.zeros_like(self.moving_mean)
        if not (training and self.trainable):
            outputs, _, _ = tf.compat.v1.nn.fused_batch_norm(
                inputs,
                gamma,
                beta,
                mean=tf.convert_to_tensor(self.moving_mean),
                variance=tf.convert_to_tensor(self.moving_variance),
                epsilon=self.epsilon,
                is_training=False,
            )
            return outputs
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs, gamma, beta, epsilon=self.epsilon, is_training=True
        )
        # The kernel returns the variance with Bessel's correction, Keras keeps the plain one.
        count = tf.cast(tf.size(inputs, tf.int64) // inputs.shape[-1], variance.dtype)
        variance *= tf.maximum(count - 1, 1) / count
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return outputs

    def _is_fusable(self, inputs, mask):
        return (
            isinstance(inputs, tf.Tensor)
            and mask is None
            and not self.renorm
            and inputs.shape.rank == 4
            and self.axis in (-1, 3)
            and inputs.dtype in (tf.float32, tf.bfloat16, tf.float16)
            and self.variable_dtype == "float32"
            and self.epsilon >= SMALLEST_FUSED_EPSILON
            and not (self.synchronized and _replicas() > 1)
        )


def _replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync
