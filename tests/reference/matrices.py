"""Matrices of what layers do, and pairs of inputs that they lead apart."""

import keras
import numpy as np
import tensorflow as tf


def matrix_of(function, shape):
    """The matrix of a function of a batch, linear but for an offset, from unit vectors in float64.

    Args:
        function: the function.
        shape: shape of an input, without the batch.
    """
    count = int(np.prod(shape))
    units = np.eye(count).reshape(count, *shape)
    outputs = np.asarray(function(np.concatenate([units, 0 * units[:1]])))
    return (outputs[:-1] - outputs[-1]).reshape(count, -1).T


def norm_of(function, shape):
    """The largest singular value of that matrix."""
    return np.linalg.norm(matrix_of(function, shape), 2)


def sought_ratios(function, shape, steps=40, dtype="float64"):
    """The largest |f(x) - f(y)| / |x - y| of 16 random pairs, and that which ascent finds."""
    rng = np.random.default_rng(0)
    x, y = (tf.Variable(rng.normal(size=(16, *shape)).astype(dtype)) for _ in range(2))
    optimizer = keras.optimizers.Adam(0.1)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            ratios = lengths(function(x) - function(y)) / lengths(x - y)
            loss = -tf.reduce_sum(tf.math.log(ratios + 1e-9))
        optimizer.apply_gradients(zip(tape.gradient(loss, [x, y]), [x, y], strict=True))
        return ratios

    found = [step().numpy() for _ in range(steps)]
    return found[0].max(), np.max(found)


def lengths(values):
    """The length of each entry of a batch."""
    return tf.norm(tf.reshape(values, (len(values), -1)), axis=1)
