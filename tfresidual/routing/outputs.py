"""The outputs of a head, and checks of the labels for them."""

import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError

# The names of what a head returns.
OUTPUTS, LOGITS = "outputs", "logits"


def named_outputs(outputs):
    """Returns a dict of the outputs of a head and, if Keras has stored them, the logits."""
    values = {OUTPUTS: outputs}
    # Keras stores the logits on the tensor that a softmax or a sigmoid returns.
    logits = getattr(outputs, "_keras_logits", None)
    return values if logits is None else values | {LOGITS: logits}


def with_logits(values):
    """Returns the outputs that `named_outputs` took, with the logits where Keras stores them."""
    outputs = values[OUTPUTS]
    if LOGITS in values:
        outputs._keras_logits = values[LOGITS]
    return outputs


def logits_of(outputs, *operations):
    """Returns the logits that the cross-entropies of Keras take instead of some outputs, or `None`.

    Keras stores them on the tensor of its own softmax or sigmoid; in a graph, it also finds those
    of the operations of TensorFlow named `"Softmax"` or `"Sigmoid"`.
    """
    logits = getattr(outputs, "_keras_logits", None)
    if logits is None and operation_of(outputs) in operations:
        (logits,) = outputs.op.inputs
    return logits


def operation_of(outputs):
    """Returns the type of the operation that made a tensor of a graph, `None` outside of one."""
    return outputs.op.type if tf.is_symbolic_tensor(outputs) else None


def check_labels(kind, labels, outputs, with_signs=False, of="image"):
    """Raises a `ValueError` unless the labels fit the outputs of a network.

    Args:
        kind: the kind of the outputs, see `tfresidual.routing.Chain`.
        labels: array of the labels of some images, as for `prediction_scores`, or of positions.
        outputs: int, the number of outputs per image or position.
        with_signs: whether the loss takes labels 1 and -1, where -1 stands for 0.
        of: what each of the labels belongs to, `"image"` or `"position"`.
    """
    if not len(labels):
        return
    if labels.dtype.kind in "OSUc":
        raise ArgumentError(
            "data", "hold labels that are numbers", said=f"labels such as {labels.ravel()[0]!r}"
        )
    numbers = labels.astype(float)
    shape = labels.shape[1:]
    has_two_classes = is_binary(kind, outputs)
    highest = 1 if has_two_classes else outputs - 1
    is_row = shape == (outputs,) and outputs > 1
    is_whole = has_two_classes or (numbers == np.round(numbers)).all()
    is_index = shape in ((), (1,)) and labels.max() <= highest and is_whole
    lowest = -1 if with_signs and kind.startswith("label") else 0
    if outputs == 1 and not has_two_classes:
        raise ArgumentError(
            "chain",
            "return more than one class: its single output was taken for a logit of classes that "
            "exclude one another, since no activation and no loss of Keras say what it is. "
            "`tfresidual.chain(model, outputs='label_logits')` declares it as a choice between "
            "0 and 1, `'values'` as a number",
            said=f"1 output, taken for {kind}",
        )
    if not (is_row or is_index) or not labels.min() >= lowest or not np.isfinite(numbers).all():
        rows = f", or a row of {outputs} per {of}" if outputs > 1 else ""
        raise ArgumentError(
            "data",
            f"hold labels from 0 to {highest}{rows}",
            said=f"labels of shape {labels.shape} from {labels.min()} to {labels.max()}",
        )


def is_binary(kind, outputs):
    """Returns whether a single output decides between two classes, 1 (if it is over 1/2) and 0."""
    return kind.startswith("label") and outputs == 1
