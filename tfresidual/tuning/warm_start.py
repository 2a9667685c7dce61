"""Warm start of a deeper network from a shallower one."""

from __future__ import annotations

from tfresidual.definitions.arguments import ArgumentError, check_number
from tfresidual.networks import ResidualNetwork

# Factor of the branches of new blocks, so that these start near the identity.
NEARNESS = 0.1
# Settings that may differ between the two networks: with equal weights they compute the same.
MAY_DIFFER = ("blocks", "name", "trainable", "gamma_initializer", "recurrent_initialization")


def interleave(
    shallow: ResidualNetwork, deep: ResidualNetwork, *, nearness: float = NEARNESS
) -> None:
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
        ValueError: if a network is of another class or shares blocks, `deep` is not `shallow` with
            further blocks, or `nearness` is invalid. No weights have changed in this case.
    """
    nearness = check_number("nearness", nearness, at_least=0, at_most=1)
    given = {"shallow": shallow, "deep": deep}
    for name, network in given.items():
        if not isinstance(network, ResidualNetwork) or network.share_from is not None:
            raise ArgumentError(
                name,
                "be a `tfresidual.networks.ResidualNetwork` whose blocks have weights of their own",
                network,
            )
    settings, deep_settings = shallow.get_config(), deep.get_config()
    for name, value in settings.items():
        if name not in MAY_DIFFER and deep_settings[name] != value:
            raise ArgumentError(
                "deep",
                f"be the network `shallow` with further blocks; {name} of `shallow` is {value!r}",
                received=f"deep with {name}={deep_settings[name]!r}",
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
            received=f"deep with {deep_depths} blocks, shallow with {depths}",
        )
    return pairs, new
