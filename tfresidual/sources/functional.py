"""The chain of a Keras model, found by walking its graph.

All paths from the input to the output meet at the places of the trunk. A residual block ends at one
where tensors of one shape are added, or in a layer that was chosen: one summand is the state at the
place before, or what a shortcut made of it, the others are the branch. If some paths go round all
blocks, the trunk begins at the tensor from which most blocks can be found. What is computed beside
it is the context of the chain.
"""

import functools

import keras
from keras import ops

from tfresidual.routing.chain import Block, Chain, Stage
from tfresidual.routing.losses import loss_of, note_of_loss, reference_loss_of
from tfresidual.routing.positions import VALID_POSITIONS
from tfresidual.routing.sizes import with_sizes
from tfresidual.sources.blocks import (
    BOUNDED,
    bound_of_branch,
    is_unit,
    other_anchor,
    parameters_of,
    shortcut_of_unit,
    variables_of,
    weights_by_role,
)
from tfresidual.sources.calls import SharedCalls
from tfresidual.sources.graph import described, path_to, replay
from tfresidual.sources.one_output import input_names_of
from tfresidual.sources.outputs import (
    is_guessed,
    kind_of_graph,
    outputs_of,
)

# The beginning of the note on outputs of which nothing says what they are.
GUESSED = "outputs are taken for logits of classes that exclude one another"
_WHY_GUESSED = (
    ", {} of them, since neither the last activation nor a loss of Keras says what they are; "
    "argument `outputs` of `tfresidual.chain` declares it"
)


def chain_of_division(model, division, declared, reference, notes=()):
    """Returns the chain of a divided model, which computes with its own layers, at inference.

    `declared` are `keras.KerasTensor`s of the inputs that the chain takes, in their structure. For
    `reference` and `notes`, see `tfresidual.routing.Chain`.
    """
    whole, graph, found = division.whole, division.graph, division.blocks
    prepare = preparation(
        node.operation
        for node in whole.nodes
        if is_unit(node) or isinstance(node.operation, BOUNDED)
    )
    if prepare is not None:
        prepare()
    context = _Context(division)
    parts = _Parts(graph, context)
    places = [place for block in found for place in (block.before, block.after)]
    dtype = keras.backend.result_type(*(place.tensor.dtype for place in places))
    formats = {getattr(node.operation, "data_format", None) for node in graph.nodes}
    axis = 1 if "channels_first" in formats else -1
    shapes, dtypes = described(declared)
    kind, has_rows = kind_of_graph(whole), len(whole.output.shape) in (2, 3)
    if has_rows and is_guessed(model, kind):
        notes = (GUESSED + _WHY_GUESSED.format(whole.output.shape[-1]), *notes)
    return Chain(
        name=model.name,
        stem=_stem(whole, found[0].before.tensor, dtype),
        stages=_stages(parts, found, axis, dtype),
        head=parts.between(found[-1].after, division.trunk[-1]),
        loss=loss_of(model, kind),
        input_shape=shapes,
        input_dtype=dtypes,
        outputs=outputs_of(model, kind) if has_rows else "values",
        weights=parameters_of(whole.nodes),
        prepare=prepare,
        reference=reference,
        notes=(*notes, *note_of_loss(model, kind)),
        context=context.function,
        outputs_at_positions=division.outputs_at_positions,
        called=parts.calls.called,
        variables=tuple(model.weights),
        is_compiled=model.compiled,
        input_names=input_names_of(model),
        reference_loss=reference_loss_of(model),
    )


def _stem(whole, target, dtype):
    nodes = path_to(whole.nodes, target)

    def stem(images):
        values = replay(nodes, _values_of_inputs(whole, images))
        return ops.cast(values[id(target)], dtype)

    return with_sizes(stem)


def _values_of_inputs(whole, images):
    structure = whole.structure
    if isinstance(structure, dict):
        images = {name: images[name] for name in structure}
    given = keras.tree.flatten(images)
    return {
        id(tensor): ops.cast(value, tensor.dtype)
        for tensor, value in zip(whole.inputs, given, strict=True)
    }


