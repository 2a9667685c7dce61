"""One output of a model with several, or some of them together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.arrangement import Arrangement
from tfresidual.routing.images import path_name
from tfresidual.routing.losses import loss_of, weights_of_losses
from tfresidual.sources.graph import has_graph, inputs_of, outputs_of, said
from tfresidual.sources.outputs import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The attribute of joined outputs that holds the outputs themselves. Their logits, which Keras
# stores on the tensor that a softmax returns, are needed for an accurate gradient.
_PARTS = "_tfresidual_parts"


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


class JoinedOutputs(keras.layers.Layer):
    """Puts outputs `(images, ...)` side by side, as one row per image."""

    def __init__(self) -> None:
        # Of a cast copy of an output, the logits are lost.
        super().__init__(autocast=False, dtype="float32")

    def call(self, outputs: Sequence[Any]) -> Any:
        rows = [ops.reshape(one, (-1, math.prod(one.shape[1:]))) for one in outputs]
        joined = ops.concatenate([ops.cast(row, self.compute_dtype) for row in rows], axis=-1)
        setattr(joined, _PARTS, list(outputs))
        return joined


class JoinedArrangement(Arrangement):
    """An arrangement made of those of several outputs, whose labels are taken side by side."""

    def __init__(self, arrangements: Sequence[Arrangement]) -> None:
        first = arrangements[0]
        super().__init__(
            first.inputs, first.is_checked, first.outputs, first.names, first.losses, first.output
        )
        self.arrangements = list(arrangements)
        # The shapes of the labels of one image, which no row of numbers shows.
        self.shapes: list[tuple[int, ...]] | None = None

    def labels(self, labels: Any, weights: Any = None) -> tuple[tf.Tensor, Any]:
        """Returns the labels of the outputs as rows of floats, and the sample weights of all."""
        if not keras.tree.is_nested(labels):
            raise ArgumentError(
                "data",
                "hold the labels of all outputs, in their structure, for a chain of several",
                said=f"labels of type {type(labels).__name__}",
            )
        pairs = [one.labels(labels, weights) for one in self.arrangements]
        given = [tf.convert_to_tensor(of_output) for of_output, _ in pairs]
        shapes = [tuple(one.shape[1:]) for one in given]
        if self.shapes not in (None, shapes):
            raise ArgumentError(
                "data",
                "hold labels of the same shapes in every run of a chain of several outputs",
                said=f"labels of shapes {shapes} after {self.shapes}",
            )
        self.shapes = shapes
        of_outputs = [one for _, one in pairs]
        if any(not _are_same(one, of_outputs[0]) for one in of_outputs):
            raise ArgumentError(
                "data",
                "hold the same sample weights for all outputs of a chain that has several, since "
                "probes weigh images",
                said="different ones",
            )
        rows = [
            tf.reshape(tf.cast(one, tf.float32), [len(one), math.prod(one.shape[1:])])
            for one in given
        ]
        return tf.concat(rows, axis=1), of_outputs[0]


def joined_loss(
    models: Sequence[keras.Model], arrangement: JoinedArrangement
) -> Callable[[Any, Any], Any]:
    """Returns the sum of the losses of models, of labels and outputs side by side."""
    losses = [loss_of(model, kind_of(model)) for model in models]

    def joined(labels: Any, outputs: Any) -> Any:
        parts, shapes = getattr(outputs, _PARTS, None), arrangement.shapes
        if parts is None or shapes is None:
            raise ValueError("it takes the outputs of the model itself; export one output")
        of_outputs = tf.split(labels, list(map(math.prod, shapes)), axis=1)
        values = [
            loss(ops.reshape(own, (-1, *shape)), part)
            for loss, own, shape, part in zip(losses, of_outputs, shapes, parts, strict=True)
        ]
        return sum(ops.cast(one, "float32") for one in values)

    return joined


def _are_same(one, other):
    if one is None or other is None:
        return one is other
    one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
    return one.shape == other.shape and bool(tf.reduce_all(one == tf.cast(other, one.dtype)))


class OneOutput(keras.Model):
    """A model without a graph of which some outputs, by number, are returned side by side."""

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
    """Returns a model with one of the outputs of another model and its loss, and its arrangement.

    It is made of the same layers. For arguments and errors, see `tfresidual.chain`.
    """
    structure = outputs_of(model) if has_graph(model) else _structure_of(model, inputs)
    if not isinstance(output, (list, tuple)):
        return _of_output(model, structure, _number(model, structure, output))
    numbers = [_number(model, structure, one) for one in output]
    tensors = keras.tree.flatten(structure)
    if len(set(numbers)) != len(numbers) or len(numbers) < 2:
        raise ArgumentError("output", "be one output, or hold two or more different ones", output)
    for number in numbers:
        if len(tensors[number].shape) > 2 or None in tensors[number].shape[1:]:
            raise ArgumentError(
                "output",
                "hold outputs without positions, `(images, numbers)`, to take them together: "
                "what of a sequence counts is known for one output alone",
                said=f"output={output!r}, with shape {tuple(tensors[number].shape)}",
            )
    parts = [_of_output(model, structure, number) for number in numbers]
    if not all(one.compiled for one, _ in parts):
        raise ArgumentError(
            "output",
            "hold outputs for which the model was compiled with a loss",
            said=f"output={output!r} for {model.name}",
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
    if has_graph(model):
        one = keras.Model(inputs_of(model), keras.tree.flatten(structure)[number], name=model.name)
    else:
        one = OneOutput(model, number)
        one.built = True
    arrangement = arrangement_of(model, structure, number)
    if not model.compiled or model.loss is None:
        return one, arrangement
    labels = keras.tree.map_structure(lambda _: tf.zeros([1, 1]), arrangement.outputs)
    try:
        given, weight = arrangement.read(model.loss, labels, loss_weights=weights_of_losses(model))
    except Exception as error:
        # Keras raises errors of many kinds.
        raise ArgumentError(
            "source",
            f"be a model whose losses belong to its outputs. Keras says: {said(error)}",
            said=f"source={model.name} with loss={model.loss!r}",
        ) from error
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
