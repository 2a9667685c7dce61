"""Linear parts of Keras' layers: what a layer does before its bias and activation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers.operators import Convolution, Matrices, TransposedConvolution
from tfresidual.layers.pointwise_convolution import PointwiseConvolution

if TYPE_CHECKING:
    from tfresidual.definitions.types import Shape, Tensor
    from tfresidual.layers.operators import Operator


class Linear:
    """The linear part of a built layer, as an operator on the grid of its inputs.

    Methods that take `kernels` take the list that `kernels()` returns, or scaled ones.

    Attributes:
        operator: the operator, for the kernel that `kernel` returns.
        vector_shape: shape of an input vector of the operator, as a batch of one. If the norm does
            not depend on the grid, as that of a 1x1 kernel, its grid has one pixel.
        input_axis: axis of the inputs that holds the channels, or `None` if the operator has no
            scales for them.
        output_axis: the same for the outputs.
        needs_grid: whether the norm depends on the grid of the inputs.
    """

    # Methods that a subclass must not change.
    own: ClassVar[tuple[str, ...]] = ("call", "kernel", "convolution_op")
    operator: Operator
    vector_shape: tuple[int, ...]
    input_axis: int | None = -1
    output_axis: int | None = -1
    needs_grid: bool = False

    def __init__(self, layer: keras.layers.Layer, shape: Shape) -> None:
        self.layer = layer

    def kernels(self) -> list[Tensor]:
        """Returns the kernels as the layer computes with them: in its compute dtype, with LoRA."""
        return [ops.cast(self.layer.kernel, self.layer.compute_dtype)]

    def kernel(self, kernels: list[Tensor], dtype: str = "float32") -> Tensor:
        """Returns the kernel that the operator takes."""
        return ops.cast(kernels[0], dtype)

    def apply(self, inputs: Tensor, kernels: list[Tensor]) -> Tensor:
        """Returns the outputs without bias and activation."""
        raise NotImplementedError

    def divided(self, kernels: list[Tensor], divisor: Tensor) -> list[Tensor]:
        """Returns the kernels with which the outputs are divided by a number."""
        *others, last = kernels
        dtype = keras.backend.standardize_dtype(last.dtype)
        # In half precision, divided before it is rounded.
        wide = dtype if dtype in ("float32", "float64") else "float32"
        last = ops.cast(last, wide) / ops.cast(divisor, wide)
        return [*others, ops.cast(last, dtype)]

    def finished(self, outputs: Tensor) -> Tensor:
        """Returns outputs with the bias and the activation of the layer."""
        bias, activation = getattr(self.layer, "bias", None), self.layer.activation
        if bias is not None:
            bias = ops.cast(bias, outputs.dtype)
            if self.output_axis is not None and self.output_axis > 0:
                spatial = len(outputs.shape) - 2
                bias = ops.reshape(bias, (1, -1, *(1,) * spatial))
            outputs = ops.add(outputs, bias)
        return outputs if activation is None else activation(outputs)


class _OnGrid(Linear):
    """A layer with spatial axes."""

    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        if layer.data_format == "channels_first":
            self.input_axis = self.output_axis = 1
            grid, channels = shape[2:], shape[1]
        else:
            grid, channels = shape[1:-1], shape[-1]
        self.needs_grid = max(layer.kernel_size) > 1
        if not self.needs_grid:
            # The norm is that of a matrix.
            grid = (1,) * len(grid)
        elif None in grid:
            raise ArgumentError(
                "layer",
                "get inputs of a known size, since the norm of a convolution depends on the grid",
                said=f"inputs of shape {tuple(shape)} of {_named(layer)}",
            )
        self.set_operator(tuple(grid), channels)
        kernel = self.kernel(self.kernels())
        self.vector_shape = self.operator.vector_shape(tuple(kernel.shape), tuple(grid))

    def set_operator(self, grid, channels):
        layer = self.layer
        self.operator = Convolution(
            tuple(layer.strides), layer.padding, tuple(layer.dilation_rate), self.groups(channels)
        )

    def groups(self, channels):
        return 1

    def options(self):
        """Returns the arguments of the layer's function in `keras.ops`."""
        layer = self.layer
        return {
            "strides": tuple(layer.strides),
            "padding": layer.padding,
            "dilation_rate": layer.dilation_rate,
            "data_format": layer.data_format,
        }


