"""What is known of layers and operations of `keras.ops` by their class, and which are chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras

from tfresidual.definitions.arguments import ArgumentError

# A class of layers, the name of a layer, a function of a layer, or several of these.
Layers: TypeAlias = (
    "type[keras.layers.Layer] | str | Callable[[keras.layers.Layer], bool] | Sequence[Any]"
)

# The packages whose layers are known.
KNOWN_PACKAGES = ("keras", "tfresidual")


def package_of(kind):
    """Returns the name of the package that a class is from."""
    return kind.__module__.partition(".")[0]


def is_of_keras(operation, *names):
    """Returns whether an operation is one of Keras with one of these names."""
    kind = type(operation)
    return kind.__name__ in names and kind.__module__.startswith("keras.")


def is_unchanged(layer, kind, *methods):
    """Returns whether a layer is of a class and computes what that does, not of its own."""
    return (
        isinstance(layer, kind)
        and all(getattr(type(layer), name) is getattr(kind, name) for name in methods)
        and "call" not in vars(layer)
    )


def unwrapped(operation):
    """Returns an operation without the layers that are wrapped around it."""
    while isinstance(operation, keras.layers.Wrapper):
        operation = operation.layer
    return operation


def may_hide(layer):
    """Returns whether something is a layer written by others, which may contain additions.

    Those that Keras wrote for its applications count as such.
    """
    if isinstance(layer, (keras.layers.Lambda, keras.layers.Wrapper)):
        return False
    is_layer, kind = isinstance(layer, keras.layers.Layer), type(layer)
    is_of_applications = ".applications." in kind.__module__
    return is_layer and (is_of_applications or package_of(kind) not in KNOWN_PACKAGES)


class Chooser:
    """Says whether an operation is a chosen layer; `unused` are names that none had so far."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.unused = [part for part in parts if isinstance(part, str)]

    def __call__(self, operation: object) -> bool:
        if not isinstance(operation, keras.layers.Layer):
            return False
        self.unused = [name for name in self.unused if name != operation.name]
        return any(_fits(operation, part) for part in self.parts)


def chooser(name: str, chosen: Layers, otherwise: str = "") -> Chooser:
    """Returns the `Chooser` for an argument; `otherwise` says in errors what else it may be."""
    parts = list(chosen) if isinstance(chosen, (list, tuple, set)) else [chosen]
    is_usable = [
        isinstance(part, str)
        or (issubclass(part, keras.layers.Layer) if inspect.isclass(part) else callable(part))
        for part in parts
    ]
    if not parts or not all(is_usable):
        raise ArgumentError(
            name,
            "be a class of layers, the name of a layer, a function of a layer, or several of these "
            f"in a list{otherwise}",
            chosen,
        )
    return Chooser(parts)


def _fits(layer, part):
    if isinstance(part, str):
        return layer.name == part
    return isinstance(layer, part) if inspect.isclass(part) else bool(part(layer))
