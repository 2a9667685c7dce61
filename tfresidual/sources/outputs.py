"""What the outputs of a model are: classes or values, probabilities or logits."""

import keras
import tensorflow as tf

from tfresidual.routing.losses import (
    OF_CLASSES,
    OF_DIVERGENCES,
    OF_LABELS,
    is_one_of,
    single,
    takes_probabilities,
)
from tfresidual.sources.graph import is_of_keras, unwrapped

# The kinds of probabilities that a last activation can return.
PROBABILITIES = ("probabilities", "label_probabilities")
_KINDS = {
    keras.activations.softmax: "probabilities",
    keras.activations.sigmoid: "label_probabilities",
    keras.activations.linear: "logits",
    keras.activations.log_softmax: "logits",
    keras.ops.softmax: "probabilities",
    keras.ops.sigmoid: "label_probabilities",
    tf.nn.softmax: "probabilities",
    tf.nn.sigmoid: "label_probabilities",
}
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
# Layers that return the numbers they take, in another shape or dtype, and operations that do.
_KEEPING = (keras.layers.Dropout, keras.layers.Flatten, keras.layers.Identity, keras.layers.Reshape)
_KEEPING_OPERATIONS = ("Cast", "Clip", "ConvertToTensor", "Reshape", "Squeeze")
# Pooling layers, which return means of probabilities.
_MEANS = (
    *(keras.layers.GlobalAveragePooling1D, keras.layers.GlobalAveragePooling2D),
    keras.layers.GlobalAveragePooling3D,
)


def outputs_of(model, kind):
    """Returns the kind of the outputs of a model, as in `tfresidual.routing.Chain.outputs`.

    The last activation, whose `kind` is that of `kind_of`, is examined first. Otherwise the kind
    follows from the loss: a regression loss means values, a binary cross-entropy or a hinge one
    label per output, any other loss classes. With a cross-entropy of classes, sigmoids are of
    classes too, as Keras takes them: it normalizes them, or takes the softmax of their logits. A
    cross-entropy without `from_logits`, or a divergence, takes probabilities, unless the last layer
    is known to end without an activation. Without either, outputs are logits.
    """
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


def kind_of_graph(graph):
    """Returns the kind of what the last activation of a graph returns, or `None`."""
    tensor, is_mean = graph.output, False
    for node in reversed(graph.nodes):
        if tensor is not node.outputs[0]:
            continue
        is_pooling = isinstance(node.operation, _MEANS)
        if not (is_pooling or _keeps_numbers(node.operation)) or len(node.inputs) != 1:
            kind = kind_of(node.operation)
            return kind if kind in PROBABILITIES or not is_mean else None
        is_mean = is_mean or is_pooling
        (tensor,) = node.inputs
    return None


def _keeps_numbers(operation):
    if isinstance(operation, keras.layers.Activation):
        return operation.activation is keras.activations.linear
    return isinstance(operation, _KEEPING) or is_of_keras(operation, *_KEEPING_OPERATIONS)


def kind_of(operation):
    """Returns the kind of what an operation or layer returns by its activation, or `None`."""
    operation = unwrapped(operation)
    if isinstance(operation, keras.layers.Softmax) or is_of_keras(operation, "Softmax"):
        return "probabilities" if operation.axis == -1 else None
    if not isinstance(operation, keras.layers.Layer):
        return "label_probabilities" if is_of_keras(operation, "Sigmoid") else None
    activation = getattr(operation, "activation", None)
    if isinstance(activation, keras.layers.Layer):
        # The activation layer is not called here, since its weights may not exist yet.
        return kind_of(activation)
    return next((kind for known, kind in _KINDS.items() if activation is known), None)
