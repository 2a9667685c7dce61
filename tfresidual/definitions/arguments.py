"""Checks of arguments, with the same wording of errors in the whole package.

A check stands where a wrong argument would give a wrong number or lose a file. Where Python, Keras,
NumPy or pandas raise an error, theirs is enough.
"""

from __future__ import annotations

import math
import os
import pathlib
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

# What was received is shown whole up to so many characters.
LONGEST = 1000
_NOTHING = object()


class ArgumentError(ValueError):
    """An argument that cannot be used.

    Example:

    >>> raise ArgumentError("size", "be odd", 2)
    Traceback (most recent call last):
    tfresidual.definitions.arguments.ArgumentError: Argument `size` must be odd. Received: size=2

    Args:
        names: the name of the argument, or a tuple of the names of arguments that do not fit
            together. Keras makes a new error of a text alone.
        must: what it must be, in the words that follow "must".
        value: what was received.
        received: a description of what was received, instead of the value.
        values: what was received by name, instead of one value.

    Attributes:
        names: tuple of the names.
        must: see above.
        received: what was received, as text.
    """

    # In functions that TensorFlow traces, an error of this class stays one.
    ag_pass_through = True

    def __init__(
        self,
        names: str | tuple[str, ...],
        must: str | None = None,
        value: Any = _NOTHING,
        /,
        received: str | None = None,
        **values: Any,
    ) -> None:
        if must is None:
            super().__init__(names)
            self.names: tuple[str, ...] = ()
            return
        self.names = (names,) if isinstance(names, str) else names
        self.must = must
        if value is not _NOTHING:
            values = {self.names[0]: value}
        shown = (f"{name}={_shortened(repr(one))}" for name, one in values.items())
        self.received = _shortened(received) if received else ", ".join(shown)
        *first, last = (f"`{name}`" for name in self.names)
        named = f"Arguments {', '.join(first)} and {last}" if first else f"Argument {last}"
        super().__init__(f"{named} must {must.removesuffix('.')}. Received: {self.received}")


def _shortened(text):
    """Returns a text without the middle if it is long, such as that of an array."""
    if len(text) <= LONGEST:
        return text
    text = " ".join(text.split())
    return f"{text[: LONGEST // 2]} ... {text[-LONGEST // 4 :]}"


def check_int(
    name: str, value: Any, at_least: int, at_most: int | None = None, or_none: bool = False
) -> Any:
    """Returns an argument as a Python int, or `None` with `or_none`; booleans are no ints.

    Raises:
        ValueError: if the value is not an int, or out of bounds.
    """
    if or_none and value is None:
        return None
    if not is_int(value) or value < at_least or (at_most is not None and value > at_most):
        bounds = f"{at_least} or more" if at_most is None else f"from {at_least} to {at_most}"
        raise ArgumentError(name, f"be an int, {bounds}{', or None' if or_none else ''}", value)
    return int(value)


def check_ints(name: str, values: Any, at_least: int) -> tuple[int, ...]:
    """Returns an argument that holds at least one int as a tuple of Python ints.

    Raises:
        ValueError: if it holds no ints, anything but ints, or an int that is out of bounds.
    """
    is_listed = np.iterable(values) and not isinstance(values, (str, bytes, dict))
    checked = tuple(values) if is_listed else ()
    if not checked or not all(is_int(value) and value >= at_least for value in checked):
        raise ArgumentError(name, f"hold ints, {at_least} or more", values)
    return tuple(map(int, checked))


def check_number(
    name: str,
    value: Any,
    over: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    or_none: bool = False,
) -> Any:
    """Returns an argument as a Python float, or `None` with `or_none`; booleans are no numbers.

    Raises:
        ValueError: if the value is not a finite number, or out of bounds.
    """
    if or_none and value is None:
        return None
    # Compare in double precision: a bound may not fit into a NumPy number of lower precision.
    number = float(value) if is_number(value) else math.nan
    fits = (
        math.isfinite(number)
        and (over is None or number > over)
        and (at_least is None or number >= at_least)
        and (below is None or number < below)
        and (at_most is None or number <= at_most)
    )
    if not fits:
        bounds = {"over": over, "of at least": at_least, "under": below, "at most": at_most}
        words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        what = f"a finite number {' and '.join(words)}".rstrip() + (", or None" if or_none else "")
        raise ArgumentError(name, f"be {what}", value)
    return number


def check_bool(name: str, value: Any) -> bool:
    """Returns an argument as a Python bool; raises a `ValueError` unless it is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentError(name, "be a bool", value)
    return bool(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raises a `ValueError` unless an argument is one of the given strings."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(name, f"be one of {', '.join(map(repr, choices))}", value)


def checked_places(
    name: str, places: Iterable[tuple[int, int]] | None, known: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Returns pairs (stage, block), all that are known for `None`, in the order of the known."""
    given = known if places is None else places
    wanted = [tuple(one) if isinstance(one, (tuple, list)) else one for one in given]
    if not wanted or not set(wanted) <= set(known):
        raise ArgumentError(name, f"hold pairs (stage, block), of {known or 'none here'}", places)
    return [place for place in known if place in wanted]


def is_int(value: Any) -> bool:
    """Returns whether a value is an int of Python or NumPy; booleans do not count."""
    return isinstance(value, Integral) and not isinstance(value, (bool, np.bool_))


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite real number, and not a boolean."""
    is_real = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    return is_real and math.isfinite(value)


def checked_path(name: str, value: str | os.PathLike[str]) -> pathlib.Path:
    """Returns an argument as a `pathlib.Path`; raises a `ValueError` if it cannot be one."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise ArgumentError(
            name, "be a path: a non-empty str without null characters, or a `pathlib.Path`", value
        )
    return pathlib.Path(text)
