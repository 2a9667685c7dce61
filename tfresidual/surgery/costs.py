"""What a model costs to run: parameters, FLOPs and measured time. TensorFlow only."""

from __future__ import annotations

import math
import time

import keras
import numpy as np
import tensorflow as tf

# Calls that are timed of one model, after one that is not, and for how many seconds more.
CALLS, SECONDS = 7, 0.5


class Costs:
    """Measures what models cost at inference, beside one that they are compared with.

    Args:
        model: the `keras.Model` that others are compared with.
        inputs: a batch of its inputs, of which as many as needed are taken, again and again.
        batch_sizes: ints, the batch sizes that are timed.
    """

    def __init__(self, model, inputs, batch_sizes):
        self.model, self.inputs = model, inputs
        self.whole = {size: _Timed(model, _of_size(inputs, size)) for size in batch_sizes}

    def of(self, model):
        """Returns `parameters`, `flops` of one image, and `milliseconds_1` and so on.

        Two FLOPs per multiplication in convolutions and matrix products, NaN if a shape in the
        graph is not known. Of several calls the shortest counts. Calls of the whole model are timed
        in between, since the machine may have something else to do.
        """
        timed = {size: _Timed(model, _of_size(self.inputs, size)) for size in self.whole}
        for size, one in timed.items():
            begun, calls = time.perf_counter(), 0
            while calls < CALLS or time.perf_counter() - begun < SECONDS:
                one.call()
                self.whole[size].call()
                calls += 1
        return self._counted(model, timed) | _times_of(timed)

    def of_whole(self):
        """Returns `parameters` and `flops` of the whole model."""
        return self._counted(self.model, self.whole)

    def times_of_whole(self):
        """Returns the times of the whole model, the shortest so far."""
        return _times_of(self.whole)

    def _counted(self, model, timed):
        # A function that is timed with a batch of 1 need not be traced again.
        flops = flops_in(timed[1].function.graph) if 1 in timed else flops_of(model, self.inputs)
        return {"parameters": model.count_params(), "flops": flops}


def _times_of(timed):
    return {name_of(size): one.milliseconds for size, one in timed.items()}


def name_of(size):
    """Returns the name of the time of a batch of some images."""
    return f"milliseconds_{size}"


class _Timed:
    """A compiled model and the shortest of its calls."""

    def __init__(self, model, batch):
        batch = keras.tree.map_structure(tf.constant, batch)
        self.function, self.flat = _function_of(model, batch), keras.tree.flatten(batch)
        self.milliseconds = math.inf
        # The first call is slower.
        self.function(*self.flat)

    def call(self):
        before = time.perf_counter()
        for one in tf.nest.flatten(self.function(*self.flat)):
            one.numpy()
        self.milliseconds = min(self.milliseconds, 1000 * (time.perf_counter() - before))


def flops_of(model, inputs):
    """Returns the FLOPs of one image, see `Costs.of`."""
    return flops_in(_function_of(model, _of_size(inputs, 1)).graph)


def flops_in(graph):
    """Returns the FLOPs of the operations of a graph, see `Costs.of`."""
    operations = _operations_of(graph)
    counts = [_COUNTS[one.type](one) for one in operations if one.type in _COUNTS]
    return 2.0 * sum(counts) if None not in counts else math.nan


def _operations_of(graph):
    """Yields the operations of a graph and of the functions that it calls."""
    for operation in graph.get_operations():
        if operation.type not in ("PartitionedCall", "StatefulPartitionedCall"):
            yield operation
            continue
        yield from _operations_of(graph._get_function(operation.get_attr("f").name).graph)


def _function_of(model, batch):
    """Returns the compiled function of a model for a batch, which takes a list of tensors."""

    def run(*flat):
        return model(keras.tree.pack_sequence_as(batch, flat), training=False)

    specs = [tf.TensorSpec(np.shape(one), one.dtype) for one in keras.tree.flatten(batch)]
    return tf.function(run, autograph=False).get_concrete_function(*specs)


def _of_size(inputs, size):
    """Returns a batch of a size of images that are there, again and again."""
    return keras.tree.map_structure(
        lambda one: np.resize(np.asarray(one), (size, *np.shape(one)[1:])), inputs
    )


def _size(shape):
    return math.prod(shape) if shape.rank is not None and None not in shape.as_list() else None


def _times(*sizes):
    return None if None in sizes else math.prod(sizes)


def _of_filter(operation):
    """Every output has as many multiplications as the filter has weights per output channel."""
    *window, _ = operation.inputs[1].shape
    return _times(_size(operation.outputs[0].shape), *window)


def _of_depthwise(operation):
    height, width, *_ = operation.inputs[1].shape
    return _times(_size(operation.outputs[0].shape), height, width)


def _of_transposed(operation):
    """Every input of a transposed convolution is multiplied with the weights of its channel."""
    *window, _ = operation.inputs[1].shape
    return _times(_size(operation.inputs[2].shape), *window)


def _of_product(operation):
    names = {"MatMul": "transpose_a"}
    is_turned = operation.get_attr(names.get(operation.type, "adj_x"))
    shape = operation.inputs[0].shape
    inner = None if shape.rank is None else shape[-2 if is_turned else -1]
    return _times(_size(operation.outputs[0].shape), inner)


def _of_einsum(operation):
    """The product of the sizes of all letters."""
    equation = operation.get_attr("equation").decode().replace(" ", "")
    letters, extra = {}, 1
    for text, tensor in zip(equation.partition("->")[0].split(","), operation.inputs, strict=True):
        if tensor.shape.rank is None:
            return None
        sizes = tensor.shape.as_list()
        before, dots, after = text.partition("...")
        named = zip(before, sizes, strict=False), zip(after[::-1], sizes[::-1], strict=False)
        for pairs in named:
            letters |= dict(pairs)
        if dots:
            between = sizes[len(before) : len(sizes) - len(after)]
            extra = max(extra, _times(*between) or 0)
    return _times(extra, *letters.values())


_COUNTS = {
    **dict.fromkeys(("Conv2D", "Conv3D"), _of_filter),
    "DepthwiseConv2dNative": _of_depthwise,
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _of_transposed),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _of_product),
    "Einsum": _of_einsum,
}
