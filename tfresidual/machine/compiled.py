"""Compiled functions of which nothing stays when they are dropped. TensorFlow only.

TensorFlow registers a function for good for each custom gradient, such as that of `silu`, which
keeps the graph that it was traced in. Its registry has no public way to remove an entry. Tried with
TensorFlow 2.21.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The attribute of an operation that names its gradient, and how TensorFlow begins such names.
_GRADIENT, _OWN = "_gradient_op_type", "CustomGradient-"


def compiled(function: Callable[..., Any], signature: Sequence[Any]) -> Any:
    """Returns a `tf.function` of such a signature, traced unless functions run eagerly."""
    made = tf.function(function, input_signature=signature, autograph=False)
    if not tf.config.functions_run_eagerly():
        _traced(made)
    return made


def concrete(function: Callable[..., Any], signature: Sequence[Any], **options: Any) -> Any:
    """Returns the traced function of such a signature, with further options of `tf.function`."""
    return _traced(tf.function(function, input_signature=signature, autograph=False, **options))


def _traced(made):
    """Traces a function; the gradients in its graph go with it."""
    traced = made.get_concrete_function()
    names = [
        operation.get_attr(_GRADIENT).decode()
        for operation in traced.graph.get_operations()
        if operation.type == "IdentityN" and _GRADIENT in operation.node_def.attr
    ]
    remove_with(traced, [name for name in names if name.startswith(_OWN)])
    return traced


def remove_with(owner: Any, names: Sequence[str]) -> None:
    """Removes registered gradients when nothing refers to their owner any more."""
    if names:
        weakref.finalize(owner, _remove, names).atexit = False


def gradients() -> dict[str, Any]:
    """Returns the registered gradients by name, a dict; an empty one if they are elsewhere."""
    registry = getattr(ops, "gradient_registry", None)
    return getattr(registry, "_registry", {})


def _remove(names):
    for name in names:
        gradients().pop(name, None)
