"""Units of one kind share compiled functions; the numbers are those of their own layers."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfresidual as tfr
from tfresidual import probes
from tfresidual.layers import ResidualUnit, Shortcut
from tfresidual.networks import ResidualNetwork

SHAPE = (8, 8, 3)


def network(**options):
    """A small network with statistics and weights that are all different."""
    keras.utils.set_random_seed(0)
    options = {"blocks": (3, 2), "widths": (4, 8)} | options
    found = ResidualNetwork(SHAPE, 4, **options)
    found.compile("sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    rng = np.random.default_rng(0)
    for variable in found.variables:
        if "seed" not in variable.path and "known" not in variable.path:
            noise = rng.uniform(0.5, 1.5, variable.shape)
            variable.assign(variable * noise + 0.01 * noise)
    return found


def images(count=5):
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, *SHAPE)).astype("float32"), rng.integers(0, 4, count)


def states_of(chain, data):
    """States, and gradients at the first state, in a graph."""

    @tf.function(autograph=False)
    def walk(batch):
        with tf.GradientTape() as tape:
            state = chain.stem(batch)
            tape.watch(state)
            pairs, last = chain.walk(state)
            # The head's own gradient almost vanishes where it is certain.
            total = sum(
                tf.reduce_sum(tf.cast(one, tf.float64)) for one in (last, chain.head(last) ** 2)
            )
        return [after for _, after in pairs], tape.gradient(total, state)

    return walk(data)


def own_calls(chain):
    """The chain, with every block computed by the layers of its own unit."""

    def plain(block):
        unit = block.apply._unit
        apply = lambda *states: unit(*states, training=False)  # noqa: E731
        return dataclasses.replace(block, apply=apply, branch=None, join=None)

    stages = tuple(
        dataclasses.replace(stage, blocks=tuple(map(plain, stage.blocks))) for stage in chain.stages
    )
    return dataclasses.replace(chain, stages=stages, reference=None, compiled={}, called={})


SYSTEM, NIGHTLY = pytest.mark.system, pytest.mark.nightly
OPTIONS = [
    ({}, ()),
    ({"shortcut": "exclusive_gate"}, SYSTEM),
    ({"share_from": 1, "batch_norm": "unshared_statistics"}, SYSTEM),
    ({"shortcut": "dropout", "anchor": "input"}, SYSTEM),
    ({"dtype": "mixed_bfloat16"}, SYSTEM),
    ({"layout": "original"}, NIGHTLY),
    ({"layout": "relu_only_preactivation", "transition": "downsampling_block"}, NIGHTLY),
    ({"bottleneck": True}, NIGHTLY),
    ({"shortcut": "conv1x1"}, NIGHTLY),
    ({"share_from": 1, "batch_norm": "unshared"}, NIGHTLY),
    ({"dtype": "float64"}, NIGHTLY),
]


@pytest.mark.parametrize(
    "options", [pytest.param(options, id=str(options), marks=marks) for options, marks in OPTIONS]
)
def test_the_numbers_are_those_of_the_layers(options):
    chain = tfr.chain(network(**options))
    states, gradient = states_of(chain, images()[0])
    assert chain.called
    expected, expected_gradient = states_of(own_calls(chain), images()[0])
    for state, other in zip([*states, gradient], [*expected, expected_gradient], strict=True):
        state, other = (tf.cast(one, tf.float64).numpy() for one in (state, other))
        assert np.linalg.norm(other) > 0
        if options.get("dtype") == "mixed_bfloat16":
            # Eight bits, rounded after every layer: on a processor that computes bfloat16
            # itself, which layers are fused (and not rounded between) differs with the graph.
            # Against float32, either gradient is 3 to 5 % off.
            assert np.linalg.norm(state - other) < 2**-3 * np.linalg.norm(other)
        else:
            np.testing.assert_allclose(state, other, rtol=1e-5, atol=np.abs(other).max() * 1e-6)


def test_blocks_of_one_kind_have_one_graph():
    chain = tfr.chain(network(blocks=(3, 3)))
    probes.drop_blocks(chain, images())
    # The first stage has units of one kind, the second also one that changes the shape.
    assert len(chain.called) == 3
    probes.block_metrics(chain, images())
    assert len(chain.called) == 3


@pytest.mark.system
def test_the_numbers_follow_the_weights():
    net = network()
    chain = tfr.chain(net)
    before = probes.drop_blocks(chain, images(64))
    states, _ = states_of(chain, images()[0])
    kernel = net.layers[-1].kernel if hasattr(net.layers[-1], "kernel") else net.weights[-2]
    for variable in (kernel, chain.blocks[1].weights["convolution1/kernel"]):
        variable.assign(variable * 3.0 - 0.1)
    after = probes.drop_blocks(chain, images(64))
    assert not before.equals(after)
    again = probes.drop_blocks(tfr.chain(net), images(64))
    assert after.equals(again)
    changed, _ = states_of(chain, images()[0])
    np.testing.assert_array_equal(states[0], changed[0])
    assert np.abs(states[1] - changed[1]).max() > 0.01


@keras.saving.register_keras_serializable(package="tests")
class _Counting(Shortcut):
    """A shortcut that depends on something that is in no setting."""

    factor = 1.0

    def call(self, state, branch, training=None):
        return state + self.factor * branch


@pytest.mark.parametrize(
    ("options", "count"),
    [
        # Only the unit that changes the shape is not bounded.
        ({"lipschitz": 0.9}, 1),
        ({"shortcut": _Counting()}, 0),
    ],
)
def test_units_that_compute_with_more_than_weights_share_nothing(options, count):
    chain = tfr.chain(network(blocks=(1, 2), **options))
    states_of(chain, images()[0])
    assert len(chain.called) == count


def test_a_unit_with_other_settings_is_of_another_kind():
    inputs = keras.Input(SHAPE)
    units = [ResidualUnit(3) for _ in range(3)]
    state = inputs
    for unit in units:
        state = unit(state)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(state))
    model.compile("sgd", loss="mse")
    units[1].convolution2.activation = keras.activations.tanh
    units[2].normalization1.epsilon = 0.1
    chain = tfr.chain(model)
    states, _ = states_of(chain, images()[0])
    assert len(chain.called) == 3
    state = chain.stem(images()[0])
    for unit, found in zip(units, states, strict=True):
        state = unit(state, training=False)
        np.testing.assert_allclose(found, state, rtol=1e-5, atol=1e-5)
