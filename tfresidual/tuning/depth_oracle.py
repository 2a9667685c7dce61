"""Oracle for keras-tuner that searches for depths that meet the stopping rule."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
from datetime import datetime
from typing import TYPE_CHECKING

import keras_tuner
import numpy as np

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_int,
    check_ints,
    is_int,
)
from tfresidual.definitions.chance import CHANCE_ERROR, ERROR_SE
from tfresidual.definitions.settings import EPSILON
from tfresidual.machine.files import read_json
from tfresidual.probes.logs import log_key
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.tuning.as_built import AS_BUILT, CHANGE_ERROR, SETTLED, is_moved
from tfresidual.tuning.keras_tuner_internals import PlacedOracle
from tfresidual.tuning.proposals import Measurement, plan
from tfresidual.tuning.search_files import (
    FAILURE_FILE,
    ORACLE_FILE,
    REMEDY,
    TRIAL_FILE,
    WEIGHTS_FILE,
    trial_files,
    write_json,
)
from tfresidual.tuning.workers import SearchError, is_served

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from keras_tuner.engine.trial import Trial

    from tfresidual.tuning.proposals import Plan

RUNNING, COMPLETED, FAILED = "RUNNING", "COMPLETED", "FAILED"
IDLE, STOPPED, INVALID = "IDLE", "STOPPED", "INVALID"
# Base score of a trial in which a stage does not meet the rule: more than any depth. The amount
# added to it measures how far the worst stage is from meeting the rule.
NOT_MET = 1e6
OBJECTIVE = "blocks"
# Hyperparameter with the id of the trial whose weights a warm start uses.
SOURCE = "tuner/warm_start"
# Scaled distance of the network whose weights are kept, if several executions were averaged.
KEPT_DISTANCE = "kept_scaled_distance"
MOST_COMBINATIONS = 1000


def blocks(hyperparameters: keras_tuner.HyperParameters) -> tuple[int, ...]:
    """Returns the blocks of each stage in a trial, for the function that builds its network.

    A `ValueError` is raised if these are not hyperparameters of a depth search.

    Example:

    >>> def build(hp):
    ...     net = networks.ResidualNetwork((8, 8, 1), 3, blocks=tuning.blocks(hp), widths=(4,))
    ...     net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ...     return net
    """
    values = hyperparameters.values
    stages = range(1, 1 + sum(1 for name in values if _is_depth(name)))
    if not stages or not all(_name(stage) in values for stage in stages):
        raise ArgumentError(
            "hyperparameters",
            "be those of a `tfresidual.tuning.DepthSearch`",
            received=f"hyperparameters with the values {values!r}",
        )
    return tuple(int(values[_name(stage)]) for stage in stages)


def blocks_text(depths):
    """Returns depths with their unit, such as `"4 4 2 blocks"`, or `"1 block"`."""
    return f"{' '.join(map(str, depths))} block{'' if list(depths) == [1] else 's'}"


class DepthOracle(PlacedOracle):
    """Oracle that proposes depths until it has found the shallowest that meet the stopping rule.

    The rule is met if the mean scaled perturbation of every stage is `epsilon` or less. The first
    trial has the depths `start`. After one measurement of a stage, the rule itself gives the next
    depth; after two, the saturating curve (or power law) through them does. Once depths are known
    that fail and that meet the rule, proposals are between the deepest that fails and the
    shallowest that meets it. The search ends when a trained network meets the rule in all stages
    and every stage is known to fail with at most `tolerance + 1` blocks less, or when a stage fails
    at its largest depth. Proposals depend only on the finished trials.

    If several trials run at once, further proposals surround the first: one block less, one block
    more, and half-way to the known depths. Each combination of other hyperparameters (such as a
    width) has its own search.

    A trial must report, for every stage, `"stage1/blocks"` (blocks that keep the shape) and
    `"stage1/scaled_distance"`. A killed search resumes with all finished trials.

    Args:
        start: tuple of ints, the blocks of each stage in the first trial. For the arguments up to
            `hyperparameters`, and `max_trials`, see `DepthSearch`.
        settings: dict of other settings that affect the measurements of a trial. A search in the
            same folder with different settings is refused.
        **kwargs: `max_retries_per_trial`, `max_consecutive_failed_trials`, `tune_new_entries` and
            the other arguments of `keras_tuner.Oracle`.

    Raises:
        ValueError: if an argument is invalid.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", sections 2.3 and
        3.5.1.
    """

    def __init__(
        self,
        start: Iterable[int],
        *,
        epsilon: float = EPSILON,
        min_blocks: int | Iterable[int] = 1,
        max_blocks: int | Iterable[int] = 128,
        tolerance: int = 0,
        warm_start: bool = False,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        settings: Mapping[str, Any] | None = None,
        max_trials: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.start: tuple[int, ...] = check_ints("start", start, at_least=1)
        depth_for(0, epsilon)
        # A NumPy number is converted as it prints.
        self.epsilon: float = float(str(epsilon))
        self.limits: list[tuple[int, int]] = _checked_limits(self.start, min_blocks, max_blocks)
        self.tolerance: int = check_int("tolerance", tolerance, at_least=0)
        self.warm_start: bool = bool(warm_start)
        counts = {"max_retries_per_trial": 0, "max_consecutive_failed_trials": 1}
        for name, at_least in counts.items():
            if name in kwargs:
                kwargs[name] = check_int(name, kwargs[name], at_least)
        space = keras_tuner.HyperParameters()
        for stage, (depth, limits) in enumerate(zip(self.start, self.limits, strict=True), start=1):
            space.Int(_name(stage), *limits, default=depth)
        if hyperparameters is not None:
            for name in filter(_is_depth, hyperparameters.values):
                raise ArgumentError(
                    "hyperparameters",
                    "not name the depths, which `start`, `min_blocks` and `max_blocks` determine",
                    received=repr(name),
                )
            space.merge(hyperparameters)
        self.settings: dict[str, Any] = {"warm_start": self.warm_start, **(settings or {})}
        self.failure: str | None = None
        # Ids of trials to run again, the next one last.
        self.waiting: list[str] = []
        # The number of ends of each trial.
        self._ends: collections.Counter[str] = collections.Counter()
        super().__init__(
            objective=keras_tuner.Objective(OBJECTIVE, "min"),
            max_trials=check_int("max_trials", max_trials, at_least=1, or_none=True),
            hyperparameters=space,
            **kwargs,
        )

    # Proposals

    def populate_space(self, trial_id: str | None) -> dict[str, Any]:
        running = [self._values(t) for t in self.trials.values() if t.status == RUNNING]
        plans = [(others, self.plan(others)) for others in self.combinations()]
        for place in range(max((len(p.proposals) for _, p in plans), default=0)):
            for others, planned in plans:
                if place < len(planned.proposals):
                    depths = enumerate(planned.proposals[place], start=1)
                    values = {_name(stage): int(depth) for stage, depth in depths} | others
                    if values not in running:
                        return {"status": RUNNING, "values": values | self._source(values)}
        is_searching = any(planned.status == "searching" for _, planned in plans)
        return {"status": IDLE if is_searching else STOPPED}

    def _source(self, values):
        """Returns the source of a warm start, as a hyperparameter, by which workers learn of it."""
        if not self.warm_start:
            return {}
        wanted = {name: value for name, value in values.items() if _is_depth(name)}
        others = {name: value for name, value in values.items() if name not in wanted}
        shallower = [
            trial
            for trial in self.in_order()
            if trial.status == COMPLETED
            and self.others_of(trial) == others
            and all(trial.hyperparameters.values[name] <= wanted[name] for name in wanted)
        ]
        if not shallower:
            return {}
        return {SOURCE: max(shallower, key=lambda t: sum(blocks(t.hyperparameters))).trial_id}

    def plan(self, others: Mapping[str, Any] | None = None) -> Plan:
        """Returns what follows from the finished trials with these values of other parameters."""
        trials = [t for t in self.in_order() if self.others_of(t) == (others or {})]
        measured = [self.measurements(t) for t in trials if t.status == COMPLETED]
        failed = [blocks(t.hyperparameters) for t in trials if t.status == FAILED]
        return plan(measured, failed, self.start, self.limits, self.epsilon, self.tolerance)

    def combinations(self) -> list[dict[str, Any]]:
        """Returns all combinations of the hyperparameters that are not depths, as a list of dicts.

        A `ValueError` is raised if they are too many or infinitely many, or one depends on a depth.
        """
        found = [keras_tuner.HyperParameters()]
        for parameter in self.hyperparameters.space:
            if _is_depth(parameter.name):
                continue
            must = "Hyperparameters other than the depths must"
            if any(_is_depth(condition.name) for condition in parameter.conditions):
                raise ValueError(
                    f"{must} not depend on them: each combination of their values has depths of "
                    f"its own. Received: {parameter!r} under {parameter.conditions!r}"
                )
            if getattr(parameter, "step", 1) is None:
                raise ValueError(
                    f"{must} have finitely many values: give `{parameter.name}` a `step`, or use "
                    f"`hp.Choice`. Received: {parameter!r}"
                )
            grown = []
            for space in found:
                space.merge([parameter])
                if not space.is_active(parameter):
                    grown.append(space)
                    continue
                for value in parameter.values:
                    grown.append(space.copy())
                    # The values of a logarithmic `Int` are floats.
                    is_int = isinstance(parameter, keras_tuner.engine.hyperparameters.Int)
                    grown[-1].values[parameter.name] = int(value) if is_int else value
            if len(grown) > MOST_COMBINATIONS:
                raise ValueError(
                    f"{must} have at most {MOST_COMBINATIONS} combinations: each has a search of "
                    f"its own. Received: more with {parameter!r}"
                )
            found = grown
        return [dict(space.values) for space in found]

    def others_of(self, trial: Trial) -> dict[str, Any]:
        """Returns the values of a trial's hyperparameters that are not depths."""
        return {name: v for name, v in self._values(trial).items() if not _is_depth(name)}

    def _values(self, trial):
        values = trial.hyperparameters.values
        return {name: value for name, value in values.items() if not name.startswith("tuner/")}

    # Measurements

    def in_order(self) -> list[Trial]:
        """Returns the trials in the order in which they were started."""
        return [self.trials[trial_id] for trial_id in self.start_order]

    def measurements(self, trial: Trial) -> list[Measurement]:
        """Returns the measurements of a finished trial, a list with a `Measurement` per stage."""
        return [
            Measurement(
                depth,
                int(metric(trial, log_key("blocks", stage))),
                metric(trial, log_key("scaled_distance", stage)),
            )
            for stage, depth in enumerate(blocks(trial.hyperparameters), start=1)
        ]

    def score_trial(self, trial: Trial) -> None:
        """Scores a trial with its number of blocks, or over a million if a stage fails the rule."""
        stages = self.measurements(trial)
        trial.best_step = 0
        if all(stage.meets(self.epsilon) for stage in stages):
            trial.score = float(sum(stage.blocks for stage in stages))
            return
        excess = [s.distance / s.counted / self.epsilon if s.counted else 10.0 for s in stages]
        trial.score = NOT_MET + min(max(excess), NOT_MET)

    def verdict(self, trial: Trial) -> str:
        """Returns a description of how a trial ended."""
        if trial.status != COMPLETED:
            return "could not be trained"
        measured = {name: metric(trial, name) for name in trial.metrics.metrics}
        return verdict(measured, len(blocks(trial.hyperparameters)), self.epsilon)

    def as_built(self, trial: Trial, stage: int) -> tuple[float, bool] | None:
        """Returns the mean scaled perturbation of a stage, from 1, of a finished trial as built.

        With it comes whether training has moved it by more than two standard errors. `None` if it
        was not measured.
        """
        names = [log_key(name, stage) for name in (AS_BUILT, CHANGE_ERROR, SETTLED)]
        if not all(map(trial.metrics.exists, names)):
            return None
        before, error, after = (metric(trial, name) for name in names)
        return before, is_moved(before, after, error)

    def error(self, trial: Trial) -> dict[str, float]:
        """Returns those of `"error"`, `"chance_error"` and `"error_se"` that a trial has."""
        names = ("error", CHANCE_ERROR, ERROR_SE)
        return {name: metric(trial, name) for name in names if trial.metrics.exists(name)}

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """Returns the trials that meet the rule in all stages, the fewest blocks first."""
        met = [t for t in self.in_order() if t.status == COMPLETED and t.score < NOT_MET]
        return sorted(met, key=lambda trial: trial.score)[:num_trials]

    def is_kept_met(self, trial: Trial) -> bool:
        """Returns whether the network kept by a trial, one of several averaged, meets the rule."""
        return all(
            dataclasses.replace(stage, distance=metric(trial, name)).meets(self.epsilon)
            for place, stage in enumerate(self.measurements(trial), start=1)
            if trial.metrics.exists(name := log_key(KEPT_DISTANCE, place))
        )

    def weights_path(self, trial: Trial) -> pathlib.Path:
        """Returns the path of the weights of a finished trial."""
        return self._folder_of(trial) / WEIGHTS_FILE

    # Trials and workers

    def create_trial(self, tuner_id: str) -> Trial:
        self.tuner_ids.add(tuner_id)
        try:
            self.combinations()
        except ValueError as error:
            self._fail(str(error), type(error))
        if self.failure is not None:
            self.tuner_ids.discard(tuner_id)
            return self._trial(STOPPED)
        trial = self.ongoing_trials.get(tuner_id)
        if trial is not None:
            # The worker was started again: its trial begins again, unless it had reported.
            if not trial.metrics.exists(OBJECTIVE):
                self.announce(trial)
                return trial
            trial.status = COMPLETED
            self.end_trial(trial)
        if self.waiting:
            trial = self.trials[self.waiting.pop()]
            trial.status = RUNNING
        else:
            trial = self._new_trial()
        if trial.status == RUNNING:
            self.ongoing_trials[tuner_id] = trial
            self.save()
            self.announce(trial)
        elif trial.status == STOPPED and self.ongoing_trials:
            # The results of the others may ask for more.
            trial.status = IDLE
        elif trial.status == STOPPED:
            self.tuner_ids.discard(tuner_id)
        return trial

    def _new_trial(self):
        trial_id = str(len(self.trials)).zfill(len(str(self.max_trials)))
        proposed = {"status": STOPPED} if self.is_full() else self.populate_space(trial_id)
        trial = self._trial(proposed["status"], trial_id)
        trial.hyperparameters.values = proposed.get("values", {})
        if trial.status == RUNNING:
            trial.hyperparameters.ensure_active_values()
            self.trials[trial_id] = trial
            self.start_order.append(trial_id)
            self._save_state_of(trial)
        return trial

    def _trial(self, status, trial_id=""):
        return keras_tuner.engine.trial.Trial(self.get_space(), trial_id, status)

    def update_trial(self, trial_id: str, metrics: Mapping[str, float], step: int = 0) -> Trial:
        trial = self.trials[trial_id]
        if trial.metrics.exists(OBJECTIVE):
            # A chief that was started again gave the trial to another worker, which was first.
            return trial
        if OBJECTIVE not in metrics:
            raise ValueError(
                f"Objective value missing in metrics reported to the oracle: {OBJECTIVE!r}. "
                f"Received: {sorted(metrics)}"
            )
        for name, value in metrics.items():
            trial.metrics.update(name, value, step=step)
        self._save_state_of(trial)
        return trial

    def end_trial(self, trial: Trial) -> None:
        own = self.trials[trial.trial_id]
        if trial.trial_id in self.end_order:
            self._release(trial.trial_id)
            return
        if trial.status != COMPLETED:
            path = self._folder_of(trial) / FAILURE_FILE
            if not trial.message:
                trial.message = path.read_text(errors="replace") if path.exists() else None
        if trial.trial_id in self.waiting:
            self.waiting.remove(trial.trial_id)
        known = {parameter.name for parameter in self.hyperparameters.space}
        if self.end_order and any(p.name not in known for p in trial.hyperparameters.space):
            self.ongoing_trials.clear()
            self._fail(
                "Hyperparameters other than the depths must not depend on them, and must be "
                "requested in every trial. Received: new ones in the trial with the values "
                f"{trial.hyperparameters.values!r}"
            )
            return
        # A worker returns numbers rounded to single precision.
        values = trial.hyperparameters.values | own.hyperparameters.values
        own.hyperparameters, own.hyperparameters.values = trial.hyperparameters, values
        own.status, own.message = trial.status, trial.message
        self.update_space(own.hyperparameters)
        own.hyperparameters.ensure_active_values()
        if own.status == COMPLETED:
            self.score_trial(own)
        self._ends[own.trial_id] += 1
        if own.status == INVALID and self._ends[own.trial_id] <= self.max_retries_per_trial:
            self.waiting.append(own.trial_id)
        else:
            own.status = FAILED if own.status == INVALID else own.status
            self.end_order.append(own.trial_id)
        self._save_state_of(own)
        self.save()
        self._tell_end(own)
        self._release(own.trial_id)
        self._check_failures(own)

    def _check_failures(self, trial):
        """Ends the search after too many failures in a row."""
        limit = self.max_consecutive_failed_trials
        last = [self.trials[trial_id].status for trial_id in self.end_order[-limit:]]
        if trial.status == FAILED and last == [FAILED] * limit:
            reason = (trial.message or "").strip().splitlines()
            end = f" The last: {reason[-1]}" if reason else ""
            self._fail(
                f"Number of consecutive failures exceeded the limit of {limit}.{end}", SearchError
            )

    def _fail(self, message, kind=ValueError):
        """Ends the search. A chief must not raise an error in a request thread."""
        if kind is SearchError or is_served():
            self.failure = message
        if not is_served():
            raise kind(message)

    def _release(self, trial_id):
        for tuner_id, trial in list(self.ongoing_trials.items()):
            if trial.trial_id == trial_id:
                del self.ongoing_trials[tuner_id]

    def _tell_end(self, trial):
        """Prints the rule instead of the score, which may be a penalty that says little."""
        if self.verbose < 1:
            return
        took, total = self.durations(trial, datetime.now())
        number = self.start_order.index(trial.trial_id) + 1
        depths = blocks_text(blocks(trial.hyperparameters))
        print(f"\nTrial {number}, {depths} [{took}]: {self.verdict(trial)}")
        best = self.get_best_trials()
        fewest = " ".join(map(str, blocks(best[0].hyperparameters))) if best else "none yet"
        print(f"Fewest blocks that meet the rule so far: {fewest}")
        print(f"Total elapsed time: {total}")

    def is_full(self) -> bool:
        """Returns whether the largest allowed number of trials has been started."""
        return bool(self.max_trials) and len(self.trials) >= self.max_trials

    # Files

    def is_begun(self) -> bool:
        """Returns whether the folder contains a search."""
        return (self.folder / ORACLE_FILE).exists() or bool(trial_files(self.folder))

    def save(self) -> None:
        write_json(self.folder / ORACLE_FILE, self.get_state())

    def _folder_of(self, trial):
        return self.folder / f"trial_{trial.trial_id}"

    def _save_state_of(self, trial):
        write_json(self._folder_of(trial) / TRIAL_FILE, trial.get_state())

    def get_state(self) -> dict[str, Any]:
        search = {
            "epsilon": self.epsilon,
            "start": self.start,
            "limits": self.limits,
            "tolerance": self.tolerance,
            "settings": self.settings,
            "max_trials": self.max_trials,
        }
        own = {"run_times": self._ends, "retry_queue": self.waiting, "depth_search": search}
        return super().get_state() | own

    def reload(self, look: bool = False) -> None:
        """Restores a search from the files of an earlier process, which may have been killed.

        A trial whose measurements are on disk counts as finished. Any other is run again.

        Args:
            look: whether to only read and write nothing, because another process may be searching.

        Raises:
            ValueError: if the folder contains a different search.
        """
        path = self.folder / ORACLE_FILE
        # This file is read before the trials, because a writer saves a trial before listing it
        # here.
        state = read_json(path, REMEDY)
        self._check_same_search(state)
        states = [read_json(path, REMEDY) for path in trial_files(self.folder)]
        trials = [keras_tuner.engine.trial.Trial.from_state(state) for state in states]
        self.trials: dict[str, Trial] = {t.trial_id: t for t in trials}
        # A new trial gets their number as its id, and must not take the folder of another one.
        if sorted(map(int, self.trials)) != list(range(len(trials))):
            raise ValueError(
                "The folder of the search must hold all of its trials. Received: "
                f"folder={str(self.folder)!r} with trials {', '.join(sorted(self.trials))}"
            )
        declared: keras_tuner.HyperParameters = self.hyperparameters
        self.set_state({**state, "ongoing_trials": {}})
        self._ends = collections.Counter(state["run_times"])
        # The space is that of the current program, plus the hyperparameters its trials asked for.
        declared.merge(self.hyperparameters, overwrite=False)
        self.hyperparameters: keras_tuner.HyperParameters = declared
        self.failure = None
        known = dict.fromkeys([*self.start_order, *self.trials])
        self.start_order: list[str] = [t for t in known if t in self.trials]
        self.ongoing_trials: dict[str, keras_tuner.engine.trial.Trial] = {}
        self.waiting = []
        self._continue(look)
        ended = [t.trial_id for t in self.in_order() if t.status in (COMPLETED, FAILED)]
        known = dict.fromkeys([*self.end_order, *ended])
        self.end_order: list[str] = [t for t in known if t in ended]
        if not look:
            self._retry_failures()

    def _check_same_search(self, state):
        """Raises a `ValueError` if a state is that of another search."""
        if "depth_search" not in state:
            raise ValueError(
                "The folder holds a search of another kind. Choose another `project_name`. "
                f"Received: folder={str(self.folder)!r}"
            )
        stages = len(state["depth_search"]["start"])
        before = state["depth_search"]["settings"]
        if stages != len(self.start):
            raise ArgumentError(
                "start",
                f"name as many stages as the search in the folder has, {stages}, or "
                "`project_name` be another",
                start=self.start,
                folder=str(self.folder),
            )
        check_same_settings(before, self.settings, self.folder)

    def _continue(self, look):
        """Ends trials whose measurements are on disk; others run again."""
        for trial in reversed(self.in_order()):
            if trial.status == RUNNING and trial.metrics.exists(OBJECTIVE):
                trial.status = COMPLETED
            if trial.status == COMPLETED:
                # The epsilon of the rule may have changed.
                before = trial.score
                self.score_trial(trial)
                if before != trial.score and not look:
                    self._save_state_of(trial)
            elif trial.status != FAILED:
                trial.status = RUNNING
                self.waiting.append(trial.trial_id)

    def _retry_failures(self):
        """Retries the failures that ended the search, since the cause may have been fixed."""

        def has_failed(trial_id):
            return self.trials[trial_id].status == FAILED

        last = list(itertools.takewhile(has_failed, reversed(self.end_order)))
        retried = set(last if len(last) >= self.max_consecutive_failed_trials else ())
        ended = [others for others in self.combinations() if self.plan(others).status == "failed"]
        retried |= {
            trial.trial_id
            for trial in self.in_order()
            if trial.status == FAILED and self.others_of(trial) in ended
        }
        for trial_id in sorted(retried, key=self.start_order.index, reverse=True):
            trial = self.trials[trial_id]
            trial.status, trial.message = RUNNING, None
            del self._ends[trial_id]
            self.waiting.append(trial_id)
        self.end_order = [trial_id for trial_id in self.end_order if trial_id not in retried]


