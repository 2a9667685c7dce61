"""Batch normalization per application: by hand, against separate layers, and what is refused.

How `tfresidual.chain` sees such layers is in sources/test_repeated_blocks.py.
"""

import importlib.util
import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from keras import ops
from reference import repeated_ways
from reference.repeated_ways import APPLICATIONS, FEATURES, WAYS, Block, Cell, Subclassed
from refusals import refused

from tfresidual.layers import (
    BatchNormalization,
    Repeated,
    UnsharedBatchNormalization,
    forward_pass,
)

PARTS = ("statistics", "gamma", "beta")
SUBSETS = [share for size in range(4) for share in itertools.combinations(PARTS, size)]


# The other ways take longer.
EVERY_RUN = ("functional, the layers themselves", "functional, Repeated")


def block_of(dtype=None, times=None, **kwargs):
    """A layer, h + normalization(dense(h)) applied several times, and the weights by name."""
    keras.utils.set_random_seed(0)
    layer = UnsharedBatchNormalization(APPLICATIONS, dtype=dtype, **kwargs)
    dense = keras.layers.Dense(FEATURES, dtype=dtype)
    repeated = Repeated(Block(dense, layer, dtype=dtype), times or APPLICATIONS, dtype=dtype)
    repeated.build((None, FEATURES))
    rng = np.random.default_rng(1)
    for variable in repeated.variables:
        variable.assign(rng.uniform(0.2, 1.2, variable.shape))
    return repeated, dense, layer


def by_hand(states, kernel, bias, weights, share, times, training, momentum=0.99, epsilon=1e-3):
    """One pass in float64; the moving statistics among the weights are updated in place."""

    def place(part, index):
        return 0 if part in share else min(index, APPLICATIONS - 1)

    for index in range(times):
        features = states @ kernel + bias
        moving = weights[place("statistics", index)]
        mean, variance = moving["moving_mean"], moving["moving_variance"]
        if training:
            mean = features.sum(0) / len(features)
            variance = ((features - mean) ** 2).sum(0) / len(features)
            for name, value in (("moving_mean", mean), ("moving_variance", variance)):
                moving[name] = momentum * moving[name] + (1 - momentum) * value
        gamma, beta = (weights[place(part, index)][part] for part in ("gamma", "beta"))
        states = states + gamma * (features - mean) / np.sqrt(variance + epsilon) + beta
    return states


