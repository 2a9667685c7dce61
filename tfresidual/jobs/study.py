"""The main job: trains a network, probes it, and writes all results into one folder.

`tfresidual.jobs.training.train` does the first part alone.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import TYPE_CHECKING

import numpy as np

from tfresidual import plots, probes, sources
from tfresidual.datasets import plain
from tfresidual.definitions.arguments import checked_path
from tfresidual.definitions.averages import STANDARD_ERRORS
from tfresidual.jobs.frames import (
    count_images,
    described,
    record,
    write_frames_and_figures,
)
from tfresidual.jobs.run_folder import MODEL_FILE, read_settings
from tfresidual.jobs.settings import Settings, check, split_sizes, used
from tfresidual.jobs.training import IMAGES_PER_EPOCH, batches_of, train_locked
from tfresidual.machine.console import say
from tfresidual.machine.locks import locked
from tfresidual.plots.declared import study_figures
from tfresidual.plots.style import RIGHT, WRONG
from tfresidual.probes import running
from tfresidual.probes.logs import blocks_of
from tfresidual.probes.running import PROBES, ProbeOptions, has, possible
from tfresidual.report import Section, findings, write
from tfresidual.report.blocks import blocks_section
from tfresidual.report.study import images_text, study_sections

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from tfresidual.definitions.types import StrPath

EXAMPLES = 16
# Training images that are probed after training, beside the test images: enough to compare.
TRAIN_IMAGES = 1280


def run(
    folder: StrPath, settings: Settings | None = None, console: Console | None = None
) -> pathlib.Path:
    """Trains a network, runs every probe on it and writes the results into one folder.

    An interrupted study resumes after its last complete epoch.

    - `settings.json`: the settings, the versions of the packages, the machine;
    - `log.csv`: the losses, metrics and block metrics of every epoch (without block metrics
      if the training was already complete, on another backend than TensorFlow);
    - `model.keras`: the network of the best epoch;
    - `frames/*.csv`: the frames that the probes returned, and `frames/probes.json`: for each, the
      number of images of each split that it was measured on;
    - `figures/*.png`: the figures;
    - `report.html`: all results on one page.

    Args:
        folder: where to write; created if it does not exist.
        settings: a `Settings`, by default those of the embedded study.
        console: a `rich.console.Console` for progress, or `None` for no output.

    Returns:
        The `pathlib.Path` of the report.

    Raises:
        ValueError: if a setting cannot be used, the folder holds a run with other settings, or a
            file in it is damaged.
        tfresidual.machine.locks.FolderInUseError: if another process is writing to the folder.
        FileNotFoundError: if the dataset is not on the disk.
    """
    settings, folder = settings or Settings(), checked_path("folder", folder)
    check(settings)
    with locked(folder):
        return _run(folder, settings, console)


def _run(folder, settings, console):
    begun = time.monotonic()
    data, result = train_locked(folder, settings, console)
    seconds = time.monotonic() - begun
    frames, records = _probe(folder, result, data, settings, console)
    images = {name: what["images"] for name, what in records.items() if what["images"]}
    train_size, validation, _ = split_sizes(settings)
    images["log"] = {"train": train_size, "validation": validation}
    say(console, "drawing the figures")
    figures = study_figures(frames, settings.epsilon)
    examples = _examples(result, data)
    of_blocks = blocks_section(
        frames, folder / MODEL_FILE, images_text({"test": findings.count_images(frames)})
    )
    sections = [
        *([] if of_blocks is None else [of_blocks]),
        examples,
        *study_sections(frames, figures, images),
    ]
    write_frames_and_figures(
        folder,
        {name: frame for name, frame in frames.items() if name != "log"},
        figures | {"images": examples.figure},
        console=console,
    )
    record(folder / "frames", records)
    say(console, "measuring the error on the test images")
    error = 1 - result.network.evaluate(data.test, return_dict=True, verbose=0)[result.metric]
    say(console, "writing the report")
    return write(
        folder / "report.html",
        f"{result.network.name} on {data.description.title}",
        sections,
        summary=_summary(result, frames, data.description, error, seconds),
        settings=read_settings(folder) | {"settings": used(settings)},
        conclusions=[
            *([] if of_blocks is None else [(of_blocks.title, of_blocks.finding)]),
            *findings.in_short(frames),
        ],
    )


def _probe(folder, result, data, settings, console):
    """Returns the frames and what those of probes were measured on, two dicts by name."""
    chain = sources.chain(result.network)
    network = str(folder / MODEL_FILE)
    images = {"train": plain(data.train).take(batches_of(TRAIN_IMAGES, settings))}
    images["test"] = data.test
    options = ProbeOptions(
        at_chance="nan",
        epsilon=settings.epsilon,
        seed=settings.seed,
        first_block=settings.coupling_from,
    )

    @functools.cache
    def images_of(split, most):
        """Returns the images of a split, at most this many in whole batches, and their number."""
        part = images[split]
        if most is not None:
            part = part.take(batches_of(most, settings))
        return part, count_images(part)

    frames, records = {}, {}
    for name in possible(chain):
        for study in PROBES[name].studies:
            if not has(chain, study.needs):
                continue
            say(console, f"running {name}")
            parts, counts = {}, {}
            for split in study.splits:
                parts[split], counts[split] = images_of(split, study.images.get(split))
            changed = dataclasses.replace(options, **study.changes)
            measured = running.run(name, chain, parts, changed, console is not None)
            for key, frame in measured.items():
                key = study.renamed.get(key, key)
                frames[key] = frame
                # A frame without splits was measured on the weights alone.
                read = counts if "split" in frame else {}
                what = described(network, settings, read, "standardized", changed)
                records[key] = what
    if blocks_of(result.log):
        # The log of a training on another backend has no metrics of the blocks.
        frames["block_metrics_by_epoch"] = probes.from_logs(result.log)
        probed = data.validation.take(batches_of(IMAGES_PER_EPOCH, settings))
        read = {"validation": count_images(probed)}
        what = described(network, settings, read, "standardized", options)
        records["block_metrics_by_epoch"] = what
    return frames | {"log": result.log}, records


def _examples(result, data):
    """Returns a section with the first test images and the answers of the network."""
    pictures, labels = next(iter(data.test.take(1).as_numpy_iterator()))
    pictures, labels = pictures[:EXAMPLES], labels[:EXAMPLES]
    outputs = result.network.predict(pictures, verbose=0)
    # One answer per label of the image, the highest output first.
    counts = labels.sum(axis=1).astype(int) if labels.ndim == 2 else [1] * len(labels)
    answers = [np.argsort(-row)[:count] for row, count in zip(outputs, counts, strict=True)]
    truths = [np.flatnonzero(row) if labels.ndim == 2 else [row] for row in labels]
    are_right = [set(answer) == set(truth) for answer, truth in zip(answers, truths, strict=True)]
    captions = [
        _classes(answer) if is_right else f"{_classes(answer)}, is {_classes(truth)}"
        for answer, truth, is_right in zip(answers, truths, are_right, strict=True)
    ]
    figure = plots.images(pictures, captions, right=are_right)
    return Section(
        "Images",
        "The first test images, and the classes that the network predicts.",
        figure=figure,
        reading=f"{RIGHT} in blue: a correct answer; {WRONG} in orange, with a dashed frame: a "
        "wrong one, and what it is"
        + ("; all classes of an image must be named." if data.description.multi_label else "."),
        finding=f"{sum(are_right)} of these {len(are_right)} answers are correct.",
        images=images_text({"test": len(are_right)}),
    )


def _classes(answer):
    return " ".join(map(str, sorted(answer)))


def _gradient_tile(frames):
    """Returns the tile that counts the blocks whose mean cosine is significantly below zero."""
    below, undecided, above = findings.count_signs(frames["block_metrics"])
    return (
        "Blocks with a negative cosine with the loss gradient",
        f"{below} of {below + undecided + above}",
        f"mean cosine below zero by more than two standard errors on test images, not for every "
        f"image; {undecided} undecided; blocks that change the shape are not counted",
    )


def _summary(result, frames, description, error, seconds):
    network, log = result.network, result.log
    best = log.set_index("epoch").loc[result.best_epoch, f"val_{result.metric}"]
    chain = sources.chain(network)
    images = findings.count_images(frames)
    reach = STANDARD_ERRORS * findings.error_of_share(error, images)
    kind = "images with any digit wrong" if description.multi_label else "images misclassified"
    return [
        (
            "Error on test images",
            f"{error:.1%}",
            f"{kind}, \N{PLUS-MINUS SIGN} {100 * reach:.1f} points (two standard errors over "
            f"{images:,} images); chance {description.chance_error:.1%}",
        ),
        (
            "Best epoch",
            f"{result.best_epoch + 1} of {len(log)}",
            f"validation {result.metric} {best:.3f}",
        ),
        (
            "Network",
            f"{len(chain.blocks)} blocks",
            f"{network.count_params():,} parameters, stages: {len(chain.stages)}",
        ),
        *findings.index_tiles(frames),
        _gradient_tile(frames),
        ("Time", f"{seconds / 60:.1f} min", "data and training in this run of the command"),
    ]
