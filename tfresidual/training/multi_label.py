"""The loss of images with several labels."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tfresidual")
class MultiLabelCrossentropy(keras.losses.Loss):
    """Sum over the classes of the binary cross-entropy of each, 0 or more an image.

    Keras' own binary cross-entropy is the mean over the classes; the sum gives each class the
    weight it would have alone, so that the learning rates of the papers fit.

    Example:

    >>> loss = MultiLabelCrossentropy()
    >>> round(float(loss(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))), 3)
    1.386

    Args:
        reduction: how the losses of the images are put together, as in `keras.losses.Loss`.
        name: name of the loss.
        dtype: dtype in which it is computed.
    """

    def __init__(
        self, reduction="sum_over_batch_size", name="multi_label_crossentropy", dtype=None
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true, y_pred):
        labels = ops.cast(y_true, y_pred.dtype)
        return ops.sum(ops.binary_crossentropy(labels, y_pred), axis=-1)
