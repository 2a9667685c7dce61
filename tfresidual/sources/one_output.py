"""One output of a model with several."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.data import Place, of_output, path_name
from tfresidual.routing.losses import weights_of_losses
from tfresidual.sources.graph import has_graph, inputs_of, outputs_of


def input_names_of(model: keras.Model) -> tuple[str, ...]:
    """Returns the names of the inputs of a model; none for one without a graph."""
    inputs = keras.tree.flatten(inputs_of(model)) if has_graph(model) else []
    return tuple(one.name for one in inputs)


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
) -> tuple[keras.Model, Place]:
    """Returns a model with one of the outputs of another model and its loss, and its place.

    It is made of the same layers. For arguments and errors, see `tfresidual.chain`.
    """
    structure = outputs_of(model) if has_graph(model) else _structure_of(model, inputs)
    return _of_output(model, structure, _place(model, structure, output))


def _of_output(model, structure, place):
    if has_graph(model):
        tensor = keras.tree.flatten(structure)[place.number]
        one = keras.Model(inputs_of(model), tensor, name=model.name)
    else:
        one = OneOutput(model, place.number)
        one.built = True
    loss = of_output(model.loss, place) if model.compiled else None
    if loss is not None:
        weights = weights_of_losses(model)
        weight = 1.0 if weights is None else of_output(weights, place)
        one.compile(loss=loss, loss_weights=[weight])
    return one, place


def _structure_of(model, inputs):
    if inputs is None:
        raise ArgumentError(
            "inputs",
            "be a batch of inputs, or `keras.KerasTensor`s of their shapes, to choose an output "
            "of a model that is no functional `keras.Model`",
            received=f"inputs=None for {model.name}",
        )
    zeros = keras.tree.map_structure(lambda one: tf.zeros([1, *one.shape[1:]], one.dtype), inputs)
    outputs = model(zeros, training=False)
    return keras.tree.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype), outputs)


def _place(model, structure, output):
    paths = [path_name(path) for path, _ in keras.tree.flatten_with_path(structure)]
    layers = getattr(model, "output_names", None) or [None] * len(paths)
    is_number = isinstance(output, int) and not isinstance(output, bool)
    number = output if is_number and 0 <= output < len(paths) else None
    for names in (paths, layers):
        if number is None and isinstance(output, str) and list(names).count(output) == 1:
            number = list(names).index(output)
    if number is not None:
        names = (paths[number], layers[number])
        return Place(number, len(paths), tuple(name for name in names if name))
    known = list(dict.fromkeys(name for name in (*paths, *layers) if name and not name.isdigit()))
    raise ArgumentError(
        "output",
        f"be an output of {model.name}: one of the names {', '.join(map(repr, known))}, or a "
        f"number from 0 to {len(paths) - 1}",
        output,
    )
