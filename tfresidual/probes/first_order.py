"""Whether the gradient predicts what a block does to the loss. TensorFlow only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tensorflow as tf
from keras import ops

from tfresidual.definitions.averages import standard_error, weighted_mean
from tfresidual.definitions.metrics import change_of, norm, ratio
from tfresidual.machine.console import progress_bar
from tfresidual.probes.drop_blocks import rows_of
from tfresidual.probes.measure import block_places, joined_splits, repeated
from tfresidual.probes.predictions import label_check, scored_chain
from tfresidual.routing import evaluate
from tfresidual.routing.data import batches_of, count_of, splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.positions import (
    COUNTED_IMAGES,
    check_any_counts,
    only_counted,
    without_padding,
)
from tfresidual.routing.routes import unperturbed
from tfresidual.routing.runs import WEIGHTS, run_over

if TYPE_CHECKING:
    from tfresidual.definitions.types import Array, ChainSource, Data, Frame
    from tfresidual.routing import Chain

# Pairs of a term and what it predicts, by the end of the names of what compares them.
TERMS = {
    "": ("first_order", "loss_change"),
    "_after": ("first_order_after", "loss_change"),
    "_readout": ("first_order_readout", "readout_change"),
}
VALUES = (
    *("first_order", "first_order_after", "loss_change", "l2_ratio"),
    *("first_order_readout", "readout_change"),
)


def first_order(
    chain: Chain | ChainSource,
    data: Data,
    *,
    per_image: bool = False,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Compares what every block does to the loss with what the gradient predicts.

    Let L be the loss of one image, h the state before a block, F = block(h) - h, and g = dL/dh
    through the rest of the network, the block included. docs/concepts/probes.md says which images
    count, and how these terms differ from those of the paper.

    - `first_order`: <F, g>, the first-order term, with the gradient at the input of the block.
    - `first_order_after`: <F, dL/d(h + F)>, the same with the gradient at its output.
    - `loss_change`: the loss of the network minus the loss of the network without the block (which
      `drop_blocks` measures). Under 0 if the block lowers it.
    - `l2_ratio`: |F| / |h|, 0 or more. The smaller it is, the better the terms should predict.
    - `first_order_readout`: <F, dl/dh>, with the loss l(h) of the head applied directly to h, as in
      the paper's equations. In the last stage alone, whose states the head can take; NaN elsewhere.
    - `readout_change`: l(h + F) - l(h), which that term predicts. Along the last stage, the sum of
      these is the loss of the network minus that of the head at the start of the stage.
    - `ratio`: the mean of `first_order` divided by the mean of `loss_change`, since the change of a
      single image may be close to 0. 1 if the prediction is right on average. NaN if the mean
      change is 0.
    - `rank_correlation`: Spearman's correlation between `first_order` and `loss_change` over the
      images, in [-1, 1]. NaN for a single image, or if either is the same for all images.
    - `ratio_after`, `rank_correlation_after`, `ratio_readout`, `rank_correlation_readout`: those of
      the other terms, the last two with `readout_change`.

    The first six are computed per image and averaged; `first_order_se` and so on are the standard
    errors of these means over the images. Blocks that change the shape of the state have no F and
    cannot be dropped: all their values are NaN. Each batch is read once.

    Example:

    >>> frame = first_order(tfresidual.chain(net), test)
    >>> predicted_well = frame[frame["rank_correlation"] > 0.9]

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        per_image: whether to return the values of every image instead of their means.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0) and these, in the
        order `first_order`, `first_order_after`, `loss_change`, `l2_ratio`, `first_order_readout`,
        `readout_change`, `ratio`, `rank_correlation`, `ratio_after`, `rank_correlation_after`,
        `ratio_readout`, `rank_correlation_readout`, and the standard errors of the first six. If
        `data` is a dict, `split` is the first column. With `per_image`, `image` (from 0) comes
        after `block`, and only the first six are there.

    Raises:
        ValueError: if an argument cannot be used, or the outputs of the network are not classes.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 3, eq. 2 to 4.
    """
    check_memory_limit(memory_limit)
    chain = scored_chain(chain)
    frames = {}
    for split, part in splits_of(data).items():
        values, weights = _values_of(chain, part, memory_limit, progress)
        if per_image:
            images = {"image": np.arange(len(weights))}
            frames[split] = repeated(block_places(chain), images, values)
        else:
            frames[split] = _means(chain, values, weights)
    return joined_splits(frames)


