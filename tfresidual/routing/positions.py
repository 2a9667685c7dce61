"""Outputs and states with positions: which labels count, and what is padding. TensorFlow only.

Outputs `(images, positions, classes)` have one label per position of a sequence. A label says
itself if its position is left out: an index is then below 0, and a row of numbers (or the number of
a single output) holds only NaN; `labels_within` decides. States with positions are `(images,
positions, features)`.

An image that is all padding does not count; nor does, in what depends on labels, one whose labels
are all left out, or whose label is the class that the loss ignores. Its values are NaN, and it is
in no mean and no count. Data without any other image is an error.

Chains are without a context here, see `Chain.with_context`; a mask is `None` if all images count.
"""

import numpy as np
import tensorflow as tf
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.scores import check_labels

# The key of a context under which it holds which positions are not padding.
VALID_POSITIONS = "valid_positions"


def has_positions(shape):
    """Returns whether outputs, whose shape for one image is given, are a row per position."""
    return len(shape) == 2


def are_per_position(labels, shape):
    """Returns whether labels are those of every position of outputs of a shape per image."""
    return (
        has_positions(shape)
        and shape[1] is not None
        and len(labels.shape) in (2, 3)
        and (None in (labels.shape[1], shape[0]) or labels.shape[1] == shape[0])
    )


def are_indices(labels, outputs):
    """Returns whether labels per position are indices of classes, and not rows of numbers."""
    return outputs > 1 and (len(labels.shape) == 2 or labels.shape[-1] == 1)


def counted(labels, outputs):
    """Returns which positions count, bool, `(images, positions)`, from labels per position."""
    if are_indices(labels, outputs):
        # NaN counts, and is refused.
        is_counted = ops.logical_not(labels < 0)
        return is_counted[:, :, 0] if len(labels.shape) == 3 else is_counted
    is_counted = ops.logical_not(ops.isnan(ops.cast(labels, "float32")))
    return ops.any(is_counted, axis=-1) if len(labels.shape) == 3 else is_counted


def kept(values, is_counted, otherwise=0):
    """Returns values, another number where a mask of images, or of positions, is false."""
    axes = len(values.shape) - len(is_counted.shape)
    return tf.where(
        is_counted[(..., *[tf.newaxis] * axes)], values, tf.cast(otherwise, values.dtype)
    )


# Under these names, functions of a batch return which images count, see `only_counted`.
VALID_IMAGES, COUNTED_IMAGES = "valid_images", "counted_images"


def valid_images(chain):
    """Returns which images have a position that is not padding, bool, `(images,)`."""
    valid = known_positions(chain)
    return None if valid is None else tf.reduce_any(valid, axis=1)


def known_positions(chain):
    """Returns which positions are not padding, bool, `(images, positions)`; `None` if unknown."""
    valid = chain.known.get(VALID_POSITIONS)
    return None if valid is None else tf.cast(valid, bool)


def counted_images(chain, labels, shape):
    """Returns which images have a loss that counts, bool, `(images,)`.

    For outputs per position, these have a position that is neither padding nor left out; for
    others, a label that the loss does not ignore.
    """
    valid, by_labels = valid_images(chain), not_ignored(chain, labels, shape)
    if are_per_position(labels, shape):
        by_labels = tf.reduce_any(counted(labels, shape[-1]), axis=1)
    if valid is None or by_labels is None:
        return by_labels if valid is None else valid
    return valid & by_labels


def not_ignored(chain, labels, shape):
    """Returns which images have another label than the class that the loss ignores, `(images,)`."""
    ignored = getattr(chain.loss, "ignore_class", None)
    # One index per row of outputs, of which there may be several axes.
    is_index = len(labels.shape) == len(shape) or (
        len(labels.shape) == len(shape) + 1 and labels.shape[-1] == 1
    )
    if ignored is None or len(shape) in (0, 2) or shape[-1] == 1 or not is_index:
        return None
    labels = tf.cast(tf.reshape(labels, [tf.shape(labels)[0], -1]), tf.int64)
    return tf.reduce_any(labels != ignored, axis=1)


def only_counted(values, valid, is_counted=None, of_states=()):
    """Returns the values of a batch, NaN for images that do not count, and which do.

    Args:
        values: dict of tensors whose first axis is the image.
        valid: the mask of `valid_images`, bool, `(images,)`: those that are not all padding; or
            `None`.
        is_counted: that of `counted_images`, such as `Walk.counted`: those whose loss counts; or
            `None`.
        of_states: names of the values that do not depend on the loss.

    Returns:
        The dict, with the masks under `VALID_IMAGES` and `COUNTED_IMAGES` unless they are `None`.
    """
    masks = {VALID_IMAGES: valid, COUNTED_IMAGES: is_counted}
    result = {}
    for name, value in values.items():
        mask = valid if name in of_states or is_counted is None else is_counted
        result[name] = value if mask is None else kept(value, mask, np.nan)
    return result | {name: mask for name, mask in masks.items() if mask is not None}


def masks_of(values):
    """Takes the masks of `only_counted`, for states and for the loss, out of a dict of arrays."""
    valid = values.pop(VALID_IMAGES, None)
    return valid, values.pop(COUNTED_IMAGES, valid)


