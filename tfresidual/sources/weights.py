"""Learned weights of layers, and their roles in a block."""

from __future__ import annotations

import collections
import re

import keras

from tfresidual.layers import ResidualUnit
from tfresidual.layers.residual_unit import PARAMETERS

# The names of weights of Keras layers that are not learned.
STATISTICS = ("moving_mean", "moving_variance", "mean", "variance", "count", "vector_u")


def parameters_of(nodes):
    """Returns all parameters of some nodes, trainable or frozen, each variable once, as a tuple."""
    layers = {id(node.operation): node.operation for node in nodes}.values()
    found = {}
    for layer in layers:
        for weight in getattr(layer, "weights", ()):
            if _is_parameter(layer, weight):
                found[id(weight)] = weight
    return tuple(found.values())


def _is_parameter(layer, weight):
    """Returns whether a weight is learned, or was learned before it was frozen.

    A weight itself does not show whether it was frozen or never meant to be trained. This is
    determined by its name or, if the whole layer is frozen, by whether it is a known statistic.
    """
    if weight.trainable or weight.name.endswith(PARAMETERS):
        return True
    is_float = keras.backend.is_float_dtype(weight.dtype)
    frozen = not layer.trainable and is_float and not isinstance(layer, ResidualUnit)
    return frozen and weight.name not in STATISTICS


def weights_by_role(nodes):
    """Returns the parameters by role: number of the layer in the block, its class, their name."""
    layers = {id(node.operation): node for node in nodes}.values()
    weighted = [(node.operation, parameters_of([node])) for node in layers]
    roles = {}
    for number, (layer, weights) in enumerate(item for item in weighted if item[1]):
        names = collections.Counter()
        for weight in weights:
            # Keras numbers weights that have no name.
            name = re.sub(r"^variable_\d+$", "variable", weight.name)
            names[name] += 1
            again = f"_{names[name]}" if names[name] > 1 else ""
            roles[f"{number}/{type(layer).__name__}/{name}{again}"] = weight
    return roles
