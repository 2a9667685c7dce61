"""Checks the frames given to the figures, and brings them into a common form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    Thing = TypeVar("Thing")

_MOST_SHOWN = 12
_SPLIT_ORDER = ("train", "training", "validation", "test")


def require_columns(frame, columns, name="frame"):
    """Raises a `ValueError` unless `frame` is a DataFrame with rows and the named columns."""
    expected = ", ".join(f"`{column}`" for column in columns)
    if not isinstance(frame, pd.DataFrame):
        raise ArgumentError(
            name,
            f"be a pandas.DataFrame with the columns {expected}",
            said=f"{name}={frame!r} (of type {type(frame).__name__})",
        )
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        present = [str(column) for column in frame.columns[:_MOST_SHOWN]]
        more = len(frame.columns) - len(present)
        raise ArgumentError(
            name,
            f"have the columns {expected}; missing: "
            f"{', '.join(f'`{column}`' for column in missing)}",
            said=f"columns={present}{f' and {more} more' if more else ''}",
        )
    if len(frame) == 0:
        raise ArgumentError(
            name,
            f"have at least one row with the columns {expected}",
            said=f"a frame of shape {frame.shape}",
        )


def listed(values: Iterable[Thing], name: str, what: str) -> tuple[Thing, ...]:
    """Returns a list argument as a tuple."""
    if isinstance(values, (str, bytes)) or not np.iterable(values):
        raise ArgumentError(name, f"be a list of {what}", values)
    return tuple(values)


def numbers_or_gaps(frame, column, name="frame"):
    """Returns a column of numbers as floats, infinities as NaN."""
    try:
        values = pd.to_numeric(frame[column]).to_numpy(dtype=float)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            name,
            f"hold numbers in the column `{column}`",
            said=f"{frame[column].unique()[:_MOST_SHOWN].tolist()!r}",
        ) from error
    return np.where(np.isfinite(values), values, np.nan)


class NothingError(ArgumentError):
    """A table holds no number to draw, as the indices of networks no better than chance."""


def numbers(frame, column, name="frame"):
    """Returns the same; raises a `NothingError` if all are NaN."""
    values = numbers_or_gaps(frame, column, name)
    refuse_nothing(pd.DataFrame({column: values}), (column,), name)
    return values


def whole_numbers(frame, column, name="frame"):
    """Returns a column of whole numbers as integers."""
    values = numbers(frame, column, name)
    if (values != np.round(values)).any():
        raise ArgumentError(
            name,
            f"hold whole numbers in the column `{column}`",
            said=f"{frame[column].unique()[:_MOST_SHOWN].tolist()!r}",
        )
    return values.astype(int)


def stage_name(stage):
    """Returns a stage as text; whole numbers have no decimal point, even if read from a CSV."""
    try:
        return f"{float(stage):g}"
    except (TypeError, ValueError):
        return str(stage)


def splits_of(frame):
    """Returns the split of every row as text, empty if the frame has no such column."""
    if "split" not in frame.columns:
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


def require_same_splits(tables):
    """Raises a `ValueError` unless all tables, a dictionary by name, have the same splits."""
    splits = {name: order_splits(table["split"]) for name, table in tables.items()}
    if len({frozenset(found) for found in splits.values()}) > 1:
        raise ArgumentError(
            tuple(splits),
            "have the same splits; select those that all of them have",
            said=", ".join(f"{name} with {found!r}" for name, found in splits.items()),
        )


def refuse_nothing(table, columns, name="frame"):
    """Raises a `NothingError` if none of the columns of a table holds a number."""
    if table[list(columns)].isna().all(axis=None):
        named = ", ".join(f"`{column}`" for column in columns)
        raise NothingError(
            name,
            f"hold at least one finite number in the column{'s' * (len(columns) > 1)} {named}",
            said=f"{len(table)} rows, every one NaN or infinite",
        )


def refuse_others(table, column, allowed, name="frame"):
    """Raises a `ValueError` if a column of a table holds anything but the allowed texts."""
    unknown = table.loc[~table[column].isin(list(allowed)), column].unique().tolist()
    if unknown:
        *first, last = map(repr, allowed)
        raise ArgumentError(
            name,
            f"hold {', '.join(first)} or {last} in the column `{column}`",
            said=repr(unknown),
        )


def refuse_twice(table, keys, name="frame", also=("split",)):
    """Raises a `ValueError` if several rows of a table have the same keys."""
    twice = table.duplicated([*keys, *also])
    if twice.any():
        row = table[twice].iloc[0]
        others = f" (and {' and '.join(also)})" if also else ""
        shown = [(key, row[key]) for key in (*keys, *also)]
        raise ArgumentError(
            name,
            f"have one row per {' and '.join(keys)}{others}; select or average the rows before "
            "drawing",
            said="several rows for "
            + ", ".join(f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in shown),
        )


def keyed_values(
    frame, keys, columns, name="frame", optional_keys=(), carried=(), texts=(), unique=True
):
    """Returns the keys, the split and the values of a frame, sorted by split and keys.

    Args:
        frame: The frame.
        keys: Columns of whole numbers that distinguish the rows of a split.
        columns: Columns of values; infinities become NaN.
        name: Name of the argument.
        optional_keys: Further keys, 0 if the frame has no such column.
        carried: Columns that are kept as they are, if the frame has them.
        texts: Further keys, which become text.
        unique: Whether rows of the same keys are refused.

    Raises:
        ValueError: if a column is missing, a key is not a whole number, no value is a finite
            number, or several rows have the same keys.
    """
    require_columns(frame, (*texts, *keys, *columns), name)
    table = {"split": splits_of(frame)}
    table |= {text: frame[text].map(stage_name).to_numpy(object) for text in texts}
    for key in (*keys, *optional_keys):
        missing = key not in frame.columns
        table[key] = np.zeros(len(frame), int) if missing else whole_numbers(frame, key, name)
    table |= {column: numbers_or_gaps(frame, column, name) for column in columns}
    table |= {column: frame[column].to_numpy() for column in carried if column in frame.columns}
    table = pd.DataFrame(table)
    refuse_nothing(table, columns, name)
    keys = (*texts, *keys)
    if unique:
        refuse_twice(table, keys, name, also=("split", *optional_keys))
    order = {split: place for place, split in enumerate(order_splits(table["split"]))}
    return table.sort_values(
        ["split", *optional_keys, *keys],
        key=lambda column: column.map(order) if column.name == "split" else column,
        ignore_index=True,
    )
