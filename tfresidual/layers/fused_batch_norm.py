"""TensorFlow's fused kernel of batch normalization, with the gradients that it lacks."""

import contextlib
import contextvars

import tensorflow as tf

# The fused kernel silently increases a smaller epsilon to this value.
SMALLEST_FUSED_EPSILON = 1.001e-5

_WEIGHTS_ARE_CONSTANT = contextvars.ContextVar("weights are constant", default=False)


@contextlib.contextmanager
def constant_weights():
    """Graphs that are traced inside have no gradients of weights of normalization at inference.

    What these would need is then neither computed nor kept until the backward pass.
    """
    before = _WEIGHTS_ARE_CONSTANT.set(True)
    try:
        yield
    finally:
        _WEIGHTS_ARE_CONSTANT.reset(before)


def is_fusable(layer, inputs):
    """Returns whether the fused kernel computes what a layer asks for."""
    return (
        isinstance(inputs, tf.Tensor)
        and not layer.renorm
        and inputs.shape.rank == 4
        and layer.axis in (-1, 3)
        and inputs.dtype in (tf.float32, tf.bfloat16, tf.float16)
        and layer.variable_dtype == "float32"
        and layer.epsilon >= SMALLEST_FUSED_EPSILON
        and not (layer.synchronized and _replicas() > 1)
    )


def normalized(layer, inputs, training, factor=None):
    """Returns a layer's outputs, and the mean and variance they were normalised with.

    Args:
        layer: the `BatchNormalization`.
        inputs: its inputs.
        training: whether the call is a training step.
        factor: what the outputs are multiplied by, `()` or `(channels,)`, or `None`.
    """
    gamma = tf.convert_to_tensor(layer.gamma if layer.scale else tf.ones_like(layer.moving_mean))
    beta = tf.convert_to_tensor(layer.beta if layer.center else tf.zeros_like(layer.moving_mean))
    if factor is not None:
        gamma, beta = gamma * factor, beta * factor
    if not (training and layer.trainable):
        mean = tf.convert_to_tensor(layer.moving_mean)
        variance = tf.convert_to_tensor(layer.moving_variance)
        # Without a graph, a function costs more than the kernel, whose own gradient then counts.
        is_plain = _WEIGHTS_ARE_CONSTANT.get() or tf.executing_eagerly()
        normalize = _normalize_by_constants if is_plain else _normalize
        return normalize(inputs, gamma, beta, mean, variance, layer.epsilon), mean, variance
    outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        inputs, gamma, beta, epsilon=layer.epsilon, is_training=True
    )
    # The kernel returns the variance with Bessel's correction; Keras stores it without.
    count = _count(inputs, variance.dtype)
    variance *= tf.maximum(count - 1, 1) / count
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        moving.assign(moving * layer.momentum + value * (1.0 - layer.momentum))
    return outputs, mean, variance


def _times(values, factor):
    """Returns values times a factor per channel, as normalized with the mean 0 and variance 1.

    The kernel takes half to a third of the time of a product, which goes through float32.
    """
    zero, part = tf.zeros_like(factor), 2.0**-16
    outputs, _, _ = tf.compat.v1.nn.fused_batch_norm(
        values, factor, zero, zero, tf.ones_like(factor) - part, epsilon=part, is_training=False
    )
    return outputs


# This function and the next are compiled on their own and shared by all layers: TensorFlow asks
# operations of a graph for their gradient, and a tape does not.
@tf.function(autograph=False, reduce_retracing=True)
def _normalize(inputs, gamma, beta, mean, variance, epsilon):
    """Applies the fused kernel with given statistics."""
    return _kernel(inputs, gamma, beta, mean, variance, epsilon, _gradients)


def _normalize_by_constants(inputs, gamma, beta, mean, variance, epsilon):
    """The same in a graph of which nothing but the gradient of the inputs is asked for."""
    return _kernel(inputs, gamma, beta, mean, variance, epsilon, _gradient_of_inputs)


def _kernel(inputs, gamma, beta, mean, variance, epsilon, gradients):
    outputs, _, _ = tf.compat.v1.nn.fused_batch_norm(
        inputs, gamma, beta, mean=mean, variance=variance, epsilon=epsilon, is_training=False
    )
    if not tf.executing_eagerly():
        # Not `tf.custom_gradient`: it keeps the kernel from being fused with the function that
        # follows, and its graph stays in a registry. Where TensorFlow does not know this attribute,
        # and in files, the gradient is the kernel's own, of the same value. Tried on 2.21.
        outputs.op._gradient_function = gradients
    return outputs


def _gradients(normalization, upstream, *_):
    """Returns the gradients of the fused kernel with given statistics, an operation each.

    The kernel's own gradient function always computes the gradients of gamma and beta as well as
    that of the inputs. The probes need only the latter.
    """
    inputs, gamma, _, mean, variance = normalization.inputs
    inverse = tf.math.rsqrt(variance + normalization.get_attr("epsilon"))
    wide = tf.cast(upstream, gamma.dtype)
    total = tf.reduce_sum(wide, axis=(0, 1, 2))
    centred = tf.cast(inputs, gamma.dtype) - mean
    product = tf.reduce_sum(wide * centred, axis=(0, 1, 2))
    return (
        _gradient_of_inputs(normalization, upstream)[0],
        product * inverse,
        total,
        -gamma * inverse * total,
        -0.5 * gamma * inverse**3 * product,
    )


def _gradient_of_inputs(normalization, upstream, *_):
    """Returns the gradient of the inputs alone: none of the others."""
    _, gamma, _, _, variance = normalization.inputs
    inverse = tf.math.rsqrt(variance + normalization.get_attr("epsilon"))
    return _times(upstream, gamma * inverse), None, None, None, None


@tf.function(autograph=False, reduce_retracing=True)
def with_gradient(inputs, mean, variance):
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
