"""Models that change after a chain was made of them: no number is that of the old network.

The truth is a `GradientTape` over calls of the layers as they are then.
"""

import dataclasses
import functools
import logging
import os
import random
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks, probes

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(12, 6)).astype("float32")
LABELS = rng.integers(0, 4, 12)
LOSS = "sparse_categorical_crossentropy"


@keras.saving.register_keras_serializable("tests")
class Scaled(layers.Layer):
    """A whole block that reads an attribute."""

    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale, self.inner = scale, layers.Dense(8, activation="tanh")

    def call(self, state):
        return state + self.scale * self.inner(state)


class Net:
    """A sequential model of a stem, blocks and a head, and the same as a list of layers."""

    def __init__(self, blocks=2):
        stem, head = layers.Dense(8), layers.Dense(4, activation="softmax", name="head")
        self.model = keras.Sequential(
            [keras.Input((6,)), stem, *(Scaled() for _ in range(blocks)), head]
        )
        self.compile()

    def compile(self):
        self.model.compile("sgd", LOSS)

    def truth(self):
        """The gradient norms before all blocks, and then the l2 ratios."""
        stem, *blocks, head = self.model.layers
        state, states = stem(IMAGES), []
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(state)
            for block in blocks:
                states.append(state)
                state = block(state)
            losses = keras.losses.sparse_categorical_crossentropy(LABELS, head(state))
        norms = [np.linalg.norm(tape.gradient(losses, one), axis=1).mean() for one in states]
        ratios = [
            np.mean(np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1))
            for before, after in zip(states, [*states[1:], state], strict=True)
        ]
        return [*norms, *ratios]


def fit_and_published(net):
    probe = callbacks.BlockMetrics((IMAGES, LABELS))
    logs = net.model.fit(IMAGES, LABELS, verbose=0, callbacks=[probe]).history
    return [
        value[-1]
        for name in ("gradient_norm", "l2_ratio")
        for key, value in logs.items()
        if key.endswith(name)
    ]


def lora(net):
    net.model.layers[1].inner.enable_lora(2)


def head(net):
    net.model.pop()
    net.model.add(layers.Dense(6, activation="softmax"))


def more_blocks(net):
    last = net.model.pop()
    net.model.add(Scaled(0.5))
    net.model.add(last)


def fewer_blocks(net):
    last = net.model.pop()
    net.model.pop()
    net.model.add(last)


def quantized(net):
    for layer in net.model.layers[1:-1]:
        layer.inner.quantize("int8")
        # Its weights are integers, which no optimizer trains.
        layer.trainable = False


def attribute(net):
    net.model.layers[1].scale = 3.0


def small_change_of_an_attribute(net):
    net.model.layers[1].scale = 1.00002


def activation(net):
    net.model.layers[1].inner.activation = keras.activations.relu


SMALL = small_change_of_an_attribute
OFTEN, SELDOM = (lora, SMALL, head, quantized), (more_blocks, fewer_blocks, attribute, activation)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        *OFTEN,
        *(pytest.param(change, marks=pytest.mark.nightly) for change in SELDOM),
    ],
    ids=lambda change: change.__name__,
)
def test_a_changed_model_is_measured_as_it_is(change):
    """Its former chain is refused, and a training after the change publishes the new network."""
    net = Net()
    chain, chosen = tfr.chain(net.model), (probes.block_metrics, probes.drop_blocks)
    for probe in chosen:
        probe(chain, (IMAGES, LABELS))
    np.testing.assert_allclose(fit_and_published(net), net.truth(), rtol=1e-5)
    change(net)
    if change is not SMALL:
        for probe in chosen:
            with refused("chain"):
                probe(chain, (IMAGES, LABELS))
        # With the same string.
        net.compile()
    frame = probes.block_metrics(tfr.chain(net.model), (IMAGES, LABELS))
    found = [*frame["gradient_norm"], *frame["l2_ratio"]]
    np.testing.assert_allclose(found, net.truth(), rtol=1e-5)
    published, truth = fit_and_published(net), net.truth()
    np.testing.assert_allclose(published, truth, rtol=1e-5)


def test_another_loss_is_another_chain_and_one_replaced_on_purpose_is_not():
    net = Net()
    chain = tfr.chain(net.model)
    before = probes.block_metrics(chain, (IMAGES, LABELS))
    kept = dataclasses.replace(chain, loss=lambda labels, outputs: 2 * chain.loss(labels, outputs))
    twice = probes.block_metrics(kept, (IMAGES, LABELS))
    np.testing.assert_allclose(twice["gradient_norm"], 2 * before["gradient_norm"], rtol=1e-5)
    net.model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    with refused("chain"):
        probes.block_metrics(chain, (IMAGES, LABELS))
    again = probes.block_metrics(kept, (IMAGES, LABELS))
    np.testing.assert_array_equal(again["gradient_norm"], twice["gradient_norm"])


