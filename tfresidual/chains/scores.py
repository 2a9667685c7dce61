"""What a network's outputs are worth, image by image."""

import inspect
import math

import keras
import numpy as np
from keras import ops


def loss_of(model, last=None):
    """The loss of one image under a model, as a function of labels and outputs.

    It is the loss the model was compiled with. For a model that was not compiled it is inferred
    from the model's last activation and the labels: cross-entropy against class indices (one int
    an image) or one-hot rows, or, for a sigmoid, the mean binary cross-entropy over the outputs.

    A cross-entropy behind a softmax keeps its gradient for images of which the network is sure,
    see `softmax_cross_entropy`.

    Args:
        model: a `keras.Model` with one output.
        last: the layer or operation that returns the outputs, by default the model's last layer.

    Returns:
        A function `(labels, outputs) -> losses` of shape `(images,)`.

    Raises:
        ValueError: if the model was compiled with several losses.
    """
    loss = _single(model.loss) if model.compiled else None
    if isinstance(loss, (list, tuple, dict)):
        raise ValueError(
            "Argument `model` must have one loss, since a probe follows one gradient. "
            f"Received: loss={loss!r}"
        )
    if loss is None:
        kind = _kind_of(model, last)
        if kind == "label_probabilities":
            return loss_from({"loss": "binary_crossentropy", "config": None})
        from_logits = kind != "probabilities"
        return loss_from({"loss": CROSS_ENTROPY, "config": {"from_logits": from_logits}})
    function = keras.losses.get(loss)
    description = _description(function)
    if description is not None:
        return loss_from(description)
    return _per_image(_of_images(function))


def loss_from(description):
    """The loss of one image, from what names it.

    Args:
        description: dict with the name of a loss of Keras or of this package, `"loss"`, and the
            arguments it is made with, `"config"`; `None` for a function.

    Returns:
        A function as `loss_of` returns it. Its attribute `description` is the dict.

    Raises:
        ValueError: if there is no such loss.
    """
    name, config = description["loss"], description["config"]
    if name == CROSS_ENTROPY:
        losses = _cross_entropy(**config)
    else:
        loss = _known_loss(name)
        if loss is None:
            raise ValueError(
                "Argument `description` must name a loss of Keras or of this package. "
                f"Received: description={description!r}"
            )
        losses = _per_image(_of_images(loss if config is None else loss(**config)))
    losses.description = description
    return losses


def _description(function):
    """What names a loss, see `loss_from`; `None` for one that somebody else has written."""
    if function in _CROSS_ENTROPIES:
        return {"loss": CROSS_ENTROPY, "config": {"from_logits": False}}
    if isinstance(function, keras.losses.Loss):
        if _is_plain_cross_entropy(function):
            from_logits = function.get_config()["from_logits"]
            return {"loss": CROSS_ENTROPY, "config": {"from_logits": from_logits}}
        kind, config = type(function), function.get_config()
    else:
        kind, config = function, None
    for name in (getattr(kind, "__name__", ""), keras.saving.get_registered_name(kind)):
        if _known_loss(name) is kind:
            return {"loss": name, "config": config}
    return None


def _known_loss(name):
    """A loss of Keras, or of this package, whose names begin with its own."""
    is_own = name.startswith("tfresidual>")
    found = (
        keras.saving.get_registered_object(name) if is_own else getattr(keras.losses, name, None)
    )
    is_loss = isinstance(found, type) and issubclass(found, keras.losses.Loss)
    is_function = inspect.isfunction(found) and [*inspect.signature(found).parameters][:2] == [
        "y_true",
        "y_pred",
    ]
    return found if is_loss or is_function else None


def _of_images(loss):
    # A loss object averages over the images when it is called; its `call` does not.
    return loss.call if isinstance(loss, keras.losses.Loss) else loss


