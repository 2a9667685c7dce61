"""Networks, and chains by hand, whose SavedModels the tests compare with them."""

import keras
import numpy as np
import pytest
from reference.chains_with_context import (
    chain_per_position,
    data_per_position,
    masked_chain,
    masked_data,
)
from reference.random_network import random_network
from reference.small_networks import BFLOAT16, functional_network

import tfresidual as tfr
from tfresidual import training

IMAGES, CLASSES = 4, 5
# Networks whose first stage has a block that keeps the shape, and whose last has another one.
TWO_STAGES = {"blocks": (1, 2), "widths": (2, 3), "transition": "convolution"}
# Its second stage is one block, which changes the shape.
ORDINARY = {"blocks": (2, 1), "widths": (2, 3)}
SEVERAL = TWO_STAGES | {"classifier_activation": "sigmoid"}
NETWORKS = {
    "ordinary": ORDINARY,
    "shared": TWO_STAGES | {"share_from": 0, "batch_norm": "unshared"},
    "coupled": TWO_STAGES | {"recurrent_initialization": True},
    "convergent": TWO_STAGES | {"lipschitz": 0.95, "anchor": "input"},
    "bounded": {"blocks": (3,), "widths": (3,), "lipschitz": 0.95, "anchor": "previous"},
    "several labels": SEVERAL | {"share_from": 0},
    "any size": ORDINARY | {"input_shape": (None, None, 3)},
}
WITH_CONTEXT = {
    "masked": (masked_chain, masked_data),
    "per position": (chain_per_position, data_per_position),
}
KINDS = [(kind, "float32") for kind in (*NETWORKS, "functional", *WITH_CONTEXT)]
KINDS += [(kind, BFLOAT16) for kind in NETWORKS if kind != "any size"]


def params(*system):
    """All kinds as parameters: those in float32 with these names are for every system test."""
    marks = {(kind, "float32"): pytest.mark.system for kind in system}
    return [pytest.param(kind, marks=marks.get(kind, pytest.mark.nightly)) for kind in KINDS]


def data_of(kind, size=8, positions=5):
    """Images and labels."""
    if kind in WITH_CONTEXT:
        return WITH_CONTEXT[kind][1](images=IMAGES, positions=positions)
    images = np.random.default_rng(1).normal(size=(IMAGES, size, 8, 3)).astype("float32")
    rng = np.random.default_rng(2)
    if kind == "several labels":
        return images, rng.integers(0, 2, (IMAGES, CLASSES)).astype("float32")
    return images, rng.integers(0, CLASSES, IMAGES)


def network_of(kind, dtype):
    """A network, after a step of training where it is one that is coupled; or a chain."""
    keras.utils.set_random_seed(3)
    if kind in WITH_CONTEXT:
        return WITH_CONTEXT[kind][0]()
    if kind == "functional":
        return functional_network(dtype)
    if kind != "coupled":
        return random_network(**NETWORKS[kind], dtype=dtype)
    # Its blocks begin with equal weights, and a step that is mixed keeps them near each other.
    net = tfr.networks.ResidualNetwork((8, 8, 3), CLASSES, **NETWORKS[kind], dtype=dtype)
    optimizer = training.GradientCoupling(keras.optimizers.SGD(0.1), coupling=0.7)
    net.compile(optimizer, "sparse_categorical_crossentropy")
    net.fit(*data_of(kind), verbose=0)
    return net
