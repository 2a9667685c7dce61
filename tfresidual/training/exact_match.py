"""Accuracy for images with several labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from tfresidual.definitions.metrics import exact_match

if TYPE_CHECKING:
    from tfresidual.definitions.types import DType


@keras.saving.register_keras_serializable(package="tfresidual")
class ExactMatch(keras.metrics.MeanMetricWrapper):
    """Fraction of images, in [0, 1], whose n highest outputs are exactly their n labels.

    Example:

    >>> metric = ExactMatch()
    >>> metric.update_state([[1, 1, 0], [1, 0, 0]], [[0.9, 0.8, 0.1], [0.2, 0.3, 0.1]])
    >>> float(metric.result())
    0.5

    Args:
        name: name of the metric in the logs.
        dtype: dtype of the result.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets"
    """

    def __init__(self, name: str = "exact_match", dtype: DType | None = None) -> None:
        super().__init__(exact_match, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}
