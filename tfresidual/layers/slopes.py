"""Lipschitz constants of layers without kernels: activations, pooling, padding, and the like.

All constants are in the Euclidean norm of the whole tensor, and each has a proof: see the comments.
Layers and activations that are not listed here have none, or none that is known to hold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from tfresidual.layers.operators import of_padding

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tfresidual.definitions.types import Shape

activations = keras.activations
# The largest slope |f'|, by the mean value theorem, of functions that are applied to each number.
SLOPES = {
    activations.linear: 1.0,
    activations.relu: 1.0,
    keras.ops.relu: 1.0,
    activations.relu6: 1.0,
    activations.leaky_relu: 1.0,  # with the default slope of 0.2 for negative numbers
    activations.elu: 1.0,  # exp(x) for x < 0, with the default alpha of 1
    activations.celu: 1.0,
    # lambda alpha exp(x) for x < 0, with lambda = 1.05070099 and alpha = 1.67326324 (Klambauer et
    # al. 2017), and lambda for x > 0.
    activations.selu: 1.7581,
    activations.softplus: 1.0,  # the slope is the sigmoid
    activations.softsign: 1.0,  # 1 / (1 + |x|)^2
    activations.squareplus: 1.0,  # (1 + x / sqrt(x^2 + 4)) / 2
    activations.sparse_plus: 1.0,
    activations.log_sigmoid: 1.0,  # the sigmoid of -x
    activations.tanh: 1.0,
    activations.hard_tanh: 1.0,
    activations.tanh_shrink: 1.0,  # tanh(x)^2
    activations.soft_shrink: 1.0,
    activations.sigmoid: 0.25,  # s (1 - s) with 0 < s < 1
    activations.sparse_sigmoid: 0.5,
    activations.hard_sigmoid: 1 / 6,
    # Phi(x) + x phi(x) is largest where its derivative (2 - x^2) phi(x) is zero: 1.1290.
    activations.gelu: 1.13,
    # s(x) (1 + x (1 - s(x))) is largest where x tanh(x / 2) = 2, at 2.3994: 1.0998.
    activations.silu: 1.1,
    activations.hard_silu: 1.5,  # (2 x + 3) / 6 at x = 3
}


class Known(NamedTuple):
    """What is known of a layer.

    Attributes:
        constant: float, its Lipschitz constant or more.
        keeps_channels: bool, whether a factor for each channel may be applied before it instead of
            after it, as far as its derivative is concerned.
    """

    constant: float
    keeps_channels: bool = True


def slope_of(activation: Callable[..., Any] | None) -> float | None:
    """Returns the largest slope of a function or layer, or `None` if it is not known."""
    if activation is None:
        return 1.0
    if isinstance(activation, keras.layers.Layer):
        is_listed = type(activation) in _ELEMENTWISE
        return _ELEMENTWISE[type(activation)](activation) if is_listed else None
    try:
        return SLOPES.get(activation)
    except TypeError:
        return None


def known(layer: keras.layers.Layer, shape: Shape) -> Known | None:
    """Returns what is known of a layer without kernels, for a shape of inputs with the batch.

    `None` if it has no known constant.
    """
    kind = type(layer)
    if kind in _ELEMENTWISE:
        slope = _ELEMENTWISE[kind](layer)
        return None if slope is None else Known(slope)
    return _OTHERS[kind](layer, shape) if kind in _OTHERS else None


def _of_relu(layer):
    # With a threshold, it jumps there.
    return max(1.0, abs(float(layer.negative_slope))) if not layer.threshold else None


_ELEMENTWISE = {
    keras.layers.Activation: lambda layer: slope_of(layer.activation),
    keras.layers.ReLU: _of_relu,
    keras.layers.LeakyReLU: lambda layer: max(1.0, abs(float(layer.negative_slope))),
    # alpha exp(x) for x < 0
    keras.layers.ELU: lambda layer: max(1.0, abs(float(layer.alpha))),
}


def _unchanged(layer, shape):
    """At inference, these are the identity, or put zeros around, or remove numbers."""
    return Known(1.0)


def _moved(layer, shape):
    """They move the numbers of a tensor to other places, or |max a - max b| <= |a - b|."""
    return Known(1.0, keeps_channels=False)


def _repeated(layer, shape):
    """Every pixel is repeated equally often."""
    if getattr(layer, "interpolation", "nearest") != "nearest":
        return None
    return Known(math.sqrt(np.prod(layer.size)))


def _pooled(weight):
    """Returns the function for pooling over windows.

    The square of the constant is the product over the axes of the largest sum, over the windows
    that contain a pixel, of the weight of the pixel in them: for the mean, by Schur's test, since
    the rows of its matrix add up to 1; for the maximum, since |max a - max b| <= |a - b|.
    """

    def function(layer, shape):
        is_last = layer.data_format == "channels_last"
        grid, square = (shape[1:-1] if is_last else shape[2:]), 1.0
        if None in grid:
            return None
        for pixels, size, stride in zip(grid, layer.pool_size, layer.strides, strict=True):
            count, _, _, front = of_padding(layer.padding, size, pixels, stride, 1)
            sums = np.zeros(pixels)
            for place in range(count):
                start = place * stride - front
                window = slice(max(start, 0), min(start + size, pixels))
                sums[window] += weight(window.stop - window.start)
            square *= sums.max()
        return Known(math.sqrt(square))

    return function


def _global_mean(layer, shape):
    grid = shape[1:-1] if layer.data_format == "channels_last" else shape[2:]
    if None in grid:
        return None
    return Known(1 / math.sqrt(np.prod(grid)), keeps_channels=False)


def _of_axes(*names):
    """Returns the layers of some names for one, two and three spatial axes."""
    return [getattr(keras.layers, f"{name}{axes}D") for name in names for axes in (1, 2, 3)]


_OTHERS = {
    layer: function
    for function, layers in (
        (
            _unchanged,
            [
                keras.layers.Identity,
                keras.layers.ActivityRegularization,
                keras.layers.Dropout,
                keras.layers.GaussianDropout,
                keras.layers.GaussianNoise,
                *_of_axes("SpatialDropout", "ZeroPadding", "Cropping"),
            ],
        ),
        (
            _moved,
            [
                keras.layers.Flatten,
                keras.layers.Reshape,
                keras.layers.Permute,
                *_of_axes("GlobalMaxPooling"),
            ],
        ),
        (_repeated, _of_axes("UpSampling")),
        (_pooled(lambda count: 1 / count), _of_axes("AveragePooling")),
        (_pooled(lambda count: 1.0), _of_axes("MaxPooling")),
        (_global_mean, _of_axes("GlobalAveragePooling")),
    )
    for layer in layers
}
