"""The graph of a functional Keras model: its operations in a row, nested models flattened."""

import dataclasses
import functools
import inspect

import keras
from keras import ops

from tfresidual.routing.agreement import SIZES


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation.

    Attributes:
        operation: the layer, or the operation of `keras.ops`.
        args: positional arguments; tensors stand in them as `keras.KerasTensor`s.
        kwargs: keyword arguments.
        outputs: the `keras.KerasTensor`s that it returns, as a tuple.
    """

    operation: keras.Operation
    args: tuple
    kwargs: dict
    outputs: tuple

    @property
    def inputs(self):
        """The tensors among its arguments, in order."""
        leaves = keras.tree.flatten((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)]

    def __call__(self, values):
        """Calls the operation without training.

        Args:
            values: dict from the id of every tensor among the arguments to its value.

        Returns:
            A dict from the id of every tensor that the operation returns to its value.
        """
        args, kwargs = keras.tree.map_structure(
            lambda leaf: values[id(leaf)] if isinstance(leaf, keras.KerasTensor) else leaf,
            (self.args, self.kwargs),
        )
        # As in `predict`, which also overrides what the call in the graph says.
        if isinstance(self.operation, keras.layers.Layer):
            kwargs = kwargs | {"training": False}
        results = keras.tree.flatten(self.operation(*args, **kwargs))
        return {id(tensor): value for tensor, value in zip(self.outputs, results, strict=True)}


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The operations that lead from a model's input to its output.

    Attributes:
        input: `keras.KerasTensor`.
        nodes: tuple of `Node`s, each behind those whose results it takes.
        output: `keras.KerasTensor`.
    """

    input: keras.KerasTensor
    nodes: tuple[Node, ...]
    output: keras.KerasTensor


class Entry(keras.Operation):
    """What a model does to a tensor before its first layer: it brings it to the input's dtype."""

    def __init__(self, dtype, name):
        super().__init__(name=name)
        self.dtype = dtype

    def call(self, inputs):
        return ops.cast(inputs, self.dtype)


class _Recorded(keras.Operation):
    """Stands for an operation in a copy of its graph, so that the operation itself is not called.

    A layer keeps every symbolic call of it for good: tracing would grow the model.
    """

    def __init__(self, operation):
        super().__init__(name=operation.name)
        self.operation = operation

    def compute_output_spec(self, *args, **kwargs):
        operation = self.operation
        if isinstance(operation, keras.layers.Layer):
            kwargs.pop("training", None)
            if "training" in inspect.signature(operation.call).parameters:
                kwargs["training"] = False
        try:
            return operation.compute_output_spec(*args, **kwargs)
        except (TypeError, ValueError):
            # A layer that says no shape, in mixed precision: only a call casts its weights.
            return keras.tree.map_structure(
                lambda tensor: keras.KerasTensor(tensor.shape, tensor.dtype),
                operation(*args, **kwargs),
            )


def graph_of(model):
    """The graph of a functional model, with nested functional models flattened.

    The model's layers are not called, and nothing is added to them.

    Args:
        model: a `keras.Model` with one input and one output tensor: a functional one, or a
            `keras.Sequential` whose input is known.

    Returns:
        A `Graph`. Where height or width of the images are not known, the shapes of its tensors
        are those for some size that the model takes; what is computed takes any.

    Raises:
        ValueError: if the model has no such graph, or takes none of the sizes that are tried.
    """
    if not has_graph(model):
        raise ValueError(
            "Argument `source` must be a functional `keras.Model`, or a `keras.Sequential` that "
            "has its input: of other models, such as subclassed ones, the blocks cannot be seen. "
            f"Received: source={model.name} of type {type(model).__name__}"
        )
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "Argument `source` must be a model with one input and one output tensor, such as "
            "`keras.Model(model.input, model.outputs[0])`. "
            f"Received: source={model.name} with {len(model.inputs)} inputs and "
            f"{len(model.outputs)} outputs"
        )
    (inputs,) = model.inputs
    if None not in inputs.shape[1:]:
        return _graph_for(model, inputs.shape)
    failures = []
    for assumed in SIZES:
        sizes = (assumed if size is None else size for size in inputs.shape[1:])
        try:
            return _graph_for(model, (inputs.shape[0], *sizes))
        except (ValueError, TypeError) as error:
            failures.append(error)
    raise ValueError(
        f"Argument `source` must be a model that takes images of one of the sizes {SIZES}, or "
        f"that has an input of known size; for {SIZES[0]}, Keras says: {failures[0]} "
        f"Received: source={model.name} with an input of shape {inputs.shape}"
    ) from failures[0]


