"""Finds the blocks in the graph of a functional model, and the states between them."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import itertools
import math
import re
from typing import TYPE_CHECKING

import keras
from keras import layers

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers import Bounded, ResidualUnit, SpectralNormalization, slopes
from tfresidual.layers.residual_unit import PARAMETERS
from tfresidual.layers.shortcuts import SHORTCUTS
from tfresidual.routing.gradients import is_float8
from tfresidual.sources.graph import is_entry, is_of_keras, is_unchanged, path_to

if TYPE_CHECKING:
    from tfresidual.sources.graph import Graph, Node

# Layers that have weights but, like layers without weights, do not separate blocks: normalizations
# and activations.
PLAIN = (
    *(layers.BatchNormalization, layers.GroupNormalization, layers.LayerNormalization),
    *(layers.Normalization, layers.PReLU, layers.RMSNormalization, layers.UnitNormalization),
)
# Layers that do nothing at inference.
SILENT = (
    *(layers.ActivityRegularization, layers.AlphaDropout, layers.Dropout, layers.GaussianDropout),
    *(layers.GaussianNoise, layers.Identity, layers.SpatialDropout1D, layers.SpatialDropout2D),
    layers.SpatialDropout3D,
)
IDENTITY = "identity"
PROJECTION = "projection"
RESAMPLING = "resampling"
WEIGHTLESS = "weightless"
TWO_BRANCHES = "two branches"


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """A place on the trunk: the node before it (-1 for the input), and the tensor that passes."""

    index: int
    tensor: keras.KerasTensor


@dataclasses.dataclass(eq=False)
class _FoundBlock:
    """A block in the graph.

    Attributes:
        begin: where the branch begins.
        end: the place of the addition.
        shortcut: see `tfresidual.routing.Block`.
        carried: what is at the end of the shortcut; `None` for a unit, or if it cannot be told.
        branches: the tensors that are added to `carried`.
        sums: the `Node`s that add them, or the node of the unit.
        unit: the unit that is the whole block, or `None`.
        anchor: what the unit joins its branch to, or `None`.
        before: the place of the state that the block takes, at `begin` or before it.
        after: the place of the state that the block returns, at `end` or later.
        transition_from: where a transition to `before` begins, if there is one.
    """

    begin: _Place
    end: _Place
    shortcut: str | None
    carried: keras.KerasTensor | None = None
    branches: tuple[keras.KerasTensor, ...] = ()
    sums: tuple[Node, ...] = ()
    unit: ResidualUnit | None = None
    anchor: keras.KerasTensor | None = None
    before: _Place | None = None
    after: _Place | None = None
    transition_from: _Place | None = None
    name: str | None = None

    @property
    def adds_to_state(self):
        """Whether the branch is added to the state or, in a unit, to a tensor of its shape."""
        # A layer chosen as a block counts as what it adds to the state.
        is_identity = self.shortcut in (IDENTITY, None)
        return is_identity if self.unit is None else self.unit.resizing is None


def shortcut_of_unit(unit):
    """Returns the kind of shortcut of a residual unit, see `tfresidual.routing.Block`."""
    if unit.resizing is not None:
        return PROJECTION if unit.resize == "projection" else RESAMPLING
    kind = type(unit.shortcut)
    return next((name for name, known in SHORTCUTS.items() if known is kind), kind.__name__)


def trunk_of(graph):
    """Returns the places that every path from the inputs to the output passes, in order."""
    producer = {id(tensor): -1 for tensor in graph.inputs}
    for index, node in enumerate(graph.nodes):
        producer |= {id(tensor): index for tensor in node.outputs}
    # For every node, the last node that uses one of its outputs, and the outputs that are used.
    last_use = dict.fromkeys(range(-1, len(graph.nodes)), -1)
    used = {index: {} for index in last_use}
    uses = [
        (index, tensor)
        for index, node in enumerate(graph.nodes)
        for tensor in _taken(node)
        if id(tensor) in producer
    ]
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
    return [_call_of(node)["inputs"]] if is_unit(node) else node.inputs


def _call_of(node):
    signature = inspect.signature(node.operation.call)
    return signature.bind(*node.args, **node.kwargs).arguments


def blocks_of(graph, trunk, is_chosen=None):
    """Yields the blocks on the trunk: units and additions, or nodes that a function chooses."""
    ends = {place.index for place in trunk[1:]}
    for index, node in enumerate(graph.nodes):
        if is_unit(node) and index not in ends and _call_of(node).get("anchor") is not None:
            raise other_anchor(node.operation)
    for begin, end in itertools.pairwise(trunk):
        node = graph.nodes[end.index]
        if is_chosen is not None:
            takes_state = any(tensor is begin.tensor for tensor in node.inputs)
            keeps_shape = begin.tensor.shape == end.tensor.shape
            if is_chosen(node) and takes_state and keeps_shape:
                yield _FoundBlock(begin, end, None, name=node.operation.name, sums=(node,))
        elif is_unit(node):
            yield _FoundBlock(
                begin,
                end,
                shortcut_of_unit(node.operation),
                sums=(node,),
                unit=node.operation,
                anchor=_call_of(node).get("anchor"),
            )
        elif is_residual_sum(node) and (block := _block_of_sum(graph, begin, end)):
            yield block


def is_unit(node):
    """Returns whether a node is a call of a residual unit, which computes what such units do."""
    return is_unchanged(node.operation, ResidualUnit, "call", "__call__")


def is_addition(node):
    """Returns whether a node adds tensors of the graph: an `Add` layer, `ops.add` or `+`."""
    own = ("call", "__call__", "_merge_function")
    is_layer = is_unchanged(node.operation, keras.layers.Add, *own)
    return (is_layer or is_of_keras(node.operation, "Add")) and len(node.arguments) > 1


def is_residual_sum(node):
    """Returns whether a node adds different tensors of one shape."""
    if not is_addition(node):
        return False
    first, *others = node.arguments
    has_two = any(tensor is not first for tensor in others)
    return has_two and all(tensor.shape == first.shape for tensor in others)


def _summands(nodes, addition):
    """Returns the summands of an addition, and the nodes of the additions that were expanded."""
    # A summand that is itself a sum, and is used only here, is replaced by its own summands.
    uses = collections.Counter(id(tensor) for node in nodes for tensor in node.arguments)
    sums = {id(node.outputs[0]): node for node in nodes if is_residual_sum(node)}
    summands, taken_apart = [], [addition]
    for node in taken_apart:
        for tensor in node.arguments:
            if id(tensor) in sums and uses[id(tensor)] == 1:
                taken_apart.append(sums[id(tensor)])
            else:
                summands.append(tensor)
    return summands, tuple(taken_apart)


def _block_of_sum(graph, begin, end):
    """Returns the block between two places that ends in an addition, or `None`."""
    nodes, addition = graph.nodes[begin.index + 1 : end.index], graph.nodes[end.index]
    summands, sums = _summands([*nodes, addition], addition)
    origins = [_origin(nodes, tensor) is begin.tensor for tensor in summands]
    made = {id(tensor) for node in nodes for tensor in node.outputs}
    if any(origins):
        carried, branches = _parted(summands, origins.index(True))
        # Tensors of the context alone do not depend on the state.
        if not any(id(tensor) in made for tensor in branches):
            return None
        return _FoundBlock(begin, end, IDENTITY, carried, branches, sums)
    # Two summands are told apart by size; of more, one must be the state itself.
    operands, sums = addition.arguments, (addition,)
    if len(operands) > 2 or not all(id(tensor) in made for tensor in operands):
        return None
    paths = [path_to(nodes, tensor) for tensor in operands]
    # A shortcut has fewer layers with kernels than a branch; if both have the same number, it has
    # fewer parameters, and if these are equal too, fewer operations.
    sizes = [
        (
            sum(not _is_plain(node) for node in path),
            sum(math.prod(weight.shape) for weight in parameters_of(path)),
            sum(not is_entry(node) for node in path),
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
    return tensors[which], tuple(tensors[:which] + tensors[which + 1 :])


def _origin(nodes, tensor):
    """Returns the tensor that a tensor equals, followed back through layers that do nothing."""
    for node in reversed(nodes):
        if tensor is node.outputs[0] and _is_identity(node):
            (tensor,) = node.arguments
    return tensor


def _is_identity(node):
    operation = node.operation
    is_linear = isinstance(operation, layers.Activation) and (
        operation.activation is keras.activations.linear
    )
    return is_linear or type(operation) in SILENT or is_entry(node)


def _is_plain(node):
    """Returns whether a node has no weights except those of a normalization or an activation."""
    return isinstance(node.operation, PLAIN) or not parameters_of([node])


# Assigning what is between two blocks to the blocks


def join_gaps(graph, trunk, found):
    """Sets the states of blocks: assigns operations between blocks to blocks."""
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
    """Returns the place before a nested model casts the state to its own dtype."""
    index = trunk.index(place)
    while trunk[index].index > 0 and is_entry(graph.nodes[trunk[index].index]):
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
        """Whether the whole gap belongs to the block before it."""
        return (
            self.is_before_identity
            and self.start.tensor.shape == self.stop.tensor.shape
            and all(map(_is_plain, self.nodes(self.stop)))
        )

    def signature(self, place):
        """Returns the types of the operations up to a place."""
        return tuple(type(node.operation) for node in self.nodes(place) if not is_entry(node))

    def longest_prefix(self, signatures):
        """Returns the furthest place of the gap that has a given signature and the same shape."""
        for place in reversed(self.trunk):
            inside = self.start.index < place.index <= self.stop.index
            keeps_shape = place.tensor.shape == self.start.tensor.shape
            if inside and keeps_shape and self.signature(place) in signatures:
                return place
        return self.start


def other_anchor(unit):
    """Returns the error for a unit whose anchor is not the beginning of its stage."""
    return ArgumentError(
        "source",
        "hold units that are on the trunk and whose anchor is the state at which the "
        "shape-keeping blocks of their stage begin",
        received=f"{unit.name}, whose anchor is another tensor",
    )


BOUNDED = (Bounded, SpectralNormalization)
# The names of weights of Keras layers that are not learned.
STATISTICS = ("moving_mean", "moving_variance", "mean", "variance", "count", "vector_u")


def variables_of(nodes, is_wanted=lambda layer, weight: True):
    """Returns all weights of the layers of some nodes, learned or not, each once, as a tuple."""
    found = {
        id(weight): weight
        for node in nodes
        for weight in getattr(node.operation, "weights", ())
        if is_wanted(node.operation, weight)
    }
    return tuple(found.values())


def parameters_of(nodes):
    """Returns all parameters of some nodes, trainable or frozen, each once, as a tuple."""
    return variables_of(nodes, _is_parameter)


def _is_parameter(layer, weight):
    """Returns whether a weight is learned, or was learned before it was frozen."""
    if is_float8(weight):
        return False
    # Quantized ones are integers.
    is_learned = weight.trainable or weight.name.endswith(PARAMETERS)
    if is_learned or weight.dtype in ("int8", "uint8"):
        return True
    is_float = keras.backend.is_float_dtype(weight.dtype)
    frozen = not layer.trainable and is_float and not isinstance(layer, ResidualUnit)
    return frozen and weight.name not in STATISTICS


def weights_by_role(nodes):
    """Returns the parameters by role: their layer's number in the block, its class, their name.

    Layers that exchange axes have a number, too. Parts of a layer are in the role by name.
    """
    layers = {id(node.operation): node for node in nodes}.values()
    found = [(node.operation, parameters_of([node])) for node in layers]
    counted = [
        (layer, own)
        for layer, own in found
        if own
        or isinstance(layer, keras.layers.Permute)
        or is_of_keras(layer, "Transpose", "Swapaxes", "Moveaxis")
    ]
    roles = {}
    for number, (layer, weights) in enumerate(counted):
        parts = {}
        for weight in weights:
            inside = weight.path.removeprefix(f"{layer.path}/")
            part = inside.rpartition("/")[0] if inside != weight.path else ""
            # Keras numbers weights that have no name.
            name = re.sub(r"^variable_\d+$", "variable", weight.name)
            if part not in parts:
                # Keras and users number the parts of a network in the order in which they are made.
                parts[part] = _free(re.sub(r"_?\d+", "", part), parts.values())
            place = f"{number}/{type(layer).__name__}/{parts[part]}".rstrip("/")
            roles[_free(f"{place}/{name}", roles)] = weight
    return roles


def _free(name, taken):
    """Returns a name, with a number from 2 on after it if it is taken."""
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(2)))
    return next(one for one in names if one not in taken)


def bound_of_branch(nodes, source, branches):
    """Returns the function `lipschitz` of a block, or `None` if its branch is not bounded.

    It is if it is a single path of layers with known Lipschitz constants, some of them `BOUNDED`.
    """
    if len(branches) != 1:
        return None
    place, layers, constant = source, [], 1.0
    for node in path_to(nodes, branches[0]):
        layer = node.operation
        if [id(taken) for taken in node.inputs] != [id(place)] or not node.outputs:
            return None
        if isinstance(layer, BOUNDED):
            layers.append(layer)
            found = slopes.slope_of(getattr(getattr(layer, "layer", None), "activation", None))
        else:
            is_layer = isinstance(layer, keras.layers.Layer)
            known = slopes.known(layer, tuple(place.shape)) if is_layer else None
            # Of operations, slopes know ReLU.
            function = keras.ops.relu if type(layer).__name__ == "Relu" else _unknown
            found = slopes.slope_of(function) if known is None else known.constant
        if found is None:
            return None
        constant *= found
        place = node.outputs[0]
    if not layers or place is not branches[0]:
        return None

    def lipschitz():
        reports = [layer.lipschitz_bound() for layer in layers]
        product = dict.fromkeys(("lipschitz", "estimate", "certified"), constant) | {"divisor": 1.0}
        for report in reports:
            for name in product:
                product[name] *= report[name]
        return product | {"residual": max(report["residual"] for report in reports)}

    return lipschitz


def _unknown(tensor):
    """A function without a known slope."""
