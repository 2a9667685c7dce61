"""The chain of a functional Keras model, found by walking its graph.

The trunk consists of the places where all paths from input to output meet. If tensors of one shape
are added at such a place, the part of the graph since the previous place is a residual block: one
of the tensors is the state at the previous place, or what a shortcut made of it, and the others
together are the branch.
"""

import collections
import dataclasses
import functools
import inspect
import itertools
import math
import re

import keras
from keras import ops

from tfresidual.layers import ResidualUnit
from tfresidual.layers.residual_unit import PARAMETERS
from tfresidual.layers.shortcuts import SHORTCUTS
from tfresidual.routing.chain import Block, Chain, Stage
from tfresidual.routing.losses import loss_of
from tfresidual.sources.graph import (
    Entry,
    Graph,
    Node,
    graph_of,
    is_of_keras,
    reference_of,
    replay,
    replayed,
)
from tfresidual.sources.masks import check_masks
from tfresidual.sources.outputs import kind_of, last_operation, outputs_of

# Layers that have weights but, like layers without weights, do not separate blocks: normalizations
# and activations.
PLAIN = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Normalization,
    keras.layers.PReLU,
    keras.layers.RMSNormalization,
    keras.layers.UnitNormalization,
)
# Layers that do nothing at inference.
SILENT = (
    keras.layers.ActivityRegularization,
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.Identity,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)
# The names of weights of Keras layers that are not learned.
STATISTICS = ("moving_mean", "moving_variance", "mean", "variance", "count", "vector_u")
IDENTITY = "identity"
PROJECTION = "projection"
RESAMPLING = "resampling"
WEIGHTLESS = "weightless"
TWO_BRANCHES = "two branches"


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """A place on the trunk.

    Attributes:
        index: int, the index of the node just before it; -1 for the input.
        tensor: `keras.KerasTensor`, the only one that passes this place.
    """

    index: int
    tensor: keras.KerasTensor


@dataclasses.dataclass(eq=False)
class _FoundBlock:
    """A block in the graph.

    Attributes:
        begin: the `_Place` where the branch begins.
        end: the `_Place` of the addition.
        shortcut: str, see `tfresidual.routing.Block`.
        carried: the `keras.KerasTensor` at the end of the shortcut, or `None` if the block is a
            unit, or if shortcut and branch cannot be told apart.
        branches: the tensors that are added to `carried`, as a tuple; empty if `carried` is
            `None`.
        sums: tuple of the `Node`s that add them, or of the node of the unit.
        unit: the `ResidualUnit` that is the whole block, or `None`.
        anchor: the `keras.KerasTensor` that the unit joins its branch to, or `None`.
        before: the `_Place` of the state that the block takes, at `begin` or before it.
        after: the `_Place` of the state that the block returns, at `end` or later.
        transition_from: the `_Place` after the previous block, if a transition leads from there
            to `before`; otherwise `None`.
    """

    begin: _Place
    end: _Place
    shortcut: str
    carried: keras.KerasTensor | None = None
    branches: tuple[keras.KerasTensor, ...] = ()
    sums: tuple[Node, ...] = ()
    unit: ResidualUnit | None = None
    anchor: keras.KerasTensor | None = None
    before: _Place | None = None
    after: _Place | None = None
    transition_from: _Place | None = None

    @property
    def adds_to_state(self):
        """Whether the branch is added to the state or, in a unit, to a tensor of its shape."""
        is_identity = self.shortcut == IDENTITY
        return is_identity if self.unit is None else self.unit.resizing is None


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
    trunk = _trunk(graph)
    found = list(_blocks(graph, trunk))
    additions = _other_additions(graph, found)
    opaque = collections.defaultdict(list)
    for node in filter(_is_opaque, graph.nodes):
        opaque[type(node.operation).__name__].append(node.operation.name)
    if not found:
        if additions:
            # A layer may take its mask as an argument, which bypasses the trunk.
            everywhere = [(i, made) for i, node in enumerate(graph.nodes) for made in node.outputs]
            check_masks(model, graph, everywhere)
        raise _no_block(graph, model, additions, opaque)
    _join_gaps(graph, trunk, found)
    check_masks(model, graph, _borders(found))
    axis = 1 if _is_channels_first(graph) else -1
    prepare = preparation(node.operation for node in graph.nodes if _is_unit(node))
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
        weights=_parameters(graph.nodes),
        prepare=prepare,
        reference=reference_of(model),
        notes=_notes(additions, opaque),
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
        "shortcut": _shortcut_of_unit(unit),
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


