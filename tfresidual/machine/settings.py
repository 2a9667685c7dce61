"""What functions, and methods of layers, of models and of losses, may read beside weights."""

from __future__ import annotations

import collections
import dis
import functools
import hashlib
import inspect
import random
import re
import sys
import types
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What Keras sets on models and cells while it trains, evaluates and predicts.
OF_TRAINING = (
    *("stop_training", "stop_evaluating", "stop_predicting", "_eval_epoch_iterator"),
    *("_dropout_mask", "_recurrent_dropout_mask"),
)
PLAIN = (bool, int, float, complex, str, bytes, type(None))
# What is found for `None`, or where there is no attribute.
NOTHING = (type(None), "None")
# What changes in every step, and is not read at inference.
PASSING = (
    *(keras.KerasTensor, keras.Variable, tf.Variable, tf.data.Dataset, tf.data.Iterator),
    *(keras.metrics.Metric, keras.optimizers.Optimizer, keras.callbacks.Callback),
)
# How deep, and into how many things, an attribute is looked into.
DEPTH, MOST = 8, 1000
# The instructions that read a global; in the body of a class it is the second one.
GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME")
# The methods that compute at inference.
CALLS = ("call", "__call__")


def settings_of(layers: Iterable[Any]) -> dict[Any, Any]:
    """Returns what the methods of layers may read beside weights, by `(id of the layer, path)`.

    These are their attributes, and what is inside them: numbers, texts, arrays, functions, losses,
    and the attributes of objects of other packages than Keras and TensorFlow; and for layers of a
    class of such a package, what their `call` reads of the class, of functions around it and of its
    module.
    """
    found: dict[tuple[int, str], Any] = {}
    for layer in layers:
        usual = _usual(isinstance(layer, keras.Model))
        for name, value in vars(layer).items():
            # Names that begin so are of TensorFlow's checkpoints, and of callbacks.
            if name not in usual and not name.startswith(("_self_", "_tfresidual_")):
                found |= {(id(layer), path): one for path, one in _Walk().values(name, value)}
        found |= {(id(layer), path): one for path, one in _Walk().of_class("", type(layer))}
    return found


def settings_inside(name: str, value: Any) -> dict[str, Any]:
    """Returns what a value holds that can be compared, as a dict by path."""
    return dict(_Walk().values(name, value))


def read_by(function: Any, left_out: Any = None) -> tuple[Any, ...]:
    """Returns what tells a function from others: its code, and all that it may read.

    Functions that are defined twice by the same code are told to be the same. Objects that cannot
    be looked into, and variables, are told to be the same if they are, or are equal.

    Args:
        function: a function, method, `functools.partial` or other callable.
        left_out: an object that is the same for all functions that are compared.

    Returns:
        A tuple that can be the key of a dict. It keeps what is read alive, so that nothing else can
        be taken for it.
    """
    return tuple(_Walk(is_key=True, left_out=left_out).values("", function))