class Times:
    """An activation with an attribute of its own."""

    __name__ = "Times"

    def __init__(self):
        self.factor = np.float32(1)

    def __call__(self, values):
        return self.factor * values


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_partial", [False, True], ids=["object", "partial"])
def test_a_small_change_inside_an_attribute(is_partial):
    net, own = Net(), Times()
    inner = net.model.layers[1].inner
    inner.activation = functools.partial(keras.ops.multiply, 1.0) if is_partial else own
    fit_and_published(net)
    own.factor = np.float32(1.0002)
    if is_partial:
        inner.activation = functools.partial(keras.ops.multiply, own.factor)
    np.testing.assert_allclose(fit_and_published(net), net.truth(), rtol=1e-5)


class Smoothed(keras.losses.Loss):
    """A loss that holds another one of Keras."""

    def __init__(self):
        super().__init__()
        self.inner = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)

    def call(self, labels, outputs):
        return self.inner.call(keras.ops.one_hot(labels, 4), outputs)


FACTORS = {"whole": 1.0}


def helper(values):
    return FACTORS["whole"] * values


class Reading(layers.Layer):
    """A block that reads numbers from everywhere."""

    scale = 1.0

    def __init__(self, name):
        super().__init__(name=name)
        self.config = types.SimpleNamespace(inner=types.SimpleNamespace(scale=1.0, parts=[[1.0]]))
        self.config.inner.outer, self.chosen = self.config, {1.0}
        self.dense = layers.Dense(5, activation="tanh")
        # What changes by itself, or is not read.
        self.calls, self.random, self.lock = 0, np.random.default_rng(0), threading.Lock()
        self.seen, self.mean = {}, keras.metrics.Mean()
        self.python_random, self.log = random.Random(0), logging.getLogger("tests")

    def call(self, state):
        self.calls += 1
        self.seen["last"] = self.calls
        self.random.normal()
        self.python_random.gauss()
        with self.lock:
            inner = self.config.inner
            factor = inner.scale * inner.parts[0][0] * max(self.chosen) * self.scale
            return helper(self.dense(state)) * factor


def reading(**kwargs):
    """A network of such blocks, whose output is the same for states of another size.

    Args:
        kwargs: of the `Lambda` that multiplies all states.
    """
    image = keras.Input((6,))
    state = layers.Dense(5)(image)
    for block in range(2):
        state = layers.Add()([state, Reading(f"b{block}")(state)])
        if kwargs:
            state = layers.Lambda(**kwargs, name=f"times{block}")(state)
    model = keras.Model(image, layers.Dense(4, activation="softmax", name="head")(state))
    model.get_layer("head").kernel.assign(np.zeros((5, 4)))
    model.compile("sgd", Smoothed(), run_eagerly=True)
    return model


def closed(factor):
    def multiplied(state):
        return state * factor[0]

    return {"function": multiplied}, lambda model: factor.__setitem__(0, 3.0)


READ = {
    "inside": lambda model: setattr(model.get_layer("b1").config.inner, "scale", 3.0),
    "list": lambda model: model.get_layer("b1").config.inner.parts[0].__setitem__(0, 3.0),
    "set": lambda model: setattr(model.get_layer("b1"), "chosen", {3.0}),
    "class": lambda model: setattr(Reading, "scale", 3.0),
    "global": lambda model: FACTORS.update(whole=3.0),
    "activation": lambda model: setattr(
        model.get_layer("b1").dense, "activation", keras.activations.relu
    ),
    "loss": lambda model: model.loss.inner._fn_kwargs.update(label_smoothing=0.5),
    "another loss": lambda model: setattr(
        model.loss, "inner", keras.losses.CategoricalCrossentropy()
    ),
    "closure": closed([1.0]),
}
READ_OFTEN = ("inside", "loss", "closure")


@pytest.mark.sampled(2)
@pytest.mark.system
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=[] if name in READ_OFTEN else [pytest.mark.nightly])
        for name, change in READ.items()
    ],
)
def test_what_is_read_from_elsewhere(change, monkeypatch):
    """A change that the outputs of the model do not show; nothing else is a change."""
    monkeypatch.setattr(Reading, "scale", 1.0)
    monkeypatch.setitem(FACTORS, "whole", 1.0)
    kwargs, change = change if isinstance(change, tuple) else ({}, change)
    model = reading(**kwargs)
    chain = tfr.chain(model)
    frame = probes.block_metrics(chain, (IMAGES, LABELS))
    model.optimizer.learning_rate = 0.0
    model.fit(IMAGES, LABELS, verbose=0)
    model.evaluate(IMAGES, LABELS, verbose=0)
    model.predict(IMAGES, verbose=0)
    again = probes.block_metrics(chain, (IMAGES, LABELS))
    np.testing.assert_array_equal(again["l2_ratio"], frame["l2_ratio"])
    change(model)
    with refused("chain"):
        probes.block_metrics(chain, (IMAGES, LABELS))