def outputs_of(model, last=None):
    """What a model returns, as `tfresidual.chains.Chain.outputs` says it.

    The last activation tells first, by what it does to numbers, however it is written: a softmax
    or a sigmoid returns probabilities, even where the model was trained on squares. Otherwise the
    loss tells that the model was compiled with:

    - a loss of regression, such as `"mse"`, is of values that are no classes; so are
      `"cosine_similarity"` and `"poisson"`;
    - a binary cross-entropy, or a hinge of -1 and 1, has one label an output; any other loss has
      classes;
    - a cross-entropy without `from_logits`, or a divergence, takes probabilities. A layer that is
      known to end without an activation returns logits all the same: its outputs have any sign
      and any sum, whatever the loss makes of them.

    Where neither tells anything, the outputs are logits.

    Args:
        model: a `keras.Model` with one output.
        last: the layer or operation that returns the outputs, by default the model's last layer.

    Returns:
        `"probabilities"`, `"logits"`, `"label_probabilities"`, `"label_logits"` or `"values"`.
    """
    kind = _kind_of(model, last)
    if kind in PROBABILITIES:
        return kind
    loss = keras.losses.get(_single(model.loss)) if model.compiled else None
    if _is_one_of(loss, _REGRESSIONS):
        return "values"
    labels = "label_" if _is_one_of(loss, _LABEL_LOSSES) else ""
    takes_probabilities = _is_one_of(loss, _LOSSES_OF_PROBABILITIES) and not (
        isinstance(loss, keras.losses.Loss) and loss.get_config().get("from_logits")
    )
    is_known = kind is not None
    return labels + ("probabilities" if takes_probabilities and not is_known else "logits")


def last_operation(graph):
    """The operation that tells what a graph's outputs are.

    Args:
        graph: a `tfresidual.chains.graph.Graph`.

    Returns:
        The softmax or sigmoid behind which nothing changes a probability (what clips or casts
        does not); without one the last operation that changes any number.
    """
    tensor, last = graph.output, None
    for node in reversed(graph.nodes):
        if tensor is not node.outputs[0]:
            continue
        if _kind_of_operation(node.operation) in PROBABILITIES:
            return node.operation
        if last is None and not _keeps(node, -3.0, 3.0):
            last = node.operation
        if not _keeps(node, 0.05, 0.95):
            break
        (tensor,) = node.inputs
    return graph.nodes[-1].operation if last is None else last


def check_labels(kind, labels, outputs):
    """Raises a `ValueError` unless labels can be those of a network's outputs.

    Args:
        kind: what the outputs are, see `tfresidual.chains.Chain`.
        labels: array of the labels of some images, as `prediction_scores` takes them.
        outputs: int, the number of outputs of an image.
    """
    if not len(labels):
        return
    shape = labels.shape[1:]
    highest = 1 if is_binary(kind, outputs) else outputs - 1
    is_row = shape == (outputs,) and outputs > 1
    is_index = shape in ((), (1,)) and labels.max() <= highest
    if not (is_row or is_index) or not labels.min() >= 0:
        rows = f", or a row of {outputs} for each image" if outputs > 1 else ""
        raise ValueError(
            f"Argument `data` must hold labels from 0 to {highest}{rows}. Received: labels of "
            f"shape {labels.shape} from {labels.min()} to {labels.max()}"
        )


def is_binary(kind, outputs):
    """Whether one output tells two classes apart: 1, where it is over 1/2, and 0."""
    return kind.startswith("label") and outputs == 1


