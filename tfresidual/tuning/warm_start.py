"""Warm start of a deeper network from a shallower one."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_number
from tfresidual.networks import ResidualNetwork
from tfresidual.networks.weight_groups import plain_name
from tfresidual.routing.agreement import allowed_difference, sample_images
from tfresidual.tuning.as_built import restored, values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tfresidual.routing.chain import Chain

# Factor of the branches of new blocks, so that these start near the identity.
NEARNESS = 0.1
# Settings that may differ between the two networks: with equal weights they compute the same.
MAY_DIFFER = ("blocks", "name", "trainable", "gamma_initializer", "recurrent_initialization")
# The weights of the layer that ends a branch are those by which the branch is multiplied by this
# factor, a power of two.
TRIED = 0.5


def interleave(
    shallow: keras.Model,
    deep: keras.Model,
    nearness: float = NEARNESS,
    *,
    chain: Callable[[keras.Model], Chain] | None = None,
) -> None:
    """Copies the weights of a shallower network to a deeper one, with new blocks in between.

    The blocks of every stage that keep the shape of the state are spread evenly over the deeper
    stage; the first remains the first. The blocks between them keep their initial weights, with
    their branches multiplied by `nearness`. At 0, the two networks compute the same function if the
    shortcut is the identity, blocks add to their own input (`anchor="previous"`), and the layout
    has no operation after the addition.

    The networks are two of this package, or two others whose chains have blocks of the same kinds.
    In others, a branch is multiplied by changing the weights of the layer that ends it. Weights
    outside of blocks are matched by their paths or, if these differ, by their order; of such
    networks, only the names and shapes of weights are compared.

    Args:
        shallow: a `tfresidual.networks.ResidualNetwork`, or another `keras.Model` in which
            `tfresidual.chain` finds blocks.
        deep: another one with at least as many blocks per stage and otherwise equal; its weights
            are overwritten.
        nearness: float, in [0, 1], the factor of the branches of the new blocks.
        chain: function that returns the chain of a network; by default `tfresidual.chain`. It is
            not needed for networks of this package.

    Raises:
        ValueError: if a network has no chain or shares blocks, `deep` is not `shallow` with further
            blocks, the branch of a new block cannot be multiplied, or `nearness` is invalid. No
            weights have changed in this case.
    """
    nearness = check_number("nearness", nearness, at_least=0, at_most=1)
    given = {"shallow": shallow, "deep": deep}
    for name, network in given.items():
        is_shared = isinstance(network, ResidualNetwork) and network.share_from is not None
        if not isinstance(network, keras.Model) or is_shared:
            raise ArgumentError(
                name,
                "be a `tfresidual.networks.ResidualNetwork`, or another `keras.Model`, whose "
                "blocks have weights of their own",
                network,
            )
    if not all(isinstance(network, ResidualNetwork) for network in given.values()):
        _interleave_chains(given, nearness, sources.chain if chain is None else chain)
        return
    settings, deep_settings = shallow.get_config(), deep.get_config()
    for name, value in settings.items():
        if name not in MAY_DIFFER and deep_settings[name] != value:
            raise ArgumentError(
                "deep",
                f"be the network `shallow` with further blocks; {name} of `shallow` is {value!r}",
                said=f"deep with {name}={deep_settings[name]!r}",
            )
    sections = [network.sections() for network in given.values()]
    units = [[units for _, units in stages] for _, stages, _ in sections]
    pairs, new = _pairs(units, lambda unit: unit.resizing is None)
    rest = [
        [*stem, *head, *(transition for transition, _ in stages if transition is not None)]
        for stem, stages, head in sections
    ]
    for old, young in [*pairs, *zip(*rest, strict=True)]:
        for source, target in zip(old.weights, young.weights, strict=True):
            target.assign(source)
    for unit in new:
        unit.scale_branch(nearness)


def _pairs(stages, keeps_shape):
    """Returns the pairs of corresponding blocks of two networks, and the new ones."""
    pairs, new, is_same = [], [], len(stages[0]) == len(stages[1])
    for old, young in zip(*stages, strict=False):
        (changing, keeping), (deep_changing, deep_keeping) = (
            [[block for block in blocks if keeps_shape(block) is kept] for kept in (False, True)]
            for blocks in (old, young)
        )
        is_same &= len(changing) == len(deep_changing) and len(keeping) <= len(deep_keeping)
        # Spread evenly from the first place on.
        places = [place * len(deep_keeping) // len(keeping) for place in range(len(keeping))]
        kept = [block for place, block in enumerate(deep_keeping) if place in places]
        new += [block for place, block in enumerate(deep_keeping) if place not in places]
        pairs += [*zip(changing, deep_changing, strict=False), *zip(keeping, kept, strict=False)]
    if not is_same:
        depths, deep_depths = (list(map(len, part)) for part in stages)
        raise ArgumentError(
            "deep",
            "have the stages of `shallow`, with as many blocks or more",
            said=f"deep with {deep_depths} blocks, shallow with {depths}",
        )
    return pairs, new


# Networks that are not of this package.


def _interleave_chains(networks, nearness, chain_of):
    chains = {}
    for name, network in networks.items():
        try:
            chains[name] = chain_of(network)
        except ValueError as error:
            raise ArgumentError(
                name, f"be a network with a chain of blocks: {error}", network
            ) from error
    for name, chain in chains.items():
        _check_own_weights(name, networks[name], chain)
    stages = [[stage.blocks for stage in chain.stages] for chain in chains.values()]
    pairs, new = _pairs(stages, lambda block: block.keeps_shape)
    parts = [(old.variables, young.variables) for old, young in pairs]
    parts.append(_others(networks, chains))
    matched = [pair for old, young in parts for pair in _matched(old, young, chains)]
    deep = networks["deep"]
    before = values_of(deep)
    try:
        for block in new:
            _multiply_branch(deep, chains["deep"], block, nearness)
    except ValueError:
        for variable, value in zip(deep.weights, before, strict=True):
            variable.assign(value)
        raise
    for source, target in matched:
        target.assign(source)


def _check_own_weights(name, network, chain):
    owners = {}
    for block in chain.blocks:
        for variable in block.variables:
            other = owners.setdefault(id(variable), block)
            if other is not block:
                raise ArgumentError(
                    name,
                    "be a network whose blocks have weights of their own",
                    said=f"{network.name}, where {other} and {block} share {variable.path}",
                )


def _others(networks, chains):
    """Returns the weights of both networks that belong to no block, in corresponding orders."""
    others = []
    for name, network in networks.items():
        own = {id(variable) for block in chains[name].blocks for variable in block.variables}
        others.append([weight for weight in network.weights if id(weight) not in own])
    paths = [[weight.path for weight in weights] for weights in others]
    if sorted(paths[0]) == sorted(paths[1]) and len(set(paths[0])) == len(paths[0]):
        others = [sorted(weights, key=lambda weight: weight.path) for weights in others]
    return others


def _matched(old, young, chains):
    """Returns pairs of the weights of two parts of networks, which must be of the same kinds."""
    kinds = [[(plain_name(w.name), tuple(w.shape)) for w in weights] for weights in (old, young)]
    if kinds[0] != kinds[1]:
        differing = next((pair for pair in zip(*kinds, strict=False) if pair[0] != pair[1]), None)
        one, two = differing or (f"{len(part)} weights" for part in kinds)
        raise ArgumentError(
            "deep",
            "be the network `shallow` with further blocks, all of whose parts have the same "
            f"weights; one of `shallow` has {one}",
            said=f"deep={chains['deep'].name}, which has {two}",
        )
    return list(zip(old, young, strict=True))


def _multiply_branch(network, chain, block, factor):
    """Multiplies the branch of a block, by changing the weights of one of its layers."""
    parts, whole = [block], chain
    with contextlib.suppress(ValueError):
        if block.branch is None:
            # A layer that is a block as a whole may hide additions, each with a branch of its own.
            parts, own = [], {id(variable) for variable in block.variables}
            chain = sources.chain(network)
            parts = [
                part
                for part in chain.blocks
                if part.branch is not None and {id(variable) for variable in part.variables} <= own
            ]
    images = sample_images(chain)
    layers = [] if images is None else [_last_layer(chain, part, images) for part in parts]
    is_found = bool(layers) and None not in layers
    if not is_found or not _is_identity_without(whole, block, images, layers):
        raise ArgumentError(
            "deep",
            "have new blocks whose branches can be multiplied by `nearness`: they end in a layer "
            "with weights, such as a convolution, and are added to the state. Search without "
            "`warm_start`, or with blocks of such a kind",
            said=f"deep={network.name}, {block} ({block.name})",
        )
    for variable in itertools.chain(*layers):
        variable.assign(variable * factor)


def _is_identity_without(chain, block, images, layers):
    """Returns whether a block that is a layer as a whole does nothing without some weights."""
    if block.branch is not None:
        return True
    own, state = _block_and_state(chain, block, images)
    largest = float(keras.ops.max(keras.ops.abs(own(state) - state)))
    with _changed(layers, 0):
        left = float(keras.ops.max(keras.ops.abs(own(state) - state)))
    return left <= _allowed(state) * largest


def _block_and_state(chain, block, images):
    """Returns the block at the place of a block in the chain given some images, and its input."""
    given = chain.with_context(images)
    state, _ = given.walk_to(given.stem(images), block.stage, block.index)
    return given.stages[block.stage - 1].blocks[block.index], state


@contextlib.contextmanager
def _changed(layers, factor):
    """Multiplies weights by a factor within the block."""
    variables = list(itertools.chain(*layers))
    with restored(variables):
        for variable in variables:
            variable.assign(variable * factor)
        yield


def _allowed(state):
    return allowed_difference([keras.backend.standardize_dtype(state.dtype)])


def _last_layer(chain, block, images):
    """Returns the weights of the last layer that scales a branch, `[]` for a branch of zeros."""
    own, state = _block_and_state(chain, block, images)

    def found():
        return keras.ops.convert_to_numpy(keras.ops.cast(own.branch(state), "float32"))

    whole = found()
    largest = np.abs(whole).max(initial=0)
    if not largest:
        return []
    learned = {id(weight) for weight in block.weights.values()}
    layers = {}
    for variable in block.variables:
        if id(variable) in learned:
            layers.setdefault(variable.path.rpartition("/")[0], []).append(variable)
    for layer in reversed(layers.values()):
        with _changed([layer], TRIED):
            difference = np.abs(found() - TRIED * whole).max()
        if difference <= _allowed(state) * largest:
            return layer
    return None
