"""Computes what every block does to the state, and how that relates to the loss gradient."""

import tensorflow as tf
from keras import ops

from tfresidual.definitions.metrics import (
    change_of,
    norms_and_cosines,
    plain_norms_and_cosines,
    ratio,
)
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.positions import (
    VALID_POSITIONS,
    check_positions,
    each_position,
    only_counted,
    valid_images,
    valid_positions,
    without_padding,
)
from tfresidual.routing.runs import IN_RANGE

PERTURBATION_METRICS = ("perturbation", "scaled_perturbation")
# Those that do not depend on the loss.
STATE_METRICS = (*PERTURBATION_METRICS, "l2_ratio")
BLOCK_METRICS = (
    "cosine_loss",
    "readout_cosine_loss",
    "l2_ratio",
    "gradient_norm",
    "perturbation",
    "scaled_perturbation",
)


def block_values(chain, images, labels, per_position=False, plain=False):
    """Returns all metrics of a batch as a dict by name; NaN for images that do not count.

    Args:
        chain: a `tfresidual.routing.Chain`. Positions that are not valid in its context are zeros.
        images: the images of the batch.
        labels: labels as the loss of the chain takes them.
        per_position: whether every position has metrics of its own.
        plain: whether to sum squares as they are: faster, and right for ordinary sizes only.

    Returns:
        Tensors `(images, blocks)`, or `(images, positions, blocks)` with which positions are valid,
        under `VALID_POSITIONS`; the masks of `only_counted`; with `plain`, under `IN_RANGE` for
        which images all metrics are right, bool, `(images,)`.
    """
    chain = chain.with_context(images)
    walk = walk_with_gradients(chain, images, labels)
    gradients = zip(walk.gradients, walk.readout_gradients, strict=True)
    return _values(chain, walk.pairs, gradients, BLOCK_METRICS, walk.counted, per_position, plain)


def perturbation_values(chain, images, labels, per_position=False, plain=False):
    """Returns both perturbation metrics of a batch, as `block_values` does all metrics."""
    del labels
    chain = chain.with_context(images)
    pairs, _ = chain.walk(chain.stem(images))
    gradients = [()] * len(pairs)
    return _values(chain, pairs, gradients, PERTURBATION_METRICS, None, per_position, plain)


def _values(chain, pairs, gradients, names, is_counted, per_position, plain):
    """Returns some metrics of a batch from pairs of states, and the gradients at each pair."""
    shown = shown_states(chain, pairs, per_position)
    values = [
        values_of_block(block.keeps_shape, *map(shown, (*pair, *of_block)), plain=plain)
        for block, pair, of_block in zip(chain.blocks, pairs, gradients, strict=True)
    ]
    first = pairs[0][0]
    result = stacked(chain, first, values, names, is_counted, per_position, STATE_METRICS)
    if IN_RANGE in values[0]:
        is_right = ops.all(ops.stack([value[IN_RANGE] for value in values]), axis=0)
        result[IN_RANGE] = ops.all(ops.reshape(is_right, (ops.shape(first)[0], -1)), axis=1)
    return result


def shown_states(chain, pairs, per_position):
    """Returns the function of a state that clears padding and, if asked for, splits positions."""
    if per_position:
        check_positions(chain, [state for pair in pairs for state in pair])
    clean = without_padding(chain)

    def shown(state):
        if state is None:
            return None
        return each_position(clean(state)) if per_position else clean(state)

    return shown


def stacked(chain, first, values, names, is_counted, per_position, of_states):
    """Returns the values of all blocks by name, see `block_values`, from dicts of those of each.

    `first` is the first state of the batch; for `of_states` see `only_counted`.
    """
    result = {name: ops.stack([value[name] for value in values], axis=1) for name in names}
    if per_position:
        shape = (*ops.shape(first)[:2], len(values))
        result = {name: ops.reshape(value, shape) for name, value in result.items()}
    result = only_counted(result, valid_images(chain), is_counted, of_states)
    if per_position:
        result[VALID_POSITIONS] = valid_positions(chain, first)
    return result


def values_of_block(keeps_shape, before, after, gradient=None, readout_gradient=None, plain=False):
    """Returns all metrics of one block per image, by name; NaN where one is not defined.

    Args:
        keeps_shape: whether the block returns states of the shape of its input.
        before: the states that it takes, `(images, ...)`.
        after: the states that it returns; not used if it changes their shape.
        gradient: the gradient of each image's loss with respect to `before`, or `None`.
        readout_gradient: the same through the head alone, or `None`.
        plain: see `block_values`.
    """
    gradients = [one for one in (gradient, readout_gradient) if one is not None]
    if keeps_shape:
        values = _of_states(plain, before, after, *gradients)
    else:
        # Without a gradient, any number per image will do: its place is taken by NaN.
        values = _of_gradient(plain, *(gradients[:1] or [before]))
    some = values["perturbation" if keeps_shape else "gradient_norm"]
    if not (keeps_shape or gradients):
        del values["gradient_norm"]
    return dict.fromkeys(BLOCK_METRICS, ops.full_like(some, float("nan"))) | values


def _compiled_once(function):
    """Decorator: all blocks share one compiled function, whose tensors are rows of features."""
    compiled = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})

    def shared(plain, *tensors):
        return compiled(plain, *(tf.reshape(one, [tf.shape(one)[0], -1]) for one in tensors))

    return shared


@_compiled_once
def _of_states(plain, before, after, *gradients):
    """Returns the metrics of a block, from its states and up to two gradients at the first."""
    tensors = [before, change_of(before, after), *gradients]
    names = ("cosine_loss", "readout_cosine_loss")[: len(gradients)]
    pairs = [(1, place + 2) for place in range(len(gradients))]
    (size_before, size, *sizes), cosines, *is_right = _measured(plain, tensors, pairs)
    scaled = ratio(size, size_before)
    values = {"perturbation": size, "scaled_perturbation": scaled, "l2_ratio": scaled}
    values |= dict(zip(names, cosines, strict=True))
    if sizes:
        values["gradient_norm"] = sizes[0]
    return values | dict(zip([IN_RANGE], is_right, strict=False))


@_compiled_once
def _of_gradient(plain, gradient):
    """Returns the metrics of a block without an F: the norm of its gradient."""
    (size,), _, *is_right = _measured(plain, [gradient], [])
    return {"gradient_norm": size} | dict(zip([IN_RANGE], is_right, strict=False))


def _measured(plain, tensors, pairs):
    return (plain_norms_and_cosines if plain else norms_and_cosines)(tensors, pairs)