def verdict(measured, stages, epsilon):
    """Returns what a trial measured, by name, in words."""
    of = {
        name: [measured.get(log_key(name, stage)) for stage in range(1, stages + 1)]
        for name in ("blocks", "scaled_distance", AS_BUILT)
    }
    pairs = list(zip(of["scaled_distance"], of["blocks"], strict=True))
    means = " ".join(f"{distance / count:.3g}" if count else "none" for distance, count in pairs)
    built = " ".join("none" if mean is None else f"{mean:.3g}" for mean in of[AS_BUILT])
    as_built = f" ({built} as built)" if any(of[AS_BUILT]) else ""
    is_met = all(count and depth_for(distance, epsilon) <= count for distance, count in pairs)
    error = error_text(measured)
    return (
        f"mean scaled perturbation {means}{as_built}, {'meets' if is_met else 'does not meet'} the "
        f"rule of {epsilon:g} or less{f', {error}' if error else ''}"
    )


def check_same_settings(before, settings, folder):
    """Raises a `ValueError` if a setting is not what it was in the search in a folder."""
    for name, value in settings.items():
        if before.get(name, value) != value:
            raise ArgumentError(
                name,
                "be what it was when the search in the folder began, "
                f"{before[name]!r}, or `project_name` be another",
                **{name: value, "folder": str(folder)},
            )