class _Context:
    """What blocks read beside the state, and how it is computed."""

    def __init__(self, division):
        whole = division.whole
        self.tensors = division.context
        makers = {id(made): node for node in whole.nodes for made in node.outputs}
        self.names = []
        for tensor in self.tensors:
            maker = makers.get(id(tensor))
            name = tensor.name if maker is None else maker.operation.name
            # The name of the valid positions is theirs alone.
            again = sum(known.partition(" ")[0] == name for known in [*self.names, VALID_POSITIONS])
            self.names.append(f"{name} {again + 1}" if again else name)
        self.whole, self.valid = whole, division.valid
        images = whole.input.shape[0]
        self.shared = {
            name
            for name, tensor in zip(self.names, self.tensors, strict=True)
            if not tensor.shape or tensor.shape[0] != images
        }
        valid = [] if self.valid is None else [self.valid]
        self.nodes = path_to(whole.nodes, *self.tensors, *valid)

    @property
    def function(self):
        """The function `images -> context`; `None` if there is no context."""
        return with_sizes(self.compute) if self.tensors or self.valid is not None else None

    def compute(self, images):
        count = ops.shape(keras.tree.flatten(images)[0])[0]
        context = self._values(images)
        # All of it has an axis of images, so that it can be cut and joined like the states.
        for name, value in context.items():
            if name in self.shared:
                value = ops.expand_dims(value, 0)
            if value.shape[0] == 1:
                value = ops.broadcast_to(value, (count, *ops.shape(value)[1:]))
            context[name] = value
        if self.valid is not None:
            context[VALID_POSITIONS] = ops.cast(context[VALID_POSITIONS], "bool")
        return context

    def _values(self, images):
        values = replay(self.nodes, _values_of_inputs(self.whole, images))
        named = zip(self.names, self.tensors, strict=True)
        found = {name: values[id(tensor)] for name, tensor in named}
        if self.valid is not None:
            found[VALID_POSITIONS] = values[id(self.valid)]
        return found

    def split(self, arguments):
        """Returns the states among the arguments of a function, and the context's values by id."""
        if self.function is None:
            return arguments, {}
        *states, context = arguments
        return states, {
            id(tensor): context[name][0] if name in self.shared else context[name]
            for name, tensor in zip(self.names, self.tensors, strict=True)
        }


def unit_parts(unit, takes_anchor, calls):
    """Returns the parts of a residual unit for a chain, as keyword arguments of `Block`."""
    return calls.parts(unit) | {
        "takes_anchor": takes_anchor,
        "weights": unit.weights_by_role(),
        "lipschitz": None if unit.lipschitz is None else unit.lipschitz_bound,
        "shortcut": shortcut_of_unit(unit),
    }


def preparation(units):
    """Returns a function that updates what bounded units keep; `None` without such units."""
    bounded = {
        id(unit): unit for unit in units if isinstance(unit, BOUNDED) or unit.lipschitz is not None
    }

    def converge():
        for unit in bounded.values():
            unit.converge()

    return converge if bounded else None


