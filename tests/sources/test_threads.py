"""Chains that are made in several threads, while other threads use Keras."""

import threading
import warnings

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfresidual as tfr
from tfresidual import callbacks, networks

THREADS = 4
IMAGES = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")
IDS = np.random.default_rng(0).integers(1, 9, (2, 6))


class Unit(layers.Layer):
    """Hides an addition, and multiplies by a weight of its own."""

    def build(self, shape):
        self.dense = layers.Dense(shape[-1])
        self.dense.build(shape)
        self.scale = self.add_weight(shape=shape[-1:], name="scale")

    def call(self, inputs):
        return inputs + self.scale * ops.tanh(self.dense(inputs))


def model_of(block, inputs=None, stem=lambda state: state):
    inputs = keras.Input((6, 4)) if inputs is None else inputs
    state = block(block(stem(inputs)))
    return keras.Model(inputs, layers.Dense(3)(state))


def plain():
    return model_of(lambda state: state + layers.Dense(4, activation="relu")(state))


def hidden():
    return model_of(lambda state: Unit()(state))


def masked():
    def block(state):
        return layers.Add()([state, layers.MultiHeadAttention(1, 4)(state, state)])

    return model_of(block, keras.Input((6,), dtype="int32"), layers.Embedding(9, 4, mask_zero=True))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.units, self.last = [Unit(), Unit()], layers.Dense(3)

    def call(self, inputs):
        for unit in self.units:
            inputs = unit(inputs)
        return self.last(inputs)


def of_the_package():
    return networks.resnet(depth=8, input_shape=(4, 4, 1), classes=3)


KINDS = [plain, hidden, masked, Subclassed, of_the_package]


def made(kind, model):
    """The names of the blocks of a new chain of a model, and its outputs."""
    chain = tfr.chain(model, inputs=IMAGES) if kind is Subclassed else tfr.chain(model)
    given = {masked: IDS, of_the_package: IMAGES[:, :4, :, None]}.get(kind, IMAGES)
    return [block.name for block in chain.blocks], np.asarray(chain(given))


def methods():
    """What Keras and Python have where something may be replaced for a while."""
    node = type(keras.Input((1,))._keras_history.operation._inbound_nodes[0])
    owners = (layers.Layer, keras.Operation, keras.Variable, keras.KerasTensor, node)
    found = [
        {name: value for name, value in vars(owner).items() if callable(value)} for owner in owners
    ]
    return found, list(warnings.filters)


def in_threads(count, work, beside):
    """Runs work with a number each in some threads, and something else until they end."""
    end, errors, begin = threading.Event(), [], threading.Barrier(count + 1)

    def run(function, argument):
        begin.wait()
        try:
            function(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work, index)) for index in range(count)]
    threads.append(threading.Thread(target=run, args=(beside, end)))
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join()
    end.set()
    threads[-1].join()
    assert errors == []


@pytest.mark.system
def test_chains_are_those_made_alone_and_others_notice_nothing():
    before = methods()
    models = {kind: kind() for kind in KINDS}
    models[Subclassed](IMAGES)
    alone = {kind: made(kind, model) for kind, model in models.items()}

    def make(index):
        for kind in KINDS:
            names, outputs = made(kind, models[kind] if index % 2 else kind())
            assert len(names) == len(alone[kind][0])
            if index % 2:
                assert names == alone[kind][0]
                np.testing.assert_array_equal(outputs, alone[kind][1])

    def train(end):
        while not end.is_set():
            model = plain()
            model.compile("sgd", "mse", run_eagerly=True)
            model.fit(IMAGES, np.ones((2, 6, 3)), verbose=0)
            assert len(model.layers[-1]._inbound_nodes) == 1

    in_threads(THREADS, make, train)
    assert methods() == before


def test_a_model_is_called_while_its_training_step_is_traced(tmp_path):
    model = plain()
    model.compile("sgd", "mse")

    def fit(index):
        steps = callbacks.StepMetrics(csv=tmp_path / "steps.csv")
        model.fit(IMAGES, np.ones((2, 6, 3)), verbose=0, callbacks=[steps])

    def call(end):
        while not end.is_set():
            model(IMAGES)

    in_threads(1, fit, call)
