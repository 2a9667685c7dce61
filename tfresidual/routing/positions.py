"""Outputs and states with positions: which labels count, and what is padding. TensorFlow only.

Outputs `(images, positions, classes)` have one label per position of a sequence. A label says
itself if its position is left out, because it is padding or has the weight 0: an index is then
below 0, and a row of numbers holds only NaN. (A row may be one number, if there is one output per
position.) States with positions are `(images, positions, features)`.
"""

import tensorflow as tf
from keras import ops

from tfresidual.routing.chain import VALID_POSITIONS
from tfresidual.routing.images import key_of, sliced


def shape_of_outputs(chain, images):
    """Returns the shape of the outputs of a chain for one of some images, as a tuple.

    It is found once per head and kind of images, since that takes a pass of one image.
    """
    key = (chain.head, *key_of(images))
    if key not in chain.output_shapes:
        outputs = chain(sliced(images, slice(1)))
        chain.output_shapes[key] = tuple(outputs.shape)[1:]
    return chain.output_shapes[key]


def has_positions(shape):
    """Returns whether outputs, whose shape for one image is given, are a row per position."""
    return len(shape) == 2


def are_per_position(labels, shape):
    """Returns whether labels are those of every position.

    Args:
        labels: tensor or array of labels.
        shape: the shape of the outputs of one image.
    """
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
    """Returns which positions count, bool, `(images, positions)`.

    Args:
        labels: labels per position, `(images, positions)`, `(images, positions, 1)` or
            `(images, positions, numbers)`.
        outputs: int, the number of outputs per position.
    """
    if are_indices(labels, outputs):
        is_counted = labels >= 0
        return is_counted[:, :, 0] if len(labels.shape) == 3 else is_counted
    is_counted = ops.logical_not(ops.isnan(ops.cast(labels, "float32")))
    return ops.any(is_counted, axis=-1) if len(labels.shape) == 3 else is_counted


def kept(values, is_counted, otherwise=0):
    """Returns the values of the positions that count, and another number at all others.

    Args:
        values: tensor `(images, positions, ...)`.
        is_counted: bool, `(images, positions)`.
        otherwise: a number.
    """
    is_counted = is_counted[(..., *[tf.newaxis] * (len(values.shape) - 2))]
    return tf.where(is_counted, values, tf.cast(otherwise, values.dtype))


def without_padding(chain):
    """Returns the function that sets states to zero at all positions that are not valid.

    It returns other tensors as they are: those with another number of positions, and all of them if
    the chain does not know which positions are valid.

    Args:
        chain: a chain without a context, see `Chain.given`.
    """
    valid = chain.known.get(VALID_POSITIONS)

    def function(state):
        if valid is None or state.shape.rank < 3 or not fits(state, valid):
            return state
        return kept(state, tf.cast(valid, bool))

    return function


def valid_positions(chain, state):
    """Returns which positions of a state are not padding, bool, `(images, positions)`.

    Args:
        chain: a chain without a context, see `Chain.given`.
        state: tensor `(images, positions, features)`.
    """
    valid = chain.known.get(VALID_POSITIONS)
    if valid is not None and fits(state, valid):
        return tf.cast(valid, bool)
    return tf.ones(tf.shape(state)[:2], bool)


def check_positions(chain, states):
    """Raises a `ValueError` unless all states have the same positions."""
    shapes = list(dict.fromkeys(tuple(state.shape) for state in states))
    if any(len(shape) != 3 for shape in shapes) or len({shape[1] for shape in shapes}) > 1:
        raise ValueError(
            "Argument `per_position` needs states (images, positions, features) with the same "
            f"positions everywhere. Received: {chain.name}, whose states have the shapes "
            f"{', '.join(map(str, shapes))}"
        )


def each_position(state):
    """Returns a state `(images, positions, features)` as if every position was an image."""
    return tf.reshape(state, [-1, *state.shape[2:]])


def fits(tensor, mask):
    """Returns whether a tensor may have the positions of a mask `(images, positions)`."""
    sizes = tensor.shape[1], mask.shape[1]
    return None in sizes or sizes[0] == sizes[1]