class _Convolution(_OnGrid):
    def groups(self, channels):
        return self.layer.groups

    def apply(self, inputs, kernels):
        if self.layer.padding != "causal":
            return self.layer.convolution_op(inputs, kernels[0])
        pads = [(0, 0)] * 3
        front = self.layer.dilation_rate[0] * (self.layer.kernel_size[0] - 1)
        pads[1 if self.layer.data_format == "channels_last" else 2] = (front, 0)
        return ops.conv(ops.pad(inputs, pads), kernels[0], **self.options() | {"padding": "valid"})


class _Depthwise(_OnGrid):
    def groups(self, channels):
        return channels

    def kernel(self, kernels, dtype="float32"):
        *sizes, channels, multiplier = kernels[0].shape
        return ops.reshape(ops.cast(kernels[0], dtype), (*sizes, 1, channels * multiplier))

    def apply(self, inputs, kernels):
        return ops.depthwise_conv(inputs, kernels[0], **self.options())


class _Separable(_OnGrid):
    """Its operator is the one convolution that does the same as both."""

    own = ("call",)

    def kernels(self):
        layer = self.layer
        kernels = (layer.depthwise_kernel, layer.pointwise_kernel)
        return [ops.cast(kernel, layer.compute_dtype) for kernel in kernels]

    def kernel(self, kernels, dtype="float32"):
        depthwise, pointwise = (ops.cast(kernel, dtype) for kernel in kernels)
        *sizes, channels, multiplier = depthwise.shape
        depthwise = ops.reshape(depthwise, (-1, channels, multiplier))
        pointwise = ops.reshape(pointwise, (channels, multiplier, -1))
        kernel = ops.einsum("tcm,cmo->tco", depthwise, pointwise)
        return ops.reshape(kernel, (*sizes, channels, pointwise.shape[-1]))

    def apply(self, inputs, kernels):
        return ops.separable_conv(inputs, *kernels, **self.options())


class _Transposed(_OnGrid):
    def set_operator(self, grid, channels):
        layer = self.layer
        if layer.data_format == "channels_last":
            outputs = layer.compute_output_shape((1, *grid, channels))[1:-1]
        else:
            outputs = layer.compute_output_shape((1, channels, *grid))[2:]
        self.operator = TransposedConvolution(
            tuple(layer.strides), layer.padding, tuple(outputs), tuple(layer.dilation_rate)
        )

    def apply(self, inputs, kernels):
        padding = self.layer.output_padding
        return ops.conv_transpose(inputs, kernels[0], output_padding=padding, **self.options())


class _Dense(Linear):
    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        self.operator = Matrices()
        self.vector_shape = (1, 1, layer.kernel.shape[0])

    def kernel(self, kernels, dtype="float32"):
        return ops.cast(kernels[0], dtype)[None]

    def apply(self, inputs, kernels):
        return ops.matmul(inputs, kernels[0])


class _EinsumDense(Linear):
    """Axes of the kernel that are in inputs and outputs number matrices, each of its own part."""

    input_axis = output_axis = None

    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        terms = layer.equation.replace(" ", "").replace("...", "").replace("->", ",")
        inputs, kernel, outputs = map(list, terms.split(","))
        known = set(inputs) | set(outputs)
        if (
            any(len(set(term)) < len(term) for term in (inputs, kernel, outputs))
            or not set(inputs) <= {*kernel, *outputs}
            or not set(kernel) <= known
        ):
            raise ArgumentError(
                "layer",
                "be an `EinsumDense` layer whose equation has every axis once in a term, and "
                "sums only over axes of both inputs and kernel",
                equation=layer.equation,
            )
        parts = [axis for axis in kernel if axis in inputs and axis in outputs]
        rows = [axis for axis in kernel if axis in inputs and axis not in outputs]
        columns = [axis for axis in kernel if axis not in inputs]
        self._order = [kernel.index(axis) for axis in parts + rows + columns]
        sizes = dict(zip(kernel, layer.kernel.shape, strict=True))
        self._sizes = [math.prod(sizes[axis] for axis in axes) for axes in (parts, rows, columns)]
        self.operator = Matrices()
        self.vector_shape = (1, *self._sizes[:2])

    def kernel(self, kernels, dtype="float32"):
        kernel = ops.transpose(ops.cast(kernels[0], dtype), self._order)
        return ops.reshape(kernel, self._sizes)

    def apply(self, inputs, kernels):
        return ops.einsum(self.layer.equation, inputs, kernels[0])


