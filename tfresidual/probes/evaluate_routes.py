"""What routes through the network are worth: error, loss, entropy, agreement, distance."""

import numpy as np
import pandas as pd

from tfresidual import sources
from tfresidual.arguments import check_bool
from tfresidual.routing import evaluate
from tfresidual.routing.batches import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import checked_routes, unperturbed

METRICS = ("error", "cross_entropy", "entropy", "agreement", "distance")


def evaluate_routes(
    chain, data, routes, *, per_image=False, memory_limit=MEMORY_LIMIT, progress=False
):
    """Measures what the network answers on routes through its blocks.

    All routes are run together: what they have in common is computed once, nothing is rebuilt,
    and each block is compiled once however many the routes are. `print` a
    `tfresidual.routing.plan_of(chain, routes)` for how many blocks will be applied.

    - `error`: share of images whose highest output is not the label; with several labels an
      image, whose highest outputs are not just the labels. A prediction that is not finite is
      wrong. In [0, 1].
    - `cross_entropy`: between labels and prediction, in nats, 0 or more; with several labels per
      image the sum over the classes. May be infinite, or NaN, where the network explodes.
    - `entropy`: of the prediction, in nats, 0 or more, summed likewise.
    - `agreement`: share of images with the prediction of the unperturbed network, in [0, 1].
    - `stage1_distance` and so on: Euclidean distance of the last state of the stage to that of
      the unperturbed network, over all features of an image, 0 or more.
    - `margin`, with `per_image`: the probability of the label minus the highest of another class,
      in [-1, 1]; over 0 where the label is ahead. Of several labels per image it is the lowest
      probability of a label minus the highest of another, and of two classes with one output the
      probability of the right one minus that of the wrong one.

    Example:

    >>> from tfresidual import routes
    >>> frame = evaluate_routes(chain, test, [routes.drop(chain, (1, 1), (2, 1))])

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by the name of the split.
        routes: `tfresidual.routing.Route`s, made by the functions of `tfresidual.routes`.
        per_image: whether to return every image's own values instead of their means.
        memory_limit: MiB that the evaluator may take, some 25 or more; the result is the same.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per route and the columns `route` (its name) and the
        metrics; `split` first, where `data` is a dict. Where `per_image` is set, `image` (from 0,
        in the order of the data) stands after `route`, and `margin` after `agreement`.

    Raises:
        ValueError: if an argument cannot be used.
    """
    check_bool("per_image", per_image)
    chain = sources.chain(chain)
    routes = checked_routes(chain, routes)
    frames = []
    for split, part in splits_of(data).items():
        values = evaluate(chain, part, routes, memory_limit=memory_limit, progress=progress)
        columns = _columns(values) | {"margin": values.margin} if per_image else _means(values)
        frame = pd.DataFrame({"route": [route.name for route in routes]})
        if per_image:
            images = len(values.labels)
            frame = frame.loc[np.repeat(frame.index, images)].reset_index(drop=True)
            frame["image"] = np.tile(np.arange(images), len(routes))
        distances = columns.pop("distance")
        frame = frame.assign(**{name: values.ravel() for name, values in columns.items()})
        for index, stage in enumerate(chain.stages):
            frame[f"stage{stage.index}_distance"] = distances[..., index].ravel()
        frames.append(_with_split(frame, split))
    return pd.concat(frames, ignore_index=True)


def frames_of_rows(chain, data, tables, memory_limit=MEMORY_LIMIT, progress=False):
    """Evaluates the routes of several frames together.

    Args:
        chain: a `tfresidual.routing.Chain`.
        data: a dataset or arrays, or a dict of these by split.
        tables: for every frame by name a list of pairs `(place, route)`. The place is a dict
            that begins the row, with its `stage`; a row without a route, `None`, holds NaN.
        memory_limit: see `evaluate_routes`.
        progress: whether to show a progress bar.

    Returns:
        A tuple of the dict of frames, with `split` where `data` is a dict, what stands in the
        place, and `METRICS` (the distance is that of the row's own stage), and the dict of
        `tfresidual.routing.evaluator.RouteValues` by split, whose first route is the unperturbed
        one.
    """
    routes = [unperturbed(chain)]
    routes += [route for rows in tables.values() for _, route in rows if route is not None]
    frames, all_values = {name: [] for name in tables}, {}
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
            frames[name].append(_with_split(pd.DataFrame(records, columns=columns), split))
        all_values[split] = values
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in frames.items()}
    return joined, all_values


def _columns(values):
    return {
        "error": values.wrong,
        "cross_entropy": values.cross_entropy,
        "entropy": values.entropy,
        "agreement": values.agreement,
        "distance": values.distance,
    }


def _means(values):
    """Means over images, in float64; infinite and NaN values stay what they are."""
    with np.errstate(invalid="ignore"):
        return {
            name: column.mean(axis=1, dtype=np.float64) for name, column in _columns(values).items()
        }


def _with_split(frame, split):
    if split is not None:
        frame.insert(0, "split", split)
    return frame
