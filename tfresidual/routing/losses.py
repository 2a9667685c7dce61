"""The loss per image, as the probes use it."""

import functools
import inspect
import math

import keras
import tensorflow as tf
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.warning import warn
from tfresidual.machine.first_step import changed_method
from tfresidual.routing.data import of_output
from tfresidual.routing.positions import are_indices, are_per_position, counted, fits, kept
from tfresidual.routing.scores import logits_of, operation_of

# The name of the cross-entropy of this file among the names of losses.
CROSS_ENTROPY = "cross_entropy"
# The operations from which the cross-entropies of Keras take the logits in a graph.
_ACTIVATIONS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}
_OF = keras.losses
# Of labels that do not exclude one another, and of classes that do.
OF_LABELS = (
    *(_OF.BinaryCrossentropy, _OF.binary_crossentropy),
    *(_OF.BinaryFocalCrossentropy, _OF.binary_focal_crossentropy),
)
OF_CLASSES = (
    *(_OF.CategoricalCrossentropy, _OF.categorical_crossentropy),
    *(_OF.SparseCategoricalCrossentropy, _OF.sparse_categorical_crossentropy),
    *(_OF.CategoricalFocalCrossentropy, _OF.categorical_focal_crossentropy),
    *(_OF.CategoricalGeneralizedCrossEntropy, _OF.categorical_generalized_cross_entropy),
)
OF_DIVERGENCES = (_OF.KLDivergence, _OF.kl_divergence)
_OF_PROBABILITIES = (*OF_LABELS, *OF_CLASSES, *OF_DIVERGENCES)
# Losses of Keras whose configuration lacks an argument: `delta` or `axis`.
_OF_PART_CONFIGS = (_OF.Huber, _OF.CosineSimilarity)
# The reductions of a loss that is a mean over images.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
_CROSS_ENTROPIES = (
    keras.losses.categorical_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
)


def loss_of(model, kind=None):
    """Returns the loss per image of a model, as a function of labels and outputs.

    This is the loss the model was compiled with. Without one, it is inferred from the last
    activation and the labels: cross-entropy with class indices or one-hot rows, or, for a sigmoid,
    the mean binary cross-entropy over the outputs. If training may minimize another loss, for
    example with its own `train_step`, the loss warns of that when it is first used.

    Args:
        model: a `keras.Model` with one output.
        kind: the kind of outputs of the last activation, see `tfresidual.sources.outputs.kind_of`.

    Returns:
        A function `(labels, outputs) -> losses` of shape `(images,)`. If it has an attribute
        `description`, `loss_from` makes the same loss from that. Its attribute `ignore_class` is
        the class that the loss ignores, or `None`.

        For outputs with labels per position, or per pixel, the loss of an image is the mean over
        its positions that count, see `tfresidual.routing.positions`, and 0 without any. A loss that
        returns one number per image decides itself what it does with such labels.

    Raises:
        ValueError: if the model was compiled with several losses.
    """
    losses, weight = _loss_of(model, kind), single(weights_of_losses(model))
    if weight is not None and weight != 1:
        losses = _weighted(losses, float(weight))
    notes = note_of_loss(model, kind)
    return with_note(losses, ". ".join(notes)) if notes else losses


def reference_loss_of(model, place=None):
    """Returns the function `() -> loss` of a chain, see `Chain.reference_loss`.

    That loss is Keras' `compute_loss` of the loss that the model is compiled with when it is asked,
    without those of regularization. It is `None` if training computes another one, or not a mean.
    `place` is that of one of several outputs, see `data.Place`.
    """

    def loss_now():
        if not model.compiled or changed_method(model) is not None:
            return None
        loss, weights = (of_output(one, place) for one in (model.loss, weights_of_losses(model)))
        if loss is None or getattr(single(loss), "reduction", _MEANS[0]) not in _MEANS:
            return None
        judge = _Judge()
        judge.compile(
            loss=single(loss), loss_weights=None if weights is None else [single(weights)]
        )
        # Keras divides by the number of replicas where there is a strategy.
        count = tf.distribute.get_strategy().num_replicas_in_sync
        return lambda labels, outputs: count * judge.compute_loss(None, labels, outputs)

    return loss_now


class _Judge(keras.Model):
    """A model without weights, for its `compute_loss`."""

    def call(self, inputs):
        return inputs


