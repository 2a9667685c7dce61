"""Functions of one name on one chain: each is measured, and compiled once."""

import collections
import functools
import sys

import pytest
import tensorflow as tf
from reference.plane import at, plane_chain

from tfresidual import probes

THIS = sys.modules[__name__]
SCALE, SETTINGS, TRACED = 1.0, {"scale": 1.0}, collections.deque()


def helper():
    return SCALE


def values_of(value):
    """Returns what the function of a probe returns whose one value is this."""
    TRACED.append(value)
    return {"value": tf.fill([1, 1], float(value))}


def enclosing(scale):
    return lambda images, labels: values_of(scale)


def with_default(scale):
    def values(images, labels, scale=scale):
        return values_of(scale)

    return values


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def values(self, images, labels):
        return values_of(self.scale)


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
    "in a list": lambda scale: functools.partial(lambda s, x, y: values_of(s[0]), [scale]),
    "a method": lambda scale: SCALED[scale].values,
    "a global": lambda scale: reading(scale, "SCALE", scale),
    "a dict": lambda scale: reading(scale, "SETTINGS", {"scale": scale}),
    "a function that it calls": lambda scale: reading(scale, "helper", eval(f"lambda: {scale}")),
}
SCALED = {1.0: Scaled(1.0), 2.0: Scaled(2.0)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_what_is_asked_for(kind, monkeypatch):
    for name in ("SCALE", "SETTINGS", "helper"):
        monkeypatch.setattr(THIS, name, getattr(THIS, name))
    chain = plane_chain(lambda h: h / 2)
    TRACED.clear()
    for scale in (1.0, 2.0, 1.0):
        frame = probes.measure(chain, "same", KINDS[kind](scale), at(1, 2), with_labels=False)
        assert frame["value"].tolist() == [scale]
    assert list(TRACED) == [1.0, 2.0]
