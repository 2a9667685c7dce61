"""Loads SavedModels so that nothing of them stays when they are dropped.

TensorFlow's registry of gradients has no public way to remove an entry. Tried with TensorFlow 2.21.
"""

import threading
import weakref

import tensorflow as tf
from tensorflow.python.framework import ops

# Two threads that load at once could not tell which entries are whose.
_lock = threading.Lock()
# The functions that TensorFlow registers for the gradients in a SavedModel.
REGISTERED = "_gen_gradient_func.<locals>.gradient_func"


def load(path):
    """Does the same as `tf.saved_model.load`, and lets all of it go with the object.

    For each custom gradient, TensorFlow registers a function for good, which keeps the graphs of
    all others. It is removed when nothing refers to the loaded object any more.
    """
    with _lock:
        before = set(_entries())
        loaded = tf.saved_model.load(path)
        entries = _entries()
        names = [
            name
            for name in set(entries) - before
            if getattr(entries[name].get("type"), "__qualname__", None) == REGISTERED
        ]
    weakref.finalize(loaded, _remove, names).atexit = False
    return loaded


def _remove(names):
    for name in names:
        _entries().pop(name, None)


def _entries():
    """Returns the registered gradients by name, a dict; an empty one if they are elsewhere."""
    registry = getattr(ops, "gradient_registry", None)
    return getattr(registry, "_registry", {})
