"""Callbacks that fail: what fails for good is refused at the beginning, what fails later is said.

Not covered here: a lack of memory, which is an error like any other.
"""

import errno
import itertools
import math
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from reference.random_network import random_batch, random_network
from reference.unchanged import unchanged
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks

pytestmark = pytest.mark.eager


@pytest.fixture
def net():
    net = random_network(blocks=1, widths=(4,))
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


def fit(net, chosen, epochs=3, **settings):
    images, labels = random_batch(net, images=8)
    return net.fit(
        images, labels, batch_size=4, epochs=epochs, verbose=0, callbacks=chosen, **settings
    ).history


def data_that_changes(net, later):
    """Data that is another from its second reading on; it comes from a Python function."""
    images, labels = random_batch(net, images=4)
    readings = itertools.count()

    def batches():
        yield (images, labels) if next(readings) < 2 else (images, later(labels))

    spec = (tf.TensorSpec(images.shape, tf.float32), tf.TensorSpec([4], tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def other_labels(labels):
    return labels + 100


def no_file(labels):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("kind", "later"),
    [
        (callbacks.BlockMetrics, other_labels),
        (callbacks.DropBlocks, no_file),
        pytest.param(callbacks.BlockMetrics, no_file, marks=pytest.mark.nightly),
        pytest.param(callbacks.DropBlocks, other_labels, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value.__name__,
)
def test_what_fails_later_is_said_once_and_training_goes_on(net, kind, later):
    probe = kind(data_that_changes(net, later))
    with pytest.warns(UserWarning, match=rf"{kind.__name__} failed.*Cause: ") as said:
        history = fit(net, [probe])
    assert sum("Cause: " in str(one.message) for one in said) == 1 and len(history["loss"]) == 3
    for key in probe.keys(tfr.chain(net)):
        assert math.isfinite(history[key][0]) and np.isnan(history[key][1:]).all()
    with pytest.raises((ValueError, tf.errors.OpError)):
        fit(net, [kind(data_that_changes(net, later), on_error="raise")])


def test_what_fails_for_good_is_refused_when_training_begins(net):
    """Nothing of its gradient can be known before the probe has run."""
    inputs = keras.Input((6,))
    state = layers.Dense(4)(inputs)
    state = layers.Add()([state, layers.Dense(4)(state)])
    outputs = layers.Dense(3)(keras.ops.stop_gradient(state))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = np.zeros((4, 6), "float32"), np.zeros(4)
    with unchanged(model), refused("chain"):
        model.fit(*data, verbose=0, callbacks=[callbacks.BlockMetrics(data)])


# Losses that training does not minimize


@keras.saving.register_keras_serializable("tests")
class Added(layers.Layer):
    def call(self, state):
        self.add_loss(keras.ops.mean(state**2))
        return state


@pytest.mark.parametrize("loss", [None, "mse"])
def test_the_loss_that_is_measured_is_said_if_training_may_minimize_another(loss):
    inputs = keras.Input((6,))
    state = layers.Dense(4)(inputs)
    state = Added()(layers.Add()([state, layers.Dense(4)(state)]))
    model = keras.Model(inputs, layers.Dense(3)(state))
    model.compile("sgd", loss)
    data = np.ones((4, 6), "float32"), np.eye(3)[[0, 1, 2, 0]].astype("float32")
    chosen = [callbacks.BlockMetrics(data), callbacks.Perturbation(data)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        history = model.fit(*data, epochs=2, verbose=0, callbacks=chosen).history
    said = [str(one.message) for one in said if "loss of the probes" in str(one.message)]
    assert len(said) == (loss is None)
    # It is the loss of `compile`, of each image, without what layers add.
    head = model.layers[-1]
    with tf.GradientTape() as tape:
        before = model.layers[1](data[0])
        tape.watch(before)
        after = before + model.layers[2](before)
        outputs = head(after)
        if loss is None:
            losses = keras.losses.categorical_crossentropy(data[1], outputs, from_logits=True)
        else:
            losses = keras.losses.mean_squared_error(data[1], outputs)
    norms = np.linalg.norm(tape.gradient(losses, before), axis=1)
    assert history["stage1/block0/gradient_norm"][-1] == pytest.approx(norms.mean(), rel=1e-5)
