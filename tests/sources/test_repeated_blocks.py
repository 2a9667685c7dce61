"""Chains of models that repeat a block, against models in which every application has its layers.

The other model is functional, its blocks are layers of their own with the same weights, and
ordinary batch normalization: what its probes give is proved elsewhere.
"""

import itertools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.layers import Repeated, ResidualUnit, UnsharedBatchNormalization, forward_pass

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
    def __init__(self, block, apply):
        super().__init__()
        self.block, self.apply = block, apply
        self.pooling = layers.GlobalAveragePooling2D()
        self.classifier = layers.Dense(CLASSES, activation="softmax", name="classifier")

    def call(self, state, training=None):
        return self.classifier(self.pooling(self.apply(self.block, state)))


def added(block, state):
    with forward_pass():
        for _ in range(TIMES):
            state = state + block(state)
    return state


def in_turn(block, state):
    with forward_pass():
        for _ in range(TIMES):
            state = block(state)
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
    "subclassed, Repeated model": lambda: Subclassed(
        Repeated(residual(), TIMES), lambda b, h: b(h)
    ),
    "subclassed, Repeated layer": lambda: Subclassed(Repeated(Hiding(), TIMES), lambda b, h: b(h)),
    "subclassed, branch": lambda: Subclassed(branch(), added),
    "subclassed, hiding": lambda: Subclassed(Hiding(), in_turn),
}
EVERY_RUN = ("Repeated model", "subclassed, Repeated model")


def data():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(12, *SHAPE)).astype("float32")
    return images, rng.integers(0, CLASSES, len(images))


def randomise(model):
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(0.2 * rng.uniform(0.1, 1, weight.shape))


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


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(make, id=name, marks=[] if name in EVERY_RUN else pytest.mark.system)
        for name, make in MODELS.items()
    ],
)
def models(request):
    """A model, its chain, and the model with separate layers."""
    keras.utils.set_random_seed(0)
    model, (images, _) = request.param(), data()
    model(images)
    randomise(model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    chain = tfr.chain(model, inputs=images if isinstance(model, Subclassed) else None)
    return model, chain, with_separate_layers(model)


def assert_same_frame(frame, other):
    numbers = [name for name in frame if frame[name].dtype.kind == "f"]
    others = [name for name in frame if name not in [*numbers, "name"]]
    pd.testing.assert_frame_equal(frame[others], other[others])
    np.testing.assert_allclose(frame[numbers], other[numbers], rtol=1e-4, atol=1e-6)


def test_every_application_is_a_block(models):
    """What probes give is what they give for separate layers."""
    model, chain, other = models
    assert [len(stage.blocks) for stage in chain.stages] == [TIMES]
    assert len({block.name for block in chain.blocks}) == TIMES
    images, _ = data()
    for one in (model, other):
        np.testing.assert_allclose(chain(images), one(images), rtol=1e-4, atol=1e-6)
    for probe in (probes.drop_blocks, probes.block_metrics, probes.readout):
        assert_same_frame(probe(chain, data()), probe(other, data()))


@pytest.mark.parametrize(
    "make", [MODELS["Repeated layer"], MODELS["subclassed, Repeated layer"]], ids=["graph", "call"]
)
def test_whole_layers_as_blocks(make):
    model, (images, labels) = make(), data()
    model(images)
    randomise(model)
    given = {"inputs": images} if isinstance(model, Subclassed) else {}
    chain = tfr.chain(model, blocks=Hiding, **given)
    assert len(chain.blocks) == TIMES
    frames = [
        probes.drop_blocks(one, (images, labels)) for one in (chain, with_separate_layers(model))
    ]
    assert_same_frame(*frames)


def test_roles_of_an_application_are_those_of_its_own_layers():
    model = functional(Repeated(residual(), TIMES))
    before = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    chain, other = tfr.chain(model), tfr.chain(with_separate_layers(model))
    # Nothing is added to layers.
    assert [len(layer._inbound_nodes) for layer in model._flatten_layers()] == before
    assert [set(block.weights) for block in chain.blocks] == [
        set(block.weights) for block in other.blocks
    ]
    gammas = {id(block.weights["1/BatchNormalization/gamma"]) for block in chain.blocks}
    kernels = {id(block.weights["0/Conv2D/kernel"]) for block in chain.blocks}
    assert (len(gammas), len(kernels)) == (TIMES, 1)
    assert len(chain.weights) == len(model.trainable_weights)


def test_units_are_repeated():
    model = functional(Repeated(ResidualUnit(4), 3))
    chain, (images, labels) = tfr.chain(model), data()
    unit, state = model.layers[1].block, images
    expected = [state]
    for _ in range(3):
        state = unit(state)
        expected.append(state)
    assert len(chain.blocks) == 3
    perturbation = probes.perturbation(chain, (images, labels))["perturbation"]
    by_hand = [
        np.linalg.norm((after - before).numpy().reshape(len(images), -1), axis=1).mean()
        for before, after in itertools.pairwise(expected)
    ]
    np.testing.assert_allclose(perturbation, by_hand, rtol=1e-4)


@pytest.mark.system
@pytest.mark.compiled
def test_fit_with_callbacks_is_that_of_separate_layers():
    keras.utils.set_random_seed(0)
    model, (images, labels) = functional(Repeated(residual(), TIMES)), data()
    other = with_separate_layers(model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    # One convolution is trained at the rate of the four that stand for it.
    for one in (model, other):
        one.optimizer.learning_rate = 0.0
    histories = [
        one.fit(
            images,
            labels,
            batch_size=6,
            shuffle=False,
            verbose=0,
            callbacks=[callbacks.BlockMetrics((images, labels)), callbacks.StepMetrics(images=4)],
        ).history
        for one in (model, other)
    ]
    assert set(histories[0]) == set(histories[1])
    assert f"stage1/block{TIMES - 1}/cosine_loss" in histories[0]
    for key, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][key], rtol=1e-3, atol=1e-6, err_msg=key)


@pytest.mark.system
@pytest.mark.compiled
def test_saved_chain(tmp_path):
    model, (images, labels) = functional(Repeated(residual(), TIMES)), data()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(images, labels, verbose=0)
    tfr.export(model, tmp_path / "saved")
    saved = tfr.chain(tmp_path / "saved")
    assert_same_frame(
        probes.block_metrics(saved, (images, labels)), probes.block_metrics(model, (images, labels))
    )
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    (outputs,) = served(tf.constant(images)).values()
    np.testing.assert_allclose(outputs, model(images), rtol=1e-4, atol=1e-6)
