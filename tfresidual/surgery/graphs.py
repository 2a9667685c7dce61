"""Plain functional models along routes, rebuilt from the graph of a model. TensorFlow only."""

from __future__ import annotations

import collections
import inspect
import itertools

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing import routes
from tfresidual.sources.division import divided
from tfresidual.sources.graph import (
    calling,
    inputs_of,
    is_entry,
    mask_of,
    outputs_of,
    path_to,
    replay,
)
from tfresidual.sources.tracer import whole_graph
from tfresidual.surgery.state import are_alike, copy_state, parts_of


def refusal(chain, reason):
    """Returns the error for a model, or a block, that cannot be rebuilt, with the reason."""
    return ArgumentError(
        "model", "be one that can be rebuilt along the route", received=f"{chain.name}: {reason}"
    )


def functional_model(model, chain, route, weights):
    """Returns the plain functional model of a route, with the layers of a model or copies."""
    layers = layers_of(chain)
    graph = whole_graph(model)
    chosen = None if not layers else lambda node: any(node.operation is one for one in layers)
    division = divided(graph, chosen)
    steps = steps_of(chain, route, layers)
    if division is None or len(division.blocks) != len(layers or chain.blocks):
        raise refusal(chain, "its blocks are not those of its layers called once each")
    rebuilt = _Rebuilt(model, chain, division, weights)
    return rebuilt.along(steps, steps_of(chain, routes.unperturbed(chain), layers))


def layers_of(chain, level=0):
    """Returns the layers that hold the blocks of a chain, in order, each of them once.

    Args:
        chain: the chain.
        level: 0 for the outermost layers, 1 for those inside of these, and so on.
    """
    found = {
        id(layer): layer for block in chain.blocks for layer in block.inside[level : level + 1]
    }
    return list(found.values())


def steps_of(chain, route, layers, level=0):
    """Returns the route as places of blocks, or of layers that hold them, lists by stage.

    Where layers hold blocks, only whole ones can be applied: all their blocks, in their order.
    """
    starts = list(itertools.accumulate((len(stage.blocks) for stage in chain.stages), initial=0))
    places = [
        [start + application.block for application in applications]
        for start, applications in zip(starts, route.stages, strict=False)
    ]
    if not layers:
        return places
    parts = collections.defaultdict(list)
    for place, block in enumerate(chain.blocks):
        parts[_owner(block, level)].append(place)
    found = []
    for steps in places:
        whole, left = [], list(steps)
        while left:
            block = chain.blocks[left[0]]
            owner = _owner(block, level)
            own = parts[owner]
            if owner is None or left[: len(own)] != own:
                name = chain.name if owner is None else owner.name
                raise ArgumentError(
                    "blocks",
                    "be all blocks of a layer, which is taken out or stays as a whole",
                    received=f"{block.name}, of which {name} has "
                    f"{', '.join(str(chain.blocks[one].name) for one in own)}",
                )
            whole.append(next(i for i, layer in enumerate(layers) if layer is owner))
            left = left[len(own) :]
        found.append(whole)
    return found


def _owner(block, level):
    return block.inside[level] if len(block.inside) > level else None


