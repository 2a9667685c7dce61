"""Arguments that probes refuse: the error names them.

test_contract.py has the data that no probe takes.
"""

import dataclasses
import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import sequences
from reference.decoder import Decoder
from reference.encoder import Encoder
from reference.inverse_problem import points
from reference.plane import anchored_chain, at, chain_of, plane_chain
from reference.random_network import random_batch, random_network
from reference.route_probes import counted, counting_chain
from refusals import refused

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.routing import routes

pytestmark = pytest.mark.eager

NAN, INFINITE = float("nan"), float("inf")
HALF = plane_chain(lambda h: h / 2)
IMAGES = np.zeros((2, 1, 1, 2), "float32")
PLACE = {"stage": 1, "block": 0}


@functools.cache
def net(**settings):
    return random_network(**{"blocks": 1, "widths": (4,)} | settings)


def chain_of_values():
    """A chain whose outputs are no classes."""
    return dataclasses.replace(tfr.chain(net()), outputs="values")


# By the name of a probe: what it is given, and for each argument values that are refused.
OF_PLANE = {"chain": HALF, "data": at(1, 2)}
OF_NET = {"chain": lambda: net(), "data": lambda: random_batch(net())}
VALUES = {
    "convergence_indices": (
        OF_PLANE,
        {
            "chance": ["Uniform", 0, 1.01, NAN],
            "reading": ["area"],
            "times": [0],
        },
    ),
    "borderline": (
        OF_PLANE,
        {
            "blocks": [0],
            "probability": [0, 1.01],
            "scale": [INFINITE],
            "groups": ["next"],
        },
    ),
    "repeat_last_block": (
        OF_PLANE,
        {
            **{"blocks": [0], "times": [0], "scale": [NAN]},
            "stages": [[0], [2], [], 1],
        },
    ),
    "fixed_point": (OF_PLANE, {"times": [0]}),
    "shuffle_blocks": (
        {"chain": plane_chain(lambda h: h / 2, lambda h: h), "data": at(1, 2)},
        {"swaps": [(0,), (1, -1), (), 3]},
    ),
    "block_metrics": (OF_NET, {"per_position": [1, True]}),
    "computational_distance": (OF_NET, {"per_position": [True]}),
    "drop_blocks": (OF_NET, {"fill": ["median"]}),
    "block_importance": (
        OF_NET,
        {
            "by": ["cosine", [], ["loss", "taylor"]],
            "run": [0],
            "per_position": [True, 1],
            "chain": [chain_of_values],
        },
    ),
    "readout": (OF_PLANE, {"memory_limit": [0, 1e-6], "data": [{}]}),
    "first_order": (OF_NET, {"memory_limit": [0], "chain": [chain_of_values]}),
    "lens": (
        OF_NET,
        {
            "per_position": [True],
            "normalize": ["last", "final"],
            "data": [lambda: (random_batch(net())[0], np.full(3, 5))],
            "chain": [chain_of_values],
        },
    ),
    "attribution": (
        OF_NET,
        {
            "per_position": [True],
            # 5 is no class; the last two are not told apart, and of another probe.
            "target": ["logit", -1, True, 5, (0, 5), ("label", "label"), ("label", "source label")],
            "chain": [chain_of_values],
        },
    ),
    "patching": (
        OF_NET,
        {
            "what": ["branch"],
            "target": ["logit", 5, ("label", 5), ("label", "margin"), (1, 1), ("label", 1, 2)],
            "metric": ["loss"],
            "by": ["attribution"],
            "checked": [-1, 1.5],
            "seed": [-1],
            "positions": [0, "all", [-1], []],  # 0 is none of states with four axes
            "source": [
                lambda: tuple(part[:2] for part in random_batch(net())),
                lambda: random_batch(net(), images=6),
                lambda: (random_batch(net())[0][:, :4], random_batch(net())[1]),
                lambda: {"test": random_batch(net())},
            ],
            "chain": [chain_of_values],
        },
    ),
    "metric_product": (
        {"chain": HALF, "images": IMAGES, "vectors": IMAGES} | PLACE,
        {
            "stage": [0, 2],
            "block": [1, -1],
            "vectors": [IMAGES[..., :1]],
        },
    ),
    "metric_eigenvalues": (
        OF_PLANE | PLACE,
        {"count": [3], "data": [{}]},
    ),
    "line_between": (
        {"chain": HALF, "first_images": IMAGES, "second_images": IMAGES},
        {
            "block": [3],
            "chain": [
                lambda: sequences.sequence_chain("decoder"),
            ],
        },
    ),
    "effective_parameters": (
        # The longer stage has three blocks.
        {"chain": lambda: net(blocks=(2, 3), widths=(4, 8)), "first_block": 2},
        {"first_block": [-1, 3], "chain": [HALF]},
    ),
    "trajectories": (
        {
            "chain": lambda: networks.error_correcting_network(steps=2),
            "inputs": points(),
        },
        {
            "routes": [
                lambda: routes.drop(inverse_chain(steps=2), (1, 0)),
                lambda: [routes.drop(inverse_chain(steps=3), (1, 0))],
            ],
        },
    ),
}


