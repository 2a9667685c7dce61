"""Traces what a model computes, by calling it with Keras' symbolic tensors. TensorFlow only.

Nested functional models are flattened, and chosen layers are opened: in their place are the
operations of their `call`. While a model is traced, some methods of Keras are replaced; nothing
else in the package does that.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers import Repeated, UnsharedBatchNormalization
from tfresidual.layers.applications import counts_in_use
from tfresidual.sources.graph import (
    Graph,
    Node,
    Weight,
    has_graph,
    inputs_of,
    is_of_keras,
    mask_of,
    path_to,
)
from tfresidual.sources.one_output import OneOutput

# The size that open axes of images are taken to have, unless `inputs` are given. Those of sequences
# stay open: few layers need to know how many positions there are.
ASSUMED = 224
# The smallest number of images with which a model is traced.
IMAGES = 37
# The operators of weights, which do not know symbolic tensors.
_OPERATORS = {
    "add": ops.add,
    "sub": ops.subtract,
    "mul": ops.multiply,
    "truediv": ops.true_divide,
    "matmul": ops.matmul,
}


def traced(model, inputs=None, is_opened=lambda layer: False):
    """Returns the graph of a model as it is traced, with layers opened; see `closed`.

    Of the layers for which `is_opened` is true, those stay whole that read their weights as
    numbers, which would be constants, or whose code does not take symbolic tensors. Other errors of
    Keras are raised as they are.

    Args:
        model: a `keras.Model`.
        inputs: a batch or `keras.KerasTensor`s; `None` for the sizes that a model with a graph
            declares.
        is_opened: a function of a layer.
    """
    declared = inputs_of(model) if has_graph(model) else None
    if inputs is None and declared is None:
        raise ArgumentError(
            ("source", "inputs"),
            "be a functional `keras.Model` or a `keras.Sequential` with a defined input; for other "
            "models, such as subclassed ones, `inputs` must be a batch of inputs, or "
            "`keras.KerasTensor`s of their shapes, with which the blocks are found (callbacks: "
            "`tfresidual.callbacks.use_blocks(model, inputs=batch)` before `fit`)",
            received=f"source={model.name} of type {type(model).__name__}, inputs=None",
        )
    given = _symbolic(declared if inputs is None else inputs, declared, model)
    function = functools.partial(model, training=None)
    if isinstance(model, OneOutput):
        function, model = model.applied, model.model
    if not model.built:
        leaves = [ops.zeros((1, *one.shape[1:]), one.dtype) for one in keras.tree.flatten(given)]
        model(keras.tree.pack_sequence_as(given, leaves))
    recorder = _Recorder(model, is_opened)
    with _replaced_methods(recorder):
        made = keras.tree.flatten(function(given))
    if len(made) != 1 or not isinstance(made[0], keras.KerasTensor):
        raise ArgumentError(
            ("source", "output"),
            "be a model with one output tensor, or argument `output` must choose one of several, "
            "as `output=0` (callbacks: `tfresidual.callbacks.use_blocks(model, output=...)`)",
            received=f"source={model.name} with {len(made)} outputs of type "
            f"{type(made[0]).__name__}",
        )
    nodes = tuple(path_to(recorder.nodes, made[0]))
    return Graph(tuple(keras.tree.flatten(given)), nodes, made[0], given, (), recorder.failures)


def whole_graph(model, inputs=None):
    """Returns the `Graph` of a model with whole layers."""
    return closed(traced(model, inputs))


def closed(graph, needed=()):
    """Returns a graph as it was traced for any number of images, with only some layers opened."""
    kept = set(map(id, needed))
    nodes = list(graph.nodes)
    calls = {id(call): call for node in nodes for call in node.within}
    # An inner layer comes after the layer around it.
    for call in sorted(calls.values(), key=lambda call: len(call.within)):
        own = [node for node in nodes if any(call is one for one in node.within)]
        if own and id(call.operation) not in kept and _can_be_closed(call, own, nodes):
            place = nodes.index(own[-1])
            nodes[place] = _with_own_outputs(call)
            nodes = [node for node in nodes if not any(node is one for one in own)]
    nodes = _for_any_number(nodes, graph.input.shape[0])
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _with_own_outputs(call):
    """Returns the node of a layer that may return some of its arguments."""
    taken = set(map(id, call.inputs))
    outputs = (
        keras.KerasTensor(one.shape, one.dtype) if id(one) in taken else one for one in call.outputs
    )
    return dataclasses.replace(call, outputs=tuple(outputs))


def _can_be_closed(call, own, nodes):
    """Returns whether all that others read of what a layer computes is among its outputs."""
    made = {id(tensor) for node in own for tensor in node.outputs}
    outputs = {id(tensor) for tensor in call.outputs} - set(map(id, call.inputs))
    inside = {id(node) for node in own}
    read = {id(one) for node in nodes if id(node) not in inside for one in node.inputs}
    is_counted = any(isinstance(one, UnsharedBatchNormalization) for one in _parts(call.operation))
    return outputs <= made and not (read & made) - outputs and not is_counted


class _Recorder:
    """Collects the calls of layers and operations on symbolic tensors."""

    def __init__(self, model, is_opened):
        self.model, self.is_opened = model, is_opened
        self.nodes, self.failures = [], {}
        # The calls of the layers that are being opened, from the outermost to the innermost.
        self.within = ()
        # Those that read weights as numbers, and whether weights may be read at the moment.
        self.reading, self.is_recording = [], False
        # The casts of floats, by the ids of the results.
        self.casts = {}

    def call(self, layer, args, kwargs):
        """Calls a layer on symbolic tensors, opened if that is asked for and works."""
        if self.is_recording:
            return layer.compute_output_spec(*args, **kwargs)
        is_repeated = isinstance(layer, Repeated)
        if layer is self.model or is_repeated or (has_graph(layer) and _is_symbolic(args, kwargs)):
            return layer.call(*args, **kwargs)
        if not self.is_opened(layer):
            return self.record(layer, args, kwargs)
        place, counts = len(self.nodes), counts_in_use()
        called, reads_shapes_alone = counts and dict(counts.called), False
        call = self._node(layer, args, kwargs)
        self.within = (*self.within, call)
        try:
            outputs = layer.call(*args, **kwargs)
            leaves = [one for one in keras.tree.flatten(outputs) if one is not None]
            are_tensors = [isinstance(one, keras.KerasTensor) for one in leaves]
            # Where it returns numbers beside tensors, it cannot be closed again.
            call.outputs = tuple(leaves) if all(are_tensors) else ()
            reads_shapes_alone = bool(leaves) and not any(are_tensors)
            if not reads_shapes_alone and not any(call is one for one in self.reading):
                return outputs
        except Exception as error:
            # Code written by others may raise any error on symbolic tensors.
            self.failures[layer] = error
        finally:
            self.within = self.within[:-1]
        del self.nodes[place:]
        if counts is not None:
            counts.called = called
        outputs = self.record(layer, args, kwargs)
        self.nodes[-1].reads_shapes_alone = reads_shapes_alone
        return outputs

    def record(self, operation, args, kwargs):
        """Returns the symbolic results of an operation, and records its call."""
        if self.is_recording:
            return operation.compute_output_spec(*args, **kwargs)
        if is_of_keras(operation, "LogicalOr") and args[0] is args[1]:
            # Keras makes the mask of a sum of the masks of its parts.
            return args[0]
        node = self._node(operation, args, kwargs)
        self.is_recording = True
        try:
            outputs = keras.tree.map_structure(_dense, _results(operation, args, kwargs))
        finally:
            self.is_recording = False
        leaves = keras.tree.flatten(outputs)
        node.outputs = tuple(leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor))
        if is_of_keras(operation, "ConvertToTensor") and node.outputs[0].dtype == args[0].dtype:
            # Of an input of a nested model.
            return args[0]
        if is_of_keras(operation, "Cast") and keras.backend.is_float_dtype(args[0].dtype):
            self.casts[id(node.outputs[0])] = node
        if node.masked:
            _follow_masks(operation, args, kwargs, node.outputs)
        self.nodes.append(_counted(node, counts_in_use()))
        return outputs

    def read(self):
        """Notes that a weight is read as a number."""
        if self.within and not self.is_recording:
            self.reading.append(self.within[-1])

    def _node(self, operation, args, kwargs):
        """Returns the node of a call, without the outputs."""
        if not isinstance(operation, keras.layers.Layer):
            # A weight has the dtype that it has inside the layer that is being called.
            args, kwargs = keras.tree.map_structure(
                lambda leaf: Weight(leaf, leaf.dtype) if isinstance(leaf, keras.Variable) else leaf,
                (args, kwargs),
            )
            return Node(operation, args, kwargs, (), self.within)
        # What Keras adds to the arguments it adds in each call: casts, and the masks.
        masks = {id(mask) for one in _tensors(args, kwargs) if (mask := mask_of(one)) is not None}
        kwargs = {
            name: value
            for name, value in kwargs.items()
            if name != "training" and not _are_among(value, masks)
        }

        def uncast(leaf):
            cast = self.casts.get(id(leaf)) if isinstance(leaf, keras.KerasTensor) else None
            is_own = cast is not None and cast.within == self.within
            return cast.args[0] if is_own and leaf.dtype == operation.input_dtype else leaf

        if operation.autocast and operation._convert_input_args:
            args, kwargs = keras.tree.map_structure(uncast, (args, kwargs))
        pairs = [(one, mask_of(one)) for one in _tensors(args, kwargs)]
        masked = tuple((one, mask) for one, mask in pairs if mask is not None)
        return Node(operation, args, kwargs, (), self.within, masked)


def _are_among(value, masks):
    leaves = [leaf for leaf in keras.tree.flatten(value) if leaf is not None]
    return bool(leaves) and all(id(leaf) in masks for leaf in leaves)


def _results(operation, args, kwargs):
    """Returns what Keras knows of the results of an operation."""
    outputs = None
    with contextlib.suppress(TypeError, ValueError, NotImplementedError):
        # Some layers have a method for the shape that takes fewer arguments than the call.
        outputs = operation.compute_output_spec(*args, **kwargs)
    if outputs is None or (_has_sizes(args, kwargs) and not _has_sizes(outputs)):
        outputs = keras.Operation.compute_output_spec(operation, *args, **kwargs)
    return outputs


def _tensors(*structures):
    """Returns the symbolic tensors in some structures, each of them once."""
    leaves = keras.tree.flatten(structures)
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)}.values())


def _has_sizes(*structures):
    return all(None not in tensor.shape for tensor in _tensors(structures))


def _is_symbolic(args, kwargs):
    return all(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(args[:1]))


def _dense(result):
    """Returns a symbolic tensor that is dense: Keras takes the product with a number for sparse."""
    if isinstance(result, keras.KerasTensor) and result.sparse:
        return keras.KerasTensor(result.shape, dtype=result.dtype)
    return result


def _parts(operation):
    return operation._flatten_layers() if isinstance(operation, keras.layers.Layer) else ()


def _counted(node, counts):
    """Returns a node that knows which application it is; counts the calls in it."""
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
    is_counted = any(isinstance(one, UnsharedBatchNormalization) for one in _parts(operation))
    if counts is None or not is_counted:
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


# Masks


def _follow_masks(layer, args, kwargs, results):
    """Gives symbolic tensors the masks that a call of a layer leaves on real ones.

    Some layers remove the masks of their arguments, such as `MultiHeadAttention`, and the code of
    others may pass on a mask of which Keras does not know.
    """
    taken = _tensors(args, kwargs)
    masks = list({id(mask): mask for one in taken if (mask := mask_of(one)) is not None}.values())
    taken = [one for one in taken if all(one is not mask for mask in masks)]
    after = {}

    def run(*tensors):
        values = {id(key): value for key, value in zip([*taken, *masks], tensors, strict=True)}
        names = {values[id(mask)].name: mask for mask in masks}
        for one in taken:
            if mask_of(one) is not None:
                values[id(one)]._keras_mask = values[id(mask_of(one))]
        own, named = keras.tree.map_structure(
            lambda leaf: values.get(id(leaf), leaf), (args, kwargs)
        )
        # Not the layer itself: what it does with masks around its `call` also happens to symbolic
        # tensors.
        made = [one for one in keras.tree.flatten(layer.call(*own, **named)) if one is not None]
        for key, value in [*zip(results, made, strict=True), *((t, values[id(t)]) for t in taken)]:
            after[id(key)] = None if mask_of(value) is None else _known(mask_of(value), names)

    specs = [tf.TensorSpec(one.shape, one.dtype) for one in (*taken, *masks)]
    tf.function(run, input_signature=specs, autograph=False).get_concrete_function()
    for one in (*taken, *results):
        one._keras_mask = after[id(one)]


def _known(mask, names):
    """Returns which of some symbolic masks, by the names of their values, a value is, or `None`.

    The result is kept in `names`: a mask may be made of one that is made of one.
    """
    if mask.name not in names:
        # Where states with one mask are added, Keras makes another one that is the same.
        is_same = mask.op.type in ("LogicalOr", "Identity")
        parts = [_known(part, names) for part in mask.op.inputs] if is_same else [None]
        names[mask.name] = parts[0] if all(part is parts[0] for part in parts) else None
    return names[mask.name]


# Numbers of images


def _symbolic(inputs, declared, model):
    """Returns `keras.KerasTensor`s for inputs of a model, for a number of images.

    It is the size of nothing else, so that it can be recognized. Code of layers needs to know it.
    """
    shapes = [tuple(one.shape) for one in keras.tree.flatten(inputs)]
    sizes = {size for one in (*model.weights, *keras.tree.flatten(inputs)) for size in one.shape}
    images = next(number for number in itertools.count(IMAGES) if number not in sizes)
    fixed = [] if declared is None else [one.shape[0] for one in keras.tree.flatten(declared)]
    images = next((size for size in fixed if size is not None), images)
    assumed = ASSUMED if any(len(shape) > 3 for shape in shapes) else None

    def tensor(value, own=None):
        dtype = keras.backend.standardize_dtype(value.dtype if own is None else own.dtype)
        if own is None:
            dtype = {"float64": "float32", "int64": "int32"}.get(dtype, dtype)
        shape = [assumed if size is None else size for size in tuple(value.shape)[1:]]
        return keras.KerasTensor(
            (images, *shape), dtype=dtype, name=None if own is None else own.name
        )

    if declared is None:
        return keras.tree.map_structure(tensor, inputs)
    return keras.tree.map_structure(tensor, inputs, declared)


def _for_any_number(nodes, images):
    """Returns nodes that were traced for a number of images as nodes for any number of them."""

    def freed(leaf):
        is_constant = tf.is_tensor(leaf) or isinstance(leaf, np.ndarray)
        shape = tuple(leaf.shape) if is_constant else ()
        if not shape or shape[0] != images:
            return leaf
        rows = np.asarray(leaf)
        if not (rows == rows[:1]).all():
            raise ValueError("A constant has different values for different images.")
        # One row, which is the same for all images.
        return tf.constant(rows[:1])

    result = []
    for node in nodes:
        args, kwargs = keras.tree.map_structure(freed, (node.args, node.kwargs))
        operation = node.operation
        if not isinstance(operation, keras.layers.Layer):
            operation = _operation_for_any_number(operation, node.outputs[0].shape, images)
        result.append(dataclasses.replace(node, operation=operation, args=args, kwargs=kwargs))
    return result


def _operation_for_any_number(operation, shape, images):
    """Returns an operation with a result of some shape that does not hold a number of images."""
    held = [
        name
        for name, value in vars(operation).items()
        if isinstance(value, (tuple, list)) and images in value
    ]
    if not held:
        return operation
    if held != ["newshape"] or shape.count(images) != 1 or None in shape:
        raise ValueError(f"{type(operation).__name__} needs the number of images.")
    free = copy.copy(operation)
    free.newshape = tuple(-1 if size == images else size for size in shape)
    return free


# Methods of Keras


@contextlib.contextmanager
def _replaced_methods(recorder):
    """Gives a recorder the symbolic calls."""
    value = keras.Variable.value

    def read(variable):
        # A number computed from a weight would not follow it.
        if keras.backend.is_float_dtype(variable.dtype):
            recorder.read()
        return value.fget(variable)

    def call(layer, *args, **kwargs):
        return recorder.call(layer, args, kwargs)

    def record(operation, *args, **kwargs):
        return recorder.record(operation, args, kwargs)

    def ignore(node, *args, **kwargs):
        pass

    def operator(function, is_swapped, original):
        def combined(weight, other):
            if not isinstance(other, keras.KerasTensor):
                return original(weight, other)
            return function(other, weight) if is_swapped else function(weight, other)

        return combined

    (node,) = keras.Input((1,), name="unused")._keras_history.operation._inbound_nodes
    new = [
        # Here Keras computes shapes: the call is known with all its arguments.
        (keras.layers.Layer, "symbolic_call", call),
        (keras.Operation, "symbolic_call", record),
        # What Keras keeps of a symbolic call would make the model grow.
        (type(node), "__init__", ignore),
        (keras.Variable, "value", property(read)),
    ]
    for name, function in _OPERATORS.items():
        for prefix in ("", "r"):
            # `weight * tensor` fails, while `tensor * weight` works.
            method = f"__{prefix}{name}__"
            original = getattr(keras.Variable, method)
            new.append((keras.Variable, method, operator(function, prefix == "r", original)))
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in new]
    with warnings.catch_warnings():
        # Keras warns whenever a layer drops a mask.
        warnings.simplefilter("ignore")
        try:
            for owner, name, method in new:
                setattr(owner, name, method)
            yield
        finally:
            for owner, name, own in before:
                delattr(owner, name) if own is None else setattr(owner, name, own)
