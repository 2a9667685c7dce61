"""Oracle for keras-tuner that searches for depths that meet the stopping rule."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import pathlib
import time
from datetime import datetime
from typing import TYPE_CHECKING

import keras_tuner
import numpy as np
from keras_tuner.src.engine.oracle import Display

from tfresidual.arguments import check_bool, check_int, check_ints, is_int
from tfresidual.machine.files import read_json
from tfresidual.probes.logs import log_key
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.tuning.as_built import AS_BUILT, CHANGE_ERROR, MEAN, is_moved
from tfresidual.tuning.chance import CHANCE_ERROR, ERROR_SE
from tfresidual.tuning.proposals import Measurement, plan
from tfresidual.tuning.search_files import (
    REMEDY,
    is_begun,
    message_of_worker,
    reading,
    trial_file,
    trial_files,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from tfresidual.tuning.proposals import Plan

RUNNING, COMPLETED, FAILED = "RUNNING", "COMPLETED", "FAILED"
# Base score of a trial in which a stage does not meet the rule: more than any depth. The amount
# added to it measures how far the worst stage is from meeting the rule.
NOT_MET = 1e6
# A worker that sends no message for LEASE seconds is considered dead, and its trial is given to
# another worker. Workers report that they are alive every HEARTBEAT seconds.
LEASE, HEARTBEAT = 60.0, 5.0
OBJECTIVE = "blocks"
# Hyperparameter with the id of the trial whose weights a warm start uses.
SOURCE = "tuner/warm_start"
# Scaled distance of the network whose weights are kept, if several executions were averaged.
KEPT_DISTANCE = "kept_scaled_distance"
# A trial is not repeated after a worker has died this many times while running it.
MOST_DEATHS = 3
MOST_COMBINATIONS = 1000


def blocks(hyperparameters: keras_tuner.HyperParameters) -> tuple[int, ...]:
    """Returns the blocks of each stage in a trial, for the function that builds its network.

    Example:

    >>> def build(hp):
    ...     net = networks.ResidualNetwork((8, 8, 1), 3, blocks=tuning.blocks(hp), widths=(4,))
    ...     net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ...     return net

    Args:
        hyperparameters: the `keras_tuner.HyperParameters` of a trial.

    Returns:
        A tuple of ints, one per stage.

    Raises:
        ValueError: if these are not hyperparameters of a depth search.
    """
    values = hyperparameters.values
    stages = range(1, 1 + sum(1 for name in values if _is_depth(name)))
    if not stages or not all(_name(stage) in values for stage in stages):
        raise ValueError(
            "Argument `hyperparameters` must be those of a `tfresidual.tuning.DepthSearch`. "
            f"Received: hyperparameters with the values {values!r}"
        )
    return tuple(int(values[_name(stage)]) for stage in stages)


def blocks_text(depths):
    """Returns depths with their unit, such as `"4 4 2 blocks"`, or `"1 block"`."""
    return f"{' '.join(map(str, depths))} block{'' if list(depths) == [1] else 's'}"


class DepthOracle(keras_tuner.Oracle):
    """Oracle that proposes depths until it has found the shallowest that meet the stopping rule.

    The rule is met if the mean scaled perturbation of every stage is `epsilon` or less. The first
    trial has the depths `start`. After one measurement of a stage, the rule itself gives the next
    depth; after two, the saturating curve (or power law) through them does. Once depths are known
    that fail and that meet the rule, proposals are between the deepest that fails and the
    shallowest that meets it. The search ends when a trained network meets the rule in all stages
    and every stage is known to fail with at most `tolerance + 1` blocks less, or when a stage fails
    at its largest depth. Proposals depend only on the finished trials.

    If several trials run at once, further proposals surround the first: one block less, one block
    more, and half-way to the known depths.

    If the space has other hyperparameters (such as a width), each combination of their values has
    its own search for depths. `get_best_trials` returns only trials that meet the rule, those with
    the fewest blocks first.

    A trial must report, for every stage, `"stage1/blocks"` (blocks that keep the shape) and
    `"stage1/scaled_distance"`; `tfresidual.tuning.DepthSearch` reports these and more. The files on
    disk are consistent at any moment: a killed search resumes with all finished trials.

    Args:
        start: tuple of ints, the blocks of each stage in the first trial.
        epsilon: float over 0, the largest mean scaled perturbation of a stage.
        min_blocks: int, or one int per stage: the smallest depth, 1 or more.
        max_blocks: int, or one int per stage: the largest depth.
        tolerance: int, the number of blocks by which a stage of the result may be deeper than
            necessary.
        warm_start: whether a trial starts with the weights of the deepest finished trial that is
            shallower, see `tfresidual.tuning.interleave`.
        hyperparameters: a `keras_tuner.HyperParameters` with further hyperparameters, or `None`.
        settings: dict of other settings that affect the measurements of a trial. A search in the
            same folder with different settings is refused.
        max_trials: int, the largest number of trials, or `None` for no limit.
        **kwargs: `max_retries_per_trial`, `max_consecutive_failed_trials`, `tune_new_entries` and
            the other arguments of `keras_tuner.Oracle`.

    Raises:
        ValueError: if an argument is invalid.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", sections 2.3
        and 3.5.1.
    """

    def __init__(
        self,
        start: Iterable[int],
        *,
        epsilon: float = 0.1,
        min_blocks: int | Iterable[int] = 1,
        max_blocks: int | Iterable[int] = 128,
        tolerance: int = 0,
        warm_start: bool = False,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        settings: Mapping[str, Any] | None = None,
        max_trials: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_no_objective(kwargs)
        self.start: tuple[int, ...] = check_ints("start", start, at_least=1)
        depth_for(0, epsilon)
        # A NumPy number is converted as it prints.
        self.epsilon: float = float(str(epsilon))
        self.limits: list[tuple[int, int]] = _checked_limits(self.start, min_blocks, max_blocks)
        self.tolerance: int = check_int("tolerance", tolerance, at_least=0)
        self.warm_start: bool = check_bool("warm_start", warm_start)
        counts = {"max_retries_per_trial": 0, "max_consecutive_failed_trials": 1}
        for name, at_least in counts.items():
            if name in kwargs:
                kwargs[name] = check_int(name, kwargs[name], at_least)
        max_trials = check_int("max_trials", max_trials, at_least=1, or_none=True)
        space = keras_tuner.HyperParameters()
        for stage, (depth, limits) in enumerate(zip(self.start, self.limits, strict=True), start=1):
            space.Int(_name(stage), *limits, default=depth)
        if hyperparameters is not None:
            if not isinstance(hyperparameters, keras_tuner.HyperParameters):
                raise ValueError(
                    "Argument `hyperparameters` must be a `keras_tuner.HyperParameters`. "
                    f"Received: hyperparameters={hyperparameters!r}"
                )
            for name in hyperparameters.values:
                if _is_depth(name):
                    raise ValueError(
                        "Argument `hyperparameters` must not name the depths, which `start`, "
                        f"`min_blocks` and `max_blocks` determine. Received: {name!r}"
                    )
            space.merge(hyperparameters)
        self.settings: dict[str, Any] = {"warm_start": self.warm_start, **(settings or {})}
        # A function that the chief calls repeatedly, see `tfresidual.tuning.workers.serve`.
        self.watch: Callable[[], object] | None = None
        self.failure: str | None = None
        self._heard: dict[str, float] = {}
        # For each trial, the number of workers that were considered dead while running it.
        self._left_by: collections.Counter[str] = collections.Counter()
        # For each trial, the number of times that a restarted worker has begun it again.
        self._deaths: collections.Counter[str] = collections.Counter()
        super().__init__(
            objective=keras_tuner.Objective(OBJECTIVE, "min"),
            max_trials=max_trials,
            hyperparameters=space,
            **kwargs,
        )
        self._display = _Display(self)

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
        if any(planned.status == "searching" for _, planned in plans):
            return {"status": "IDLE"}
        return {"status": "STOPPED"}

    def _source(self, values):
        """Returns the source of a warm start, as a hyperparameter, by which workers learn of it."""
        if not self.warm_start:
            return {}
        wanted = {name: value for name, value in values.items() if _is_depth(name)}
        shallower = [
            trial
            for trial in self.in_order()
            if trial.status == COMPLETED
            and self.others_of(trial) == {k: v for k, v in values.items() if k not in wanted}
            and all(trial.hyperparameters.values[name] <= wanted[name] for name in wanted)
        ]
        if not shallower:
            return {}
        return {SOURCE: max(shallower, key=lambda t: sum(blocks(t.hyperparameters))).trial_id}

    def plan(self, others: Mapping[str, Any] | None = None) -> Plan:
        """Returns what follows from the finished trials, a `tfresidual.tuning.proposals.Plan`.

        Args:
            others: dict with the values of the hyperparameters that are not depths.
        """
        trials = [t for t in self.in_order() if self.others_of(t) == (others or {})]
        measured = [self.measurements(t) for t in trials if t.status == COMPLETED]
        failed = [blocks(t.hyperparameters) for t in trials if t.status == FAILED]
        return plan(measured, failed, self.start, self.limits, self.epsilon, self.tolerance)

    def combinations(self) -> list[dict[str, Any]]:
        """Returns all combinations of the hyperparameters that are not depths, as a list of dicts.

        Raises:
            ValueError: if one of them has infinitely many values or depends on a depth, or if there
                are too many combinations.
        """
        found = [keras_tuner.HyperParameters()]
        for parameter in self.hyperparameters.space:
            if _is_depth(parameter.name):
                continue
            if any(_is_depth(condition.name) for condition in parameter.conditions):
                raise ValueError(
                    "Hyperparameters other than the depths must not depend on them: each "
                    f"combination of their values has depths of its own. Received: {parameter!r} "
                    f"under {parameter.conditions!r}"
                )
            if getattr(parameter, "step", 1) is None:
                raise ValueError(
                    "Hyperparameters other than the depths must have finitely many values: give "
                    f"`{parameter.name}` a `step`, or use `hp.Choice`. Received: {parameter!r}"
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
                    f"Hyperparameters other than the depths must have at most {MOST_COMBINATIONS} "
                    "combinations: each has a search of its own. Received: more with "
                    f"{parameter!r}"
                )
            found = grown
        return [dict(space.values) for space in found]

    def others_of(self, trial: keras_tuner.engine.trial.Trial) -> dict[str, Any]:
        """Returns the values of a trial's hyperparameters that are not depths."""
        values = trial.hyperparameters.values
        return {name: value for name, value in values.items() if not _is_depth(name, True)}

    def _values(self, trial):
        values = trial.hyperparameters.values
        return {name: value for name, value in values.items() if not name.startswith("tuner/")}

    # Measurements

    def in_order(self) -> list[keras_tuner.engine.trial.Trial]:
        """Returns the trials in the order in which they were started."""
        return [self.trials[trial_id] for trial_id in self.start_order]

    def measurements(self, trial: keras_tuner.engine.trial.Trial) -> list[Measurement]:
        """Returns the measurements of a finished trial, a list with a `Measurement` per stage."""
        return [
            Measurement(
                depth,
                int(metric(trial, log_key("blocks", stage))),
                metric(trial, log_key("scaled_distance", stage)),
            )
            for stage, depth in enumerate(blocks(trial.hyperparameters), start=1)
        ]

    def score_trial(self, trial: keras_tuner.engine.trial.Trial) -> None:
        """Scores a trial with its number of blocks, or over a million if a stage fails the rule."""
        stages = self.measurements(trial)
        trial.best_step = 0
        if all(stage.meets(self.epsilon) for stage in stages):
            trial.score = float(sum(stage.blocks for stage in stages))
            return
        excess = [s.distance / s.counted / self.epsilon if s.counted else 10.0 for s in stages]
        trial.score = NOT_MET + min(max(excess), NOT_MET)

    def verdict(self, trial: keras_tuner.engine.trial.Trial) -> str:
        """Returns a description of how a trial ended."""
        if trial.status != COMPLETED:
            return "could not be trained"
        stages = self.measurements(trial)
        means = [f"{s.distance / s.counted:.3g}" if s.counted else "none" for s in stages]
        rule = "meets the rule" if trial.score < NOT_MET else "does not meet the rule"
        built = [self.as_built(trial, stage) for stage in range(1, len(stages) + 1)]
        known = [f"{one[0]:.3g}" if one else "none" for one in built]
        as_built = f" ({' '.join(known)} as built)" if any(built) else ""
        error = error_text(self.error(trial))
        return (
            f"mean scaled perturbation {' '.join(means)}{as_built}, {rule} of {self.epsilon:g} or "
            f"less{f', {error}' if error else ''}"
        )

    def as_built(
        self, trial: keras_tuner.engine.trial.Trial, stage: int
    ) -> tuple[float, bool] | None:
        """Returns what the network of a trial gives as built, if that was measured.

        Args:
            trial: a finished trial.
            stage: int from 1.

        Returns:
            A tuple of the mean scaled perturbation of the stage in the untrained network, and
            whether training has moved it by more than two standard errors; or `None`.
        """
        names = [log_key(name, stage) for name in (AS_BUILT, CHANGE_ERROR, MEAN)]
        if not all(map(trial.metrics.exists, names)):
            return None
        before, error, after = (metric(trial, name) for name in names)
        return before, is_moved(before, after, error)

    def error(self, trial: keras_tuner.engine.trial.Trial) -> dict[str, float]:
        """Returns the error rate of a finished trial, and that of guessing, as far as known.

        Returns:
            A dict that may have the keys `"error"`, `"chance_error"` and `"error_se"`, see
            `tfresidual.tuning.DepthSearch.run_trial`.
        """
        names = ("error", CHANCE_ERROR, ERROR_SE)
        return {name: metric(trial, name) for name in names if trial.metrics.exists(name)}

    def get_best_trials(self, num_trials: int = 1) -> list[keras_tuner.engine.trial.Trial]:
        """Returns the trials that meet the rule in all stages, the fewest blocks first."""
        met = [t for t in self.in_order() if t.status == COMPLETED and t.score < NOT_MET]
        return sorted(met, key=lambda trial: trial.score)[:num_trials]

    def is_kept_met(self, trial: keras_tuner.engine.trial.Trial) -> bool:
        """Returns whether the network kept by a trial, one of several averaged, meets the rule."""
        return all(
            dataclasses.replace(stage, distance=metric(trial, name)).meets(self.epsilon)
            for place, stage in enumerate(self.measurements(trial), start=1)
            if trial.metrics.exists(name := log_key(KEPT_DISTANCE, place))
        )

    def weights_path(self, trial: keras_tuner.engine.trial.Trial) -> pathlib.Path:
        """Returns the path of the weights of a finished trial, a `pathlib.Path`."""
        return pathlib.Path(self._get_trial_dir(trial.trial_id)) / "checkpoint.weights.h5"

    # Trials and workers

    @keras_tuner.synchronized
    def create_trial(self, tuner_id: str) -> keras_tuner.engine.trial.Trial:
        self._heard[tuner_id] = time.monotonic()
        self.tuner_ids.add(tuner_id)
        try:
            self.combinations()
        except ValueError as error:
            if not is_served():
                raise
            self.failure = str(error)
        if self.failure is not None:
            self.tuner_ids.discard(tuner_id)
            return keras_tuner.engine.trial.Trial(self.get_space(), "", "STOPPED")
        if tuner_id in self.ongoing_trials:
            # The worker was restarted: its trial begins again.
            trial = self.ongoing_trials[tuner_id]
            self._deaths[trial.trial_id] += 1
            if self._deaths[trial.trial_id] < MOST_DEATHS:
                self._display.on_trial_begin(trial)
                return trial
            trial.status = FAILED
            trial.message = f"its worker died before finishing it, {MOST_DEATHS} times"
            self.end_trial(trial)
        trial = super().create_trial(tuner_id)
        if trial.status == "STOPPED":
            if self.ongoing_trials:
                # This worker must stay available to take over a trial if another worker dies.
                self.tuner_ids.add(tuner_id)
                trial.status = "IDLE"
            else:
                self._heard.pop(tuner_id, None)
        return trial

    def get_trial(self, trial_id: str) -> keras_tuner.engine.trial.Trial:
        for tuner_id, trial in list(self.ongoing_trials.items()):
            if trial.trial_id == trial_id:
                self._heard[tuner_id] = time.monotonic()
        return super().get_trial(trial_id)

    @keras_tuner.synchronized
    def update_trial(
        self, trial_id: str, metrics: Mapping[str, float], step: int = 0
    ) -> keras_tuner.engine.trial.Trial:
        trial = self.trials.get(trial_id)
        if trial is None:
            # The worker belongs to an earlier search that no longer exists.
            return keras_tuner.engine.trial.Trial(self.get_space(), trial_id, "STOPPED")
        if trial.metrics.exists(OBJECTIVE):
            # This worker had been considered dead, and another one has already reported the trial.
            return trial
        return super().update_trial(trial_id, metrics, step)

    @keras_tuner.synchronized
    def end_trial(self, trial: keras_tuner.engine.trial.Trial) -> None:
        if trial.trial_id in self.end_order or trial.trial_id not in self.trials:
            self._release(trial.trial_id)
            return
        if trial.status != COMPLETED:
            if self._left_by[trial.trial_id]:
                # This may be the failure of a worker that was considered dead, whose trial another
                # worker runs or will run. If it is the failure of that other worker, the trial is
                # run once more.
                self._left_by[trial.trial_id] -= 1
                return
            trial.message = trial.message or message_of_worker(self._get_trial_dir(trial.trial_id))
        if trial.trial_id in self._retry_queue:
            self._retry_queue.remove(trial.trial_id)
        if self.end_order and not self._knows(trial.hyperparameters):
            self._give_up(
                "Hyperparameters other than the depths must not depend on them, and must be "
                "requested in every trial. Received: new ones in the trial with the values "
                f"{trial.hyperparameters.values!r}"
            )
            return
        # A worker returns numbers rounded to single precision.
        own = self.trials[trial.trial_id].hyperparameters.values
        trial.hyperparameters.values = {**trial.hyperparameters.values, **own}
        try:
            super().end_trial(trial)
        except RuntimeError as error:
            # There were too many failures in a row. A chief must not raise an error in a request
            # thread.
            self.failure = _in_one_paragraph(str(error))
            self._release(trial.trial_id)
            self._save_trial(self.trials[trial.trial_id])
            self.save()
            if not is_served():
                raise

    def _knows(self, hyperparameters):
        known = {parameter.name for parameter in self.hyperparameters.space}
        return {parameter.name for parameter in hyperparameters.space} <= known

    def _give_up(self, message):
        """Ends the search. A chief must not raise an error in a request thread."""
        if not is_served():
            raise ValueError(message)
        self.failure = message
        self.ongoing_trials.clear()

    def _release(self, trial_id):
        self.ongoing_trials = {
            tuner_id: trial
            for tuner_id, trial in self.ongoing_trials.items()
            if trial.trial_id != trial_id
        }

    @keras_tuner.synchronized
    def release_silent(self) -> None:
        """Forgets workers that have been silent for too long and frees their trials for others."""
        now = time.monotonic()
        for tuner_id in {*self.tuner_ids, *self.ongoing_trials}:
            if now - self._heard.setdefault(tuner_id, now) > LEASE:
                self.tuner_ids.discard(tuner_id)
                del self._heard[tuner_id]
                trial = self.ongoing_trials.pop(tuner_id, None)
                if trial is not None:
                    self._left_by[trial.trial_id] += 1
                    self._retry_queue.append(trial.trial_id)
                    self.save()

    @keras_tuner.synchronized
    def is_over(self) -> bool:
        """Returns whether the search has ended and every worker has been told."""
        if self.ongoing_trials or self.tuner_ids:
            return False
        if self.failure is not None:
            return True
        if self._retry_queue:
            return False
        return self.is_full() or self.populate_space(None)["status"] == "STOPPED"

    def is_full(self) -> bool:
        """Returns whether the largest allowed number of trials has been started."""
        return bool(self.max_trials) and len(self.trials) >= self.max_trials

    # Files

    def save(self) -> None:
        write_json(self._get_oracle_fname(), self.get_state())

    def _save_trial(self, trial):
        write_json(trial_file(self._get_trial_dir(trial.trial_id)), trial.get_state())

    def get_state(self) -> dict[str, Any]:
        search = {
            "epsilon": self.epsilon,
            "start": self.start,
            "limits": self.limits,
            "tolerance": self.tolerance,
            "settings": self.settings,
            "max_trials": self.max_trials,
        }
        return {**super().get_state(), "depth_search": search}

    def is_begun(self) -> bool:
        """Returns whether the folder contains a search.

        Raises:
            FileNotFoundError: if the folder contains trials but not the file of their search.
        """
        return is_begun(pathlib.Path(self._get_oracle_fname()))

    def reload(self, look: bool = False) -> None:
        """Restores a search from the files of an earlier process, which may have been killed.

        A trial whose measurements are on disk counts as finished. Any other trial is run again: by
        the worker that had it if a chief was restarted, and otherwise by the first worker that
        asks.

        Args:
            look: whether to only read and write nothing, because another process may be searching.

        Raises:
            ValueError: if the folder contains a different search, or a file in it is damaged.
        """
        path = pathlib.Path(self._get_oracle_fname())
        # This file is read before the trials, because a writer saves a trial before listing it
        # here.
        state = read_json(path, REMEDY)
        self._check_same_search(state, path)
        trials = [self._read_trial(path) for path in trial_files(path.parent)]
        self.trials: dict[str, keras_tuner.engine.trial.Trial] = {t.trial_id: t for t in trials}
        declared: keras_tuner.HyperParameters = self.hyperparameters
        with reading(path):
            # A trial that had just started when the folder was copied may be missing.
            owners = {
                trial_id: tuner_id
                for tuner_id, trial_id in state["ongoing_trials"].items()
                if trial_id in self.trials
            }
            self.set_state({**state, "ongoing_trials": {}})
            lost = self._lost()
        if lost:
            raise ValueError(
                "The folder of the search must hold all of its trials. Put them back, or search "
                f"in another folder. Received: folder={str(path.parent)!r} without trial "
                f"{', '.join(dict.fromkeys(lost))}"
            )
        # The space is that of the current program, plus the hyperparameters its trials asked for.
        declared.merge(self.hyperparameters, overwrite=False)
        self.hyperparameters: keras_tuner.HyperParameters = declared
        self.failure = None
        self.start_order: list[str] = [t for t in self.start_order if t in self.trials]
        self.start_order += [t for t in self.trials if t not in self.start_order]
        self._retry_queue: list[str] = []
        self.ongoing_trials, self._heard = {}, {}
        self._continue(owners, look)
        ended = [t.trial_id for t in self.in_order() if t.status in (COMPLETED, FAILED)]
        self.end_order: list[str] = [t for t in self.end_order if t in ended]
        self.end_order += [t for t in ended if t not in self.end_order]
        if not look:
            self._retry_failures()

    def _check_same_search(self, state, path):
        """Raises a `ValueError` if the state in the file at `path` is that of another search."""
        folder = path.parent
        if "depth_search" not in state:
            raise ValueError(
                "The folder holds a search of another kind. Choose another `project_name`. "
                f"Received: folder={str(folder)!r}"
            )
        with reading(path):
            stages = len(state["depth_search"]["start"])
            before = dict(state["depth_search"]["settings"])
        if stages != len(self.start):
            raise ValueError(
                "Argument `start` must name as many stages as the search in the folder has, "
                f"{stages}, or `project_name` be another. Received: start={self.start}, "
                f"folder={str(folder)!r}"
            )
        check_same_settings(before, self.settings, folder)

    def _lost(self):
        """Returns the ids of trials that the search has had and whose files are gone."""
        # The id of a new trial is the number of existing trials.
        return [
            trial_id
            for trial_id in [*self.start_order, *self.end_order]
            if trial_id not in self.trials
            and (trial_id in self.end_order or int(trial_id) < len(self.trials))
        ]

    def _continue(self, owners, look):
        """Ends the trials whose measurements are on disk; the others run again.

        Args:
            owners: dict of the workers that had trials, by the id of the trial.
            look: as in `reload`.
        """
        for trial in reversed(self.in_order()):
            if trial.status == RUNNING and trial.metrics.exists(OBJECTIVE):
                trial.status = COMPLETED
            if trial.status == COMPLETED:
                # The epsilon of the rule may have changed.
                before, trial.score = trial.score, None
                self.score_trial(trial)
                if before != trial.score and not look:
                    self._save_trial(trial)
            if trial.status in (COMPLETED, FAILED):
                continue
            trial.status = RUNNING
            if is_served() and trial.trial_id in owners:
                self.ongoing_trials[owners[trial.trial_id]] = trial
            else:
                self._retry_queue.append(trial.trial_id)

    def _read_trial(self, path):
        state = read_json(path, REMEDY)
        with reading(path):
            trial = keras_tuner.engine.trial.Trial.from_state(state)
            if path.parent.name != f"trial_{trial.trial_id}":
                raise ValueError(f"it belongs to trial {trial.trial_id}")
            if len(blocks(trial.hyperparameters)) != len(self.start):
                raise ValueError("it has another number of stages")
            if trial.status == COMPLETED or trial.metrics.exists(OBJECTIVE):
                for stage in self.measurements(trial):
                    stage.meets(self.epsilon)
                if metric(trial, OBJECTIVE) != sum(blocks(trial.hyperparameters)):
                    raise ValueError("its measurements are those of another depth")
        return trial

    def _retry_failures(self):
        """Retries the failures that ended the search, since the cause may have been fixed."""

        def has_failed(trial_id):
            return self.trials[trial_id].status == FAILED

        runs = [list(run) for _, run in itertools.groupby(self.end_order, has_failed)]
        retried = {
            trial_id
            for run in runs
            if has_failed(run[0]) and len(run) >= self.max_consecutive_failed_trials
            for trial_id in run
        }
        ended = [others for others in self.combinations() if self.plan(others).status == "failed"]
        retried |= {
            trial.trial_id
            for trial in self.in_order()
            if trial.status == FAILED and self.others_of(trial) in ended
        }
        for trial_id in sorted(retried, key=self.start_order.index, reverse=True):
            trial = self.trials[trial_id]
            trial.status, trial.message = RUNNING, None
            self._run_times.pop(trial_id, None)
            self._retry_queue.append(trial_id)
        self.end_order = [trial_id for trial_id in self.end_order if trial_id not in retried]


