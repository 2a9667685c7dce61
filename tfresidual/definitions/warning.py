"""Warnings that point to the line of the user."""

from __future__ import annotations

import sys
import warnings

# The packages between a line of the user and a warning.
BETWEEN = ("tfresidual", "keras", "tensorflow", "keras_tuner", "contextlib", "functools")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line outside of this package, of Keras and of TensorFlow that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame) in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame):
    return str(frame.f_globals.get("__name__")).partition(".")[0]
