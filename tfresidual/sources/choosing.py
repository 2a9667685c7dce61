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


def chooser(name: str, chosen: Layers) -> Callable[[object], bool]:
    """Returns the function that says whether an operation is one of the chosen layers.

    Args:
        name: the name of the argument, for errors.
        chosen: a class of layers, the name of a layer, a function of a layer, or several of these
            in a list.

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
            f"layer, or several of these in a list. Received: {name}={chosen!r}"
        )

    def is_chosen(operation):
        return isinstance(operation, keras.layers.Layer) and any(
            _fits(operation, part) for part in parts
        )

    return is_chosen


def _fits(layer, part):
    if isinstance(part, str):
        return layer.name == part
    return isinstance(layer, part) if inspect.isclass(part) else bool(part(layer))
