"""What is no source of a chain, and arguments that a source does not take."""

import keras
import pytest
from keras import layers
from refusals import refused

import tfresidual as tfr
from tfresidual import networks

pytestmark = pytest.mark.eager


def convolution(state):
    return layers.Conv2D(4, 3, padding="same")(state)


def model_of(apply=lambda state: state + convolution(state), kind=keras.Model):
    inputs = keras.Input((8, 8, 4))
    return kind(inputs, layers.GlobalAveragePooling2D()(apply(inputs)))


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs + inputs


class OtherCall(keras.Model):
    """A functional model that computes something else than its graph."""

    def call(self, inputs):
        return 2 * super().call(inputs)


class OtherDunderCall(keras.Model):
    """The same for a model whose `call` is the usual one."""

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(2 * inputs, *args, **kwargs)


class OtherNetwork(networks.ResidualNetwork):
    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(2 * inputs, *args, **kwargs)


def with_a_call_of_its_own():
    model = model_of()
    model.call = lambda *args, **kwargs: 2 * type(model).call(model, *args, **kwargs)
    return model


def hidden_addition(state):
    state = layers.Lambda(lambda pair: pair[0] + pair[1])([state, convolution(state)])
    return layers.Add()([state, state])


def several():
    inputs = keras.Input((8, 8, 4))
    total = inputs + convolution(inputs)
    return keras.Model(inputs, [total * (i + 1) for i in range(3)], name="several")


def units(beside):
    """Units whose anchor is another tensor, on the trunk or beside it."""
    one, two, three = (tfr.layers.ResidualUnit(4, name=f"unit{i}") for i in range(3))

    def apply(state):
        if beside:
            return one(state) + two(state, state)
        return three(two(one(state)), one(state))

    return model_of(apply)


FUNCTIONAL = "must be a functional `keras.Model`"
WITHOUT = [
    (lambda: 3, "3 of type int"),
    (lambda: "net.h5", "which does not exist"),
    (Subclassed, FUNCTIONAL),
    (lambda: model_of(kind=OtherCall), FUNCTIONAL),
    (lambda: model_of(kind=OtherDunderCall), FUNCTIONAL),
    (with_a_call_of_its_own, FUNCTIONAL),
    (lambda: OtherNetwork((8, 8, 3), 3, blocks=1), FUNCTIONAL),
    (lambda: keras.Sequential([layers.Dense(3)]), FUNCTIONAL),
    (several, "source=several with 3 outputs"),
    (lambda: model_of(convolution), "with additions none"),
    (lambda: model_of(hidden_addition), "may hide some: Lambda (1: lambda"),
    (lambda: units(beside=False), "unit2, whose anchor is another tensor"),
    (lambda: units(beside=True), "unit1, whose anchor is another tensor"),
]


@pytest.mark.parametrize(("make", "received"), WITHOUT)
def test_what_has_no_chain(make, received):
    try:
        with refused("source") as caught:
            tfr.chain(make())
        error = caught.value
    except FileNotFoundError as missing:
        error = missing
    assert received in str(error)


@pytest.mark.parametrize("name", ["blocks", "expand_nested", "inputs", "padding", "output"])
def test_other_sources_take_no_arguments(name):
    net = networks.resnet(8)
    for source in (net, tfr.chain(net)):
        with refused(name) as caught:
            tfr.chain(source, **{name: 0})
        assert f"Received: {name} for source=" in str(caught.value)
