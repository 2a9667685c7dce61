"""Tables in CSV files, read strictly: whatever is damaged is an error that names the row."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from tfresidual.machine.files import check_file, damaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from tfresidual.definitions.types import Frame, StrPath

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# What pandas, Keras and spreadsheets write for a number that does not exist.
_NOTHING = ("", "nan", "NaN", "NA")
# A range of numbers holds its ends in spite of rounding.
_ROUNDING = 1e-3
_LONGEST_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the cells of a column hold."""

    # In words.
    expected: str
    # From the text of a cell to its value; raises a `ValueError` for another.
    value: Callable[[str], Any]


def _number(text):
    if text in _NOTHING:
        return math.nan
    if _WHOLE.fullmatch(text):
        return int(text)
    if text in ("inf", "-inf"):
        return float(text)
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    if math.isinf(value):
        raise ValueError(text)
    return value


def _text(text):
    if not text.isprintable():
        raise ValueError(text)
    return text or None


NUMBER = Kind("a number or nothing", _number)
TEXT = Kind("a line of text", _text)


def whole(least: int, *names: str) -> Kind:
    """Returns the kind of whole numbers from `least` on, or one of a few names instead."""

    def value(text):
        if text in names:
            return text
        if not _WHOLE.fullmatch(text) or int(text) < least:
            raise ValueError(text)
        return int(text)

    return Kind(" or ".join([f"a whole number from {least} on", *map(repr, names)]), value)


def between(least: float, most: float) -> Kind:
    """Returns the kind of numbers in a range, or nothing."""

    def value(text):
        number = _number(text)
        if not math.isnan(number) and not least - _ROUNDING <= number <= most + _ROUNDING:
            raise ValueError(text)
        return number

    return Kind(f"a number from {least:g} to {most:g} or nothing", value)


def read_table(
    path: StrPath, kinds_of: Callable[[dict[str, list[str]]], dict[str, Kind]], remedy: str
) -> Frame:
    """Returns the table in a CSV file, with its rows in their order; damage is a `ValueError`.

    Numbers are read to their last digit. A row is named as in an editor: the header is row 1.
    `kinds_of` takes the texts of all columns by name, and returns their kinds.
    """
    header, rows = _rows_of(path, remedy)
    texts = {name: [row[place] for _, row in rows] for place, name in enumerate(header)}
    kinds = kinds_of(texts)
    return pd.DataFrame(
        {name: _column(path, name, texts[name], kinds[name], rows, remedy) for name in header}
    )


def _rows_of(path, remedy):
    """Returns the header of a file, and its rows as pairs of the row's number and its cells."""
    check_file(path)
    content = pathlib.Path(path).read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise damaged(path, f"row {row} is not text in UTF-8", remedy) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise damaged(path, f"row {reader.line_num} cannot be read, {error}", remedy) from error
    if not rows:
        raise damaged(path, "it is empty", remedy)
    (_, header), *rows = rows
    for name in header:
        if not name or not name.isprintable() or header.count(name) > 1:
            reason = f"row 1 must name each column once; it has {name[:_LONGEST_SHOWN]!r}"
            raise damaged(path, reason, remedy)
    if not header:
        raise damaged(path, "row 1 names no column", remedy)
    for number, row in rows:
        if len(row) != len(header):
            reason = f"row {number} has {len(row)} cells, and its header {len(header)}"
            raise damaged(path, reason, remedy)
    if not text.endswith("\n"):
        raise damaged(path, f"row {reader.line_num} is cut short, without an end", remedy)
    return header, rows


def _column(path, name, texts, kind, rows, remedy):
    values = []
    for text, (number, _) in zip(texts, rows, strict=True):
        try:
            values.append(kind.value(text))
        except ValueError as error:
            shown = text[:_LONGEST_SHOWN]
            reason = f"row {number} must have {kind.expected} in the column {name!r}, not {shown!r}"
            raise damaged(path, reason, remedy) from error
    return pd.Series(values, dtype=None if values or kind is TEXT else float)