def _shortcut_of_unit(unit):
    if unit.resizing is not None:
        return PROJECTION if unit.resize == "projection" else RESAMPLING
    kind = type(unit.shortcut)
    return next((name for name, known in SHORTCUTS.items() if known is kind), kind.__name__)


# Finding the blocks


def _trunk(graph):
    """Returns the places that every path from input to output passes, in order."""
    producer = {id(graph.input): -1}
    for index, node in enumerate(graph.nodes):
        producer |= {id(tensor): index for tensor in node.outputs}
    # For every node, the last node that uses one of its outputs, and the outputs that are used.
    last_use = dict.fromkeys(range(-1, len(graph.nodes)), -1)
    used = {index: {} for index in last_use}
    uses = [(index, tensor) for index, node in enumerate(graph.nodes) for tensor in _taken(node)]
    for index, tensor in [*uses, (len(graph.nodes), graph.output)]:
        source = producer[id(tensor)]
        last_use[source] = max(last_use[source], index)
        used[source][id(tensor)] = tensor
    places, furthest = [], -1
    for index in last_use:
        # No earlier tensor is used after this place.
        if furthest <= index and len(used[index]) == 1:
            places.append(_Place(index, *used[index].values()))
        furthest = max(furthest, last_use[index])
    return places


def _taken(node):
    """Returns the tensors that a node takes, without the anchor of a unit."""
    return [_call_of(node)["inputs"]] if _is_unit(node) else node.inputs


def _call_of(node):
    """Returns the arguments of the call of a unit, by name."""
    signature = inspect.signature(node.operation.call)
    return signature.bind(*node.args, **node.kwargs).arguments


def _blocks(graph, trunk):
    """Yields all blocks on the trunk, in order."""
    ends = {place.index for place in trunk[1:]}
    for index, node in enumerate(graph.nodes):
        if _is_unit(node) and index not in ends and _call_of(node).get("anchor") is not None:
            raise _other_anchor(node.operation)
    for begin, end in itertools.pairwise(trunk):
        node = graph.nodes[end.index]
        if _is_unit(node):
            yield _FoundBlock(
                begin,
                end,
                _shortcut_of_unit(node.operation),
                sums=(node,),
                unit=node.operation,
                anchor=_call_of(node).get("anchor"),
            )
        elif _is_residual_sum(node) and (block := _block_of_sum(graph, begin, end)):
            yield block


def _is_unit(node):
    return isinstance(node.operation, ResidualUnit)


def _is_addition(node):
    """Returns whether a node adds tensors of the graph: an `Add` layer, `ops.add` or `+`."""
    is_add = isinstance(node.operation, keras.layers.Add) or is_of_keras(node.operation, "Add")
    return is_add and len(node.inputs) > 1


def _is_residual_sum(node):
    """Returns whether a node adds different tensors of one shape."""
    if not _is_addition(node):
        return False
    first, *others = node.inputs
    has_two = any(tensor is not first for tensor in others)
    return has_two and all(tensor.shape == first.shape for tensor in others)


def _summands(nodes, addition):
    """Returns the summands of an addition, and the nodes of the additions that were expanded.

    A summand that is itself a sum, and is used only here, is replaced by its own summands.
    """
    uses = collections.Counter(id(tensor) for node in nodes for tensor in node.inputs)
    sums = {id(node.outputs[0]): node for node in nodes if _is_residual_sum(node)}
    summands, taken_apart = [], [addition]
    for node in taken_apart:
        for tensor in node.inputs:
            if id(tensor) in sums and uses[id(tensor)] == 1:
                taken_apart.append(sums[id(tensor)])
            else:
                summands.append(tensor)
    return summands, tuple(taken_apart)


def _block_of_sum(graph, begin, end):
    """Returns the block between two places that ends in an addition, or `None`.

    With two summands, shortcut and branch are told apart by size. With more of them, one must be
    the state itself.
    """
    nodes, addition = graph.nodes[begin.index + 1 : end.index], graph.nodes[end.index]
    summands, sums = _summands([*nodes, addition], addition)
    origins = [_origin(nodes, tensor) is begin.tensor for tensor in summands]
    if any(origins):
        return _FoundBlock(begin, end, IDENTITY, *_parted(summands, origins.index(True)), sums)
    operands, sums = addition.inputs, (addition,)
    if len(operands) > 2:
        return None
    paths = [_path(nodes, tensor) for tensor in operands]
    # A shortcut has fewer layers with kernels than a branch; if both have the same number, it has
    # fewer parameters, and if these are equal too, fewer operations.
    sizes = [
        (
            sum(not _is_plain(node) for node in path),
            sum(math.prod(weight.shape) for weight in _parameters(path)),
            sum(not isinstance(node.operation, Entry) for node in path),
        )
        for path in paths
    ]
    if sizes.count(min(sizes)) > 1:
        return _FoundBlock(begin, end, TWO_BRANCHES, sums=sums)
    which = sizes.index(min(sizes))
    kind = WEIGHTLESS if begin.tensor.shape == operands[which].shape else RESAMPLING
    kind = PROJECTION if sizes[which][1] > 0 else kind
    return _FoundBlock(begin, end, kind, *_parted(operands, which), sums)


