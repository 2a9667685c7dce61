"""Linear parts of Keras' layers: what a layer does before its bias and activation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers.operators import Convolution, Matrix
from tfresidual.layers.pointwise_convolution import PointwiseConvolution

if TYPE_CHECKING:
    from tfresidual.definitions.types import Shape, Tensor
    from tfresidual.layers.operators import Operator


class Linear:
    """The linear part of a built layer, as an operator on the grid of its inputs.

    Attributes:
        operator: the operator, for the kernel that `of_operator` returns.
        vector_shape: shape of an input vector of the operator, as a batch of one. If the norm does
            not depend on the grid, as that of a 1x1 kernel, its grid has one pixel.
        channel_axis: axis of inputs and outputs that holds the channels.
        needs_grid: whether the norm depends on the grid of the inputs.
    """

    operator: Operator
    vector_shape: tuple[int, ...]
    channel_axis: int = -1
    needs_grid: bool = False

    def __init__(self, layer: keras.layers.Layer, shape: Shape) -> None:
        self.layer = layer

    def kernel(self) -> Tensor:
        """Returns the kernel as the layer computes with it: in its compute dtype."""
        return ops.cast(self.layer.kernel, self.layer.compute_dtype)

    def of_operator(self, kernel: Tensor, dtype: str = "float32") -> Tensor:
        """Returns the kernel of a layer in the shape that the operator takes."""
        return ops.cast(kernel, dtype)

    def apply(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        """Returns the outputs without bias and activation."""
        raise NotImplementedError

    def divided(self, kernel: Tensor, divisor: Tensor) -> Tensor:
        """Returns the kernel with which the outputs are divided by a number."""
        dtype = keras.backend.standardize_dtype(kernel.dtype)
        # In half precision, divided before it is rounded.
        wide = dtype if dtype in ("float32", "float64") else "float32"
        return ops.cast(ops.cast(kernel, wide) / ops.cast(divisor, wide), dtype)

    def finished(self, outputs: Tensor) -> Tensor:
        """Returns outputs with the bias and the activation of the layer."""
        bias, activation = self.layer.bias, self.layer.activation
        if bias is not None:
            bias = ops.cast(bias, outputs.dtype)
            if self.channel_axis > 0:
                bias = ops.reshape(bias, (1, -1, *(1,) * (len(outputs.shape) - 2)))
            outputs = ops.add(outputs, bias)
        return outputs if activation is None else activation(outputs)


class _Convolution(Linear):
    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        if layer.data_format == "channels_first":
            self.channel_axis = 1
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
                received=f"inputs of shape {tuple(shape)} of {_named(layer)}",
            )
        self.operator = Convolution(
            tuple(layer.strides), layer.padding, tuple(layer.dilation_rate), self.groups(channels)
        )
        kernel = self.of_operator(self.kernel())
        self.vector_shape = self.operator.vector_shape(tuple(kernel.shape), tuple(grid))

    def groups(self, channels):
        return self.layer.groups

    def apply(self, inputs, kernel):
        layer = self.layer
        if layer.padding != "causal":
            return layer.convolution_op(inputs, kernel)
        pads = [(0, 0)] * 3
        front = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        pads[1 if layer.data_format == "channels_last" else 2] = (front, 0)
        inputs = ops.pad(inputs, pads)
        return ops.conv(
            inputs, kernel, layer.strides, "valid", layer.data_format, layer.dilation_rate
        )


class _Depthwise(_Convolution):
    def groups(self, channels):
        return channels

    def of_operator(self, kernel, dtype="float32"):
        *sizes, channels, multiplier = kernel.shape
        return ops.reshape(ops.cast(kernel, dtype), (*sizes, 1, channels * multiplier))

    def apply(self, inputs, kernel):
        layer = self.layer
        return ops.depthwise_conv(
            inputs,
            kernel,
            tuple(layer.strides),
            layer.padding,
            layer.data_format,
            layer.dilation_rate,
        )


class _Dense(Linear):
    def __init__(self, layer, shape):
        super().__init__(layer, shape)
        self.operator = Matrix()
        self.vector_shape = self.operator.vector_shape(layer.kernel.shape)

    def apply(self, inputs, kernel):
        return ops.matmul(inputs, kernel)


LINEAR = {
    PointwiseConvolution: _Convolution,
    keras.layers.Conv1D: _Convolution,
    keras.layers.Conv2D: _Convolution,
    keras.layers.Conv3D: _Convolution,
    keras.layers.DepthwiseConv1D: _Depthwise,
    keras.layers.DepthwiseConv2D: _Depthwise,
    keras.layers.Dense: _Dense,
}


def kind_of(layer: object) -> type[Linear] | None:
    """Returns the class of a layer's linear part, or `None`.

    `None` for layers that may compute otherwise: of other classes, or with a call of their own.
    """
    for known, kind in LINEAR.items():
        if isinstance(layer, known) and all(
            getattr(type(layer), name, None) is getattr(known, name, None)
            for name in ("call", "kernel", "convolution_op")
        ):
            return kind
    return None


def linear_part(layer: keras.layers.Layer, shape: Shape) -> Linear:
    """Returns the linear part of a built layer for inputs of a shape, with the batch.

    Raises:
        ValueError: if there is none, or its norm depends on a grid that is not known.
    """
    check_linear("layer", layer)
    kind: Any = kind_of(layer)
    return kind(layer, shape)


def check_linear(name: str, layer: keras.layers.Layer) -> None:
    """Raises a `ValueError` unless the norm of a layer in the argument of a name is known.

    A quantized layer rounds its inputs, and one with LoRA has more than one kernel.
    """
    is_changed = getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False)
    if kind_of(layer) is None or is_changed:
        names = ", ".join(f"`{known.__name__}`" for known in LINEAR)
        raise ArgumentError(
            name,
            f"be, or hold, layers whose norm is known: {names}, or a subclass that computes the "
            "same, neither quantized nor with LoRA",
            received=_named(layer),
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
            received=f"dtype={given.name!r} for layers of dtypes {', '.join(policies)}",
        )
    return policy


def _named(layer):
    return f"{type(layer).__name__} {getattr(layer, 'name', layer)!r}"