def check_any_counts(is_counted):
    """Raises a `ValueError` if a mask of the data, whose first axis is the image, is all false."""
    if is_counted is not None and not np.any(is_counted):
        raise ArgumentError(
            "data",
            "hold at least one position that counts: all are padding, or their labels leave them "
            "out",
            received=f"{len(is_counted)} images without any",
        )


def without_padding(chain):
    """Returns the function that sets states to zero at padding; other tensors stay as they are."""
    valid = known_positions(chain)

    def function(state):
        return state if valid is None or not has_them(state, valid) else kept(state, valid)

    return function


def valid_positions(chain, state):
    """Returns which positions of a state are not padding, bool, `(images, positions)`."""
    valid = known_positions(chain)
    if valid is not None and fits(state, valid):
        return valid
    return tf.ones(tf.shape(state)[:2], bool)


def check_positions(chain, states, name="per_position"):
    """Raises a `ValueError` for an argument unless all states have the same positions."""
    shapes = list(dict.fromkeys(tuple(state.shape) for state in states))
    if any(len(shape) != 3 for shape in shapes) or len({shape[1] for shape in shapes}) > 1:
        raise ArgumentError(
            name,
            "be left out unless states are (images, positions, features) with the same positions "
            "everywhere",
            received=f"{chain.name}, whose states have the shapes {', '.join(map(str, shapes))}",
        )


def each_position(state):
    """Returns a state `(images, positions, features)` as if every position was an image."""
    return tf.reshape(state, [-1, *state.shape[2:]])


def has_them(state, mask):
    """Returns whether a state has the positions of a mask `(images, positions)`."""
    return len(state.shape) > 2 and fits(state, mask)


def fits(tensor, mask):
    """Returns whether a tensor may have the positions of a mask `(images, positions)`."""
    sizes = tensor.shape[1], mask.shape[1]
    return None in sizes or sizes[0] == sizes[1]


def takes_signs(loss):
    """Returns whether a loss of `loss_of` is a hinge loss, which labels the other class -1."""
    description = getattr(loss, "description", None) or {"loss": ""}
    return description["loss"].lower().replace("_", "") in ("hinge", "squaredhinge")


def labels_within(chain, labels, outputs, is_weighted=None):
    """Returns labels per position in which all positions are left out that do not count.

    Left out are positions with the weight 0, those that are padding, those with the class that the
    loss ignores, and those that the labels leave out already. If classes exclude one another, a row
    without a number over 0 leaves out a position too; with several labels, a row of numbers below 0
    does, unless the loss takes -1 for 0.

    Args:
        chain: a chain without a context, see `Chain.with_context`.
        labels: labels per position, see `counted`.
        outputs: int, the number of outputs per position.
        is_weighted: bool, `(images, positions)`, or `None`.

    Returns:
        A tensor of the same shape, signed integers or floats.
    """
    is_index = are_indices(labels, outputs)
    if is_index and (labels.dtype.is_bool or labels.dtype.is_unsigned):
        labels = tf.cast(labels, tf.int32 if labels.dtype.size < 4 else tf.int64)
    elif not is_index and not labels.dtype.is_floating:
        labels = tf.cast(labels, tf.float32)
    is_counted = counted(labels, outputs)
    ignored = getattr(chain.loss, "ignore_class", None)
    if is_index and ignored is not None:
        of_position = labels[:, :, 0] if labels.shape.rank == 3 else labels
        is_counted &= of_position != tf.cast(ignored, labels.dtype)
    elif not is_index and outputs > 1 and chain.outputs in ("logits", "probabilities"):
        is_counted &= tf.reduce_any(labels > 0, axis=-1)
    elif not is_index and chain.outputs != "values" and not takes_signs(chain.loss):
        is_counted &= tf.reduce_any(labels >= 0, axis=-1) if labels.shape.rank == 3 else labels >= 0
    valid = known_positions(chain)
    if valid is not None:
        are_same = chain.outputs_at_positions and fits(labels, valid)
        is_counted &= valid if are_same else valid_images(chain)[:, None]
    if is_weighted is not None:
        is_counted &= is_weighted
    return kept(labels, is_counted, -1 if is_index else np.nan)


def check_prepared(chain, labels, shape):
    """Raises a `ValueError` unless prepared labels fit classes of a shape per image."""
    with_signs = takes_signs(chain.loss)
    outputs = shape[-1] if shape else 1
    if not has_positions(shape):
        is_counted = not_ignored(chain, labels, shape)
        labels = labels.numpy() if is_counted is None else labels.numpy()[is_counted.numpy()]
        check_labels(chain.outputs, labels, outputs, with_signs)
        return
    check_per_position(labels, shape)
    labels = labels.numpy()[counted(labels, outputs).numpy()]
    check_labels(chain.outputs, labels, outputs, with_signs, of="position")


def check_per_position(labels, shape):
    """Raises a `ValueError` unless labels are those of every position of outputs."""
    if not are_per_position(labels, shape):
        raise ArgumentError(
            "data",
            "hold one label per position, for outputs (positions, classes) of shape "
            f"{tuple(shape)} per image",
            received=f"labels of shape {tuple(labels.shape)}",
        )