def _parted(tensors, which):
    """Returns one of some tensors, and a tuple of the others."""
    return tensors[which], tuple(tensors[:which] + tensors[which + 1 :])


def _origin(nodes, tensor):
    """Returns the tensor that a tensor equals, followed back through layers that do nothing."""
    for node in reversed(nodes):
        if tensor is node.outputs[0] and _is_identity(node):
            (tensor,) = node.inputs
    return tensor


def _is_identity(node):
    operation = node.operation
    is_linear = isinstance(operation, keras.layers.Activation) and (
        operation.activation is keras.activations.linear
    )
    return is_linear or type(operation) in (*SILENT, Entry)


def _path(nodes, *tensors):
    """Returns the nodes that lead to some tensors."""
    needed, path = set(map(id, tensors)), []
    for node in reversed(nodes):
        if any(id(output) in needed for output in node.outputs):
            path.append(node)
            needed |= {id(taken) for taken in node.inputs}
    return path[::-1]


def _is_plain(node):
    """Returns whether a node has no weights except those of a normalization or an activation."""
    return isinstance(node.operation, PLAIN) or not _parameters([node])


# Assigning what is between two blocks to the blocks


def _join_gaps(graph, trunk, found):
    """Sets the states that the blocks take and return, by assigning them parts of the gaps."""
    for block in found:
        block.before = _before_entries(graph, trunk, block.begin)
    gaps = [
        _Gap(graph, trunk, one.end, other.before, other.adds_to_state)
        for one, other in itertools.pairwise(found)
    ]
    signatures = {gap.signature(gap.stop) for gap in gaps if gap.is_joined_whole}
    head = _Gap(graph, trunk, found[-1].end, trunk[-1], False)
    for block, gap in zip(found, [*gaps, head], strict=True):
        block.after = gap.stop if gap.is_joined_whole else gap.longest_prefix(signatures)
    for (block, other), gap in zip(itertools.pairwise(found), gaps, strict=True):
        keeps_shape = block.after.tensor.shape == other.before.tensor.shape
        if keeps_shape and not gap.is_before_identity:
            other.before = block.after
        elif block.after is not other.before:
            other.transition_from = block.after


def _before_entries(graph, trunk, place):
    """Returns the place before a nested model casts the state to its own dtype.

    This way states have one dtype, whether or not a block is in a nested model.
    """
    index = trunk.index(place)
    while trunk[index].index > 0 and isinstance(graph.nodes[trunk[index].index].operation, Entry):
        index -= 1
    return trunk[index]


@dataclasses.dataclass(frozen=True, eq=False)
class _Gap:
    """The part of the trunk between two places, after a block."""

    graph: Graph
    trunk: list[_Place]
    start: _Place
    stop: _Place
    is_before_identity: bool

    def nodes(self, place):
        """Returns the nodes of the gap up to a place."""
        return self.graph.nodes[self.start.index + 1 : place.index + 1]

    @property
    def is_joined_whole(self):
        """Whether the whole gap belongs to the block before it.

        This is so if the next block adds its branch to the state after the gap, and the gap keeps
        the shape and has only plain nodes.
        """
        return (
            self.is_before_identity
            and self.start.tensor.shape == self.stop.tensor.shape
            and all(map(_is_plain, self.nodes(self.stop)))
        )

    def signature(self, place):
        """Returns the types of the operations up to a place."""
        kinds = (type(node.operation) for node in self.nodes(place))
        return tuple(kind for kind in kinds if kind is not Entry)

    def longest_prefix(self, signatures):
        """Returns the furthest place of the gap that has a given signature and the same shape."""
        for place in reversed(self.trunk):
            inside = self.start.index < place.index <= self.stop.index
            keeps_shape = place.tensor.shape == self.start.tensor.shape
            if inside and keeps_shape and self.signature(place) in signatures:
                return place
        return self.start


# Putting the chain together


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
            raise _other_anchor(block.unit)
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
        parts = _sum_parts(graph, found) | {"weights": _weights_by_role(nodes)}
    else:
        parts = unit_parts(found.unit, found.anchor is not None)
        around = [node for node in nodes if node.operation is not found.unit]
        parts["weights"] |= _weights_by_role(around)
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
        carry = replayed(_path(nodes, found.carried), source, found.carried)
        parts["join"] = lambda base, branch: _sum([carry(base), branch], target.dtype)
        paths = _path(nodes, *found.branches)

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


