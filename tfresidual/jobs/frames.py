"""Writes the results of probes: frames, figures, and a record of what they were measured on."""

import dataclasses
import json
from importlib import metadata

import pandas as pd

from tfresidual.jobs.settings import describe
from tfresidual.machine.console import followed
from tfresidual.machine.files import read_json, read_table, replacing

# Records what each frame was measured on, by the name of the frame.
RECORD = "probes.json"
REMEDY = "Give the command that measured it again, which replaces it"
REMEDY_OF_RECORDS = "Put it back, or move it elsewhere and measure again what is in its folder"


def count_images(dataset):
    """Returns the number of images of a dataset of batches `(images, labels)`."""
    return sum(len(images) for images, _ in dataset)


def write_frames_and_figures(folder, frames, figures, flat=False, console=None):
    """Writes frames as CSV and figures as PNG, in subfolders unless `flat`; returns the paths.

    The folder must exist: one that was removed is not made anew. Files are replaced one by one.
    """
    paths = []
    for subfolder in () if flat else ("frames", "figures"):
        (folder / subfolder).mkdir(exist_ok=True)
    for name, frame in frames.items():
        paths.append(folder / ("" if flat else "frames") / f"{name}.csv")
        with replacing(paths[-1]) as path:
            frame.to_csv(path, index=False)
    for name, figure in followed(figures.items(), "writing the figures", console):
        paths.append(folder / ("" if flat else "figures") / f"{name}.png")
        with replacing(paths[-1]) as path:
            figure.savefig(path, dpi=160)
    return paths


def known_records(folder):
    """Returns the records of an earlier probe by frame."""
    path = folder / RECORD
    return read_json(path, REMEDY_OF_RECORDS) if path.exists() else {}


def read_frames(folder, names=None):
    """Returns the frames in a folder, or those named, as pairs with their records or `None`."""
    records = known_records(folder)
    return {
        path.stem: (read_frame(path), records.get(path.stem))
        for path in sorted(folder.glob("*.csv"))
        if names is None or path.stem in names
    }


def read_frame(path):
    """Returns a frame as it was before it was written."""
    frame = read_table(path, REMEDY)
    if "stage" in frame and not pd.api.types.is_numeric_dtype(frame["stage"]):
        # Stages are numbers, except those of a mean.
        stages = [int(stage) if stage.isdigit() else stage for stage in frame["stage"]]
        frame["stage"] = pd.Series(stages, dtype=object)
    return frame


def described(network, settings, counts, pixels, options):
    """Returns what frames were measured on, as recorded; `counts` are images by split."""
    return {
        "network": network,
        "tfresidual": metadata.version("tfresidual"),
        "data": settings.data,
        **({} if describe(settings).digits is None else {"digits": settings.digits}),
        "images": counts,
        "pixels": pixels,
        "options": dataclasses.asdict(options),
    }


def record(folder, records):
    """Writes what frames were measured on, by name; returns the file's path."""
    path = folder / RECORD
    with replacing(path) as beside:
        beside.write_text(json.dumps(records, indent=2) + "\n", "utf-8")
    return path
