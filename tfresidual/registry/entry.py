"""What an entry of the registry holds."""

import dataclasses
from collections.abc import Callable

from tfresidual.arguments import check_number
from tfresidual.probes.convergence_indices import check_chance
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.routing.routes import check_scale, check_times

INFERENCE = "Jastrzebski et al. 2018"
HAUSER = "Hauser 2019"
CONVERGENCE = "Iterative convergent computation is not a useful inductive bias for ResNets"
VEIT = "Veit et al. 2016"

LINES = (
    "One line per block, from blue and thin (first) to red and thick (last of the stage with the "
    "most blocks)."
)
# How often the last block is repeated where the paper unrolls it, and the scale that keeps it near
# the states it was trained on. Jastrzebski et al. 2018 take 20 steps and do not give their scale.
UNROLLED, UNROLLED_SCALE = 20, 0.3


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """What the probes are told beside chain and images.

    Attributes:
        times: extra applications of a stage's last block.
        scale: what the block's branch is multiplied by in them. The indices are defined, and
            measured, without.
        chance: the error of guessing, see `tfresidual.probes.convergence_indices`.
        at_chance: `"raise"`, or `"nan"` for indices that are NaN where the network errs as often
            as chance or more.
        epsilon: mean scaled perturbation of the stopping rule, `None` for that of the run.
        memory_limit: MiB that the evaluator may take.
        seed: decides on the orders of shuffled blocks, `None` for that of the run.

    Raises:
        ValueError: if one of them cannot be used.
    """

    times: int = 16
    scale: float = 1.0
    chance: str | float = "uniform"
    at_chance: str = "raise"
    epsilon: float | None = None
    memory_limit: float = MEMORY_LIMIT
    seed: int | None = None

    def __post_init__(self):
        check_times(self.times)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        check_scale(self.scale)
        check_chance(self.chance)
        check_memory_limit(self.memory_limit)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the report, and the words around it.

    Attributes:
        name: str, name of its file.
        frames: names of the frames it is drawn from; without one of them, there is no figure.
        column: str, the column of the first that it shows; without a number there, there is no
            figure.
        draw: function `(*frames, epsilon) -> figure`.
        title: heading of its section.
        question: what was measured, in a sentence.
        reading: how to read it, whatever it shows.
        source: the paper and its figure, or `None`.
        has_table: whether the first frame is shown beside it.
        select: function from the first frame to the part of it that is drawn, or `None` for all.
        finding: function from all frames by name to a sentence on what was found, or to `None`
            where they do not tell; or `None`.
    """

    name: str
    frames: tuple[str, ...]
    column: str
    draw: Callable
    title: str
    question: str
    reading: str
    source: str | None = None
    has_table: bool = False
    select: Callable | None = None
    finding: Callable | None = None

    def parts(self, frames):
        """The frames it is drawn from, or `None` where they hold nothing to draw."""
        if any(name not in frames or frames[name].empty for name in self.frames):
            return None
        parts = [frames[name] for name in self.frames]
        if self.select is not None:
            parts[0] = self.select(parts[0])
        return parts if _has_numbers(parts[0], self.column) else None


def _has_numbers(frame, column):
    """Whether a column has something to draw."""
    # What is drawn over the epochs needs two of them; the log itself is drawn from the first on.
    is_single = "block" in frame and "epoch" in frame and len(set(frame["epoch"])) < 2
    return column in frame and bool(frame[column].notna().any()) and not is_single


@dataclasses.dataclass(frozen=True)
class Study:
    """How a study runs a probe.

    Attributes:
        splits: names of the splits whose images it takes.
        images: int, how many of each split at most, `None` for all that a study probes.
        changes: dict of fields of `ProbeOptions` that differ from the defaults.
        renamed: dict from the names of the probe's frames to those in the study.
        when: function from a chain to whether a study of it runs the probe, where it is possible.
    """

    splits: tuple[str, ...] = ("train", "test")
    images: int | None = None
    changes: dict = dataclasses.field(default_factory=dict)
    renamed: dict = dataclasses.field(default_factory=dict)
    when: Callable = lambda chain: True


@dataclasses.dataclass(frozen=True)
class Entry:
    """Everything that the command line, a study and its report know of a probe.

    Attributes:
        name: str, what it is called, as the file of the entry.
        run: function `(chain, data, options, progress) -> frames` from a chain, data by split, a
            `ProbeOptions` and whether to show progress to a dict of frames by name.
        figures: `Figure`s of the report, in its order.
        is_possible: function from a chain to whether it has what the probe measures.
        studies: tuple of `Study`, each of which a study of one network runs.
        measured_by: str, the probe whose frames include this one's; where all probes are run,
            only that one is. `None` for none.
        watch: function `(data, epsilon) -> callbacks` that publish the probe's numbers while a
            study trains; or `None`.
    """

    name: str
    run: Callable
    figures: tuple[Figure, ...] = ()
    is_possible: Callable = lambda chain: True
    studies: tuple[Study, ...] = ()
    measured_by: str | None = None
    watch: Callable | None = None


def check_epsilon(epsilon):
    """Raises a `ValueError` unless a depth that a stopping rule asks for is an int of 64 bits."""
    check_number("epsilon", epsilon, at_least=1e-9, at_most=1e9)


def has_bounds(chain):
    """Whether a block was built with `lipschitz`."""
    return any(block.lipschitz is not None for block in chain.blocks)


def needs_classes(chain):
    """Whether predictions are right or wrong; a probe that counts errors needs that."""
    return chain.outputs != "values"


def needs_repetition(chain):
    """Whether a stage ends in a block that can be repeated."""
    return any(stage.can_repeat for stage in chain.stages)
