"""Change of shape without weights: subsamples rows and columns and appends zero channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.backends import BACKEND

if BACKEND == "tensorflow":
    import tensorflow as tf

if TYPE_CHECKING:
    from tfresidual.definitions.types import DataFormat, Shape, Tensor


def kept_pixels(inputs: Tensor, rows: int, columns: int, data_format: DataFormat) -> Tensor:
    """Returns every `rows`-th row and `columns`-th column of images, beginning with the first.

    TensorFlow copies slices with steps number by number, which takes longer than the convolution
    that follows, and those without steps pixel by pixel. Where the sizes are multiples of the
    steps, the rows kept are the first of each group, and the pixels the first of theirs. It has to
    be `tf.slice`: of an index without steps, the gradient is as slow as of one with steps.
    """
    if data_format == "channels_first":
        return inputs[:, :, ::rows, ::columns]
    _, height, width, channels = inputs.shape
    is_tensor = BACKEND == "tensorflow" and isinstance(inputs, tf.Tensor)
    if not is_tensor or None in (height, width, channels) or height % rows or width % columns:
        return inputs[:, ::rows, ::columns, :]
    height, width = height // rows, width // columns
    grouped = tf.reshape(inputs, (-1, rows, width, columns * channels))
    first = tf.slice(grouped, (0, 0, 0, 0), (-1, 1, width, channels))
    return tf.reshape(first, (-1, height, width, channels))


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
        self.filters: int = filters
        self.strides: int = strides
        self.data_format: DataFormat = data_format or keras.config.image_data_format()

    def build(self, input_shape: Shape) -> None:
        channels = input_shape[self._channel_axis]
        if channels is None or channels > self.filters:
            raise ArgumentError(
                "filters",
                "be at least the number of channels of the input, since channels are only appended",
                received=f"filters={self.filters}, input_shape={input_shape}",
            )

    @property
    def _channel_axis(self):
        return 3 if self.data_format == "channels_last" else 1

    def call(self, inputs: Tensor) -> Tensor:
        missing = self.filters - inputs.shape[self._channel_axis]
        kept = kept_pixels(inputs, self.strides, self.strides, self.data_format)
        if not missing:
            return kept
        shape = list(ops.shape(kept))
        shape[self._channel_axis] = missing
        # Not `ops.pad`, with which graphs of TensorFlow crashed on CPUs.
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
