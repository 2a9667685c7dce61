"""Bounds of Lipschitz constants against the singular values of explicit matrices, and by hand."""

import keras
import numpy as np
import pytest
from reference import numpy_network
from reference.random_network import (
    CONSTRAINED_CASES,
    random_batch,
    random_network,
    sample,
)

import tfresidual as tfr
from tfresidual import layers, probes
from tfresidual.probes.lipschitz import METRICS

BOUNDED = [case for case in CONSTRAINED_CASES if case["lipschitz"] is not None]


@pytest.mark.parametrize("case", sample(BOUNDED[::5], every=4, others=pytest.mark.nightly))
def test_equals_singular_values(case):
    net = random_network(seed=4, widths=(4, 8), **case)
    frame = probes.lipschitz(net)
    assert frame.columns.tolist() == ["stage", "block", "lipschitz", *METRICS]
    config, weights = net.get_config(), numpy_network.weights_of(net)
    changes = numpy_network.NumpyNetwork(config, weights).changes
    places, exact = [], []
    height, width, _ = net.input_shape[1:]
    for stage, grid in ((1, (height, width)), (2, (height // 2, width // 2))):
        kept = [block for block in range(3) if block not in changes[stage - 1]]
        for block in kept:
            places.append((stage, block))
            unit = weights_of_block(config, weights, stage, block, kept[0])
            exact.append(numpy_network.lipschitz_bound(config, unit, grid))
    assert list(zip(frame["stage"], frame["block"], strict=True)) == places
    exact = np.array(exact)
    np.testing.assert_allclose(frame["estimate"], exact, rtol=1e-3)
    assert (frame["estimate"] <= exact * (1 + 1e-5)).all()
    assert (frame["certified"] >= exact).all()
    assert (frame["certified"] <= 10 * exact).all()
    assert frame["residual"].between(0, 1e-3).all()
    np.testing.assert_allclose(
        frame["divisor"], np.maximum(frame["estimate"] / case["lipschitz"], 1), rtol=1e-6
    )


def weights_of_block(config, weights, stage, index, first):
    """The weights of a block, of which the first that keeps the shape may be the one shared."""
    prefix, leader = f"stage{stage}_block{index}", None
    if config["share_from"] is not None:
        shared = max(first, config["share_from"])
        leader = f"stage{stage}_block{shared}" if index > shared else None
    own = numpy_network.OWN[config["batch_norm"]] if leader else ()
    return numpy_network.Weights(weights, prefix, leader, own)


def test_branches_keep_their_bounds():
    net = random_network(blocks=2, widths=(4,), lipschitz=0.7)
    frame = probes.lipschitz(net)
    chain, rng = tfr.chain(net), np.random.default_rng(3)
    state = np.asarray(chain.stem(random_batch(net)[0]))
    for block, row in zip(chain.blocks, frame.to_dict("records"), strict=True):
        assert row["divisor"] > 1
        for size in (1e-2, 1.0):
            other = (state + size * rng.normal(size=state.shape)).astype("float32")
            branches = [np.asarray(block(h)) - h for h in (state, other)]
            quotients = np.linalg.norm(
                (branches[0] - branches[1]).reshape(3, -1), axis=1
            ) / np.linalg.norm((state - other).reshape(3, -1), axis=1)
            assert (quotients <= 0.7 * (1 + 1e-4)).all()
            assert (quotients <= row["certified"] / row["divisor"]).all()


def conv(kind=None):
    layer = keras.layers.Conv2D(3, 3, padding="same")
    return layer if kind is None else kind(layer)


def model_of(*branches):
    state = inputs = keras.Input((6, 5, 3))
    for branch in branches:
        added = state
        for layer in branch:
            added = layer(added)
        state = keras.layers.Add()([state, added])
    outputs = keras.layers.Dense(2, "softmax")(keras.layers.GlobalAveragePooling2D()(state))
    return keras.Model(inputs, outputs, name="model")


def test_branches_of_bounded_layers_in_any_model():
    relu, wrapped = keras.layers.ReLU, layers.SpectralNormalization
    parts = layers.Bounded([layers.BatchNormalization(), relu(), conv(), conv()], 0.6)
    norms = [wrapped(conv(), bound) for bound in (0.5, 0.01)]
    model = model_of(
        [parts], [relu(), norms[0], keras.layers.LeakyReLU(2.0), norms[1]], [conv(wrapped), conv()]
    )
    chain = tfr.chain(model)
    frame = probes.lipschitz(chain)
    assert frame["block"].tolist() == [0, 1]
    np.testing.assert_allclose(frame["lipschitz"], [0.6, 2 * 0.5 * 0.01])
    reports = [layer.lipschitz_bound() for layer in (parts, *norms)]
    for name, factor in (("estimate", 2), ("certified", 2), ("divisor", 1)):
        one, first, second = (report[name] for report in reports)
        np.testing.assert_allclose(frame[name], [one, factor * first * second], rtol=1e-6)
    assert (frame["certified"] / frame["divisor"] < 1.3 * frame["lipschitz"]).all()
    norms[0].layer.kernel.assign(3 * norms[0].layer.kernel)
    again = probes.lipschitz(chain)
    np.testing.assert_allclose(again["estimate"] / frame["estimate"], [1, 3], rtol=1e-5)
