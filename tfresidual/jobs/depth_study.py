"""Searches the depth of a network in one folder: trials, outcome, report.

`run` does the whole search. `python -m tfresidual.jobs.depth_study FOLDER` is one of the processes
of a search with workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING

import keras
import keras_tuner
import tensorflow as tf

from tfresidual import datasets, report, tuning
from tfresidual.definitions.arguments import ArgumentError, checked_path
from tfresidual.definitions.settings import SearchSettings as SearchSettings
from tfresidual.definitions.settings import Settings
from tfresidual.jobs.building import (
    build,
    check_any_depth,
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
from tfresidual.report.study import images_text
from tfresidual.training.progress import TrainingProgress
from tfresidual.tuning.depth_oracle import blocks_text, verdict
from tfresidual.tuning.depth_search import load_trained
from tfresidual.tuning.trace import AT_CHANCE
from tfresidual.tuning.workers import IP, is_worker

if TYPE_CHECKING:
    from rich.console import Console

    from tfresidual.definitions.types import StrPath

# Subfolder: keras-tuner's project.
PROJECT = "search"
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
    _check_search(settings, search)
    # The chief holds the folder, not its workers.
    with contextlib.nullcontext() if is_worker() else _locked_run(folder):
        return _run(folder, settings, search, console, workers)


def _run(folder, settings, search, console, workers):
    parts = {"settings": settings, "search": search}
    refuse_other_settings(folder, parts, MAY_CHANGE)
    if not (folder / PROJECT).exists():
        refuse_remains(folder, RESULTS, PROJECT)
    # Make sure that the network can be built before anything is written.
    build(settings, _depths(search.start, settings))
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
        tuner = _Reporting(
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


class _Reporting(tuning.DepthSearch):
    """Says of each trial how it ended."""

    def __init__(self, hypermodel, console, **kwargs):
        super().__init__(hypermodel, **kwargs)
        self.console = console

    def run_trial(self, trial, *args, **kwargs):
        depths = tuning.blocks(trial.hyperparameters)
        self.line = f"trial {int(trial.trial_id)}: {blocks_text(depths)}"
        measured = super().run_trial(trial, *args, **kwargs)
        text = verdict(measured, len(depths), self.epsilon)
        self.line += f", {text}, {measured['seconds']:.0f} s"
        return measured

    def on_trial_end(self, trial):
        say(self.console, self.line if trial.status == "COMPLETED" else f"{self.line} failed")
        super().on_trial_end(trial)


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
    start = _depths(search.start, settings)
    if len(start) != stages_of(settings):
        must = f"be an int, or one for each of the {stages_of(settings)} stages"
        raise ArgumentError("start", must, start)
    tuning.DepthOracle(
        start,
        epsilon=settings.epsilon,
        min_blocks=search.min_blocks,
        max_blocks=search.max_blocks,
        tolerance=search.tolerance,
        max_trials=search.max_trials,
    )
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
