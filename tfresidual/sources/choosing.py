"""Chooses layers of a model by class, by name, or by a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras

# A class of layers, the name of a layer, a function of a layer, or several of these.
Layers: TypeAlias = (
    "type[keras.layers.Layer] | str | Callable[[keras.layers.Layer], bool] | Sequence[Any]"
)


class Chooser:
    """Says whether an operation is one of the chosen layers.

    Attributes:
        parts: list of classes, names and functions that choose layers.
        unused: those names among them that no layer had so far, as a list.
    """

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.unused = [part for part in parts if isinstance(part, str)]

    def __call__(self, operation: object) -> bool:
        if not isinstance(operation, keras.layers.Layer):
            return False
        self.unused = [name for name in self.unused if name != operation.name]
        return any(_fits(operation, part) for part in self.parts)


def chooser(name: str, chosen: Layers, otherwise: str = "") -> Chooser:
    """Returns the function that says whether an operation is one of the chosen layers.

    Args:
        name: the name of the argument, for errors.
        chosen: a class of layers, the name of a layer, a function of a layer, or several of these
            in a list.
        otherwise: what else the argument may be, for errors.

    Raises:
        ValueError: if `chosen` is something else.
    """
    parts = list(chosen) if isinstance(chosen, (list, tuple, set)) else [chosen]
    is_usable = [
        isinstance(part, str)
        or (issubclass(part, keras.layers.Layer) if inspect.isclass(part) else callable(part))
        for part in parts
    ]
    if not parts or not all(is_usable):
        raise ValueError(
            f"Argument `{name}` must be a class of layers, the name of a layer, a function of a "
            f"layer, or several of these in a list{otherwise}. Received: {name}={chosen!r}"
        )
    return Chooser(parts)


def _fits(layer, part):
    if isinstance(part, str):
        return layer.name == part
    return isinstance(layer, part) if inspect.isclass(part) else bool(part(layer))