def _graph_for(model, shape):
    images = keras.KerasTensor(shape, dtype=model.inputs[0].dtype)
    nodes, (output,) = _flattened(model, [images])
    return Graph(images, _leading(nodes, output), output)


def has_graph(model):
    """Whether a model computes what its graph says, and its graph is known."""
    if not isinstance(model, keras.Model) or getattr(model, "inputs", None) is None:
        return False
    graph_calls = (type(_rewrapped(model)).call, keras.Sequential.call)
    return type(model).call in graph_calls


def reference_of(model):
    """What a functional model computes without training, as a function.

    It holds the layers, not the model: callbacks keep chains for as long as their model lives.
    """
    return functools.partial(_rewrapped(model), training=False)


def is_of_keras(operation, name):
    """Whether an operation is Keras' own of a name, as a layer or of `keras.ops`."""
    kind = type(operation)
    return kind.__name__ == name and kind.__module__.startswith("keras.")


def replayed(nodes, source, target):
    """The function that leads from the value of one tensor to that of another.

    Args:
        nodes: the `Node`s on the way, in order; none where both tensors are one.
        source: `keras.KerasTensor`, the only one that the nodes take from elsewhere.
        target: `keras.KerasTensor`.
    """

    def function(value):
        return replay(nodes, {id(source): value})[id(target)]

    return function


def replay(nodes, values):
    """Runs nodes one after the other: the values of all tensors by id, those given among them."""
    values = dict(values)
    for node in nodes:
        values |= node(values)
    return values


def _rewrapped(model):
    """The same graph in a plain model: neither compiled nor of a class of its own."""
    return keras.Model(model.inputs, model.outputs, name=model.name)


def _flattened(model, tensors):
    """The nodes of a model that is called with some tensors, and the tensors that it returns."""
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
    # What a nested model returns, by the id of the tensor that stands for it in the outer graph.
    inner = {}

    def resolved(leaf):
        return inner.get(id(leaf), leaf)

    for node in calls:
        args, kwargs = keras.tree.map_structure(resolved, (node.args, node.kwargs))
        if _can_be_flattened(node):
            nested, results = _flattened(node.operation, [*map(resolved, node.inputs)])
            nodes += nested
            inner |= {id(own): result for own, result in zip(node.outputs, results, strict=True)}
        else:
            nodes.append(dataclasses.replace(node, args=args, kwargs=kwargs))
    return nodes, [resolved(tensor) for tensor in traced.outputs]


def _can_be_flattened(node):
    """Whether a call is that of a nested model whose nodes can stand for it."""
    model = node.operation
    masks = keras.tree.flatten(node.kwargs.get("mask"))
    is_masked = any(mask is not None for mask in masks)
    if not has_graph(model) or is_masked or len(node.args) != 1:
        return False
    (inputs,) = node.args
    is_plain = isinstance(inputs, keras.KerasTensor) or (
        isinstance(inputs, (list, tuple))
        and all(isinstance(tensor, keras.KerasTensor) for tensor in inputs)
    )
    ranks = [len(tensor.shape) for tensor in node.inputs]
    return is_plain and ranks == [len(tensor.shape) for tensor in model.inputs]


def _leading(nodes, output):
    """Those of the nodes that lead to a tensor, as a tuple."""
    needed, kept = {id(output)}, []
    for node in reversed(nodes):
        if any(id(tensor) in needed for tensor in node.outputs):
            kept.append(node)
            needed |= {id(tensor) for tensor in node.inputs}
    return tuple(reversed(kept))