def written_by(thing: Any, methods: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns what a function, or what methods of an object, read, in a form for files.

    Args:
        thing: a function or another callable; with `methods`, an object.
        methods: names of the methods of the object that are looked into, and of those that they
            call. What they read of Keras' and TensorFlow's classes is left out.

    Returns:
        A dict by path, of texts and of code. The texts are the same in every process, wherever
        objects lie in memory.
    """
    walk = _Texts()
    if methods:
        own = _read_of_class(type(thing), methods).values()
        names = set().union(*(_names_in(one.__code__) for one in own if inspect.isfunction(one)))
        pairs = list(walk.of_class("", type(thing), methods=methods))
        for name in sorted(names & vars(thing).keys()):
            pairs += walk.values(name, vars(thing)[name])
    else:
        pairs = list(walk.values("", thing))
    return {
        _bare(path): one if isinstance(one, types.CodeType) else _text(one) for path, one in pairs
    }


def _text(value):
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], type):
        # A number or a text.
        value = value[1]
    return _bare(str(value))


def _bare(text):
    """Returns text without the places of objects in memory."""
    return re.sub(" at 0x[0-9a-f]+", "", text)


@functools.cache
def _usual(is_model):
    """Returns the names of the attributes that Keras gives to every layer, or to every model."""
    # An export sets those of a model on layers, too.
    model = keras.Model()
    usual = {*OF_TRAINING, *vars(keras.layers.Layer()), *vars(model)}
    if is_model:
        model.compile()
    return frozenset({*usual, *vars(model)} if is_model else usual)


class _Walk:
    """Looks into one attribute or function, and into nothing twice.

    With `is_key`, what it finds is kept alive, and functions are told apart by what they do.
    """

    def __init__(self, is_key: bool = False, left_out: Any = None) -> None:
        self.is_key, self.left_out = is_key, left_out
        self.seen: dict[int, tuple[Any, str]] = {}

    def values(self, path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yields pairs of a path and what is found there, in a form that can be compared."""
        if isinstance(value, PLAIN):
            yield path, (type(value), repr(value))
            return
        kind = type(value)
        if isinstance(value, tf.Tensor):
            if hasattr(value, "numpy") and value.dtype not in (tf.resource, tf.variant):
                value = value.numpy()
            elif not self.is_key:
                return
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            digest = hashlib.sha256(value.tobytes()).digest()
            yield path, (kind, value.shape, value.dtype.str, digest)
            return
        if value is self.left_out or (isinstance(value, PASSING) and not self.is_key):
            return
        if id(value) in self.seen:
            yield path, self.seen[id(value)][1]
            return
        # Kept, so that no other object gets its id.
        self.seen[id(value)] = value, path
        is_too_much = len(self.seen) > MOST or depth > DEPTH
        yield path, self.identity(value, is_too_much)
        if not is_too_much:
            for inner, one in self.parts(value):
                yield from self.values(f"{path}{inner}", one, depth + 1)
            if inspect.isfunction(value):
                yield from self.of_function(path, value, depth)
            elif not isinstance(value, type) and _is_looked_into(value):
                yield from self.of_class(path, type(value), depth)

    def identity(self, value: Any, is_too_much: bool) -> Any:
        """Returns what tells an object from another one."""
        if self.is_key and is_too_much:
            return _Same(value)
        if isinstance(value, types.MethodType):
            return types.MethodType
        if isinstance(value, _CONTAINERS):
            return type(value)
        code = getattr(value, "__code__", None)
        if self.is_key:
            return _Same(value) if code is None else code
        # A function that was made in the place of another one may have its id.
        return id(value), type(value).__qualname__, code

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yields pairs of what is added to the path, and a part of a value."""
        if isinstance(value, functools.partial):
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        elif isinstance(value, types.MethodType):
            yield from ((".__self__", value.__self__), (".__func__", value.__func__))
        elif isinstance(value, dict):
            yield from ((f"[{key!r}]", one) for key, one in value.items())
        elif isinstance(value, (list, tuple, collections.deque)):
            if all(isinstance(one, PLAIN) for one in value):
                yield "", repr(list(value))
            else:
                yield from ((f"[{index}]", one) for index, one in enumerate(value))
        elif isinstance(value, (set, frozenset)):
            yield "", repr(sorted(map(repr, value)))
        if _is_looked_into(value):
            names = dict.fromkeys(vars(value)) if hasattr(value, "__dict__") else {}
            for kind in () if isinstance(value, type) else type(value).__mro__:
                slots = vars(kind).get("__slots__", ())
                names |= dict.fromkeys([slots] if isinstance(slots, str) else slots)
            for name in names:
                one = inspect.getattr_static(value, name, None)
                if isinstance(one, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                    one = getattr(value, name, None)
                # Of a class, not its methods.
                is_own = not isinstance(value, type) or isinstance(one, _SIMPLE)
                if not name.startswith(("__", "_self_")) and is_own:
                    yield f".{name}", one

    def of_class(
        self, path: str, kind: type, depth: int = 0, methods: tuple[str, ...] = CALLS
    ) -> Iterator[tuple[str, Any]]:
        """Yields what the call of objects of a class reads of the class and around it."""
        for name, value in _read_of_class(kind, methods).items():
            yield from self.values(f"{path}.{name}" if path else name, value, depth + 1)

    def of_function(self, path: str, function: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """Yields what a function reads around it."""
        is_of_library = _is_of_library(function.__module__)
        if depth > DEPTH or (is_of_library and not self.is_key):
            return
        code = function.__code__
        around = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        read = {name: value for name, cell in around.items() for value in _content(cell)}
        # The class itself, in methods that call `super()`.
        read.pop("__class__", None)
        for name in () if is_of_library else _globals_in(code):
            if name in function.__globals__:
                read.setdefault(name, function.__globals__[name])
        read |= {"defaults": function.__defaults__, "kwdefaults": function.__kwdefaults__}
        for name, value in read.items():
            if isinstance(value, types.ModuleType):
                yield from self.of_module(f"{path} -> {name}", value, code, depth)
            elif value is not None:
                yield from self.values(f"{path} -> {name}", value, depth + 1)

    def of_module(self, path: str, module: Any, code: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """Yields what code may read of a module, by the names in it."""
        if not _is_of_library(module.__name__):
            for name in _names_in(code):
                value = vars(module).get(name)
                if isinstance(value, _SIMPLE) or inspect.isfunction(value):
                    yield from self.values(f"{path}.{name}", value, depth + 1)


class _Texts(_Walk):
    """Tells objects apart by what can be written into a file, functions by their code."""

    def identity(self, value: Any, is_too_much: bool) -> Any:
        code = getattr(value, "__code__", None)
        if code is not None and not _is_of_library(value.__module__):
            return code
        return getattr(value, "__qualname__", type(value).__qualname__)


_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, functools.partial)
_SIMPLE = (*PLAIN, dict, list, tuple, set, np.ndarray, np.generic)


def _content(cell):
    try:
        return [cell.cell_contents]
    except ValueError:
        # It is empty so far.
        return []


@functools.cache
def _names_in(code):
    """Returns the names that code reads, and the functions defined in it, as a frozen set.

    Those of attributes are among them.
    """
    return frozenset(code.co_names).union(*map(_names_in, _inside(code)))


@functools.cache
def _globals_in(code):
    """Returns the global names that code reads, and the functions defined in it."""
    own = (one.argval for one in dis.get_instructions(code) if one.opname in GLOBAL_READS)
    return frozenset(own).union(*map(_globals_in, _inside(code)))


def _inside(code):
    """Returns the code of the functions that are defined in code."""
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]


def _read_of_class(kind, methods):
    """Returns what methods of objects of a class read of the class, as a dict by name."""
    parents = [one for one in kind.__mro__ if not _is_of_library(one.__module__)]
    own = {name: value for one in reversed(parents) for name, value in vars(one).items()}
    found, waiting = {}, [name for name in methods if name in own]
    while waiting:
        name = waiting.pop()
        value = own[name]
        if isinstance(value, property):
            value = value.fget
        value = getattr(value, "__func__", value)
        if name in found:
            continue
        if inspect.isfunction(value):
            found[name] = value
            waiting += [one for one in _names_in(value.__code__) if one in own]
        elif isinstance(value, _SIMPLE):
            found[name] = value
    return found


def _is_looked_into(value):
    if isinstance(value, keras.losses.Loss):
        return True
    if isinstance(value, (keras.Operation, random.Random, types.ModuleType, functools.partial)):
        return False
    if inspect.isroutine(value):
        return False
    kind = value if isinstance(value, type) else type(value)
    if kind is types.SimpleNamespace:
        return True
    return not any(_is_of_library(one.__module__) for one in kind.__mro__ if one is not object)


def _is_of_library(module):
    name = (module or "").partition(".")[0]
    return name in _LIBRARIES


_LIBRARIES = {
    *("keras", "tensorflow", "tfresidual", "numpy", "tf_keras", "jax", "torch"),
    *(sys.stdlib_module_names - {"__main__"}),
}


class _Same:
    """Any object as a key, equal to that of the same object, or of an equal one of its class."""

    def __init__(self, value: Any) -> None:
        self.value, self.kind = value, type(value)
        self.hash: int | None
        try:
            self.hash = hash(value)
        except TypeError:
            self.hash = None

    def __hash__(self) -> int:
        return id(self.value) if self.hash is None else self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self.kind is not other.kind:
            return False
        return self.value is other.value or (
            self.hash is not None and self.hash == other.hash and self.value == other.value
        )
