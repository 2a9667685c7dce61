"""The outputs of a head, and scores of predictions, by image or position. TensorFlow only."""

import numpy as np
import tensorflow as tf
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.metrics import exact_match, label_margin

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
            "data", "hold labels that are numbers", received=f"labels such as {labels.ravel()[0]!r}"
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
            received=f"1 output, taken for {kind}",
        )
    if not (is_row or is_index) or not labels.min() >= lowest or not np.isfinite(numbers).all():
        rows = f", or a row of {outputs} per {of}" if outputs > 1 else ""
        raise ArgumentError(
            "data",
            f"hold labels from 0 to {highest}{rows}",
            received=f"labels of shape {labels.shape} from {labels.min()} to {labels.max()}",
        )


def is_binary(kind, outputs):
    """Returns whether a single output decides between two classes, 1 (if it is over 1/2) and 0."""
    return kind.startswith("label") and outputs == 1


def prediction_scores(kind, labels, outputs):
    """Scores predictions, image by image, or position by position.

    Outputs that are not finite predict no class: they are wrong, agree with nothing, and their
    cross-entropy and entropy may be infinite or NaN. With a logit of minus infinity, the entropy is
    finite, and the cross-entropy is infinite only if it is the logit of the label. A single label
    output is a choice between two classes: 1 is predicted if its probability is over 1/2.

    Args:
        kind: the kind of the outputs, see `tfresidual.routing.Chain`.
        labels: class indices, `(images,)` or `(images, 1)`, one-hot rows, or k-hot rows if an image
            has several labels; 0 or 1 for a single output. -1 stands for 0. For outputs per
            position, each with an axis of positions after that of images.
        outputs: `(images, classes)` or `(images, positions, classes)`.

    Returns:
        A dict of tensors with a leading axis of images, and of positions if the outputs have one:

        - `wrong`: 1.0 if the n highest outputs are not the n labels (`exact_match`), otherwise 0.0.
        - `cross_entropy`: in nats, 0 or more; with label outputs, the sum over the classes.
        - `entropy`: of the prediction, in nats, from 0 to log(classes); with label outputs, the sum
          over the classes, each up to log(2).
        - `margin`: the (lowest) probability of a label minus the highest of another class, in [-1,
          1]; for one output, the probability of the right class minus that of the wrong class.
        - `predicted`: bool, `(images, classes)`; for a single output, whether 1 is predicted.
        - `is_finite`: bool, whether the outputs are finite, or the logits they come from.
    """
    outputs = ops.convert_to_tensor(outputs)
    has_two_classes = is_binary(kind, outputs.shape[-1])
    labels = _rows_of(labels, outputs, has_two_classes)
    # Keras stores the logits on the tensor that a softmax or a sigmoid returns.
    logits = outputs if kind.endswith("logits") else getattr(outputs, "_keras_logits", None)
    if logits is not None:
        logits = ops.cast(logits, "float32")
    outputs = ops.cast(outputs, "float32")
    if kind.startswith("label"):
        if logits is None:
            logits = ops.log(_with_finite_logarithm(outputs)) - ops.log(
                _with_finite_logarithm(1 - outputs)
            )
        p = ops.sigmoid(logits)
        log_p, log_rest = -ops.softplus(-logits), -ops.softplus(logits)
        cross_entropy = -ops.sum(_shared(labels, log_p) + _shared(1 - labels, log_rest), axis=-1)
        entropy = -ops.sum(_shared(p, log_p) + _shared(1 - p, log_rest), axis=-1)
    else:
        if logits is None:
            # As the cross-entropies of Keras do, for probabilities that do not add up to 1.
            p = _with_finite_logarithm(outputs)
            log_p = ops.log(p) - ops.log(ops.sum(p, axis=-1, keepdims=True))
        else:
            log_p = ops.log_softmax(logits)
        cross_entropy = -ops.sum(_shared(labels, log_p), axis=-1)
        p = ops.exp(log_p)
        entropy = -ops.sum(_shared(p, log_p), axis=-1)
    if has_two_classes:
        predicted, is_label = logits > 0, labels > 0.5
        wrong = ops.cast(predicted[..., 0] != is_label[..., 0], "float32")
        margin = ops.where(is_label, 1.0, -1.0)[..., 0] * (2 * p[..., 0] - 1)
    elif kind.startswith("label"):
        # Ranks logits, because different logits may give equal probabilities near 1 in float32.
        ranks = ops.argsort(ops.argsort(-logits, axis=-1), axis=-1)
        # With smoothed labels, a class is a label if it is over 1/2, as in `label_margin`.
        count = ops.sum(ops.cast(labels > 0.5, "float32"), axis=-1, keepdims=True)
        predicted = ops.cast(ranks, "float32") < count
        wrong, margin = 1 - exact_match(labels, logits), label_margin(labels, p)
    else:
        classes = outputs.shape[-1]
        named, label = ops.argmax(outputs, axis=-1), ops.argmax(labels, axis=-1)
        wrong = ops.cast(named != label, "float32")
        margin = label_margin(ops.one_hot(label, classes), p)
        predicted = ops.one_hot(named, classes, dtype="bool")
    is_finite = ops.all(ops.isfinite(outputs if logits is None else logits), axis=-1)
    return {
        "wrong": ops.where(is_finite, wrong, ops.ones_like(wrong)),
        "cross_entropy": cross_entropy,
        "entropy": entropy,
        # Clipped, since the margin is infinite without another class or without a label.
        "margin": ops.clip(margin, -1.0, 1.0),
        "predicted": ops.logical_and(predicted, is_finite[..., None]),
        "is_finite": is_finite,
    }


def _rows_of(labels, outputs, has_two_classes):
    """Returns labels as rows of the shape of the outputs, in float32 and 0 or more."""
    labels, classes = ops.convert_to_tensor(labels), outputs.shape[-1]
    # One entry per image or position.
    single = (-1, *ops.shape(outputs)[1:-1])
    if has_two_classes:
        labels = ops.reshape(labels, (*single, 1))
    elif len(labels.shape) < len(outputs.shape) or labels.shape[-1] != classes:
        labels = ops.one_hot(ops.reshape(labels, single), classes)
    # A hinge loss labels the other class -1.
    return ops.maximum(ops.cast(labels, "float32"), 0)


def _shared(shares, logs):
    """Returns logarithms times their shares; a share of 0 adds nothing, even of infinity."""
    return tf.math.multiply_no_nan(logs, tf.cast(shares, logs.dtype))


def label_sets(kind, labels, outputs):
    """Returns which classes are the labels of each image, bool, `(images, outputs)`.

    Labels may be smoothed, or 1 and -1: if classes exclude one another, the label is the class with
    the highest weight; otherwise, all classes with a weight over 1/2.
    """
    if is_binary(kind, outputs):
        return labels.reshape(-1, 1) > 0.5
    is_row = labels.ndim == 2 and labels.shape[1] == outputs
    if is_row and kind.startswith("label"):
        return labels > 0.5
    indices = labels.argmax(axis=1) if is_row else labels.reshape(-1).astype(int)
    return np.arange(outputs) == indices[:, None]


def _with_finite_logarithm(probabilities):
    """Returns probabilities raised to a minimum, so that their logarithm is finite."""
    return ops.maximum(probabilities, 1e-37)
