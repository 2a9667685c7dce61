"""Warm start of a deeper network from a shallower one."""

from __future__ import annotations

import contextlib
import itertools
import math
from numbers import Real
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfresidual import sources
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
    In others, a branch is multiplied by changing the weights of the layer that ends it, if there is
    one with this effect. The weights that belong to no block are matched by their paths or, if
    these differ, by their order; of such networks, only the names and shapes of weights are
    compared.

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
    is_number = isinstance(nearness, Real) and not isinstance(nearness, bool)
    if not is_number or not 0 <= nearness <= 1 or math.isnan(nearness):
        raise ValueError(
            f"Argument `nearness` must be a number in [0, 1]. Received: nearness={nearness!r}"
        )
    given = {"shallow": shallow, "deep": deep}
    for name, network in given.items():
        is_shared = isinstance(network, ResidualNetwork) and network.share_from is not None
        if not isinstance(network, keras.Model) or is_shared:
            raise ValueError(
                f"Argument `{name}` must be a `tfresidual.networks.ResidualNetwork`, or another "
                "`keras.Model`, whose blocks have weights of their own. "
                f"Received: {name}={network!r}"
            )
    if not all(isinstance(network, ResidualNetwork) for network in given.values()):
        _interleave_chains(given, nearness, sources.chain if chain is None else chain)
        return
    settings, deep_settings = shallow.get_config(), deep.get_config()
    for name, value in settings.items():
        if name not in MAY_DIFFER and deep_settings[name] != value:
            raise ValueError(
                f"Argument `deep` must be the network `shallow` with further blocks; {name} of "
                f"`shallow` is {value!r}. Received: deep with {name}={deep_settings[name]!r}"
            )
    pairs, new = _pairs(shallow, deep)
    for old, young in pairs:
        for source, target in zip(old.weights, young.weights, strict=True):
            target.assign(source)
    for unit in new:
        unit.scale_branch(nearness)


def _pairs(shallow, deep):
    """Returns the pairs of corresponding layers, and the new units."""
    (stem, stages, head), (deep_stem, deep_stages, deep_head) = (
        network.sections() for network in (shallow, deep)
    )
    pairs, new = _zipped([*stem, *head], [*deep_stem, *deep_head]), []
    for (transition, units), (deep_transition, deep_units) in zip(stages, deep_stages, strict=True):
        if transition is not None:
            pairs += _zipped([transition], [deep_transition])
        changing, keeping = _parted(units)
        deep_changing, deep_keeping = _parted(deep_units)
        if len(keeping) > len(deep_keeping):
            raise ValueError(
                "Argument `deep` must have the stages of `shallow`, with as many blocks or more. "
                f"Received: deep with {_depths(deep)} blocks, shallow with {_depths(shallow)}"
            )
        pairs += _zipped(changing, deep_changing)
        places = _spread(len(keeping), len(deep_keeping))
        pairs += _zipped(keeping, [deep_keeping[place] for place in places])
        new += [unit for place, unit in enumerate(deep_keeping) if place not in places]
    return pairs, new


