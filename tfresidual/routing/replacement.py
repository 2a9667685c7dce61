"""Other values of weights while a block is applied. TensorFlow only."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True, eq=False)
class Replacement:
    """Values that variables of a block have while it is applied. Equal to itself alone.

    Attributes:
        name: str, what the values are.
        variables: `keras.Variable`s, or the `tf.Variable`s of a SavedModel.
        values: a tensor for each of them, or a function that returns it from the one before.
    """

    name: str
    variables: Sequence[Any]
    values: Sequence[Any]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Assigns the values; those from before come back, whatever happens."""
        # Neither copies: a variable takes over the tensor that is assigned.
        before = [tf.convert_to_tensor(variable) for variable in self.variables]
        try:
            values = zip(self.values, before, strict=True)
            self._assign([value(own) if callable(value) else value for value, own in values])
            yield
        finally:
            self._assign(before)

    def _assign(self, values):
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)


def replaced(replacement: Replacement | None) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the values of a replacement are in place, if there is one."""
    return contextlib.nullcontext() if replacement is None else replacement.in_place()
