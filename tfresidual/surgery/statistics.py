"""Statistics of batch normalization, measured again. TensorFlow only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
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
# The moving statistics of a normalization, by their names.
STATISTICS = ("moving_mean", "moving_variance")
# The share of the statistics of a batch in moving statistics that are followed over one batch: so
# small that all applications of a layer count alike.
STEP = 1e-3


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
            networks. The mean is one over the images.

    Returns:
        The number of normalizations that were updated. If it is 0, no batch was read.

    Raises:
        ValueError: if `batches` is a single array, a dict, or has labels, or there is no batch in
            it.
    """
    layers = normalizations_of(model)
    _check_batches(model, batches)
    if layers:
        set_statistics(model, batches)
    return len(layers)


def set_statistics(network: keras.Model, batches: Iterable[Any]) -> None:
    """Sets the moving statistics of a network to the means over batches of inputs.

    A layer that is applied several times has the mean over its applications; frozen layers and
    those without an attribute `momentum` stay as they are. Nothing else changes, nor do the seeds;
    after an error, nothing does.
    """
    # A layer of several applications keeps statistics in layers of its own.
    layers = [layer for layer in network._flatten_layers() if _has_statistics(layer)]
    # A layer may share the statistics of another one.
    owners = {id(layer.moving_mean): layer for layer in layers}.values()
    followed = [getattr(layer, name) for layer in owners for name in STATISTICS]
    others = [v for v in network.non_trainable_variables if v.name not in STATISTICS]
    momenta = [layer.momentum for layer in layers]
    before = [_value(variable) for variable in followed]
    sums: list[Any] = [0.0 for _ in followed]
    shares = [0.0 for _ in followed]
    found, total = before, 0

    def after_pass(images, start):
        """Returns the statistics after a batch, if they were `start` before."""
        for variable in followed:
            variable.assign(np.full(variable.shape, start))
        with restored(others):
            network(images, training=True)
        return [_value(variable).astype(np.float64) for variable in followed]

    try:
        for layer in layers:
            layer.momentum = 1 - STEP
        for images in batches:
            measured = after_pass(images, 0)
            if not total:
                # What is left of a start shows how often the layer was applied. Variances may be
                # so large that nothing of it can be seen.
                again = after_pass(images, 1)
                left = [np.median(again[i] - measured[i]) for i in range(0, len(followed), 2)]
                shares = [_share_of_batch(part) for part in left for _ in STATISTICS]
            size = len(tf.nest.flatten(images)[0])
            total += size
            sums = [summed + size * part for summed, part in zip(sums, measured, strict=True)]
        if not total:
            raise ArgumentError("batches", "hold at least one batch of images", batches)
        found = [
            summed / total / share if share else value
            for summed, share, value in zip(sums, shares, before, strict=True)
        ]
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for variable, value in zip(followed, found, strict=True):
            variable.assign(value)


def _share_of_batch(left):
    """Returns the share of a batch in statistics of which a share `left` is from before it."""
    applications = np.round(np.log(np.clip(left, STEP, 1)) / math.log1p(-STEP))
    return -math.expm1(applications * math.log1p(-STEP)) if applications > 0 else 0.0


def _has_statistics(layer):
    has_all = all(getattr(layer, name, None) is not None for name in STATISTICS)
    return hasattr(layer, "momentum") and has_all


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
            received=said,
        )


def normalizations_of(model):
    """Returns the layers of a model that keep moving averages and are not frozen."""
    return [
        layer for layer in model._flatten_layers() if _has_statistics(layer) and layer.trainable
    ]