def note_of_loss(model, kind):
    """Returns what is odd about the loss of `loss_of`, as a tuple of notes.

    It may not be what training minimizes, or may take outputs for what they are not.
    """
    if not model.compiled:
        return ()
    notes, own, loss = [], changed_method(model), single(model.loss)
    if own is not None or loss is None:
        which = "the cross-entropy of the outputs" if loss is None else "the one of `compile`"
        why = f"has its own `{own}`" if own else "was compiled without a loss"
        notes.append(
            f"{model.name} {why}: the loss of the probes is {which}, which it may not minimize"
        )
    is_one = not isinstance(loss, (list, tuple, dict))
    if kind == "logits" and is_one and takes_probabilities(keras.losses.get(loss)):
        notes.append(
            f"{model.name} was compiled with a loss of probabilities, and returns logits: the loss "
            "of the probes is that of `fit`, but scores of predictions, such as `cross_entropy`, "
            "are of the probabilities that the logits stand for; `from_logits=True` makes these "
            "agree"
        )
    return tuple(notes)


def takes_probabilities(loss):
    """Returns whether a loss of Keras takes probabilities, in contrast to logits."""
    return is_one_of(loss, _OF_PROBABILITIES) and not getattr(loss, "from_logits", False)


def is_one_of(loss, known):
    """Returns whether a loss is one of some functions, or an object of one of some classes."""
    return any(isinstance(loss, one) if isinstance(one, type) else loss is one for one in known)


def weights_of_losses(model):
    """Returns the `loss_weights` that a model was compiled with, `None` if there are none."""
    compiled = getattr(model, "_compile_loss", None) if model.compiled else None
    return getattr(compiled, "_user_loss_weights", None)


def _weighted(losses, weight):
    """Returns a loss times a number."""

    @functools.wraps(losses)
    def weighted(labels, outputs):
        values = losses(labels, outputs)
        return values * ops.cast(weight, values.dtype)

    if getattr(losses, "description", None) is not None:
        weighted.description = losses.description | {"weight": weight}
    return weighted


def with_note(losses, note):
    """Returns a loss that warns when it is computed, or traced, for the first time."""
    warned = []

    @functools.wraps(losses)
    def warning(labels, outputs):
        if not warned:
            warned.append(True)
            warn(note)
        return losses(labels, outputs)

    return warning


def _loss_of(model, kind):
    loss = single(model.loss) if model.compiled else None
    if isinstance(loss, (list, tuple, dict)):
        raise ArgumentError("model", "have one loss, since a probe follows one gradient", loss=loss)
    if loss is None:
        if kind == "label_probabilities":
            return loss_from({"loss": "binary_crossentropy", "config": None})
        if kind == "label_logits":
            return loss_from({"loss": "BinaryCrossentropy", "config": {"from_logits": True}})
        from_logits = kind != "probabilities"
        return loss_from({"loss": CROSS_ENTROPY, "config": {"from_logits": from_logits}})
    function = keras.losses.get(loss)
    losses = _per_image_of(function)
    description = _description(function)
    if description is None:
        return losses
    if description["loss"] == CROSS_ENTROPY:
        return loss_from(description)
    losses.description = description
    return losses


def loss_from(description):
    """Returns the loss per image, as `loss_of` does, that a description specifies.

    Args:
        description: dict with `"loss"`, the name of a loss of Keras or of this package, `"config"`,
            the arguments to construct it with (`None` for a function), and perhaps the `"weight"`
            by which it is multiplied.

    Raises:
        ValueError: if there is no such loss.
    """
    name, config = description["loss"], description["config"]
    if name == CROSS_ENTROPY:
        losses = _cross_entropy(**config)
    else:
        loss = _known_loss(name)
        if loss is None:
            raise ArgumentError(
                "description", "name a loss of Keras or of this package", description
            )
        losses = _per_image_of(loss if config is None else loss(**config))
    losses.description = description
    return _weighted(losses, description["weight"]) if "weight" in description else losses


def single(loss):
    """Returns the only loss of a list or dict, otherwise the argument itself."""
    while isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
        loss = next(iter(loss.values())) if isinstance(loss, dict) else loss[0]
    return loss


