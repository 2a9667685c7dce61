"""`probes.measure`: what is compiled once is what is asked for."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from reference.plane import at, plane_chain

from tfresidual import probes

TRACED = []


def value(scale, images, labels):
    """Returns what the function of a probe returns whose one value is this."""
    TRACED.append(float(np.sum(scale)))
    return {"value": tf.fill([1, 1], TRACED[-1])}


def one(images, labels):
    return value(1.0, images, labels)


def two(images, labels):
    return value(2.0, images, labels)


ONCE = {
    "functions of a module": {1: one, 2: two}.get,
    "an argument": lambda scale: functools.partial(value, scale),
    "a keyword": lambda scale: functools.partial(by_keyword, scale=scale),
}
OFTEN = {
    "a closure": lambda scale: lambda images, labels: value(scale, images, labels),
    "an array": lambda scale: functools.partial(value, np.array([scale])),
}


def by_keyword(images, labels, scale):
    return value(scale, images, labels)


@pytest.mark.parametrize("kind", ONCE | OFTEN)
def test_what_is_kept_is_what_is_asked_for(kind):
    chain, function_of = plane_chain(lambda h: h / 2), (ONCE | OFTEN)[kind]
    TRACED.clear()
    for scale in (1.0, 2.0, 1.0):
        frame = probes.measure(chain, "same", function_of(scale), at(1, 2), with_labels=False)
        assert frame["value"].tolist() == [scale]
    assert ([1.0, 2.0] if kind in ONCE else [1.0, 2.0, 1.0]) == TRACED
