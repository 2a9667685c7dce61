"""Trials and results of a search as a data frame."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.averages import STANDARD_ERRORS
from tfresidual.definitions.chance import CHANCE_ERROR, ERROR_SE, error_of_difference
from tfresidual.machine.files import read_json
from tfresidual.probes.logs import log_key
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.tuning.as_built import AS_BUILT, CHANGE_ERROR, SETTLED
from tfresidual.tuning.depth_oracle import (
    COMPLETED,
    FAILED,
    OBJECTIVE,
    SOURCE,
    DepthOracle,
    blocks,
    blocks_text,
    error_text,
    metric,
)
from tfresidual.tuning.search_files import ORACLE_FILE, REMEDY

if TYPE_CHECKING:
    from typing import Any, Literal

    from tfresidual.definitions.types import Frame, StrPath

STAGE_METRICS = ("distance", "scaled_distance", "mean_perturbation", "mean_scaled_perturbation")
DEVIATION = "scaled_distance_deviation"
# Columns of every trace.
COLUMNS = (
    *("trial", "status", "stage", "blocks", "measured_blocks", *STAGE_METRICS, DEVIATION),
    *(AS_BUILT, SETTLED, CHANGE_ERROR, "moved"),
    *("depth_asked_for", "meets_rule", "found", "error", "seconds", "from_trial"),
)
# The verdict on a search whose best network is no better than guessing.
AT_CHANCE = "no better than chance"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a search, or the reason why there is none.

    Attributes:
        status: `"found"`, `"no better than chance"` (a depth meets the rule, but its network does
            not beat guessing, see `is_better_than_chance`), `"not satisfied"` (a stage does not
            meet the rule at its largest depth), `"failed"` (networks could not be trained) or
            `"searching"` (not finished: still running or interrupted, or `max_trials` was too
            small).
        blocks: tuple of ints, the fewest blocks per stage that were trained and meet the rule;
            `None` if there are none yet.
        trial: int, the index of that trial in the order of all trials, from 0, or `None`.
        message: str, the outcome in a sentence.
        hyperparameters: dict with the values of the other hyperparameters to which this applies.
        error: float, the error rate of that trial on the validation data, or `None` without such a
            trial or an accuracy. `None` also means "not known" in what follows.
        chance_error: float, the error rate of always giving the most common label of that data.
        is_better_than_chance: whether `error` is lower than `chance_error` by two standard errors
            (over the images or, if that is larger, over executions).
        as_built: tuple of floats, the mean scaled perturbation of each stage in the network of that
            trial before training, with the moving statistics of one pass over the images.
        moved: tuple of bools, whether training has moved each of these by two standard errors.
    """

    status: Literal["found", "no better than chance", "not satisfied", "failed", "searching"]
    blocks: tuple[int, ...] | None
    trial: int | None
    message: str
    hyperparameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: float | None = None
    chance_error: float | None = None
    is_better_than_chance: bool | None = None
    as_built: tuple[float, ...] | None = None
    moved: tuple[bool, ...] | None = None


