"""Matrices of what layers do, and pairs of inputs that they lead apart."""

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


def lengths(values):
    """The length of each entry of a batch."""
    return tf.norm(tf.reshape(values, (len(values), -1)), axis=1)
