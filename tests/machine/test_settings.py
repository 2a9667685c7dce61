"""What functions and layers read: functions of one name are each measured, and compiled once."""

import functools
import queue
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.plane import at, plane_chain

from tfresidual import probes
from tfresidual.machine.settings import settings_of

THIS = sys.modules[__name__]
SCALE, SETTINGS, TRACED = 1.0, {"scale": 1.0}, queue.SimpleQueue()
ONE, TWO = [1.0], [2.0]


def helper():
    return SCALE


def values_of(value):
    """Returns what the function of a probe returns whose one value is this."""
    TRACED.put(value)
    return {"value": tf.fill([1, 1], float(value))}


def enclosing(scale):
    return lambda images, labels: values_of(scale)


def enclosing_function(function):
    return lambda images, labels: function(images, labels)


def of_first(values, images, labels):
    return values_of(np.asarray(values)[0])


def with_default(scale):
    def values(images, labels, scale=scale):
        return values_of(scale)

    return values


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def values(self, images, labels):
        return values_of(self.scale)


def attribute_of(scaled, scale):
    scaled.scale = scale
    return scaled.values


def reading(scale, global_name, value):
    def values(images, labels):
        return values_of(helper() * SETTINGS["scale"])

    setattr(THIS, global_name, value)
    return values


KINDS = {
    "another function": lambda scale: eval(f"lambda images, labels: values_of({scale})", globals()),
    "a closure": enclosing,
    "a default": with_default,
    "a partial": lambda scale: functools.partial(lambda s, x, y: values_of(s), scale),
    "a keyword of it": lambda scale: functools.partial(lambda x, y, s: values_of(s), s=scale),
    "a tensor": lambda scale: functools.partial(of_first, tf.constant([scale])),
    "an array": lambda scale: functools.partial(of_first, np.array([scale])),
    "a dtype": lambda scale: functools.partial(
        lambda of, x, y: values_of(1 if of.dtype == "int8" else 2), np.ones(1, f"int{scale * 8:g}")
    ),
    "which of two": lambda scale: functools.partial(
        lambda lists, x, y: values_of(lists[2][0]), [ONE, TWO, {1: ONE, 2: TWO}[scale]]
    ),
    "a list or a tuple": lambda scale: functools.partial(
        lambda of, x, y: values_of(1 if isinstance(of, list) else 2), {1: list, 2: tuple}[scale]()
    ),
    "a closure of a closure": lambda scale: enclosing_function(enclosing(scale)),
    "an attribute": lambda scale: attribute_of(SCALED["any"], scale),
    "in a list": lambda scale: functools.partial(lambda s, x, y: values_of(s[0]), [scale]),
    "a method": lambda scale: SCALED[scale].values,
    "a global": lambda scale: reading(scale, "SCALE", scale),
    "a dict": lambda scale: reading(scale, "SETTINGS", {"scale": scale}),
    "a function that it calls": lambda scale: reading(scale, "helper", eval(f"lambda: {scale}")),
}
SCALED = {1.0: Scaled(1.0), 2.0: Scaled(2.0), "any": Scaled(0.0)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_what_is_asked_for(kind, monkeypatch):
    for name in ("SCALE", "SETTINGS", "helper"):
        monkeypatch.setattr(THIS, name, getattr(THIS, name))
    chain = plane_chain(lambda h: h / 2)
    for scale in (1.0, 2.0, 1.0):
        frame = probes.measure(chain, "same", KINDS[kind](scale), at(1, 2), with_labels=False)
        assert frame["value"].tolist() == [scale]
    assert [TRACED.get() for _ in range(TRACED.qsize())] == [1.0, 2.0]


class Layered(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.helper = keras.layers.Dense(2)

    def call(self, state):
        return SCALE * self.helper(state)


def test_an_attribute_is_not_the_global_of_its_name(monkeypatch):
    layer = Layered()
    before = settings_of([layer])
    monkeypatch.setattr(THIS, "helper", lambda: 2.0)
    assert settings_of([layer]) == before
    monkeypatch.setattr(THIS, "SCALE", 2.0)
    assert settings_of([layer]) != before
