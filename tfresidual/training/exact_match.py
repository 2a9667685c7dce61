"""Accuracy for images with several labels."""

import keras

from tfresidual.routing.scores import exact_match


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
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        on Digitclutter.
    """

    def __init__(self, name="exact_match", dtype=None):
        super().__init__(exact_match, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}
