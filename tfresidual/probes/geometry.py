"""Lengths measured by the metric of the last state, pulled back to a state. TensorFlow only.

docs/concepts/probes.md says what that metric is.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras import backend, ops

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.metrics import change_of, norm
from tfresidual.probes.eigenvalues import largest_eigenvalues, linearized, push_and_pull
from tfresidual.probes.measure import by_split, joined_splits, measure
from tfresidual.probes.perturbation import ALL_STAGES
from tfresidual.routing.data import in_structure, splits_of
from tfresidual.routing.positions import (
    check_any_counts,
    masks_of,
    only_counted,
    valid_images,
    without_padding,
)
from tfresidual.routing.routes import block_of
from tfresidual.routing.runs import WEIGHTS, run_over

if TYPE_CHECKING:
    from tfresidual.definitions.types import Array, ArrayLike, ChainSource, Data, Frame
    from tfresidual.routing import Chain

# A pass keeps the values computed in every block after the place where the metric is measured.
IMAGES_AT_ONCE = 32


def metric_product(
    chain: Chain | ChainSource,
    images: ArrayLike,
    *,
    stage: int,
    block: int,
    vectors: ArrayLike,
    progress: bool = False,
) -> Array:
    """Multiplies vectors by the metric at the state before a block: g x = J'J x.

    J is the Jacobian of the map from the state before the block to the last state, the input of the
    head. In a stage with an anchor, the anchor is held fixed. g is symmetric and positive
    semidefinite.

    Example:

    >>> state = net.get_layer("stem").output
    >>> change = np.ones((len(images), *state.shape[1:]), "float32")
    >>> place = {"stage": 1, "block": 0}
    >>> product = metric_product(tfresidual.chain(net), images, **place, vectors=change)
    >>> lengths = np.sqrt((change * product).sum(axis=(1, 2, 3)))

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        images: array `(images, height, width, channels)`.
        stage: int, counted from 1.
        block: int, counted from 0.
        vectors: array, one vector for each image, with the shape of the state before the block.
        progress: whether to show a progress bar.

    Returns:
        An array of the shape of `vectors`, in at least float32, NaN for an image that is all
        padding.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", section 2.4.
    """
    chain = _checked_chain(chain, stage, block)
    vectors = np.asarray(vectors)
    images = in_structure(images, chain.input_dtype, chain.input_names)
    images = keras.tree.map_structure(np.asarray, images)
    function = functools.partial(_products, chain, stage, block)
    name = f"metric product at stage {stage} block {block}"
    data = images, vectors
    return _run_over(chain, name, function, data, progress)["product"]


def metric_eigenvalues(
    chain: Chain | ChainSource,
    data: Data,
    *,
    stage: int,
    block: int,
    count: int = 3,
    tolerance: float = 1e-3,
    most_iterations: int = 100,
    progress: bool = False,
) -> Frame:
    """Measures the largest eigenvalues of the metric at the state before a block, for every image.

    The square root of the largest one is the largest factor by which the rest of the network
    lengthens a small displacement of that state. The eigenvalues are those of g = J'J, see
    `metric_product`, by an iteration that approaches them from below (docs/concepts/probes.md).

    Example:

    >>> frame = metric_eigenvalues(tfresidual.chain(net), test.take(1), stage=1, block=0)

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`. Labels are not used.
        stage: int, counted from 1.
        block: int, counted from 0.
        count: int, the number of eigenvalues, up to the number of features of the state.
        tolerance: float over 0, the residual at which the iteration of an image ends.
        most_iterations: int, the largest number of iterations.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per image and eigenvalue and the columns `stage`,
        `block`, `image` (from 0), `rank` (0 for the largest), `eigenvalue` (0 or more, descending)
        and `residual` (|g v - value v| for the unit vector v divided by the largest eigenvalue, 0
        or more; over `tolerance` if the iteration ended before it converged). The last two are NaN
        if numbers overflow, and for an image that is all padding. If `data` is a dict, `split` is
        the first column.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", section 2.4.
        Knyazev 2001, https://doi.org/10.1137/S1064827500366124 (LOBPCG).
    """
    chain = _checked_chain(chain, stage, block)
    settings = (count, tolerance, most_iterations)
    function = functools.partial(_eigenvalues, chain, stage, block, *settings)
    name = f"metric eigenvalues at stage {stage} block {block} {settings}"
    frames = {}
    for split, part in splits_of(data).items():
        values = _run_over(chain, name, function, part, progress)
        check_any_counts(masks_of(values)[0])
        images = len(values["eigenvalue"])
        places = {
            "stage": stage,
            "block": block,
            "image": np.repeat(np.arange(images), count),
            "rank": np.tile(np.arange(count), images),
        }
        columns = {key: value.ravel() for key, value in values.items()}
        frames[split] = pd.DataFrame(places | columns)
    return joined_splits(frames)


def line_element(
    chain: Chain | ChainSource, data: Data, *, per_image: bool = False, progress: bool = False
) -> Frame:
    """Measures the line element of each block, which adds a layer part and a spatial part.

    With F = block(h) - h and the metric g = J'J at h (see `metric_product`):

    - `layer_part`: |F|^2.
    - `spatial_part`: F' g F = |J F|^2, the square of how far the last state moves when h moves
      by F, to first order.
    - `length`: sqrt(layer_part + spatial_part).

    All are 0 or more and are computed per image, then averaged over the images. They are NaN for a
    block that changes the shape of the state. The paper does not say which displacement the spatial
    part measures; docs/concepts/probes.md says why it is F here. The number of passes through the
    network equals its number of blocks.

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`. Labels are not used.
        per_image: whether to return the values of every image instead of their means.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `layer_part`,
        `spatial_part` and `length`. If `data` is a dict, `split` is the first column. With
        `per_image`, `image` comes after `block`.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", eq. 3 and 12.
    """
    chain = sources.numbered(chain)
    function = functools.partial(_line_elements, chain)
    return measure(
        chain,
        "line element",
        function,
        data,
        per_image=per_image,
        progress=progress,
        with_labels=False,
    )


def path_lengths(chain: Chain | ChainSource, data: Data, *, progress: bool = False) -> Frame:
    """Measures the length of the path of an image through each stage, by the line element.

    It is the sum of `length` over the blocks of the stage, see `line_element`: the computational
    distance (Hauser 2019, eq. 4; `computational_distance`) with the part of the metric included.
    Blocks that change the shape of the state have no length and are not counted.

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`. Labels are not used.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per stage and one row `"all"` for the whole network, and
        the columns `stage`, `blocks` (the number of blocks measured) and `path_length` (the mean
        over images, 0 or more). If `data` is a dict, `split` is the first column.
    """
    return path_lengths_of(line_element(chain, data, progress=progress))


def path_lengths_of(frame: Frame) -> Frame:
    """Adds up a frame of `line_element`, one row per block (and split), to `path_lengths`."""
    if "split" in frame:
        return by_split(frame, path_lengths_of)
    # Count and sum leave out NaN, that is, blocks without a length.
    stages = frame.groupby("stage")["length"].agg(["count", "sum"])
    stages = pd.concat([stages, stages.sum().to_frame(ALL_STAGES).T]).rename_axis("stage")
    stages = stages.set_axis(["blocks", "path_length"], axis="columns")
    return stages.reset_index().astype({"blocks": int})


def line_between(
    chain: Chain | ChainSource,
    first_images: ArrayLike,
    second_images: ArrayLike,
    *,
    stage: int = 1,
    block: int = 0,
    points: int = 16,
    progress: bool = False,
) -> Frame:
    """Measures the straight line between the states of two images by the pulled-back metric.

    Let a and b be the states of the two images before a block. `length` is the length of the line
    from a to b by the metric (see `metric_product`), the integral of |J(a + u (b - a)) (b - a)|
    over u from 0 to 1, by the mean over the midpoints of `points` equal parts. It is the length of
    the curve that the last state follows, and therefore at least the distance between the two last
    states. In a stage with an anchor, the anchor moves along.

    Example:

    >>> frame = line_between(tfresidual.chain(net), images[:8], images[8:16])
    >>> detour = frame["length"] / frame["last_distance"]

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        first_images: array `(pairs, height, width, channels)`.
        second_images: array of the same shape.
        stage: int, counted from 1.
        block: int, counted from 0.
        points: int, the number of places on the line where the metric is measured.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per pair and the columns `stage`, `block`, `pair` (from
        0), `length`, `euclidean_length` (|b - a|) and `last_distance` (between the last states),
        all 0 or more.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", eq. 12, the
        second part.
    """
    chain = _checked_chain(chain, stage, block)
    if chain.context is not None:
        raise ArgumentError(
            "chain",
            "be a network whose blocks read nothing but the state: the states on the line belong "
            "to neither of the two images",
            received=f"{chain.name}, whose blocks read more",
        )
    pairs = np.asarray(first_images), np.asarray(second_images)
    function = functools.partial(_lines, chain, stage, block, points)
    name = f"line from stage {stage} block {block} in {points} points"
    values = _run_over(chain, name, function, pairs, progress)
    places = {"stage": stage, "block": block, "pair": np.arange(len(pairs[0]))}
    return pd.DataFrame(places | values)


def _run_over(chain, name, function, data, progress):
    """Runs a function that reads no labels, or takes something else in their place."""
    values = run_over(
        chain, name, function, data, progress, at_once=IMAGES_AT_ONCE, with_labels=False
    )
    # Nothing here is a mean over images.
    del values[WEIGHTS]
    return values


def _checked_chain(chain, stage, block):
    """Returns the chain; raises a `ValueError` unless it has such a block."""
    chain = sources.numbered(chain)
    block_of(chain, "block", stage, block, f"block={block!r}")
    return chain


def _metric(chain, stage, block, images):
    """Returns the state before a block and the function `x -> g x`, both in at least float32."""
    chain = chain.with_context(images)
    clean = without_padding(chain)
    state, anchor = chain.walk_to(chain.stem(images), stage, block)
    _, push, pull = linearized(lambda h: chain.continue_from(h, anchor, stage, block), state)
    wide = backend.result_type(state.dtype, "float32")

    def product(vector):
        (pulled,) = pull(clean(push(clean(tf.cast(vector, state.dtype)))))
        return tf.cast(clean(pulled), wide)

    return tf.cast(state, wide), product


# Without autograph, errors raised while a graph is built keep their message.
@tf.autograph.experimental.do_not_convert
def _products(chain, stage, block, images, vectors):
    """Returns the products of a batch, with the shape of the vectors."""
    state, product = _metric(chain, stage, block, images)
    if state.shape[1:] != vectors.shape[1:]:
        raise ArgumentError(
            "vectors",
            f"have the shape of the state before the block, {tuple(state.shape)[1:]} for each "
            "image",
            received=f"vectors of shape {tuple(vectors.shape)[1:]}",
        )
    return only_counted({"product": product(vectors)}, valid_images(chain.with_context(images)))


@tf.autograph.experimental.do_not_convert
def _eigenvalues(chain, stage, block, count, tolerance, most_iterations, images, labels):
    """Returns the eigenvalues and residuals of a batch, both `(images, count)`."""
    del labels
    state, product = _metric(chain, stage, block, images)
    size = int(np.prod(state.shape[1:]))
    if count > size:
        raise ArgumentError(
            "count",
            f"be at most the number of features of the state before the block, {size}",
            received=f"count={count}",
        )

    values, residuals = largest_eigenvalues(product, state, count, tolerance, most_iterations)
    values = {"eigenvalue": values, "residual": residuals}
    return only_counted(values, valid_images(chain.with_context(images)))


def _line_elements(chain, images, labels):
    """Returns all values of a batch, each `(images, blocks)`."""
    del labels
    chain = chain.with_context(images)
    first, states = chain.stem(images), []

    def recorded(block):
        def apply(state, *anchor):
            # A copy, because the state may also be the anchor, which does not move.
            states.append(tf.identity(state))
            return block(states[-1], *anchor)

        return dataclasses.replace(block, apply=apply)

    stages = [
        dataclasses.replace(stage, blocks=tuple(map(recorded, stage.blocks)))
        for stage in chain.stages
    ]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(first)
        pairs, last = dataclasses.replace(chain, stages=tuple(stages)).walk(first)
    clean = without_padding(chain)
    changes = {
        index: clean(change_of(*pair))
        for index, (block, pair) in enumerate(zip(chain.blocks, pairs, strict=True))
        if block.keeps_shape
    }
    spatial_lengths = _pushed_lengths(tape, last, states, changes, clean)
    undefined = tf.fill(tf.shape(first)[:1], np.float32(np.nan))
    values = {"layer_part": [], "spatial_part": [], "length": []}
    for index in range(len(pairs)):
        layer_length = spatial_length = length = undefined
        if index in changes:
            layer_length, spatial_length = norm(changes[index]), spatial_lengths[index]
            # Uses `norm`, since a sum of squares might overflow.
            length = norm(tf.stack([layer_length, spatial_length], axis=1))
        values["layer_part"].append(layer_length**2)
        values["spatial_part"].append(spatial_length**2)
        values["length"].append(length)
    stacked = {name: ops.stack(columns, axis=1) for name, columns in values.items()}
    return only_counted(stacked, valid_images(chain))


def _pushed_lengths(tape, last, states, changes, clean):
    """Returns how far changes of states move the last state, to first order."""
    if not changes:
        return {}
    states = [states[index] for index in changes]
    push, _ = push_and_pull(tape, last, states)

    def length(shares):
        tangents = [
            tf.cast(share * change, state.dtype)
            for share, change, state in zip(
                tf.unstack(shares), changes.values(), states, strict=True
            )
        ]
        return norm(clean(push(*tangents)))

    # One block at a time, since all at once would need the memory of one pass per block.
    rows = tf.eye(len(changes), dtype=next(iter(changes.values())).dtype)
    lengths = tf.map_fn(length, rows, parallel_iterations=1)
    return dict(zip(changes, tf.unstack(lengths, len(changes)), strict=True))


def _lines(chain, stage, block, points, first_images, second_images):
    """Returns all values of a batch of pairs, each `(pairs,)`."""
    second_images = tf.cast(second_images, first_images.dtype)
    begin, end = (
        chain.walk_to(chain.stem(images), stage, block) for images in (first_images, second_images)
    )
    # State and anchor.
    shifts = [to - since for since, to in zip(begin, end, strict=True)]

    def speed(share):
        place = [
            since + tf.cast(share, since.dtype) * shift
            for since, shift in zip(begin, shifts, strict=True)
        ]
        _, push, _ = linearized(lambda *h: chain.continue_from(*h, stage, block), *place)
        return norm(push(*shifts))

    speeds = tf.map_fn(
        speed,
        (np.arange(points, dtype="float32") + 0.5) / points,
        fn_output_signature=backend.result_type(begin[0].dtype, "float32"),
        parallel_iterations=1,
    )
    lasts = [chain.continue_from(*place, stage, block) for place in (begin, end)]
    return {
        "length": tf.reduce_mean(speeds, axis=0),
        "euclidean_length": norm(change_of(begin[0], end[0])),
        "last_distance": norm(change_of(*lasts)),
    }


def frames(chain, data, options, progress):
    """Measures the line element of every block, and the length of the path through every stage."""
    del options
    elements = line_element(chain, data, progress=progress)
    return {"line_element": elements, "path_lengths": path_lengths_of(elements)}