@pytest.mark.parametrize("share", SUBSETS, ids="-".join)
def test_every_switch_by_hand(share):
    times = APPLICATIONS + 2
    block, dense, layer = block_of("float64", times, share=share)
    names = ("gamma", "beta", "moving_mean", "moving_variance")
    weights = [
        {name: np.asarray(getattr(one, name)) for name in names} for one in layer.normalizations
    ]
    own = {"statistics": 1, "gamma": 1, "beta": 1}
    own |= {part: APPLICATIONS for part in PARTS if part not in share}
    assert len(layer.trainable_variables) == own["gamma"] + own["beta"]
    assert len(layer.non_trainable_variables) == 2 * own["statistics"]
    kernel, bias = map(np.asarray, dense.get_weights())
    for seed, training in enumerate((False, True, True, False)):
        states = np.random.default_rng(seed).normal(size=(8, FEATURES))
        expected = by_hand(states, kernel, bias, weights, share, times, training)
        np.testing.assert_allclose(block(states, training=training), expected, rtol=1e-9)
    for one, known in zip(layer.normalizations, weights, strict=True):
        first = weights[0]
        for name in names:
            part = name if name in PARTS else "statistics"
            value = (first if part in share else known)[name]
            np.testing.assert_allclose(getattr(one, name), value, rtol=1e-9)


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[] if way in EVERY_RUN else [pytest.mark.nightly]) for way in WAYS],
)
def test_every_way_is_that_of_separate_layers(way):
    repeated_ways.assert_equal(way)


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("jax", marks=pytest.mark.nightly),
        pytest.param("torch", marks=pytest.mark.nightly),
    ],
)
def test_other_backends(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = subprocess.run(
        # -P: the installed package, not the files in the folder this runs in.
        [sys.executable, "-P", repeated_ways.__file__],
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    left_out = repeated_ways.NOT_TRAINED_ON_JAX if backend == "jax" else ()
    assert [way for way in WAYS if way not in left_out] == [
        line for line in done.stdout.splitlines() if line in WAYS
    ]


REPLICAS = """
import sys
import tensorflow as tf
cpu, *_ = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, 2 * [tf.config.LogicalDeviceConfiguration()])
sys.path.append(sys.argv[1])
import repeated_ways
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    for way in sys.argv[2:]:
        repeated_ways.assert_equal(way)
"""


@pytest.mark.nightly
def test_several_replicas():
    ways = ("functional, Repeated", "subclassed, counted", "subclassed, told")
    done = processes.run(REPLICAS, os.path.dirname(repeated_ways.__file__), *ways)
    assert done.returncode == 0, done.stderr[-3000:]


# On the fused kernel


def images_model(make, dtype=None):
    """A model of 3 applications with convolutions, and the normalizations in it."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 4))
    convolution = keras.layers.Conv2D(4, 3, padding="same", dtype=dtype)
    normalizations = make(dtype)
    state = inputs
    for index, normalization in enumerate(normalizations):
        which = {} if isinstance(normalization, BatchNormalization) else {"application": index}
        made = normalization(convolution(state), **which)
        state = keras.layers.Add(dtype=dtype)([state, made])
    return keras.Model(inputs, state), normalizations


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_images_as_with_separate_layers_on_the_fused_kernel(dtype):
    model, (layer, *_) = images_model(
        lambda dtype: 3 * [UnsharedBatchNormalization(3, dtype=dtype)], dtype
    )
    other, layers = images_model(
        lambda dtype: [BatchNormalization(dtype=dtype) for _ in "123"], dtype
    )
    for mine, theirs in zip(layer.normalizations, layers, strict=True):
        assert (mine.compute_dtype, mine.variable_dtype) == (theirs.compute_dtype, "float32")
        mine.set_weights(theirs.get_weights())
    other.layers[1].set_weights(model.layers[1].get_weights())
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 4)).astype(layer.compute_dtype)
    for training in (True, True, False):
        np.testing.assert_array_equal(
            np.asarray(tf.cast(model(images, training=training), "float32")),
            np.asarray(tf.cast(other(images, training=training), "float32")),
        )
    for mine, theirs in zip(layer.normalizations, layers, strict=True):
        for one, two in zip(mine.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)
    graph = tf.function(model).get_concrete_function(images).graph.as_graph_def()
    nodes = [node for function in graph.library.function for node in function.node_def]
    assert any("FusedBatchNorm" in node.op for node in [*graph.node, *nodes])


# What is counted


def reopened(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def cloned(model, folder):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def of_config(model, folder):
    model.save_weights(folder / "model.weights.h5")
    copy = type(model).from_config(model.get_config())
    copy.load_weights(folder / "model.weights.h5")
    return copy


FUNCTIONAL = ("functional, the layers themselves", "functional, Repeated")
AS_COPIES = [(way, copied) for way in FUNCTIONAL for copied in (reopened, cloned, of_config)]


@pytest.mark.parametrize(("way", "copied"), AS_COPIES)
def test_copies_compute_the_same(way, copied, tmp_path):
    layer = UnsharedBatchNormalization(APPLICATIONS)
    dense = keras.layers.Dense(FEATURES)
    layer.build((None, FEATURES))
    repeated_ways.build(dense, layer.normalizations)
    model, (inputs, _) = WAYS[way][0](dense, layer), repeated_ways.data()
    expected = model(inputs)
    np.testing.assert_allclose(copied(model, tmp_path)(inputs), expected, rtol=1e-6)


@pytest.mark.parametrize("is_repeated", [True, False])
def test_two_passes_in_one_call(is_repeated):
    """Two images of a pair pass one network, and each of them is counted from 0."""
    block, dense, layer = block_of(times=repeated_ways.MORE)
    network = block
    if not is_repeated:
        network = Subclassed(Block(dense, layer), repeated_ways.counted)
    model = Subclassed(network, lambda network, pair: [network(one) for one in pair])
    inputs, _ = repeated_ways.data()
    for output in model([inputs, inputs]):
        np.testing.assert_array_equal(output, block(inputs))


def test_an_application_that_only_the_graph_knows():
    _, _, layer = block_of()
    states = np.random.default_rng(0).normal(size=(8, FEATURES)).astype("float32")
    run = tf.function(lambda states, index: layer(states, application=index, training=True))
    before = [one.get_weights() for one in layer.normalizations]
    assert np.isnan(run(states, tf.constant(-1))).all()
    run(states, tf.constant(APPLICATIONS + 5, "int64"))
    *others, last = (one.get_weights() for one in layer.normalizations)
    for weights, known in zip(others, before[:-1], strict=True):
        np.testing.assert_array_equal(weights, known)
    assert np.any(last[2] != before[-1][2])


def in_scan(block, state):
    with forward_pass():
        return ops.scan(lambda state, _: (block(state), None), state, length=2)[0]


def told_once(block, state):
    with forward_pass():
        return block(block(state), application=1)


def not_counted(block, state):
    return block(block(state))


REFUSED = {
    "a layer alone": lambda dense, layer: layer,
    "RNN, not counted": lambda *both: repeated_ways.recurrent(Cell(*both), False),
} | {
    apply.__name__: lambda *both, apply=apply: Subclassed(Block(*both), apply)
    for apply in (in_scan, told_once, not_counted)
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_known_is_refused(make):
    _, dense, layer = block_of()
    model, (inputs, _) = make(dense, layer), repeated_ways.data()
    with refused("application"):
        model(inputs)
    # The next call is not changed by it.
    assert np.isfinite(layer(inputs, application=0)).all()


@pytest.mark.parametrize(
    "application",
    [-1, 1.0, True, "1", np.zeros(2, int), tf.constant(0.0), tf.constant(-1)],
    ids=repr,
)
def test_bad_applications(application):
    _, _, layer = block_of()
    with refused("application"):
        layer(np.ones((2, FEATURES), "float32"), application=application)
