"""What a model costs to run: parameters, FLOPs and measured time. TensorFlow only."""

from __future__ import annotations

import itertools
import math
import operator
import time

import keras
import numpy as np
import tensorflow as tf

# Calls that are timed of one model, after one that is not, and for how many seconds more.
CALLS, SECONDS = 7, 0.5
# The attributes of an operation that name the functions it calls.
_CALLED = {
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
    "If": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "While": ("cond", "body"),
}
# Loops that may run longer have no static number of steps.
MOST_STEPS = 1_000_000
_COMPARISONS = {
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
}


class Costs:
    """Measures what models cost at inference, beside one that they are compared with.

    Args:
        model: the `keras.Model` that others are compared with.
        inputs: a batch of its inputs, of which as many as needed are taken, again and again.
        batch_sizes: ints, the batch sizes that are timed.
    """

    def __init__(self, model, inputs, batch_sizes):
        self.model, self.inputs = model, inputs
        self.whole = {size: _TimedModel(model, _of_size(inputs, size)) for size in batch_sizes}

    def of(self, model):
        """Returns `parameters`, `flops` of one image, and `milliseconds_1` and so on.

        Two FLOPs per multiplication in convolutions and matrix products, NaN if a shape, a number
        of steps or the branch of a condition depends on the inputs. Of several calls the shortest
        counts. Calls of the whole model are timed in between, since the machine may have something
        else to do.
        """
        timed = {size: _TimedModel(model, _of_size(self.inputs, size)) for size in self.whole}
        for size, one in timed.items():
            _take_turns([one, self.whole[size]])
        return self._counted(model, timed) | _times_of(timed)

    def of_whole(self):
        """Returns `parameters` and `flops` of the whole model."""
        return self._counted(self.model, self.whole)

    def times_of_whole(self):
        """Returns the times of the whole model, the shortest so far."""
        return _times_of(self.whole)

    def _counted(self, model, timed):
        # A function that is timed with a batch of 1 need not be traced again.
        flops = flops_in(timed[1].graph) if 1 in timed else flops_of(model, self.inputs)
        return {"parameters": model.count_params(), "flops": flops}


def _times_of(timed):
    return {name_of(size): one.milliseconds for size, one in timed.items()}


def name_of(size):
    """Returns the name of the time of a batch of some images."""
    return f"milliseconds_{size}"


class _Timed:
    """A function without arguments that returns tensors, and the shortest of its calls."""

    def __init__(self, function):
        self.function, self.milliseconds = function, math.inf
        # The first call is slower.
        function()

    def call(self):
        before = time.perf_counter()
        for one in tf.nest.flatten(self.function()):
            one.numpy()
        self.milliseconds = min(self.milliseconds, 1000 * (time.perf_counter() - before))


class _TimedModel(_Timed):
    """The compiled function of a model and a batch."""

    def __init__(self, model, batch):
        batch = keras.tree.map_structure(tf.constant, batch)
        function, flat = _function_of(model, batch), keras.tree.flatten(batch)
        self.graph = function.graph
        super().__init__(lambda: function(*flat))


def _take_turns(timed):
    begun, calls = time.perf_counter(), 0
    while calls < CALLS or time.perf_counter() - begun < SECONDS:
        for one in timed:
            one.call()
        calls += 1


def flops_of(model, inputs):
    """Returns the FLOPs of one image, see `Costs.of`."""
    return flops_in(_function_of(model, _of_size(inputs, 1)).graph)


def flops_in(graph, outputs=None):
    """Returns the FLOPs of a graph, see `Costs.of`, or of what some of its tensors take."""
    count = _count(graph, {}, outputs)
    return math.nan if count is None else 2.0 * count


def shortest_of(functions):
    """Returns the milliseconds of the shortest call of each of some functions, in turns.

    They take no argument and return tensors. The first call of each is not timed.
    """
    timed = [*map(_Timed, functions)]
    _take_turns(timed)
    return [one.milliseconds for one in timed]


def _count(graph, values, outputs=None):
    """Returns the multiplications in a graph, with the static `values` of inputs by `ref()`."""
    counts = [_count_of(operation, values) for operation in _executed(graph, outputs)]
    return None if None in counts else sum(counts)


def _count_of(operation, values):
    """Returns the multiplications in an operation, `None` if they are not known."""
    kind = operation.type.removeprefix("Stateless")
    if kind not in _CALLED:
        return _COUNTS[kind](operation) if kind in _COUNTS else 0
    functions = tf.nest.flatten([operation.get_attr(name) for name in _CALLED[kind]])
    graphs = [operation.graph._get_function(function.name).graph for function in functions]
    # The first input of a condition chooses the branch.
    inputs = [_static(one, values) for one in operation.inputs][kind in ("If", "Case") :]
    if kind == "While":
        condition, body = graphs
        pairs = zip(body.inputs, body.outputs, inputs, strict=True)
        kept = [value if _origin(after) is before else None for before, after, value in pairs]
        once = _count(body, _by_input(body, kept))
        return once if once in (0, None) else _times(_steps(condition, body, inputs), once)
    counts = {_count(graph, _by_input(graph, inputs)) for graph in graphs}
    return counts.pop() if len(counts) == 1 else None


def _steps(condition, body, inputs):
    """Returns how often a loop is run that compares static numbers with counters, or `None`."""

    def side(tensor):
        """Returns the first value of a side of a comparison, and by how much a step raises it."""
        if (value := tf.get_static_value(tensor)) is not None:
            return value, 0
        place = next((i for i, one in enumerate(condition.inputs) if one is tensor), None)
        if place is None:
            return None, None
        after, before = _origin(body.outputs[place]), body.inputs[place]
        if after is before:
            return inputs[place], 0
        rise = None
        if after.op.type in ("AddV2", "Sub") and _origin(after.op.inputs[0]) is before:
            rise = tf.get_static_value(after.op.inputs[1])
            rise = -rise if rise is not None and after.op.type == "Sub" else rise
        return inputs[place], rise

    most, waiting = MOST_STEPS, [condition.outputs[0]]
    while waiting:
        operation = _origin(waiting.pop()).op
        if operation.type == "LogicalAnd":
            waiting += operation.inputs
            continue
        compare = _COMPARISONS.get(operation.type)
        sides = [side(_origin(one)) for one in operation.inputs] if compare else [(None, None)]
        if None in itertools.chain(*sides):
            return None
        (left, rise), (right, other) = sides
        most = next(
            (n for n in range(most) if not compare(left + n * rise, right + n * other)), most
        )
    return most if most < MOST_STEPS else None


def _origin(tensor):
    """Returns the tensor that a tensor is a copy of, such as the largest of one number."""
    while tensor.op.type in ("Identity", "Max") and tensor.shape == tensor.op.inputs[0].shape:
        tensor = tensor.op.inputs[0]
    return tensor


def _executed(graph, outputs=None):
    """Returns the operations that outputs depend on, by default all of the graph."""
    waiting = [] if outputs is not None else [*graph.control_outputs]
    waiting += [tensor.op for tensor in (graph.outputs if outputs is None else outputs)]
    found = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation
            waiting += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]
    return found.values()


def _static(tensor, values):
    """Returns a number that is known without running a graph, `None` for any other tensor."""
    origin = _origin(tensor)
    value = tf.get_static_value(origin) if origin.shape.rank == 0 else None
    return values.get(origin.ref()) if value is None else value


def _by_input(graph, values):
    return {tensor.ref(): one for tensor, one in zip(graph.inputs, values, strict=True)}


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
    # The recurrent layers on a GPU.
    "CudnnRNNV3": lambda operation: None,
}
