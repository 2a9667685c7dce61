"""Runs parts of a Keras model with the statistics of normalizations held fixed. TensorFlow only.

A normalization of every state by itself, such as layer or RMS normalization, returns

    N(h) = A c(h) / d(h) + b

where c(h) is the state, or the state minus the mean of its features, A multiplies or maps the
features, and d(h) is a number per state: the root mean square of c(h), up to an epsilon. Held fixed
at the state at hand, d is a constant and N is affine in h. Neither A nor d has to be known: for
states so large that the epsilon vanishes,

    f(h) = (N(T h / r(h)) - N(0)) r(h),   r(h) the root mean square of c(h), T large,

is a constant times A c(h) and so linear in h, and N(h) - N(0) is a multiple of it, which depends on
d(h). Both are verified on random states before a layer is taken for a normalization.
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tfresidual.routing.agreement import ALLOWED_OTHERWISE, allowed_difference
from tfresidual.sources.graph import CALLER

# What a layer does to a state, see `_kind`.
PROPORTIONAL, CENTRED, PLAIN = "proportional", "centred", "plain"
# The root mean square of states whose epsilon does not count.
LARGE = 1e3
# Sizes of the random states where they are not known: rows of a batch, and positions.
ROWS, POSITIONS = 16, 4


@contextlib.contextmanager
def frozen_normalizations():
    """Holds the statistics of normalizations fixed in what is called inside the context.

    The parts of a chain that come from a Keras model return the same values, bit for bit if run
    eagerly; their gradients are those with the divisors of all normalizations as constants.
    Normalizations are layers, or operations of `keras.ops`; one that is written out, operation by
    operation, is not seen.

    Yields:
        A list, to which the names of the normalizations are added as they are called.

    Raises:
        ValueError: inside the context, if a layer may hold a normalization that is not of the form
            above.
    """
    found = []

    def call(node, values):
        made = node.applied(values)
        if not _may_normalize(node.operation):
            return made
        taken = {id(tensor): values[id(tensor)] for tensor in node.arguments}

        def function(*states):
            return node.applied(dict(zip(taken, states, strict=True)))

        kind = _kind_of(node, tuple(taken.values()), function)
        if kind == PROPORTIONAL:
            return made
        found.append(node.operation.name)
        frozen = _frozen(function, *taken.values(), made, kind == CENTRED)
        if getattr(made, "_keras_mask", None) is not None:
            frozen._keras_mask = made._keras_mask
        return frozen

    token = CALLER.set(call)
    try:
        yield found
    finally:
        CALLER.reset(token)


def _may_normalize(operation):
    """Returns whether an operation is a normalization by its name, or cannot be looked into."""
    while isinstance(operation, keras.layers.Wrapper):
        operation = operation.layer
    if isinstance(operation, (keras.Model, keras.layers.Lambda)):
        return True
    # Where its code is: a subclass may change nothing.
    kind = next(kind for kind in type(operation).__mro__ if "call" in vars(kind))
    return kind.__module__.partition(".")[0] != "keras" or "Norm" in kind.__name__


def _kind_of(node, given, function):
    """Returns what an operation does to the state that it is given, see `_kind`.

    Raises a `ValueError` for an operation of no such kind.
    """
    kind = None
    if len(given) == len(node.outputs) == 1 and given[0].dtype.is_floating:
        # Code written by others may raise any error on states that are not those of a network.
        with tf.init_scope(), contextlib.suppress(Exception):
            kind = _kind(function, given[0], getattr(node.operation, "compute_dtype", None))
    if kind is None:
        raise ValueError(
            "Argument `freeze_normalization` must be False for a network with a layer in its head "
            "that may hold a normalization, unless the layer divides every state by a number that "
            "belongs to this state, as layer and RMS normalization do, and is linear apart from "
            f"that. Received: freeze_normalization=True and the layer {node.operation.name} of "
            f"type {type(node.operation).__name__}"
        )
    return kind


def _drawn(state, seed, mean=0):
    """Returns random states of the shape of a state, with sizes where they are not known."""
    unknown = [ROWS if state.shape.rank == 2 else 2, *[POSITIONS] * (state.shape.rank - 1)]
    shape = [size or other for size, other in zip(state.shape, unknown, strict=True)]
    return tf.cast(np.random.default_rng(seed).normal(mean, size=shape), state.dtype)


def _kind(function, given, compute_dtype):
    """Returns what a function does to random states of the shape of those given, or `None`.

    It is `PROPORTIONAL` if it returns a bias plus what grows in proportion to the state; `CENTRED`
    or `PLAIN` for a normalization with or without subtraction of the mean.
    """
    # The means of the one are near 0, those of the other are not.
    state, other = _drawn(given, 0), _drawn(given, 1, mean=2)
    dtypes = {given.dtype.name, function(state).dtype.name, compute_dtype or given.dtype.name}
    allowed = allowed_difference(dtypes)

    def are_equal(total, *parts):
        """Whether the parts add up to the total."""
        difference, sizes = _norm(sum(parts) - total), map(_norm, parts)
        return bool(tf.reduce_all(difference <= allowed * sum(sizes)))

    # A normalization inside of a layer shows most for small states, as far as rounding allows.
    factor = 64 if allowed == ALLOWED_OTHERWISE else 2
    once, small = _changed(function, other), _changed(function, other / factor)
    if not tf.reduce_any(once != 0):
        # No function of the state: nothing can be told.
        return None
    if are_equal(once, factor * small):
        return PROPORTIONAL
    if once.shape[:-1] != state.shape[:-1]:
        return None
    for kind in (CENTRED, PLAIN):
        one, two, both = (
            _linear(function, value, kind == CENTRED)[0] for value in (state, other, state + other)
        )
        if are_equal(both, one, two) and are_equal(once, _multiple(once, two) * two):
            return kind
    return None


def _norm(values):
    return tf.norm(values, axis=-1)


def _changed(function, state):
    """Returns what a function of a state returns minus its value at 0, in float32 or wider."""
    zero, made = function(tf.zeros_like(state)), function(state)
    dtype = keras.backend.result_type(made.dtype, "float32")
    return tf.cast(made, dtype) - tf.cast(zero, dtype)


def _linear(function, state, is_centred):
    """Returns f(h), see the top of this file, and where c(h) is 0, and with it f(h)."""
    wide = tf.cast(state, keras.backend.result_type(state.dtype, "float32"))
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True) if is_centred else 0.0
    square = tf.reduce_mean((wide - mean) ** 2, axis=-1, keepdims=True)
    is_zero = square == 0
    size = tf.sqrt(tf.where(is_zero, tf.ones_like(square), square))
    large = _changed(function, tf.cast(wide * tf.stop_gradient(LARGE / size), state.dtype))
    size = tf.where(is_zero, tf.zeros_like(size), size)
    return large * tf.cast(size, large.dtype), is_zero


def _multiple(changed, linear):
    """Returns the number per state that a linear part has to be multiplied by."""
    products = (tf.reduce_sum(linear * part, axis=-1, keepdims=True) for part in (changed, linear))
    return tf.math.divide_no_nan(*products)


def _frozen(function, state, made, is_centred):
    """Returns what a normalization made of a state, with the gradient of the linear part."""
    linear, is_zero = _linear(function, state, is_centred)
    linear = tf.stop_gradient(_multiple(_changed(function, state), linear)) * linear
    linear = tf.cast(linear, made.dtype)
    frozen = tf.stop_gradient(made) + (linear - tf.stop_gradient(linear))
    # Where c(h) is 0, the divisor does not change with the state.
    return tf.where(is_zero, made, frozen)
