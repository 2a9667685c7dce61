"""The classes of which the registry is made, and checks shared by its entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfresidual.arguments import check_epsilon, check_int
from tfresidual.probes.convergence_indices import check_chance
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.routing.routes import check_scale, check_times

if TYPE_CHECKING:
    from matplotlib import figure

    from tfresidual.routing import Chain
    from tfresidual.types import AtChance, Chance, Data, Frame

INFERENCE = "Jastrzebski et al. 2018"
HAUSER = "Hauser 2019"
CONVERGENCE = "Iterative convergent computation is not a useful inductive bias for ResNets"
VEIT = "Veit et al. 2016"

LINES = (
    "One line per block, from blue and thin (first) to red and thick (last of the stage with the "
    "most blocks)."
)
# The number of repetitions of the last block where the paper unrolls it, and the scale that keeps
# it close to the states it was trained on. Jastrzebski et al. 2018 use 20 steps and do not give
# their scale.
UNROLLED, UNROLLED_SCALE = 20, 0.3


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


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the report and the text around it.

    Attributes:
        name: str, the name of its file.
        frames: the names of the frames it is drawn from; if one is missing, there is no figure.
        column: str, the column of the first frame that the figure shows; if it holds no number,
            there is no figure.
        draw: function `(*frames, epsilon) -> figure`.
        title: the heading of its section.
        question: what was measured, in one sentence.
        reading: how to read the figure, whatever it shows.
        source: the paper and its figure, or `None`.
        has_table: whether the first frame is shown as a table with the figure.
        select: function that returns the part of the first frame to draw, or `None` to draw all of
            it.
        finding: function from all frames by name to a sentence on what was found, or to `None` if
            the frames do not show it; or `None` if there is no such function.
    """

    name: str
    frames: tuple[str, ...]
    column: str
    draw: Callable[..., figure.Figure]
    title: str
    question: str
    reading: str
    source: str | None = None
    has_table: bool = False
    select: Callable[[Frame], Frame] | None = None
    finding: Callable[[dict[str, Frame]], str | None] | None = None

    def parts(self, frames: dict[str, Frame]) -> list[Frame] | None:
        """Returns the frames the figure is drawn from, or `None` if there is nothing to draw."""
        if any(name not in frames or frames[name].empty for name in self.frames):
            return None
        parts = [frames[name] for name in self.frames]
        if self.select is not None:
            parts[0] = self.select(parts[0])
        return parts if _has_numbers(parts[0], self.column) else None


def _has_numbers(frame, column):
    """Returns whether a column has something to draw."""
    # A frame of blocks over epochs needs two epochs; the training log is drawn from the first one.
    is_single = "block" in frame and "epoch" in frame and len(set(frame["epoch"])) < 2
    return column in frame and bool(frame[column].notna().any()) and not is_single


@dataclasses.dataclass(frozen=True)
class Study:
    """How a study runs a probe.

    Attributes:
        splits: the names of the splits whose images are probed.
        images: int, the largest number of images of each split, `None` for all that a study probes.
        changes: dict of the fields of `ProbeOptions` that differ from the defaults.
        renamed: dict from the names of the frames of the probe to those in the study.
        when: function from a chain to whether a study runs the probe, provided it is possible.
    """

    splits: tuple[str, ...] = ("train", "test")
    images: int | None = None
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)
    when: Callable[[Chain], bool] = lambda chain: True


@dataclasses.dataclass(frozen=True)
class Entry:
    """Everything that the command line, a study and its report know about a probe.

    Attributes:
        name: str, the name of the probe, which is also the name of the file of the entry.
        run: function `(chain, data, options, progress) -> frames` from a chain, data by split, a
            `ProbeOptions` and whether to show progress to a dict of frames by name.
        figures: the `Figure`s of the report, in its order.
        is_possible: function from a chain to whether the probe can be run on it.
        studies: tuple of `Study`s, all of which a study of one network runs.
        measured_by: str, the probe whose frames include those of this one; when all probes are
            run, only that one is run. `None` if there is no such probe.
        by_default: whether the probe is run when none is named; set to `False` if it takes much
            longer than the others.
    """

    name: str
    run: Callable[[Chain, Data, ProbeOptions, bool], dict[str, Frame]]
    figures: tuple[Figure, ...] = ()
    is_possible: Callable[[Chain], bool] = lambda chain: True
    studies: tuple[Study, ...] = ()
    measured_by: str | None = None
    by_default: bool = True


def has_bounds(chain):
    """Returns whether a block of a chain was built with `lipschitz`."""
    return any(block.lipschitz is not None for block in chain.blocks)


def needs_classes(chain):
    """Returns whether predictions can be right or wrong, as a probe that counts errors needs."""
    return chain.outputs != "values"


def needs_repetition(chain):
    """Returns whether a stage of a chain ends in a block that can be repeated."""
    return any(stage.can_repeat for stage in chain.stages)