class _Rebuilt:
    """Calls the layers of a model again, with symbolic tensors, along a route."""

    def __init__(self, model, chain, division, weights):
        self.model, self.chain, self.division = model, chain, division
        self.is_copy = weights == "copy"
        # The copies of operations, by the id of these, and the names that they have.
        self.copies, self.names = {}, set()
        self.kept = []

    def along(self, steps, whole_steps):
        """Returns the model that applies blocks at some places, lists of these by stage.

        Args:
            steps: the places.
            whole_steps: those of the model as it is.
        """
        division, whole = self.division, self.division.whole
        inputs = keras.tree.map_structure(self._input, inputs_of(self.model))
        given = zip(whole.inputs, keras.tree.flatten(inputs), strict=True)
        values = {id(own): tensor for own, tensor in given}
        blocks = division.blocks
        first = blocks[0].before.tensor
        self._run(path_to(whole.nodes, first, *division.context), values)
        state, end = values[id(first)], None
        for places, own in zip(steps, whole_steps, strict=True):
            if end is not None:
                # The transition into the stage.
                state = self._between(end, blocks[own[0]].before, state, values)
            for place in places:
                state = self._between(blocks[place].before, blocks[place].after, state, values)
            end = blocks[own[-1]].after
        output = self._between(end, division.trunk[-1], state, values)
        outputs = keras.tree.pack_sequence_as(outputs_of(self.model), [output])
        made = keras.Model(inputs, outputs, name=self.model.name)
        trained = set(map(id, self.model.trainable_variables))
        made.dtype_policy = self.model.dtype_policy
        if self.is_copy and _count(self.kept, 0) < _count(self.kept, 1):
            raise refusal(self.chain, "layers share variables, which `weights='share'` leaves")
        for layer, copy in self.kept:
            if self.is_copy:
                self._copy_state(layer, copy)
            own = layer.trainable_variables
            if own and not any(id(variable) in trained for variable in own):
                # A model around it is frozen.
                if not self.is_copy:
                    raise refusal(self.chain, f"the model around {layer.name} is frozen, it is not")
                copy.trainable = False
        return made

    def _copy_state(self, layer, copy):
        parts, others = parts_of(layer), parts_of(copy)
        if not are_alike(parts, others):
            raise refusal(self.chain, f"{layer.name}, made from its configuration, holds others")
        try:
            copy_state(parts, others)
        except ValueError as error:
            raise refusal(self.chain, str(error)) from error

    def _between(self, start, stop, state, values):
        """Returns the state at a place, from that at an earlier one, or the same one."""
        known = values | {id(start.tensor): state}
        self._run(self.division.graph.nodes[start.index + 1 : stop.index + 1], known)
        return known[id(stop.tensor)]

    def _run(self, nodes, values):
        with calling(self._called):
            values |= replay(nodes, values)

    def _called(self, node, values):
        """Calls the operation of a node, as it was called, in place of `Node.applied`."""
        if node.counts is not None:
            raise refusal(self.chain, f"{node.operation.name} counts how often it was called")

        def refuse(weight):
            raise refusal(self.chain, f"{node.operation.name} reads a weight outside of a layer")

        args, kwargs = node.replaced(lambda tensor: values[id(tensor)], refuse)
        if is_entry(node):
            return keras.ops.cast(args[0], node.outputs[0].dtype)
        if node.masked:
            # The call of a nested model may have given its inputs another mask.
            taken = inspect.signature(node.operation.call)
            for name, value in taken.bind_partial(*args, **kwargs).arguments.items():
                mask = mask_of(value) if isinstance(value, keras.KerasTensor) else None
                if mask is not None and f"{name}_mask" in taken.parameters:
                    kwargs.setdefault(f"{name}_mask", mask)
        return self._copy_of(node.operation)(*args, **kwargs)

    def _input(self, tensor):
        is_optional = getattr(tensor._keras_history.operation, "optional", False)
        options = {"sparse": tensor.sparse, "ragged": tensor.ragged, "optional": is_optional}
        options |= {"dtype": tensor.dtype, "name": tensor.name}
        return keras.Input(batch_shape=tensor.shape, **options)

    def _copy_of(self, operation):
        """Returns an operation, or its copy, whose state is set in the end."""
        if id(operation) not in self.copies:
            copy = operation if not self.is_copy else self._made_again(operation)
            self.copies[id(operation)] = copy
            if isinstance(operation, keras.layers.Layer):
                self.kept.append((operation, copy))
        return self.copies[id(operation)]

    def _made_again(self, operation):
        name = self._name(operation.name)
        if isinstance(operation, keras.layers.Lambda):
            # Keras makes no code from a configuration; there is no weight in it.
            return operation
        try:
            return type(operation).from_config(operation.get_config() | {"name": name})
        except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
            raise refusal(
                self.chain,
                f"{operation.name} cannot be made from its configuration ({error}); "
                "`weights='share'` uses it as it is",
            ) from error

    def _name(self, name):
        """Returns a name that no other layer of the model has."""
        numbered = (f"{name}_{count}" for count in itertools.count(1))
        found = next(one for one in itertools.chain([name], numbered) if one not in self.names)
        self.names.add(found)
        return found


def _count(pairs, place):
    """Returns how many variables the layers at one place of pairs have."""
    return len({id(one) for pair in pairs for one in pair[place].variables})
