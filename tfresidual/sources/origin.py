"""What a chain was made of, and what of it has changed since."""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfresidual.routing.losses import weights_of_losses

# What Keras sets on a model while it trains, evaluates and predicts.
OF_TRAINING = ("stop_training", "stop_evaluating", "stop_predicting", "_eval_epoch_iterator")
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
        # The object is kept, so that no other one gets its id.
        self._loss, self._losses = (model.loss, _loss_of(model)), losses

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
        if model is None or losses is not self._losses or _loss_of(model) == self._loss[1]:
            return None
        return "loss"


def _loss_of(model):
    return _plain([model.loss, weights_of_losses(model)])


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

    These are the attributes that are numbers, texts, functions or arrays, or lists of them, and
    those of objects that are neither layers nor variables. Two results are equal if all of them are
    the same. An attribute that changes in every call only costs time, where a chain is made again.

    Args:
        model: the `keras.Model`.
    """
    usual = {*OF_TRAINING, *vars(keras.Model()), *vars(keras.layers.Layer())}
    return [
        (id(layer), name, plain)
        for layer in [model, *_all_of(model.layers)]
        for name, value in vars(layer).items()
        if name not in usual
        # Of TensorFlow's checkpoints.
        and not name.startswith("_self_")
        and (plain := _plain(value)) is not None
    ]


def _plain(value, is_inside=False):
    """Returns a value that can be compared with others; `None` if it cannot.

    Args:
        value: the value.
        is_inside: whether it is an attribute of an object that is no layer; objects inside such
            objects are not looked into.
    """
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    if isinstance(value, (list, tuple)):
        return tuple(_plain(one, is_inside) for one in value)
    if isinstance(value, dict):
        return tuple((repr(key), _plain(one, is_inside)) for key, one in value.items())
    if isinstance(value, tf.Tensor):
        if not hasattr(value, "numpy") or value.dtype in (tf.resource, tf.variant):
            return None
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.shape, value.tobytes()
    if inspect.isroutine(value):
        return value
    if is_inside or _is_of_library(value) or not hasattr(value, "__dict__"):
        return None
    return id(value), _plain(vars(value), is_inside=True)


def _is_of_library(value):
    """Returns whether an object is one of Keras' or TensorFlow's, other than a loss."""
    if isinstance(value, keras.losses.Loss):
        return False
    parents = (parent.__module__.partition(".")[0] for parent in type(value).__mro__)
    return any(name in ("keras", "tensorflow", "tfresidual") for name in parents)
