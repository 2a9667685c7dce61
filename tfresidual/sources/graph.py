"""The graph of a functional Keras model: its operations in order, with nested models flattened."""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfresidual.layers import Repeated, UnsharedBatchNormalization
from tfresidual.layers.applications import Counts
from tfresidual.routing.agreement import SIZES
from tfresidual.sources.reasons import said

# The function `(node, values)` that takes the place of `Node.applied` for as long as it is set.
CALLER = contextvars.ContextVar("caller", default=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """A weight among the arguments of a call.

    Attributes:
        variable: `keras.Variable`.
        dtype: the dtype to which Keras casts it there, in mixed precision another than its own.
    """

    variable: keras.Variable
    dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation.

    Attributes:
        operation: the layer, or the operation of `keras.ops`.
        args: positional arguments, with tensors as `keras.KerasTensor`s, and weights that are given
            to an operation of `keras.ops` as `Weight`s.
        kwargs: keyword arguments.
        outputs: the `keras.KerasTensor`s that it returns, as a tuple, and after them those of the
            masks that it attaches to them.
        inside: the opened layers in which it is called, from the outermost to the innermost.
        masked: pairs of a tensor among the arguments and the mask attached to it, which the
            operation may read.
        masks: for every mask among the outputs, the index of the output that it is attached to.
        reads_shapes_alone: whether the outputs are the same for all values of its arguments, as
            those of a layer that makes positions for an embedding.
        counts: what layers inside the operation that count their applications have counted before
            the call; `None` if there are none.
    """

    operation: keras.Operation
    args: tuple
    kwargs: dict
    outputs: tuple
    inside: tuple = ()
    masked: tuple = ()
    masks: tuple = ()
    reads_shapes_alone: bool = False
    counts: Counts | None = None

    @functools.cached_property
    def arguments(self):
        """The tensors among the arguments, in order."""
        leaves = keras.tree.flatten((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)]

    @functools.cached_property
    def inputs(self):
        """The tensors among the arguments, in order, and the masks attached to them."""
        return self.arguments + [mask for _, mask in self.masked]

    def __call__(self, values):
        """Calls the operation without training.

        Args:
            values: dict from the id of every tensor among the arguments to its value.

        Returns:
            A dict from the id of every tensor that the operation returns to its value.
        """
        for tensor, mask in self.masked:
            values[id(tensor)]._keras_mask = values[id(mask)]
        call = CALLER.get()
        made = self.applied(values) if call is None else call(self, values)
        results = keras.tree.flatten(made)
        # A layer whose output has a shape may return None in its place. What has none is not among
        # the outputs.
        if len(results) > len(self.outputs) - len(self.masks):
            results = [result for result in results if result is not None]
        results += [results[index]._keras_mask for index in self.masks]
        return {id(tensor): value for tensor, value in zip(self.outputs, results, strict=True)}

    def applied(self, values):
        """Returns what the operation returns for the values of its arguments, see `__call__`."""

        def value(leaf):
            if isinstance(leaf, Weight):
                return ops.cast(leaf.variable, leaf.dtype)
            return values[id(leaf)] if isinstance(leaf, keras.KerasTensor) else leaf

        args, kwargs = keras.tree.map_structure(value, (self.args, self.kwargs))
        # As in `predict`, which also overrides the `training` argument of the call in the graph.
        if isinstance(self.operation, keras.layers.Layer):
            kwargs = kwargs | {"training": False}
        with contextlib.nullcontext() if self.counts is None else self.counts.copy():
            return self.operation(*args, **kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The operations that lead from the inputs of a model, or from a tensor, to its output.

    Attributes:
        inputs: tuple of `keras.KerasTensor`s.
        nodes: tuple of `Node`s, each after those whose results it takes.
        output: `keras.KerasTensor`.
        structure: the inputs as the model takes them: a tensor, or a dict, tuple or list of these.
        context: tuple of the `keras.KerasTensor`s that the nodes take beside these inputs and each
            other.
    """

    inputs: tuple[keras.KerasTensor, ...]
    nodes: tuple[Node, ...]
    output: keras.KerasTensor
    structure: Any = None
    context: tuple[keras.KerasTensor, ...] = ()

    @property
    def input(self):
        """The first of the inputs."""
        return self.inputs[0]

    @property
    def has_masks(self):
        """Whether an operation takes tensors to which Keras has attached masks."""
        return any(node.masked for node in self.nodes)

    def since(self, first):
        """Returns the part of the graph that depends on a tensor: from there to the output."""
        since, nodes, needed = {id(first)}, [], {}
        for node in self.nodes:
            taken = node.inputs
            if not node.reads_shapes_alone and any(id(tensor) in since for tensor in taken):
                nodes.append(node)
                needed |= {id(tensor): tensor for tensor in taken}
                since |= {id(tensor) for tensor in node.outputs}
        context = tuple(tensor for key, tensor in needed.items() if key not in since)
        return dataclasses.replace(self, inputs=(first,), nodes=tuple(nodes), context=context)


class Entry(keras.Operation):
    """Casts a tensor to the dtype of a model's input, as the model does before its first layer."""

    def __init__(self, dtype, name):
        super().__init__(name=name)
        self.dtype = dtype

    def call(self, inputs):
        return ops.cast(inputs, self.dtype)


class _Recorded(keras.Operation):
    """Replaces an operation in a copy of its graph, so that the operation itself is not called.

    A layer permanently records every symbolic call: tracing it would make the model grow.
    """

    def __init__(self, operation):
        super().__init__(name=operation.name)
        self.operation = operation

    def compute_output_spec(self, *args, **kwargs):
        operation = self.operation
        try:
            return _spec_of(operation, args, kwargs)
        except (TypeError, ValueError):
            # A layer without a method for its output shape, in mixed precision: Keras casts its
            # weights only in a call.
            if _has_training(operation):
                kwargs = kwargs | {"training": False}
            return keras.tree.map_structure(
                lambda tensor: keras.KerasTensor(tensor.shape, tensor.dtype),
                operation(*args, **kwargs),
            )


def spec_of_call(node, tensor_of):
    """Returns the shapes and dtypes of what an operation returns, as `keras.KerasTensor`s.

    Nothing is added to a layer.

    Args:
        node: a `Node`.
        tensor_of: function of a tensor among the arguments that returns the one in its place.
    """

    def spec(leaf):
        if isinstance(leaf, Weight):
            return keras.KerasTensor(leaf.variable.shape, leaf.dtype)
        return tensor_of(leaf) if isinstance(leaf, keras.KerasTensor) else leaf

    args, kwargs = keras.tree.map_structure(spec, (node.args, node.kwargs))
    return _spec_of(node.operation, args, kwargs)


def _spec_of(operation, args, kwargs):
    """Returns what the method of an operation for the spec of its outputs returns."""
    if isinstance(operation, keras.layers.Layer):
        kwargs = {name: value for name, value in kwargs.items() if name != "training"}
        # A method for the output shape need not take all arguments of the call.
        if _has_training(operation) and _takes(operation.compute_output_spec, "training"):
            kwargs["training"] = False
    return operation.compute_output_spec(*args, **kwargs)


def _has_training(operation):
    is_layer = isinstance(operation, keras.layers.Layer)
    return is_layer and "training" in inspect.signature(operation.call).parameters


def _takes(function, name):
    """Returns whether a function takes an argument of a given name."""
    parameters = inspect.signature(function).parameters
    has_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return name in parameters or has_any


def graph_of(model, inputs=None):
    """Returns the graph of a functional model, with nested functional models flattened.

    The layers of the model are not called, and nothing is added to them.

    Args:
        model: a `keras.Model` with one output tensor: a functional one, or a `keras.Sequential`
            whose input is known.
        inputs: `keras.KerasTensor`s, in the structure of the model's inputs, of the sizes for which
            the graph is made; by default those of the model.

    Returns:
        A `Graph`. If a size is not known, such as the height and width of images, its tensors have
        the shapes for one size that the model accepts; the computation itself takes any size.

    Raises:
        ValueError: if the model has no such graph, or accepts none of the sizes that are tried.
    """
    if not has_graph(model):
        raise ValueError(
            "Argument `source` must be a functional `keras.Model`, or a `keras.Sequential` with "
            f"a defined input. Received: source={model.name} of type {type(model).__name__}"
        )
    if len(model.outputs) != 1:
        raise ValueError(
            "Argument `source` must be a model with one output tensor, or argument `output` must "
            "choose one of several, as `output=0`; callbacks are told by "
            "`tfresidual.callbacks.use_blocks(model, output=...)`. "
            f"Received: source={model.name} with {len(model.outputs)} outputs"
        )
    known = model.inputs if inputs is None else keras.tree.flatten(inputs)
    shapes = [tensor.shape for tensor in known]
    if all(None not in shape[1:] for shape in shapes):
        try:
            return _graph_for(model, shapes)
        except (ValueError, TypeError) as error:
            if inputs is None:
                raise
            raise ValueError(
                f"Argument `inputs` must be inputs that {model.name} accepts; Keras says: "
                f"{said(error)} Received: inputs of shape {shapes}"
            ) from error
    failures = []
    for assumed in SIZES:
        sizes = [
            (shape[0], *(assumed if size is None else size for size in shape[1:]))
            for shape in shapes
        ]
        try:
            return _graph_for(model, sizes)
        except (ValueError, TypeError) as error:
            failures.append(error)
    raise ValueError(
        f"Argument `source` must be a model that takes images of one of the sizes {SIZES}, or "
        f"that has an input of known size; for {SIZES[0]}, Keras says: {said(failures[0])} "
        f"Received: source={model.name} with an input of shape {shapes[0]}"
    ) from failures[0]


def _graph_for(model, shapes):
    images = [
        keras.KerasTensor(shape, dtype=tensor.dtype, name=tensor.name)
        for shape, tensor in zip(shapes, model.inputs, strict=True)
    ]
    nodes, (output,) = _flattened(model, images)
    structure = keras.tree.pack_sequence_as(inputs_of(model), images)
    return Graph(tuple(images), leading(nodes, output), output, structure)


def inputs_of(model):
    """Returns the inputs of a model with a graph, in the structure in which it takes them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def outputs_of(model):
    """Returns the outputs of a model with a graph, in the structure in which it returns them."""
    return model.outputs if isinstance(model, keras.Sequential) else model.output


def described(structure):
    """Returns the shapes of one image and the dtypes of inputs, in their structure."""
    if isinstance(structure, dict):
        pairs = {name: described(part) for name, part in structure.items()}
        return tuple({name: pair[place] for name, pair in pairs.items()} for place in (0, 1))
    if isinstance(structure, (tuple, list)):
        pairs = [described(part) for part in structure]
        return tuple(type(structure)(pair[place] for pair in pairs) for place in (0, 1))
    return tuple(structure.shape[1:]), structure.dtype


def has_graph(model):
    """Returns whether the graph of a model is known, and the model computes just that graph."""
    if not isinstance(model, keras.Model) or getattr(model, "inputs", None) is None:
        return False
    if not _has_usual_call(model):
        return False
    graph_calls = (_functional_call(), keras.Sequential.call)
    return type(model).call in graph_calls and "call" not in vars(model)


def _has_usual_call(model):
    """Returns whether calling a model is what Keras does, and then `call`.

    That of the models in keras-hub only refuses strings before.
    """
    owner = next(kind for kind in type(model).__mro__ if "__call__" in vars(kind))
    return owner.__module__.partition(".")[0] in ("keras", "keras_hub")


@functools.cache
def _functional_call():
    """Returns the `call` of functional models."""
    image = keras.Input((1,))
    return type(keras.Model(image, image)).call


def reference_of(model):
    """Returns a function that computes what a functional model computes at inference.

    The function refers to the layers, not to the model, because callbacks keep chains only as long
    as their model exists.
    """
    inputs = inputs_of(model)
    inputs = inputs if isinstance(inputs, (dict, list, tuple)) else model.inputs
    return functools.partial(keras.Model(inputs, model.outputs, name=model.name), training=False)


def is_of_keras(operation, name):
    """Returns whether an operation is the one of Keras with a given name, layer or `keras.ops`."""
    kind = type(operation)
    return kind.__name__ == name and kind.__module__.startswith("keras.")


def replayed(nodes, source, target):
    """Returns the function that computes the value of one tensor from that of another.

    Args:
        nodes: the `Node`s between them, in order; empty if both are the same tensor.
        source: `keras.KerasTensor`, the only input of the nodes from outside.
        target: `keras.KerasTensor`.
    """

    def function(value):
        return replay(nodes, {id(source): value})[id(target)]

    return function


def replay(nodes, values):
    """Runs nodes in order and returns the values of all tensors by id, including those given."""
    values = dict(values)
    for node in nodes:
        values |= node(values)
    return values


def _rewrapped(model):
    """Returns the same graph as a plain model, not compiled and not of a subclass."""
    return keras.Model(model.inputs, model.outputs, name=model.name)


def _flattened(model, tensors, counts=None):
    """Returns the nodes of a model that is called with some tensors, and the tensors it returns.

    Args:
        model: the `keras.Model`.
        tensors: list of `keras.KerasTensor`s.
        counts: the `Counts` of the repeated block that it is in, or `None`.
    """
    calls = []

    def record(recorded, *args, **kwargs):
        outputs = recorded(*args, **kwargs)
        node = Node(recorded.operation, args, kwargs, tuple(keras.tree.flatten(outputs)))
        calls.append(node)
        return outputs

    inputs = [
        keras.Input(batch_shape=tensor.shape, dtype=own.dtype, name=own.name)
        for tensor, own in zip(tensors, model.inputs, strict=True)
    ]
    traced = keras.models.clone_model(
        _rewrapped(model),
        input_tensors=inputs,
        clone_function=_Recorded,
        call_function=record,
    )
    nodes = [
        Node(Entry(own.dtype, f"{model.name}_entry"), (tensor,), {}, (own,))
        for tensor, own in zip(tensors, inputs, strict=True)
    ]
    # The results of nested models, by the id of the tensor that represents them in the outer graph.
    inner = {}

    def resolved(leaf):
        return inner.get(id(leaf), leaf)

    for node in calls:
        args, kwargs = keras.tree.map_structure(resolved, (node.args, node.kwargs))
        nested, results = _expanded(dataclasses.replace(node, args=args, kwargs=kwargs), counts)
        nodes += nested
        inner |= {id(own): result for own, result in zip(node.outputs, results, strict=True)}
    return nodes, [resolved(tensor) for tensor in traced.outputs]


def _expanded(node, counts):
    """Returns the nodes in the place of a node, and the tensors in the place of its outputs.

    Nested models are flattened, blocks repeated, and a normalization with weights of its own for
    every application is replaced by that of the application.

    Args:
        node: a `Node`.
        counts: see `_flattened`.
    """
    operation = node.operation
    if _can_be_flattened(node):
        return _flattened(operation, node.inputs, counts)
    if isinstance(operation, Repeated) and _is_of_one_tensor(node):
        counts = counts or Counts(operation.first, is_repeated=True)
        nodes, (tensor,) = [], node.inputs
        for _ in range(operation.times):
            block = _Recorded(operation.block)
            call = Node(operation.block, (tensor,), {}, (block(tensor),))
            nested, (tensor,) = _expanded(call, counts)
            nodes += nested
        return nodes, [tensor]
    return [counted(node, counts)], node.outputs


def counted(node, counts):
    """Returns a node that computes the same at any time: which application it is, is settled.

    Args:
        node: a `Node`.
        counts: the `Counts` in which it is called, or `None`. They count the calls in it.
    """
    operation = node.operation
    if isinstance(operation, UnsharedBatchNormalization):
        application = node.kwargs.get("application")
        if application is None and counts is not None:
            application = counts.next(operation)
        if not isinstance(application, int):
            return node
        return dataclasses.replace(
            node,
            operation=operation.normalization(application),
            kwargs={name: one for name, one in node.kwargs.items() if name != "application"},
        )
    layers = operation._flatten_layers() if isinstance(operation, keras.layers.Layer) else ()
    if counts is None or not any(isinstance(one, UnsharedBatchNormalization) for one in layers):
        return node
    before = counts.copy()

    def run(*tensors):
        values = zip(map(id, node.arguments), tensors, strict=True)
        with counts:
            made = node.applied(dict(values))
        return [part for part in keras.tree.flatten(made) if part is not None]

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in node.arguments]
    tf.function(run, input_signature=specs, autograph=False).get_concrete_function()
    return dataclasses.replace(node, counts=before)


def _is_masked(node):
    return any(mask is not None for mask in keras.tree.flatten(node.kwargs.get("mask")))


def _is_of_one_tensor(node):
    """Returns whether a node takes a tensor and nothing else."""
    is_alone = len(node.arguments) == 1 == len(node.args)
    return is_alone and isinstance(node.args[0], keras.KerasTensor) and not _is_masked(node)


def _can_be_flattened(node):
    """Returns whether a node calls a nested model and can be replaced by the nodes of the model."""
    model, is_masked = node.operation, _is_masked(node)
    given = [*node.args, *(node.kwargs[name] for name in ("inputs",) if name in node.kwargs)]
    if not has_graph(model) or is_masked or len(given) != 1:
        return False
    (inputs,) = given
    is_plain = isinstance(inputs, keras.KerasTensor) or (
        isinstance(inputs, (list, tuple))
        and all(isinstance(tensor, keras.KerasTensor) for tensor in inputs)
    )
    own = inputs_of(model)
    if isinstance(inputs, dict) and isinstance(own, dict):
        is_plain = set(inputs) == set(own) and all(
            isinstance(tensor, keras.KerasTensor) for tensor in inputs.values()
        )
    ranks = [len(tensor.shape) for tensor in node.inputs]
    return is_plain and ranks == [len(tensor.shape) for tensor in model.inputs]


def leading(nodes, output):
    """Returns the nodes that lead to a tensor, as a tuple."""
    needed, kept = {id(output)}, []
    for node in reversed(nodes):
        if any(id(tensor) in needed for tensor in node.outputs):
            kept.append(node)
            needed |= {id(tensor) for tensor in node.inputs}
    return tuple(reversed(kept))
