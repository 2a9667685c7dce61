"""Loss for images with several labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

if TYPE_CHECKING:
    from tfresidual.definitions.types import DType, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class MultiLabelCrossentropy(keras.losses.Loss):
    """Sum of the binary cross-entropies of all classes, at least 0 per image.

    Keras' own binary cross-entropy is the mean over the classes. With the sum, each class has the
    weight it would have alone, so that the learning rates of the papers apply.

    Example:

    >>> loss = MultiLabelCrossentropy()
    >>> round(float(loss(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))), 3)
    1.386

    The arguments are those of `keras.losses.Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "multi_label_crossentropy",
        dtype: DType | None = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        labels = ops.cast(y_true, y_pred.dtype)
        return ops.sum(ops.binary_crossentropy(labels, y_pred), axis=-1)
