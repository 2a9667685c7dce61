"""Creates variables before the first training step.

On TensorFlow, `fit` and `train_on_batch` trace a training step a second time if tracing it created
variables. Those of the optimizer, and of metrics that are compiled by name, come about in this way.
Here they are created outside of the graph of the step, which is traced once. In a distribution
strategy, and on the other backends, Keras does the same.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import keras

from tfresidual.machine.backends import BACKEND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class TracedOnce:
    """A base class, before `keras.Model`, of models whose training step is traced once."""

    def make_train_function(self, force: bool = False) -> None:
        build_optimizer(self)
        super().make_train_function(force)  # type: ignore[misc]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        build_metrics(self, x, y, y_pred, sample_weight)
        given = (x, y, y_pred, sample_weight)
        return super().compute_loss(*given, training=training)  # type: ignore[misc]


@contextlib.contextmanager
def traced_once(model: keras.Model) -> Iterator[None]:
    """Lets the training step of any Keras model be traced once while a `with` block runs.

    Numbers stay as they are. The step of a model whose weights are created by its first call is
    still traced more than once, and so is that of a model with a loss for each of several outputs.
    """
    build_optimizer(model)
    if isinstance(model, TracedOnce) or "compute_loss" in vars(model):
        yield
        return
    compute_loss = model.compute_loss

    def after_metrics(x=None, y=None, y_pred=None, sample_weight=None, *args, **kwargs):
        build_metrics(model, x, y, y_pred, sample_weight)
        return compute_loss(x, y, y_pred, sample_weight, *args, **kwargs)

    # Called within the step, and the first to be given labels and outputs together.
    vars(after_metrics)["changes_nothing"] = True
    model.compute_loss = after_metrics
    try:
        yield
    finally:
        del model.compute_loss


def changed_method(model: keras.Model) -> str | None:
    """Returns a method of the training step that is not that of Keras or this module, or `None`."""
    for name in ("train_step", "compute_loss"):
        found = [vars(kind)[name] for kind in type(model).__mro__ if name in vars(kind)]
        first = next(one for one in found if one is not vars(TracedOnce).get(name))
        own = vars(model).get(name)
        is_own = own is not None and not getattr(own, "changes_nothing", False)
        if is_own or first is not getattr(keras.Model, name):
            return name
    return None


def build_optimizer(model: keras.Model) -> None:
    """Creates the variables of a model's optimizer, unless they, or its weights, do not exist."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or optimizer.built or not model.built:
        return
    if not all(layer.built for layer in model.layers):
        return
    in_tensorflow = BACKEND == "tensorflow"
    # On the devices that have the weights.
    with model.distribute_strategy.scope() if in_tensorflow else contextlib.nullcontext():
        optimizer.build(model.trainable_variables)


def build_metrics(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
    """Creates a model's metrics outside of the traced graph; arguments as of `compute_metrics`."""
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    if tf.executing_eagerly() or tf.distribute.has_strategy():
        return

    def specification(value):
        return None if value is None else tf.type_spec_from_value(value)

    given = keras.tree.map_structure(specification, (x, y, y_pred, sample_weight))
    with tf.init_scope():
        # Otherwise the graph is not that of a step, but one that the user builds.
        if tf.executing_eagerly():
            # Traced, and not run: the metrics count nothing.
            tf.function(model.compute_metrics, autograph=False).get_concrete_function(*given)
