"""Networks with bounded branches, and units in models of the user: always bounded, never disturbed.

The numbers of the bound are tested with the unit and with the probe.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfresidual import callbacks, networks, probes
from tfresidual.layers import ResidualUnit

MU = 0.5


def some_images(shape=(8, 8, 8, 3)):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def small(**kwargs):
    return networks.ResidualNetwork((8, 8, 3), 4, blocks=2, widths=(4, 8), **kwargs)


def converged_difference(unit, inputs):
    """How much outputs change when the power iteration is run to convergence."""
    before = np.asarray(unit(inputs))
    unit.converge()
    return np.abs(np.asarray(unit(inputs)) - before).max() / np.abs(before).max()


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


def test_a_look_changes_nothing_in_how_a_bounded_network_trains():
    images, labels = some_images(), np.arange(8) % 4

    def weights(**kwargs):
        keras.utils.set_random_seed(0)
        net = small(lipschitz=0.9)
        net.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
        net.fit(images, labels, batch_size=4, epochs=3, shuffle=False, verbose=0, **kwargs)
        return [np.asarray(variable) for variable in net.trainable_variables]

    looks = {"callbacks": [callbacks.BlockMetrics((images, labels))]}
    for kwargs in (looks, {"validation_data": (images, labels)}):
        for alone, watched in zip(weights(), weights(**kwargs), strict=True):
            np.testing.assert_array_equal(alone, watched)


@pytest.mark.parametrize("look", ["predict_on_batch", "predict", "save", "save_weights", "probe"])
def test_bounds_have_converged_behind_train_on_batch(look, tmp_path):
    images, labels = some_images(), np.arange(8) % 4
    net = small(lipschitz=MU)
    net.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    for _ in range(10):
        net.train_on_batch(images, labels)
    if look == "probe":
        probes.lipschitz(net)
    elif look.startswith("save"):
        name = "net.keras" if look == "save" else "net.weights.h5"
        getattr(net, look)(tmp_path / name)
    else:
        getattr(net, look)(images)
    for layer in net.layers:
        if isinstance(layer, ResidualUnit) and layer.lipschitz is not None:
            assert layer.lipschitz_bound()["residual"] < 1e-4


def test_equal_blocks_begin_with_their_own_bound():
    net = small(lipschitz=MU, recurrent_initialization=True)
    inputs = some_images((4, 8, 8, 4))
    assert converged_difference(net.get_layer("stage1_block1"), inputs) < 1e-4


def test_images_of_another_size_are_refused():
    unit = ResidualUnit(3, lipschitz=MU)
    unit(some_images((1, 4, 4, 3)))
    with pytest.raises(ValueError, match=r"one grid: \(4, 4, 3\).*Received: inputs of shape \(8"):
        unit(some_images())


def test_frozen_weights_are_parameters_still():
    net = small()
    free = probes.effective_parameters(net)
    net.get_layer("stage1_block1").trainable = False
    assert probes.effective_parameters(net).equals(free)
    net.trainable = False
    assert probes.effective_parameters(net).equals(free)


def test_the_networks_of_101_layers():
    net = networks.resnet(101, widths=(2, 3, 4), input_shape=(8, 8, 3), lipschitz=0.95)
    assert (net.name, net.blocks, net.widths) == ("resnet101", (16, 16, 16), (2, 3, 4))
    assert net.transition == "downsampling_block"
