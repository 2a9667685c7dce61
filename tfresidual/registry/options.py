"""Options shared by the probes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tfresidual.arguments import check_epsilon, check_int
from tfresidual.probes.convergence_indices import check_chance
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.routing.routes import check_scale, check_times

if TYPE_CHECKING:
    from tfresidual.types import AtChance, Chance


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """Options shared by the probes, in addition to chain and images.

    Attributes:
        times: the number of extra applications of a stage's last block.
        scale: the factor by which the branch of the block is multiplied in these applications. The
            convergence indices are defined, and measured, without it.
        chance: the error of guessing, see `tfresidual.probes.convergence_indices`.
        at_chance: `"raise"`, or `"nan"` for indices that are NaN if the error of the network is at
            chance or above.
        epsilon: the mean scaled perturbation of the stopping rule, `None` for that of the run.
        memory_limit: MiB that the evaluator may use.
        seed: the seed of the orders of shuffled blocks, `None` for that of the run.
        first_block: block index of the first block of a stage that counts as coupled, see
            `tfresidual.probes.effective_parameters`; `None` for that of the run, or 0.

    Raises:
        ValueError: if one of them cannot be used.
    """

    times: int = 16
    scale: float = 1.0
    chance: Chance = "uniform"
    at_chance: AtChance = "raise"
    epsilon: float | None = None
    memory_limit: float = MEMORY_LIMIT
    seed: int | None = None
    first_block: int | None = None

    def __post_init__(self) -> None:
        check_times(self.times)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        check_scale(self.scale)
        check_chance(self.chance)
        check_memory_limit(self.memory_limit)
        check_int("first_block", self.first_block, at_least=0, or_none=True)
