"""Warm start of a deeper network from a shallower one."""

from __future__ import annotations

import math
from numbers import Real

from tfresidual.networks import ResidualNetwork

# Factor of the branches of new blocks, so that these start near the identity.
NEARNESS = 0.1
# Settings that may differ between the two networks: with equal weights they compute the same.
MAY_DIFFER = ("blocks", "name", "trainable", "gamma_initializer", "recurrent_initialization")


def interleave(shallow: ResidualNetwork, deep: ResidualNetwork, nearness: float = NEARNESS) -> None:
    """Copies the weights of a shallower network to a deeper one, with new blocks in between.

    The blocks of every stage that keep the shape of the state are spread evenly over the deeper
    stage; the first remains the first. The blocks between them keep their initial weights, with
    their branches multiplied by `nearness`. At 0, the two networks compute the same function if the
    shortcut is the identity, blocks add to their own input (`anchor="previous"`), and the layout
    has no operation after the addition.

    Args:
        shallow: a `tfresidual.networks.ResidualNetwork`.
        deep: another one with at least as many blocks per stage and otherwise equal; its weights
            are overwritten.
        nearness: float, in [0, 1], the factor of the branches of the new blocks.

    Raises:
        ValueError: if a network is not a `ResidualNetwork` or shares blocks, `deep` is not
            `shallow` with further blocks, or `nearness` is invalid. No weights have changed in this
            case.
    """
    is_number = isinstance(nearness, Real) and not isinstance(nearness, bool)
    if not is_number or not 0 <= nearness <= 1 or math.isnan(nearness):
        raise ValueError(
            f"Argument `nearness` must be a number in [0, 1]. Received: nearness={nearness!r}"
        )
    for name, network in {"shallow": shallow, "deep": deep}.items():
        if not isinstance(network, ResidualNetwork) or network.share_from is not None:
            raise ValueError(
                f"Argument `{name}` must be a `tfresidual.networks.ResidualNetwork` whose blocks "
                f"have weights of their own. Received: {name}={network!r}"
            )
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
        places = [place * len(deep_keeping) // len(keeping) for place in range(len(keeping))]
        pairs += _zipped(keeping, [deep_keeping[place] for place in places])
        new += [unit for place, unit in enumerate(deep_keeping) if place not in places]
    return pairs, new


def _parted(units):
    """Returns the units that change the shape of the state, and those that keep it."""
    changing = [unit for unit in units if unit.resizing is not None]
    return changing, [unit for unit in units if unit.resizing is None]


def _zipped(old, young):
    return list(zip(old, young, strict=True))


def _depths(network):
    return [len(units) for _, units in network.sections()[1]]
