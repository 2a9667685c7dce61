"""Probes and callbacks under a `tf.distribute.MirroredStrategy`, on two devices of one machine.

Logical devices have to be there before TensorFlow starts, so this runs in processes of its own.
"""

import processes
import pytest
import tensorflow as tf
from reference.random_network import random_network
from refusals import refused

import tfresidual as tfr

BEGIN = """
import contextlib, sys, keras, numpy as np, pandas as pd, tensorflow as tf
import tfresidual as tfr
from tfresidual import callbacks, networks, probes, routes
from tfresidual.routing import evaluate

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
alone = tf.distribute.get_strategy()
rng = np.random.default_rng(0)
images = rng.normal(size=(13, 8, 8, 1)).astype("float32")
# In a module: what a loss reads of its own is looked at for changes.
np.seen = set()

def loss(labels, outputs):
    if not tf.distribute.in_cross_replica_context():
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        np.seen.add(int(tf.get_static_value(place)))
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)

def network():
    keras.utils.set_random_seed(1)
    net = networks.ResidualNetwork((8, 8, 1), 5, blocks=2, widths=(4, 6))
    net.compile(keras.optimizers.SGD(1e-3), loss)
    return net

def alike(one, other):
    pd.testing.assert_frame_equal(one, other, rtol=1e-4, atol=1e-6)
"""

PROBES = """
def inputs_of(ids):
    return {"ids": ids, "valid": np.arange(6) < 2 + np.arange(len(ids))[:, None] % 5}

def sequences():
    ids = keras.Input((6,), dtype="int32", name="ids")
    valid = keras.Input((6,), dtype="bool", name="valid")
    state = keras.layers.Embedding(9, 4)(ids)
    for _ in range(2):
        attend = keras.layers.MultiHeadAttention(2, 2)
        state = keras.layers.add([state, attend(state, state, attention_mask=valid[:, None])])
    outputs = keras.layers.Dense(5, activation="softmax")(state)
    model = keras.Model({"ids": ids, "valid": valid}, outputs)
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model

with strategy.scope():
    net, model = network(), sequences()
labels = np.argmax(net.predict(images, verbose=0), axis=-1)
labels[:3] = (labels[:3] + 1) % 5
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
two, one = tfr.chain(net), tfr.chain(net, strategy=alone)
probes.block_metrics(two, data)
assert np.seen == {0, 1}
np.seen.clear()
evaluate(two, data, [routes.drop(two, (1, 1))], with_losses=True)
assert np.seen == {0, 1}
assert two.strategy is strategy and one.strategy is None and tfr.chain(one).strategy is None
for name in sys.argv[1:]:
    alike(getattr(probes, name)(one, data), getattr(probes, name)(two, data))
# Fewer images than devices.
few = images[:1], labels[:1]
alike(probes.block_metrics(one, few), probes.block_metrics(two, few))

ids = rng.integers(1, 9, (7, 6))
few = inputs_of(ids), rng.integers(0, 5, (7, 6))
two, one = (tfr.chain(model, padding="valid", strategy=s) for s in (strategy, alone))
for name in ("block_metrics", "drop_blocks"):
    alike(getattr(probes, name)(one, few), getattr(probes, name)(two, few))

net.save("net.keras")
tfr.export(net, "net")
expected = probes.block_metrics(tfr.chain(net), data)
for path in ("net", "net.keras"):
    chain = tfr.chain(path, strategy=strategy)
    assert chain.strategy is strategy
    assert isinstance(chain.weights[0].value, tf.distribute.DistributedValues) or path == "net"
    alike(probes.block_metrics(chain, data), expected)
print("alike")
"""

CALLBACKS = """
def plain_network():
    inputs = keras.Input((8, 8, 1))
    state = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(2):
        branch = keras.layers.Conv2D(4, 3, padding="same", activation="tanh")(state)
        state = keras.layers.add([state, branch])
    state = keras.layers.GlobalAveragePooling2D()(state)
    return keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(state))

weights, labels = rng.random(12).astype("float32"), rng.integers(0, 5, 13)

def steps(of, reduction, weights, measures=True):
    keras.utils.set_random_seed(1)
    # Users train within the scope, or outside of it.
    scope = contextlib.nullcontext() if of is alone else of.scope()
    with scope:
        net = plain_network()
        of_images = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
        net.compile(keras.optimizers.SGD(0.05), of_images)
    chosen = [callbacks.StepMetrics(images=8)] if measures else []
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    # As many images for both devices: Keras adds means of equal weight.
    given = images[:12], labels[:12]
    again = contextlib.nullcontext() if weights is None or of is alone else of.scope()
    with again:
        history = net.fit(*given, sample_weight=weights, callbacks=chosen, **options).history
    return history, net.get_weights()

for reduction, weighted in (("sum_over_batch_size", None), ("sum", weights)):
    alone_, _ = steps(alone, reduction, weighted)
    found, after = steps(strategy, reduction, weighted)
    _, unmeasured = steps(strategy, reduction, weighted, measures=False)
    for key, values in alone_.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, err_msg=key)
    for one, other in zip(after, unmeasured, strict=True):
        np.testing.assert_array_equal(one, other)

with strategy.scope():
    net = network()
labels = np.argmax(net.predict(images, verbose=0), axis=-1)
labels[:3] = (labels[:3] + 1) % 5
kinds = (callbacks.Attribution, callbacks.BlockMetrics, callbacks.ConvergenceIndices,
         callbacks.DropBlocks, callbacks.Lens, callbacks.Perturbation, callbacks.Readout,
         callbacks.SignalPropagation)
chosen = [kind((images, labels)) for kind in kinds]
chosen += [callbacks.Borderline((images, labels), probability=0.3), callbacks.StepMetrics()]
net.fit(images, labels, batch_size=8, epochs=2, callbacks=chosen, verbose=0)
for callback in chosen[:-1]:
    assert callback.frames, callback
for name in ("block_metrics", "drop_blocks"):
    of_callback = next(one.frames[name] for one in chosen[:-1] if name in one.frames)
    expected = getattr(probes, name)(tfr.chain(net, strategy=alone), (images, labels))
    alike(of_callback, expected[of_callback.columns])
averages = [weight for weight in net.weights if "moving" in weight.path]
copies = [strategy.experimental_local_results(average.value) for average in averages]
assert all((first.numpy() != second.numpy()).any() for first, second in copies)
print("alike")
"""


def check(program, folder, *arguments):
    result = processes.run(BEGIN + program, *arguments, cwd=folder)
    assert result.stdout == "alike\n", result.stderr


def test_probes(tmp_path):
    check(PROBES, tmp_path, "readout")


@pytest.mark.nightly
def test_further_probes(tmp_path):
    names = (
        "attribution convergence_indices drop_blocks first_order lens patching perturbation "
        "repeat_last_block signal_propagation"
    )
    check(PROBES, tmp_path, *names.split())


@pytest.mark.nightly
def test_callbacks(tmp_path):
    check(CALLBACKS, tmp_path)


def test_other_strategies_are_refused():
    several = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"])
    assert tfr.chain(random_network(), strategy=several).strategy is None
    with refused("strategy"):
        tfr.chain(random_network(), strategy="mirrored")