def metric(trial, name):
    """Returns a number that a trial reported, as it was before rounding to single precision.

    Workers report in single precision. The number is the same whichever process ran the trial, and
    prints as it was measured: 0.3 and not 0.30000001192.
    """
    return float(str(np.float32(trial.metrics.get_best_value(name))))


def _name(stage):
    return f"blocks{stage}"


def _is_depth(name):
    return name.startswith("blocks") and name[len("blocks") :].isdigit()


def _checked_limits(start, min_blocks, max_blocks):
    bounds = {}
    for name, bound in {"min_blocks": min_blocks, "max_blocks": max_blocks}.items():
        bounds[name] = check_ints(name, [bound] * len(start) if is_int(bound) else bound, 1)
        if len(bounds[name]) != len(start):
            must = "be an int, or one per stage as in `start`"
            raise ArgumentError(name, must, **{name: bound, "start": start})
    limits = list(zip(*bounds.values(), strict=True))
    if not all(low <= depth <= high for depth, (low, high) in zip(start, limits, strict=True)):
        raise ArgumentError(
            "start",
            "be between `min_blocks` and `max_blocks`",
            start=start,
            min_blocks=min_blocks,
            max_blocks=max_blocks,
        )
    return limits


def error_text(error):
    """Returns an error rate as text, see `DepthOracle.error`, beside that of guessing, if known."""
    if "error" not in error:
        return ""
    chance = f", chance {error[CHANCE_ERROR]:.1%}" if CHANCE_ERROR in error else ""
    return f"error {error['error']:.1%}{chance}"
