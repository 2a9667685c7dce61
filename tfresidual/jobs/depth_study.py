"""Searches the depth of a network in one folder: trials, outcome, report.

`run` does the whole search. `python -m tfresidual.jobs.depth_study FOLDER` is one of the processes
of a search with workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING

import keras
import keras_tuner
import tensorflow as tf

from tfresidual import datasets, report, tuning
from tfresidual.definitions.arguments import ArgumentError, check_int, checked_path
from tfresidual.definitions.settings import MOST_BLOCKS, Settings
from tfresidual.definitions.settings import SearchSettings as SearchSettings
from tfresidual.jobs.building import (
    build,
    check_any_depth,
    check_training_fits,
    compile_for,
    has_blocks_to_couple,
    nothing_to_couple,
)
from tfresidual.jobs.data import prepare
from tfresidual.jobs.probing import write_frames_and_figures
from tfresidual.jobs.run_folder import (
    MODEL_FILE,
    RESULTS,
    SETTINGS_FILE,
    claim,
    read_settings,
    refuse_other_settings,
    refuse_remains,
    settings_of,
)
from tfresidual.jobs.settings import check, describe, stages_of, used
from tfresidual.machine.console import redirected, say
from tfresidual.machine.files import replacing
from tfresidual.machine.locks import locked
from tfresidual.machine.memory import check_fits
from tfresidual.probes.logs import log_key
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.report.study import images_text
from tfresidual.training.progress import TrainingProgress
from tfresidual.tuning.as_built import AS_BUILT, MEAN
from tfresidual.tuning.depth_oracle import blocks_text
from tfresidual.tuning.depth_search import load_trained
from tfresidual.tuning.trace import AT_CHANCE
from tfresidual.tuning.workers import IP, is_worker

if TYPE_CHECKING:
    from rich.console import Console

    from tfresidual.definitions.types import StrPath

# Subfolder: keras-tuner's project.
PROJECT = "search"
# Memory of a process that has loaded TensorFlow.
WORKER_BYTES = 400 * 2**20
# Settings that may change when a search is resumed.
MAY_CHANGE = ("max_blocks", "tolerance", "max_trials")


def run(
    folder: StrPath,
    settings: Settings | None = None,
    search: SearchSettings | None = None,
    console: Console | None = None,
    workers: int = 1,
) -> tuning.Outcome | None:
    """Searches the depth of a network and writes the results into one folder.

    An interrupted search resumes: finished trials are kept, an unfinished one starts from scratch.
    If the environment makes this process a chief or a worker of keras-tuner, it plays that part in
    a search by several machines, which must all have access to the folder.

    - `settings.json`: the settings, the versions of the packages, the machine;
    - `search/`: keras-tuner's project, a folder for each trial;
    - `frames/trace.csv`, `figures/depth_search.png`: what was tried and measured;
    - `outcome.json`: what was found;
    - `model.keras`: the network with the fewest blocks, if one meets the rule;
    - `report.html`: all results on one page.

    Args:
        folder: where to write; created if it does not exist.
        settings: a `tfresidual.jobs.settings.Settings`, without a depth.
        search: a `SearchSettings`.
        console: a `rich.console.Console` for progress, or `None` for no output.
        workers: int, number of networks trained at once, each by its own process.

    Returns:
        The `tfresidual.tuning.Outcome`, or `None` in a process that is a worker.

    Raises:
        ValueError: if a setting cannot be used, or the folder holds a run with other settings.
        FileNotFoundError: if the dataset is not on the disk, or parts of the run are missing.
        tfresidual.machine.locks.FolderInUseError: if another process is writing to the folder.
        tfresidual.tuning.SearchError: if too many trials fail in a row, or a worker dies.
    """
    settings, search = settings or Settings(), search or SearchSettings()
    check_fits(
        workers * WORKER_BYTES,
        "Argument `workers` must fit into the memory of this machine: this many processes",
        f"workers={workers}",
    )
    if workers > 1 and IP in os.environ:
        raise ArgumentError(
            "workers",
            f"be 1 if {IP} is set, since this process is then a chief or a worker; start each "
            "worker as its own process",
            received=f"workers={workers}, {IP}={os.environ[IP]!r}",
        )
    check(settings)
    check_any_depth(settings)
    folder = checked_path("folder", folder)
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            "folder", "be a path in UTF-8: keras-tuner writes to no other", str(folder)
        ) from error
    _check_search(settings, search)
    # The chief holds the folder, not its workers.
    with contextlib.nullcontext() if is_worker() else _locked_run(folder):
        return _run(folder, settings, search, console, workers)


def _run(folder, settings, search, console, workers):
    parts = {"settings": settings, "search": search}
    refuse_other_settings(folder, parts, MAY_CHANGE)
    if not (folder / PROJECT).exists():
        refuse_remains(folder, RESULTS, PROJECT)
    # Make sure that the network can be built and trained before anything is written.
    check_training_fits(build(settings, _depths(search.start, settings)), settings)
    train, validation, test = prepare(settings, console)
    if is_worker():
        if not (folder / SETTINGS_FILE).exists():
            claim(folder, parts)
        _search(folder, settings, search, train, validation, console)
        return None
    claim(folder, parts)
    begun = time.monotonic()
    if workers > 1:
        # -P: import this package, whatever the working directory contains.
        command = [sys.executable, "-P", "-m", "tfresidual.jobs.depth_study", str(folder)]
        tuning.run_workers(command, workers)
    else:
        _search(folder, settings, search, train, validation, console)
    return _conclude(folder, settings, test, console, time.monotonic() - begun)


@contextlib.contextmanager
def _locked_run(folder):
    """Locks the folder of a run for this process, unless another process is searching in it."""
    with locked(folder):
        if (folder / PROJECT).exists():
            # Either a `DepthSearch` without `run`, or processes whose `run` was killed, may still
            # be searching here.
            with locked(folder / PROJECT):
                pass
        yield


def member(folder: StrPath) -> None:
    """Runs one process of a search with workers, as the folder and the environment specify."""
    from rich.console import Console

    settings = settings_of(folder)
    search = SearchSettings(**read_settings(folder)["search"])
    train, validation, _ = prepare(settings)
    # Not for lines that are drawn over.
    console = Console(stderr=True, force_terminal=False)
    _search(pathlib.Path(folder), settings, search, train, validation, console)


def _search(folder, settings, search, train, validation, console):
    """Runs the search, or takes part in it."""
    hypermodel = _Hypermodel(settings, len(train), train, console)
    with _silent():
        tuner = _Told(
            hypermodel,
            console,
            epsilon=settings.epsilon,
            start=_depths(search.start, settings),
            min_blocks=search.min_blocks,
            max_blocks=search.max_blocks,
            tolerance=search.tolerance,
            warm_start=search.warm_start,
            max_trials=search.max_trials,
            executions_per_trial=search.executions,
            seed=settings.seed % 2**31,
            directory=folder,
            project_name=PROJECT,
        )
        tuner.search(train, validation_data=validation, epochs=settings.epochs, verbose=0)


class _Told(tuning.DepthSearch):
    """Says of each trial how it ended."""

    def __init__(self, hypermodel, console, **kwargs):
        super().__init__(hypermodel, **kwargs)
        self.console = console

    def run_trial(self, trial, *args, **kwargs):
        depths = tuning.blocks(trial.hyperparameters)
        self.told = f"trial {int(trial.trial_id)}: {blocks_text(depths)}"
        measured = super().run_trial(trial, *args, **kwargs)
        stages = range(1, len(depths) + 1)
        means, built = (
            [measured.get(log_key(name, s), math.nan) for s in stages] for name in (MEAN, AS_BUILT)
        )
        counts = [measured[log_key("blocks", stage)] for stage in stages]
        is_met = all(
            depth_for(measured[log_key("scaled_distance", stage)], self.epsilon) <= count
            for stage, count in zip(stages, counts, strict=True)
        )
        met = "meets the rule" if is_met else "does not meet the rule"
        if all(mean <= self.epsilon for mean in built):
            met += ", which it met before any training"
        test_error = measured.get("error", math.nan)
        self.told += f"{_measured_text(means, built, test_error, measured['seconds'])}: {met}"
        return measured

    def on_trial_end(self, trial):
        say(self.console, self.told if trial.status == "COMPLETED" else f"{self.told} failed")
        super().on_trial_end(trial)


def _measured_text(means, built, error, seconds):
    """Returns the measurements of a trial as text, to be appended to its description."""
    # A stage in which every block changes the shape of the state has no mean.
    means, built = (
        " ".join("none" if math.isnan(value) else f"{value:.3g}" for value in values)
        for values in (means, built)
    )
    return (
        f", mean scaled perturbation {means} ({built} as built), error {error:.1%}, {seconds:.0f} s"
    )


class _Hypermodel(keras_tuner.HyperModel):
    """Builds and trains the network of a trial as a study does."""

    def __init__(self, settings, steps, train, console):
        super().__init__()
        self.settings, self.steps, self.train = settings, steps, train
        self.console = console
        self.metric = None

    def build(self, hp):
        network = build(self.settings, tuning.blocks(hp))
        self.metric = compile_for(network, self.settings, self.steps)
        return network

    def fit(self, hp, model, *args, callbacks=(), **kwargs):
        callbacks = [
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: datasets.set_epoch(self.train, epoch)
            ),
            *callbacks,
        ]
        progress = None
        say(self.console, f"training {blocks_text(tuning.blocks(hp))}")
        if self.console is not None:
            progress = TrainingProgress(kwargs["epochs"], self.steps, self.metric, self.console)
            callbacks.append(progress)
        try:
            # The dataset does its own shuffling.
            return model.fit(*args, callbacks=callbacks, shuffle=False, **kwargs)
        finally:
            if progress is not None:
                progress.close()


def _conclude(folder, settings, test, console, seconds):
    """Writes the results of the search and returns its outcome."""
    oracle = tuning.read_search(folder / PROJECT)
    (outcome,) = tuning.outcomes_of(oracle)
    trace = tuning.trace_of(oracle)
    images = images_text({"validation": settings.validation})
    sections = report.search_sections(trace, settings.epsilon, images)
    figures = {"depth_search": sections[0].figure}
    write_frames_and_figures(folder, {"trace": trace}, figures)
    error = None
    best = None if outcome.trial is None else oracle.in_order()[outcome.trial]
    if best is None or not oracle.is_kept_met(best):
        # A network that an earlier run of the command found is no longer the answer.
        (folder / MODEL_FILE).unlink(missing_ok=True)
    else:
        say(console, "measuring the error on the test images")
        network = build(settings, outcome.blocks)
        metric = compile_for(network, settings, 1)
        load_trained(network, oracle.weights_path(best))
        error = 1 - network.evaluate(test, return_dict=True, verbose=0)[metric]
        with replacing(folder / MODEL_FILE) as path:
            network.save(path)
    with replacing(folder / "outcome.json") as path:
        content = dataclasses.asdict(outcome) | {"epsilon": settings.epsilon, "test_error": error}
        path.write_text(json.dumps(content, indent=2) + "\n")
    content = read_settings(folder)
    # The depth is the result of the search, not a setting.
    content["settings"] = {name: v for name, v in used(settings).items() if name != "depth"}
    content["search"] = {name: v for name, v in content["search"].items() if v is not None}
    report.write(
        folder / "report.html",
        f"Depth of {settings.network} on {describe(settings).title}",
        sections,
        summary=_summary(settings, outcome, trace, error, seconds),
        settings=content,
    )
    return outcome


def _summary(settings, outcome, trace, error, seconds):
    trials = trace.drop_duplicates("trial")
    titles = {"found": "Depth found", "searching": "Shallowest so far", AT_CHANCE: AT_CHANCE}
    depths = "none" if outcome.blocks is None else " ".join(map(str, outcome.blocks))
    if outcome.error is not None:
        depths += f", error {outcome.error:.1%}"
    tiles = [
        (
            titles.get(outcome.status, "Depth").capitalize(),
            depths,
            outcome.message,
        ),
        (
            "Rule",
            f"{settings.epsilon:g} or less",
            "the mean scaled perturbation of every stage, over the blocks that keep the shape of "
            "the state",
        ),
        (
            "Trials",
            str(int((trials["status"] == "completed").sum())),
            f"completed, {trials['seconds'].sum() / 60:.1f} min in total",
        ),
    ]
    if error is not None:
        kind = describe(settings)
        images = "images with any digit wrong" if kind.multi_label else "images misclassified"
        note = f"{images}; chance {kind.chance_error:.1%}"
        tiles.append(("Error on test images", f"{error:.1%}", note))
    took = f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
    tiles.append(("Time", took, "of this run of the command"))
    return tiles


def _check_search(settings, search):
    """Raises a `ValueError` unless the search can be made with these settings."""
    for name in ("start", "min_blocks", "max_blocks"):
        depths = getattr(search, name)
        if isinstance(depths, tuple) and len(depths) != stages_of(settings):
            raise ArgumentError(
                name,
                f"be an int, or one int for each stage, of which there are {stages_of(settings)}",
                depths,
            )
        for depth in _depths(depths, settings):
            check_int(name, depth, at_least=1, at_most=MOST_BLOCKS)
    most = _depths(search.max_blocks, settings)
    if settings.share_from is not None and settings.share_from >= max(most):
        raise ArgumentError(
            "share_from",
            "be a block of the networks that the search may try, less than `max_blocks`",
            share_from=settings.share_from,
            max_blocks=search.max_blocks,
        )
    if settings.coupling is not None:
        # If networks of this depth have nothing to couple, deeper ones have nothing either, and
        # they take longer to build.
        enough = settings.coupling_from + 3
        deepest = [min(depth, enough) for depth in most]
        if not has_blocks_to_couple(build(settings, deepest), settings):
            raise nothing_to_couple(settings, f"max_blocks={search.max_blocks!r}")
    tuning.DepthOracle(
        _depths(search.start, settings),
        epsilon=settings.epsilon,
        min_blocks=search.min_blocks,
        max_blocks=search.max_blocks,
        tolerance=search.tolerance,
        max_trials=search.max_trials,
    )
    if search.warm_start and settings.share_from is not None:
        raise ArgumentError(
            "warm_start",
            "not be given if blocks are shared",
            warm_start=True,
            share_from=settings.share_from,
        )


def _depths(depths, settings):
    return (depths,) * stages_of(settings) if isinstance(depths, int) else depths


@contextlib.contextmanager
def _silent():
    """Keeps keras-tuner off stdout, and TensorFlow's warnings about compiling again off stderr."""
    logger = tf.get_logger()

    def is_error(record):
        return record.levelno >= logging.ERROR

    # Not a level, which two threads would not restore in order.
    logger.addFilter(is_error)
    try:
        with open(os.devnull, "w") as nothing, redirected(nothing):
            yield
    finally:
        logger.removeFilter(is_error)


if __name__ == "__main__":
    member(sys.argv[1])
