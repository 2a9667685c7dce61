"""Labels as probes read them: those of positions that do not count are marked. TensorFlow only."""

import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.compiled import compiled
from tfresidual.routing.images import check_images, key_of, spec_of
from tfresidual.routing.losses import takes_signs
from tfresidual.routing.outputs import check_labels
from tfresidual.routing.positions import (
    are_indices,
    are_per_position,
    counted,
    fits,
    has_positions,
    kept,
    known_positions,
    not_ignored,
    shape_of_outputs,
    valid_images,
)


def prepared_labels(chain, images, labels, weights=None):
    """Returns the labels of a batch in which all positions are left out that do not count.

    Labels are returned as they are unless outputs and labels are per position; weights `(images,
    positions)` must then be 0 and 1, and otherwise there must be none.
    """
    is_read, shape = labels.shape.rank > 1 and _are_numbers(labels), ()
    if is_read:
        check_images(chain, images)
        shape = shape_of_outputs(chain, images)
    if not (is_read and are_per_position(labels, shape)):
        if weights is not None:
            raise ArgumentError(
                "data",
                "hold one sample weight per image",
                said=f"weights of shape {tuple(weights.shape)}",
            )
        return labels
    is_weighted = _checked_weights(weights, labels)
    if chain.context is None:
        return labels_within(chain, labels, shape[-1], is_weighted)
    if is_weighted is None:
        is_weighted = tf.ones(tf.shape(labels)[:2], bool)
    return _compiled(chain, images, labels, shape[-1])(images, labels, is_weighted)


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
    if not _are_numbers(labels):
        raise ArgumentError(
            "data", "hold labels that are numbers", said=f"labels of dtype {labels.dtype.name}"
        )
    if not are_per_position(labels, shape):
        raise ArgumentError(
            "data",
            "hold one label per position, for outputs (positions, classes) of shape "
            f"{tuple(shape)} per image",
            said=f"labels of shape {tuple(labels.shape)}",
        )


def _are_numbers(labels):
    return labels.dtype.is_floating or labels.dtype.is_integer or labels.dtype.is_bool


def _checked_weights(weights, labels):
    """Returns which weights of positions are not 0; `None` if there are none of positions."""
    if weights is None:
        return None
    if weights.shape.rank == 3 and weights.shape[-1] == 1:
        weights = weights[:, :, 0]
    if weights.shape != labels.shape[:2]:
        raise ArgumentError(
            "data",
            "hold one sample weight per position, for outputs per position",
            said=f"weights of shape {tuple(weights.shape)} for labels of shape "
            f"{tuple(labels.shape)}",
        )
    is_weighted = tf.cast(weights, tf.float64) != 0
    if not np.isin(weights.numpy().astype(float), (0, 1)).all():
        raise ArgumentError(
            "data",
            "hold sample weights of 0 and 1 for positions, which leave positions out: probes "
            "weight all others alike",
            said=f"weights from {weights.numpy().min()} to {weights.numpy().max()}",
        )
    return is_weighted


def _compiled(chain, images, labels, outputs):
    """Returns the compiled `labels_within` for such a batch, kept on the chain."""
    settings = chain.outputs, getattr(chain.loss, "ignore_class", None), takes_signs(chain.loss)
    key = ("labels", *settings, *key_of([images, labels]))
    if key not in chain.compiled:
        is_weighted = tf.TensorSpec([None, labels.shape[1]], bool)
        chain.compiled[key] = compiled(
            lambda images, labels, is_weighted: labels_within(
                chain.with_context(images), labels, outputs, is_weighted
            ),
            [spec_of(images), spec_of(labels), is_weighted],
        )
    return chain.compiled[key]
