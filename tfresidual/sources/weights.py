"""Learned weights of blocks, their roles, and the Lipschitz bounds of branches."""

from __future__ import annotations

import itertools
import re

import keras

from tfresidual.layers import Bounded, ResidualUnit, SpectralNormalization, slopes
from tfresidual.layers.residual_unit import PARAMETERS
from tfresidual.sources.graph import path_to
from tfresidual.sources.operations import is_of_keras

BOUNDED = (Bounded, SpectralNormalization)
# The names of weights of Keras layers that are not learned.
STATISTICS = ("moving_mean", "moving_variance", "mean", "variance", "count", "vector_u")


def variables_of(nodes, is_wanted=lambda layer, weight: True):
    """Returns all weights of the layers of some nodes, learned or not, each once, as a tuple."""
    found = {
        id(weight): weight
        for node in nodes
        for weight in getattr(node.operation, "weights", ())
        if is_wanted(node.operation, weight)
    }
    return tuple(found.values())


def parameters_of(nodes):
    """Returns all parameters of some nodes, trainable or frozen, each once, as a tuple."""
    return variables_of(nodes, _is_parameter)


def _is_parameter(layer, weight):
    """Returns whether a weight is learned, or was learned before it was frozen."""
    if getattr(weight, "overwrite_with_gradient", False):
        # Scales of float8 kernels.
        return False
    # Quantized ones are integers.
    is_learned = weight.trainable or weight.name.endswith(PARAMETERS)
    if is_learned or weight.dtype in ("int8", "uint8"):
        return True
    is_float = keras.backend.is_float_dtype(weight.dtype)
    frozen = not layer.trainable and is_float and not isinstance(layer, ResidualUnit)
    return frozen and weight.name not in STATISTICS


def weights_by_role(nodes):
    """Returns the parameters by role: their layer's number in the block, its class, their name.

    Layers that exchange axes have a number, too. Parts of a layer are in the role by name.
    """
    layers = {id(node.operation): node for node in nodes}.values()
    found = [(node.operation, parameters_of([node])) for node in layers]
    counted = [
        (layer, own)
        for layer, own in found
        if own
        or isinstance(layer, keras.layers.Permute)
        or is_of_keras(layer, "Transpose", "Swapaxes", "Moveaxis")
    ]
    roles = {}
    for number, (layer, weights) in enumerate(counted):
        parts = {}
        for weight in weights:
            inside = weight.path.removeprefix(f"{layer.path}/")
            part = inside.rpartition("/")[0] if inside != weight.path else ""
            # Keras numbers weights that have no name.
            name = re.sub(r"^variable_\d+$", "variable", weight.name)
            if part not in parts:
                # Keras and users number the parts of a network in the order in which they are made.
                parts[part] = _free(re.sub(r"_?\d+", "", part), parts.values())
            place = f"{number}/{type(layer).__name__}/{parts[part]}".rstrip("/")
            roles[_free(f"{place}/{name}", roles)] = weight
    return roles


def _free(name, taken):
    """Returns a name, with a number from 2 on after it if it is taken."""
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(2)))
    return next(one for one in names if one not in taken)


def bound_of_branch(nodes, source, branches):
    """Returns the function `lipschitz` of a block, or `None` if its branch is not bounded.

    It is if it is a single path of layers with known Lipschitz constants, some of them `BOUNDED`.
    """
    if len(branches) != 1:
        return None
    place, layers, constant = source, [], 1.0
    for node in path_to(nodes, branches[0]):
        layer = node.operation
        if [id(taken) for taken in node.inputs] != [id(place)] or not node.outputs:
            return None
        if isinstance(layer, BOUNDED):
            layers.append(layer)
            found = slopes.slope_of(getattr(getattr(layer, "layer", None), "activation", None))
        else:
            is_layer = isinstance(layer, keras.layers.Layer)
            known = slopes.known(layer, tuple(place.shape)) if is_layer else None
            # Of operations, slopes know ReLU.
            function = keras.ops.relu if type(layer).__name__ == "Relu" else _unknown
            found = slopes.slope_of(function) if known is None else known.constant
        if found is None:
            return None
        constant *= found
        place = node.outputs[0]
    if not layers or place is not branches[0]:
        return None

    def lipschitz():
        reports = [layer.lipschitz_bound() for layer in layers]
        product = dict.fromkeys(("lipschitz", "estimate", "certified"), constant) | {"divisor": 1.0}
        for report in reports:
            for name in product:
                product[name] *= report[name]
        return product | {"residual": max(report["residual"] for report in reports)}

    return lipschitz


def _unknown(tensor):
    """A function without a known slope."""
