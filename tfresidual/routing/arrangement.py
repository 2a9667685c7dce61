"""Inputs and labels in the structures in which Keras takes them. TensorFlow only."""

import functools
import re
import textwrap
from collections.abc import Mapping

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.images import dtype_taken, is_alike, is_shape, map_up_to

_DESCRIBED = ("is_checked", "outputs", "names", "losses", "output")


class Arrangement:
    """What of the inputs and labels that a model takes is for which input, and for its output.

    Keras takes inputs and labels in many structures: a bare array for a list of one, a dict by
    names for a list. Keras itself is asked here, by models of the same structures that compute
    nothing.

    Args:
        inputs: `keras.KerasTensor`s with the names of the inputs, in the structure of the model;
            `None` for a model that takes its inputs as they are.
        is_checked: whether Keras checks the number of inputs, which `keras.Sequential` does not.
        outputs: the structure of the outputs of the model, with their numbers, from 0.
        names: list of the names of the outputs, or `None`.
        losses: the structure of the losses of `compile`, with whether there is one at its places.
        output: int, the number of the output that a chain has.
    """

    def __init__(self, inputs, is_checked=True, outputs=0, names=None, losses=True, output=0):
        self.inputs, self.is_checked = inputs, is_checked
        self.outputs, self.names, self.losses, self.output = outputs, names, losses, output

    @classmethod
    def from_description(cls, description, shapes, dtypes):
        """Returns the arrangement of a description, for inputs of some shapes and dtypes."""
        kept = dict(description)
        names, inputs = kept.pop("inputs"), None
        if names is not None:
            inputs = _tensors(shapes, dtypes)
            flat = zip(keras.tree.flatten(inputs), names, strict=True)
            tensors = [keras.KerasTensor(one.shape, one.dtype, name=name) for one, name in flat]
            inputs = keras.tree.pack_sequence_as(inputs, tensors)
        return cls(inputs, **kept)

    @property
    def description(self):
        """A dict that JSON can hold, see `from_description`."""
        inputs = None
        if self.inputs is not None:
            inputs = [tensor.name for tensor in keras.tree.flatten(self.inputs)]
        kept = {name: _plain(value) for name, value in vars(self).items() if name in _DESCRIBED}
        return {"inputs": inputs, **kept}

    def images(self, images):
        """Returns inputs in the structure of the model; a `ValueError` if Keras refuses them."""
        if self.inputs is None:
            return images
        if _fits(images, self.inputs):
            # A tuple may stand for a list.
            return keras.tree.pack_sequence_as(self.inputs, keras.tree.flatten(images))
        try:
            given = keras.tree.map_structure(_tensor, images)
            model = self._model if self.is_checked else self._model.call
            return keras.tree.pack_sequence_as(self.inputs, keras.tree.flatten(model(given)))
        except Exception as error:
            # Keras raises errors of many kinds.
            shapes, given = (
                keras.tree.map_structure(lambda one: tuple(getattr(one, "shape", ())), parts)
                for parts in (self.inputs, images)
            )
            expected = keras.tree.map_shape_structure(lambda shape: shape[1:], shapes)
            raise ArgumentError(
                "data",
                f"hold batches of images of shape {expected}, in a structure that `fit` takes for "
                f"them. Keras says: {_line_of(error)}",
                said=f"a batch of shape {given}",
            ) from error

    @functools.cached_property
    def _model(self):
        tensors = [
            keras.Input(tensor.shape[1:], dtype=dtype_taken(tensor.dtype), name=tensor.name)
            for tensor in keras.tree.flatten(self.inputs)
        ]
        return keras.Model(keras.tree.pack_sequence_as(self.inputs, tensors), tensors)

    def labels(self, labels, weights=None):
        """Returns labels and sample weights of the output; a `ValueError` if Keras refuses them.

        Of several outputs, the labels of this one alone are taken, too.
        """
        is_nested = keras.tree.is_nested(labels) or keras.tree.is_nested(weights)
        if len(keras.tree.flatten(self.outputs)) == 1 and not is_nested:
            return labels, weights
        named = {self.names[0]} if self.names and not keras.tree.is_nested(self.outputs) else ()
        if isinstance(labels, dict) and set(labels) == named:
            (labels,) = labels.values()
        try:
            # An output that is not trained has labels where all outputs have.
            given = self.read(self.losses, labels, weights)[0] or self.read(True, labels)[0]
            _, of_output, weights = given[0]
        except Exception as error:
            # Keras raises errors of many kinds.
            if not is_nested:
                return labels, weights
            structure = keras.tree.map_structure(lambda _: "*", labels)
            names = f" of outputs {self.names}" if self.names else ""
            raise ArgumentError(
                "data",
                "hold labels in the structure of the outputs of the network, as `fit` takes "
                f"them. Keras says: {_line_of(error)}",
                said=f"labels of structure {structure} for output {self.output}{names}",
            ) from error
        return of_output, weights

    def read(self, losses, labels, weights=None, loss_weights=None):
        """Returns what Keras gives to the losses of the output; arguments are as for `compile`.

        Returns:
            A tuple `(given, factor)`: tuples of the loss, the labels and the sample weights for
            every loss of the output, and the factor of these in the loss of the model.
        """
        given = []

        def told(loss):
            return _Told(loss, self.output, given) if loss else None

        model = _Outputs()
        if self.names is not None:
            model.output_names = self.names
        model.compile(loss=keras.tree.map_structure(told, losses), loss_weights=loss_weights)
        outputs = keras.tree.map_structure(lambda number: tf.fill([1, 1], number), self.outputs)
        total = model.compute_loss(None, labels, outputs, weights)
        return given, float(total) / max(len(given), 1)


