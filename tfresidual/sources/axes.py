"""Along which axes of the tensors of a graph the positions of a state lie. TensorFlow only.

Sizes that agree are no proof: as many words may be gathered from a sequence as it has positions.
An operation that only moves values is followed by marks; any other keeps positions if it returns
one less for one position less.
"""

import contextlib
import math

import keras
import numpy as np
from keras import ops

from tfresidual.routing.agreement import SIZES
from tfresidual.sources.blocks import IDENTITY
from tfresidual.sources.graph import path_to
from tfresidual.sources.operations import is_of_keras, is_unknown

# Operations of Keras that only move values.
_MOVING = (
    *("Cropping1D", "ExpandDims", "Flatten", "Flip", "GetItem", "Moveaxis", "Permute", "Ravel"),
    *("Repeat", "RepeatVector", "Reshape", "Roll", "Slice", "Split", "Squeeze", "Swapaxes"),
    *("Take", "Tile", "Transpose", "Unstack"),
)
# Those that move values to places that depend on them.
_SORTING = ("Argsort", "Sort", "TopK")
# Those that combine values at the same places.
_ELEMENTWISE = (
    *("Add", "Average", "Divide", "Maximum", "Minimum", "Multiply", "Power", "Subtract"),
    *("TrueDivide", "Where"),
)
# The most values that are marked.
_MOST_VALUES = 2**24
# The axis of the positions of a state.
_AXIS = 1
# A size that a graph does not know is taken to be this one.
_ASSUMED = 61


def keep_positions(division):
    """Returns whether states and outputs have the positions of the first state of a division.

    The first of the pair says whether all states `(images, positions, ...)` of its size have them,
    the second whether the outputs have those of the last state, and no other states as many by
    chance.
    """
    nodes, blocks = division.graph.nodes, division.blocks
    first = blocks[0].before.tensor
    # The positions of the first state have the number 0, and those after a change the next one.
    number, found = 0, [(_size(first), 0)]

    def pass_to(place, axes):
        nonlocal number
        number += _AXIS not in axes
        found.append((_size(place.tensor), number))

    for block in blocks:
        if block.transition_from is not None:
            start, stop = block.transition_from, block.before
            pass_to(stop, _between(nodes, start, stop, {_AXIS}))
        axes = _between(nodes, block.before, block.begin, {_AXIS})
        axes = _between(nodes, block.end, block.after, _after_block(nodes, block, axes))
        pass_to(block.after, axes)
    numbers = {}
    for size, one in found:
        numbers.setdefault(size, set()).add(one)
    axes = _between(nodes, blocks[-1].after, division.trunk[-1], {_AXIS})
    is_clear = all(len(some) == 1 for some in numbers.values())
    return numbers[_size(first)] == {0}, _AXIS in axes and is_clear


def _size(tensor):
    return tensor.shape[_AXIS] or _ASSUMED if len(tensor.shape) > 2 else None


def _after_block(nodes, block, axes):
    inside = nodes[block.begin.index + 1 : block.end.index + 1]
    if block.unit is not None or block.shortcut in (IDENTITY, None):
        is_kept = block.begin.tensor.shape == block.end.tensor.shape
        # A layer that reads the state beside another tensor returns what the other one has.
        is_first = block.unit or block.shortcut or _is_first(inside, block)
        return axes if is_kept and is_first else set()
    target = block.end.tensor if block.carried is None else block.carried
    return _axes_at(inside, block.begin.tensor, target, axes)


def _is_first(nodes, block):
    """Returns whether the state is the first argument of the layers of a block."""
    tensor = block.end.tensor
    for node in reversed(nodes):
        if any(tensor is output for output in node.outputs) and node.arguments:
            tensor = node.arguments[0]
    return tensor is block.begin.tensor


def _between(nodes, start, stop, axes):
    return _axes_at(nodes[start.index + 1 : stop.index + 1], start.tensor, stop.tensor, axes)


def axes_of_positions(nodes, start, target):
    """Returns the axes of a tensor that have the positions of another, its axis 1, as a set."""
    return _axes_at(nodes, start, target, {_AXIS})


def _axes_at(nodes, start, target, axes):
    """Returns the axes of a tensor that have the positions of some axes of another, as a set."""
    if start is target or not axes:
        return set(axes)
    # By the id of a tensor.
    known, size = {id(start): set(axes)}, start.shape[min(axes)] or _ASSUMED
    for node in path_to(nodes, target):
        if any(known.get(id(tensor)) for tensor in node.arguments):
            results = _results(node, known, size) or [set()] * len(node.outputs)
            # Masks follow the results.
            known |= {id(t): kept for t, kept in zip(node.outputs, results, strict=False)}
    return known.get(id(target), set())


