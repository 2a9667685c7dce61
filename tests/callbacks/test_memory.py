"""What callbacks keep of a model ends with the model."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import layers
from reference.random_network import random_network

from tfresidual import callbacks

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


def bounded():
    inputs = keras.Input((4,))
    image = layers.Reshape((2, 2, 1))(inputs)
    options = {"lipschitz": 0.9, "input_shape": (2, 2, 1), "classes": 3}
    return keras.Model(inputs, random_network(blocks=1, widths=(2,), **options)(image))


OTHERS = [pytest.param(one, marks=pytest.mark.nightly) for one in (Subclassed, bounded)]


@pytest.mark.parametrize("make", [functional, *OTHERS])
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
