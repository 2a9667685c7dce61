"""Chains of models that repeat a block, against models in which every application has its layers.

The other model is functional, its blocks are layers of their own with the same weights, and
ordinary batch normalization: what its probes give is proved elsewhere.
"""

from functools import partial

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.layers import Repeated, UnsharedBatchNormalization, forward_pass

pytestmark = pytest.mark.eager

TIMES, SHAPE, CLASSES = 4, (8, 8, 4), 3


def convolution():
    return layers.Conv2D(4, 3, padding="same")


@keras.saving.register_keras_serializable(package="test_repeated_blocks")
class Hiding(layers.Layer):
    """A block whose addition is hidden."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.convolution = convolution()
        self.normalization = UnsharedBatchNormalization(TIMES)

    def call(self, state, application=None):
        made = self.normalization(self.convolution(state), application=application)
        return state + keras.ops.relu(made)


def branch():
    """convolution, normalization, ReLU, which have no addition."""
    parts = [convolution(), UnsharedBatchNormalization(TIMES), layers.ReLU()]
    return keras.Sequential([keras.Input(SHAPE), *parts])


def residual():
    inputs = keras.Input(SHAPE)
    return keras.Model(inputs, layers.Add(name="add")([inputs, branch()(inputs)]), name="block")


def applied(block, state, add=None):
    """Applies a block so often that says which application it is, and adds its results."""
    for index in range(TIMES):
        made = block(state, index)
        state = made if add is None else layers.Add(name=f"add{index}")([state, made])
    return state


def shared_branch(state):
    own = branch()
    return applied(lambda h, index: Repeated(own, 1, first=index)(h), state, add=True)


def shared_layers(state):
    convolution, normalization, relu = branch().layers

    def block(h, index):
        return relu(normalization(convolution(h), application=index))

    return applied(block, state, add=True)


def shared_hiding(state):
    block = Hiding()
    return applied(lambda h, index: block(h, application=index), state)


def ended(inputs, state):
    state = layers.GlobalAveragePooling2D()(state)
    outputs = layers.Dense(CLASSES, activation="softmax", name="classifier")(state)
    return keras.Model(inputs, outputs)


def functional(apply):
    inputs = keras.Input(SHAPE)
    return ended(inputs, apply(inputs))


class Subclassed(keras.Model):
    def __init__(self, block, apply=lambda block, state: block(state)):
        super().__init__()
        self.block, self.apply = block, apply
        self.pooling = layers.GlobalAveragePooling2D()
        self.classifier = layers.Dense(CLASSES, activation="softmax", name="classifier")

    def call(self, state, training=None):
        return self.classifier(self.pooling(self.apply(self.block, state)))


def repeatedly(block, state, is_branch):
    with forward_pass():
        for _ in range(TIMES):
            state = state + block(state) if is_branch else block(state)
    return state


# What is repeated, and how the model is made.
MODELS = {
    "Repeated model": lambda: functional(Repeated(residual(), TIMES)),
    "Repeated layer": lambda: functional(Repeated(Hiding(), TIMES)),
    "Repeated twice": lambda: functional(Repeated(Repeated(residual(), 2), TIMES // 2)),
    "Repeated in a model": lambda: functional(
        keras.Sequential([keras.Input(SHAPE), Repeated(residual(), TIMES)])
    ),
    "branch": lambda: functional(shared_branch),
    "layers": lambda: functional(shared_layers),
    "hiding": lambda: functional(shared_hiding),
    "subclassed, Repeated model": lambda: Subclassed(Repeated(residual(), TIMES)),
    "subclassed, Repeated layer": lambda: Subclassed(Repeated(Hiding(), TIMES)),
    "subclassed, branch": lambda: Subclassed(branch(), partial(repeatedly, is_branch=True)),
    "subclassed, hiding": lambda: Subclassed(Hiding(), partial(repeatedly, is_branch=False)),
}
EVERY_RUN = ("Repeated model", "subclassed, Repeated model")


IMAGES = np.random.default_rng(0).normal(size=(12, *SHAPE)).astype("float32")
DATA = IMAGES, np.random.default_rng(1).integers(0, CLASSES, len(IMAGES))


def made(name):
    """A model with random weights, compiled, and the options with which its chain is made."""
    keras.utils.set_random_seed(0)
    model, rng = MODELS[name](), np.random.default_rng(1)
    model(IMAGES)
    for weight in model.weights:
        weight.assign(0.2 * rng.uniform(0.1, 1, weight.shape))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model, {"inputs": IMAGES} if isinstance(model, Subclassed) else {}


def with_separate_layers(model):
    """The model in which every application has layers of its own."""
    found = {type(layer): layer for layer in model._flatten_layers()}
    inputs = state = keras.Input(SHAPE)
    for index in range(TIMES):
        own = [convolution(), layers.BatchNormalization()]
        made = layers.ReLU()(own[1](own[0](state)))
        state = layers.Add(name=f"add{index}")([state, made])
        own[0].set_weights(found[layers.Conv2D].get_weights())
        normalization = found[UnsharedBatchNormalization].normalizations[index]
        own[1].set_weights(normalization.get_weights())
    other = ended(inputs, state)
    other.layers[-1].set_weights(found[layers.Dense].get_weights())
    other.compile("sgd", "sparse_categorical_crossentropy")
    return other


def assert_same_frame(frame, other):
    numbers = [name for name in frame if frame[name].dtype.kind == "f"]
    others = [name for name in frame if name not in [*numbers, "name"]]
    pd.testing.assert_frame_equal(frame[others], other[others])
    np.testing.assert_allclose(frame[numbers], other[numbers], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n not in EVERY_RUN)) for n in MODELS]
)
def test_every_application_is_a_block(name):
    """What probes give is what they give for separate layers."""
    model, options = made(name)
    before = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    chain, other = tfr.chain(model, **options), with_separate_layers(model)
    # Nothing is added to layers.
    assert [len(layer._inbound_nodes) for layer in model._flatten_layers()] == before
    assert [len(stage.blocks) for stage in chain.stages] == [TIMES]
    assert len({block.name for block in chain.blocks}) == TIMES
    for one in (model, other):
        np.testing.assert_allclose(chain(IMAGES), one(IMAGES), rtol=1e-4, atol=1e-6)
    for probe in (probes.drop_blocks, probes.block_metrics, probes.readout):
        assert_same_frame(probe(chain, DATA), probe(other, DATA))


@pytest.mark.parametrize("name", ["Repeated layer", "subclassed, Repeated layer"])
def test_whole_layers_as_blocks(name):
    model, options = made(name)
    chain = tfr.chain(model, blocks=Hiding, **options)
    assert len(chain.blocks) == TIMES
    frames = [probes.drop_blocks(one, DATA) for one in (chain, with_separate_layers(model))]
    assert_same_frame(*frames)


@pytest.mark.system
@pytest.mark.compiled
def test_fit_with_callbacks_is_that_of_separate_layers():
    model, _ = made("Repeated model")
    histories = []
    for one in (model, with_separate_layers(model)):
        # One convolution is trained at the rate of four.
        one.optimizer.learning_rate = 0.0
        probing = [callbacks.BlockMetrics(DATA), callbacks.StepMetrics(images=4)]
        options = {"batch_size": 6, "shuffle": False, "verbose": 0, "callbacks": probing}
        histories.append(one.fit(*DATA, **options).history)
    assert set(histories[0]) == set(histories[1])
    assert f"stage1/block{TIMES - 1}/cosine_loss" in histories[0]
    for key, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][key], rtol=1e-3, atol=1e-6, err_msg=key)
