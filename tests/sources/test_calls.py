"""Units of one kind share compiled functions; the numbers are those of their own layers."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual import probes
from tfresidual.layers import Shortcut


def network(**options):
    return random_network(**{"blocks": (3, 2)} | options)


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
    net = network(**options)
    chain, (images, _) = tfr.chain(net), random_batch(net, images=5)
    states, gradient = states_of(chain, images)
    assert chain.called
    expected, expected_gradient = states_of(own_calls(chain), images)
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
    net = network(blocks=(3, 3))
    chain, data = tfr.chain(net), random_batch(net)
    for probe in (probes.drop_blocks, probes.block_metrics):
        probe(chain, data)
        # The first stage has units of one kind, the second also one that changes the shape.
        assert len(chain.called) == 3


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
    net = network(blocks=(1, 2), **options)
    chain = tfr.chain(net)
    states_of(chain, random_batch(net)[0])
    assert len(chain.called) == count
