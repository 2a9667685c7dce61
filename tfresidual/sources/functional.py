"""The chain of a functional Keras model, found by walking its graph.

The trunk consists of the places where all paths from input to output meet. If tensors of one shape
are added at such a place, the part of the graph since the previous place is a residual block: one
of the tensors is the state at the previous place, or what a shortcut made of it, and the others
together are the branch.
"""

import collections
import functools

import keras
from keras import ops

from tfresidual.routing.chain import Block, Chain, Stage
from tfresidual.routing.losses import loss_of
from tfresidual.sources.blocks import (
    blocks_of,
    is_unit,
    join_gaps,
    other_anchor,
    path_to,
    shortcut_of_unit,
    trunk_of,
)
from tfresidual.sources.graph import graph_of, reference_of, replay, replayed
from tfresidual.sources.masks import check_masks
from tfresidual.sources.notes import is_opaque, no_block, notes_of, other_additions
from tfresidual.sources.outputs import kind_of, last_operation, outputs_of
from tfresidual.sources.weights import parameters_of, weights_by_role


def functional_chain(model):
    """Returns the chain of a functional model whose residual additions are on one trunk.

    The chain computes with the layers of the model itself, at inference, as `predict` does. It adds
    nothing to the model or its layers, however often it is called. Anything that the graph does
    not show is described in its `notes`.

    A block reaches from the place where its branch begins to the addition, and includes what
    belongs to it on either side: an activation after the addition, if blocks with an identity
    shortcut also begin after it, and an activation or normalization shared by both paths of a
    block that changes the shape. Several parallel branches that are added to the state count as
    one branch.

    A stage ends where the number of channels changes, or where layers that change the state come
    between two blocks. A block that changes only height and width also opens a stage, unless the
    block after it opens one; it is then the last block of its stage.

    Statistics that are set by `Normalization.adapt` are constants of the graph: an existing chain
    keeps the statistics, as well as the loss, that it was made with. Make a new chain after calling
    `adapt` or `compile`.

    Args:
        model: a functional `keras.Model`, or a `keras.Sequential` that has its input; with one
            input and one output tensor, compiled or not.

    Returns:
        A `tfresidual.routing.Chain`.

    Raises:
        ValueError: if the model has no graph, several inputs or outputs, no block, a
            `tfresidual.layers.ResidualUnit` whose anchor is not the beginning of its stage, or
            layers that read a Keras mask made in another part of the chain.
    """
    graph = graph_of(model)
    last = last_operation(graph)
    trunk = trunk_of(graph)
    found = list(blocks_of(graph, trunk))
    additions = other_additions(graph, found)
    opaque = collections.defaultdict(list)
    for node in filter(is_opaque, graph.nodes):
        opaque[type(node.operation).__name__].append(node.operation.name)
    if not found:
        if additions:
            # A layer may take its mask as an argument, which bypasses the trunk.
            everywhere = [(i, made) for i, node in enumerate(graph.nodes) for made in node.outputs]
            check_masks(model, graph, everywhere)
        raise no_block(graph, model, additions, opaque)
    join_gaps(graph, trunk, found)
    check_masks(model, graph, _borders(found))
    axis = 1 if _is_channels_first(graph) else -1
    prepare = preparation(node.operation for node in graph.nodes if is_unit(node))
    if prepare is not None:
        prepare()
    return Chain(
        name=model.name,
        stem=_function_between(graph, trunk[0], found[0].before, _dtype_of_states(found)),
        stages=_stages(graph, found, axis),
        head=_function_between(graph, found[-1].after, trunk[-1]),
        loss=loss_of(model, kind_of(model, last)),
        input_shape=tuple(model.inputs[0].shape[1:]),
        outputs=outputs_of(model, last) if len(graph.output.shape) == 2 else "values",
        weights=parameters_of(graph.nodes),
        prepare=prepare,
        reference=reference_of(model),
        notes=notes_of(additions, opaque),
    )


def unit_parts(unit, takes_anchor):
    """Returns the parts of a residual unit for a chain, as keyword arguments of `Block`."""
    return {
        "apply": functools.partial(unit, training=False),
        "branch": functools.partial(unit.branch, training=False),
        "join": functools.partial(unit.join, training=False),
        "takes_anchor": takes_anchor,
        "weights": unit.weights_by_role(),
        "lipschitz": None if unit.lipschitz is None else unit.lipschitz_bound,
        "shortcut": shortcut_of_unit(unit),
    }


def preparation(units):
    """Returns a function that updates the values kept by bounded units; `None` without such units.

    The function refers to the units, not to their model, because callbacks keep chains only as long
    as their model exists.
    """
    bounded = list({id(unit): unit for unit in units if unit.lipschitz is not None}.values())

    def converge():
        for unit in bounded:
            unit.converge()

    return converge if bounded else None


