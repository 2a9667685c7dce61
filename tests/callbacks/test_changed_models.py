"""Models that change after a chain was made of them: no number is that of the old network.

The truth is a `GradientTape` over calls of the layers as they are then.
"""

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
    """A whole block that reads an attribute, which is in its configuration, and another one."""

    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale, self.inner, self.hidden = scale, layers.Dense(8, activation="tanh"), 1.0

    def call(self, state):
        return state + self.hidden * self.scale * self.inner(state)

    def get_config(self):
        return super().get_config() | {"scale": self.scale}


class Net:
    """A sequential model of a stem, blocks and a head, and the same as a list of layers."""

    def __init__(self):
        head = layers.Dense(4, activation="softmax", name="head")
        self.model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8), Scaled(), Scaled(), head]
        )
        self.model.compile("sgd", LOSS, run_eagerly=True)

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


def fit_and_published(net, *more, epochs=1):
    """Trains, and returns the gradient norms and l2 ratios of the last epoch."""
    probe = callbacks.BlockMetrics((IMAGES, LABELS))
    given = {"epochs": epochs, "verbose": 0, "callbacks": [*more, probe]}
    logs = net.model.fit(IMAGES, LABELS, **given).history
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


def quantized(net):
    for layer in net.model.layers[1:-1]:
        layer.inner.quantize("int8")
        # Its weights are integers, which no optimizer trains.
        layer.trainable = False


def attribute(net):
    net.model.layers[1].scale = 3.0


def small_attribute(net):
    net.model.layers[1].scale = 1.00002


def hidden_and_compiled(net):
    net.model.layers[1].hidden = 3.0
    net.model.compile("sgd", LOSS, run_eagerly=True)


CHANGES = (lora, head, more_blocks, quantized, attribute, small_attribute, hidden_and_compiled)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_is_measured_as_it_is(change):
    """A new chain and a training after the change have the numbers of the new network."""
    net = Net()
    np.testing.assert_allclose(fit_and_published(net), net.truth(), rtol=1e-5)
    change(net)
    if change in (lora, head, quantized, more_blocks):
        net.model.compile("sgd", LOSS, run_eagerly=True)
    frame = probes.block_metrics(tfr.chain(net.model), (IMAGES, LABELS))
    found = [*frame["gradient_norm"], *frame["l2_ratio"]]
    np.testing.assert_allclose(found, net.truth(), rtol=1e-5)
    np.testing.assert_allclose(fit_and_published(net), net.truth(), rtol=1e-5)


def test_a_chain_of_a_network_that_has_changed_is_refused():
    net = Net()
    chain, chosen = tfr.chain(net.model), (probes.block_metrics, probes.drop_blocks)
    for probe in chosen:
        probe(chain, (IMAGES, LABELS))
    attribute(net)
    for probe in chosen:
        with refused("chain"):
            probe(chain, (IMAGES, LABELS))


def test_another_weight_of_the_loss_is_published():
    net = Net()
    fit_and_published(net)
    net.model.compile("sgd", LOSS, loss_weights=[3.0], run_eagerly=True)
    published, truth = fit_and_published(net), np.array(net.truth())
    truth[:2] *= 3
    np.testing.assert_allclose(published, truth, rtol=1e-5)


def test_a_change_during_a_training_that_the_configuration_shows():
    net = Net()
    change = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: epoch and attribute(net)
    )
    np.testing.assert_allclose(fit_and_published(net, change, epochs=2), net.truth(), rtol=1e-5)


def test_a_change_that_only_the_outputs_show_is_one_warning(recwarn):
    net = Net()

    def change(epoch, logs):
        net.model.layers[1].hidden = 1.0 + epoch

    change = keras.callbacks.LambdaCallback(on_epoch_begin=change)
    assert np.isnan(fit_and_published(net, change, epochs=3)).all()
    assert len([w for w in recwarn if "BlockMetrics" in str(w.message)]) == 1
