"""Jacobians of functions, and the largest eigenvalues of a matrix known only by its products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

# The number of vectors iterated beyond those asked for, so that the last of those converges.
GUARDS = 1
# A unit vector counts as linearly dependent on others if the squared length of its part outside
# their space is smaller than this.
SMALLEST_INDEPENDENT = 1e-5


def linearized(function, *inputs):
    """Returns the outputs of a function, and its Jacobian J at the inputs as two functions.

    `push(*tangents)` returns J times the tangents, one tangent for each input, and
    `pull(cotangent)` J' times a cotangent of the outputs, one tensor for each input.
    """
    # Copies, because a state may also be the anchor and must still move alone.
    inputs = [tf.identity(tensor) for tensor in inputs]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
    return outputs, *push_and_pull(tape, outputs, inputs)


def push_and_pull(tape, outputs, inputs):
    """Returns the functions `push` and `pull` of `linearized`, given a persistent tape.

    Inside a graph, both can be used in loops without computing the recorded function again.
    """
    zero = tf.UnconnectedGradients.ZERO

    def pull(cotangent):
        return tape.gradient(outputs, inputs, cotangent, unconnected_gradients=zero)

    def push(*tangents):
        # J' is linear in the cotangent, so that the gradient of <J' cotangent, tangents> is J
        # times the tangents. The graph keeps only the parts of J' cotangent that this needs.
        cotangent = tf.zeros_like(outputs)
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(cotangent)
            pulled = pull(cotangent)
        return outer.gradient(pulled, cotangent, list(tangents), unconnected_gradients=zero)

    return push, pull


def largest_eigenvalues(product, state, count, tolerance, most_iterations):
    """Returns the largest eigenvalues of a metric and their residuals, both `(images, count)`.

    `product` returns the metric times a vector for each image, in the shape of the state.
    """
    size = int(np.prod(state.shape[1:]))

    def products(vectors):
        count = vectors.shape[2]
        vectors = tf.transpose(vectors, [2, 0, 1])
        vectors = tf.reshape(vectors, tf.concat([[count], tf.shape(state)], axis=0))
        vectors = tf.map_fn(product, vectors, parallel_iterations=1)
        return tf.transpose(tf.reshape(vectors, [count, -1, size]), [1, 2, 0])

    # The start is the same for every image, so that results do not depend on the batches.
    start = [1, size, min(count + GUARDS, size)]
    start = tf.random.stateless_normal(start, seed=(0, 0), dtype=state.dtype)
    start = _orthonormal(tf.tile(start, [tf.shape(state)[0], 1, 1]))
    space = _iterated(start, products, count, tolerance, most_iterations)
    residuals = space.residuals[:, :count]
    undefined = tf.fill(tf.shape(residuals), tf.constant(np.nan, residuals.dtype))
    values = tf.where(tf.math.is_nan(residuals), undefined, space.values[:, :count])
    return tf.maximum(values, 0), residuals


class _Space(NamedTuple):
    """The best vectors of a space by Rayleigh-Ritz, for every image."""

    values: tf.Tensor
    vectors: tf.Tensor
    moved: tf.Tensor
    errors: tf.Tensor
    residuals: tf.Tensor


def _best_of(basis, moved, width):
    """Returns the `_Space` of the best vectors, from an orthonormal basis and `moved = g basis`."""
    small = tf.matmul(basis, moved, transpose_a=True)
    is_finite = tf.reduce_all(tf.math.is_finite(small), axis=[1, 2], keepdims=True)
    # The solver fails on numbers that are not finite.
    small, moved = (tf.where(is_finite, part, tf.zeros_like(part)) for part in (small, moved))
    values, turn = tf.linalg.eigh((small + tf.linalg.matrix_transpose(small)) / 2)
    values, turn = values[:, ::-1][:, :width], turn[:, :, ::-1][:, :, :width]
    vectors, moved = basis @ turn, moved @ turn
    # Divided before squaring, since squares of large numbers would overflow.
    largest = tf.where(values[:, :1] > 0, values[:, :1], tf.ones_like(values[:, :1]))
    errors = moved / largest[:, None] - vectors * (values / largest)[:, None]
    undefined = tf.constant(np.nan, errors.dtype)
    residuals = tf.where(is_finite[:, :, 0], tf.norm(errors, axis=1), undefined)
    return _Space(values, vectors, moved, errors, residuals)


def _iterated(start, products, count, tolerance, most_iterations):
    """Returns the `_Space` found by orthogonal iteration; converged images keep theirs."""
    width = start.shape[2]

    def is_moving(space):
        return tf.reduce_any(space.residuals[:, :count] > tolerance, axis=1)

    def goes_on(iteration, space, previous):
        del previous
        return (iteration < most_iterations) & tf.reduce_any(is_moving(space))

    def iterate(iteration, space, previous):
        added = _orthonormal(tf.concat([space.errors, previous], axis=2), space.vectors)
        basis = tf.concat([space.vectors, added], axis=2)
        new = _best_of(basis, tf.concat([space.moved, products(added)], axis=2), width)
        previous = new.vectors - _projected(new.vectors, space.vectors)
        moves = is_moving(space)
        parts = [
            tf.where(tf.reshape(moves, [-1] + [1] * (part.shape.rank - 1)), part, old)
            for part, old in zip(new, space, strict=True)
        ]
        return iteration + 1, _Space(*parts), previous

    space = _best_of(start, products(start), width)
    loop = (0, space, tf.zeros_like(start))
    return tf.while_loop(goes_on, iterate, loop, parallel_iterations=1)[1]


def _projected(vectors, basis):
    """Returns the part of vectors that lies in the space of an orthonormal basis."""
    return basis @ tf.matmul(basis, vectors, transpose_a=True)


def _orthonormal(vectors, basis=None):
    """Returns orthonormal vectors of the space of the given ones, zero where these depend."""
    # SVQB of Stathopoulos and Wu 2002, https://doi.org/10.1137/S1064827500370883, which is many
    # times faster than a QR decomposition. Done twice, since the first pass enlarges the rounding
    # errors of nearly dependent vectors.
    for _ in range(2):
        if basis is not None:
            vectors -= _projected(vectors, basis)
        vectors = tf.math.divide_no_nan(vectors, tf.norm(vectors, axis=1, keepdims=True))
        values, turn = tf.linalg.eigh(tf.matmul(vectors, vectors, transpose_a=True))
        is_independent = values > SMALLEST_INDEPENDENT
        roots = tf.sqrt(tf.where(is_independent, values, tf.ones_like(values)))
        scales = tf.where(is_independent, 1 / roots, tf.zeros_like(values))
        vectors = (vectors @ turn) * scales[:, None]
    return vectors
