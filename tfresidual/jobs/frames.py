"""Writes the results of probes: frames, figures, and a record of what they were measured on."""

import dataclasses
import json
import os
from importlib import metadata

from tfresidual import datasets
from tfresidual.jobs.settings import describe
from tfresidual.machine.console import followed
from tfresidual.machine.files import damaged, read_json, replacing
from tfresidual.machine.tables import read_table
from tfresidual.probes.columns import KEYS, REQUIRED, kind_of

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
    """Returns the records of an earlier probe by frame; a damaged file is a `ValueError`."""
    path = folder / RECORD
    records = read_json(path, REMEDY_OF_RECORDS) if os.path.lexists(path) else {}
    for name, what in records.items():
        known = what if isinstance(what, dict) else {}
        for key, is_right in _KEYS.items():
            if not is_right(known.get(key)) and (key in known or key not in _OPTIONAL):
                reason = f"{key!r} is not as expected in what it says of {name!r}"
                raise damaged(path, reason, REMEDY_OF_RECORDS)
    return records


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_dataset(name):
    try:
        return bool(datasets.describe(name))
    except (ValueError, TypeError):
        return False


# The keys of a record, and whether they hold what they should. Earlier versions wrote no size.
_KEYS = {
    "network": lambda path: isinstance(path, str),
    "data": _is_dataset,
    "digits": lambda digits: digits in (3, 4, 5),
    "images": lambda counts: isinstance(counts, dict) and all(map(_is_count, counts.values())),
    "pixels": lambda pixels: pixels in datasets.PIXELS,
    "options": lambda options: (
        isinstance(options, dict)
        and not any(isinstance(value, (dict, list)) for value in options.values())
    ),
    "rows": _is_count,
    "columns": lambda names: isinstance(names, list) and {str} >= set(map(type, names)),
}
_OPTIONAL = ("digits", "rows", "columns")


def read_frames(folder, names=None, blocks=()):
    """Returns the frames in a folder, or those named, as pairs with their records or `None`.

    `blocks` are pairs of a stage and a block, which frames without a record of rows must hold.
    """
    records = known_records(folder)
    return {
        path.stem: (read_frame(path, records.get(path.stem), blocks), records.get(path.stem))
        for path in sorted(folder.glob("*.csv"))
        if names is None or path.stem in names
    }


def read_frame(path, what=None, blocks=()):
    """Returns a frame as it was before it was written; damage is a `ValueError`.

    `what` is its record, if there is one, and `blocks` as for `read_frames`.
    """
    frame = read_table(path, lambda texts: {name: kind_of(name) for name in texts}, REMEDY)
    for column in REQUIRED.get(path.stem, ()):
        if column not in frame:
            raise damaged(path, f"row 1 does not name the column {column!r}", REMEDY)
    keys = [key for key in KEYS if key in frame]
    twice = frame.duplicated(keys if keys else None)
    if twice.any():
        row, same = twice.argmax() + 2, ", ".join(keys) or "numbers"
        raise damaged(path, f"row {row} has the same {same} as an earlier row", REMEDY)
    for key in ("split", "stage", "block", "epoch"):
        if key in frame and frame[key].isna().any():
            row = frame[key].isna().argmax() + 2
            raise damaged(path, f"row {row} has no {key}", REMEDY)
    if "epoch" in frame and not frame["epoch"].is_monotonic_increasing:
        row = (frame["epoch"].diff() < 0).argmax() + 2
        raise damaged(path, f"row {row} is of an earlier epoch than row {row - 1}", REMEDY)
    what = what or {}
    splits = list(dict.fromkeys(frame["split"])) if "split" in frame else []
    if splits and sorted(splits) != sorted(what.get("images", splits)):
        reason = f"up to row {len(frame) + 1}, it has other splits than {RECORD} says: {splits}"
    elif what.get("columns", list(frame)) != list(frame):
        reason = f"its columns are not the {len(what['columns'])} that {RECORD} names for it"
    elif what.get("rows", len(frame)) != len(frame):
        reason = f"it ends after row {len(frame) + 1}; {RECORD} says row {what['rows'] + 1}"
    elif "rows" not in what and (place := _missing(frame, blocks)) is not None:
        reason = f"it ends after row {len(frame) + 1}, and has no {place}, or more of others"
    else:
        return frame
    raise damaged(path, reason, REMEDY)


def _missing(frame, blocks):
    """Returns what a frame without a record lacks, judging by its rows and the network's blocks.

    Every block is there as often as the others, in every split and epoch, unless rows have kinds.
    """
    if {"part", "role", "lipschitz"} & set(frame):
        return None
    if frame.empty:
        return "row"
    places = [key for key in ("along", "basis", "stage", "block") if key in frame]
    within = [key for key in ("split", "epoch") if key in frame]
    if "stage" not in places:
        return None
    counts = frame.groupby([*within, *places], sort=False).size()
    if within:
        counts = counts.unstack(within, fill_value=0)
        place = (counts.ne(counts.max(axis=1), axis=0)).any(axis=1)
        if place.any():
            return _place_text(places, place.idxmax())
        counts = counts.iloc[:, 0]
    for _, group in counts.groupby("along") if "along" in places else [(None, counts)]:
        if group.nunique() > 1:
            return _place_text(places, group.idxmin())
    if "block" in places and "along" not in places:
        found = set(zip(frame["stage"], frame["block"], strict=True))
        for stage, block in blocks:
            if (stage, block) not in found:
                return _place_text(("stage", "block"), (stage, block))
    return None


def _place_text(keys, place):
    values = place if isinstance(place, tuple) else (place,)
    return ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))


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


def size_of(frame):
    """Returns the rows and columns of a frame, as its record holds them beside `described`."""
    return {"rows": len(frame), "columns": list(frame)}


def record(folder, records):
    """Writes what frames were measured on, and their sizes, by name; returns the file's path."""
    path = folder / RECORD
    with replacing(path) as beside:
        beside.write_text(json.dumps(records, indent=2) + "\n", "utf-8")
    return path
