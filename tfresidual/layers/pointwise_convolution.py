"""1x1 convolutions with a stride."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.layers.subsampling import kept_pixels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class PointwiseConvolution(keras.layers.Conv2D):
    """`keras.layers.Conv2D` with a 1x1 kernel that skips rows and columns before it convolves.

    A 1x1 convolution with a stride reads only every `strides`-th row and column, so dropping the
    others first gives the same numbers. It is faster, and does not depend on a kernel of oneDNN
    with which training crashed on CPUs.

    Example:

    >>> PointwiseConvolution(16, strides=2)(keras.ops.ones((2, 9, 9, 4))).shape
    TensorShape([2, 5, 5, 16])

    Args:
        filters: int, channels of the output.
        strides: int or pair of ints, step between the rows and columns that are read.
        **kwargs: the other arguments of `keras.layers.Conv2D`.
    """

    def __init__(self, filters: int, strides: int | Iterable[int] = 1, **kwargs: Any) -> None:
        super().__init__(filters, 1, strides=strides, **kwargs)

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        rows, columns = self.strides
        kept = kept_pixels(inputs, rows, columns, self.data_format)
        return ops.conv(kept, kernel, padding="valid", data_format=self.data_format)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["kernel_size"]
        return config