@pytest.mark.system
def test_what_keras_changes_by_itself_is_no_change(tmp_path):
    """Training, evaluation, prediction and files of layers that keep something while they train."""
    image = keras.Input((3, 4))
    state = layers.SpectralNormalization(layers.Dense(4))(image)
    state = state + layers.GRU(4, dropout=0.2, return_sequences=True)(state)
    model = keras.Model(image, layers.Dense(4, activation="softmax")(layers.Flatten()(state)))
    model.compile("adam", LOSS, metrics=["accuracy"], run_eagerly=True)
    images = rng.normal(size=(4, 3, 4)).astype("float32")
    chain = tfr.chain(model)
    model.fit(images, LABELS[:4], verbose=0, validation_split=0.5)
    model.evaluate(images, LABELS[:4], verbose=0)
    model.predict(images, verbose=0)
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "model", verbose=False)
    assert np.isfinite(probes.block_metrics(chain, (images, LABELS[:4]))["l2_ratio"]).all()


class Weighted(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def call(self, labels, outputs):
        return self.weight * keras.losses.sparse_categorical_crossentropy(labels, outputs)


@pytest.mark.parametrize("is_own", [True, False], ids=["attribute", "loss_weights"])
def test_a_loss_that_changes_as_it_is(is_own):
    net, loss = Net(), Weighted() if is_own else LOSS
    net.model.compile("sgd", loss, run_eagerly=True)
    fit_and_published(net)
    chain = tfr.chain(net.model)
    if is_own:
        loss.weight = 3.0
    else:
        net.model.compile("sgd", loss, loss_weights=[3.0])
    with refused("chain"):
        probes.block_metrics(chain, (IMAGES, LABELS))
    published, truth = fit_and_published(net), np.array(net.truth())
    truth[:2] *= 3
    np.testing.assert_allclose(published, truth, rtol=1e-5)


NOISE = np.random.default_rng(1)


class Outside(layers.Layer):
    """Multiplies by a number of the environment, and adds noise with another as its deviation."""

    def call(self, state):
        noise = float(os.environ.get("TESTS_NOISE", 0.0)) * NOISE.normal()
        return float(os.environ.get("TESTS_SCALE", 1.0)) * state + noise


@pytest.mark.sampled(1)
@pytest.mark.system
@pytest.mark.parametrize(("name", "is_lost"), [("TESTS_SCALE", False), ("TESTS_NOISE", True)])
def test_a_change_that_only_the_outputs_show(name, is_lost, monkeypatch, recwarn):
    """The chain is made again; what no chain can follow is one warning, whatever its numbers."""
    net = Net()
    net.model = keras.Sequential([keras.Input((6,)), Outside(), *net.model.layers])
    net.model.compile(keras.optimizers.SGD(0.0), LOSS, run_eagerly=True)

    def change(epoch, logs):
        if epoch:
            monkeypatch.setenv(name, str(epoch + 1.0))

    own = [
        keras.callbacks.LambdaCallback(on_epoch_begin=change),
        callbacks.BlockMetrics((IMAGES, LABELS)),
    ]
    logs = net.model.fit(IMAGES, LABELS, epochs=4, verbose=0, callbacks=own).history
    found = next(value for key, value in logs.items() if key.endswith("block1/l2_ratio"))
    np.testing.assert_array_equal(np.isnan(found), [False, *[is_lost] * 3])
    warned = [w for w in recwarn if "training goes on" in str(w.message)]
    assert len(warned) == is_lost
    if not is_lost:
        chain = tfr.chain(net.model)
        assert found[-1] == pytest.approx(probes.block_metrics(chain, (IMAGES, LABELS)).l2_ratio[1])


@pytest.mark.system
@pytest.mark.nightly
def test_a_change_during_a_training(tmp_path):
    """What is published and exported is the network of each epoch."""
    net, truths = Net(), []

    def change(epoch, logs):
        truths.append(net.truth())
        if epoch == 0:
            net.model.layers[1].inner.enable_lora(2)

    own = [
        callbacks.BlockMetrics((IMAGES, LABELS)),
        callbacks.ExportForProbing(tmp_path),
        keras.callbacks.LambdaCallback(on_epoch_end=change),
    ]
    logs = net.model.fit(IMAGES, LABELS, epochs=2, verbose=0, callbacks=own).history
    for epoch, truth in enumerate(truths):
        published = [v[epoch] for k, v in logs.items() if k.endswith(("gradient_norm", "l2_ratio"))]
        np.testing.assert_allclose(sorted(published), sorted(truth), rtol=1e-5)
        frame = probes.block_metrics(tfr.chain(tmp_path / f"epoch000{epoch + 1}"), (IMAGES, LABELS))
        found = [*frame["gradient_norm"], *frame["l2_ratio"]]
        np.testing.assert_allclose(found, truth, rtol=1e-4)
