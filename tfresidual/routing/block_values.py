"""Computes what every block does to the state, and how that relates to the loss gradient."""

from keras import ops

from tfresidual.metrics import change_of, cosine, norm, ratio
from tfresidual.routing.chain import VALID_POSITIONS
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.positions import (
    check_positions,
    each_position,
    only_counted,
    valid_images,
    valid_positions,
    without_padding,
)

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


def block_values(chain, images, labels, per_position=False):
    """Returns all metrics of a batch as a dict by name.

    Positions that are not valid in the context of the chain count as zeros. Images that do not
    count have NaN, see `tfresidual.routing.positions`.

    Args:
        chain: a `tfresidual.routing.Chain`.
        images: the images of the batch.
        labels: labels as the loss of the chain takes them.
        per_position: whether every position has metrics of its own.

    Returns:
        Tensors `(images, blocks)`. With `per_position`, they are `(images, positions, blocks)`, and
        under `VALID_POSITIONS` is which positions are valid, bool, `(images, positions)`. With
        them are the masks of `tfresidual.routing.positions.only_counted`.
    """
    chain = chain.given(images)
    walk = walk_with_gradients(chain, images, labels)
    shown = _shown(chain, walk.pairs, per_position)
    values = [
        values_of_block(
            block.keeps_shape, *map(shown, pair), shown(gradient), shown(readout_gradient)
        )
        for block, pair, gradient, readout_gradient in zip(
            chain.blocks, walk.pairs, walk.gradients, walk.readout_gradients, strict=True
        )
    ]
    stacked = _stacked(chain, walk.pairs, values, BLOCK_METRICS, per_position)
    stacked = only_counted(stacked, valid_images(chain), walk.counted, STATE_METRICS)
    return _with_positions(chain, walk.pairs, stacked, per_position)


def perturbation_values(chain, images, labels, per_position=False):
    """Returns both perturbation metrics of a batch, as `block_values` does all metrics."""
    del labels
    chain = chain.given(images)
    pairs, _ = chain.walk(chain.stem(images))
    shown = _shown(chain, pairs, per_position)
    values = [
        _perturbations(block.keeps_shape, *map(shown, pair))
        for block, pair in zip(chain.blocks, pairs, strict=True)
    ]
    stacked = _stacked(chain, pairs, values, PERTURBATION_METRICS, per_position)
    return _with_positions(chain, pairs, only_counted(stacked, valid_images(chain)), per_position)


def _shown(chain, pairs, per_position):
    """Returns the function that gives states and gradients the form in which they are measured."""
    if per_position:
        check_positions(chain, [state for pair in pairs for state in pair])
    clean = without_padding(chain)

    def function(state):
        if state is None:
            return None
        return each_position(clean(state)) if per_position else clean(state)

    return function


def _stacked(chain, pairs, values, names, per_position):
    """Returns the metrics of all blocks by name, from a list of those of one block."""
    stacked = {name: ops.stack([value[name] for value in values], axis=1) for name in names}
    if not per_position:
        return stacked
    shape = (*ops.shape(pairs[0][0])[:2], len(values))
    return {name: ops.reshape(value, shape) for name, value in stacked.items()}


def _with_positions(chain, pairs, values, per_position):
    """Returns values with those positions that are valid, if they are of positions."""
    if not per_position:
        return values
    return values | {VALID_POSITIONS: valid_positions(chain, pairs[0][0])}


def values_of_block(keeps_shape, before, after, gradient, readout_gradient=None):
    """Returns all metrics of one block per image, by name; NaN where one is not defined.

    Args:
        keeps_shape: whether the block returns states of the shape of its input.
        before: the states that it takes, `(images, ...)`.
        after: the states that it returns; not used if it changes their shape.
        gradient: the gradient of each image's loss with respect to `before`.
        readout_gradient: the same through the head alone, or `None`.
    """
    values = _perturbations(keeps_shape, before, after)
    undefined = ops.full_like(values["perturbation"], float("nan"))
    values |= {
        "cosine_loss": undefined,
        "readout_cosine_loss": undefined,
        "l2_ratio": values["scaled_perturbation"],
        "gradient_norm": norm(gradient),
    }
    if keeps_shape:
        change = change_of(before, after)
        values["cosine_loss"] = cosine(change, gradient)
        if readout_gradient is not None:
            values["readout_cosine_loss"] = cosine(change, readout_gradient)
    return values


def _perturbations(keeps_shape, before, after):
    """Returns both metrics of one block per image, by name; NaN for a block without an F."""
    size_before = norm(before)
    if not keeps_shape:
        return dict.fromkeys(PERTURBATION_METRICS, ops.full_like(size_before, float("nan")))
    size = norm(change_of(before, after))
    return {"perturbation": size, "scaled_perturbation": ratio(size, size_before)}
