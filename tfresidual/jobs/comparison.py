"""Compares the folders of runs on one page: what `tfresidual compare` does."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import pandas as pd

from tfresidual import datasets, plots
from tfresidual.definitions.arguments import ArgumentError, checked_path
from tfresidual.definitions.chance import is_below
from tfresidual.jobs.frames import read_frames
from tfresidual.jobs.run_folder import SETTINGS_FILE, read_settings, settings_of
from tfresidual.jobs.settings import Settings, describe, used
from tfresidual.machine.console import printable, say
from tfresidual.machine.files import check_folder, read_table
from tfresidual.plots import style
from tfresidual.plots.declared import FIGURES, frames_of
from tfresidual.probes.logs import blocks_of, from_logs
from tfresidual.report import Section, write
from tfresidual.report.comparison import Measured, comparison_sections
from tfresidual.report.findings import error_of_share, of_test
from tfresidual.report.study import images_text
from tfresidual.report.tables import from_settings
from tfresidual.training.checkpoints import REMEDY as REMEDY_OF_LOGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from tfresidual.definitions.types import Frame, StrPath

# Marks pages written by this command: nothing else is replaced.
GENERATOR = "tfresidual compare"
_HEAD = 2000
# The frames that the page shows.
FRAMES = {frame for figure in FIGURES for frame in frames_of(figure)}


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run on the disk; `studied` and `probed` are what was measured, by the name of the frame."""

    settings: Settings
    content: dict[str, Any]
    log: Frame
    studied: dict[str, Measured]
    probed: dict[str, Measured]


def compare(
    runs: Iterable[StrPath], page: StrPath | None = None, console: Console | None = None
) -> pathlib.Path:
    """Compares runs on one page: settings, training, and what probes measured on all of them.

    Each figure of a probe shows all runs, on the same axes, and a table the blocks in which they
    differ the most. Of several splits, the test images are compared. If runs were measured on other
    images, or with other options, the page says so at the figure; `tfresidual.jobs.probing.probe`
    measures them alike. What it measured on all runs is preferred to the frames of their studies.

    Args:
        runs: the folders of two or more runs, complete or not, that
            `tfresidual.jobs.study.run` or `tfresidual.jobs.training.train` wrote.
        page: the HTML file to write, by default `compare-NAME-NAME.html` beside the first run. A
            page that this function wrote is replaced, any other file is an error.
        console: a `rich.console.Console` for progress, or `None` for no output.

    Returns:
        The `pathlib.Path` of the page.

    Raises:
        ValueError: if `runs` does not name two or more runs, a file of a run is damaged, or `page`
            is a file that this function did not write.
        NotADirectoryError: if the folder of `page` cannot be created.
    """
    folders = _named(runs)
    path = _target(page, folders)
    found = {}
    for name, folder in folders.items():
        say(console, f"reading {folder}")
        found[name] = _read(folder)
    say(console, "drawing the figures")
    # In the same way in all runs, if it can be.
    first, *others = (run.probed for run in found.values())
    probed = [name for name in first if all(name in other for other in others)]
    measured = {
        key: run.probed | run.studied | {name: run.probed[name] for name in probed}
        for key, run in found.items()
    }
    epsilon = next(iter(found.values())).settings.epsilon
    sections = [_settings_section(found), _training_section(found, measured)]
    compared = comparison_sections(measured, epsilon)
    nothing = (
        "no figure was measured on all of these runs; `tfresidual probe RUN --probe NAME` measures "
        "it on each of them"
    )
    if not compared:
        say(console, nothing)
    say(console, "writing the page")
    return write(
        path,
        f"{', '.join(list(found)[:-1])} and {list(found)[-1]} compared",
        [*sections, *compared],
        generator=GENERATOR,
        conclusions=[] if compared else [("Probes", f"{nothing}.")],
    )


def _named(runs):
    """Returns the folders of runs by short names that differ."""
    listed = [] if isinstance(runs, (str, bytes, pathlib.PurePath)) else list(runs)
    folders = [checked_path("runs", run) for run in listed]
    # In contrast to `resolve`, this leaves loops of links as they are.
    parts = [pathlib.Path(os.path.realpath(folder)).parts for folder in folders]
    if len(folders) < 2 or len(set(parts)) < len(folders):
        raise ArgumentError("runs", "be the folders of two or more runs, each named once", runs)
    for folder in folders:
        if not (folder / SETTINGS_FILE).exists() or not (folder / "log.csv").exists():
            raise ArgumentError(
                "runs",
                "be folders that `tfresidual study` or `train` wrote, with at least one complete "
                "epoch",
                received=f"{str(folder)!r}, without {SETTINGS_FILE} or log.csv",
            )
    longest = max(map(len, parts))
    length = next(n for n in range(1, longest + 1) if len({p[-n:] for p in parts}) == len(parts))
    names = [printable("/".join(part[-length:])) for part in parts]
    return dict(zip(names, folders, strict=True))


def _target(page, folders):
    """Returns the file to write, after checking that it is new or a page of this function."""
    if page is None:
        first = next(iter(folders.values())).absolute()
        names = [name.replace("/", "-") for name in folders]
        page = first.parent / f"{'-'.join(['compare', *names])}.html"
    path = checked_path("page", page)
    check_folder("page", path.parent)
    if path.exists():
        mark = f'content="{GENERATOR}"'
        if not path.is_file() or mark not in path.read_bytes()[:_HEAD].decode("utf-8", "replace"):
            raise ArgumentError(
                "page",
                "be a new file, or a page that `tfresidual compare` wrote: nothing else is "
                "replaced",
                str(path),
            )
    return path


