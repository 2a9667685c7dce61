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
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfresidual.routing.agreement import ALLOWED_OTHERWISE, allowed_difference
from tfresidual.sources.graph import calling, package_of, unwrapped

# What a layer does to a state: it returns a bias plus what grows in proportion, or normalizes it,
# with or without subtraction of the mean.
PROPORTIONAL, CENTRED, PLAIN = "proportional", "centred", "plain"
# The root mean square of states whose epsilon does not count.
LARGE = 1e3
# Sizes of the random states where they are not known: rows of a batch, and positions.
ROWS, POSITIONS = 16, 4


class Setting(NamedTuple):
    """How errors call the argument that asks for fixed statistics, and their advice."""

    advice: str
    received: str


class _Statistics(NamedTuple):
    """What a normalization made of states: whether it subtracts means, and the multiple of f(h).

    The multiple, one number per state, is NaN where f(h) is 0 and does not show it.
    """

    is_centred: bool
    multiple: tf.Tensor


@contextlib.contextmanager
def frozen_normalizations(setting):
    """Holds the statistics of normalizations fixed in what is called inside the context.

    Parts of a chain of a Keras model return the same values, with the gradients for constant
    divisors. Normalizations are layers, or operations of `keras.ops`. Yields a dict of the
    statistics found, for `with_statistics`; a layer that may hold a normalization of another form
    raises an error.
    """
    found = {}

    def call(node, values):
        made = node.applied(values)
        if not _may_normalize(node.operation):
            return made
        function, given = _function_of(node, values)
        kind = _kind_of(node, given, function, setting)
        if kind == PROPORTIONAL:
            return made
        frozen, multiple = _frozen(function, *given, made, kind == CENTRED)
        found[id(node)] = _Statistics(kind == CENTRED, multiple)
        return _masked_like(made, frozen)

    with calling(call):
        yield found


@contextlib.contextmanager
def with_statistics(found):
    """Gives normalizations the statistics that `frozen_normalizations` found for other states."""

    def call(node, values):
        if id(node) not in found:
            return node.applied(values)
        function, (state,) = _function_of(node, values)
        linear, _ = _linear(function, state, found[id(node)].is_centred)
        made = function(state)
        changed = tf.cast(found[id(node)].multiple * linear, made.dtype)
        return _masked_like(made, function(tf.zeros_like(state)) + changed)

    with calling(call):
        yield


def check_normalizations(found, name, setting):
    """Raises a `ValueError` if no normalization was found in the head of a chain of some name."""
    if not found:
        raise ValueError(
            f"Argument {setting.advice} unless the chain was made of a Keras model with a layer in "
            "its head that normalizes every state by itself, such as layer or RMS normalization; "
            "the statistics of batch normalization are always fixed here. Received: "
            f"{setting.received} for {name}, whose head has no such layer that can be seen; none "
            "of a SavedModel can"
        )


def _function_of(node, values):
    """Returns an operation as a function of the tensors among its arguments, and these tensors."""
    taken = {id(tensor): values[id(tensor)] for tensor in node.arguments}

    def function(*states):
        return node.applied(dict(zip(taken, states, strict=True)))

    return function, tuple(taken.values())


def _masked_like(made, other):
    if getattr(made, "_keras_mask", None) is not None:
        other._keras_mask = made._keras_mask
    return other


def _may_normalize(operation):
    """Returns whether an operation is a normalization by its name, or cannot be looked into."""
    operation = unwrapped(operation)
    if isinstance(operation, (keras.Model, keras.layers.Lambda)):
        return True
    # Where its code is: a subclass may change nothing.
    kind = next(kind for kind in type(operation).__mro__ if "call" in vars(kind))
    return package_of(kind) != "keras" or "Norm" in kind.__name__


def _kind_of(node, given, function, setting):
    """Returns what an operation does to the state that it is given, see `_kind`."""
    kind = None
    if len(given) == len(node.outputs) == 1 and given[0].dtype.is_floating:
        # Code written by others may raise any error on states that are not those of a network.
        with tf.init_scope(), contextlib.suppress(Exception):
            kind = _kind(function, given[0], getattr(node.operation, "compute_dtype", None))
    if kind is None:
        raise ValueError(
            f"Argument {setting.advice} for a network with a layer in its head that may hold a "
            "normalization, unless the layer divides every state by a number that belongs to this "
            "state, as layer and RMS normalization do, and is linear apart from that. Received: "
            f"{setting.received} and the layer {node.operation.name} of type "
            f"{type(node.operation).__name__}"
        )
    return kind


def _drawn(state, seed, mean=0):
    """Returns random states of the shape of a state, with sizes where they are not known."""
    unknown = [ROWS if state.shape.rank == 2 else 2, *[POSITIONS] * (state.shape.rank - 1)]
    shape = [size or other for size, other in zip(state.shape, unknown, strict=True)]
    return tf.cast(np.random.default_rng(seed).normal(mean, size=shape), state.dtype)


def _kind(function, given, compute_dtype):
    """Returns what a function does to random states of the shape of those given, or `None`."""
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
    multiple = tf.stop_gradient(_multiple(_changed(function, state), linear))
    linear = tf.cast(multiple * linear, made.dtype)
    frozen = tf.stop_gradient(made) + (linear - tf.stop_gradient(linear))
    unknown = tf.constant(np.nan, multiple.dtype)
    # Where c(h) is 0, the divisor does not change with the state.
    return tf.where(is_zero, made, frozen), tf.where(is_zero, unknown, multiple)
