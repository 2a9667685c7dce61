"""Learned weights of layers, and their roles in a block."""

from __future__ import annotations

import itertools
import re

import keras

from tfresidual.layers import ResidualUnit
from tfresidual.layers.residual_unit import PARAMETERS
from tfresidual.sources.graph import is_of_keras

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


def variables_of(nodes):
    """Returns all weights of the layers of some nodes, learned or not, each once, as a tuple."""
    layers = [node.operation for node in nodes]
    found = {id(w): w for layer in layers for w in getattr(layer, "weights", ())}
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
    """Returns the parameters by role: their layer's number in the block, its class, their name.

    Layers that exchange axes have a number, too: a branch that mixes positions has other roles than
    one that mixes channels. The parts of a layer that consists of others are in the role by name.
    """
    layers = {id(node.operation): node for node in nodes}.values()
    found = [(node.operation, parameters_of([node])) for node in layers]
    counted = [(layer, own) for layer, own in found if own or _exchanges_axes(layer)]
    roles = {}
    for number, (layer, weights) in enumerate(counted):
        parts = {}
        for weight in weights:
            part, name = _place_in(layer, weight)
            if part not in parts:
                # Keras and users number the parts of a network in the order in which they are made.
                parts[part] = _free(re.sub(r"_?\d+", "", part), parts.values())
            place = f"{number}/{type(layer).__name__}/{parts[part]}".rstrip("/")
            roles[_free(f"{place}/{name}", roles)] = weight
    return roles


def _exchanges_axes(operation):
    kinds = ("Transpose", "Swapaxes", "Moveaxis")
    is_layer = isinstance(operation, keras.layers.Permute)
    return is_layer or any(is_of_keras(operation, kind) for kind in kinds)


def _place_in(layer, weight):
    """Returns the path of the part of a layer that a weight is in, or `""`, and its name."""
    inside = weight.path.removeprefix(f"{layer.path}/")
    part = inside.rpartition("/")[0] if inside != weight.path else ""
    # Keras numbers weights that have no name.
    return part, re.sub(r"^variable_\d+$", "variable", weight.name)


def _free(name, taken):
    """Returns a name, with a number from 2 on after it if it is taken."""
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(2)))
    return next(one for one in names if one not in taken)
