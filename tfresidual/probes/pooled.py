"""The state after every block, averaged over its positions, and sums over batches of them.

TensorFlow only.
"""

import numpy as np
import tensorflow as tf
from keras import backend

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.positions import (
    VALID_IMAGES,
    has_them,
    kept,
    known_positions,
    valid_images,
)


def pooled(chain, state, dtype="float32"):
    """Returns the mean of a state over its positions that are not padding, `(images, channels)`.

    Args:
        chain: a chain without a context, see `Chain.with_context`.
        state: `(images, ..., channels)`.
        dtype: of the result, unless the state has a larger one.
    """
    state, valid = tf.cast(state, backend.result_type(state.dtype, dtype)), known_positions(chain)
    if valid is None or not has_them(state, valid):
        return tf.reduce_mean(state, axis=range(1, len(state.shape) - 1))
    inner = range(2, len(state.shape) - 1)
    sums = tf.reduce_sum(tf.reduce_mean(kept(state, valid), axis=inner), axis=1)
    return sums / tf.reduce_sum(tf.cast(valid, state.dtype), axis=1, keepdims=True)


def pooled_states(chain, images, labels):
    """Returns the `pooled` state after every block of a batch in float64, and which images count.

    The key of a state is the number of the block, from 0; under `VALID_IMAGES` stands which images
    are not all padding, bool, `(images,)`.
    """
    chain = chain.with_context(images)
    pairs, _ = chain.walk(chain.stem(images))
    valid = valid_images(chain)
    states = {str(place): pooled(chain, after, "float64") for place, (_, after) in enumerate(pairs)}
    return states | {VALID_IMAGES: tf.ones(tf.shape(labels)[:1], bool) if valid is None else valid}


def saved_states(states, size):
    """Yields batches `(states, is_counted, images)` of `States` on disk, like `pooled_states`.

    These are a list of the states after every block, which images are not all padding, and which
    images these are, a slice.
    """
    if states.valid_positions is not None:
        raise ArgumentError(
            "states", "be saved with `pool='mean'` where there is padding", received=f"{states}"
        )
    for start in range(0, len(states.weights), size):
        part = slice(start, start + size)
        rows = [np.asarray(array[part], np.float64) for array in states.values()]
        rows = [row.reshape(len(row), -1, row.shape[-1]).mean(axis=1) for row in rows]
        yield rows, ~np.all([np.isnan(row).all(axis=1) for row in rows], axis=0), part


def added(one, other):
    """Returns sums added up, in any structure; `None` stands for none so far."""
    if one is None:
        return other
    if isinstance(one, dict):
        return {name: added(one[name], other[name]) for name in one}
    if isinstance(one, list):
        return [*map(added, one, other)]
    return one + other
