"""Loads SavedModels so that nothing of them stays when they are dropped."""

import tensorflow as tf

from tfresidual.machine.compiled import gradients, remove_with

# The functions that TensorFlow registers for the gradients in a SavedModel.
REGISTERED = "_gen_gradient_func.<locals>.gradient_func"


def load(path):
    """Does the same as `tf.saved_model.load`, and lets all of it go with the object.

    For each custom gradient, TensorFlow registers a function for good, which keeps the graphs of
    all others. It is removed when nothing refers to the loaded object any more.
    """
    before = set(gradients())
    loaded = tf.saved_model.load(path)
    entries = gradients()
    names = [
        name
        for name in set(entries) - before
        if getattr(entries[name].get("type"), "__qualname__", None) == REGISTERED
    ]
    remove_with(loaded, names)
    return loaded