def read_search(folder: StrPath) -> DepthOracle:
    """Returns the oracle of a search on disk, running or not, for reading.

    Args:
        folder: `directory/project_name` of the search.

    Returns:
        A `DepthOracle`, in which trials that are still running have the status `"RUNNING"`.

    Raises:
        FileNotFoundError: if the folder contains no search.
        ValueError: if it is not a depth search.
    """
    folder = pathlib.Path(folder)
    path = folder / ORACLE_FILE
    if not path.exists():
        raise FileNotFoundError(
            "Argument `folder` must be the folder of a search, `directory/project_name`; there is "
            f"no {path}. Received: folder={str(folder)!r}"
        )
    search = read_json(path, REMEDY).get("depth_search")
    if search is None:
        raise ArgumentError(
            "folder",
            "be the folder of a search for depth",
            received=f"folder={str(folder)!r}, a search of keras-tuner of another kind",
        )
    same = {name: search[name] for name in ("epsilon", "tolerance", "settings", "max_trials")}
    least, most = zip(*search["limits"], strict=True)
    oracle = DepthOracle(
        search["start"],
        min_blocks=least,
        max_blocks=most,
        warm_start=search["settings"]["warm_start"],
        **same,
    )
    oracle.place_in(folder)
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
    types = {"measured_blocks": "Int64", "depth_asked_for": "Int64"}
    types |= {"meets_rule": "boolean", "moved": "boolean"}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _rows(oracle, number, trial, found):
    others = {
        f"hyperparameter {name}" if name in COLUMNS else name: value
        for name, value in oracle.others_of(trial).items()
    }
    status = {COMPLETED: "completed", FAILED: "failed"}.get(trial.status, "running")
    is_measured = trial.status == COMPLETED
    stages = oracle.measurements(trial) if is_measured else []
    # The measurements of the whole network.
    names = [name for name in trial.metrics.metrics if "/" not in name and name != OBJECTIVE]
    last = {"error": float("nan"), "seconds": float("nan")}
    last |= {name: metric(trial, name) for name in names if is_measured}
    if oracle.warm_start:
        last["from_trial"] = trial.hyperparameters.values.get(SOURCE)
    rows = []
    for stage, depth in enumerate(blocks(trial.hyperparameters), start=1):
        row = {"trial": number, "status": status, **others, "stage": stage, "blocks": depth}
        measured = stages[stage - 1] if is_measured else None
        row["measured_blocks"] = measured and measured.counted
        for name in (*STAGE_METRICS, DEVIATION, AS_BUILT, SETTLED, CHANGE_ERROR):
            key = log_key(name, stage)
            there = is_measured and trial.metrics.exists(key)
            row[name] = metric(trial, key) if there else float("nan")
        built = oracle.as_built(trial, stage) if is_measured else None
        row["moved"] = built and built[1]
        row["depth_asked_for"] = measured and depth_for(measured.distance, oracle.epsilon)
        row["meets_rule"] = measured and measured.meets(oracle.epsilon)
        rows.append(row | {"found": found} | last)
    return rows


def outcomes_of(oracle: DepthOracle) -> list[Outcome]:
    """Returns the result for each combination of hyperparameters, a list of `Outcome`."""
    return [_outcome(oracle, others) for others in oracle.combinations()]


def _outcome(oracle, others):
    plan = oracle.plan(others)
    if plan.best is None:
        message = _message(oracle, plan, others) + _least_error(oracle, others, {})
        return Outcome(plan.status, None, None, message, others)
    number, trial = next(
        (number, trial)
        for number, trial in enumerate(oracle.in_order())
        if trial.status == COMPLETED
        and oracle.others_of(trial) == others
        and blocks(trial.hyperparameters) == plan.best
    )
    rates, is_better = oracle.error(trial), _is_better(oracle, trial)
    built = [oracle.as_built(trial, stage) for stage in range(1, len(plan.best) + 1)]
    as_built, moved = (None, None) if None in built else zip(*built, strict=True)
    is_guess = is_better is False and plan.status == "found"
    error = error_text(rates)
    text = f"{blocks_text(plan.best)}{f' ({error})' if error else ''}"
    message = _message(oracle, plan, others, text)
    message += _remarks(rates, is_better, as_built, moved, oracle.epsilon)
    message += _least_error(oracle, others, rates)
    return Outcome(
        *(AT_CHANCE if is_guess else plan.status, plan.best, number, message, others),
        *(rates.get("error"), rates.get(CHANCE_ERROR), is_better, as_built, moved),
    )


def _is_better(oracle, trial):
    """Returns whether a trial's network is better than chance, `None` if that is not known."""
    rates = oracle.error(trial)
    if len(rates) < 3:
        return None
    return rates["error"] < rates[CHANCE_ERROR] - STANDARD_ERRORS * rates[ERROR_SE]


def _least_error(oracle, others, rates):
    """Returns which trial errs least, as text; empty if none errs less than `rates` say."""
    known = [
        (oracle.error(trial)["error"], blocks_text(blocks(trial.hyperparameters)))
        for trial in oracle.in_order()
        if trial.status == COMPLETED
        and oracle.others_of(trial) == others
        and "error" in oracle.error(trial)
    ]
    lowest, depths = min(known, key=lambda pair: pair[0], default=(math.inf, ""))
    if not lowest < rates.get("error", math.inf):
        return ""
    if not rates:
        return f". Of the networks trained, that of {depths} errs least ({lowest:.1%})"
    noise = error_of_difference(lowest, *rates.values()) if len(rates) == 3 else math.nan
    reach = STANDARD_ERRORS * noise
    within = ", but not by two standard errors" if rates["error"] - lowest <= reach else ""
    return f". A network of {depths} ({lowest:.1%}) has a lower error{within}"


