"""Runs the function of a probe over data and puts the results into a frame."""

from __future__ import annotations

import functools
import itertools
import types
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.averages import (
    counted_weights,
    share_below_zero,
    standard_error,
    weighted_mean,
)
from tfresidual.routing.data import shape_of_outputs, splits_of
from tfresidual.routing.positions import VALID_POSITIONS, check_any_counts, check_prepared, masks_of
from tfresidual.routing.runs import WEIGHTS, run_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import tensorflow as tf

    from tfresidual.definitions.types import Data, Frame
    from tfresidual.routing import Chain


def measure(
    chain: Chain,
    name: str,
    function: Callable[..., dict[str, tf.Tensor]],
    data: Data,
    *,
    per_image: bool = False,
    progress: bool = False,
    with_labels: bool = True,
    with_errors: Sequence[str] = (),
    with_shares: Sequence[str] = (),
    per_position: bool = False,
    of_states: Sequence[str] = (),
    with_plain: bool = False,
) -> Frame:
    """Measures values per image and block and puts them into a frame.

    A function of a module, or a `functools.partial` of one with hashable arguments, is compiled
    once per chain and shape of the images; other functions are compiled in every call. Results are
    averaged over images, with the sample weights of the data, if it has some, in float64.

    Args:
        chain: a `tfresidual.routing.Chain`.
        name: str, the probe's name.
        function: `function(images, labels)` returns a dict of tensors `(images, blocks)`, and
            with them masks `(images,)` that say what counts, if not everything does; see
            `tfresidual.routing.positions.only_counted`.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        per_image: whether every image has rows of its own.
        progress: whether to show a progress bar.
        with_labels: whether the function reads the labels, which must then be valid.
        with_errors: names of the values whose means are returned with their standard errors.
        with_shares: names of the values of which the share below 0 is returned, too.
        per_position: whether the function is called with `per_position=True` too and returns
            tensors `(images, positions, blocks)`, and under `VALID_POSITIONS` which positions are
            measured. Every such position is then counted like an image.
        of_states: names of the values that do not depend on the loss.
        with_plain: whether the function can also be called with `plain=True`, for sums of squares
            without scaling, which is faster; it then also returns whether they were right.

    Returns:
        A `pandas.DataFrame` with the columns `split` (if `data` is a dict), `stage`, `block`,
        `image` (with `per_image`, and then `position` with `per_position`) and one column per
        value; without `per_image`, also a column `..._se` for each of `with_errors` and one
        `..._below_zero` for each of `with_shares`.

    Raises:
        ValueError: if an argument cannot be used, or a value is not one number per image and block.
    """
    check_blocks(chain)
    check, key = None, _key(function, chain)
    if with_labels and takes_any_labels(chain):

        def check(images, labels):
            check_prepared(chain, labels, shape_of_outputs(chain, images))

    if per_position:
        name, function = f"{name} per position", functools.partial(function, per_position=True)
    plain = functools.partial(function, plain=True) if with_plain else None
    frames = {}
    for split, part in splits_of(data).items():
        values = run_over(
            chain, name, function, part, progress, None, check, with_labels, plain, key=key
        )
        masks = masks_of(values)
        for mask in masks:
            check_any_counts(mask)
        weights = values.pop(WEIGHTS)
        examples = {"image": np.arange(len(weights))}
        if per_position:
            is_shown = values.pop(VALID_POSITIONS)
            _check_shapes(values, (*is_shown.shape, len(chain.blocks)))
            values = {name: value[is_shown] for name, value in values.items()}
            examples = dict(zip(("image", "position"), np.nonzero(is_shown), strict=True))
            masks = [None if mask is None else mask[examples["image"]] for mask in masks]
            weights = weights[examples["image"]]
        _check_shapes(values, (len(weights), len(chain.blocks)))
        if per_image:
            frames[split] = repeated(block_places(chain), examples, values)
            continue
        of_states_alone, of_loss = (counted_weights(weights, mask) for mask in masks)
        shares = {name: of_states_alone if name in of_states else of_loss for name in values}
        frames[split] = block_places(chain).assign(
            **{name: weighted_mean(value, shares[name]) for name, value in values.items()},
            **{f"{name}_se": standard_error(values[name], shares[name]) for name in with_errors},
            **{
                f"{name}_below_zero": share_below_zero(values[name], shares[name])
                for name in with_shares
            },
        )
    return joined_splits(frames)


def _key(function, chain):
    """Returns what is equal for functions that compute the same, `None` if that is not known."""
    parts = []
    if isinstance(function, functools.partial):
        given = (*function.args, *itertools.chain.from_iterable(sorted(function.keywords.items())))
        parts = ["chain" if one is chain else (type(one), one) for one in given]
        function = function.func
    if not isinstance(function, types.FunctionType) or "<locals>" in function.__qualname__:
        return None
    try:
        hash(tuple(parts))
    except TypeError:
        return None
    return function, *parts


def _check_shapes(values, shape):
    """Raises a `ValueError` unless all values have a shape: others would be spread over blocks."""
    for name, value in values.items():
        if value.shape != shape:
            axes = "(images, blocks)" if len(shape) == 2 else "(images, positions, blocks)"
            raise ArgumentError(
                "function",
                f"return tensors {axes}, of shape {shape} for all images of the data",
                received=f"{name!r} of shape {value.shape}",
            )


def check_blocks(chain):
    """Raises a `ValueError` if a chain has no blocks."""
    if not chain.blocks:
        raise ArgumentError(
            "chain", "have at least one block to measure", received=f"{chain.name}, which has none"
        )


def takes_any_labels(chain):
    """Returns whether the loss of a chain accepts invalid labels without an error.

    A cross-entropy does: it takes them for another class or ignores them. Other losses define
    themselves which labels they accept.
    """
    description = getattr(chain.loss, "description", None) or {"loss": "", "config": None}
    is_cross_entropy = "crossentropy" in description["loss"].lower().replace("_", "")
    ignores_some = (description["config"] or {}).get("ignore_class") is not None
    return chain.outputs != "values" and is_cross_entropy and not ignores_some


def joined_splits(frames):
    """Returns the frames of all splits as one, with `split` first unless its name is `None`."""
    for split, frame in frames.items():
        if split is not None:
            frame.insert(0, "split", split)
    return pd.concat(frames.values(), ignore_index=True)


def by_split(frame, function):
    """Applies a function of frames to each split of a frame; the splits stay in their order."""
    parts = frame.groupby("split", sort=False)
    return joined_splits({name: function(part.drop(columns="split")) for name, part in parts})


def block_places(chain):
    """Returns a frame with a row per block of a chain."""
    rows = [(block.stage, block.index) for block in chain.blocks]
    return pd.DataFrame(rows, columns=["stage", "block"])


def repeated(places, examples, values):
    """Returns a frame with a row per place and example, place by place.

    `examples` are columns that say where each example is, and `values` arrays `(examples, places)`.
    """
    count = len(next(iter(values.values())))
    frame = places.loc[np.repeat(places.index, count)].reset_index(drop=True)
    columns = {name: np.tile(column, len(places)) for name, column in examples.items()}
    return frame.assign(**columns, **{name: value.T.ravel() for name, value in values.items()})