class _Parts:
    """The functions of a chain, each from a part of its graph."""

    def __init__(self, graph, context):
        self.graph, self.context, self.calls = graph, context, SharedCalls()

    def replayed(self, nodes, source, target):
        """Returns the function of one tensor from that of another, with the values of a context."""

        def function(state, known):
            return replay(nodes, known | {id(source): state})[id(target)]

        return function

    def inner(self, start, stop, dtype=None):
        """Returns the function `(state, known) -> result` from one place to another.

        All states of a chain have one dtype, the widest of those in the graph, which holds them
        all.
        """
        nodes = self.graph.nodes[start.index + 1 : stop.index + 1]
        function = self.replayed(nodes, start.tensor, stop.tensor)

        def lead(state, known):
            result = function(ops.cast(state, start.tensor.dtype), known)
            return result if dtype is None else ops.cast(result, dtype)

        return lead

    def outer(self, function):
        """Returns a function as the chain has it, with a context, if any, as its last argument."""

        def of_arguments(*arguments):
            states, known = self.context.split(arguments)
            return function(*states, known)

        return with_sizes(of_arguments)

    def between(self, start, stop, dtype=None):
        """Returns the function of the chain from one place to another."""
        return self.outer(self.inner(start, stop, dtype))

    def of_block(self, found, dtype):
        """Returns the parts of a block, as keyword arguments of `Block`."""
        nodes = self.graph.nodes[found.before.index + 1 : found.after.index + 1]
        if found.unit is None:
            parts = self.of_sum(found) | {"weights": weights_by_role(nodes)}
        else:
            parts = unit_parts(found.unit, found.anchor is not None, self.calls)
            for name in ("apply", "branch", "join"):
                parts[name] = functools.partial(_without_context, parts[name])
            around = [node for node in nodes if node.operation is not found.unit]
            parts["weights"] |= weights_by_role(around)
        start = self.inner(found.before, found.begin)
        end = self.inner(found.end, found.after, dtype)

        def apply(state, *others):
            *anchor, known = others
            return end(parts["apply"](start(state, known), *anchor, known), known)

        def branch(state, known):
            return parts["branch"](start(state, known), known)

        def join(base, added, known):
            return end(parts["join"](start(base, known), added, known), known)

        functions = {
            "apply": self.outer(apply),
            "branch": parts["branch"] and self.outer(branch),
            "join": parts["join"] and self.outer(join),
        }
        inside = found.sums[0].inside
        if found.shortcut is None and found.unit is None:
            # A layer that was chosen as a whole.
            inside = (*inside, found.sums[0].operation)
        named = {"name": found.name, "variables": variables_of(nodes), "inside": inside}
        return parts | functions | named

    def of_sum(self, found):
        """Like `unit_parts`, for a sum or a layer, without weights."""
        nodes = self.graph.nodes[found.begin.index + 1 : found.end.index]
        addition = self.graph.nodes[found.end.index]
        source, target = found.begin.tensor, found.end.tensor
        parts = {
            "apply": self.replayed([*nodes, addition], source, target),
            "branch": None,
            "join": None,
            "shortcut": found.shortcut,
        }
        if found.carried is not None:
            carry = self.replayed(path_to(nodes, found.carried), source, found.carried)
            paths = path_to(nodes, *found.branches)

            def join(base, added, known):
                return _sum([carry(base, known), added], target.dtype)

            def branch(state, known):
                values = replay(paths, known | {id(source): state})
                return _sum([values[id(tensor)] for tensor in found.branches], target.dtype)

            parts |= {"join": join, "branch": branch}
            if found.before.index == found.begin.index:
                parts["lipschitz"] = bound_of_branch(nodes, source, found.branches)
        return parts


def _without_context(function, *arguments):
    return function(*arguments[:-1])


def _stages(parts, found, axis, dtype):
    stages, transition, blocks, anchor = [], None, [], None
    for block, opens in zip(found, _opens_stage(found, axis), strict=True):
        after = block.after.tensor.shape
        if blocks and opens:
            stages.append(Stage(len(stages) + 1, tuple(blocks), transition))
            transition, blocks = None, []
        if block.transition_from is not None:
            transition = parts.between(block.transition_from, block.before, dtype)
        # The tensor that `Chain` will pass to the block as its anchor.
        anchor = anchor if blocks else block.before
        keeps_shape = block.before.tensor.shape == after
        if block.anchor is not None and not (keeps_shape and block.anchor is anchor.tensor):
            raise other_anchor(block.unit)
        place = {"stage": len(stages) + 1, "index": len(blocks), "keeps_shape": keeps_shape}
        blocks.append(Block(**place, **parts.of_block(block, dtype)))
        anchor = anchor if keeps_shape else block.after
    stages.append(Stage(len(stages) + 1, tuple(blocks), transition))
    return tuple(stages)


def _opens_stage(found, axis):
    shapes = [block.after.tensor.shape for block in found]
    changes = [
        block.transition_from is not None or now[axis] != before[axis]
        for block, before, now in zip(found[1:], shapes, shapes[1:], strict=False)
    ]
    for index, is_change in enumerate(changes):
        is_last_of_stage = index + 1 < len(changes) and changes[index + 1]
        changes[index] = is_change or (shapes[index + 1] != shapes[index] and not is_last_of_stage)
    return [True, *changes]


def _sum(tensors, dtype):
    return functools.reduce(ops.add, (ops.cast(tensor, dtype) for tensor in tensors))