def check_no_objective(given):
    """Raises a `ValueError` if a user gives the objective of a tuner of keras-tuner."""
    if "objective" in given:
        raise ValueError(
            "Argument `objective` must not be given: a search for depth has its own, the fewest "
            "blocks with which every stage meets the rule of `epsilon`. "
            f"Received: objective={given['objective']!r}"
        )


def check_same_settings(before, settings, folder):
    """Raises a `ValueError` if a setting is not what it was in the search in a folder."""
    for name, value in settings.items():
        if before.get(name, value) != value:
            raise ValueError(
                f"Argument `{name}` must be what it was when the search in the folder began, "
                f"{before[name]!r}, or `project_name` be another. Received: "
                f"{name}={value!r}, folder={str(folder)!r}"
            )


def _in_one_paragraph(text):
    """Returns the first and the last line of an error that contains a traceback."""
    lines = text.strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} The last: {lines[-1]}"


def is_served():
    """Returns whether this process is a chief, which gives trials to workers."""
    return "KERASTUNER_ORACLE_IP" in os.environ


def metric(trial, name):
    """Returns a number that a trial reported, as it was before rounding to single precision.

    Workers report numbers in single precision. The result must not depend on which process ran the
    trial, and must print as it was measured: 0.3 and not 0.30000001192.
    """
    return float(str(np.float32(trial.metrics.get_best_value(name))))


