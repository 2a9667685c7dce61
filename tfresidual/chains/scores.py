"""What a network's outputs are worth, image by image."""

import inspect

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
        activation = _activation_of(model, last)
        if activation is keras.activations.sigmoid:
            return loss_from({"loss": "binary_crossentropy", "config": None})
        from_logits = activation is not keras.activations.softmax
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

    The last activation tells; without one, a compiled binary loss tells several labels an image
    from classes that exclude one another.

    Args:
        model: a `keras.Model` with one output.
        last: the layer or operation that returns the outputs, by default the model's last layer.

    Returns:
        `"probabilities"`, `"logits"`, `"label_probabilities"` or `"label_logits"`.
    """
    activation = _activation_of(model, last)
    if activation is keras.activations.sigmoid:
        return "label_probabilities"
    if activation is keras.activations.softmax:
        return "probabilities"
    loss = keras.losses.get(_single(model.loss)) if model.compiled else None
    is_binary = loss is keras.losses.binary_crossentropy or isinstance(
        loss, keras.losses.BinaryCrossentropy
    )
    return "label_logits" if is_binary else "logits"


def prediction_scores(kind, labels, outputs):
    """What a prediction is worth, image by image.

    Outputs that are not finite (a network that explodes) name no class: they are wrong, agree
    with nothing, and their cross-entropy and entropy may be infinite or NaN.

    Args:
        kind: what the outputs are, see `tfresidual.chains.Chain`.
        labels: class indices, `(images,)` or `(images, 1)`, or one-hot rows, or k-hot rows where
            an image has several labels.
        outputs: `(images, classes)`.

    Returns:
        A dict of tensors with a leading axis of images:

        - `wrong`: 1.0 where the highest output is not the label, or, of n labels an image, the n
          highest outputs are not the labels (`exact_match`);
        - `cross_entropy`: in nats, 0 or more; of several labels the sum over them;
        - `entropy`: of the prediction, in nats, from 0 to log(classes); of several labels the sum
          over them, each up to log(2);
        - `margin`: the probability of the label minus the highest of another class, in [-1, 1];
          of several labels the lowest probability of a label minus the highest of another;
        - `predicted`: bool, `(images, classes)`, the class or the classes that are named;
        - `is_finite`: bool, whether the outputs, or the logits behind them, are.
    """
    outputs = ops.convert_to_tensor(outputs)
    classes = outputs.shape[-1]
    labels = ops.convert_to_tensor(labels)
    if len(labels.shape) == 1 or labels.shape[-1] != classes:
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
        # Probabilities near 1 are equal in float32 where logits are not.
        ranks = ops.argsort(ops.argsort(-logits, axis=-1), axis=-1)
        count = ops.sum(labels, axis=-1, keepdims=True)
        predicted = ops.cast(ranks, "float32") < count
        wrong = 1 - exact_match(labels, logits)
    else:
        log_p = ops.log(_inside(outputs)) if logits is None else ops.log_softmax(logits)
        cross_entropy = -ops.sum(labels * log_p, axis=-1)
        p = ops.exp(log_p)
        entropy = -ops.sum(p * log_p, axis=-1)
        named = ops.argmax(outputs, axis=-1)
        predicted = ops.one_hot(named, classes, dtype="bool")
        wrong = ops.cast(named != ops.argmax(labels, axis=-1), "float32")
    is_finite = ops.all(ops.isfinite(outputs if logits is None else logits), axis=-1)
    return {
        "wrong": ops.where(is_finite, wrong, ops.ones_like(wrong)),
        "cross_entropy": cross_entropy,
        "entropy": entropy,
        # Without another class, or without a label, there is nothing to be behind.
        "margin": ops.clip(_margin(labels, p), -1.0, 1.0),
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


def _activation_of(model, last):
    """The last activation: of a layer, or an operation of `keras.ops`."""
    last = model.layers[-1] if last is None else last
    if not isinstance(last, keras.layers.Layer):
        named = {"Softmax": keras.activations.softmax, "Sigmoid": keras.activations.sigmoid}
        return named.get(type(last).__name__)
    if isinstance(last, keras.layers.Softmax):
        return keras.activations.softmax
    return getattr(last, "activation", None)


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
    """The function averaged over all axes but the first."""

    def losses(labels, outputs):
        values = function(ops.convert_to_tensor(labels), ops.convert_to_tensor(outputs))
        return ops.mean(ops.reshape(values, (ops.shape(outputs)[0], -1)), axis=-1)

    return losses