class _Outputs(keras.Model):
    """A model that computes nothing, of which only the losses are asked."""

    def call(self, inputs):
        return inputs


class _Told(keras.losses.Loss):
    """Keeps what Keras gives to a loss, if it is that of one output. It is 1 there, and else 0."""

    def __init__(self, loss, output, given):
        super().__init__(name="loss")
        self.loss, self.output, self.given = loss, output, given

    def __call__(self, y_true, y_pred, sample_weight=None):
        is_output = int(y_pred[0, 0]) == self.output
        if is_output:
            self.given.append((self.loss, y_true, sample_weight))
        return tf.constant(float(is_output))


def _tensors(shapes, dtypes):
    """Returns `keras.KerasTensor`s of some shapes and dtypes, in their structure."""
    if is_shape(shapes):
        return keras.KerasTensor((None, *shapes), dtype=dtypes)
    if isinstance(shapes, dict):
        return {name: _tensors(shape, dtypes[name]) for name, shape in shapes.items()}
    # Not a tuple, of which Keras warns where it is given a bare array for one of one.
    return list(map(_tensors, shapes, dtypes))


def _plain(structure):
    """Returns a structure without the dicts and lists of Keras, which JSON does not know."""
    if isinstance(structure, Mapping):
        return {name: _plain(part) for name, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        return [_plain(part) for part in structure]
    return structure


def _line_of(error):
    """Returns what Keras says in bold, or the beginning of all it says, without numbers of data."""
    bold = re.search("\x1b\\[1m(.*?)\x1b\\[0m", str(error), re.DOTALL)
    text = re.sub(r"\[[\s\d.eE+-]+\]", "[...]", bold[1] if bold else str(error))
    text = re.sub(r"(\[\.\.\.\]\s*){2,}", "[...] ", text)
    return textwrap.shorten(text, 300, placeholder=" ...")


def _tensor(part):
    return part if isinstance(part, keras.KerasTensor) else tf.convert_to_tensor(part)


def _fits(images, inputs):
    """Returns whether images have the structure of inputs, and every input the same axes."""
    shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), inputs)
    if not is_alike(images, shapes):
        return False
    if is_shape(shapes):
        return len(getattr(images, "shape", ())) == len(shapes) + 1
    ranks = map_up_to(
        lambda part, tensor: len(getattr(part, "shape", ())) == len(tensor.shape), images, inputs
    )
    return all(keras.tree.flatten(ranks))