def prediction_scores(kind, labels, outputs):
    """What a prediction is worth, image by image.

    Outputs that are not finite (a network that explodes) name no class: they are wrong, agree
    with nothing, and their cross-entropy and entropy may be infinite or NaN.

    A single output of a label is a choice between two classes: the label is 1 or 0, and 1 is named
    where its probability is over 1/2.

    Args:
        kind: what the outputs are, see `tfresidual.chains.Chain`.
        labels: class indices, `(images,)` or `(images, 1)`, or one-hot rows, or k-hot rows where
            an image has several labels; 0 or 1 where one output tells two classes apart.
        outputs: `(images, classes)`.

    Returns:
        A dict of tensors with a leading axis of images:

        - `wrong`: 1.0 where the highest output is not the label, or, of n labels an image, the n
          highest outputs are not the labels (`exact_match`);
        - `cross_entropy`: in nats, 0 or more; of several labels the sum over them;
        - `entropy`: of the prediction, in nats, from 0 to log(classes); of several labels the sum
          over them, each up to log(2);
        - `margin`: the probability of the label minus the highest of another class, in [-1, 1];
          of several labels the lowest probability of a label minus the highest of another; of two
          classes with one output that of the right one minus that of the wrong one;
        - `predicted`: bool, `(images, classes)`, the class or the classes that are named; of one
          output whether it is 1 that is named;
        - `is_finite`: bool, whether the outputs, or the logits behind them, are.
    """
    outputs = ops.convert_to_tensor(outputs)
    classes = outputs.shape[-1]
    labels = ops.convert_to_tensor(labels)
    has_two_classes = is_binary(kind, classes)
    if has_two_classes:
        labels = ops.reshape(labels, (-1, 1))
    elif len(labels.shape) == 1 or labels.shape[-1] != classes:
        labels = ops.one_hot(ops.reshape(labels, (-1,)), classes)
    labels = ops.cast(labels, "float32")
    # Keras leaves the logits on the tensor that a softmax or a sigmoid returns.
    logits = outputs if kind.endswith("logits") else getattr(outputs, "_keras_logits", None)
    if logits is not None:
        logits = ops.cast(logits, "float32")
    outputs = ops.cast(outputs, "float32")
    if kind.startswith("label"):
        if logits is None:
            logits = ops.log(_inside(outputs)) - ops.log(_inside(1 - outputs))
        p = ops.sigmoid(logits)
        log_p, log_rest = -ops.softplus(-logits), -ops.softplus(logits)
        cross_entropy = -ops.sum(labels * log_p + (1 - labels) * log_rest, axis=-1)
        entropy = -ops.sum(p * log_p + (1 - p) * log_rest, axis=-1)
    else:
        log_p = ops.log(_inside(outputs)) if logits is None else ops.log_softmax(logits)
        cross_entropy = -ops.sum(labels * log_p, axis=-1)
        p = ops.exp(log_p)
        entropy = -ops.sum(p * log_p, axis=-1)
    if has_two_classes:
        predicted, is_label = logits > 0, labels > 0.5
        wrong = ops.cast(predicted[:, 0] != is_label[:, 0], "float32")
        margin = ops.where(is_label, 1.0, -1.0)[:, 0] * (2 * p[:, 0] - 1)
    elif kind.startswith("label"):
        # Probabilities near 1 are equal in float32 where logits are not.
        ranks = ops.argsort(ops.argsort(-logits, axis=-1), axis=-1)
        count = ops.sum(labels, axis=-1, keepdims=True)
        predicted = ops.cast(ranks, "float32") < count
        wrong = 1 - exact_match(labels, logits)
        margin = _margin(labels, p)
    else:
        named = ops.argmax(outputs, axis=-1)
        predicted = ops.one_hot(named, classes, dtype="bool")
        wrong = ops.cast(named != ops.argmax(labels, axis=-1), "float32")
        margin = _margin(labels, p)
    is_finite = ops.all(ops.isfinite(outputs if logits is None else logits), axis=-1)
    return {
        "wrong": ops.where(is_finite, wrong, ops.ones_like(wrong)),
        "cross_entropy": cross_entropy,
        "entropy": entropy,
        # Without another class, or without a label, there is nothing to be behind.
        "margin": ops.clip(margin, -1.0, 1.0),
        "predicted": ops.logical_and(predicted, is_finite[:, None]),
        "is_finite": is_finite,
    }


@ops.custom_gradient
def softmax_cross_entropy(labels, logits):
    """Cross-entropy of a softmax, with a gradient that holds where the network is sure.

    The gradient with respect to the logits is p - y, for labels that sum to one. Where the
    probability p of the right class is close to 1 the difference cancels: at 1 - p = 1e-6 float32
    leaves two digits of it, and its direction is lost. Here 1 - p is the sum of the other
    probabilities, so that each component is as exact as the probabilities are.

    Args:
        labels: rows of weights, 0 or more, `(images, classes)`.
        logits: `(images, classes)`.

    Returns:
        Losses, `(images,)`, 0 or more.
    """
    losses = -ops.sum(labels * ops.log_softmax(logits), axis=-1)

    def gradient(upstream):
        p = ops.softmax(logits)
        is_highest = ops.one_hot(ops.argmax(p, axis=-1), p.shape[-1], dtype=p.dtype)
        others = ops.sum(p * (1 - is_highest), axis=-1, keepdims=True)
        rest = is_highest * others + (1 - is_highest) * (1 - p)
        total = ops.sum(labels, axis=-1, keepdims=True)
        return None, upstream[..., None] * (p * (total - labels) - labels * rest)

    return losses, gradient