def _function_between(graph, start, stop, dtype=None):
    """Returns the function from one place to another; its result is cast to `dtype`, if given.

    All states of a chain have one dtype, the widest of those in the graph, so that they can be held
    without loss. Every part of the chain casts them to its own dtype.
    """
    nodes = graph.nodes[start.index + 1 : stop.index + 1]
    function = replayed(nodes, start.tensor, stop.tensor)

    def lead(state):
        result = function(ops.cast(state, start.tensor.dtype))
        return result if dtype is None else ops.cast(result, dtype)

    return lead


def _borders(found):
    """Yields the borders between parts of the chain: the index of a node and a tensor passed on."""
    for block in found:
        for place in (block.before, block.begin, block.end, block.after):
            yield place.index, place.tensor
        for tensor in (block.carried, *block.branches):
            if tensor is not None:
                yield block.end.index - 1, tensor


def _dtype_of_states(found):
    places = [place for block in found for place in (block.before, block.after)]
    return keras.backend.result_type(*(place.tensor.dtype for place in places))


def _stages(graph, found, axis):
    """Returns the blocks, grouped into stages."""
    stages, transition, blocks, anchor = [], None, [], None
    dtype = _dtype_of_states(found)
    for block, opens in zip(found, _opens_stage(found, axis), strict=True):
        after = block.after.tensor.shape
        if blocks and opens:
            stages.append(Stage(len(stages) + 1, tuple(blocks), transition))
            transition, blocks = None, []
        if block.transition_from is not None:
            transition = _function_between(graph, block.transition_from, block.before, dtype)
        # The tensor that `Chain` will pass to the block as its anchor.
        anchor = anchor if blocks else block.before
        keeps_shape = block.before.tensor.shape == after
        if block.anchor is not None and not (keeps_shape and block.anchor is anchor.tensor):
            raise other_anchor(block.unit)
        place = {"stage": len(stages) + 1, "index": len(blocks), "keeps_shape": keeps_shape}
        blocks.append(Block(**place, **_parts(graph, block, dtype)))
        anchor = anchor if keeps_shape else block.after
    stages.append(Stage(len(stages) + 1, tuple(blocks), transition))
    return tuple(stages)


def _opens_stage(found, axis):
    """Returns, for every block, whether a stage begins with it.

    A block that changes only height and width opens a stage, unless the block after it opens one.
    """
    shapes = [block.after.tensor.shape for block in found]
    changes = [
        block.transition_from is not None or now[axis] != before[axis]
        for block, before, now in zip(found[1:], shapes, shapes[1:], strict=False)
    ]
    for index, is_change in enumerate(changes):
        is_last_of_stage = index + 1 < len(changes) and changes[index + 1]
        changes[index] = is_change or (shapes[index + 1] != shapes[index] and not is_last_of_stage)
    return [True, *changes]


def _parts(graph, found, dtype):
    """Returns the parts of a block, as keyword arguments of `Block`."""
    nodes = graph.nodes[found.before.index + 1 : found.after.index + 1]
    if found.unit is None:
        parts = _sum_parts(graph, found) | {"weights": weights_by_role(nodes)}
    else:
        parts = unit_parts(found.unit, found.anchor is not None)
        around = [node for node in nodes if node.operation is not found.unit]
        parts["weights"] |= weights_by_role(around)
    start = _function_between(graph, found.before, found.begin)
    end = _function_between(graph, found.end, found.after, dtype)
    functions = {
        "apply": lambda state, *anchor: end(parts["apply"](start(state), *anchor)),
        "branch": parts["branch"] and (lambda state: parts["branch"](start(state))),
        "join": parts["join"] and (lambda base, branch: end(parts["join"](start(base), branch))),
    }
    return parts | functions | {"name": graph.nodes[found.end.index].operation.name}


def _sum_parts(graph, found):
    """Returns for a sum what `unit_parts` returns for a unit, except for the weights."""
    nodes = graph.nodes[found.begin.index + 1 : found.end.index]
    addition = graph.nodes[found.end.index]
    source, target = found.begin.tensor, found.end.tensor
    parts = {
        "apply": replayed([*nodes, addition], source, target),
        "branch": None,
        "join": None,
        "shortcut": found.shortcut,
    }
    if found.carried is not None:
        carry = replayed(path_to(nodes, found.carried), source, found.carried)
        parts["join"] = lambda base, branch: _sum([carry(base), branch], target.dtype)
        paths = path_to(nodes, *found.branches)

        def branch(state):
            values = replay(paths, {id(source): state})
            return _sum([values[id(tensor)] for tensor in found.branches], target.dtype)

        parts["branch"] = branch
    return parts


def _sum(tensors, dtype):
    return functools.reduce(ops.add, (ops.cast(tensor, dtype) for tensor in tensors))


def _is_channels_first(graph):
    formats = {getattr(node.operation, "data_format", None) for node in graph.nodes}
    return "channels_first" in formats
