"""How often a training step is traced, and that the numbers stay as they are.

Steps are counted by a layer or a loss that is really called: Python runs them once per trace.
"""

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

from tfresidual import networks, training
from tfresidual.machine.first_step import build_optimizer, traced_once

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(24, 8, 8, 1)).astype("float32")
LABELS = np.arange(24) % 3

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "coupled": lambda: training.GradientCoupling(keras.optimizers.SGD(0.05, momentum=0.9), 0.5),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "clipped, averaged, accumulated": lambda: keras.optimizers.SGD(
        0.05, momentum=0.9, clipnorm=1.0, use_ema=True, gradient_accumulation_steps=2
    ),
}
# The first always, the next two in every submission.
MARKS = [(), *[pytest.mark.nightly] * 4]


@keras.saving.register_keras_serializable(package="test_first_step")
class Counted(keras.layers.Layer):
    """Returns its inputs, and counts how often it is called for training."""

    calls = 0

    def call(self, inputs, training=False):
        type(self).calls += bool(training)
        return inputs


class CountedLoss(keras.losses.SparseCategoricalCrossentropy):
    """The cross-entropy, which counts how often it is called."""

    calls = 0

    def call(self, y_true, y_pred):
        self.calls += 1
        return super().call(y_true, y_pred)


@pytest.fixture(autouse=True)
def from_zero():
    Counted.calls = 0


def compiled(model, optimizer="momentum", metrics=("accuracy",)):
    loss = CountedLoss()
    model.compile(OPTIMIZERS[optimizer](), loss, metrics=list(metrics))
    return model, loss


def small_network(dtype="float32", blocks=1):
    keras.utils.set_random_seed(3)
    return networks.ResidualNetwork((8, 8, 1), 3, blocks=blocks, widths=(2,), dtype=dtype)


def stock_model(blocks=2):
    """A chain of dense blocks, of Keras' own layers and the one that counts."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8, 8, 1))
    state = keras.layers.Dense(4)(Counted()(keras.layers.Flatten()(inputs)))
    for _ in range(blocks):
        state = keras.layers.Add()([state, keras.layers.Dense(4, activation="relu")(state)])
    return keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(state))


def fit(model, epochs=2):
    # The last batch is smaller.
    return model.fit(IMAGES, LABELS, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history


def assert_same(model, other):
    mine, theirs = ([*one.weights, *one.optimizer.variables] for one in (model, other))
    assert len(theirs) > len(model.weights) > 0
    for one, another in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, another)))


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(name, marks=marks) for name, marks in zip(OPTIMIZERS, MARKS, strict=True)],
)
def test_networks_of_the_package_are_traced_once_with_the_numbers_of_keras(optimizer):
    dtype = "mixed_float16" if optimizer == "scaled" else "float32"
    # Coupled are at least two.
    blocks = 2 if optimizer == "coupled" else 1
    network, loss = compiled(small_network(dtype, blocks), optimizer)
    history = fit(network)
    assert loss.calls == 1
    twin = small_network(dtype, blocks)
    twin, loss = compiled(keras.Model(twin.inputs, twin.outputs), optimizer)
    assert fit(twin) == history
    # Otherwise nothing here has to be done any more.
    assert loss.calls == 2
    assert_same(network, twin)


@pytest.mark.system
def test_a_loaded_network_resumes_its_training(tmp_path):
    straight, _ = compiled(small_network(), "adam")
    fit(straight, epochs=3)
    network, _ = compiled(small_network(), "adam")
    fit(network)
    # Without the loss that counts, which no file holds.
    network.compile(network.optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    network.save(tmp_path / "network.keras")
    loaded = keras.saving.load_model(tmp_path / "network.keras")
    assert loaded.optimizer.iterations == 4
    loss = CountedLoss()
    loaded.compile(loaded.optimizer, loss, metrics=["accuracy"])
    fit(loaded, epochs=1)
    assert loss.calls == 1
    assert_same(loaded, straight)


def test_trainings_of_any_model_are_traced_once_with_the_numbers_of_keras(tmp_path):
    model, twin = stock_model(), stock_model()
    for each in (model, twin):
        each.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(16)
    Counted.calls = 0
    training.train(model, data, data, folder=tmp_path, epochs=2, metric="accuracy")
    assert Counted.calls == 1
    assert "compute_loss" not in vars(model)
    Counted.calls = 0
    twin.fit(data, epochs=2, shuffle=False, verbose=0)
    assert Counted.calls == 2
    assert_same(model, twin)


def test_weights_that_do_not_exist_yet():
    layers = [keras.layers.Dense(4), keras.layers.Dense(3, activation="softmax")]
    model, loss = compiled(keras.Sequential([keras.layers.Flatten(), *layers]))
    build_optimizer(model)
    assert not model.optimizer.built
    with traced_once(model):
        fit(model)
    assert loss.calls >= 1
    assert model.optimizer.iterations == 4


# Logical devices have to be there before TensorFlow starts, so this runs in a process of its own.
MIRRORED = """
import keras, numpy as np, tensorflow as tf
from tfresidual import networks
from tfresidual.machine.first_step import build_optimizer, traced_once

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
replicas = []

def loss(labels, outputs):
    # Keras also calls it outside of the replicas, when it prepares the model.
    if not tf.distribute.in_cross_replica_context():
        replicas.append(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)

images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype("float32")
labels = np.arange(32) % 3
trained = []
for before in (False, True):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        network = networks.ResidualNetwork((8, 8, 1), 3, blocks=1, widths=(2,))
        network.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    if before:
        build_optimizer(network)
        assert network.optimizer.built
    replicas.clear()
    with traced_once(network):
        network.fit(images, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
    assert len(replicas) == 2, replicas
    for variable in network.optimizer.variables:
        assert isinstance(variable.value, tf.distribute.DistributedValues), variable.path
    trained.append([np.asarray(weight) for weight in network.weights])
for one, other in zip(*trained, strict=True):
    np.testing.assert_array_equal(one, other)
print("traced once")
"""


@pytest.mark.system
@pytest.mark.nightly
def test_two_devices():
    result = processes.run(MIRRORED)
    assert result.stdout == "traced once\n", result.stderr