def _remarks(rates, is_better, as_built, moved, epsilon):
    """Returns what must be known of a depth that meets the rule before it is taken for a result."""
    text = ""
    if is_better is False:
        text = (
            f". But its network is {AT_CHANCE}, by two standard errors: it has not learned, and "
            "this depth is not that of a trained network. Train longer, or on more images"
        )
    elif "error" not in rates:
        text = (
            ". Whether its network is better than chance is not known: compile one that returns "
            "classes with an accuracy, and compare the losses of others"
        )
    if as_built is not None:
        means = ", ".join(f"{mean:.3g} in stage {i}" for i, mean in enumerate(as_built, start=1))
        text += f". As built, before training, its mean scaled perturbation is {means}"
        met = [str(stage) for stage, mean in enumerate(as_built, 1) if mean <= epsilon]
        if met:
            which = "It" if len(met) == len(as_built) else f"Stage {', '.join(met)}"
            verb = "meet" if 1 < len(met) < len(as_built) else "meets"
            text += f". {which} {verb} the rule before any training"
        if not all(moved):
            which = ", ".join(str(stage) for stage, one in enumerate(moved, 1) if not one)
            text += (
                f"; training has not moved that of stage {which} by two standard errors, so that "
                "an untrained network of this depth meets the rule there just as well"
            )
    return text


def _message(oracle, plan, others, found=None):
    """Returns the outcome in a sentence; `found` says which depths meet the rule, if any."""
    epsilon = f"{oracle.epsilon:g}"
    trials = [t for t in oracle.in_order() if oracle.others_of(t) == others]
    failed = [trial for trial in trials if trial.status == FAILED]
    if plan.status == "found":
        reached = f"{found}: every stage has a mean scaled perturbation of {epsilon} or less"
        apart = oracle.tolerance + 1
        pairs = zip(plan.best, plan.failing, strict=True)
        if all(depth - low <= apart for depth, low in pairs):
            less = "one block" if apart == 1 else f"{apart} blocks"
            pairs = enumerate(zip(plan.best, plan.smallest, strict=True), start=1)
            least = ", ".join(str(stage) for stage, (depth, low) in pairs if depth <= low)
            bound = f" (stage {least}: the smallest depth possible)" if least else ""
            return f"{reached}, and more with {less} less{bound}"
        return (
            f"{reached}. Shallower networks could not be trained, or the measurements contradict "
            "one another: average more trainings per trial"
        )
    if plan.status == "not satisfied":
        capped = ", ".join(
            f"stage {s} at {blocks_text([oracle.limits[s - 1][1]])}" for s in plan.capped
        )
        return (
            f"no depth inside the bounds brings every mean scaled perturbation to {epsilon}: "
            f"{capped} has more. Raise `epsilon` or `max_blocks`, or train longer"
            f"{_guessing(oracle, trials)}"
        )
    if plan.status == "failed":
        return (
            f"networks of the depths that are left to try could not be trained: {_reason(failed)}"
        )
    verb = "meets" if found and found.startswith("1 block ") else "meet"
    so_far = f"{found} {verb} it" if found else "no trained network meets it"
    count = oracle.max_trials
    allowed = "1 trial was allowed" if count == 1 else f"{count} trials were allowed"
    why = f"; {allowed}" if oracle.is_full() else ""
    larger = ", with a larger `max_trials`," if oracle.is_full() else ""
    return (
        f"the search for a mean scaled perturbation of {epsilon} is not finished: {so_far}{why}. "
        f"Run it again{larger} to go on{_guessing(oracle, trials)}"
    )


def _guessing(oracle, trials):
    """Returns what must be known of a search whose trials, or some of them, have not learned."""
    done = [trial for trial in trials if trial.status == COMPLETED]
    count = sum(_is_better(oracle, trial) is False for trial in done)
    if not count:
        return ""
    which = "the network" if len(done) == 1 else f"{count} of the {len(done)} networks"
    return (
        f". No better than chance: {which} trained so far. Networks that have not learned say "
        "little about the depth that a trained one needs"
    )


def _reason(failed):
    """Returns the reason, in one line, why the last of the trials could not be trained."""
    lines = (failed[-1].message or "").strip().splitlines()
    return lines[-1] if lines else "see the output of the workers"
