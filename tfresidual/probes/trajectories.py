"""The estimate of a network after every block, for inputs and outputs in the plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from keras import ops

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.networks import InverseProblemNetwork
from tfresidual.routing import Block, Chain, Stage
from tfresidual.routing.routes import checked_routes, follow, unperturbed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import Array, ArrayLike, ChainSource, Frame
    from tfresidual.routing import Route

_COLUMNS = ["route", "input", "x1", "x2", "stage", "step", "z1", "z2"]


def inverse_problem_chain(network: InverseProblemNetwork) -> Chain:
    """Returns the chain of an `InverseProblemNetwork`: one stage and a squared-error loss.

    It is for `tfresidual.routes` and `trajectories`; other probes need chains that take images.
    """
    (encoder,), ((_, layers),), (decoder,) = network.sections()
    return Chain(
        name=network.name,
        stem=encoder,
        stages=(Stage(1, tuple(_block(index, layer) for index, layer in enumerate(layers))),),
        head=decoder,
        loss=lambda z, estimates: ops.mean(ops.square(estimates - z), axis=-1),
        input_shape=network.input_shape[1:],
        outputs="values",
        weights=tuple(network.trainable_variables),
    )


def _block(index, layer):
    return Block(stage=1, index=index, keeps_shape=True, apply=lambda state: layer(state))


def trajectories(
    chain: Chain | ChainSource, inputs: ArrayLike, *, routes: Iterable[Route] | None = None
) -> Frame:
    """Reads an estimate from the state before the first block and after every block applied.

    The head, which was trained on the last state, is applied to each of these states. The chain
    must have no transitions, and no block may change the shape of the state.

    Example:

    >>> chain = inverse_problem_chain(networks.error_correcting_network(steps=8))
    >>> trajectories(chain, np.float32([[1.5, 0.75]]))["z1"].astype(float).round(3).tolist()
    [1.5, 1.275, 1.151, ...]
    >>> repeated = [routes.repeat_last_block(chain, 1, 16)]
    >>> again = trajectories(chain, np.float32([[1.5, 0.75]]), routes=repeated)

    Args:
        chain: a chain from points of the plane to points of the plane, or an
            `InverseProblemNetwork`.
        inputs: array `(inputs, 2)` of finite numbers.
        routes: `tfresidual.routing.Route`s, by default only the unperturbed one.

    Returns:
        A `pandas.DataFrame` with one row per route, input and step, in this order, and the columns
        `route` (its name), `input` (from 0), `x1` and `x2` (the input itself), `stage`, `step`
        (the number of blocks applied so far, 0 for none), and `z1` and `z2` (the estimate, infinite
        or NaN if the network explodes).

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", fig. 1.
    """
    if isinstance(chain, InverseProblemNetwork):
        chain = inverse_problem_chain(chain)
    else:
        chain = sources.numbered(chain)
    inputs = _points(inputs)
    if routes is None:
        routes = [unperturbed(chain)]
    if chain.prepare is not None:
        chain.prepare()
    frames = [_of_route(chain, inputs, route) for route in checked_routes(chain, routes)]
    return pd.concat(frames or [pd.DataFrame(columns=_COLUMNS)], ignore_index=True)


def _of_route(chain, inputs, route):
    followed = follow(chain, route)
    first = chain.stem(ops.convert_to_tensor(inputs))
    pairs, _ = followed.walk(first)
    states = [first, *(after for _, after in pairs)]
    estimates = np.stack([ops.convert_to_numpy(chain.head(state)) for state in states], axis=1)
    stages = [chain.stages[0].index, *(block.stage for block in followed.blocks)]
    count, length = estimates.shape[:2]
    x1, x2 = np.repeat(inputs, length, axis=0).T
    z1, z2 = estimates.reshape(-1, 2).T
    columns = {
        "route": route.name,
        "input": np.repeat(np.arange(count), length),
        "x1": x1,
        "x2": x2,
        "stage": np.tile(stages, count),
        "step": np.tile(np.arange(length), count),
        "z1": z1,
        "z2": z2,
    }
    return pd.DataFrame(columns, columns=_COLUMNS)


def trajectory_summary(
    readout: Frame, dropped: Frame, repeated: Frame, solutions: ArrayLike
) -> Frame:
    """Summarizes the trajectories of one network: whether it approaches, repeats and converges.

    Distances are Euclidean, in the plane, and means over the inputs; ratios are medians.

    - `error`: from the last estimate of the unperturbed network to the solution, 0 or more.
    - `early_error`: the same for the estimates after all blocks but the last, averaged over them.
    - `closer`: the share of blocks that bring the estimate closer to the solution, in [0, 1]; 1 for
      an iterative method.
    - `drop`, `worst_drop`: the distance from the last estimate with one block dropped to the last
      estimate of the unperturbed network; the mean over the blocks, and the largest over them.
    - `drift`: the distance from the estimate after all extra applications of the last block to the
      last estimate of the unperturbed network.
    - `first_speed`, `last_speed`: how far the first and the last extra application move the
      estimate, divided by how far the last block of the unperturbed network moves it. 1 if the
      estimate keeps moving as before, near 0 if it has converged.

    Args:
        readout: the frame of `trajectories` on the unperturbed route.
        dropped: the frame of `trajectories` on the routes that drop one block each.
        repeated: the frame of `trajectories` on the route that repeats the last block.
        solutions: array `(inputs, 2)`, the true values of z.

    Returns:
        A `pandas.DataFrame` with one row and these columns. If the network explodes, distances
        are infinite or NaN.

    Raises:
        ValueError: if the frames are not from one network on one set of inputs.
    """
    solutions = _points(solutions)
    (plain,) = _estimates(readout, solutions)
    without = _estimates(dropped, solutions)
    (extended,) = _estimates(repeated, solutions)
    blocks = plain.shape[1] - 1
    extra = extended.shape[1] - 1 - blocks
    if blocks < 1 or extra < 1 or without.shape[2] != blocks:
        raise ArgumentError(
            ("readout", "dropped", "repeated"),
            "belong to one network: with n blocks, without one of them, and with more than n "
            "applications",
            received=f"frames of {blocks}, {without.shape[2] - 1} and {blocks + extra} "
            "applications",
        )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        last = plain[:, -1]
        errors = np.linalg.norm(plain - solutions[:, None], axis=-1)
        drops = np.linalg.norm(without[:, :, -1] - last, axis=-1).mean(axis=1)
        paces = np.linalg.norm(np.diff(extended, axis=1), axis=-1)
        speeds = paces[:, [blocks, -1]] / paces[:, [blocks - 1]]
        summary = {
            "error": errors[:, -1].mean(),
            "early_error": errors[:, 1:-1].mean() if blocks > 1 else np.nan,
            "closer": (np.diff(errors, axis=1) < 0).mean(),
            "drop": drops.mean(),
            "worst_drop": drops.max(),
            "drift": np.linalg.norm(extended[:, -1] - last, axis=-1).mean(),
            "first_speed": np.median(speeds[:, 0]),
            "last_speed": np.median(speeds[:, 1]),
        }
    return pd.DataFrame([summary])


def _estimates(frame, solutions):
    """Returns the estimates of a frame as float64, `(routes, inputs, blocks applied + 1, 2)`."""
    routes, steps = frame["route"].nunique(), frame["step"].nunique()
    return frame[["z1", "z2"]].to_numpy(np.float64).reshape(routes, len(solutions), steps, 2)


def _points(points: ArrayLike) -> Array:
    """Returns points as an array of floats `(inputs, 2)`; integers become float32."""
    points = np.asarray(points)
    return points if points.dtype.kind == "f" else points.astype(np.float32)