def exact_match(labels, outputs):
    """Whether an image's highest outputs are just its labels, 1.0 or 0.0 an image.

    With n labels on an image, its n highest outputs must be those labels; a tie between a label
    and another output does not count.

    Args:
        labels: k-hot rows, `(images, classes)`.
        outputs: scores of any range, `(images, classes)`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        on Digitclutter.
    """
    return ops.cast(_margin(labels, ops.cast(outputs, "float32")) > 0, "float32")


# The cross-entropy of this file among the names of losses.
CROSS_ENTROPY = "cross_entropy"
_CROSS_ENTROPIES = (
    keras.losses.categorical_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
)


# What a last activation can return.
PROBABILITIES = ("probabilities", "label_probabilities")
_KINDS = {
    keras.activations.softmax: "probabilities",
    keras.activations.sigmoid: "label_probabilities",
    keras.activations.linear: "logits",
}
# Numbers that tell activations from one another.
_ROWS = np.array([[-9.0, 0.0, 9.0, 0.0], [1.0, 2.0, -3.0, 0.5]], "float32")
_LABEL_LOSSES = (
    *(keras.losses.BinaryCrossentropy, keras.losses.binary_crossentropy),
    *(keras.losses.BinaryFocalCrossentropy, keras.losses.binary_focal_crossentropy),
    *(keras.losses.Hinge, keras.losses.hinge),
    *(keras.losses.SquaredHinge, keras.losses.squared_hinge),
)
_LOSSES_OF_PROBABILITIES = (
    *_CROSS_ENTROPIES,
    *(keras.losses.CategoricalCrossentropy, keras.losses.SparseCategoricalCrossentropy),
    *(keras.losses.CategoricalFocalCrossentropy, keras.losses.categorical_focal_crossentropy),
    keras.losses.CategoricalGeneralizedCrossEntropy,
    keras.losses.categorical_generalized_cross_entropy,
    *(keras.losses.KLDivergence, keras.losses.kl_divergence),
    *_LABEL_LOSSES[:4],
)
_REGRESSIONS = (
    *(keras.losses.MeanSquaredError, keras.losses.mean_squared_error),
    *(keras.losses.MeanAbsoluteError, keras.losses.mean_absolute_error),
    *(keras.losses.MeanAbsolutePercentageError, keras.losses.mean_absolute_percentage_error),
    *(keras.losses.MeanSquaredLogarithmicError, keras.losses.mean_squared_logarithmic_error),
    *(keras.losses.Huber, keras.losses.huber),
    *(keras.losses.LogCosh, keras.losses.log_cosh),
    *(keras.losses.CosineSimilarity, keras.losses.cosine_similarity),
    *(keras.losses.Poisson, keras.losses.poisson),
)


def _is_one_of(loss, known):
    return any(isinstance(loss, one) if isinstance(one, type) else loss is one for one in known)


def _kind_of(model, last):
    return _kind_of_operation(model.layers[-1] if last is None else last)


def _kind_of_operation(operation):
    """What a layer's last activation, or an operation, returns; `None` where that is not known."""
    while isinstance(operation, keras.layers.Wrapper):
        operation = operation.layer
    if isinstance(operation, keras.layers.Softmax):
        return "probabilities"
    if not isinstance(operation, keras.layers.Layer):
        named = {"Softmax": "probabilities", "Sigmoid": "label_probabilities"}
        return named.get(type(operation).__name__)
    is_lambda = isinstance(operation, keras.layers.Lambda)
    activation = operation if is_lambda else getattr(operation, "activation", None)
    for known, kind in _KINDS.items():
        if activation is known:
            return kind
    return None if activation is None else _kind_by_numbers(activation)


def _kind_by_numbers(activation):
    """What a function of rows is, told by what it makes of some."""
    try:
        values = ops.convert_to_numpy(activation(ops.convert_to_tensor(_ROWS))).astype(float)
    except Exception:
        # Somebody else's function may fail in any way on what it was not made for.
        return None
    if values.shape != _ROWS.shape:
        return None
    shift = values - _ROWS
    # A softmax does not see what is added to all of a row: neither does it see a log-softmax.
    if np.allclose(shift, shift[:, :1], atol=1e-3):
        return "logits"
    if (values >= 0).all() and np.allclose(values.sum(axis=-1), 1, atol=1e-3):
        return "probabilities"
    is_sigmoid = np.allclose(values[0], [0, 0.5, 1, 0.5], atol=1e-3)
    return "label_probabilities" if is_sigmoid else None