LINEAR = {
    PointwiseConvolution: _Convolution,
    keras.layers.Conv1D: _Convolution,
    keras.layers.Conv2D: _Convolution,
    keras.layers.Conv3D: _Convolution,
    keras.layers.DepthwiseConv1D: _Depthwise,
    keras.layers.DepthwiseConv2D: _Depthwise,
    keras.layers.SeparableConv1D: _Separable,
    keras.layers.SeparableConv2D: _Separable,
    keras.layers.Conv1DTranspose: _Transposed,
    keras.layers.Conv2DTranspose: _Transposed,
    keras.layers.Conv3DTranspose: _Transposed,
    keras.layers.Dense: _Dense,
    keras.layers.EinsumDense: _EinsumDense,
}


def kind_of(layer: object) -> type[Linear] | None:
    """Returns the class of a layer's linear part, or `None`.

    `None` for layers that may compute otherwise: of other classes, or with a call of their own.
    """
    for known, kind in LINEAR.items():
        if isinstance(layer, known) and all(
            getattr(type(layer), name, None) is getattr(known, name, None) for name in kind.own
        ):
            return kind
    return None


def linear_part(layer: keras.layers.Layer, shape: Shape) -> Linear:
    """Returns the linear part of a built layer for inputs of a shape, with the batch.

    Raises:
        ValueError: if there is none, or its norm depends on a grid that is not known.
    """
    check_linear(layer)
    kind: Any = kind_of(layer)
    return kind(layer, shape)


def check_linear(layer: object) -> None:
    """Raises a `ValueError` unless a layer is linear before its bias and activation."""
    if kind_of(layer) is None:
        names = ", ".join(f"`{known.__name__}`" for known in LINEAR)
        raise ArgumentError(
            "layer",
            f"be linear before its bias and activation: a layer of one of the classes {names}, or "
            "of a subclass that computes the same",
            said=f"{_named(layer)}",
        )
    check_not_quantized(layer)


def check_not_quantized(layer: keras.layers.Layer) -> None:
    """Raises a `ValueError` if a layer is quantized: it then rounds its inputs, too."""
    if getattr(layer, "quantization_mode", None) is not None:
        raise ArgumentError(
            "layer",
            "not be quantized, since a quantized layer is not linear and its norm is not known: "
            "quantize without it, as by the argument `filters` of `quantize`",
            said=f"{_named(layer)} with quantization_mode={layer.quantization_mode!r}",
        )


def dtype_of(layers: list[keras.layers.Layer], given: Any = None) -> keras.DTypePolicy:
    """Returns the dtype policy of all layers, which a given dtype must be, too.

    The norms are of kernels in the dtype that all compute in.
    """
    policies = {layer.dtype_policy.name: layer.dtype_policy for layer in layers}
    policy = next(iter(policies.values()))
    given = policy if given is None else keras.dtype_policies.get(given)
    if len(policies | {given.name: given}) > 1:
        raise ArgumentError(
            "dtype",
            "be that of all wrapped layers, or None",
            said=f"dtype={given.name!r} for layers of dtypes {', '.join(policies)}",
        )
    return policy


def _named(layer):
    return f"{type(layer).__name__} {getattr(layer, 'name', layer)!r}"
