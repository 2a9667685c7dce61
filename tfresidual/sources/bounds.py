"""Lipschitz bounds of branches that are made of bounded layers, in models of any kind."""

from __future__ import annotations

import keras

from tfresidual.layers import Bounded, SpectralNormalization, slopes
from tfresidual.sources.blocks import path_to

BOUNDED = (Bounded, SpectralNormalization)


def bound_of_branch(nodes, source, branches):
    """Returns the function `lipschitz` of a block, or `None` if its branch is not bounded.

    It is if the branch is a single path of layers, at least one of which is `Bounded` or
    `SpectralNormalization`, and all others have a known Lipschitz constant. All numbers are then
    products of those of the layers.

    Args:
        nodes: list of the nodes of the block.
        source: `keras.KerasTensor`, the state that the branch begins with.
        branches: tuple of the tensors that are added to the state.
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
            found = slopes.slope_of(_function_of(layer)) if known is None else known.constant
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


def _function_of(operation):
    """Returns the function of `keras.ops` that an operation applies, as far as slopes know it."""
    return keras.ops.relu if type(operation).__name__ == "Relu" else _unknown


def _unknown(tensor):
    """A function without a known slope."""


def notes_of_norms(nodes):
    """Returns the notes on layers that do not bound what their name says, a tuple of str."""
    names = {
        node.operation.name: None
        for node in nodes
        if isinstance(node.operation, keras.layers.SpectralNormalization)
    }
    if not names:
        return ()
    return (
        f"keras.layers.SpectralNormalization ({', '.join(names)}) divides by the norm of the "
        "kernel reshaped to a matrix, in training alone; this does not bound the norm of a "
        "convolution, as layers.SpectralNormalization does",
    )
