"""What a chain was made of, and what of it has changed since."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Origin:
    """What a chain was made of.

    The model is not kept alive; once it is gone, its layers alone are looked at.

    Args:
        model: the `keras.Model`.
        losses: the loss per image that was made from the loss of the model.
    """

    def __init__(self, model: keras.Model, losses: Any) -> None:
        self._model = weakref.ref(model)
        # A subclassed model is kept alive by its chain as it is.
        self._layers = list(model.layers)
        self._parts = _parts_of(model, self._layers)
        self._loss, self._losses = model.loss, losses

    def change(self, losses: Any) -> str | None:
        """Returns what has changed since the chain was made, in words; `None` if nothing has.

        Args:
            losses: the loss per image of the chain. The loss of the model is looked at only if it
                is the one that was made from that.
        """
        model = self._model()
        for what, now in _parts_of(model, self._layers).items():
            before = self._parts[what]
            if what == "graph" and model is None:
                continue
            if len(now) != len(before) or not all(map(_is_same, now, before)):
                return what
        if model is None or losses is not self._losses or _is_same(model.loss, self._loss):
            return None
        return "loss"


def _is_same(one, other):
    return one is other or (isinstance(one, str) and one == other)


def _parts_of(model, layers):
    """Returns lists of what the structure of a model is, by name.

    Args:
        model: the `keras.Model`, or `None` if it is gone.
        layers: its layers, if it is gone.
    """
    layers = layers if model is None else model.layers
    flat = _all_of(layers)
    models = [model, *(layer for layer in flat if isinstance(layer, keras.Model))]
    return {
        "layers": flat,
        "weights": [weight for layer in layers for weight in layer.weights],
        "dtype policies": [layer.dtype_policy.name for layer in flat],
        "graph": [tensor for one in models for tensor in getattr(one, "outputs", None) or []],
    }


def _all_of(layers):
    """Returns layers and all layers inside them, as a list."""
    return [inner for layer in layers for inner in layer._flatten_layers()]


def settings_of(model: keras.Model) -> list[Any]:
    """Returns what the methods of a model and of its layers may read beside weights.

    These are the attributes that are numbers, texts, functions or arrays, or lists of them. Two
    results are equal if all of them are the same. An attribute that changes in every call only
    costs time, where a chain is made again.

    Args:
        model: the `keras.Model`.
    """
    usual = {"stop_training", *vars(keras.Model()), *vars(keras.layers.Layer())}
    return [
        (id(layer), name, plain)
        for layer in [model, *_all_of(model.layers)]
        for name, value in vars(layer).items()
        if name not in usual and (plain := _plain(value)) is not None
    ]


def _plain(value):
    """Returns a value that can be compared with others; `None` if it cannot."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple((repr(key), _plain(one)) for key, one in value.items())
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    return id(value) if inspect.isroutine(value) else None
