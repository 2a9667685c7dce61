"""Linear operators of layers, with their transposes.

An operator says how a kernel maps a batch of images, or vectors, without bias: `apply`. The adjoint
map is `transpose`, <T v, u> = <v, T' u>, whose results are on the grid of `vector`. Its
`vector_shape` is that of an input, for the shape of the kernel and a grid. Operators are hashable,
so that functions can be compiled for them, and use `keras.ops`. Images have their channels last,
whatever the data format of the layer.

The transpose of a convolution is the convolution with the reversed kernel of an image that is
padded, and spread if there is a stride. `keras.ops.conv_transpose` is not used: it does not take an
output shape, so with a stride of 2 it cannot distinguish a grid of 7 pixels from one of 8.

Example:

>>> operator = Convolution(strides=(2, 2))
>>> kernel, image = keras.random.normal((3, 3, 4, 8)), keras.random.normal((1, 7, 6, 4))
>>> operator.apply(kernel, image).shape
TensorShape([1, 4, 3, 8])
>>> operator.transpose(kernel, operator.apply(kernel, image), image).shape
TensorShape([1, 7, 6, 4])
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from keras import ops

if TYPE_CHECKING:
    from tfresidual.definitions.types import Tensor


class Axis(NamedTuple):
    """One spatial axis of a convolution: output i reads the pixels strides * i + dilation * tap -
    front, for every tap of the kernel; pixels outside the grid are zero.

    Attributes:
        taps: int, size of the kernel.
        pixels: int, size of the grid of the convolution's input.
        outputs: int, size of the grid of its output.
        strides: int.
        dilation: int.
        front: int, number of zeros that the padding puts before the grid.
    """

    taps: int
    pixels: int
    outputs: int
    strides: int
    dilation: int
    front: int


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Convolution over one to three spatial axes.

    Kernels have the shape `(*sizes, channels in / groups, channels out)` and images
    `(batch, *grid, channels)`. A depthwise convolution is one with as many groups as channels in.

    Attributes:
        strides: tuple of ints, one for each spatial axis.
        padding: `"same"`, `"valid"` or `"causal"` (all zeros before the grid).
        dilation: tuple of ints, one for each spatial axis; `None` for no dilation.
        groups: int, number of groups of channels.
    """

    strides: tuple[int, ...]
    padding: str = "same"
    dilation: tuple[int, ...] | None = None
    groups: int = 1

    def vector_shape(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
        return (1, *grid, shape[-2] * self.groups)

    def axes(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> list[Axis]:
        """Returns the geometry of every spatial axis, for the shape of the kernel and a grid."""
        settings = zip(shape, grid, self.strides, self._dilation, strict=False)
        return [
            Axis(taps, pixels, *of_padding(self.padding, taps, pixels, strides, dilation))
            for taps, pixels, strides, dilation in settings
        ]

    @property
    def _dilation(self):
        return self.dilation or (1,) * len(self.strides)

    def apply(self, kernel: Tensor, vectors: Tensor) -> Tensor:
        spatial, strides, padding = len(self.strides), self.strides, self.padding
        if padding == "causal" or _is_tap_by_tap(kernel, self.groups, strides):
            axes = self.axes(kernel.shape, vectors.shape[1:-1])
            vectors = _padded(vectors, [(axis.front, _back(axis)) for axis in axes])
            padding = "valid"
        elif max(kernel.shape[:spatial]) == 1:
            # Strides are applied here, not in the convolution, as in
            # `PointwiseConvolution`.
            vectors, strides = vectors[_every(strides)], (1,) * spatial
        return _convolved(kernel, vectors, strides, padding, self._dilation, self.groups)

    def transpose(self, kernel: Tensor, images: Tensor, vector: Tensor) -> Tensor:
        axes = self.axes(kernel.shape, vector.shape[1:-1])
        return _transposed(kernel, images, axes, self.groups)

    def scaled(
        self, kernel: Tensor, input_scale: Tensor | None, output_scale: Tensor | None
    ) -> Tensor:
        """Returns the kernel of diag(output_scale) T diag(input_scale), scales of channels."""
        if input_scale is not None and self.groups > 1:
            # One factor for each group and channel of the group.
            factors = ops.transpose(ops.reshape(input_scale, (self.groups, -1)))
            kernel = kernel * ops.repeat(factors, kernel.shape[-1] // self.groups, axis=1)
            input_scale = None
        return _scaled(kernel, input_scale, output_scale)


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix: kernels have the shape `(size in, size out)` and vectors `(batch, size)`."""

    def vector_shape(self, shape: tuple[int, ...], grid: tuple[int, ...] = ()) -> tuple[int, ...]:
        return (1, shape[0])

    def apply(self, kernel: Tensor, vectors: Tensor) -> Tensor:
        return ops.matmul(vectors, kernel)

    def transpose(self, kernel: Tensor, images: Tensor, vector: Tensor) -> Tensor:
        return ops.matmul(images, ops.transpose(kernel))

    def scaled(
        self, kernel: Tensor, input_scale: Tensor | None, output_scale: Tensor | None
    ) -> Tensor:
        return _scaled(kernel, input_scale, output_scale)


Operator = Convolution | Matrix


def _scaled(kernel, input_scale, output_scale):
    if input_scale is not None:
        kernel = kernel * input_scale[:, None]
    if output_scale is not None:
        kernel = kernel * output_scale
    return kernel


def of_padding(padding, taps, pixels, strides, dilation):
    """Returns outputs, strides, dilation and front of an `Axis`."""
    reach = (taps - 1) * dilation
    if padding == "same":
        outputs = -(-pixels // strides)
        # TensorFlow's padding, which puts the odd zero after the grid.
        front = max((outputs - 1) * strides + reach + 1 - pixels, 0) // 2
    else:
        front = reach if padding == "causal" else 0
        outputs = (pixels + front - reach - 1) // strides + 1
    return outputs, strides, dilation, front


def _back(axis):
    """Returns the number of zeros after the grid that the outputs read; negative: pixels unread."""
    reach = (axis.taps - 1) * axis.dilation
    return (axis.outputs - 1) * axis.strides + reach + 1 - axis.front - axis.pixels


def _every(strides):
    """Returns the index of every `strides`-th pixel along the spatial axes."""
    return (slice(None), *(slice(None, None, step) for step in strides))


def _padded(images, pads):
    """Pads the spatial axes with zeros; negative numbers remove pixels."""
    kept = [
        slice(max(-front, 0), size + min(back, 0))
        for size, (front, back) in zip(images.shape[1:-1], pads, strict=True)
    ]
    if any(min(pad) < 0 for pad in pads):
        images = images[(slice(None), *kept)]
    pads = [(max(front, 0), max(back, 0)) for front, back in pads]
    return ops.pad(images, [(0, 0), *pads, (0, 0)])


def _transposed(kernel, images, axes, groups):
    """Applies the transpose of the convolution with the given axes."""
    spatial, pads = len(axes), []
    for place, axis in enumerate(axes, start=1):
        images = _spread(images, axis.strides, place)
        reach = (axis.taps - 1) * axis.dilation
        pads.append((reach - axis.front, axis.pixels + axis.front - images.shape[place]))
    kernel = ops.flip(kernel, tuple(range(spatial)))
    dilation = tuple(axis.dilation for axis in axes)
    kernel = _with_swapped_channels(kernel, groups, spatial)
    return _convolved(kernel, _padded(images, pads), (1,) * spatial, "valid", dilation, groups)


def _with_swapped_channels(kernel, groups, spatial):
    """Swaps channels in and out, in every group."""
    space = tuple(range(spatial))
    if groups == 1:
        return ops.transpose(kernel, (*space, spatial + 1, spatial))
    *sizes, inputs, outputs = kernel.shape
    kernel = ops.reshape(kernel, (*sizes, inputs, groups, outputs // groups))
    kernel = ops.transpose(kernel, (*space, spatial + 2, spatial + 1, spatial))
    return ops.reshape(kernel, (*sizes, outputs // groups, groups * inputs))


def _spread(images, strides, axis):
    """Puts `strides - 1` zeros between neighbours along an axis."""
    if strides == 1:
        return images
    images = ops.expand_dims(images, axis + 1)
    pads = [(0, 0)] * len(images.shape)
    pads[axis + 1] = (0, strides - 1)
    images = ops.pad(images, pads)
    shape = list(images.shape)
    shape[axis : axis + 2] = [shape[axis] * strides]
    images = ops.reshape(images, shape)
    return images[(slice(None),) * axis + (slice(shape[axis] - strides + 1),)]


def _is_tap_by_tap(kernel, groups, strides):
    """Returns whether a convolution is computed tap by tap: where TensorFlow does not do it.

    It computes convolutions with groups that are not depthwise on GPUs only, or compiled by XLA.
    Those of three axes with strides are not always correct on CPUs.
    """
    if len(strides) == 3:
        return groups > 1 or max(strides) > 1
    return groups > 1 and kernel.shape[-2] > 1


def _convolved(kernel, images, strides, padding, dilation, groups):
    """Convolves images, which are padded already unless the convolution is a simple one."""
    spatial = len(strides)
    options = {"data_format": "channels_last"}
    if max(dilation) > 1:
        options["dilation_rate"] = dilation
    is_transposed_depthwise = groups > 1 and kernel.shape[-1] == groups and spatial < 3
    if _is_tap_by_tap(kernel, groups, strides) and not is_transposed_depthwise:
        return _tap_by_tap(kernel, images, strides, dilation, groups)
    if groups == 1:
        return ops.conv(images, kernel, _plain(strides), padding, **options)
    # The transpose of a depthwise convolution is the sum of some depthwise convolutions.
    each = kernel.shape[-2]
    if each == 1:
        kernel = ops.reshape(kernel, (*kernel.shape[:spatial], groups, -1))
        return ops.depthwise_conv(images, kernel, _plain(strides), padding, **options)
    return sum(
        ops.depthwise_conv(
            images[..., place::each],
            kernel[..., place, :, None],
            _plain(strides),
            padding,
            **options,
        )
        for place in range(each)
    )


def _plain(strides):
    """Returns strides as an int if they are all the same."""
    return strides[0] if len(set(strides)) == 1 else strides


def _tap_by_tap(kernel, images, strides, dilation, groups):
    """Convolves padded images in groups: the sum, over the taps, of products with matrices."""
    *sizes, inputs, outputs = kernel.shape
    kernel = ops.reshape(kernel, (*sizes, inputs, groups, outputs // groups))
    images = ops.reshape(images, (*images.shape[:-1], groups, inputs))
    counts = [
        (pixels - (taps - 1) * step - 1) // stride + 1
        for pixels, taps, step, stride in zip(
            images.shape[1:-2], sizes, dilation, strides, strict=True
        )
    ]
    total = 0
    for taps in itertools.product(*map(range, sizes)):
        window = [
            slice(tap * step, tap * step + (count - 1) * stride + 1, stride)
            for tap, step, count, stride in zip(taps, dilation, counts, strides, strict=True)
        ]
        part = ops.reshape(images[(slice(None), *window)], (-1, groups, inputs))
        total += ops.einsum("ngi,igo->ngo", part, kernel[taps])
    return ops.reshape(total, (images.shape[0], *counts, math.prod(total.shape[1:])))
