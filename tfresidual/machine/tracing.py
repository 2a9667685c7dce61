"""What is traced: code that is called for its shapes, or called once however often it runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

# No public function tells it. Tried on Keras 3.15.
from keras.src.backend.common import global_state

from tfresidual.machine.backends import BACKEND

if TYPE_CHECKING:
    from types import FrameType

# Functions of Keras and its backends that call a function once, or in several branches, whatever
# number of times its operations run later.
LOOPS = (
    *("while_loop", "fori_loop", "for_stmt", "while_stmt", "scan", "associative_scan", "rnn"),
    *("map", "map_fn", "vectorized_map", "cond", "switch", "switch_case", "if_stmt"),
)
_SIGNATURE = "serving_default"
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("keras", "tensorflow", "jax"))


def gives_shapes_alone() -> bool:
    """Returns whether layers are called only for the shapes and dtypes of what they return."""
    return global_state.get_global_attribute("symbolic_scope") is not None


def is_signature_of_part() -> bool:
    """Returns whether TensorFlow traces a function that Keras gives a nested model to save it."""
    graph = place() if BACKEND == "tensorflow" else None
    while graph is not None:
        if getattr(graph, "name", None) == _SIGNATURE:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def refused(tensor: Any, message: str) -> Any:
    """Returns a tensor of TensorFlow which raises an error when the graph is run."""
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
        return tf.identity(tensor)


def place() -> Any:
    """Returns what differs inside and outside of a function that is being traced."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if BACKEND == "jax":
        from jax.extend.core import get_opaque_trace_state

        return get_opaque_trace_state(convention="nnx")
    return None


def loop_since(outer: FrameType) -> str | None:
    """Returns the loop or condition that is traced in `outer`, a frame of the stack, or `None`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not outer:
        code = frame.f_code
        is_known = any(name in code.co_filename for name in _LIBRARIES)
        is_unrolled = code.co_name == "rnn" and frame.f_locals.get("unroll")
        if code.co_name in LOOPS and is_known and not is_unrolled:
            return code.co_name
        frame = frame.f_back
    return None
