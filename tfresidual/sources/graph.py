"""The graph of a functional Keras model: its operations in order, with nested models flattened."""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import re
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers import Repeated, UnsharedBatchNormalization
from tfresidual.layers.applications import Counts
from tfresidual.routing.agreement import SIZES
from tfresidual.sources.operations import is_unchanged, package_of

# The function `(node, values)` that takes the place of `Node.applied` for as long as it is set.
CALLER = contextvars.ContextVar("caller", default=None)
# In the messages of errors: colours, what TensorFlow writes before the message itself, and lines of
# Keras before it.
_MARKS = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\}")
# What Keras and TensorFlow say, in several sentences, of their functions called on Keras' tensors.
_SYMBOLIC = re.compile(
    "A KerasTensor (cannot be used as input|is symbolic)|build a TypeSpec for <KerasTensor"
)
# The operation in TensorFlow's notation, to the end of the message.
_OPERATION = re.compile(r" for '\{\{node .*", re.DOTALL)
_FRAME = re.compile(r"Exception encountered when calling|.* Error encountered:$")


@contextlib.contextmanager
def calling(call):
    """Within it, `call(node, values)` takes the place of `Node.applied`."""
    token = CALLER.set(call)
    try:
        yield
    finally:
        CALLER.reset(token)


@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """A weight among the arguments of a call, and the dtype to which Keras casts it there."""

    variable: keras.Variable
    dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One call of an operation.

    Attributes: operation: the layer, or the operation of `keras.ops`. args: positional arguments,
        with tensors as `keras.KerasTensor`s; weights that an operation of `keras.ops` takes are
        `Weight`s. kwargs: keyword arguments. outputs: the `keras.KerasTensor`s that it returns, and
        then the masks attached to them. inside: the opened layers in which it is called, from the
        outermost to the innermost. masked: pairs of an argument and the mask attached to it, which
        the operation may read. masks: for every mask among the outputs, the index of its output.
        reads_shapes_alone: whether the outputs are the same for all values of the arguments.
        counts: what layers inside that count their applications have counted before, or `None`.
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
        """Calls the operation without training; takes and returns values of tensors by id."""
        call = CALLER.get()
        with self._taking_masks(values):
            made = self.applied(values) if call is None else call(self, values)
        results = keras.tree.flatten(made)
        # A layer whose output has a shape may return None in its place. What has none is not among
        # the outputs.
        if len(results) > len(self.outputs) - len(self.masks):
            results = [result for result in results if result is not None]
        made = [mask_of(results[index]) for index in self.masks]
        if any(mask is None for mask in made):
            raise ArgumentError(
                "source",
                "hold no layer that makes a mask in its code, where it is rebuilt",
                said=self.operation.name,
            )
        results += made
        return {id(tensor): value for tensor, value in zip(self.outputs, results, strict=True)}

    @contextlib.contextmanager
    def _taking_masks(self, values):
        """Attaches their masks to values of the arguments, and no others."""
        masks = {id(tensor): mask for tensor, mask in self.masked}
        before = []
        for tensor in self.arguments:
            value, mask = values[id(tensor)], masks.get(id(tensor))
            is_symbolic, own = isinstance(value, keras.KerasTensor), mask_of(value)
            if mask is not None:
                before += [(value, own)] if is_symbolic else []
                value._keras_mask = values[id(mask)]
            elif own is not None and not is_symbolic:
                # One that another operation has left there would not be there on a route.
                value._keras_mask = None
        try:
            yield
        finally:
            for value, own in before:
                value._keras_mask = own

    def applied(self, values):
        """Returns what the operation returns for values of its arguments by id."""
        args, kwargs = self.replaced(
            lambda tensor: values[id(tensor)], lambda one: ops.cast(one.variable, one.dtype)
        )
        # As in `predict`, which also overrides the `training` argument of the call in the graph.
        if isinstance(self.operation, keras.layers.Layer):
            kwargs = kwargs | {"training": False}
        with contextlib.nullcontext() if self.counts is None else self.counts.copy():
            return self.operation(*args, **kwargs)

    def replaced(self, of_tensor, of_weight):
        """Returns the arguments, with what functions return in place of tensors and weights."""

        def replaced(leaf):
            if isinstance(leaf, Weight):
                return of_weight(leaf)
            return of_tensor(leaf) if isinstance(leaf, keras.KerasTensor) else leaf

        return keras.tree.map_structure(replaced, (self.args, self.kwargs))

    def spec(self, of_tensor):
        """Returns the specs of the outputs for other arguments; nothing is added to a layer."""
        args, kwargs = self.replaced(
            of_tensor, lambda one: keras.KerasTensor(one.variable.shape, one.dtype)
        )
        return _spec_of(self.operation, args, kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The operations that lead from the inputs of a model, or from a tensor, to its output.

    Attributes:
        inputs: tuple of `keras.KerasTensor`s.
        nodes: tuple of `Node`s, each after those whose results it takes.
        output: `keras.KerasTensor`.
        structure: the inputs as the model takes them.
        context: tuple of the `keras.KerasTensor`s that nodes take beside the inputs and each other.
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
    """Casts a tensor to the dtype of a model's input, as the model does before its first layer.

    A mask that is attached to the tensor stays attached.
    """

    def __init__(self, dtype, name):
        super().__init__(name=name)
        self.dtype = dtype

    def call(self, inputs):
        return ops.cast(inputs, self.dtype)

    def symbolic_call(self, inputs):
        # A model of parts of a chain is saved with an operation that Keras can load.
        result = ops.cast(inputs, self.dtype)
        result._keras_mask = mask_of(inputs)
        return result


class _Recorded(keras.Operation):
    """Replaces an operation in a copy of its graph: a layer keeps every symbolic call."""

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


def _spec_of(operation, args, kwargs):
    """Returns what the method of an operation for the spec of its outputs returns."""
    if isinstance(operation, keras.layers.Layer):
        kwargs = {name: value for name, value in kwargs.items() if name != "training"}
        # A method for the output shape need not take all arguments of the call.
        taken = inspect.signature(operation.compute_output_spec).parameters
        has_any = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        if _has_training(operation) and ("training" in taken or has_any):
            kwargs["training"] = False
    return operation.compute_output_spec(*args, **kwargs)


def _has_training(operation):
    is_layer = isinstance(operation, keras.layers.Layer)
    return is_layer and "training" in inspect.signature(operation.call).parameters


def graph_of(model, inputs=None):
    """Returns the `Graph` of a functional model, with nested functional models flattened.

    No layer is called. `inputs` are `keras.KerasTensor`s of the sizes for which the graph is made;
    where sizes are not known, they are those of one size that the model accepts.

    Raises:
        ValueError: if the model has no such graph, or accepts none of the sizes that are tried.
    """
    if not has_graph(model):
        raise ArgumentError(
            "source",
            "be a functional `keras.Model`, or a `keras.Sequential` with a defined input",
            said=f"source={model.name} of type {type(model).__name__}",
        )
    if len(model.outputs) != 1:
        raise ArgumentError(
            "source",
            "be a model with one output tensor, or argument `output` must choose one of several, "
            "as `output=0`; callbacks are told by "
            "`tfresidual.callbacks.use_blocks(model, output=...)`",
            said=f"source={model.name} with {len(model.outputs)} outputs",
        )
    known = model.inputs if inputs is None else keras.tree.flatten(inputs)
    shapes = [tensor.shape for tensor in known]
    is_open = any(None in shape[1:] for shape in shapes)
    failures = []
    for assumed in SIZES if is_open else SIZES[:1]:
        sizes = [
            (shape[0], *(assumed if size is None else size for size in shape[1:]))
            for shape in shapes
        ]
        try:
            return _graph_for(model, sizes)
        except (ValueError, TypeError) as error:
            failures.append(error)
    first = failures[0]
    if is_open:
        raise ArgumentError(
            "source",
            f"be a model that takes images of one of the sizes {SIZES}, or that has an input of "
            f"known size; for {SIZES[0]}, Keras says: {said(first)}",
            said=f"source={model.name} with an input of shape {shapes[0]}",
        ) from first
    if inputs is None:
        raise first
    raise not_accepted(model, shapes, first) from first


def not_accepted(model, shapes, error):
    """Returns the error for inputs of some shapes that a model does not take."""
    must = f"be inputs that {model.name} accepts; Keras says: {said(error)}"
    return ArgumentError("inputs", must, said=f"inputs of shape {shapes}")


def _graph_for(model, shapes):
    images = [
        keras.KerasTensor(shape, dtype=tensor.dtype, name=tensor.name)
        for shape, tensor in zip(shapes, model.inputs, strict=True)
    ]
    nodes, (output,) = _flattened(model, images)
    structure = keras.tree.pack_sequence_as(inputs_of(model), images)
    return Graph(tuple(images), tuple(path_to(nodes, output)), output, structure)


def inputs_of(model):
    """Returns the inputs of a model with a graph, in the structure in which it takes them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def outputs_of(model):
    """Returns the outputs of a model with a graph, in the structure in which it returns them."""
    return model.outputs if isinstance(model, keras.Sequential) else model.output


def described(structure):
    """Returns the shapes of one image and the dtypes of inputs, in their structure."""
    shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), structure)
    return shapes, keras.tree.map_structure(lambda tensor: tensor.dtype, structure)


def has_graph(model):
    """Returns whether the graph of a model is known, and the model computes just that graph."""
    if not isinstance(model, keras.Model) or getattr(model, "inputs", None) is None:
        return False
    # The `__call__` of models of keras-hub refuses strings, and then does what that of Keras does.
    owner = next(kind for kind in type(model).__mro__ if "__call__" in vars(kind))
    return package_of(owner) in ("keras", "keras_hub") and any(
        is_unchanged(model, kind, "call") for kind in (_functional(), keras.Sequential)
    )


@functools.cache
def _functional():
    image = keras.Input((1,))
    return type(keras.Model(image, image))


def reference_of(model):
    """Returns a function that computes what a functional model computes at inference.

    It refers to the layers, not to the model: callbacks keep chains as long as their model exists.
    """
    inputs = inputs_of(model)
    inputs = inputs if isinstance(inputs, (dict, list, tuple)) else model.inputs
    return functools.partial(keras.Model(inputs, model.outputs, name=model.name), training=False)


def replay(nodes, values):
    """Runs nodes in order and returns the values of all tensors by id, including those given."""
    values = dict(values)
    for node in nodes:
        values |= node(values)
    return values


def path_to(nodes, *tensors):
    """Returns those of some nodes that lead to some tensors, as a list."""
    needed, path = set(map(id, tensors)), []
    for node in reversed(nodes):
        if any(id(output) in needed for output in node.outputs):
            path.append(node)
            needed |= {id(taken) for taken in node.inputs}
    return path[::-1]


def mask_of(tensor):
    """Returns the mask that Keras attached to a tensor, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def _flattened(model, tensors, counts=None, masks=()):
    """Returns the nodes of a model that is called with some tensors, and the tensors it returns.

    With masks, there is one for each of the tensors, or `None`.
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
        # The same graph as a plain model, not compiled and not of a subclass.
        keras.Model(model.inputs, model.outputs, name=model.name),
        input_tensors=inputs,
        clone_function=_Recorded,
        call_function=record,
    )
    nodes = []
    for tensor, own, mask in zip(tensors, inputs, masks or [None] * len(tensors), strict=True):
        masked = () if mask is None else ((tensor, mask),)
        entry = Entry(own.dtype, f"{model.name}_entry")
        nodes.append(Node(entry, (tensor,), {}, (own,), masked=masked))
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
    """Returns the nodes and the tensors in the place of a node and its outputs."""
    operation = node.operation
    if _can_be_flattened(node):
        masks = keras.tree.flatten(node.kwargs.get("mask"))
        tensors = _parts_given(node)
        masks = masks if len(masks) == len(tensors) else ()
        return _flattened(operation, tensors, counts, masks)
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
    """Returns a node of which it is settled which application it is; counts the calls in it."""
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
    is_alone = len(node.arguments) == 1 == len(node.args)
    return is_alone and isinstance(node.args[0], keras.KerasTensor) and not _is_masked(node)


def _can_be_flattened(node):
    if not has_graph(node.operation):
        return False
    parts, masks = _parts_given(node), keras.tree.flatten(node.kwargs.get("mask"))
    if not parts or not all(isinstance(part, keras.KerasTensor) for part in parts):
        return False
    if _is_masked(node) and len(masks) != len(parts):
        return False
    ranks = [len(tensor.shape) for tensor in parts]
    return ranks == [len(tensor.shape) for tensor in node.operation.inputs]


def _parts_given(node):
    """Returns the inputs of a call of a model, as a list; an empty one if they are not known."""
    given = [*node.args, *(node.kwargs[name] for name in ("inputs",) if name in node.kwargs)]
    if len(given) != 1:
        return []
    (inputs,) = given
    if isinstance(inputs, dict):
        own = inputs_of(node.operation)
        is_same = isinstance(own, dict) and set(inputs) == set(own)
        return keras.tree.flatten(inputs) if is_same else []
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


def said(error):
    """Returns the first line of an error, with the next after a colon, or its class."""
    if _SYMBOLIC.search(str(error)):
        return "functions of TensorFlow or NumPy are called, into which Keras cannot look"
    text = _OPERATION.sub(".", str(error))
    lines = [_MARKS.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _FRAME.match(line)]
    count = next((number for number, line in enumerate(lines, 1) if line[-1] != ":"), len(lines))
    return " ".join(lines[:count]) or type(error).__name__