# Weights


def _parameters(nodes):
    """Returns all parameters of some nodes, trainable or frozen, each variable once, as a tuple."""
    layers = {id(node.operation): node.operation for node in nodes}.values()
    found = {}
    for layer in layers:
        for weight in getattr(layer, "weights", ()):
            if _is_parameter(layer, weight):
                found[id(weight)] = weight
    return tuple(found.values())


def _is_parameter(layer, weight):
    """Returns whether a weight is learned, or was learned before it was frozen.

    A weight itself does not show whether it was frozen or never meant to be trained. This is
    determined by its name or, if the whole layer is frozen, by whether it is a known statistic.
    """
    if weight.trainable or weight.name.endswith(PARAMETERS):
        return True
    is_float = keras.backend.is_float_dtype(weight.dtype)
    frozen = not layer.trainable and is_float and not isinstance(layer, ResidualUnit)
    return frozen and weight.name not in STATISTICS


def _weights_by_role(nodes):
    """Returns the parameters by role: number of the layer in the block, its class, their name."""
    layers = {id(node.operation): node for node in nodes}.values()
    weighted = [(node.operation, _parameters([node])) for node in layers]
    roles = {}
    for number, (layer, weights) in enumerate(item for item in weighted if item[1]):
        names = collections.Counter()
        for weight in weights:
            # Keras numbers weights that have no name.
            name = re.sub(r"^variable_\d+$", "variable", weight.name)
            names[name] += 1
            again = f"_{names[name]}" if names[name] > 1 else ""
            roles[f"{number}/{type(layer).__name__}/{name}{again}"] = weight
    return roles


# Additions that are not blocks, and layers that cannot be looked into


def _other_additions(graph, found):
    """Returns the names of the additions that are not blocks, by kind."""
    known = {id(node) for block in found for node in block.sums}
    others = collections.defaultdict(list)
    for node in graph.nodes:
        if id(node) in known:
            continue
        if _is_residual_sum(node) and len(node.inputs) > 2:
            others["of several tensors, none of them the state"].append(node.operation.name)
        elif _is_residual_sum(node) or _is_unit(node):
            others["off the trunk"].append(node.operation.name)
        elif _is_addition(node):
            others["of other shapes, or of the same tensor"].append(node.operation.name)
    return others


def _is_opaque(node):
    """Returns whether a node is a layer that may contain additions."""
    layer = node.operation
    while isinstance(layer, keras.layers.Wrapper):
        layer = layer.layer
    if not isinstance(layer, keras.layers.Layer):
        return False
    kind = type(layer)
    if isinstance(layer, (keras.Model, keras.layers.Lambda)):
        return True
    package = kind.__module__.partition(".")[0]
    if getattr(keras.layers, kind.__name__, None) is kind or package == "tfresidual":
        return False
    # Other layers of Keras, such as those of its applications, are opaque if they could add two
    # tensors.
    alike = [taken for taken in node.inputs if taken.shape == node.outputs[0].shape]
    return package != "keras" or len(alike) > 1


def _other_anchor(unit):
    return ValueError(
        "Argument `source` must hold units that are on the trunk and whose anchor is the state "
        f"at which the shape-keeping blocks of their stage begin. Received: {unit.name}, whose "
        "anchor is another tensor"
    )


def _listed(names_by_kind):
    """Returns a text with the number of names of every kind and the first of them."""
    return ", ".join(
        f"{kind} ({len(names)}: {', '.join([*names[:3], *(['...'] if len(names) > 3 else [])])})"
        for kind, names in sorted(names_by_kind.items())
    )


def _notes(additions, opaque):
    notes = []
    if additions:
        notes.append(
            f"additions that are not blocks themselves: {_listed(additions)}; they are computed "
            "as part of what contains them"
        )
    if opaque:
        notes.append(f"the inside of these layers cannot be seen: {_listed(opaque)}")
    return tuple(notes)


def _no_block(graph, model, additions, opaque):
    found = f"additions: {_listed(additions)}" if additions else "no addition"
    if opaque:
        found += f"; layers that may hide some: {_listed(opaque)}"
    if any(keras.tree.flatten(node.kwargs.get("mask")) != [None] for node in graph.nodes):
        found += "; masks, which bypass every place where the other paths meet"
    return ValueError(
        "Argument `source` must be a model with residual additions on one trunk: of tensors of "
        "one shape, where all paths from input to output meet. "
        f"Received: source={model.name} with {found}"
    )
