"""What callbacks keep of a model ends with the model."""

import gc
import weakref

import keras
import numpy as np
import psutil
import pytest
from keras import layers

import tfresidual as tfr
from tfresidual import callbacks, networks, probes

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(8, 4)).astype("float32"), RNG.integers(0, 3, 8)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.branches = [layers.Dense(4) for _ in range(2)]
        self.head = layers.Dense(3, "softmax")

    def call(self, inputs):
        for branch in self.branches:
            inputs = inputs + branch(inputs)
        return self.head(inputs)


def functional(activation=None):
    inputs = keras.Input((4,))
    state = layers.Add()([inputs, layers.Dense(4, activation)(inputs)])
    return keras.Model(inputs, layers.Dense(3, "softmax")(state))


@pytest.mark.parametrize("make", [functional, pytest.param(Subclassed, marks=pytest.mark.nightly)])
def test_a_trained_model_is_freed(make):
    model = make()
    if make is Subclassed:
        callbacks.use_blocks(model, inputs=IMAGES)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(IMAGES, LABELS, verbose=0, callbacks=[callbacks.BlockMetrics((IMAGES, LABELS))])
    kept = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert kept() is None


def normalized():
    return networks.ResidualNetwork((4, 4, 1), 3, blocks=1, widths=(2,))


def growth(make, images, is_probed, count=4):
    """MiB of memory that each of a series of trained models leaves behind."""

    def one():
        model = make()
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(images, LABELS, verbose=0)
        if is_probed:
            probes.block_metrics(tfr.chain(model), (images, LABELS))

    for number in range(count + 1):
        if number == 1:
            before = psutil.Process().memory_info().rss
        one()
        keras.backend.clear_session()
        gc.collect()
    return (psutil.Process().memory_info().rss - before) / 2**20 / count


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("make", "images", "most"),
    [
        (lambda: functional("tanh"), IMAGES, 6),
        # TensorFlow keeps every graph with a custom gradient, here the probe's beside Keras' own.
        (lambda: functional("silu"), IMAGES, 8),
        (normalized, RNG.normal(size=(8, 4, 4, 1)).astype("float32"), 8),
    ],
    ids=["tanh", "silu", "batch normalization"],
)
def test_what_a_probe_leaves_behind(make, images, most):
    """Beside what Keras alone leaves; the memory of a process of many tests varies by a few MiB."""
    alone = growth(make, images, is_probed=False)
    probed = growth(make, images, is_probed=True)
    print(f"{alone:.2f} MiB per model, probed {probed:.2f}")
    assert probed - alone < most
