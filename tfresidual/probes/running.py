"""Runs the probes that are declared, by name; see `tfresidual.definitions.probes`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tfresidual.definitions.probes import PROBES
from tfresidual.definitions.settings import ProbeOptions
from tfresidual.routing.heads import heads_by_block
from tfresidual.routing.rounding import kernels_by_block
from tfresidual.routing.routes import movable_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import Data, Frame
    from tfresidual.routing import Chain

__all__ = ["PROBES", "ProbeOptions", "has", "possible", "run"]

# What a network must have for a probe.
_NEEDS = {
    # Predictions that can be right or wrong.
    "classes": lambda chain: chain.outputs != "values",
    "repetition": lambda chain: any(stage.can_repeat for stage in chain.stages),
    "movable": lambda chain: any(map(movable_runs, chain.stages)),
    "kernels": lambda chain: any(kernels_by_block(chain).values()),
    "heads": heads_by_block,
    "bounds": lambda chain: any(block.lipschitz is not None for block in chain.blocks),
}


def has(chain: Chain, needs: Iterable[str]) -> bool:
    """Returns whether a network has what the declaration of a probe says it needs."""
    return all(_NEEDS[name](chain) for name in needs)


def possible(chain: Chain) -> list[str]:
    """Returns the names of the probes that can be run on a network.

    A network cannot be probed by repetition if every stage ends in a block that changes the shape,
    by shuffling if no stage has two blocks that can change places, by rounding if no block has a
    kernel of floats, by heads if no block has attention, and for bounds if it was built without
    `lipschitz`. Probes that count errors need outputs that are classes.

    Args:
        chain: a `tfresidual.routing.Chain`.

    Returns:
        A list of keys of `PROBES`.
    """
    return [name for name, probe in PROBES.items() if has(chain, probe.needs)]


def run(
    name: str, chain: Chain, data: Data, options: ProbeOptions, progress: bool = False
) -> dict[str, Frame]:
    """Runs a probe.

    Args:
        name: a key of `PROBES`.
        chain: a `tfresidual.routing.Chain`.
        data: images and labels, by split.
        options: a `ProbeOptions`.
        progress: whether to show a progress bar.

    Returns:
        A dict of frames by name.
    """
    probe = PROBES[name]
    module = importlib.import_module(f"tfresidual.probes.{probe.module or probe.name}")
    if hasattr(module, "frames"):
        return module.frames(chain, data, options, progress)
    given = {option: getattr(options, option) for option in probe.takes}
    return {name: getattr(module, name)(chain, data, progress=progress, **given)}
