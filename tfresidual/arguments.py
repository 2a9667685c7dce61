"""Checks of arguments, with one wording for all of the package."""

import math
from numbers import Integral, Real

import numpy as np


def check_int(name, value, at_least, at_most=None):
    """An argument as an int of Python.

    Args:
        name: str, the argument, as its user calls it.
        value: what was given for it; ints of NumPy count, booleans and floats do not.
        at_least: int, the smallest value allowed.
        at_most: int, the largest value allowed, or `None`.

    Raises:
        ValueError: if it is no int, or out of bounds.
    """
    is_int = isinstance(value, Integral) and not isinstance(value, (bool, np.bool_))
    if not is_int or value < at_least or (at_most is not None and value > at_most):
        bounds = f"{at_least} or more" if at_most is None else f"from {at_least} to {at_most}"
        raise ValueError(f"Argument `{name}` must be an int, {bounds}. Received: {name}={value!r}")
    return int(value)


def check_bool(name, value):
    """An argument as a bool of Python; raises a `ValueError` unless it is one, or NumPy's."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"Argument `{name}` must be a bool. Received: {name}={value!r}")
    return bool(value)


def is_number(value):
    """Whether something is a finite real number; booleans are none."""
    is_real = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    return is_real and math.isfinite(value)