def softmax_cross_entropy(labels, logits):
    """Computes the cross-entropy of a softmax, with an accurate gradient at high confidence.

    The gradient with respect to the logits is p - y, for labels that sum to one. Near p = 1, the
    difference cancels: at 1 - p = 1e-6, float32 leaves two digits. Here 1 - p is the sum of the
    other probabilities, as accurate as these.

    Args:
        labels: rows of weights, 0 or more, `(images, classes)`.
        logits: `(images, classes)`.

    Returns:
        Losses, `(images,)`, 0 or more.
    """
    logits = tf.convert_to_tensor(logits)
    rows = [-1, logits.shape[-1]]
    losses = _of_rows(tf.reshape(labels, rows), tf.reshape(logits, rows))
    return tf.reshape(losses, tf.shape(logits)[:-1])


# Compiled on its own: TensorFlow registers a custom gradient forever, together with the graph it
# was traced in. That way it is this small graph, and not that of a whole network.
@tf.function(autograph=False, reduce_retracing=True)
@tf.custom_gradient
def _of_rows(labels, logits):
    """Returns the losses of `softmax_cross_entropy`; both arguments have two axes."""
    # A class without a share adds nothing, even if its logit is minus infinity.
    shares = tf.math.multiply_no_nan(tf.nn.log_softmax(logits), labels)
    losses = -tf.reduce_sum(shares, axis=-1)

    def gradient(upstream):
        p = tf.nn.softmax(logits)
        is_highest = tf.one_hot(tf.argmax(p, axis=-1), tf.shape(p)[-1], dtype=p.dtype)
        others = tf.reduce_sum(p * (1 - is_highest), axis=-1, keepdims=True)
        rest = is_highest * others + (1 - is_highest) * (1 - p)
        total = tf.reduce_sum(labels, axis=-1, keepdims=True)
        return None, upstream[:, None] * (p * (total - labels) - labels * rest)

    return losses, gradient


def _description(function):
    """Returns the description of a loss, perhaps incomplete, or `None` for a loss by hand."""
    if function in _CROSS_ENTROPIES:
        return {"loss": CROSS_ENTROPY, "config": {"from_logits": False}}
    if isinstance(function, keras.losses.Loss):
        if _is_plain_cross_entropy(function):
            from_logits = function.get_config()["from_logits"]
            return {"loss": CROSS_ENTROPY, "config": {"from_logits": from_logits}}
        if is_one_of(function, _OF_PART_CONFIGS):
            return None
        kind = type(function)
    elif inspect.isfunction(function):
        kind = function
    else:
        return None
    for name in (kind.__name__, keras.saving.get_registered_name(kind)):
        if _known_loss(name) is kind:
            config = None if kind is function else function.get_config()
            return {"loss": name, "config": config}
    return None


def _known_loss(name):
    """Returns the loss of a name: of Keras, or of this package if it starts with `tfresidual>`."""
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


def _per_image_of(loss):
    """Returns the loss per image of a loss object or function of `compile`."""
    ignored_class = getattr(loss, "ignore_class", None)
    if not isinstance(loss, keras.losses.Loss):
        return _per_image(loss, ignored_class)
    if isinstance(loss, keras.losses.Circle):
        return _per_image(_refused)
    # A loss object averages over the images when it is called; its method `call` does not.
    return _per_image(loss.call, ignored_class, loss.dtype)


def _refused(labels, outputs):
    raise ArgumentError(
        "loss", "not compare the images of a batch, as one loss per image is measured", "circle"
    )


def _is_plain_cross_entropy(loss):
    """Returns whether a loss object is a cross-entropy with default settings."""
    kinds = (keras.losses.CategoricalCrossentropy, keras.losses.SparseCategoricalCrossentropy)
    if type(loss) not in kinds:
        return False
    ignored = ("name", "reduction", "dtype", "from_logits")
    config, plain = loss.get_config(), type(loss)().get_config()
    return all(config[key] == plain[key] for key in config if key not in ignored)


def _cross_entropy(from_logits):
    """Returns the cross-entropy with class indices or one-hot rows."""

    def cross_entropy(labels, outputs):
        is_sparse = len(labels.shape) < len(outputs.shape) or labels.shape[-1] != outputs.shape[-1]
        # Keras takes the logits of a softmax from there even with `from_logits=True`.
        logits = logits_of(outputs, "Softmax")
        if logits is None and from_logits:
            logits = outputs
        if logits is None:
            sparse, dense = reversed(_CROSS_ENTROPIES)
            return sparse(labels, outputs) if is_sparse else dense(labels, outputs)
        logits = ops.cast(logits, "float32")
        if is_sparse:
            given, expected = labels.shape[1:], logits.shape[1:-1]
            # Unknown sizes are compared when the loss is computed.
            if None not in (*given, *expected) and math.prod(given) != math.prod(expected):
                raise ValueError("There must be one index per row of outputs.")
            indices = ops.reshape(labels, ops.shape(logits)[:-1])
            rows = ops.one_hot(indices, logits.shape[-1], dtype=logits.dtype)
        else:
            rows = ops.cast(labels, logits.dtype)
        return softmax_cross_entropy(rows, logits)

    # Probabilities keep their logits in every dtype, for an accurate gradient.
    return _per_image(cross_entropy, is_cast=from_logits)


