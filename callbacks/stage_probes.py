"""Callbacks that publish numbers of stages, or of groups of images, beside those of blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.definitions.arguments import check_choice
from tfresidual.definitions.settings import EPSILON
from tfresidual.probes import borderline, perturbation
from tfresidual.probes.borderline import (
    COMPARED,
    GROUPS,
    check_arguments,
    check_next_block,
    measured_blocks,
)
from tfresidual.probes.convergence_indices import (
    BASES,
    INDICES,
    MEAN,
    READINGS,
    TIMES,
    check_chance,
    convergence_frames,
)
from tfresidual.probes.logs import block_logs, log_key
from tfresidual.probes.perturbation import ALL_STAGES, distances_of
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.routing.block_values import PERTURBATION_METRICS
from tfresidual.routing.routes import check_times

if TYPE_CHECKING:
    from tfresidual.definitions.types import BorderlineGroups, Chance, Data, OnError, Reading
    from tfresidual.routing import Chain

OF_GROUPS = ("accuracy", "cross_entropy", "entropy", "images")
OF_STAGES = ("distance", "scaled_distance", "mean_perturbation", "mean_scaled_perturbation")


class Borderline(ProbeCallback):
    """Runs `tfresidual.probes.borderline` on the last blocks during `fit`.

    Publishes `"stage3/block2/borderline_accuracy"`, `".../borderline_cross_entropy"`,
    `".../borderline_entropy"` and `".../borderline_images"` (the size of the group) for each of the
    last blocks, and the same for the groups `correct` and `all`. With groups of the next block, the
    first of these blocks has no keys, and the others have five more for each group:
    `"stage3/block2/borderline_put_right"` and so on, see the probe. All but the number of images
    are NaN for an empty group.

    Example:

    >>> probe = Borderline({"train": train.take(4), "test": test.take(4)}, every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[probe], verbose=0)

    Args:
        data: see `ProbeCallback`, as for `every` and `on_error`.
        blocks: int, the number of last blocks to read out; in a shorter stage, all of its blocks.
        probability: float over 0, up to 1, which defines borderline images, see the probe.
        groups: `"fixed"` for groups that are determined after the first of the last blocks, `"next
            block"` for groups that are determined before each of the others.

    Raises:
        ValueError: if an argument cannot be used; when training begins, if the network has no next
            block, and as in `ProbeCallback`.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4.3 and fig. 6.
    """

    runs = "borderline"

    def __init__(
        self,
        data: Data,
        *,
        every: int = 1,
        blocks: int = 5,
        probability: float = 0.1,
        groups: BorderlineGroups = "fixed",
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        check_arguments(blocks, 0, probability, groups)
        self.blocks: int = blocks
        self.probability: float = probability
        self.groups: BorderlineGroups = groups

    def check(self, chain: Chain) -> None:
        super().check(chain)
        check_next_block(chain, self.groups)

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = borderline(
            chain,
            self.data,
            blocks=self.blocks,
            times=0,
            probability=self.probability,
            groups=self.groups,
        )
        self.keep(borderline=frame)
        logs: dict[str, float] = {}
        for row in frame.to_dict("records"):
            place = (row["stage"], row["block"], row.get("split"))
            logs |= {
                log_key(f"{row['group']}_{name}", *place): row[name] for name in self._published()
            }
        return logs

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(f"{group}_{name}", chain.stages[-1].index, block, split)
            for split in self.splits()
            for block in measured_blocks(chain, self.blocks, self.groups)
            for group in GROUPS
            for name in self._published()
        ]

    def _published(self):
        return OF_GROUPS if self.groups == "fixed" else (*OF_GROUPS, *COMPARED)


class ConvergenceIndices(ProbeCallback):
    """Runs `tfresidual.probes.convergence_indices` during `fit`.

    Publishes `"stage1/convergence_index"`, `"stage1/recurrence_index"` and
    `"stage1/divergence_index"` for every stage, and their means as `"convergence_index"` and so on;
    also `"stage1/agreement_convergence_index"` and so on, for agreement with the whole network
    instead of the error on the labels. All are NaN while the error of the network is not below
    chance by more than two standard errors over the images.

    Example:

    >>> probe = ConvergenceIndices(test.take(4), every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[probe], verbose=0)

    Args:
        data: see `ProbeCallback`, as for `every` and `on_error`.
        times: int, the largest number of extra applications of a stage's last block.
        chance: the error of guessing, see the probe.
        reading: what the convergence index is of the read-outs, see the probe.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 3.3.
    """

    runs = "convergence_indices"

    def __init__(
        self,
        data: Data,
        *,
        every: int = 1,
        times: int = TIMES,
        chance: Chance = "uniform",
        reading: Reading = "all blocks",
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        self.times: int = check_times(times)
        check_chance(chance)
        self.chance: Chance = chance
        check_choice("reading", reading, READINGS)
        self.reading: Reading = reading

    def probe(self, chain: Chain) -> dict[str, float]:
        frames, frame = convergence_frames(
            chain,
            self.data,
            times=self.times,
            chance=self.chance,
            reading=self.reading,
            at_chance="nan",
        )
        self.keep(convergence_indices=frame, **frames)
        logs = {}
        for row in frame.to_dict("records"):
            stage = None if row["stage"] == MEAN else row["stage"]
            for name in INDICES:
                logs[_key(row["basis"], name, stage, row.get("split"))] = row[name]
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            _key(basis, name, stage, split)
            for split in self.splits()
            for basis in BASES
            for stage in (*(stage.index for stage in chain.stages), None)
            for name in INDICES
        ]


def _key(basis, name, stage, split):
    return log_key(name if basis == "labels" else f"agreement_{name}", stage, split=split)


class Perturbation(ProbeCallback):
    """Runs `tfresidual.probes.perturbation` during `fit`, and applies the stopping rule.

    Publishes `"stage1/block0/perturbation"` and `".../scaled_perturbation"` for every block that
    keeps the shape of the state, and `"stage1/distance"`, `".../scaled_distance"`,
    `".../mean_perturbation"`, `".../mean_scaled_perturbation"` and `".../depth"` for every stage.
    The depth is that which the rule asks for, `depth_asked_for` in frames, not that of the network:
    `tfresidual.tuning.depth_for` of the scaled distance; NaN if that is not finite, or if no block
    of the stage keeps the shape of the state.

    Example:

    >>> probe = Perturbation(test.take(4), epsilon=0.1)
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: see `ProbeCallback`, as for `every` and `on_error`.
        epsilon: float over 0, the largest mean scaled perturbation allowed.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", fig. 2 to 7 and
        section 2.3.
    """

    def __init__(
        self,
        data: Data,
        *,
        epsilon: float = EPSILON,
        every: int = 1,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        depth_for(0, epsilon)
        self.epsilon: float = epsilon

    def probe(self, chain: Chain) -> dict[str, float]:
        blocks = perturbation(chain, self.data)
        logs = block_logs(blocks, PERTURBATION_METRICS)
        distances = distances_of(blocks, chain=chain)
        self.keep(block_metrics=blocks, computational_distance=distances)
        for row in distances.to_dict("records"):
            if row["stage"] == ALL_STAGES:
                continue
            distance = row["scaled_distance"]
            is_measured = row["blocks"] > 0 and math.isfinite(distance)
            row["depth"] = depth_for(distance, self.epsilon) if is_measured else math.nan
            place = (row["stage"], None, row.get("split"))
            logs |= {log_key(name, *place): row[name] for name in (*OF_STAGES, "depth")}
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
                keys += [log_key(name, stage.index, split=split) for name in (*OF_STAGES, "depth")]
        return keys
