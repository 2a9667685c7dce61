"""The networks of the inverse problem, and a plain NumPy version."""

import numpy as np

from tfresidual import networks

KINDS = ("feedforward", "residual", "recurrent")


def points(count=7, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, (count, 2))


def randomised(kind, seed=0, **options):
    """A network with random weights, also where they begin as zeros."""
    network = networks.InverseProblemNetwork(kind, **options)
    rng = np.random.default_rng(seed)
    network.set_weights([rng.normal(0, 0.4, weight.shape) for weight in network.weights])
    return network


def weights_of(layer):
    return [np.asarray(weight, np.float64) for weight in layer.weights]


def forward(network, x, applied=None):
    """All read-outs in float64, `(applications + 1, inputs, 2)`, from the weights alone.

    `applied` names the blocks that are applied, by default all of them in order.
    """
    kernel, bias = weights_of(network.get_layer("encoder"))
    state = x.astype(np.float64) @ kernel + bias
    states = [state]
    for index in range(network.blocks) if applied is None else applied:
        name = "block" if network.kind == "recurrent" else f"block{index}"
        first, first_bias, second, second_bias = weights_of(network.get_layer(name))
        branch = np.maximum(state @ first + first_bias, 0) @ second + second_bias
        state = branch if network.kind == "feedforward" else state + branch
        states.append(state)
    kernel, bias = weights_of(network.get_layer("decoder"))
    return np.stack([state @ kernel + bias for state in states])
