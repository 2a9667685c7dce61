"""Writes the results of probes: frames, figures, and a record of what they were measured on."""

import dataclasses
import json
from importlib import metadata

import pandas as pd

from tfresidual.jobs.settings import describe
from tfresidual.machine.console import followed
from tfresidual.machine.files import damaged, read_json, written

# Records what each frame was measured on, by the name of the frame.
RECORD = "probes.json"


def count_images(dataset):
    """Returns the number of images of a dataset of batches `(images, labels)`."""
    return sum(len(images) for images, _ in dataset)


def write_frames_and_figures(folder, frames, figures, flat=False, console=None):
    """Writes frames as CSV and figures as PNG; existing files are replaced one by one.

    Args:
        folder: where to write; created if it does not exist.
        frames: `pandas.DataFrame`s by name.
        figures: `matplotlib.figure.Figure`s by name.
        flat: whether all files go into the folder itself instead of its subfolders `frames` and
            `figures`.
        console: a `rich.console.Console` for a progress bar, or `None` for no output.

    Returns:
        The list of the `pathlib.Path`s written.
    """
    paths = []
    for name, frame in frames.items():
        paths.append(folder / ("" if flat else "frames") / f"{name}.csv")
        with written(paths[-1]) as path:
            frame.to_csv(path, index=False)
    for name, figure in followed(figures.items(), "writing the figures", console):
        paths.append(folder / ("" if flat else "figures") / f"{name}.png")
        with written(paths[-1]) as path:
            figure.savefig(path, dpi=160)
    return paths


def known_records(folder):
    """Returns the records of an earlier probe, a dict by frame name; empty if there are none."""
    path = folder / RECORD
    return read_json(path, "Remove it to probe again") if path.exists() else {}


def read_frames(folder):
    """Returns the frames in a folder with what they were measured on, pairs by name.

    A frame of which that is not recorded, as in earlier versions, has `None` for it.

    Raises:
        ValueError: if a file is damaged.
    """
    records = known_records(folder)
    return {
        path.stem: (read_frame(path), records.get(path.stem))
        for path in sorted(folder.glob("*.csv"))
    }


def read_frame(path):
    """Returns a frame as it was before it was written; raises a `ValueError` if it is damaged."""
    try:
        frame = pd.read_csv(path)
    except ValueError as error:
        raise damaged(path, error, "Remove it to measure again") from error
    if "stage" in frame and not pd.api.types.is_numeric_dtype(frame["stage"]):
        # Beside rows of all stages together, numbers are read as text.
        stages = [int(stage) if stage.isdigit() else stage for stage in frame["stage"]]
        frame["stage"] = pd.Series(stages, frame.index, dtype=object)
    return frame


def described(network, settings, counts, pixels, options):
    """Returns what frames were measured on, as it is recorded.

    Args:
        network: str, the path of the network.
        settings: the `Settings` of the data.
        counts: dict of the numbers of images by split; empty if none were read.
        pixels: format of the pixels.
        options: the `ProbeOptions`.
    """
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
    """Writes what frames were measured on, a dict by name of what `described` returns.

    Returns:
        The path of the file.
    """
    path = folder / RECORD
    with written(path) as beside:
        beside.write_text(json.dumps(records, indent=2) + "\n", "utf-8")
    return path
