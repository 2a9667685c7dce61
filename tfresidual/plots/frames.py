"""Checks on the frames that come in, and the one shape in which the figures read them."""

import numpy as np
import pandas as pd

_SHOWN = 12
_SPLIT_ORDER = ("train", "validation", "test")


def require_columns(frame, columns, name="frame"):
    """Raise a `ValueError` unless `frame` is a DataFrame with rows and the named columns."""
    expected = ", ".join(f"`{column}`" for column in columns)
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(
            f"`{name}` must be a pandas.DataFrame with the columns {expected}. "
            f"Received: {name}={frame!r} (of type {type(frame).__name__})"
        )
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        present = [str(column) for column in frame.columns[:_SHOWN]]
        more = len(frame.columns) - len(present)
        raise ValueError(
            f"`{name}` must have the columns {expected}; missing: "
            f"{', '.join(f'`{column}`' for column in missing)}. "
            f"Received: columns={present}{f' and {more} more' if more else ''}"
        )
    if len(frame) == 0:
        raise ValueError(
            f"`{name}` must have at least one row with the columns {expected}. "
            f"Received: a frame of shape {frame.shape}"
        )


def numbers(frame, column, name="frame"):
    """Return a column as floats, infinities as NaN; raise `ValueError` where nothing is left."""
    try:
        values = pd.to_numeric(frame[column]).to_numpy(dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The column `{column}` of `{name}` must hold numbers. "
            f"Received: {frame[column].unique()[:_SHOWN].tolist()!r}"
        ) from error
    values = np.where(np.isfinite(values), values, np.nan)
    if np.isnan(values).all():
        raise ValueError(
            f"The column `{column}` of `{name}` must hold at least one finite number. "
            f"Received: {len(values)} rows, every one NaN or infinite"
        )
    return values


def splits_of(frame):
    """Return the split of every row as text, empty where the frame has no such column."""
    if "split" not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    return frame["split"].map(lambda split: "" if pd.isna(split) else str(split)).to_numpy(object)


def order_splits(splits):
    """Return the different splits: train, validation, test, then the others as they come."""
    found = list(dict.fromkeys(splits))
    known = [split for split in _SPLIT_ORDER if split in found]
    return known + [split for split in found if split not in known]


def block_values(frame, column):
    """Return the columns stage, block, split, epoch and value of a block metrics frame.

    Raises:
        ValueError: where a column is missing, a block number is no whole number, nothing is left
            to draw, or several rows stand for the same block, split and epoch.
    """
    require_columns(frame, ("stage", "block", column))
    keys = {}
    for key in ("stage", "block", "epoch"):
        key_values = numbers(frame, key) if key in frame.columns else np.zeros(len(frame))
        if (key_values != np.round(key_values)).any():
            raise ValueError(
                f"The column `{key}` of `frame` must hold whole numbers. "
                f"Received: {frame[key].unique()[:_SHOWN].tolist()!r}"
            )
        keys[key] = key_values.astype(int)
    values = pd.DataFrame({**keys, "split": splits_of(frame), "value": numbers(frame, column)})
    twice = values.duplicated(["stage", "block", "split", "epoch"])
    if twice.any():
        row = values[twice].iloc[0]
        raise ValueError(
            "`frame` must have one row per stage and block (and split and epoch); select or "
            "average the rows before drawing. Received: several rows for "
            f"stage={row['stage']}, block={row['block']}, split={row['split']!r}, "
            f"epoch={row['epoch']}"
        )
    return values.sort_values(["split", "epoch", "stage", "block"], ignore_index=True)