def _keeps(node, low, high):
    """Whether an operation of a graph returns numbers between two bounds as they are."""
    if len(node.inputs) != 1 or getattr(node.operation, "weights", ()):
        return False
    (tensor,) = node.inputs
    shape = (1, *tensor.shape[1:])
    values = np.linspace(low, high, math.prod(shape)).astype("float32")
    try:
        given = ops.cast(ops.reshape(values, shape), tensor.dtype)
        result = ops.cast(node({id(tensor): given})[id(node.outputs[0])], "float32")
        result = ops.convert_to_numpy(result)
    except Exception:
        # As above.
        return False
    # bfloat16 rounds by 0.4 %.
    return result.size == values.size and np.allclose(result.ravel(), values, atol=0.02)


def _single(loss):
    """The loss out of a list or dict that holds nothing else."""
    while isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
        loss = next(iter(loss.values())) if isinstance(loss, dict) else loss[0]
    return loss


def _margin(labels, values):
    """The lowest value of a label minus the highest of another class, `(images,)`."""
    is_label = ops.cast(labels, "float32") > 0.5
    lowest_label = ops.min(ops.where(is_label, values, np.inf), axis=-1)
    highest_other = ops.max(ops.where(is_label, -np.inf, values), axis=-1)
    return lowest_label - highest_other


def _inside(probabilities):
    """Probabilities whose logarithm is finite."""
    return ops.maximum(probabilities, 1e-37)


def _is_plain_cross_entropy(loss):
    """Whether a loss object is a cross-entropy without any further setting."""
    kinds = (keras.losses.CategoricalCrossentropy, keras.losses.SparseCategoricalCrossentropy)
    if type(loss) not in kinds:
        return False
    ignored = ("name", "reduction", "dtype", "from_logits")
    config, plain = loss.get_config(), type(loss)().get_config()
    return all(config[key] == plain[key] for key in config if key not in ignored)


def _cross_entropy(from_logits):
    """Cross-entropy against class indices or one-hot rows."""

    def function(labels, outputs):
        is_sparse = len(labels.shape) < len(outputs.shape) or labels.shape[-1] != outputs.shape[-1]
        # Keras leaves the logits on the tensor that a softmax returns, for its own losses.
        logits = outputs if from_logits else getattr(outputs, "_keras_logits", None)
        if logits is None:
            sparse, dense = reversed(_CROSS_ENTROPIES)
            return sparse(labels, outputs) if is_sparse else dense(labels, outputs)
        logits = ops.cast(logits, "float32")
        if is_sparse:
            indices = ops.reshape(labels, ops.shape(logits)[:-1])
            rows = ops.one_hot(indices, logits.shape[-1], dtype=logits.dtype)
        else:
            rows = ops.cast(labels, logits.dtype)
        return softmax_cross_entropy(rows, logits)

    return _per_image(function)


def _per_image(function):
    """The function averaged over all axes but the first, with labels as Keras hands them over."""

    def losses(labels, outputs):
        labels, outputs = ops.convert_to_tensor(labels), ops.convert_to_tensor(outputs)
        is_double = keras.backend.standardize_dtype(outputs.dtype) == "float64"
        labels = ops.cast(labels, "float64" if is_double else "float32")
        if len(labels.shape) + 1 == len(outputs.shape) and outputs.shape[-1] == 1:
            labels = ops.expand_dims(labels, axis=-1)
        values = function(labels, outputs)
        if len(values.shape) == 0:
            raise ValueError(
                "Argument `loss` of `compile` must be a loss that returns one number for each "
                f"image, not one for all of them. Received: loss={_name_of(function)}"
            )
        return ops.mean(ops.reshape(values, (ops.shape(outputs)[0], -1)), axis=-1)

    return losses


def _name_of(function):
    """The name of a loss: that of the class where it is the `call` of an object."""
    owner = getattr(function, "__self__", None)
    return getattr(function, "__name__", repr(function)) if owner is None else type(owner).__name__
