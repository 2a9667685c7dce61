"""Publishes how much the blocks move the state, and the depth that follows from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import perturbation
from tfresidual.probes.logs import block_logs, log_key
from tfresidual.probes.perturbation import ALL_STAGES, distances_of
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.routing.block_values import PERTURBATION_METRICS

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import Data, OnError

PUBLISHED = ("distance", "scaled_distance", "mean_perturbation", "mean_scaled_perturbation")


class Perturbation(ProbeCallback):
    """Runs `tfresidual.probes.perturbation` during `fit`, and applies the stopping rule.

    For every block that keeps the shape of the state, publishes `"stage1/block0/perturbation"`
    and `".../scaled_perturbation"`. For every stage, publishes `"stage1/distance"`,
    `".../scaled_distance"`, `".../mean_perturbation"`, `".../mean_scaled_perturbation"` and
    `".../depth"`. The depth is the number of blocks at which the mean scaled perturbation falls
    to epsilon if the distance stays the same (`tfresidual.tuning.depth_for`). It is NaN if the
    distance is not finite, or if no block of the stage keeps the shape of the state.

    Example:

    >>> probe = Perturbation(test.take(4), epsilon=0.1)
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        epsilon: float over 0, the largest mean scaled perturbation allowed.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int, `epsilon` is not a number over 0, or `data`
            cannot be used; when training begins, if the data does not fit the network.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", fig. 2 to 7
        and section 2.3.
    """

    def __init__(
        self,
        data: Data,
        *,
        epsilon: float = 0.1,
        every: int = 1,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        depth_for(0, epsilon)
        self.epsilon: float = epsilon

    def probe(self, chain: Chain) -> dict[str, float]:
        blocks = perturbation(chain, self.data)
        logs = block_logs(blocks, PERTURBATION_METRICS)
        distances = distances_of(blocks, chain)
        self.keep(block_metrics=blocks, computational_distance=distances)
        for row in distances.to_dict("records"):
            if row["stage"] == ALL_STAGES:
                continue
            distance = row["scaled_distance"]
            is_measured = row["blocks"] > 0 and math.isfinite(distance)
            row["depth"] = depth_for(distance, self.epsilon) if is_measured else math.nan
            place = (row["stage"], None, row.get("split"))
            logs |= {log_key(name, *place): row[name] for name in (*PUBLISHED, "depth")}
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        keys = []
        for split in self.splits():
            for stage in chain.stages:
                keys += [
                    log_key(name, stage.index, block.index, split)
                    for block in stage.blocks
                    if block.keeps_shape
                    for name in PERTURBATION_METRICS
                ]
                keys += [log_key(name, stage.index, split=split) for name in (*PUBLISHED, "depth")]
        return keys