def _spread(count, places):
    """Returns places for some blocks, spread evenly from the first place on."""
    return [place * places // count for place in range(count)]


def _parted(units):
    """Returns the units that change the shape of the state, and those that keep it."""
    changing = [unit for unit in units if unit.resizing is not None]
    return changing, [unit for unit in units if unit.resizing is None]


def _zipped(old, young):
    return list(zip(old, young, strict=True))


def _depths(network):
    return [len(units) for _, units in network.sections()[1]]


# Networks that are not of this package.


def _interleave_chains(networks, nearness, chain_of):
    chains = {}
    for name, network in networks.items():
        try:
            chains[name] = chain_of(network)
        except ValueError as error:
            raise ValueError(
                f"Argument `{name}` must be a network with a chain of blocks: {error}. "
                f"Received: {name}={network!r}"
            ) from error
    for name, chain in chains.items():
        _check_own_weights(name, networks[name], chain)
    pairs, new = _pairs_of_chains(*chains.values())
    variables = [(old.variables, young.variables) for old, young in pairs]
    variables.append(_others(networks, chains))
    matched = [pair for old, young in variables for pair in _matched(old, young, chains)]
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
                raise ValueError(
                    f"Argument `{name}` must be a network whose blocks have weights of their own. "
                    f"Received: {network.name}, where {other} and {block} share {variable.path}"
                )


def _pairs_of_chains(shallow, deep):
    """Returns the pairs of corresponding blocks, and the new ones."""
    depths = [[len(stage.blocks) for stage in chain.stages] for chain in (shallow, deep)]
    pairs, new = [], []
    stages = zip(shallow.stages, deep.stages, strict=False)
    for old, young in [(_by_shape(one), _by_shape(two)) for one, two in stages]:
        (changing, keeping), (deep_changing, deep_keeping) = old, young
        is_same = len(changing) == len(deep_changing) and len(keeping) <= len(deep_keeping)
        if not is_same or len(depths[0]) != len(depths[1]):
            raise ValueError(
                "Argument `deep` must have the stages of `shallow`, with as many blocks or more. "
                f"Received: deep with {depths[1]} blocks, shallow with {depths[0]}"
            )
        places = _spread(len(keeping), len(deep_keeping))
        pairs += _zipped(changing, deep_changing)
        pairs += _zipped(keeping, [deep_keeping[place] for place in places])
        new += [block for place, block in enumerate(deep_keeping) if place not in places]
    return pairs, new


def _by_shape(stage):
    """Returns the blocks that change the shape of the state, and those that keep it."""
    return (
        [block for block in stage.blocks if not block.keeps_shape],
        [block for block in stage.blocks if block.keeps_shape],
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
        raise ValueError(
            "Argument `deep` must be the network `shallow` with further blocks, all of whose parts "
            f"have the same weights; one of `shallow` has {one}. "
            f"Received: deep={chains['deep'].name}, which has {two}"
        )
    return list(zip(old, young, strict=True))


def _multiply_branch(network, chain, block, factor):
    """Multiplies the branch of a block by a factor, by changing the weights of one of its layers.

    Raises:
        ValueError: if there is no layer whose weights have this effect.
    """
    parts, whole = [block], chain
    if block.branch is None:
        # A layer that is a block as a whole may hide additions, each with a branch of its own.
        try:
            chain = sources.chain(network)
        except ValueError as error:
            raise _not_near(network, block) from error
        own = {id(variable) for variable in block.variables}
        parts = [
            part
            for part in chain.blocks
            if part.branch is not None and {id(variable) for variable in part.variables} <= own
        ]
    images = sample_images(chain)
    if images is None or not parts:
        raise _not_near(network, block)
    layers = [_last_layer(chain, part, images) for part in parts]
    if None in layers or not _is_identity_without(whole, block, images, layers):
        raise _not_near(network, block)
    for variable in itertools.chain(*layers):
        variable.assign(variable * factor)


def _is_identity_without(chain, block, images, layers):
    """Returns whether a block that is a layer as a whole does nothing without some weights."""
    if block.branch is not None:
        return True
    given = chain.given(images)
    state, _ = given.lead_to(given.stem(images), block.stage, block.index)
    apply = _same_place(given, block)
    largest = float(keras.ops.max(keras.ops.abs(apply(state) - state)))
    with _changed(layers, 0):
        left = float(keras.ops.max(keras.ops.abs(apply(state) - state)))
    return left <= _allowed(state) * largest


def _same_place(chain, block):
    """Returns the block of a chain at the place of a block."""
    return chain.stages[block.stage - 1].blocks[block.index]


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
    """Returns the weights of the layer by which the branch of a block can be multiplied.

    These are those of the last layer with the effect that the branch is half of what it was if they
    are; an empty list if the branch is zero anyway, and `None` if there is no such layer.
    """
    given = chain.given(images)
    branch = _same_place(given, block).branch
    state, _ = given.lead_to(given.stem(images), block.stage, block.index)

    def found():
        return keras.ops.convert_to_numpy(keras.ops.cast(branch(state), "float32"))

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
            largest_difference = np.abs(found() - TRIED * whole).max()
        if largest_difference <= _allowed(state) * largest:
            return layer
    return None


def _not_near(network, block):
    return ValueError(
        "Argument `deep` must have new blocks whose branches can be multiplied by `nearness`: they "
        "end in a layer with weights, such as a convolution, and are added to the state. Search "
        "without `warm_start`, or with blocks of such a kind. "
        f"Received: deep={network.name}, {block} ({block.name})"
    )
