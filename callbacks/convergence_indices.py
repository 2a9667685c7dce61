"""Publishes how closely the network behaves like an iterative method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.arguments import check_choice
from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes.convergence_indices import (
    BASES,
    INDICES,
    MEAN,
    READINGS,
    TIMES,
    check_chance,
    convergence_frames,
)
from tfresidual.probes.logs import log_key
from tfresidual.routing.routes import check_times

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import Chance, Data, OnError, Reading


class ConvergenceIndices(ProbeCallback):
    """Runs `tfresidual.probes.convergence_indices` during `fit`.

    Publishes `"stage1/convergence_index"`, `"stage1/recurrence_index"` and
    `"stage1/divergence_index"` for every stage, and their means over the stages as
    `"convergence_index"` and so on. `"stage1/agreement_convergence_index"` and so on are the same
    indices for agreement with the whole network instead of the error on the labels. All are NaN
    while the error of the network is at chance or above.

    Example:

    >>> probe = ConvergenceIndices(test.take(4), every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.
        times: int, the largest number of extra applications of a stage's last block.
        chance: the error of guessing, see `tfresidual.probes.convergence_indices`.
        reading: what the convergence index is of the read-outs, see there.

    Raises:
        ValueError: if `every` or `times` is not a positive int, or `data`, `chance` or `reading`
            cannot be used; when training begins, if the data does not fit the network.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        3.3.
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
