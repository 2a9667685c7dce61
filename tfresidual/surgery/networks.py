"""Residual networks of this package with fewer blocks, from their configuration."""

from __future__ import annotations

from tfresidual.definitions.arguments import ArgumentError


def is_shorter(route):
    """Returns whether a route only leaves blocks out, and some of every stage stay."""
    indices = [[application.block for application in stage] for stage in route.stages]
    return all(kept and kept == sorted(set(kept)) for kept in indices)


def shorter_network(network, chain, route):
    """Returns a `ResidualNetwork` of the blocks of a route that leaves some out.

    The rates of stochastic depth are those of a network of its depth.
    """
    kept = [[application.block for application in stage] for stage in route.stages]
    config = network.get_config()
    share_from = _share_from(network, kept)
    shorter = type(network).from_config(
        config | {"blocks": [len(left) for left in kept], "share_from": share_from}
    )
    _copy_weights(network, shorter, kept)
    return shorter


def _share_from(network, kept):
    """Returns from which block on those of the shorter network are shared."""
    first = network.share_from
    if first is None:
        return None
    missing = set()
    for stage, (count, left) in enumerate(zip(network.blocks, kept, strict=True), start=1):
        dropped = sorted(set(range(count)) - set(left))
        shared = [block for block in dropped if block >= first]
        if shared:
            raise ArgumentError(
                "blocks",
                "be blocks with weights of their own",
                received=f"stage {stage} block {shared[0]} of {network.name}, one of those that "
                "share their weights",
            )
        if count > first:
            missing.add(len(dropped))
    if len(missing) > 1:
        raise ArgumentError(
            "blocks",
            "be as many in every stage, since `share_from` is the same for all of them",
            received=f"blocks of {network.name} of which so many go: {sorted(missing)}",
        )
    return first - max(missing, default=0)


def _copy_weights(network, shorter, kept):
    pairs = []
    (stem, stages, head), (new_stem, new_stages, new_head) = network.sections(), shorter.sections()
    pairs += [*zip(stem, new_stem, strict=True), *zip(head, new_head, strict=True)]
    for (entry, units), (new_entry, new_units), left in zip(stages, new_stages, kept, strict=True):
        if entry is not None:
            pairs.append((entry, new_entry))
        pairs += zip([units[index] for index in left], new_units, strict=True)
    for layer, new in pairs:
        for own, other in zip(layer.weights, new.weights, strict=True):
            other.assign(own)