def _values_of(chain, data, memory_limit, progress):
    """Returns arrays `(images, blocks)` by name, and weights, 0 for what does not count."""
    routes = [route for _, route in rows_of(chain)]
    asked = [unperturbed(chain), *(route for route in routes if route is not None)]
    function = functools.partial(first_order_values, chain)
    check, parts = label_check(chain), []
    with progress_bar("first order" if progress else None, count_of(data)) as advance:
        # Both see a batch before the next one is read, since data may be shuffled every time.
        for *batch, weights in batches_of(data, chain):
            values = run_over(chain, "first order", function, batch, check=check)
            is_counted = values.get(COUNTED_IMAGES, np.ones(len(batch[1]), bool))
            losses = np.full((len(asked), len(is_counted)), np.nan)
            # The evaluator refuses a batch without anything that counts.
            if is_counted.any():
                found = evaluate(chain, batch, asked, memory_limit=memory_limit, with_losses=True)
                losses[:, is_counted] = found.losses[:, is_counted]
            values["loss_change"] = _changes(routes, losses)
            parts.append(values | {WEIGHTS: weights.numpy() * is_counted})
            advance(1)
    names = (*VALUES, WEIGHTS)
    values = {name: np.concatenate([part[name] for part in parts]).astype(float) for name in names}
    check_any_counts(values[WEIGHTS])
    return values, values.pop(WEIGHTS)


def _changes(routes, losses):
    """Returns what the blocks do to the losses, `(images, blocks)`."""
    whole, *others = losses
    dropped, undefined = iter(others), np.full_like(whole, np.nan)
    # A loss of two networks that both explode has no change.
    with np.errstate(invalid="ignore"):
        columns = [undefined if route is None else whole - next(dropped) for route in routes]
    return np.stack(columns, axis=1)


def first_order_values(chain, images, labels):
    """Returns what one pass measures of a batch: all but `loss_change`, each `(images, blocks)`."""
    chain = chain.with_context(images)
    walk, clean = walk_with_gradients(chain, images, labels), without_padding(chain)
    undefined = tf.fill(tf.shape(walk.pairs[0][0])[:1], tf.constant(np.nan, tf.float64))
    gradients = {
        "first_order": walk.gradients,
        "first_order_after": walk.gradients_after,
        "first_order_readout": walk.readout_gradients,
    }
    rows = []
    for index, (block, (before, after)) in enumerate(zip(chain.blocks, walk.pairs, strict=True)):
        found = dict.fromkeys((*gradients, "l2_ratio", "readout_change"), undefined)
        if block.keeps_shape:
            change = clean(change_of(before, after))
            found["l2_ratio"] = tf.cast(ratio(norm(change), norm(clean(before))), tf.float64)
            for name, of_blocks in gradients.items():
                if of_blocks[index] is not None:
                    found[name] = _product(change, of_blocks[index])
            if walk.readout_losses[index] is not None:
                then = [*walk.readout_losses, walk.losses][index + 1]
                losses = [tf.cast(one, tf.float64) for one in (then, walk.readout_losses[index])]
                found["readout_change"] = losses[0] - losses[1]
        rows.append(found)
    stacked = {name: ops.stack([row[name] for row in rows], axis=1) for name in rows[0]}
    return only_counted(stacked, None, walk.counted)


def _product(left, right):
    """Returns the scalar product over all features of each image, `(images,)`."""
    # In float64, since products of both signs cancel.
    products = tf.cast(left, tf.float64) * tf.cast(right, tf.float64)
    return ops.sum(products, axis=tuple(range(1, len(products.shape))))


def _means(chain, values, weights):
    """Returns the frame of the means over the images and what compares the values of a block."""
    is_counted = weights > 0
    # Means of networks that explode.
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {name: weighted_mean(values[name], weights) for name in VALUES}
        for suffix, pair in TERMS.items():
            term, change = (columns[name] for name in pair)
            columns[f"ratio{suffix}"] = np.where(change == 0, np.nan, term / change)
            of_blocks = (values[name][is_counted].T for name in pair)
            columns[f"rank_correlation{suffix}"] = [
                rank_correlation(*both) for both in zip(*of_blocks, strict=True)
            ]
        columns |= {f"{name}_se": standard_error(values[name], weights) for name in VALUES}
    return block_places(chain).assign(**columns)


def rank_correlation(left: Array, right: Array) -> float:
    """Returns Spearman's rank correlation of two arrays, in [-1, 1]; ties have their mean rank.

    NaN for fewer than two values, if one of them is NaN, or if all values of an array are the same.
    """
    ranks = [pd.Series(values).rank().to_numpy() for values in (left, right)]
    centred = [rank - rank.mean() for rank in ranks]
    size = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    if not size > 0:
        return np.nan
    return float(np.clip((centred[0] * centred[1]).sum() / size, -1, 1))
