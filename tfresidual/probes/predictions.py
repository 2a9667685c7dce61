"""Logits, labels and means over examples, as `lens`, `attribution` and `patching` read them.

An example is an image, or, if the outputs are `(images, positions, classes)`, one position of an
image whose label counts, see `tfresidual.routing.positions`.
TensorFlow only.
"""

import dataclasses

import numpy as np
import tensorflow as tf
from keras import backend

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, is_int
from tfresidual.definitions.averages import weighted_mean
from tfresidual.probes.measure import check_blocks, repeated
from tfresidual.routing.data import shape_of_outputs
from tfresidual.routing.evaluator import check_scored
from tfresidual.routing.positions import check_any_counts, check_prepared, counted, counted_images
from tfresidual.routing.scores import LOGITS, OUTPUTS, is_binary, named_outputs

# What a logit can be chosen by, beside the index of a class.
LABEL, MARGIN, SOURCE_LABEL = "label", "margin", "source label"
COUNTED = "counted"


def scored_chain(source):
    """Returns the chain of a probe that reads predictions."""
    chain = sources.numbered(source)
    check_scored(chain)
    check_blocks(chain)
    return chain


def logits_of(kind, outputs):
    """Returns the logits of the outputs of a head, and whether an example has several labels.

    The logits are `(..., classes)`, in float32 or float64, for outputs `(images, classes)` or
    `(images, positions, classes)`; docs/concepts/probes.md says how they are read.
    """
    if len(outputs.shape) not in (2, 3):
        raise ArgumentError(
            "chain",
            "return one row of outputs per image, or per image and position",
            received=f"outputs of shape {tuple(outputs.shape)}",
        )
    named = named_outputs(outputs)
    is_known = LOGITS in named or kind.endswith("logits")
    logits = tf.convert_to_tensor(named.get(LOGITS, named[OUTPUTS]))
    logits = tf.cast(logits, backend.result_type(logits.dtype, "float32"))
    is_single = is_binary(kind, logits.shape[-1])
    if not is_known:
        p, logits = logits, _logarithm(logits)
        if kind.startswith("label"):
            logits -= _logarithm(1 - p)
    if is_single:
        logits = tf.concat([-logits / 2, logits / 2], axis=-1)
    return logits, kind.startswith("label") and not is_single


