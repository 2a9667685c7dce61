"""Records the graph of a model by calling it symbolically, with chosen layers opened.

It shows what layers compute inside, and the implicit masks of Keras. TensorFlow only.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import reprlib
import threading

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers import Repeated
from tfresidual.layers.applications import counts_in_use
from tfresidual.routing.agreement import drawn
from tfresidual.sources.graph import (
    Graph,
    Node,
    Weight,
    counted,
    described,
    graph_of,
    has_graph,
    inputs_of,
    mask_of,
    not_accepted,
    path_to,
    replay,
    said,
)
from tfresidual.sources.keras_inside import UnknownKerasError, recording, silence
from tfresidual.sources.one_output import OneOutput
from tfresidual.sources.operations import may_mask

# Models are built by one thread at a time.
_BUILDING = threading.RLock()


def recorded(function, inputs, is_opened, model=None, sizes=None):
    """Returns the graph of what a function of tensors computes, and why layers were not opened.

    Layers for which `is_opened` is true are replaced by what they compute inside; of a subclassed
    model, `model` is opened first. With `sizes`, those of a model, it is called with a number of
    images, which is taken out of the graph again: one that is the size of nothing else. Raises
    whatever the code of the function raises on symbolic tensors.
    """
    if sizes is None:
        recorder = _Recorder(is_opened, model)
        output = recorder.run(function, inputs)
        return _graph(inputs, path_to(recorder.nodes, output), output), recorder.failures
    sizes = {*sizes, *(size for one in keras.tree.flatten(inputs) for size in one.shape[1:])}
    for _ in range(2):
        images = next(number for number in itertools.count(11, 2) if number not in sizes)
        given = _symbolic(inputs, inputs, images)
        recorder = _Recorder(is_opened, model)
        output = recorder.run(function, given)
        if images not in recorder.sizes:
            break
        # Something that is computed has as many rows, or all images are in one row of it.
        sizes |= recorder.sizes
    nodes = _for_any_number(path_to(recorder.nodes, output), images)
    return _graph(given, nodes, output), recorder.failures


def _graph(inputs, nodes, output):
    return Graph(tuple(keras.tree.flatten(inputs)), tuple(nodes), output, inputs)


class _Recorder:
    """Collects the calls of layers and operations on symbolic tensors."""

    def __init__(self, is_opened, model):
        self.is_opened, self.model = is_opened, model
        self.nodes, self.failures = [], {}
        # Of all axes but the first of what was computed, also in layers that could not be opened.
        self.sizes = set()
        # Opened layers that returned numbers, which no symbolic tensor leads to.
        self.constant = set()
        # The models that are repeated, by id.
        self.blocks = set()
        # The layers that are being opened, from the outermost to the innermost.
        self.inside = []

    def run(self, function, inputs):
        """Returns the one tensor that a function returns for inputs."""
        with recording(self):
            output = function(inputs)
        if isinstance(output, keras.KerasTensor):
            return output
        what = f"that returns {type(output).__name__}"
        what = "whose output does not depend on its inputs" if tf.is_tensor(output) else what
        raise ArgumentError("source", "be a model that returns one tensor", said=f"a model {what}")

    def call(self, layer, args, kwargs):
        """Calls a layer on symbolic tensors, opened if that was asked for and works."""
        if isinstance(layer, Repeated) and has_graph(layer.block):
            self.blocks.add(id(layer.block))
        if isinstance(layer, Repeated) or id(layer) in self.blocks:
            # The single applications of its block are recorded.
            return layer.call(*args, **kwargs)
        if not self.is_opened(layer):
            return self.record(layer, args, kwargs)
        place, counts = len(self.nodes), counts_in_use()
        called = counts and dict(counts.called)
        self.inside.append(layer)
        try:
            outputs = layer.call(*args, **kwargs)
            given = [one for one in keras.tree.flatten(outputs) if one is not None]
            if given and not any(isinstance(one, keras.KerasTensor) for one in given):
                self.constant.add(id(layer))
                raise ValueError("It computes a number that depends on weights alone.")
            return outputs
        except Exception as error:
            # Code written by others may raise any error on symbolic tensors.
            self.failures[layer] = said(error)
            del self.nodes[place:]
            if counts is not None:
                counts.called = called
        finally:
            self.inside.pop()
        return self.record(layer, args, kwargs)

    def record(self, operation, args, kwargs):
        """Returns the symbolic results of an operation, and records its call."""
        outputs = None
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            # Some layers have a method for the shape that takes fewer arguments than the call.
            outputs = operation.compute_output_spec(*args, **kwargs)
        if outputs is None or (_has_sizes((args, kwargs)) and not _has_sizes(outputs)):
            try:
                outputs = keras.Operation.compute_output_spec(operation, *args, **kwargs)
            except Exception:
                # Code written by others may raise any error where sizes are not known.
                if outputs is None:
                    raise
        outputs = keras.tree.map_structure(_dense, outputs)
        leaves = keras.tree.flatten(outputs)
        flat = tuple(leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor))
        self.sizes.update(size for leaf in flat for size in leaf.shape[1:])
        masked, made = (), {}
        if isinstance(operation, keras.layers.Layer):
            taken = _symbolic_of(args, kwargs)
            masked = tuple((one, mask) for one in taken if (mask := mask_of(one)) is not None)
        if masked or may_mask(operation):
            made = _follow_masks(operation, args, kwargs, flat)
        if not isinstance(operation, keras.layers.Layer):
            # A weight has the dtype that it has inside the layer that is being called.
            args, kwargs = keras.tree.map_structure(
                lambda leaf: Weight(leaf, leaf.dtype) if isinstance(leaf, keras.Variable) else leaf,
                (args, kwargs),
            )
        node = Node(
            operation,
            args,
            kwargs,
            (*flat, *made.values()),
            # Not the model itself, which a chain would keep.
            tuple(layer for layer in self.inside if layer is not self.model),
            masked,
            tuple(made),
            id(operation) in self.constant,
        )
        self.nodes.append(counted(node, counts_in_use()))
        return outputs


def constants_of(graph):
    """Returns the numbers that stand in a recorded graph in place of tensors, in order."""
    found = []
    for node in graph.nodes:
        operation = node.operation
        # A layer computes what it keeps anew.
        kept = {} if isinstance(operation, keras.layers.Layer) else vars(operation)
        for leaf in keras.tree.flatten((node.args, node.kwargs, list(kept.values()))):
            if tf.is_tensor(leaf):
                # NumPy cannot convert a single number in bfloat16.
                leaf = tf.cast(leaf, tf.float64).numpy()
            if isinstance(leaf, (np.ndarray, np.generic, int, float)):
                found.append(np.asarray(leaf))
    return found


def _for_any_number(nodes, images):
    """Returns nodes that were recorded with a number of images as nodes for any number of them."""

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

    found = []
    for node in nodes:
        args, kwargs = keras.tree.map_structure(freed, (node.args, node.kwargs))
        operation = node.operation
        if not isinstance(operation, keras.layers.Layer):
            operation = _operation_for_any_number(operation, node.outputs[0].shape, images)
        found.append(dataclasses.replace(node, operation=operation, args=args, kwargs=kwargs))
    return found


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


def _symbolic_of(*structures):
    leaves = keras.tree.flatten(structures)
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)}.values())


def _dense(result):
    """Returns a symbolic tensor that is dense: Keras takes the product with a number for sparse."""
    if isinstance(result, keras.KerasTensor) and result.sparse:
        return keras.KerasTensor(result.shape, dtype=result.dtype)
    return result


def _has_sizes(structure):
    return all(None not in tensor.shape for tensor in _symbolic_of(structure))


def _follow_masks(layer, args, kwargs, results):
    """Gives symbolic tensors the masks that a call of a layer leaves on real ones.

    Some layers attach masks only to real tensors, and some remove those of their arguments. Returns
    the masks that are made, by the index of the result.
    """
    taken = _symbolic_of(args, kwargs)
    masks = list({id(mask): mask for one in taken if (mask := mask_of(one)) is not None}.values())
    # For every tensor the mask after the call: a symbolic mask, the shape of a new one, or `None`.
    after = {}

    def run(*tensors):
        values = {id(key): value for key, value in zip([*taken, *masks], tensors, strict=True)}
        known = {values[id(mask)].name: mask for mask in masks}
        for one in taken:
            if mask_of(one) is not None:
                values[id(one)]._keras_mask = values[id(mask_of(one))]
        given, named = keras.tree.map_structure(
            lambda leaf: values.get(id(leaf), leaf), (args, kwargs)
        )
        # Not the layer itself: what it does with masks around its `call` also happens to symbolic
        # tensors.
        found = [one for one in keras.tree.flatten(layer.call(*given, **named)) if one is not None]
        for key, value in [*zip(results, found, strict=True), *((t, values[id(t)]) for t in taken)]:
            mask = mask_of(value)
            same = None if mask is None else _known(mask, known)
            after[id(key)] = tuple(mask.shape) if same is None and mask is not None else same

    # A mask may also be an argument of the call.
    taken = [one for one in taken if all(one is not mask for mask in masks)]
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in (*taken, *masks)]
    # Keras warns whenever a layer drops a mask.
    with silence():
        try:
            tf.function(run, input_signature=specs, autograph=False).get_concrete_function()
        except Exception:
            # A layer may declare other shapes than it returns, and code written by others may raise
            # any error on these. Such layers are taken to leave masks as they are.
            after = dict.fromkeys(map(id, results)) | {id(one): mask_of(one) for one in taken}
    made = {}
    for one in taken:
        one._keras_mask = after[id(one)]
    for index, one in enumerate(results):
        mask = after[id(one)]
        if isinstance(mask, tuple):
            mask = made[index] = keras.KerasTensor(mask, dtype="bool")
        one._keras_mask = mask
    return made


def _known(mask, known):
    """Returns which of some symbolic masks, by the names of their values, a value is, or `None`.

    What is found is kept in `known`: a mask may be made of one that is made of one.
    """
    if mask.name not in known:
        # Where states with one mask are added, Keras makes another one that is the same.
        is_same = mask.op.type in ("LogicalOr", "Identity")
        parts = [_known(part, known) for part in mask.op.inputs] if is_same else [None]
        known[mask.name] = parts[0] if all(part is parts[0] for part in parts) else None
    return known[mask.name]


def recorded_model(model, inputs, is_opened):
    """Returns the graph of a model with layers opened, and why layers could not be opened.

    `inputs` are a batch or `keras.KerasTensor`s; `None` for the sizes that a model with a graph
    declares.
    """
    if has_graph(model):
        declared = inputs_of(model)
        inputs = declared if inputs is None else inputs
        graph = graph_of(model, _symbolic(inputs, declared))
        function, given = functools.partial(_replayed, graph), _symbolic(inputs, declared)
        return recorded(function, given, is_opened, sizes=_sizes_of(model))
    if inputs is None:
        raise ArgumentError(
            "source",
            "be a functional `keras.Model` or a `keras.Sequential` with a defined input; for other "
            "models, such as subclassed ones, `inputs` must be a batch of inputs, or "
            "`keras.KerasTensor`s of their shapes, with which the blocks are found; callbacks are "
            "told by `tfresidual.callbacks.use_blocks(model, inputs=batch)` before `fit`",
            said=f"source={model.name} of type {type(model).__name__}, inputs=None",
        )
    with _BUILDING, _explained(model, inputs):
        if not model.built:
            model(drawn(*described(_symbolic(inputs)), size=1, draw=np.zeros))
    given, sizes = _symbolic(inputs), _sizes_of(model)
    function = functools.partial(model, training=False)
    if isinstance(model, OneOutput):
        function, model = model.applied, model.model

    def opens(layer):
        return layer is model or is_opened(layer)

    with _explained(model):
        return recorded(function, given, opens, model, sizes)


def graph_with_masks(model, inputs=None):
    """Returns the graph of a model with whole layers, which take the masks they read."""
    if not has_graph(model):
        return recorded_model(model, inputs, lambda layer: False)[0]
    given = None if inputs is None else _symbolic(inputs, inputs_of(model))
    graph = graph_of(model, given)
    has_masks = graph.has_masks or any(may_mask(node.operation) for node in graph.nodes)
    if inputs is None and not has_masks:
        return graph
    if given is None:
        given = _symbolic(graph.structure, inputs_of(model))
    with _explained(model, inputs):
        shown, _ = recorded(functools.partial(_replayed, graph), given, lambda layer: False)
    return graph if inputs is None and not shown.has_masks else shown


@contextlib.contextmanager
def _explained(model, inputs=None):
    """Replaces errors of a model by those about the inputs or, if these are `None`, the model."""
    try:
        yield
    except Exception as error:
        # Code written by others may raise any error on symbolic tensors.
        if isinstance(error, UnknownKerasError) or str(error).startswith("Argument `"):
            raise
        if inputs is not None:
            shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape), inputs)
            raise not_accepted(model, shapes, error) from error
        raise ArgumentError(
            "source",
            "be a model that can be called with symbolic tensors: its code must use layers and "
            f"`keras.ops`. Keras says: {said(error)}",
            said=f"source={model.name} of type {type(model).__name__}",
        ) from error


def _replayed(graph, images):
    given = zip(graph.inputs, keras.tree.flatten(images), strict=True)
    values = {id(tensor): value for tensor, value in given}
    return replay(graph.nodes, values)[id(graph.output)]


def _sizes_of(model):
    """Returns the sizes of the weights and inputs of a model, as a set."""
    shapes = [weight.shape for weight in model.weights]
    shapes += [tensor.shape for tensor in getattr(model, "inputs", None) or ()]
    return {size for shape in shapes for size in shape}


def check_inputs(inputs):
    """Raises a `ValueError` unless `inputs` are arrays or tensors, or a structure of these."""
    leaves = keras.tree.flatten(inputs)
    wrong = [leaf for leaf in leaves if not _is_batch(leaf)]
    if leaves and not wrong:
        return
    (found, *_) = wrong or [inputs]
    if hasattr(found, "shape") and hasattr(found, "dtype"):
        what = f"an array of shape {tuple(found.shape)} and dtype {found.dtype}"
    else:
        what = f"{reprlib.repr(found)} of type {type(found).__name__}"
    raise ArgumentError(
        "inputs",
        "be a batch of inputs of the model, as arrays or tensors of numbers with a leading axis of "
        "images (of a dataset, `next(iter(data))[0]`), or `keras.KerasTensor`s of their shapes",
        said=what + ("" if found is inputs else f" in inputs of type {type(inputs).__name__}"),
    )


def _is_batch(value):
    try:
        dtype = keras.backend.standardize_dtype(value.dtype)
        return len(value.shape) > 0 and dtype != "string"
    except (AttributeError, TypeError, ValueError):
        return False


def _symbolic(inputs, declared=None, images=None):
    """Returns `keras.KerasTensor`s for inputs, with dtypes and names as declared or usual."""

    def tensor(value, own=None):
        dtype = keras.backend.standardize_dtype(value.dtype if own is None else own.dtype)
        if own is None:
            dtype = {"float64": "float32", "int64": "int32"}.get(dtype, dtype)
        shape = (images, *tuple(value.shape)[1:])
        return keras.KerasTensor(shape, dtype=dtype, name=None if own is None else own.name)

    if declared is None:
        return keras.tree.map_structure(tensor, inputs)
    try:
        return keras.tree.map_structure(tensor, inputs, declared)
    except (TypeError, ValueError) as error:
        kinds = keras.tree.map_structure(lambda value: type(value).__name__, inputs)
        raise ArgumentError(
            "inputs",
            "be arrays or `keras.KerasTensor`s with a leading axis of images, in the structure of "
            "the inputs of the model",
            said=f"inputs of structure {kinds}",
        ) from error
