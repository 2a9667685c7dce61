"""Trials and results of a search as a data frame."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual.machine.files import read_json
from tfresidual.probes.logs import log_key
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.tuning.depth_oracle import (
    COMPLETED,
    FAILED,
    OBJECTIVE,
    SOURCE,
    DepthOracle,
    blocks,
    metric,
)
from tfresidual.tuning.search_files import REMEDY, reading

if TYPE_CHECKING:
    from typing import Any, Literal

    from tfresidual.types import Frame, StrPath

STAGE_METRICS = ("distance", "scaled_distance", "mean_perturbation", "mean_scaled_perturbation")
DEVIATION = "scaled_distance_deviation"
# Columns of every trace.
COLUMNS = (
    *("trial", "status", "stage", "blocks", "measured_blocks", *STAGE_METRICS, DEVIATION),
    *("depth_asked_for", "meets_rule", "found", "error", "seconds", "from_trial"),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a search, or the reason why there is none.

    Attributes:
        status: `"found"`, `"not satisfied"` (a stage does not meet the rule at its largest depth),
            `"failed"` (networks could not be trained) or `"searching"` (not finished: still running
            or interrupted, or `max_trials` was too small).
        blocks: tuple of ints, the fewest blocks per stage that were trained and meet the rule;
            `None` if there are none yet.
        trial: int, the index of that trial in the order of all trials, from 0, or `None`.
        message: str, the outcome in a sentence.
        hyperparameters: dict with the values of the other hyperparameters to which this applies.
    """

    status: Literal["found", "not satisfied", "failed", "searching"]
    blocks: tuple[int, ...] | None
    trial: int | None
    message: str
    hyperparameters: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_search(folder: StrPath) -> DepthOracle:
    """Returns the oracle of a search on disk, running or not, for reading.

    Args:
        folder: `directory/project_name` of the search.

    Returns:
        A `DepthOracle`, in which trials that are still running have the status `"RUNNING"`.

    Raises:
        FileNotFoundError: if the folder contains no search.
        ValueError: if it is not a depth search, or a file in the folder is damaged.
    """
    folder = pathlib.Path(folder)
    path = folder / "oracle.json"
    if not path.exists():
        raise FileNotFoundError(
            "Argument `folder` must be the folder of a search, `directory/project_name`; there is "
            f"no {path}. Received: folder={str(folder)!r}"
        )
    search = read_json(path, REMEDY).get("depth_search")
    if search is None:
        raise ValueError(
            "Argument `folder` must be the folder of a search for depth. Received: "
            f"folder={str(folder)!r}, a search of keras-tuner of another kind"
        )
    with reading(path):
        oracle = DepthOracle(
            search["start"],
            epsilon=search["epsilon"],
            min_blocks=[least for least, _ in search["limits"]],
            max_blocks=[most for _, most in search["limits"]],
            tolerance=search["tolerance"],
            warm_start=search["settings"]["warm_start"],
            settings=search["settings"],
            max_trials=search["max_trials"],
        )
    oracle._set_project_dir(str(folder.parent), folder.name)
    oracle.reload(look=True)
    return oracle


def trace_of(oracle: DepthOracle) -> Frame:
    """Returns the trials of a search as a data frame, see `tfresidual.tuning.DepthSearch.trace`."""
    found = {outcome.trial for outcome in outcomes_of(oracle) if outcome.status == "found"}
    rows = []
    for number, trial in enumerate(oracle.in_order()):
        rows += _rows(oracle, number, trial, number in found)
    # A search that has just started has no trial yet.
    columns = None if rows else [c for c in COLUMNS if c != "from_trial" or oracle.warm_start]
    types = {"measured_blocks": "Int64", "depth_asked_for": "Int64", "meets_rule": "boolean"}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _rows(oracle, number, trial, found):
    others = _columns(oracle.others_of(trial))
    status = {COMPLETED: "completed", FAILED: "failed"}.get(trial.status, "running")
    is_measured = trial.status == COMPLETED
    stages = oracle.measurements(trial) if is_measured else None
    of_trial = {name: metric(trial, name) for name in _of_trial(trial)} if is_measured else {}
    source = trial.hyperparameters.values.get(SOURCE)
    starts = {} if not oracle.warm_start else {"from_trial": source}
    rows = []
    for stage, depth in enumerate(blocks(trial.hyperparameters), start=1):
        row = {"trial": number, "status": status, **others, "stage": stage, "blocks": depth}
        row["measured_blocks"] = stages[stage - 1].counted if is_measured else None
        for name in (*STAGE_METRICS, DEVIATION):
            key = log_key(name, stage)
            there = is_measured and trial.metrics.exists(key)
            row[name] = metric(trial, key) if there else float("nan")
        if is_measured:
            measured = stages[stage - 1]
            row["depth_asked_for"] = depth_for(measured.distance, oracle.epsilon)
            row["meets_rule"] = measured.meets(oracle.epsilon)
        else:
            row["depth_asked_for"], row["meets_rule"] = None, None
        row |= {"found": found, "error": float("nan"), "seconds": float("nan")}
        rows.append(row | of_trial | starts)
    return rows


