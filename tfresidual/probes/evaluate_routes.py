"""How well routes through the network do: error, loss, entropy, agreement, distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual import sources
from tfresidual.definitions.averages import weighted_mean
from tfresidual.probes.measure import joined_splits, repeated
from tfresidual.routing import evaluate
from tfresidual.routing.data import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import checked_routes, unperturbed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain, Route

METRICS = ("error", "cross_entropy", "entropy", "agreement", "distance")


def evaluate_routes(
    chain: Chain | ChainSource,
    data: Data,
    routes: Iterable[Route],
    *,
    per_image: bool = False,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network on routes through its blocks.

    All routes are run together: parts that routes have in common are computed once, nothing is
    rebuilt, and each block is compiled once for any number of routes. Print
    `tfresidual.routing.plan_of(chain, routes)` to see how many blocks will be applied. For outputs
    per position, every position that counts is measured like an image; docs/concepts/probes.md says
    which images and positions count.

    - `error`: the share of images whose highest output is not the label, in [0, 1]; with several
      labels per image, whose highest outputs are not exactly the labels. A prediction that is not
      finite is wrong.
    - `cross_entropy`: between labels and prediction, in nats, 0 or more; with several labels per
      image, summed over the classes. May be infinite or NaN if the network explodes.
    - `entropy`: of the prediction, in nats, 0 or more, summed in the same way.
    - `agreement`: the share of images with the same prediction as the unperturbed network, in
      [0, 1].
    - `stage1_distance` and so on: the Euclidean distance, over all features of an image without
      padding, between the last state of the stage and that of the unperturbed network, 0 or more.
    - `margin`, only with `per_image`: the probability of the label minus the highest probability
      of another class, in [-1, 1]; over 0 if the label is ahead. With several labels per image,
      the lowest probability of a label minus the highest of another class.

    Example:

    >>> from tfresidual import routes
    >>> frame = evaluate_routes(chain, test, [routes.drop(chain, (1, 1), (2, 1))])

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        routes: `tfresidual.routing.Route`s, made by the functions of `tfresidual.routes`.
        per_image: whether to return the values of every image instead of their means.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per route and the columns `route` (its name) and the
        metrics. If `data` is a dict, `split` is the first column. With `per_image`, there is one
        row per route and image, with `image` (from 0; and `position`, for outputs per position)
        after `route` and `margin` after `agreement`.
    """
    chain = sources.numbered(chain)
    routes = checked_routes(chain, routes)
    frames = {}
    for split, part in splits_of(data).items():
        values = evaluate(chain, part, routes, memory_limit=memory_limit, progress=progress)
        columns = _columns(values) | {"margin": values.margin} if per_image else _means(values)
        distances = columns.pop("distance")
        for index, stage in enumerate(chain.stages):
            columns[f"stage{stage.index}_distance"] = distances[..., index]
        names = pd.DataFrame({"route": [route.name for route in routes]})
        if not per_image:
            frames[split] = names.assign(**columns)
            continue
        places = places_of(values)
        if values.position is None:
            columns = {name: _of_all_images(values, one) for name, one in columns.items()}
            places = {"image": np.arange(values.images)}
        frames[split] = repeated(names, places, {name: one.T for name, one in columns.items()})
    return joined_splits(frames)


def frames_of_rows(chain, data, tables, memory_limit=MEMORY_LIMIT, progress=False):
    """Evaluates the routes of several frames together.

    Args:
        tables: a dict with, for the name of every frame, a list of pairs of a place, a dict of the
            first columns of the row, including its `stage`, and a route, or `None` for a row of
            NaN.

    Returns:
        A tuple of two dicts: the frames by name, whose metrics are `METRICS` (the distance is that
        of the stage of the row), and the `tfresidual.routing.evaluator.RouteValues` by split, whose
        first route is the unperturbed one.
    """
    routes = [unperturbed(chain)]
    routes += [route for rows in tables.values() for _, route in rows if route is not None]
    frames, all_values = {name: {} for name in tables}, {}
    for split, part in splits_of(data).items():
        values = evaluate(chain, part, routes, memory_limit=memory_limit, progress=progress)
        means, index = _means(values), 1
        for name, rows in tables.items():
            records = []
            for place, route in rows:
                measured = dict.fromkeys(METRICS, np.nan)
                if route is not None:
                    measured = {metric: means[metric][index] for metric in METRICS}
                    measured["distance"] = measured["distance"][place["stage"] - 1]
                    index += 1
                records.append(place | measured)
            columns = [*(rows[0][0] if rows else ["stage"]), *METRICS]
            frames[name][split] = pd.DataFrame(records, columns=columns)
        all_values[split] = values
    return {name: joined_splits(parts) for name, parts in frames.items()}, all_values


def places_of(values):
    """Returns the image of every example of `RouteValues` and its position, if there are some."""
    places = {"image": values.image}
    return places if values.position is None else places | {"position": values.position}


def _of_all_images(values, column):
    """Returns a column of examples that are images, `(routes, images, ...)`, NaN where none is."""
    whole = np.full((len(column), values.images, *column.shape[2:]), np.nan, column.dtype)
    whole[:, values.image] = column
    return whole


def _columns(values):
    return {
        "error": values.wrong,
        "cross_entropy": values.cross_entropy,
        "entropy": values.entropy,
        "agreement": values.agreement,
        "distance": values.distance,
    }


def _means(values):
    """Returns the means over examples, in float64; infinite and NaN values are kept."""
    with np.errstate(invalid="ignore"):
        return {
            name: weighted_mean(np.moveaxis(column, 1, 0), values.weights)
            for name, column in _columns(values).items()
        }
