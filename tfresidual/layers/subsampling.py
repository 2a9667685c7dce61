"""Change of shape without weights: subsamples rows and columns and appends zero channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_int

if TYPE_CHECKING:
    from tfresidual.definitions.types import DataFormat, Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class Subsampling(keras.layers.Layer):
    """Keeps every `strides`-th row and column and appends channels of zeros.

    It is the parameter-free shortcut of the downsampling block between two stages.

    Example:

    >>> Subsampling(32)(keras.ops.ones((2, 8, 8, 16))).shape
    TensorShape([2, 4, 4, 32])

    Args:
        filters: int, channels of the output, at least those of the input.
        strides: int, step between the rows and columns that are kept.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        appendix A.
    """

    def __init__(
        self, filters: int, strides: int = 2, data_format: DataFormat | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.filters: int = check_int("filters", filters, at_least=1)
        self.strides: int = check_int("strides", strides, at_least=1)
        self.data_format: DataFormat = data_format or keras.config.image_data_format()

    def build(self, input_shape: Shape) -> None:
        channels = input_shape[self._channel_axis]
        if channels is None or channels > self.filters:
            raise ArgumentError(
                "filters",
                "be at least the number of channels of the input, since channels are only appended",
                said=f"filters={self.filters}, input_shape={input_shape}",
            )

    @property
    def _channel_axis(self):
        return 3 if self.data_format == "channels_last" else 1

    def call(self, inputs: Tensor) -> Tensor:
        stride = self.strides
        missing = self.filters - inputs.shape[self._channel_axis]
        if self.data_format == "channels_last":
            kept = inputs[:, ::stride, ::stride, :]
        else:
            kept = inputs[:, :, ::stride, ::stride]
        if not missing:
            return kept
        shape = list(ops.shape(kept))
        shape[self._channel_axis] = missing
        # Not `ops.pad`: TensorFlow fuses the addition of its result with a 1x1 convolution and its
        # bias into an operation that crashes on CPUs.
        return ops.concatenate([kept, ops.zeros(shape, kept.dtype)], axis=self._channel_axis)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        shape = [size and -(-size // self.strides) for size in input_shape]
        shape[0] = input_shape[0]
        shape[self._channel_axis] = self.filters
        return tuple(shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "filters": self.filters,
            "strides": self.strides,
            "data_format": self.data_format,
        }
