"""Brings the frames that figures take into a common form."""

import numpy as np
import pandas as pd

_SPLIT_ORDER = ("train", "training", "validation", "test")


def finite(values):
    """Returns numbers as floats, infinities as NaN."""
    values = np.asarray(pd.to_numeric(values), dtype=float)
    return np.where(np.isfinite(values), values, np.nan)


def stage_name(stage):
    """Returns a stage as text; whole numbers have no decimal point, even if read from a CSV."""
    try:
        return f"{float(stage):g}"
    except (TypeError, ValueError):
        return str(stage)


def splits_of(frame):
    """Returns the split of every row as text, empty if the frame has no such column."""
    if "split" not in frame:
        return np.full(len(frame), "", dtype=object)
    return frame["split"].map(lambda split: "" if pd.isna(split) else str(split)).to_numpy(object)


def order_splits(splits):
    """Returns the distinct splits: train, validation, test, then the others in their order."""
    found = list(dict.fromkeys(splits))
    known = [split for split in _SPLIT_ORDER if split in found]
    return known + [split for split in found if split not in known]


def branch_scale(frame):
    """Returns what a title says of the scale of repeated blocks, empty if there is none."""
    scales = set(frame["scale"]) if "scale" in frame else {1}
    return f", branch scaled by {scales.pop():g}" if len(scales) == 1 and scales != {1} else ""


def keyed_values(frame, keys, columns, optional_keys=(), carried=(), texts=()):
    """Returns the keys, the split and the values of a frame, sorted by split and keys.

    Args:
        frame: The frame.
        keys: Columns of whole numbers that distinguish the rows of a split.
        columns: Columns of values; infinities become NaN.
        optional_keys: Further keys, 0 if the frame has no such column.
        carried: Columns that are kept as they are, if the frame has them.
        texts: Further keys, which become text.

    Raises:
        KeyError: if a column is missing.
    """
    table = {"split": splits_of(frame)}
    table |= {text: frame[text].map(stage_name).to_numpy(object) for text in texts}
    table |= {key: frame[key].to_numpy(int) for key in keys}
    for key in optional_keys:
        table[key] = frame[key].to_numpy(int) if key in frame else np.zeros(len(frame), int)
    table |= {column: finite(frame[column]) for column in columns}
    table |= {column: frame[column].to_numpy() for column in carried if column in frame}
    table = pd.DataFrame(table)
    order = {split: place for place, split in enumerate(order_splits(table["split"]))}
    return table.sort_values(
        ["split", *optional_keys, *texts, *keys],
        key=lambda column: column.map(order) if column.name == "split" else column,
        ignore_index=True,
    )
