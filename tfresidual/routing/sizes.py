"""The sizes of symbolic tensors that TensorFlow cannot tell. TensorFlow only."""

import tensorflow as tf


def with_sizes(function):
    """Returns a function of tensors whose symbolic results have all sizes that can be known.

    Unless TensorFlow can tell them from those of the tensors given, the function is run on two
    batches: a size that is the same for both is known. Tensors have a leading axis of images.
    """
    known = {}

    def complete(*given):
        result = function(*given)
        if tf.executing_eagerly():
            return result
        found, shapes = _leaves(result), [one.shape for one in tf.nest.flatten(given)]
        is_clear = all(shape[1:].is_fully_defined() for shape in shapes)
        if is_clear and not all(one.shape[1:].is_fully_defined() for one in found):
            key = tuple(map(tuple, shapes))
            if key not in known:
                known[key] = _common_shapes(function, given, found)
            for tensor, shape in zip(found, known[key], strict=True):
                tensor.set_shape(shape)
        return result

    return complete


def _leaves(result):
    """Returns the tensors in a result, and the logits that Keras stores on them."""
    found = tf.nest.flatten(result)
    return found + [one._keras_logits for one in found if hasattr(one, "_keras_logits")]


def _common_shapes(function, given, found):
    def shapes_of(images):
        # Sizes may depend on what the images are, too: zeros and ones.
        batch = tf.nest.map_structure(
            lambda one: tf.cast(tf.fill([images, *one.shape[1:]], images - 1), one.dtype), given
        )
        return [one.shape for one in _leaves(function(*batch))]

    try:
        with tf.init_scope():
            pairs = zip(shapes_of(1), shapes_of(2), strict=True)
    except Exception:
        # Code written by others may raise any error for these values.
        return [one.shape for one in found]
    return [
        [size if size == other else None for size, other in zip(*pair, strict=True)]
        for pair in pairs
    ]
