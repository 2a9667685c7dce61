"""Finds out what the outputs of a model are: classes or values, probabilities or logits."""

import keras
import numpy as np
from keras import ops

from tfresidual.routing.losses import (
    OF_CLASSES,
    OF_DIVERGENCES,
    OF_LABELS,
    is_one_of,
    single,
    takes_probabilities,
)
from tfresidual.sources.operations import is_of_keras, unwrapped

# The kinds of probabilities that a last activation can return.
PROBABILITIES = ("probabilities", "label_probabilities")
_KINDS = {
    keras.activations.softmax: "probabilities",
    keras.activations.sigmoid: "label_probabilities",
    keras.activations.linear: "logits",
}
# Inputs by which activations can be told apart.
_ROWS = np.array([[-9.0, 0.0, 9.0, 0.0], [1.0, 2.0, -3.0, 0.5]], "float32")
_OF = keras.losses
_LABEL_LOSSES = (
    *OF_LABELS,
    *(_OF.Hinge, _OF.hinge, _OF.SquaredHinge, _OF.squared_hinge),
)
_REGRESSIONS = (
    *(_OF.MeanSquaredError, _OF.mean_squared_error, _OF.MeanAbsoluteError, _OF.mean_absolute_error),
    *(_OF.MeanAbsolutePercentageError, _OF.mean_absolute_percentage_error),
    *(_OF.MeanSquaredLogarithmicError, _OF.mean_squared_logarithmic_error),
    *(_OF.Huber, _OF.huber, _OF.LogCosh, _OF.log_cosh),
    *(_OF.CosineSimilarity, _OF.cosine_similarity, _OF.Poisson, _OF.poisson),
)
# Pooling layers, which return means of probabilities.
_MEANS = (
    *(keras.layers.GlobalAveragePooling1D, keras.layers.GlobalAveragePooling2D),
    keras.layers.GlobalAveragePooling3D,
)


def outputs_of(model, last=None, kind=None):
    """Returns the kind of the outputs of a model, as in `tfresidual.routing.Chain.outputs`.

    The last activation is examined first, by what it does to numbers. Otherwise the kind follows
    from the loss: a regression loss means values, a binary cross-entropy or a hinge one label per
    output, any other loss classes. With a cross-entropy of classes, sigmoids are of classes too, as
    Keras takes them: it normalizes them, or takes the softmax of their logits. A cross-entropy
    without `from_logits`, or a divergence, takes probabilities, unless the last layer is known to
    end without an activation. Without either, outputs are logits, unless it is known of the numbers
    that they are of some `kind`.
    """
    kind = kind or kind_of(model, last)
    loss = keras.losses.get(single(model.loss)) if model.compiled else None
    if kind == "label_probabilities" and is_one_of(loss, OF_CLASSES):
        return "probabilities"
    if kind in PROBABILITIES:
        return kind
    if is_one_of(loss, _REGRESSIONS):
        return "values"
    labels = "label_" if is_one_of(loss, _LABEL_LOSSES) else ""
    is_known = kind is not None
    return labels + ("probabilities" if takes_probabilities(loss) and not is_known else "logits")


def is_guessed(model, kind):
    """Returns whether neither the last activation nor a loss of Keras says what outputs are."""
    loss = single(model.loss) if model.compiled else None
    if kind in PROBABILITIES or isinstance(loss, (list, tuple, dict)):
        return False
    if loss is None:
        return kind is None
    known = (*_REGRESSIONS, *_LABEL_LOSSES, *OF_CLASSES, *OF_DIVERGENCES)
    return not is_one_of(keras.losses.get(loss), known)


def kind_of_numbers(outputs):
    """Returns the kind of outputs that are rows of probabilities which add up to 1, or `None`."""
    rows = np.asarray(ops.cast(outputs, "float32"), float)
    rows = rows.reshape(-1, rows.shape[-1])
    is_one = rows.shape[1] > 1 and (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3)
    return "probabilities" if is_one else None


def last_operation(graph):
    """Returns the operation that returns the outputs, or one that made what they are."""
    tensor, last = graph.output, None
    for node in reversed(graph.nodes):
        if tensor is not node.outputs[0]:
            continue
        if _kind_of_operation(node.operation) in PROBABILITIES:
            return node.operation
        keeps_all = _keeps_numbers(node, -3.0, 3.0)
        if last is None and not keeps_all:
            last = node.operation
        if not (
            keeps_all or isinstance(node.operation, _MEANS) or _keeps_numbers(node, 0.05, 0.95)
        ):
            break
        (tensor,) = node.inputs
    return graph.nodes[-1].operation if last is None else last


def kind_of(model, last=None):
    """Returns the kind of what the last operation returns, by default the last layer; or `None`."""
    return _kind_of_operation(model.layers[-1] if last is None else last)


def _kind_of_operation(operation):
    operation = unwrapped(operation)
    if isinstance(operation, keras.layers.Softmax) or is_of_keras(operation, "Softmax"):
        return "probabilities" if operation.axis == -1 else None
    if not isinstance(operation, keras.layers.Layer):
        return "label_probabilities" if is_of_keras(operation, "Sigmoid") else None
    is_lambda = isinstance(operation, keras.layers.Lambda)
    activation = operation if is_lambda else getattr(operation, "activation", None)
    for known, kind in _KINDS.items():
        if activation is known:
            return kind
    if isinstance(activation, keras.layers.Layer) and not is_lambda:
        # The activation layer is not called here, since its weights may not exist yet.
        return _kind_of_operation(activation)
    return None if activation is None else _kind_by_numbers(activation)


def _kind_by_numbers(activation):
    """Returns the kind of what a function of rows returns, found by applying it to some rows."""
    try:
        values = ops.convert_to_numpy(activation(ops.convert_to_tensor(_ROWS))).astype(float)
    except Exception:
        # A function written by a user may raise any error on inputs that it was not made for.
        return None
    if values.shape != _ROWS.shape:
        return None
    shift = values - _ROWS
    # A softmax ignores a number added to a whole row, so such a function still returns logits; a
    # log-softmax is one.
    if np.allclose(shift, shift[:, :1], atol=1e-3):
        return "logits"
    if (values >= 0).all() and np.allclose(values.sum(axis=-1), 1, atol=1e-3):
        return "probabilities"
    is_sigmoid = np.allclose(values[0], [0, 0.5, 1, 0.5], atol=1e-3)
    return "label_probabilities" if is_sigmoid else None


def _keeps_numbers(node, low, high):
    """Returns whether an operation of a graph leaves numbers between two bounds unchanged."""
    operation = node.operation
    # Code written by users is not run here, since it may have side effects or be random.
    is_known = type(operation).__module__.startswith(("keras.", "tfresidual."))
    if not is_known or len(node.inputs) != 1 or getattr(operation, "weights", ()):
        return False
    (tensor,) = node.inputs
    shape = (1, *tensor.shape[1:])
    if None in shape:
        return False
    values = np.linspace(low, high, np.prod(shape, dtype=int)).astype("float32")
    try:
        given = ops.cast(ops.reshape(values, shape), tensor.dtype)
        result = ops.cast(node({id(tensor): given})[id(node.outputs[0])], "float32")
        result = ops.convert_to_numpy(result)
    except Exception:
        # A function in a `Lambda` may raise any error.
        return False
    # bfloat16 rounds by 0.4 %.
    return result.size == values.size and np.allclose(result.ravel(), values, atol=0.02)
