"""Networks with bounded branches, and units in models of the user: always bounded, never disturbed.

The numbers of the bound are tested with the unit and with the probe.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.numpy_network import analyse, weights_of

from tfresidual import networks
from tfresidual.layers import ResidualUnit

MU = 0.5


def some_images(shape=(8, 8, 8, 3)):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def small(blocks=(1, 2), **kwargs):
    return networks.ResidualNetwork((8, 8, 3), 4, blocks=blocks, widths=(4, 8), **kwargs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.unit = ResidualUnit(3, lipschitz=MU)

    def call(self, inputs, training=None):
        return self.unit(inputs, training=training)


def in_sequential(inputs):
    model = keras.Sequential([ResidualUnit(3, lipschitz=MU)])
    return model.predict(inputs, verbose=0), model.layers[0]


def in_subclass(inputs):
    model = Subclassed()
    return model.predict(inputs, verbose=0), model.unit


def in_function(inputs):
    unit = ResidualUnit(3, lipschitz=MU)
    return tf.function(lambda images: unit(images))(inputs), unit


@pytest.mark.parametrize("build", [in_sequential, in_subclass, in_function])
def test_units_built_inside_of_a_graph_are_bounded(build):
    inputs = some_images()
    outputs, unit = build(inputs)
    unit.converge()
    assert unit.lipschitz_bound()["divisor"] > 2
    np.testing.assert_allclose(outputs, unit(inputs), rtol=1e-4, atol=1e-4)


def loaded_file(net, path):
    # Not by the network's own method.
    keras.saving.save_model(net, path / "net.keras")
    return keras.saving.load_model(path / "net.keras")


def loaded_weights(net, path):
    net.save_weights(path / "net.weights.h5")
    other = small(lipschitz=MU)
    other.load_weights(path / "net.weights.h5")
    return other


def clone(net, path=None):
    copy = keras.models.clone_model(net)
    copy.set_weights(net.get_weights())
    return copy


def exported(net, path):
    net.export(path / "net", verbose=False)
    loaded = tf.saved_model.load(path / "net")
    return lambda images: loaded.serve(images)


def written(net, path):
    tf.saved_model.save(net, path / "net")
    loaded = tf.saved_model.load(path / "net")
    return lambda images: next(iter(loaded.signatures["serving_default"](images).values()))


def in_a_model(net, path=None):
    inputs = keras.Input((8, 8, 3))
    return keras.Model(inputs, net(inputs)).predict_on_batch


def part(net, path=None):
    """The head of the network after what a model of all the rest gives."""
    before = net.get_layer("head_pooling").output
    states, head = keras.Model(net.inputs, before), keras.Model(before, net.outputs)
    return lambda images: head(states.predict_on_batch(images))


WAYS = {
    "call": lambda net, path: net,
    "predict": lambda net, path: lambda images: net.predict(images, verbose=0),
    "own function": lambda net, path: tf.function(net),
    "XLA": lambda net, path: tf.function(lambda images: net(images), jit_compile=True),
    "clone": lambda net, path: clone(net).predict_on_batch,
    "file": loaded_file,
    "weights": loaded_weights,
    "export": exported,
    "saved model": written,
    "in a model": in_a_model,
    "part": part,
}
# Called as it is, compiled, read from a file, and as a graph alone.
IN_EVERY_RUN = ("call", "predict", "clone", "file", "weights", "export")


@pytest.fixture(scope="module")
def trained():
    """A bounded network whose weights moved since anything looked at it, and what it gives."""
    images, labels = some_images(), np.arange(8) % 4
    keras.utils.set_random_seed(1)
    net = small(lipschitz=MU)
    net.compile(keras.optimizers.SGD(0.3, momentum=0.9), "sparse_categorical_crossentropy")
    # Three steps take less time than their compiling.
    net.run_eagerly = True
    for _ in range(3):
        net.train_on_batch(images, labels)
    net.run_eagerly = False
    return net, net.get_weights(), analyse(net.get_config(), weights_of(net), images, labels)


@pytest.mark.sampled(3)
@pytest.mark.system
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[] if way in IN_EVERY_RUN else [pytest.mark.nightly]) for way in WAYS],
)
def test_norms_are_those_of_the_weights_however_it_is_called(way, trained, tmp_path):
    net, weights, expected = trained
    # As training left them.
    net.set_weights(weights)
    images = tf.constant(some_images())
    outputs = WAYS[way](net, tmp_path)(images)
    np.testing.assert_allclose(outputs, expected.outputs, atol=2e-5)


def test_a_function_traced_before_a_change_follows_it(trained):
    _, weights, expected = trained
    images = some_images()
    other = small(lipschitz=MU)
    copy = keras.models.clone_model(other)
    functions = [copy.predict_on_batch, tf.function(copy), other.predict_on_batch]
    for function in functions:
        function(images)
    for model in (copy, other):
        for variable, value in zip(model.weights, weights, strict=True):
            variable.assign(value)
    for function in functions:
        np.testing.assert_allclose(function(images), expected.outputs, atol=2e-5)


@pytest.mark.system
@pytest.mark.parametrize(
    "writer", ["save", "save_weights", pytest.param("export", marks=pytest.mark.nightly)]
)
def test_files_have_the_norms_of_their_weights(writer, trained, tmp_path):
    net, weights, _ = trained
    net.set_weights(weights)
    name = {"save": "net.keras", "save_weights": "net.weights.h5", "export": "net"}[writer]
    getattr(net, writer)(tmp_path / name)
    units = [unit for unit in net.layers if getattr(unit, "lipschitz", None)]
    kept = [unit.divisor.known.numpy() for unit in units]
    net.converge()
    changed = [unit.divisor.known.numpy() for unit in units]
    assert len(kept) == 2
    for one, other in zip(kept, changed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_equal_blocks_begin_with_the_bound_of_their_weights():
    # The vectors of the power iteration are not copied, but must belong to the weights that are.
    net = small(blocks=3, lipschitz=MU, recurrent_initialization=True)
    first, *others = (net.get_layer(f"stage1_block{index}") for index in range(3))
    expected = first.lipschitz_bound()
    for unit in others:
        found = unit.lipschitz_bound()
        assert found["estimate"] == pytest.approx(expected["estimate"], rel=1e-5)
        assert found["residual"] < 1e-4
        for vector, own in zip(unit.divisor.vectors, unit.divisor.training_vectors, strict=True):
            np.testing.assert_array_equal(own, vector)