def _per_image(function, ignored_class=None, dtype=None, is_cast=True):
    """Returns the function averaged over all axes but the first, called as Keras calls it."""

    def losses(labels, outputs):
        labels, outputs = ops.convert_to_tensor(labels), ops.convert_to_tensor(outputs)
        is_double = keras.backend.standardize_dtype(outputs.dtype) == "float64"
        labels = ops.cast(labels, "float64" if is_double else "float32")
        if is_cast:
            outputs = _in_dtype(outputs, dtype or keras.config.floatx())
        if len(labels.shape) + 1 == len(outputs.shape) and outputs.shape[-1] == 1:
            labels = ops.expand_dims(labels, axis=-1)
        if are_per_position(labels, outputs.shape[1:]):
            is_counted = counted(labels, outputs.shape[-1])
            if ignored_class is not None and are_indices(labels, outputs.shape[-1]):
                of_position = ops.reshape(labels, ops.shape(is_counted))
                is_counted = ops.logical_and(is_counted, of_position != ignored_class)
            values = function(kept(labels, is_counted), _kept_outputs(outputs, is_counted))
            if len(values.shape) > 1 and fits(values, is_counted):
                mask = _mask_of(values)
                if mask is not None and len(mask.shape) == 2:
                    is_counted = ops.logical_and(is_counted, mask)
                return _mean_of_positions(values, is_counted)
        values = function(labels, outputs)
        images, numbers = outputs.shape[0], values.shape[0] if len(values.shape) else 1
        # The number of values does not depend on the number of images, or is not a multiple of it.
        is_fixed = numbers is not None and images is None
        if is_fixed or (numbers is not None and images and numbers % images):
            raise ValueError(
                "Argument `loss` of `compile` must be a loss that returns one number per image, "
                f"not one for all images. Received: loss={_name_of(function)}"
            )
        mask, images = _mask_of(values), ops.shape(outputs)[0]
        values = ops.reshape(values, (images, -1))
        if mask is None:
            return ops.mean(values, axis=-1)
        return _mean_of_positions(values, ops.reshape(mask, (images, -1)))

    losses.ignore_class = ignored_class
    losses.__qualname__ = f"per image: {_name_of(function)}"
    return losses


def _in_dtype(outputs, dtype):
    """Returns outputs as Keras passes them to a loss of some dtype: without logits if it casts."""
    own = keras.backend.standardize_dtype(outputs.dtype)
    if own == dtype:
        return outputs
    return tf.identity(outputs) if own == "float64" else ops.cast(outputs, dtype)


def _kept_outputs(outputs, is_counted):
    """Returns outputs with zeros, which have no gradient, at the positions that do not count."""
    stored, operation = logits_of(outputs), operation_of(outputs)
    if stored is None and operation in _ACTIVATIONS:
        # Made by the same operation, from whose type the cross-entropies of Keras take the logits.
        return _ACTIVATIONS[operation](kept(*outputs.op.inputs, is_counted))
    result = kept(outputs, is_counted)
    if stored is not None:
        result._keras_logits = kept(stored, is_counted)
    return result


def _mask_of(values):
    """Returns which values count, as Keras' losses that ignore a class say; `None` for all."""
    mask = getattr(values, "_keras_mask", None)
    return None if mask is None else ops.cast(mask, "bool")


def _mean_of_positions(values, is_counted):
    """Returns the means over the positions of every image that count, 0 if none does."""
    values = ops.reshape(values, (*ops.shape(is_counted), -1))
    values = kept(ops.mean(values, axis=-1), is_counted)
    numbers = ops.sum(ops.cast(is_counted, values.dtype), axis=1)
    return ops.sum(values, axis=1) / ops.maximum(numbers, 1)


def _name_of(function):
    """Returns the name of a loss: its class name if it is the `call` of an object."""
    owner = getattr(function, "__self__", None)
    return getattr(function, "__name__", repr(function)) if owner is None else type(owner).__name__