def _logarithm(probabilities):
    # Raised to a minimum, so that it is finite.
    return tf.math.log(tf.maximum(probabilities, tf.cast(1e-37, probabilities.dtype)))


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a batch.

    Attributes:
        rows: the weights of the classes, `(..., classes)`, 0 or more.
        sets: bool, which classes are the labels, `(..., classes)`: if the classes exclude one
            another the one with the highest weight, otherwise all with a weight over 1/2.
        counted: bool, which examples count, `(images,)` or `(images, positions)`.
        indices: the classes, `(...)`, if the data has one class per example; otherwise `None`.
    """

    rows: tf.Tensor
    sets: tf.Tensor
    counted: tf.Tensor
    indices: tf.Tensor | None = None


def labels_of(chain, labels, outputs, logits, has_several):
    """Returns the `Labels` of a batch, given what the head and `logits_of` return."""
    number, examples = outputs.shape[-1], tf.shape(logits)[:-1]
    is_row = len(labels.shape) == len(outputs.shape) and labels.shape[-1] == number > 1
    if len(outputs.shape) == 3:
        is_counted = counted(labels, number)
    else:
        is_counted = counted_images(chain, labels, (number,))
        is_counted = tf.ones(examples, tf.bool) if is_counted is None else is_counted
    labels = tf.cast(labels, logits.dtype)
    # A hinge loss labels the other class -1; positions that are left out have -1 or NaN, and an
    # ignored class is any number.
    labels = tf.where(_along(is_counted, labels) & (labels >= 0), labels, tf.zeros_like(labels))
    indices = None
    if is_row:
        rows = labels
    elif is_binary(chain.outputs, number):
        labels = tf.reshape(labels, examples)
        rows = tf.stack([1 - labels, labels], axis=-1)
    else:
        indices = tf.cast(tf.reshape(labels, examples), tf.int32)
        rows = tf.one_hot(indices, logits.shape[-1], dtype=logits.dtype)
    if has_several:
        return Labels(rows, rows > 0.5, is_counted)
    named = tf.one_hot(tf.argmax(rows, axis=-1), logits.shape[-1], on_value=True, off_value=False)
    return Labels(rows, named, is_counted, indices)


def label_check(chain, target=None):
    """Returns a check that the labels of a batch, and the class `target`, fit the outputs."""

    def check(images, labels):
        shape = shape_of_outputs(chain, images)
        classes = 2 if is_binary(chain.outputs, shape[-1]) else shape[-1]
        if any(is_int(one) and one >= classes for one in _parts(target)):
            raise ArgumentError("target", f"be a class from 0 to {classes - 1}", target)
        check_prepared(chain, labels, shape)

    return check


def checked_target(target, choices):
    """Returns what a logit is chosen by, a pair as a tuple; raises a `ValueError` otherwise.

    It is one of the choices, the index of a class, or a pair of two different ones of these whose
    difference is meant, without `"margin"`, which is a difference already.
    """
    parts, allowed = _parts(target), choices
    if len(parts) == 2:
        allowed = [choice for choice in choices if choice != MARGIN]
    are_known = [
        (is_int(one) and one >= 0) or (isinstance(one, str) and one in allowed) for one in parts
    ]
    if not all(are_known) or len(parts) > 2 or len(set(parts)) < len(parts):
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(
            "target",
            f"be one of {listed} or the index of a class, 0 or more; or, for a difference, a pair "
            f"of different ones of these, without {MARGIN!r}",
            target,
        )
    return parts if len(parts) == 2 else target


def _parts(target):
    """Returns the two of a pair as a tuple, or what is no pair as a tuple of one."""
    return tuple(target) if isinstance(target, (tuple, list)) and len(target) == 2 else (target,)


def has_logit(target, read):
    """Returns which examples count and have a logit chosen by `target`, bool.

    A margin needs a label and another class.
    """
    if target != MARGIN:
        return read.counted
    some, every = tf.reduce_any(read.sets, axis=-1), tf.reduce_all(read.sets, axis=-1)
    return read.counted & some & ~every


def chosen_logit(target, logits, sets, source_sets=None):
    """Returns the logit of every example that is chosen by `target`, `(...)`, 0 if there is none.

    The logits, `(..., classes)`, may be other numbers of classes, such as probabilities. Which
    classes are the labels is said by `sets`, bool, and of the source by `source_sets`.
    """
    if isinstance(target, tuple):
        first, second = (chosen_logit(one, logits, sets, source_sets) for one in target)
        return first - second
    if target == SOURCE_LABEL:
        sets = source_sets
    if is_int(target):
        return logits[..., int(target)]
    if target == MARGIN:
        infinite = tf.constant(np.inf, logits.dtype)
        lowest = tf.reduce_min(tf.where(sets, logits, infinite), axis=-1)
        margin = lowest - tf.reduce_max(tf.where(sets, -infinite, logits), axis=-1)
        has_both = tf.reduce_any(sets, axis=-1) & ~tf.reduce_all(sets, axis=-1)
        return tf.where(has_both, margin, tf.zeros_like(margin))
    chosen = tf.reduce_sum(tf.where(sets, logits, tf.zeros_like(logits)), axis=-1)
    # 0 without a label: a quotient that is NaN would make all gradients NaN.
    return tf.math.divide_no_nan(chosen, tf.reduce_sum(tf.cast(sets, logits.dtype), axis=-1))


def probabilities_of(logits, has_several):
    """Returns the probabilities of classes that exclude one another, or of several labels."""
    return tf.sigmoid(logits) if has_several else tf.nn.softmax(logits)


def divergence(logits, others, has_several):
    """Returns the Kullback-Leibler divergence of other logits' prediction from that of logits.

    It is in nats, 0 or more, for every example; with several labels, summed over them.
    """
    if has_several:
        pairs = [(sign * logits, sign * others) for sign in (1, -1)]
        logs = [tuple(-tf.nn.softplus(-z) for z in pair) for pair in pairs]
    else:
        logs = [(tf.nn.log_softmax(logits), tf.nn.log_softmax(others))]
    # A class of probability 0 has no share.
    terms = (tf.math.multiply_no_nan(p - q, tf.exp(p)) for p, q in logs)
    found = sum(tf.reduce_sum(term, axis=-1) for term in terms)
    # Not below 0 by rounding.
    return tf.where(found < 0, tf.zeros_like(found), found)


def over_positions(values, counted):
    """Returns the means over the positions of each image that count, NaN if none does.

    Values `(images, ...)` of images without positions are returned as they are.
    """
    if len(counted.shape) == 1:
        return values
    weights = _along(counted, values)
    sums = tf.reduce_sum(tf.where(weights, values, tf.zeros_like(values)), axis=1)
    return sums / tf.reduce_sum(tf.cast(weights, values.dtype), axis=1)


def _along(counted, values):
    """Returns a mask of examples with as many axes as their values."""
    return tf.reshape(
        counted, tf.concat([tf.shape(counted), [1] * (len(values.shape) - len(counted.shape))], 0)
    )


def check_positions(per_position, logits):
    """Raises a `ValueError` if rows per position are asked for and the outputs have none."""
    if per_position and len(logits.shape) == 2:
        raise ArgumentError(
            "per_position", "be False for a network with one row of outputs per image", True
        )


def frame_of(places, values, counted, weights, per_image=False, per_position=False):
    """Returns a frame with a row per place, of means or of the values of examples.

    Values are `(images, places)`, or `(images, positions, places)` with `per_position`; `counted`
    says which examples count, `(images,)` or `(images, positions)`. Means are over examples, in
    float64.
    """
    check_any_counts(counted)
    if per_position:
        examples = dict(zip(("image", "position"), np.nonzero(counted), strict=True))
        return repeated(places, examples, {name: value[counted] for name, value in values.items()})
    counts = counted.reshape(len(counted), -1).sum(axis=1)
    if per_image:
        is_there = counts[:, None] > 0
        values = {name: np.where(is_there, value, np.nan) for name, value in values.items()}
        return repeated(places, {"image": np.arange(len(counted))}, values)
    columns = {name: weighted_mean(value, weights * counts) for name, value in values.items()}
    return places.assign(**columns)