def _name(stage):
    return f"blocks{stage}"


def _is_depth(name, or_internal=False):
    internal = or_internal and name.startswith("tuner/")
    return internal or (name.startswith("blocks") and name[len("blocks") :].isdigit())


def _checked_limits(start, min_blocks, max_blocks):
    bounds = {}
    for name, bound in {"min_blocks": min_blocks, "max_blocks": max_blocks}.items():
        bounds[name] = check_ints(name, [bound] * len(start) if is_int(bound) else bound, 1)
        if len(bounds[name]) != len(start):
            raise ValueError(
                f"Argument `{name}` must be an int, or one per stage as in `start`. "
                f"Received: {name}={bound!r}, start={start!r}"
            )
    limits = list(zip(*bounds.values(), strict=True))
    if not all(low <= depth <= high for depth, (low, high) in zip(start, limits, strict=True)):
        raise ValueError(
            "Argument `start` must be between `min_blocks` and `max_blocks`. Received: "
            f"start={start!r}, min_blocks={min_blocks!r}, max_blocks={max_blocks!r}"
        )
    return limits


def error_text(error):
    """Returns an error rate as text, beside that of guessing; empty if it is not known.

    Args:
        error: dict, see `DepthOracle.error`.
    """
    if "error" not in error:
        return ""
    chance = f", chance {error[CHANCE_ERROR]:.1%}" if CHANCE_ERROR in error else ""
    return f"error {error['error']:.1%}{chance}"


class _Display(Display):
    """Display of trials by keras-tuner, with the rule instead of the score.

    The score of a trial that does not meet the rule is a penalty, which is not informative.
    """

    def on_trial_end(self, trial):
        if self.verbose < 1:
            return
        # A restarted chief does not know when the trial started.
        now = datetime.now()
        took = self.format_duration(now - self.trial_start.get(trial.trial_id, now))
        number = self.oracle.start_order.index(trial.trial_id) + 1
        depths = blocks_text(blocks(trial.hyperparameters))
        print(f"\nTrial {number}, {depths} [{took}]: {self.oracle.verdict(trial)}")
        best = self.oracle.get_best_trials()
        fewest = " ".join(map(str, blocks(best[0].hyperparameters))) if best else "none yet"
        print(f"Fewest blocks that meet the rule so far: {fewest}")
        total = self.format_duration(now - (self.search_start or now))
        print(f"Total elapsed time: {total}")