def _columns(others):
    """Returns hyperparameters by column name, which omits the scope if the name stays unique."""
    short = [name.rpartition("/")[2] for name in others]
    taken = {name for name in short if short.count(name) > 1} | set(COLUMNS)
    return {
        f"hyperparameter {name}" if name in COLUMNS else name if last in taken else last: value
        for (name, value), last in zip(others.items(), short, strict=True)
    }


def _of_trial(trial):
    """Returns the names of the measurements of a whole network."""
    return [name for name in trial.metrics.metrics if "/" not in name and name != OBJECTIVE]


def outcomes_of(oracle: DepthOracle) -> list[Outcome]:
    """Returns the result for each combination of hyperparameters, a list of `Outcome`."""
    outcomes = []
    for others in oracle.combinations():
        plan = oracle.plan(others)
        number = None
        if plan.best is not None:
            trials = enumerate(oracle.in_order())
            number = next(
                number
                for number, trial in trials
                if trial.status == COMPLETED
                and oracle.others_of(trial) == others
                and blocks(trial.hyperparameters) == plan.best
            )
        message = _message(oracle, plan, others)
        outcomes.append(Outcome(plan.status, plan.best, number, message, others))
    return outcomes


def _message(oracle, plan, others):
    epsilon = f"{oracle.epsilon:g}"
    depths = plan.best and " ".join(map(str, plan.best))
    if plan.status == "found":
        is_shown = all(
            depth - low <= 1 + oracle.tolerance
            for depth, low in zip(plan.best, plan.failing, strict=True)
        )
        apart = oracle.tolerance + 1
        less = "one block" if apart == 1 else f"{apart} blocks"
        pairs = enumerate(zip(plan.best, plan.smallest, strict=True), start=1)
        least = ", ".join(str(stage) for stage, (depth, low) in pairs if depth <= low)
        bound = f" (stage {least}: the smallest depth possible)" if least else ""
        reached = (
            f"{depths} blocks: every stage has a mean scaled perturbation of {epsilon} or less"
        )
        if is_shown:
            return f"{reached}, and more with {less} less{bound}"
        shallower = [
            trial
            for trial in _failed(oracle, others)
            if sum(blocks(trial.hyperparameters)) < sum(plan.best)
        ]
        if shallower:
            return f"{reached}. Shallower networks could not be trained: {_reason(shallower)}"
        return (
            f"{reached}. No shallower network that was trained meets the rule, although single "
            "stages meet it with fewer blocks: the measurements contradict one another; average "
            "more trainings per trial"
        )
    if plan.status == "not satisfied":
        capped = ", ".join(f"stage {s} at {oracle.limits[s - 1][1]} blocks" for s in plan.capped)
        return (
            f"no depth inside the bounds brings every mean scaled perturbation to {epsilon}: "
            f"{capped} has more. Raise `epsilon` or `max_blocks`, or train longer"
        )
    if plan.status == "failed":
        reason = _reason(_failed(oracle, others))
        return f"networks of the depths that are left to try could not be trained: {reason}"
    so_far = f"{depths} blocks meet it" if depths else "no trained network meets it"
    why = f"; {oracle.max_trials} trials were allowed" if oracle.is_full() else ""
    goal = f"the search for a mean scaled perturbation of {epsilon}"
    return f"{goal} is not finished: {so_far}{why}"


def _failed(oracle, others):
    trials = oracle.in_order()
    return [t for t in trials if t.status == FAILED and oracle.others_of(t) == others]


def _reason(failed):
    """Returns the reason, in one line, why the last of the trials could not be trained."""
    lines = (failed[-1].message or "").strip().splitlines()
    return lines[-1] if lines else "see the output of the workers"
