"""Which images the last blocks help: those near the decision boundary, or those already right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual import sources
from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_int,
    check_number,
)
from tfresidual.definitions.averages import weighted_mean
from tfresidual.probes.evaluate_routes import places_of
from tfresidual.probes.measure import joined_splits
from tfresidual.routing import evaluate
from tfresidual.routing.data import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import (
    check_scale,
    check_times,
    readout,
    repeat_last_block,
    unperturbed,
)
from tfresidual.routing.scores import is_binary

if TYPE_CHECKING:
    from tfresidual.definitions.types import BorderlineGroups, ChainSource, Data, Frame
    from tfresidual.routing import Chain

GROUPS = ("borderline", "correct", "all")
# What determines the groups: the state at the start of a curve, or the one before each block.
GROUPINGS = ("fixed", "next block")
# Columns that only groups of the next block have: two states are compared.
COMPARED = (
    *("accuracy_before", "cross_entropy_before", "entropy_before"),
    *("put_right", "put_wrong"),
)
BLOCKS, REPETITIONS = "blocks", "repetitions"


def borderline(
    chain: Chain | ChainSource,
    data: Data,
    *,
    blocks: int = 5,
    times: int = 20,
    scale: float = 1.0,
    probability: float = 0.1,
    groups: BorderlineGroups = "fixed",
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
    per_image: bool = False,
) -> Frame:
    """Measures groups of images after each of the last blocks and as the last block is repeated.

    There are two curves. In the first, the head reads the state after each of the last blocks of
    the last stage; in the second, after each extra application of the last block. Images (or
    positions, see docs/concepts/probes.md) are put into groups by one of these read-outs:

    - `borderline`: the prediction changes to or from the right class when less than `probability`
      moves from one class to another.
    - `correct`: the prediction is right.
    - `all`: all images.

    Example:

    >>> frame = borderline(tfresidual.chain(net), {"train": train, "test": test})

    The borderline images themselves, as indices into the data:

    >>> images = borderline(tfresidual.chain(net), test, per_image=True)
    >>> images = images[images["borderline"] & (images["along"] == "blocks")]
    >>> places = images["image"].unique()

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        blocks: int, the number of last blocks to read out; in a shorter stage, all of its blocks.
        times: int, the largest number of extra applications of the last block, 0 for none.
        scale: float, the factor of the branch in the extra applications.
        probability: float over 0, up to 1, the probability mass that defines `borderline`.
        groups: `"fixed"` for groups that are determined at the start of a curve, `"next block"` for
            groups that are determined before each block, which has no row at the start.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.
        per_image: whether to return the values of every image instead of the means of the groups.

    Returns:
        A `pandas.DataFrame` with the columns `along` (`"blocks"` or `"repetitions"`), `stage`,
        `block` (the index of the last block applied; extra applications continue the count),
        `scale`, `group`, `images` (their number in the group), `accuracy` in [0, 1],
        `cross_entropy` and `entropy` in nats, the last three NaN for an empty group. If `data` is a
        dict, `split` is the first column. If the last block changes the shape of the state, there
        are no rows for repetitions.

        Groups of the next block have five more columns: `accuracy_before`, `cross_entropy_before`
        and `entropy_before` of the same images before the block, and `put_right` and `put_wrong`,
        the shares of them that the block puts right and wrong: `accuracy` is `accuracy_before +
        put_right - put_wrong`.

        With `per_image`, the columns `group` and `images` are replaced by `image` (from 0; and
        `position`, for outputs per position), `borderline` and `correct` (whether the image belongs
        to these groups), `label` and `prediction` (the class, or several as text, such as `"3 7"`;
        missing where the outputs are not finite) and `margin` (see `evaluate_routes`).

    Raises:
        ValueError: if an argument cannot be used, or there is no next block: `groups` is
            `"next block"`, and `blocks` or the number of blocks that can be read out is 1.

    Reference:
        Jastrzebski et al. 2018, sections 4.3 and 4.4, fig. 6 and 7.
    """
    chain = sources.numbered(chain)
    check_arguments(blocks, times, probability, groups)
    check_scale(scale)
    curves = _curves(chain, blocks, times, scale)
    check_next_block(chain, groups)
    routes = [route for curve in curves.values() for _, route in curve]
    frames = {}
    for split, part in splits_of(data).items():
        values = evaluate(
            chain,
            part,
            routes,
            memory_limit=memory_limit,
            with_outputs=per_image,
            progress=progress,
        )
        parts, begin = [], 0
        for along, curve in curves.items():
            for index, (block, _) in enumerate(curve, start=begin):
                before = None if groups == "fixed" else index - 1
                if before is not None and before < begin:
                    continue
                members = _members(values, begin if before is None else before, probability)
                columns = _columns(values, index, before)
                if per_image:
                    columns = _of_images(values, index, members, chain.outputs) | columns
                else:
                    columns = _of_groups(columns, members, values.weights)
                place = {"along": along, "stage": chain.stages[-1].index, "block": block}
                place["scale"] = float(scale) if along == REPETITIONS else 1.0
                parts.append(pd.DataFrame(place | columns))
            begin += len(curve)
        frames[split] = pd.concat(parts)
    return joined_splits(frames)


def check_arguments(blocks, times, probability, groups):
    """Raises a `ValueError` unless `borderline` can use these arguments."""
    check_int("blocks", blocks, at_least=1)
    check_times(times, at_least=0)
    check_number("probability", probability, over=0, at_most=1)
    check_choice("groups", groups, GROUPINGS)
    if groups == "next block" and blocks == 1:
        raise ArgumentError(
            "blocks",
            "be 2 or more for groups of the next block: the first of the blocks only determines "
            "groups",
            blocks=blocks,
            groups=groups,
        )


def check_next_block(chain, groups):
    """Raises a `ValueError` if groups of the next block need more blocks than a chain has."""
    if groups == "next block" and len(last_blocks(chain, 2)) < 2:
        raise ArgumentError(
            "groups",
            "be 'fixed' for a network without two blocks in its last stage that the head can "
            "follow",
            received=f"groups={groups!r}, {chain.name}",
        )


def last_blocks(chain, blocks):
    """Returns the block indices of the last blocks of the last stage that the head can follow."""
    return chain.stages[-1].exits[-blocks:]


def measured_blocks(chain, blocks, groups):
    """Returns the block indices that the frame of `borderline` has rows for along the blocks."""
    return last_blocks(chain, blocks)[0 if groups == "fixed" else 1 :]


def _curves(chain, blocks, times, scale):
    """Returns a dict of the curves by name, each a list of pairs of a block index and a route."""
    stage = chain.stages[-1]
    last = len(stage.blocks) - 1
    curves = {
        BLOCKS: [
            (block, readout(chain, stage.index, block)) for block in last_blocks(chain, blocks)
        ]
    }
    if times and stage.can_repeat:
        curves[REPETITIONS] = [(last, unperturbed(chain))] + [
            (last + k, repeat_last_block(chain, stage.index, k, scale)) for k in range(1, times + 1)
        ]
    return curves


def _members(values, route, probability):
    """Returns which images are in each of the groups that a route determines, by name."""
    return {
        "borderline": np.abs(values.margin[route]) / 2 < probability,
        "correct": values.wrong[route] == 0,
        "all": np.ones(len(values.labels), bool),
    }


def _columns(values, route, before):
    """Returns the values of all images on a route, compared with another one if not `None`."""
    columns = {
        "accuracy": 1 - values.wrong[route],
        "cross_entropy": values.cross_entropy[route],
        "entropy": values.entropy[route],
    }
    if before is None:
        return columns
    earlier = _columns(values, before, None)
    gain = columns["accuracy"] - earlier["accuracy"]
    compared = (*earlier.values(), np.maximum(gain, 0), np.maximum(-gain, 0))
    return columns | dict(zip(COMPARED, compared, strict=True))


def _of_groups(columns, members, weights):
    """Returns the means of columns over the images of every group, as columns."""
    means = {"group": list(GROUPS), "images": [int(members[name].sum()) for name in GROUPS]}
    for name, column in columns.items():
        means[name] = [weighted_mean(column, weights * members[group]) for group in GROUPS]
    return means


def _of_images(values, route, members, outputs):
    """Returns the groups and the predictions of every image on a route, as columns."""
    predicted, is_finite = values.predicted[route], values.is_finite[route]
    return {
        **places_of(values),
        "borderline": members["borderline"],
        "correct": members["correct"],
        "label": _label_names(values.labels, predicted.shape[-1], outputs),
        "prediction": _names_of(predicted, outputs).where(is_finite),
        "margin": values.margin[route],
    }


def _label_names(labels, width, outputs):
    """Returns a `pandas.Series` of labels as in `_names_of`, whatever their form in the data."""
    if is_binary(outputs, width):
        return _names_of(labels.reshape(-1, 1), outputs)
    if labels.ndim == 2 and labels.shape[-1] == width:
        return _names_of(labels, outputs)
    return pd.Series(labels.reshape(-1), dtype="Int64")


def _names_of(rows, outputs):
    """Returns a `pandas.Series` of classes from one row per image."""
    is_named = np.asarray(rows) > 0.5
    if is_binary(outputs, is_named.shape[-1]):
        return pd.Series(is_named[:, 0], dtype="Int64")
    if outputs.startswith("label"):
        return pd.Series([" ".join(map(str, np.flatnonzero(row))) for row in is_named])
    # With smoothed labels, no class may be over one half.
    return pd.Series(np.argmax(rows, axis=-1), dtype="Int64")