def inverse_chain(steps):
    return probes.inverse_problem_chain(networks.error_correcting_network(steps=steps))


def made(value):
    """The value itself, or what the function that makes it returns."""
    return value() if isinstance(value, types.FunctionType) else value


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    given, refusals = VALUES[name]
    given = {argument: made(value) for argument, value in given.items()}
    for argument, values in refusals.items():
        for value in map(made, values):
            with refused(argument):
                getattr(probes, name)(**given | {argument: value})


# Arguments that do not fit together, and chains that a probe has nothing to measure in.
def encoders():
    inputs = keras.Input((5, 4))
    return keras.Model(inputs, keras.layers.Dense(2)(Encoder()(Encoder()(inputs))[:, 0]))


COUNTING = counting_chain(lambda n: n[:, 0] * 0, 2, changes=[(1, 1)])
CALLS = {
    "blocks that are numbered in two ways": (
        lambda: probes.block_importance(encoders(), at(1, 2)),
        "chain",
    ),
    "readout of no chain": (lambda: probes.readout(3, at(1, 2)), "source"),
    "weights of no chain": (lambda: probes.weight_deviations(3), "source"),
    "trajectories of no chain": (lambda: probes.trajectories(None, points()), "source"),
    "unbounded": (lambda: probes.lipschitz(net()), "chain"),
    "nothing to repeat": (lambda: probes.repeat_last_block(COUNTING, counted([0, 1])), "chain"),
    "no fixed point": (lambda: probes.fixed_point(COUNTING, counted([0, 1])), "chain"),
    "too few to repeat": (lambda: probes.repeat_last_block(HALF, at(1, 2), blocks=3), "chain"),
    "too few in a route": (lambda: routes.repeat_last_block(HALF, 1, 1, blocks=3), "stage"),
    "nothing to shuffle": (lambda: probes.shuffle_blocks(COUNTING, counted([0, 1])), "chain"),
    "next of one block": (
        lambda: probes.borderline(HALF, at(1, 2), blocks=1, groups="next block"),
        "blocks",
    ),
    "next of the only block": (
        lambda: probes.borderline(HALF, at(1, 2), groups="next block"),
        "groups",
    ),
    "resampled alone": (lambda: probes.drop_blocks(HALF, at(1, 2), fill="resample"), "fill"),
    "no branch": (lambda: probes.drop_blocks(HALF, at(1, 2), keep_norm=True), "keep_norm"),
    "an anchor": (
        lambda: probes.drop_blocks(anchored_chain(0.5, 2), at(1, 2), fill="mean"),
        "keep_norm",
    ),
    "a divergence to a label": (
        lambda: probes.patching(net(), random_batch(net()), target=1, metric="kl"),
        "target",
    ),
    "a position too many": (
        lambda: probes.patching(Decoder().chain(), Decoder().batch(), positions=7),
        "positions",
    ),
    "one label for all positions": (
        lambda: probes.lens(Decoder().chain(), (Decoder().batch()[0], np.zeros(3, int))),
        "data",
    ),
    "a label too high": (
        lambda: probes.lens(Decoder().chain(), (Decoder().batch()[0], Decoder().batch()[1] + 5)),
        "data",
    ),
    "no gradient": (
        lambda: probes.attribution(
            chain_of(*HALF.blocks, head=lambda h: tf.stop_gradient(h[:, 0, 0])), at(1, 2)
        ),
        "chain",
    ),
    **{
        f"a probe of your own, values {shape}": (
            lambda shape=shape: probes.measure(
                HALF, str(shape), lambda images, labels: {"one": tf.ones(shape)}, at(1, 2)
            ),
            "function",
        )
        for shape in ((1,), (1, 2), (2, 1), (1, 1, 1))
    },
}


@pytest.mark.parametrize(("call", "name"), CALLS.values(), ids=CALLS)
def test_what_does_not_fit(call, name):
    with refused(name):
        call()


def test_outputs_of_a_regression_are_no_classes():
    net = random_network(blocks=1, widths=(4,), classifier_activation=None)
    net.compile("sgd", "mse")
    assert tfr.chain(net).outputs == "values"
    with refused("chain"):
        probes.first_order(net, (np.ones((2, 8, 8, 3), "float32"), np.ones((2, 5), "float32")))