def _read(folder):
    """Returns the run in a folder."""
    settings = settings_of(folder)
    log = read_table(folder / "log.csv", REMEDY_OF_LOGS)
    parts = (folder / "frames", folder / "probes")
    studied, probed = (read_frames(part, FRAMES) for part in parts)
    if blocks_of(log):
        # The log is what a study made its frame of.
        _, what = studied.get("block_metrics_by_epoch", (None, None))
        studied["block_metrics_by_epoch"] = (from_logs(log), what)
    measured = (
        {name: _measured(frame, record, settings) for name, (frame, record) in part.items()}
        for part in (studied, probed)
    )
    return _Run(settings, read_settings(folder), log, *measured)


def _measured(frame, record, settings):
    """Returns the rows of a frame to compare, with what they were measured on in words."""
    rows, _ = of_test(frame)
    record = record or {}
    counts, images = record.get("images"), None
    if counts:
        split = rows["split"].iloc[0] if "split" in rows and len(rows) else next(iter(counts))
        title = datasets.describe(record["data"], record.get("digits", settings.digits)).title
        images = counts[split]
        on = f"{images_text({split: images})} of {title}"
        if record["pixels"] != "standardized":
            on += f", pixels {record['pixels']}"
        if split == "validation" and describe(settings).digits is None:
            # The last images of the training set.
            on += f", the first of {settings.validation:,} held out"
    else:
        on = None if counts is None else ""
    options = record.get("options", {})
    return Measured(rows.drop(columns="split", errors="ignore"), on, options, images)


def _settings_section(runs):
    """Returns the section on the settings that are not the same in all runs."""
    columns = {
        name: dict(from_settings(run.content | {"settings": used(run.settings)}))
        for name, run in runs.items()
    }
    names = dict.fromkeys(name for settings in columns.values() for name in settings)
    rows = {name: [settings.get(name) for settings in columns.values()] for name in names}
    rows = {name: values for name, values in rows.items() if len(set(values)) > 1}
    table = pd.DataFrame.from_dict(rows, "index", columns=list(runs)).rename_axis("setting")
    return Section(
        "What is not the same",
        "The settings, versions and machines in which the runs differ.",
        frame=table if len(table) else None,
        reading=("Without a value: off, or without effect. " if len(table) else "There are none. ")
        + "Further down, a table at each figure has the places that differ the most, with means "
        "over what was measured there several times. Runs of other seeds differ too.",
    )


def _training_section(runs, measured):
    """Returns the section with the curves and the last and best values of all trainings."""
    # The loss and metrics with validation values in all logs.
    names, *others = ([*run.log.columns] for run in runs.values())
    names = [name for name in names if "/" not in name and f"val_{name}" in names]
    metrics = [m for m in names if all({m, f"val_{m}"} <= set(other) for other in others)]
    histories = pd.concat(
        run.log[["epoch"]].assign(
            network=name,
            **{m: run.log[f"val_{m}"] for m in metrics},
            **{f"train_{m}": run.log[m] for m in metrics},
        )
        for name, run in runs.items()
    )
    finite = [metric for metric in metrics if histories[metric].abs().lt(float("inf")).any()]
    with style.page(runs):
        drawn = plots.network_curves(histories, metrics=finite) if finite else None
    indices = {name: measured[name].get("convergence_indices") for name in runs}
    results = {name: _results(run.log, metrics, indices[name]) for name, run in runs.items()}
    guessing = [
        name
        for name, found in indices.items()
        if found and not is_below(*found.frame[["error", "chance"]].iloc[0], found.images)
    ]
    table = pd.concat(results, axis=1).rename_axis("value")
    unjudged = [name for name, found in indices.items() if found is None]
    reading = (
        "The best epoch has the highest validation metric; its network is the one probed below. "
        "The error on the test images is that of the network probed."
    )
    if unjudged:
        reading += (
            f" Not judged: {', '.join(unjudged)}; `tfresidual probe RUN --probe "
            "convergence_indices` measures the error."
        )
    return Section(
        "Training",
        "Losses and metrics of all trainings, epoch by epoch, and their last and best values.",
        figure=drawn,
        frame=table,
        reading=reading,
        caution=f"Not below chance by two standard errors: {', '.join(guessing)}. What probes "
        "measure of a network that guesses says nothing about what it has learned."
        if guessing
        else None,
    )


def _results(log, metrics, indices):
    """Returns the results of a run by name; `indices` is what was measured of them, or `None`."""
    last = log.iloc[-1]
    found = {"epochs": len(log)}
    for metric in metrics:
        found |= {f"{metric}, last": last[metric], f"val_{metric}, last": last[f"val_{metric}"]}
    for metric in metrics:
        key = f"val_{metric}"
        if metric != "loss" and log[key].notna().any():
            best = log.loc[log[key].idxmax()]
            found |= {f"{key}, best": best[key], f"epoch of the best {key}": int(best["epoch"]) + 1}
    if indices is not None:
        error, chance = indices.frame[["error", "chance"]].iloc[0]
        what = f"error on {indices.on or 'images that are not recorded'}"
        found[what] = error
        if indices.images:
            found[f"{what}, standard error"] = error_of_share(error, indices.images)
        found[f"{what}, of guessing"] = chance
    return pd.Series(found, dtype=object)
