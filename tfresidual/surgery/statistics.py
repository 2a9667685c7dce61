"""Statistics of batch normalization, measured again. TensorFlow only."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# Batches that are enough for most networks.
UPDATES = 60
# The methods that normalize, of the layer of Keras and of that of this package.
METHODS = ("call", "call_multiplied", "call_with_slope")


def update_statistics(model: keras.Model, batches: Iterable[Any]) -> int:
    """Gives the batch normalization of a model the statistics of images, in place.

    What a normalization sees changes as blocks before it go, but not the mean and variance that it
    has kept from training. They are measured again, without labels and without a step of training:
    layers normalize by their batch, also where a `call` says `training=False`, and all others
    compute as in inference. What the statistics were before does not count; a layer that is applied
    several times has the means over its applications. Nothing else changes, and layers that are
    frozen stay as they are; after an error, so do all others.

    Example:

    >>> update_statistics(net, (images for images, _ in train.take(60))) > 0
    True

    Args:
        model: a `keras.Model`.
        batches: an iterable of batches of its inputs, without labels; about 60 are enough for most
            networks. The mean is one over the images.

    Returns:
        The number of `keras.layers.BatchNormalization` that were updated. If the model has none
        that is not frozen, no batch is read.

    Raises:
        ValueError: if `batches` is a single array, or there is no batch in it.
    """
    if hasattr(batches, "shape"):
        raise ArgumentError(
            "batches",
            "be an iterable of batches of inputs without labels, such as `[images]`",
            received=f"an array of shape {tuple(batches.shape)}",
        )
    layers = [layer for layer in model._flatten_layers() if _is_trained(layer)]
    if not layers:
        return 0
    size = 0
    sums: dict[int, Any] = {}
    measured: set[Any] = set()

    def measure(layer, method, *args, **kwargs):
        outputs = method(*args, **kwargs | {"training": True})
        for variable in (layer.moving_mean, layer.moving_variance):
            # A layer may share the statistics of another one.
            _, total, count = sums.get(id(variable), (variable, 0.0, 0))
            total = total + size * _value(variable).astype(np.float64)
            sums[id(variable)] = variable, total, count + size
        measured.add(layer)
        return outputs

    with restored(model.variables), _replaced(layers, measure), _eagerly():
        for images in batches:
            size = len(tf.nest.flatten(images)[0])
            model(images, training=False)
    if not size:
        raise ArgumentError("batches", "hold at least one batch of images", batches)
    for variable, total, count in sums.values():
        variable.assign(total / count)
    for layer in measured:
        if layer.renorm:
            layer.renorm_mean.assign(layer.moving_mean)
            for variable in (layer.moving_stddev, layer.renorm_stddev):
                variable.assign(np.sqrt(_value(layer.moving_variance) + layer.epsilon))
    return len(measured)


def _is_trained(layer):
    is_normalization = isinstance(layer, keras.layers.BatchNormalization)
    # A layer of several applications keeps statistics in layers of its own.
    return is_normalization and layer.trainable and layer.moving_mean is not None


@contextlib.contextmanager
def _replaced(layers, function):
    """Lets a function, given layer and method, take the place of what normalizes.

    In training, moving statistics become those of the batch, also with `renorm`.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers:
            attributes = vars(layer)
            methods = {name: getattr(layer, name) for name in METHODS if hasattr(layer, name)}
            changed = {name: functools.partial(function, layer, methods[name]) for name in methods}
            changed |= {"momentum": 0.0, "renorm": False}
            # Callbacks run from the last to the first.
            stack.callback(
                attributes.update, {n: attributes[n] for n in changed if n in attributes}
            )
            for name in changed:
                stack.callback(attributes.pop, name)
            attributes.update(changed)
        yield


@contextlib.contextmanager
def _eagerly():
    """Lets a `call` that is a `tf.function` reach the methods that take the place of others."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def restored(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Leaves variables as they were before the block."""
    before = [(variable, _value(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _value(variable):
    # A variable on several devices is read on the first.
    return np.array(variable.numpy())
