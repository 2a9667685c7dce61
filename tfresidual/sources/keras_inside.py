"""Replaces methods inside Keras for as long as symbolic calls are recorded.

Tried with Keras 3.14 and 3.15. Another version is accepted if a symbolic call in it
reaches the recorder and leaves no node on the layer, which is tried once per process.
"""

import contextlib
import functools
import threading
import warnings

import keras
from keras import ops

TRIED = ("3.14", "3.15")
# The operators of weights, which do not know symbolic tensors.
_OPERATORS = {
    "add": ops.add,
    "sub": ops.subtract,
    "mul": ops.multiply,
    "truediv": ops.true_divide,
    "matmul": ops.matmul,
}
_SWAPPED = {f"__{name}__": function for name, function in _OPERATORS.items()} | {
    f"__r{name}__": lambda one, other, function=function: function(other, one)
    for name, function in _OPERATORS.items()
}


class UnknownKerasError(RuntimeError):
    """The installed version of Keras differs inside from those that calls can be recorded in."""


class _Thread(threading.local):
    """What records in one thread, and whether its warnings are dropped.

    `warnings.catch_warnings` would change those of all threads, perhaps forever.
    """

    recorder = None
    is_silent = False

    def match(self, message):
        """Returns whether a warning is dropped: Python asks this of its filters."""
        return self.is_silent


_THREAD = _Thread()
_SILENCE = ("ignore", _THREAD, Warning, None, 0)


class _Replacement:
    """Replaces methods of Keras while threads record; in other threads they do what they did."""

    def __init__(self):
        self._lock, self._users, self._kept = threading.Lock(), 0, []

    def __enter__(self):
        with self._lock:
            if not self._users:
                self._replace()
            self._users += 1

    def __exit__(self, *error):
        with self._lock:
            self._users -= 1
            if not self._users:
                self._restore()

    def _replace(self):
        layer, operation, variable = keras.layers.Layer, keras.Operation, keras.Variable
        # What Keras keeps of a symbolic call would make the model grow, and refuses `None` among
        # the results.
        try:
            (node, *_) = keras.Input((1,), name="unused")._keras_history.operation._inbound_nodes
            new = [(layer, "symbolic_call", _call), (operation, "symbolic_call", _call)]
            new += [(type(node), "__init__", _no_node)]
            new += [(variable, name, functools.partial(_swapped, name)) for name in _SWAPPED]
            for owner, name, function in new:
                method = _in_recording(function, getattr(owner, name))
                self._kept.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, method)
        except AttributeError as error:
            self._restore()
            raise _unknown(error) from error
        if _SILENCE not in warnings.filters:
            warnings.filters.insert(0, _SILENCE)

    def _restore(self):
        while self._kept:
            owner, name, own = self._kept.pop()
            delattr(owner, name) if own is None else setattr(owner, name, own)
        with contextlib.suppress(ValueError):
            warnings.filters.remove(_SILENCE)


_REPLACEMENT = _Replacement()


def _in_recording(function, original):
    """Returns a method that calls a function with the original method in threads that record."""

    def method(self, *args, **kwargs):
        if _THREAD.recorder is None:
            return original(self, *args, **kwargs)
        return function(original, self, *args, **kwargs)

    return method


def _call(original, operation, *args, **kwargs):
    recorder = _THREAD.recorder
    is_layer = isinstance(operation, keras.layers.Layer)
    return (recorder.call if is_layer else recorder.record)(operation, args, kwargs)


def _no_node(original, node, *args, **kwargs):
    pass


def _swapped(name, original, one, other):
    is_symbolic = isinstance(other, keras.KerasTensor)
    return _SWAPPED[name](one, other) if is_symbolic else original(one, other)


@contextlib.contextmanager
def _set(name, value):
    before = getattr(_THREAD, name)
    setattr(_THREAD, name, value)
    try:
        yield
    finally:
        setattr(_THREAD, name, before)


@contextlib.contextmanager
def recording(recorder):
    """Gives a recorder the symbolic calls in this thread.

    It has the methods `call(layer, args, kwargs)`, and `record(operation, args, kwargs)` for
    operations of `keras.ops`, which return what the calls return. Raises an `UnknownKerasError`.
    """
    with _REPLACEMENT:
        _check_fits()
        with _set("recorder", recorder):
            yield


def silence():
    """Drops warnings in this thread inside a context, in which calls are recorded."""
    return _set("is_silent", True)


class _Seen(list):
    """Records which layers and operations were called."""

    def call(self, operation, args, kwargs):
        self.append(type(operation).__name__)
        return args[0]

    record = call


@functools.cache
def _check_fits():
    """Raises an `UnknownKerasError` unless calls reach a recorder and leave no node on a layer."""
    state, layer, seen = keras.KerasTensor((None, 1)), keras.layers.Identity(name="unused"), _Seen()
    with _set("recorder", seen):
        ops.add(layer(state), state)
    if seen != ["Identity", "Add"] or layer._inbound_nodes:
        raise _unknown(f"a layer and an operation are recorded as {list(seen)}")


def _unknown(reason):
    return UnknownKerasError(
        "Layers are opened, and masks followed, inside Keras, of which version "
        f"{keras.__version__} differs from those that this was tried with, "
        f"{' and '.join(TRIED)}: {reason}. Install one of these."
    )
