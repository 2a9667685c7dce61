"""The graph of a model: its operations in order, each as a call that can be made again."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers.applications import Counts

# A class of layers, the name of a layer, a function of a layer, or several of these.
Layers: TypeAlias = (
    "type[keras.layers.Layer] | str | Callable[[keras.layers.Layer], bool] | Sequence[Any]"
)

# The packages whose layers are known.
KNOWN_PACKAGES = ("keras", "tfresidual")


def package_of(kind):
    """Returns the name of the package that a class is from."""
    return kind.__module__.partition(".")[0]


def is_of_keras(operation, *names):
    """Returns whether an operation is one of Keras with one of these names."""
    kind = type(operation)
    return kind.__name__ in names and kind.__module__.startswith("keras.")


def is_unchanged(layer, kind, *methods):
    """Returns whether a layer is of a class and computes what that does, not of its own."""
    return (
        isinstance(layer, kind)
        and all(getattr(type(layer), name) is getattr(kind, name) for name in methods)
        and "call" not in vars(layer)
    )


def unwrapped(operation):
    """Returns an operation without the layers that are wrapped around it."""
    while isinstance(operation, keras.layers.Wrapper):
        operation = operation.layer
    return operation


def may_hide(layer):
    """Returns whether something is a layer written by others, which may contain additions.

    Those that Keras wrote for its applications count as such.
    """
    if isinstance(layer, (keras.layers.Lambda, keras.layers.Wrapper)):
        return False
    is_layer, kind = isinstance(layer, keras.layers.Layer), type(layer)
    is_of_applications = ".applications." in kind.__module__
    return is_layer and (is_of_applications or package_of(kind) not in KNOWN_PACKAGES)


class Chooser:
    """Says whether an operation is a chosen layer; `unused` are names that none had so far."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.unused = [part for part in parts if isinstance(part, str)]

    def __call__(self, operation: object) -> bool:
        if not isinstance(operation, keras.layers.Layer):
            return False
        self.unused = [name for name in self.unused if name != operation.name]
        return any(_fits(operation, part) for part in self.parts)


def chooser(name: str, chosen: Layers, otherwise: str = "") -> Chooser:
    """Returns the `Chooser` for an argument; `otherwise` says in errors what else it may be."""
    parts = list(chosen) if isinstance(chosen, (list, tuple, set)) else [chosen]
    is_usable = [
        isinstance(part, str)
        or (issubclass(part, keras.layers.Layer) if inspect.isclass(part) else callable(part))
        for part in parts
    ]
    if not parts or not all(is_usable):
        raise ArgumentError(
            name,
            "be a class of layers, the name of a layer, a function of a layer, or several of these "
            f"in a list{otherwise}",
            chosen,
        )
    return Chooser(parts)


def _fits(layer, part):
    if isinstance(part, str):
        return layer.name == part
    return isinstance(layer, part) if inspect.isclass(part) else bool(part(layer))


# The function `(node, values)` that takes the place of `Node.applied` for as long as it is set.
CALLER = contextvars.ContextVar("caller", default=None)


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


@dataclasses.dataclass(eq=False)
class Node:
    """One call of an operation.

    Attributes: operation: the layer, or the operation of `keras.ops`. args: positional arguments,
        with tensors as `keras.KerasTensor`s; weights that an operation of `keras.ops` takes are
        `Weight`s. kwargs: keyword arguments. outputs: the `keras.KerasTensor`s that it returns.
        within: the calls of opened layers in which it is called, from the outermost on, as `Node`s.
        masked: pairs of an argument and the mask attached to it, which the operation may read.
        reads_shapes_alone: whether the outputs are the same for all values of the arguments.
        counts: what layers inside that count their applications have counted before, or `None`.
    """

    operation: keras.Operation
    args: tuple
    kwargs: dict
    outputs: tuple
    within: tuple = ()
    masked: tuple = ()
    reads_shapes_alone: bool = False
    counts: Counts | None = None

    @property
    def inside(self):
        """The opened layers in which it is called, from the outermost to the innermost."""
        return tuple(call.operation for call in self.within)

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
        self._take_masks(values)
        made = self.applied(values) if call is None else call(self, values)
        results = keras.tree.flatten(made)
        # A layer whose output has a shape may return None in its place. What has none is not among
        # the outputs.
        if len(results) > len(self.outputs):
            results = [result for result in results if result is not None]
        return {id(tensor): value for tensor, value in zip(self.outputs, results, strict=True)}

    def _take_masks(self, values):
        """Attaches their masks to values of the arguments, and no others."""
        masks = {id(tensor): mask for tensor, mask in self.masked}
        for tensor in self.arguments:
            value, mask = values[id(tensor)], masks.get(id(tensor))
            if mask is not None:
                value._keras_mask = values[id(mask)]
            elif mask_of(value) is not None:
                # One that another operation has left there would not be there on a route.
                value._keras_mask = None

    def applied(self, values):
        """Returns what the operation returns for values of its arguments by id."""
        args, kwargs = self.replaced(
            lambda tensor: values[id(tensor)], lambda one: ops.cast(one.variable, one.dtype)
        )
        # As in `predict`, which also overrides the `training` argument of the call in the graph.
        call = self.operation
        if isinstance(call, keras.layers.Layer):
            kwargs = kwargs | {"training": False}
            # What a `__call__` of its own does is in the graph.
            call = functools.partial(keras.layers.Layer.__call__, call)
        with contextlib.nullcontext() if self.counts is None else self.counts.copy():
            return call(*args, **kwargs)

    def replaced(self, of_tensor, of_weight):
        """Returns the arguments, with what functions return in place of tensors and weights."""

        def replaced(leaf):
            if isinstance(leaf, Weight):
                return of_weight(leaf)
            return of_tensor(leaf) if isinstance(leaf, keras.KerasTensor) else leaf

        return keras.tree.map_structure(replaced, (self.args, self.kwargs))


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The operations that lead from the inputs of a model, or from a tensor, to its output.

    Attributes:
        inputs: tuple of `keras.KerasTensor`s.
        nodes: tuple of `Node`s, each after those whose results it takes.
        output: `keras.KerasTensor`.
        structure: the inputs as the model takes them.
        context: tuple of the `keras.KerasTensor`s that nodes take beside the inputs and each other.
        failures: dict of the errors of layers that could not be opened.
    """

    inputs: tuple[keras.KerasTensor, ...]
    nodes: tuple[Node, ...]
    output: keras.KerasTensor
    structure: Any = None
    context: tuple[keras.KerasTensor, ...] = ()
    failures: dict[keras.layers.Layer, Exception] = dataclasses.field(default_factory=dict)

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
    """Returns a function that computes what a model computes at inference."""
    return lambda images: model(images, training=False)


def is_entry(node):
    """Returns whether a node casts an input of a nested model, as the model does."""
    return is_of_keras(node.operation, "ConvertToTensor")


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
