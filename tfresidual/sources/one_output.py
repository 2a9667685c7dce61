"""One output of a model with several."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.arrangement import Arrangement
from tfresidual.routing.images import path_name
from tfresidual.routing.losses import weights_of_losses
from tfresidual.sources.graph import has_graph, inputs_of, outputs_of


def arrangement_of(model: keras.Model, outputs: Any = None, output: int = 0) -> Arrangement:
    """Returns which inputs and labels Keras takes for a model and one of its outputs."""
    inputs, names = None, None
    if has_graph(model):
        inputs = keras.tree.map_structure(
            lambda one: keras.KerasTensor(one.shape, one.dtype, name=one.name), inputs_of(model)
        )
        outputs, names = outputs_of(model), getattr(model, "output_names", None)
    if isinstance(outputs, (list, tuple)) and len(outputs) == 1:
        (outputs,) = outputs
    count = len(keras.tree.flatten(outputs))
    loss = model.loss if model.compiled else None
    return Arrangement(
        inputs,
        is_checked=not isinstance(model, keras.Sequential),
        outputs=keras.tree.pack_sequence_as(outputs, list(range(count))),
        names=None if names is None else list(names),
        losses=loss is None or keras.tree.map_structure(lambda one: one is not None, loss),
        output=output,
    )


class OneOutput(keras.Model):
    """A model without a graph of which one output, by number, is returned."""

    def __init__(self, model: keras.Model, number: int) -> None:
        super().__init__(name=model.name)
        self.model, self.number = model, number

    def call(self, inputs: Any) -> Any:
        return self.applied(inputs)

    def applied(self, inputs: Any) -> Any:
        """Returns the output at inference, without a call of this object itself."""
        return keras.tree.flatten(self.model(inputs, training=False))[self.number]


def with_output(
    model: keras.Model, output: str | int, inputs: Any = None
) -> tuple[keras.Model, Arrangement]:
    """Returns a model with one of the outputs of another model and its loss, and its arrangement.

    It is made of the same layers. For arguments and errors, see `tfresidual.chain`.
    """
    structure = outputs_of(model) if has_graph(model) else _structure_of(model, inputs)
    return _of_output(model, structure, _number(model, structure, output))


def _of_output(model, structure, number):
    if has_graph(model):
        one = keras.Model(inputs_of(model), keras.tree.flatten(structure)[number], name=model.name)
    else:
        one = OneOutput(model, number)
        one.built = True
    arrangement = arrangement_of(model, structure, number)
    if not model.compiled or model.loss is None:
        return one, arrangement
    labels = keras.tree.map_structure(lambda _: tf.zeros([1, 1]), arrangement.outputs)
    given, weight = arrangement.read(model.loss, labels, loss_weights=weights_of_losses(model))
    if len(given) > 1:
        raise ArgumentError(
            "output",
            "be an output with one loss, since a probe follows one gradient",
            said=f"an output of {model.name} with {len(given)} losses",
        )
    if given:
        one.compile(loss=given[0][0], loss_weights=[weight])
    return one, arrangement


def _structure_of(model, inputs):
    if inputs is None:
        raise ArgumentError(
            "inputs",
            "be a batch of inputs, or `keras.KerasTensor`s of their shapes, to choose an output "
            "of a model that is no functional `keras.Model`",
            said=f"inputs=None for {model.name}",
        )
    zeros = keras.tree.map_structure(lambda one: tf.zeros([1, *one.shape[1:]], one.dtype), inputs)
    outputs = model(zeros, training=False)
    return keras.tree.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype), outputs)


def _number(model, structure, output):
    paths = [path_name(path) for path, _ in keras.tree.flatten_with_path(structure)]
    layers = getattr(model, "output_names", None) or [None] * len(paths)
    is_number = isinstance(output, int) and not isinstance(output, bool)
    if is_number and 0 <= output < len(paths):
        return output
    for names in (paths, layers):
        if isinstance(output, str) and list(names).count(output) == 1:
            return list(names).index(output)
    known = list(dict.fromkeys(name for name in (*paths, *layers) if name and not name.isdigit()))
    raise ArgumentError(
        "output",
        f"be an output of {model.name}: one of the names {', '.join(map(repr, known))}, or a "
        f"number from 0 to {len(paths) - 1}",
        output,
    )
