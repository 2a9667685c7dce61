"""Stochastic depth: drops the branch of single images in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import check_number

if TYPE_CHECKING:
    from tfresidual.definitions.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class StochasticDepth(keras.layers.Layer):
    """Drops a residual branch in training: `factor * branch`, with one factor per image.

    In training, the factor of an image is 0 with probability `rate`, else `1 / (1 - rate)`. Its
    mean is 1. At inference, the branch is returned as it is. (The paper has factors of 0 and 1 in
    training and `1 - rate` at inference, and one factor for all images of a batch. In both, the
    mean in training is what inference computes.) Put it at the end of a branch, before the
    addition. Inputs are of any rank, `(batch, ...)`.

    Example:

    >>> inputs = keras.Input((8, 8, 16))
    >>> branch = keras.layers.Conv2D(16, 3, padding="same")(inputs)
    >>> outputs = keras.layers.add([inputs, StochasticDepth(0.2)(branch)])

    Args:
        rate: float in [0, 1), probability that the branch of an image is dropped.
        seed: int or `None`, seed of the drawing. Do not set it in several layers of a network:
            layers with the same seed drop the branches of the same images.

    Reference:
        Huang et al. 2016, https://arxiv.org/abs/1603.09382, section 3.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate: float = check_number("rate", rate, at_least=0, below=1)
        self.seed: int | None = seed
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)
        if not training or self.rate == 0:
            return inputs
        shape = (ops.shape(inputs)[0], *[1] * (len(inputs.shape) - 1))
        drawn = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        factor = ops.cast(drawn >= self.rate, "float32") / (1 - self.rate)
        return inputs * ops.cast(factor, inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"rate": self.rate, "seed": self.seed}
