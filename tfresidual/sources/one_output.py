"""One output of a model with several, or some of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfresidual.routing.arrangement import Arrangement
from tfresidual.routing.images import path_name
from tfresidual.routing.losses import weights_of_losses
from tfresidual.sources.graph import has_graph, inputs_of, outputs_of
from tfresidual.sources.joined_outputs import JoinedArrangement, JoinedOutputs, joined_loss
from tfresidual.sources.reasons import said

if TYPE_CHECKING:
    from collections.abc import Sequence


def arrangement_of(model: keras.Model, outputs: Any = None, output: int = 0) -> Arrangement:
    """Returns which inputs and labels Keras takes for a model.

    Args:
        model: a `keras.Model`.
        outputs: the structure of its outputs, needed for a model without a graph.
        output: the number of the output in question.
    """
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
    """A model without a graph of which one output is returned.

    Args:
        model: the `keras.Model`.
        numbers: the number of the output, or those of several, which are put side by side.
    """

    def __init__(self, model: keras.Model, *numbers: int) -> None:
        super().__init__(name=model.name)
        self.model, self.numbers, self.join = model, numbers, JoinedOutputs()

    def call(self, inputs: Any) -> Any:
        return self.applied(inputs)

    def applied(self, inputs: Any) -> Any:
        """Returns the output at inference, without a call of this object itself."""
        outputs = keras.tree.flatten(self.model(inputs, training=False))
        chosen = [outputs[number] for number in self.numbers]
        return chosen[0] if len(chosen) == 1 else self.join(chosen)


def with_output(
    model: keras.Model, output: str | int | Sequence[str | int], inputs: Any = None
) -> tuple[keras.Model, Arrangement]:
    """Returns a model that has one of the outputs of another model, and the loss of that.

    Args:
        model: a `keras.Model`.
        output: the name or the number of the output, or those of several, see `tfresidual.chain`.
        inputs: a batch of inputs, for a model without a graph.

    Returns:
        A tuple of the model, which is made of the same layers, and of the arrangement of the
        inputs and labels of the whole model.

    Raises:
        ValueError: if there is no such output, it has several losses, or some outputs cannot be
            taken together.
    """
    structure = outputs_of(model) if has_graph(model) else _structure_of(model, inputs)
    if not isinstance(output, (list, tuple)):
        return _of_output(model, structure, _number(model, structure, output))
    numbers = [_number(model, structure, one) for one in output]
    tensors = keras.tree.flatten(structure)
    if len(set(numbers)) != len(numbers) or len(numbers) < 2:
        raise ValueError(
            "Argument `output` must be one output, or hold two or more different ones. "
            f"Received: output={output!r}"
        )
    for number in numbers:
        if len(tensors[number].shape) > 2 or None in tensors[number].shape[1:]:
            raise ValueError(
                "Argument `output` must hold outputs without positions, `(images, numbers)`, to "
                "take them together: what of a sequence counts is known for one output alone. "
                f"Received: output={output!r}, with shape {tuple(tensors[number].shape)}"
            )
    parts = [_of_output(model, structure, number) for number in numbers]
    if not all(one.compiled for one, _ in parts):
        raise ValueError(
            "Argument `output` must hold outputs for which the model was compiled with a loss. "
            f"Received: output={output!r} for {model.name}"
        )
    if has_graph(model):
        joined = JoinedOutputs()([tensors[number] for number in numbers])
        together = keras.Model(inputs_of(model), joined, name=model.name)
    else:
        together = OneOutput(model, *numbers)
        together.built = True
    arrangement = JoinedArrangement([of_output for _, of_output in parts])
    together.compile(loss=joined_loss([one for one, _ in parts], arrangement))
    return together, arrangement


def _of_output(model, structure, number):
    """Returns what `with_output` does for the number of an output."""
    if has_graph(model):
        one = keras.Model(inputs_of(model), keras.tree.flatten(structure)[number], name=model.name)
    else:
        one = OneOutput(model, number)
        one.built = True
    arrangement = arrangement_of(model, structure, number)
    if model.compiled and model.loss is not None:
        _compile(one, model, arrangement)
    return one, arrangement


def _compile(one, model, arrangement):
    """Compiles a model of one output with the loss of that output and its weight."""
    labels = keras.tree.map_structure(lambda _: tf.zeros([1, 1]), arrangement.outputs)
    try:
        given, weight = arrangement.read(model.loss, labels, loss_weights=weights_of_losses(model))
    except Exception as error:
        # Keras raises errors of many kinds.
        raise ValueError(
            "Argument `source` must be a model whose losses belong to its outputs. Keras says: "
            f"{said(error)} Received: source={model.name} with loss={model.loss!r}"
        ) from error
    if len(given) > 1:
        raise ValueError(
            "Argument `output` must be an output with one loss, since a probe follows one "
            f"gradient. Received: an output of {model.name} with {len(given)} losses"
        )
    if given:
        one.compile(loss=given[0][0], loss_weights=[weight])


def _structure_of(model, inputs):
    """Returns the outputs of a model without a graph, as symbolic tensors in their structure."""
    if inputs is None:
        raise ValueError(
            "Argument `inputs` must be a batch of inputs, or `keras.KerasTensor`s of their shapes, "
            "to choose an output of a model that is no functional `keras.Model`. "
            f"Received: inputs=None for {model.name}"
        )
    zeros = keras.tree.map_structure(lambda one: tf.zeros([1, *one.shape[1:]], one.dtype), inputs)
    outputs = model(zeros, training=False)
    return keras.tree.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype), outputs)


def _number(model, structure, output):
    """Returns the number of an output among the flat outputs of a model."""
    paths = [path_name(path) for path, _ in keras.tree.flatten_with_path(structure)]
    layers = getattr(model, "output_names", None) or [None] * len(paths)
    is_number = isinstance(output, int) and not isinstance(output, bool)
    if is_number and 0 <= output < len(paths):
        return output
    for names in (paths, layers):
        if isinstance(output, str) and list(names).count(output) == 1:
            return list(names).index(output)
    known = list(dict.fromkeys(name for name in (*paths, *layers) if name and not name.isdigit()))
    raise ValueError(
        f"Argument `output` must be an output of {model.name}: one of the names "
        f"{', '.join(map(repr, known))}, or a number from 0 to {len(paths) - 1}. "
        f"Received: output={output!r}"
    )
