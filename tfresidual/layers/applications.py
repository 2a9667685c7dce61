"""Which application a call of a layer is: how often it was called before in a forward pass."""

from __future__ import annotations

import contextvars
import sys
from typing import TYPE_CHECKING, Any

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine import tracing

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Self

    import keras

    from tfresidual.definitions.types import Tensor

_COUNTS: contextvars.ContextVar[Counts | None] = contextvars.ContextVar("counts", default=None)


class Counts:
    """How often layers were called so far. A context manager, which can be entered again.

    Args:
        first: the number that the first call of a layer has.
        is_repeated: whether a `Repeated` counts; another one inside continues its counts.
        called: from a layer to the number of its next call; `None` if its calls say which
            application they are.
    """

    def __init__(
        self,
        first: int = 0,
        is_repeated: bool = False,
        called: dict[keras.layers.Layer, int | None] | None = None,
    ) -> None:
        self.first, self.is_repeated = first, is_repeated
        self.called = dict(called or {})
        # Where it was entered, from the outside to the inside.
        self._entered: list[tuple[FrameType, Any, contextvars.Token[Counts | None]]] = []

    def __enter__(self) -> Self:
        self._entered.append((sys._getframe(1), tracing.place(), _COUNTS.set(self)))
        return self

    def __exit__(self, *error: object) -> None:
        *_, token = self._entered.pop()
        _COUNTS.reset(token)

    def copy(self) -> Counts:
        """Returns the same counts, on which later calls have no influence."""
        return Counts(self.first, self.is_repeated, self.called)

    def next(self, layer: keras.layers.Layer) -> int:
        """Counts a call of a layer, and returns its number, from 0 on."""
        number = self.called.get(layer, self.first)
        if number is None:
            raise _mixed(layer)
        self.called[layer] = number + 1
        return number

    def numbered(self, layer: keras.layers.Layer) -> None:
        """Notes that a call of a layer says which application it is."""
        if self.called.setdefault(layer, None) is not None:
            raise _mixed(layer)

    def traced(self) -> str | None:
        """Returns what is traced since the context was entered, in words, or `None`."""
        frame, place, _ = self._entered[-1]
        loop = tracing.loop_since(frame)
        if loop is not None:
            return f"`{loop}`"
        return None if tracing.place() == place else "a compiled function"


def forward_pass() -> AbstractContextManager[Counts]:
    """Counts the applications of `UnsharedBatchNormalization` layers in a block of code, from 0.

    For the `call` of a layer or model of your own that applies a shared block in a loop of Python.
    `tfresidual.layers.Repeated` does it by itself.

    Example:

    >>> from tfresidual.layers import UnsharedBatchNormalization
    >>> class Network(keras.Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         normalization = UnsharedBatchNormalization(applications=3)
    ...         self.branch = keras.Sequential([keras.layers.Dense(4), normalization])
    ...
    ...     def call(self, state, training=None):
    ...         with forward_pass():
    ...             for _ in range(3):
    ...                 state = state + self.branch(state)
    ...         return state
    >>> Network()(keras.ops.ones((2, 4))).shape
    TensorShape([2, 4])

    Returns:
        A context manager. One inside another counts from 0 again. In a loop or function inside it
        that is traced once, such as `keras.ops.while_loop`, a call that is counted is an error.
    """
    return Counts()


def counts_in_use() -> Counts | None:
    """Returns the counts of the innermost context, or `None` outside of one."""
    return _COUNTS.get()


def number_of_call(layer: keras.layers.Layer, inputs: Tensor) -> tuple[int, Tensor]:
    """Counts a call of a layer, and returns which application it is, and its inputs.

    The function that a SavedModel has for a part of the model raises an error when it is run.

    Raises:
        ValueError: if it cannot be known.
    """
    if tracing.gives_shapes_alone():
        return 0, inputs
    counts = _COUNTS.get()
    if counts is None:
        error = unknown_application(layer, "where nothing counts")
        if tracing.is_signature_of_part():
            return 0, tracing.refused(inputs, str(error))
        raise error
    traced = counts.traced()
    if traced is not None:
        raise unknown_application(layer, f"inside {traced}, which is traced once")
    return counts.next(layer), inputs


def note_numbered(layer: keras.layers.Layer) -> None:
    """Notes that a call of a layer says which application it is.

    Raises:
        ValueError: if other calls in the same forward pass are not.
    """
    counts = _COUNTS.get()
    if counts is not None and not tracing.gives_shapes_alone():
        counts.numbered(layer)


def unknown_application(layer: keras.layers.Layer, where: str) -> ValueError:
    """Returns the error for a call of which it is not known which application it is."""
    return ArgumentError(
        "application",
        "be given unless the calls of a layer are counted: in `tfresidual.layers.Repeated`, or "
        "in the code of a `with tfresidual.layers.forward_pass():`",
        received=f"application=None for {layer.name}, {where}",
    )


def _mixed(layer):
    return ArgumentError(
        "application",
        "be given in all calls of a layer in one forward pass, or in none",
        received=f"calls of {layer.name} with and without it",
    )
