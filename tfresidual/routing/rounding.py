"""Weights rounded to few bits, symmetric and weight only, as Keras' quantizers round them.

Kernels and embeddings are rounded: variables with two axes or more. Biases, scales and shifts of
normalizations and their moving statistics stay as they are, as they do in Keras.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_int, is_int

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from tfresidual.definitions.types import Tensor
    from tfresidual.routing.chain import Chain

    Per = Literal["channel", "tensor"] | int

# So many bits are those of a weight that is not rounded.
WHOLE = 32
# Each group of weights has a factor in float32.
SCALE_BYTES = 4
CHANNEL, TENSOR = "channel", "tensor"
DEPTHWISE = {"DepthwiseConv1D", "DepthwiseConv2D"}
TRANSPOSED = {"Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"}


def rounded(
    values: Any, bits: int, per: Per = "channel", axes: tuple[int, ...] | None = None
) -> Tensor:
    """Returns weights rounded to multiples of a scale per group.

    With q = 2^(bits - 1) - 1, the scale of a group is q / (max |w| + 1e-7), and a weight w becomes
    round(w scale) / scale, as in `keras.quantizers.abs_max_quantize`.

    Example:

    >>> rounded(np.array([[1.0, 0.4], [0.3, 0.1]], "float32"), 2).numpy().round(3)
    array([[1. , 0.4],
           [0. , 0. ]], dtype=float32)

    Args:
        values: a variable or an array, of floats.
        bits: int, from 2 to 32; with 32, the weights stay as they are.
        per: `"channel"`, a group for each output channel; `"tensor"`, a single one; or an int, of
            how many inputs of an output channel a group consists, the last one perhaps of fewer.
        axes: the axes of the inputs, see `kernels_of`; by default all but the last.
    """
    values = ops.convert_to_tensor(values)
    if bits == WHOLE:
        return values
    dtype, most = values.dtype, 2.0 ** (bits - 1) - 1
    weights = ops.cast(values, "float32")
    if not is_int(per):
        return ops.cast(_multiples(weights, most, _axes(weights, axes, per)), dtype)
    # As (groups, inputs of a group, outputs), the last group filled up with zeros.
    inputs = _axes(weights, axes, CHANNEL)
    order = (*inputs, *(axis for axis in range(len(values.shape)) if axis not in inputs))
    turned = ops.transpose(weights, order)
    count = math.prod(values.shape[axis] for axis in inputs)
    rows = ops.reshape(turned, (count, -1))
    groups = ops.pad(rows, [(0, -count % per), (0, 0)])
    groups = _multiples(ops.reshape(groups, (-1, per, rows.shape[1])), most, (1,))
    rows = ops.reshape(groups, (-1, rows.shape[1]))[:count]
    turned = ops.reshape(rows, turned.shape)
    return ops.cast(ops.transpose(turned, [int(i) for i in np.argsort(order)]), dtype)


def _multiples(weights, most, axes):
    largest = ops.max(ops.abs(weights), axis=axes, keepdims=True)
    scale = most / (largest + keras.config.epsilon())
    return ops.clip(ops.round(weights * scale), -most, most) / scale


def _axes(values, axes, per):
    """Returns the axes over which a group extends."""
    rank = len(values.shape)
    if per == TENSOR:
        return tuple(range(rank))
    return tuple(range(rank - 1)) if axes is None else axes


def bytes_of(
    values: Any, bits: int = WHOLE, per: Per = "channel", axes: tuple[int, ...] | None = None
) -> int:
    """Returns the bytes of a variable as it is stored, rounded with such settings.

    `bits` / 8 for every weight, rounded up, and 4 for every scale; with 32 bits, those of its own
    dtype.

    Example:

    >>> bytes_of(np.zeros((100, 10), "float32")), bytes_of(np.zeros((100, 10), "float32"), 4)
    (4000, 540)
    """
    size = math.prod(values.shape)
    if bits == WHOLE:
        return size * np.dtype(keras.backend.standardize_dtype(values.dtype)).itemsize
    inputs = math.prod(values.shape[axis] for axis in _axes(values, axes, per))
    groups = math.ceil(inputs / per) if is_int(per) else 1
    return math.ceil(size * bits / 8) + SCALE_BYTES * groups * (size // inputs)


def kernels_of(
    layers: Iterable[keras.layers.Layer],
) -> list[tuple[keras.Variable, tuple[int, ...]]]:
    """Returns the variables of layers that are rounded, each with the axes of its inputs.

    Layers may hold others. The output channels of the kernel of a depthwise convolution are its
    channels times their multiples, those of an `EinsumDense` are the axes that its equation keeps,
    and every row of an `Embedding` is one, as for Keras' quantizers.
    """
    parts = {id(part): part for layer in layers for part in layer._flatten_layers()}
    found = {
        id(variable): (variable, _input_axes(part, variable))
        for part in parts.values()
        for variable in part._trainable_variables
        if is_rounded(variable.name, variable)
    }
    return list(found.values())


def is_rounded(name: str, variable: Any) -> bool:
    """Returns whether a variable is a kernel or an embedding, of floats; biases may have axes."""
    is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(variable.dtype))
    return is_float and len(variable.shape) > 1 and not name.endswith("bias")


def _input_axes(layer, variable):
    rank = len(variable.shape)
    if isinstance(layer, keras.layers.EinsumDense):
        _, kernel, outputs = layer.equation.replace("->", ",").split(",")
        # The factors of LoRA may have other axes.
        if len(kernel) == rank:
            return tuple(axis for axis, label in enumerate(kernel) if label not in outputs)
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    return axes_of_kind(rank, kinds, variable.name)


def axes_of_kind(rank: int, kinds: set[str], name: str) -> tuple[int, ...]:
    """Returns the axes of the inputs of a weight by the names of its layer's classes and its own.

    All but the last one, if the layer is none of those with other axes.
    """
    name = name.rpartition("/")[2]
    if name == "embeddings" and "Embedding" in kinds:
        outputs = {0}
    elif name.startswith("depthwise") or kinds & DEPTHWISE:
        outputs = {rank - 2, rank - 1}
    elif kinds & TRANSPOSED:
        outputs = {rank - 2}
    else:
        outputs = {rank - 1}
    return tuple(axis for axis in range(rank) if axis not in outputs)


def check_bits(bits: Any) -> tuple[int, ...]:
    """Returns numbers of bits, each from 2 to 32, as a tuple; raises a `ValueError` otherwise."""
    bits = tuple(bits) if np.iterable(bits) else (bits,)
    if not bits or len(set(bits)) < len(bits):
        raise ArgumentError("bits", "hold one or more different numbers of bits", bits)
    return tuple(check_int("bits", one, 2, WHOLE) for one in bits)


def check_per(per: Any) -> None:
    """Raises a `ValueError` unless weights can be grouped in such a way."""
    if per not in (CHANNEL, TENSOR) and not (is_int(per) and per > 0):
        raise ArgumentError(
            "per", "be 'channel', 'tensor' or how many inputs share a scale, 1 or more", per
        )


def kernels_by_block(
    chain: Chain,
) -> dict[tuple[int, int], list[tuple[Any, tuple[int, ...]]]]:
    """Returns the variables of every block that are rounded, see `kernels_of`, by (stage, block).

    Chains without a Keras model, such as those of SavedModels, know their layers by class alone:
    every number of the last axis of the kernel of an `EinsumDense` is an output channel there.
    """
    if chain.source is None:
        return {
            (block.stage, block.index): [
                (weight, axes_of_kind(len(weight.shape), set(role.split("/")[1:2]), role))
                for role, weight in block.weights.items()
                if is_rounded(role, weight)
            ]
            for block in chain.blocks
        }
    known = {id(pair[0]): pair for pair in kernels_of([chain.source.model])}
    return {
        (block.stage, block.index): [
            known[id(variable)] for variable in block.variables if id(variable) in known
        ]
        for block in chain.blocks
    }
