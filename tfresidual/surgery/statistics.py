"""Statistics of batch normalization, measured again. TensorFlow only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Batches after which a moving average of this momentum has forgotten where it began.
UPDATES, MOMENTUM = 60, 0.9


def update_statistics(model: keras.Model, batches: Iterable[Any]) -> int:
    """Gives the batch normalization of a model the statistics of images, in place.

    What a normalization sees changes as blocks before it go, but not the mean and variance that it
    has kept from training. They are measured again in passes without labels and without a step of
    training; nothing else changes, and layers that are frozen stay as they are.

    Example:

    >>> update_statistics(net, (images for images, _ in train.take(60))) > 0
    True

    Args:
        model: a `keras.Model`.
        batches: batches of its inputs, about 60 of them: the averages are moving ones of momentum
            0.9, of which 0.2 % is then what they were before.

    Returns:
        The number of normalizations that were updated. If it is 0, no batch was read.
    """
    layers = normalizations_of(model)
    if not layers:
        return 0
    before = [layer.momentum for layer in layers]
    update = tf.function(lambda images: model(images, training=True), reduce_retracing=True)
    count = 0
    try:
        for layer in layers:
            layer.momentum = MOMENTUM
        for images in batches:
            update(images)
            count += 1
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum
    if not count:
        raise ArgumentError("batches", "hold at least one batch of images", batches)
    return len(layers)


def normalizations_of(model):
    """Returns the layers of a model that keep moving averages and are not frozen."""
    return [
        layer
        for layer in model._flatten_layers()
        if hasattr(layer, "momentum") and hasattr(layer, "moving_mean") and layer.trainable
    ]
