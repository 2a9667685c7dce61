"""Statistics of batch normalization, measured again. TensorFlow only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Batches that are enough for most networks.
UPDATES = 60
# Moving averages that begin at 0, divided by the sum of their weights: nearly the mean over the
# last hundred batches, whatever the averages were before.
MOMENTUM = 0.99
# Over any variance, so that what is left of it after a batch says how often it was updated.
LARGE = 1e6


def update_statistics(model: keras.Model, batches: Iterable[Any]) -> int:
    """Gives the batch normalization of a model the statistics of images, in place.

    What a normalization sees changes as blocks before it go, but not the mean and variance that it
    has kept from training. They are measured again in passes without labels and without a step of
    training; what they were before does not count. Nothing else changes, and layers that are frozen
    stay as they are; after an error, so do all others.

    Example:

    >>> update_statistics(net, (images for images, _ in train.take(60))) > 0
    True

    Args:
        model: a `keras.Model`.
        batches: an iterable of batches of its inputs, without labels; about 60 are enough for most
            networks. The mean is one over the batches, in which each weighs 1 % more than the one
            before it.

    Returns:
        The number of normalizations that were updated. If it is 0, no batch was read.

    Raises:
        ValueError: if `batches` is a single array, a dict, or has labels, or there is no batch in
            it.
    """
    layers = normalizations_of(model)
    _check_batches(model, batches)
    if not layers:
        return 0
    momenta = [layer.momentum for layer in layers]
    kept = [[moving.numpy() for moving in _moving(layer)] for layer in layers]
    update = tf.function(lambda images: model(images, training=True), reduce_retracing=True)
    iterator, is_done = iter(batches), False
    try:
        for layer in layers:
            layer.momentum = MOMENTUM
        first = next(iterator, None)
        if first is None:
            raise ArgumentError("batches", "hold at least one batch of images", batches)
        weights = _weights_of_a_batch(lambda: update(first), layers)
        _begin(layers)
        count = 0
        for images in itertools.chain([first], iterator):
            update(images)
            count += 1
        for layer, weight, before in zip(layers, weights, kept, strict=True):
            _finish(layer, 1 - (1 - weight) ** count, before)
        is_done = True
    finally:
        for layer, momentum, before in zip(layers, momenta, kept, strict=True):
            layer.momentum = momentum
            if not is_done:
                _finish(layer, 0, before)
    return len(layers)


def _check_batches(model, batches):
    """Raises a `ValueError` for single arrays, dicts of inputs, and images with labels."""
    said = None
    if hasattr(batches, "shape"):
        said = f"an array of shape {tuple(batches.shape)}"
    elif isinstance(batches, Mapping):
        said = f"a dict of {', '.join(map(repr, batches))}"
    elif isinstance(batches, (list, tuple)):
        # Batches may have several sizes, but not several numbers of axes.
        axes = {len(one.shape) for one in batches if hasattr(one, "shape")}
        said = f"arrays of {' and '.join(map(str, sorted(axes)))} axes" if len(axes) > 1 else None
    elif isinstance(batches, tf.data.Dataset):
        spec, inputs = batches.element_spec, getattr(model, "inputs", None)
        has_labels = isinstance(spec, tuple) and len(spec) > 1
        # A subclassed model may take tuples.
        said = "a dataset with labels" if has_labels and len(inputs or ()) == 1 else None
    if said is not None:
        raise ArgumentError(
            "batches",
            "be an iterable of batches of inputs without labels, such as `[images]`, or `(images "
            "for images, _ in data)`",
            said=said,
        )


def _moving(layer):
    return layer.moving_mean, layer.moving_variance


def _begin(layers, variance=0.0):
    for layer in layers:
        layer.moving_mean.assign(keras.ops.zeros_like(layer.moving_mean))
        layer.moving_variance.assign(keras.ops.full_like(layer.moving_variance, variance))


def _weights_of_a_batch(update, layers):
    """Returns the weight that one batch has in the averages of each layer, 0 if it is not used.

    A shared layer updates them several times per batch.
    """
    found = []
    for variance in (0.0, LARGE):
        _begin(layers, variance)
        update()
        found.append([layer.moving_variance.numpy() for layer in layers])
    weights = []
    for low, high in zip(*found, strict=True):
        left = float(np.mean((high - low) / LARGE, dtype="float64"))
        updates = round(math.log(left) / math.log(MOMENTUM)) if left > 0 else math.inf
        weights.append(1 - MOMENTUM**updates)
    return weights


def _finish(layer, weight, before):
    """Divides averages by the sum of their weights, or puts back what was there before."""
    for moving, value in zip(_moving(layer), before, strict=True):
        moving.assign(moving / weight if weight else value)


def normalizations_of(model):
    """Returns the layers of a model that keep moving averages and are not frozen."""
    return [
        layer
        for layer in model._flatten_layers()
        if hasattr(layer, "momentum") and hasattr(layer, "moving_mean") and layer.trainable
    ]
