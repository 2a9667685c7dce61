"""What tells two functions apart that are compiled and kept under one name."""

from __future__ import annotations

import functools
import types
from typing import Any


def told_by(function: Any, known: Any = None) -> tuple[Any, ...]:
    """Returns what a function does, as far as it can be compared: code and what that reads.

    Two functions of the same code, arguments, defaults and closures, and of the same globals of
    their module, are told to be the same. Of objects, only which ones they are is compared.

    Args:
        function: a function, method, `functools.partial` or other callable.
        known: an object that is the same for all functions that are compared.

    Returns:
        A tuple that can be the key of a dict.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return _told(function, getattr(inner, "__module__", None), {id(known)})


def _told(value, module, seen):
    if id(value) in seen:
        return ()
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *sorted(value.keywords.items())]
        return _of_all(parts, module, seen)
    if isinstance(value, dict):
        return (dict, *_of_all([part for pair in value.items() for part in pair], module, seen))
    if isinstance(value, (tuple, list)):
        return (type(value), *_of_all(value, module, seen))
    if isinstance(value, types.MethodType):
        return _of_all((value.__func__, value.__self__), module, seen)
    # Functions of other modules are taken to stay as they are.
    if isinstance(value, types.FunctionType) and value.__module__ == module:
        cells = [_content(cell) for cell in value.__closure__ or ()]
        read = sorted(_names(value.__code__) & value.__globals__.keys())
        globals_ = [value.__globals__[name] for name in read]
        of_it = [*cells, value.__defaults__, *(value.__kwdefaults__ or {}).items(), *globals_]
        return (value.__code__, *_of_all(of_it, module, seen | {id(value)}))
    try:
        hash(value)
    except TypeError:
        return (_Itself(value),)
    return (type(value), value)


def _of_all(values, module, seen):
    return tuple(_told(value, module, seen) for value in values)


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code):
    """Returns the names that code reads, with those of functions inside of it."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


class _Itself:
    """An object that cannot be hashed, as a key that is only equal to that of the same object."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return id(self.value)

    def __eq__(self, other):
        return isinstance(other, _Itself) and self.value is other.value