def _results(node, known, size):
    """Returns the axes of everything that an operation returns, `None` if they are not known."""
    operation = node.operation
    is_sorting = is_of_keras(operation, *_SORTING)
    # Such a layer returns its results from the last to the first.
    if size == 1 or is_sorting or getattr(operation, "go_backwards", False):
        return None
    if is_of_keras(operation, *_MOVING):
        (tensor, *others) = node.arguments
        values = math.prod(_sizes(tensor, size))
        if others or values > _MOST_VALUES:
            return None
        marked = [_marked(node, tensor, axis, size) for axis in known[id(tensor)]]
        return [set().union(*found) for found in zip(*marked, strict=True)]
    results = _by_size(node, known, size)
    if results is None and is_of_keras(operation, *_ELEMENTWISE):
        return [_aligned(node, known)]
    if results is not None and is_unknown(operation):
        results = [_tried(node, known, axes, size) for axes in results[:1]]
    return results


def _sizes(tensor, size):
    """Returns the shape of a tensor for one image, if no other number is known, as a list."""
    return [part or (size if axis else 1) for axis, part in enumerate(tensor.shape)]


def _marked(node, tensor, axis, size):
    """Returns, for every result, at which axes are the marks of an axis of the only argument."""
    shape = _sizes(tensor, size)
    marks = np.arange(size).reshape([-1 if place == axis else 1 for place in range(len(shape))])
    marks = ops.cast(np.broadcast_to(marks, shape), "int32")
    found = []
    for result in keras.tree.flatten(node.applied({id(tensor): marks})):
        values, places = ops.convert_to_numpy(result), set()
        for place in range(1, values.ndim):
            along = [-1 if other == place else 1 for other in range(values.ndim)]
            if values.shape[place] == size and (values == np.arange(size).reshape(along)).all():
                places.add(place)
        found.append(places)
    return found


def _by_size(node, known, size):
    """Returns the axes that have one position less if the arguments do; `None` if that fails."""

    def made(less):
        def resized(tensor):
            axes = known.get(id(tensor), ())
            parts = enumerate(_sizes(tensor, size)[1:], start=1)
            shape = [part - less * (axis in axes) for axis, part in parts]
            return keras.KerasTensor([*tensor.shape[:1], *shape], dtype=tensor.dtype)

        return keras.tree.flatten(node.spec(resized))

    try:
        pairs = zip(made(0), made(1), strict=False)
    except Exception:
        # Code written by others may raise any error for another number of positions.
        return None
    return [
        {
            axis
            for axis, sizes in enumerate(zip(whole.shape, result.shape, strict=False))
            if sizes == (size, size - 1) and len(whole.shape) == len(result.shape)
        }
        for whole, result in pairs
    ]


def _aligned(node, known):
    """Returns the axes of an elementwise result that are those of an argument."""
    (result, *_) = node.outputs
    found = set()
    for tensor in node.arguments:
        for axis in known.get(id(tensor), ()):
            place = axis + len(result.shape) - len(tensor.shape)
            if result.shape[place] == tensor.shape[axis]:
                found.add(place)
    return found


def _tried(node, known, axes, size):
    """Returns the axes of the first result along which a position depends on the same position."""
    inputs = [tensor for tensor in node.arguments if known.get(id(tensor))]

    def found_for(count):
        rng = np.random.default_rng(0)

        values = {}
        for tensor in node.arguments:
            places, sizes = known.get(id(tensor), ()), enumerate(_sizes(tensor, count))
            shape = [count if axis in places else part for axis, part in sizes]
            # Of ids, every vocabulary has 0 and 1.
            is_float = keras.backend.is_float_dtype(tensor.dtype)
            values[id(tensor)] = rng.normal(size=shape) * is_float

        def run(position=None):
            given = {}
            for tensor in node.arguments:
                value = values[id(tensor)].copy()
                if position is not None and any(tensor is one for one in inputs):
                    for axis in known[id(tensor)]:
                        value[(slice(None),) * axis + (position,)] += 1
                given[id(tensor)] = ops.cast(value, tensor.dtype)
            return ops.convert_to_numpy(keras.tree.flatten(node.applied(given))[0])

        plain, kept = run(), set(axes)
        for position in (0, count - 1):
            changed = run(position) != plain
            kept = {axis for axis in kept if changed.take(position, axis=axis).any()}
        return kept

    # The number of positions may be assumed, and too large for a layer.
    for count in (size, *(one for one in SIZES if one < size)):
        # Code written by others may raise any error for random values.
        with contextlib.suppress(Exception):
            return found_for(count)
    return set()
