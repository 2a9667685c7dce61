"""The scalar biases of Fixup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

if TYPE_CHECKING:
    from tfresidual.definitions.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class ScalarBias(keras.layers.Layer):
    """Adds one learned number, which is initially 0, to all features, `(batch, ...)`.

    Networks without normalization that are initialized by Fixup have it before each convolution,
    dense layer and activation of a branch, and a learned factor, initially 1, at its end:
    `LayerScale(1.0, axis=None)`.

    Example:

    >>> inputs = keras.Input((8, 8, 16))
    >>> outputs = keras.layers.ReLU()(ScalarBias()(inputs))

    Reference:
        Zhang et al. 2019, https://arxiv.org/abs/1901.09321, section 3.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        self.bias = self.add_weight(shape=(), initializer="zeros", name="bias")
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)
        return inputs + ops.cast(ops.convert_to_tensor(self.bias), inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config()
