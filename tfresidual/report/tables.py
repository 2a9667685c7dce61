"""Converts frames and settings to rows of text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tfresidual.machine.console import printable

DASH = "\N{EN DASH}"
MOST_ROWS = 1000


@dataclass(frozen=True)
class Table:
    """A frame of `total` rows as text: pairs (heading, whether numbers), and `MOST_ROWS` rows."""

    columns: list[tuple[str, bool]]
    rows: list[list[str]]
    total: int


def from_frame(frame):
    """Converts a frame to a `Table`; the named levels of its index become columns."""
    named = [name for name in frame.index.names if name is not None]
    if named:
        frame = frame.reset_index(level=named, allow_duplicates=True)
    columns, texts = [], []
    shown = frame.iloc[:MOST_ROWS]
    for place, name in enumerate(frame.columns):
        heading = " ".join(map(str, filter(None, name))) if isinstance(name, tuple) else str(name)
        values = shown.iloc[:, place].tolist()
        columns.append((heading, all(_is_number(value) or _is_nothing(value) for value in values)))
        texts.append(_column_texts(values))
    rows = [list(row) for row in zip(*texts, strict=True)]
    return Table(columns, rows, len(frame))


def from_settings(settings):
    """Converts settings, nested or not, to pairs of a path of names and a text."""
    pairs = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            pairs.extend(
                (f"{key} \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} {path}", text)
                for path, text in from_settings(value)
            )
        else:
            pairs.append((str(key), _setting_text(value)))
    return pairs


def number_text(value):
    """Returns a number as text with four significant digits; large and tiny ones stay readable.

    >>> number_text(0.0123456), number_text(1234567), number_text(0.5)
    ('0.01235', '1,234,567', '0.5000')
    """
    if isinstance(value, (int, np.integer)):
        text = f"{value:,}" if abs(value) >= 10_000 else str(value)
        return text.replace("-", "\N{MINUS SIGN}")
    if math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else "\N{MINUS SIGN}∞"
    size = abs(value)
    if value == 0:
        text = "0"
    elif size >= 1e7 or size < 1e-4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    elif size >= 1e4:
        text = f"{value:,.0f}"
    else:
        text = f"{value:#.4g}".rstrip(".")
    return text.replace("-", "\N{MINUS SIGN}")


def _column_texts(values):
    """Returns a column as texts; floats that are all whole, as counts with gaps, have no point."""

    def is_finite(value):
        return isinstance(value, float) and math.isfinite(value)

    whole = all(value == round(value) and abs(value) < 1e7 for value in filter(is_finite, values))
    return [
        number_text(int(value)) if whole and is_finite(value) else _cell_text(value)
        for value in values
    ]


def _cell_text(value):
    if _is_nothing(value):
        return DASH
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if _is_number(value):
        return number_text(value)
    return str(value)


def _setting_text(value):
    if isinstance(value, Mapping) or (isinstance(value, (list, tuple, set)) and not value):
        return "none"
    if isinstance(value, (list, tuple, set)):
        return ", ".join(map(_setting_text, value))
    if value is None:
        return "none"
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return f"{value:g}"
    return "yes" if value is True else "no" if value is False else printable(str(value))


def _is_number(value):
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_nothing(value):
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))
