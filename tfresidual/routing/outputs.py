"""What a head returns, and the labels that go with it."""

import numpy as np

# What a head returns, by name.
OUTPUTS, LOGITS = "outputs", "logits"


def named_outputs(outputs):
    """What a head returns, by name: the outputs, and the logits where Keras left them there."""
    values = {OUTPUTS: outputs}
    # Keras leaves the logits on the tensor that a softmax or a sigmoid returns.
    logits = getattr(outputs, "_keras_logits", None)
    return values if logits is None else values | {LOGITS: logits}


def check_labels(kind, labels, outputs, with_signs=False):
    """Raises a `ValueError` unless labels can be those of a network's outputs.

    Args:
        kind: what the outputs are, see `tfresidual.routing.Chain`.
        labels: array of the labels of some images, as `prediction_scores` takes them.
        outputs: int, the number of outputs of an image.
        with_signs: whether the loss is one of 1 and -1, which stands for 0.
    """
    if not len(labels):
        return
    if labels.dtype.kind in "OSUc":
        raise ValueError(
            "Argument `data` must hold labels that are numbers. "
            f"Received: labels such as {labels.ravel()[0]!r}"
        )
    numbers = labels.astype(float)
    shape = labels.shape[1:]
    has_two_classes = is_binary(kind, outputs)
    highest = 1 if has_two_classes else outputs - 1
    is_row = shape == (outputs,) and outputs > 1
    is_whole = has_two_classes or (numbers == np.round(numbers)).all()
    is_index = shape in ((), (1,)) and labels.max() <= highest and is_whole
    lowest = -1 if with_signs and kind.startswith("label") else 0
    if not (is_row or is_index) or not labels.min() >= lowest or not np.isfinite(numbers).all():
        rows = f", or a row of {outputs} for each image" if outputs > 1 else ""
        raise ValueError(
            f"Argument `data` must hold labels from 0 to {highest}{rows}. Received: labels of "
            f"shape {labels.shape} from {labels.min()} to {labels.max()}"
        )


def is_binary(kind, outputs):
    """Whether one output tells two classes apart: 1, where it is over 1/2, and 0."""
    return kind.startswith("label") and outputs == 1
