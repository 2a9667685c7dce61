"""Estimates and bounds of the Lipschitz constants of bounded blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tfresidual import sources
from tfresidual.machine.console import progress_bar

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Frame
    from tfresidual.routing import Chain

METRICS = ("estimate", "residual", "certified", "divisor")


def lipschitz(chain: Chain | ChainSource, *, progress: bool = False) -> Frame:
    """Reads the Lipschitz estimates and bounds of all bounded branches, at inference.

    The numbers refer to the product of the spectral norms of the convolutions of a branch on their
    grid, before the branch is divided; docs/concepts/probes.md says which branches are bounded.

    - `lipschitz`: the bound that the branch of the block must keep, over 0.
    - `estimate`: the product as estimated by power iteration, which is first run to convergence.
      It approaches the product from below and exceeds it only by rounding errors.
    - `residual`: how far the iteration is from convergence: the largest relative residual of the
      convolutions, 0 or more.
    - `certified`: an upper bound of the product.
    - `divisor`: the number by which the branch is divided, max(estimate / bound, 1), 1 or more.

    The Lipschitz constant of the branch that the block adds is at most `certified / divisor`. It is
    at most the bound of the block, except as far as the estimate falls below the product. No data
    is read, and the network is not changed except for the vectors of the power iteration.

    Example:

    >>> net = networks.ResidualNetwork((8, 8, 1), 3, blocks=2, widths=(4,), lipschitz=0.95)
    >>> frame = lipschitz(net)
    >>> bool((frame["estimate"] <= frame["certified"]).all())
    True

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per bounded block and the columns `stage` (from 1),
        `block` (from 0), `lipschitz`, `estimate`, `residual`, `certified` and `divisor`.

    Raises:
        ValueError: if no block of the chain is bounded.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        4.2 and appendix E.1. The paper prints the divisor's quotient upside down.
    """
    chain = sources.numbered(chain)
    blocks = bounded_blocks(chain)
    if chain.prepare is not None:
        chain.prepare()
    rows = []
    with progress_bar("lipschitz" if progress else None, len(blocks)) as advance:
        for block in blocks:
            known = block.lipschitz()
            rows.append({"stage": block.stage, "block": block.index})
            rows[-1] |= {name: known[name] for name in ("lipschitz", *METRICS)}
            advance(1)
    return pd.DataFrame(rows)


def bounded_blocks(chain):
    """Returns the blocks of a chain with a Lipschitz bound; raises a `ValueError` if none has."""
    blocks = [block for block in chain.blocks if block.lipschitz is not None]
    if not blocks:
        raise ValueError(
            "Argument `chain` must have a block whose branch is bounded: build the network with "
            "`lipschitz`, or make the branch of `layers.Bounded` or `layers.SpectralNormalization` "
            f"and layers with a known constant. Received: {chain.name}, where no block is"
            + "".join(f"; {note}" for note in chain.notes if "SpectralNormalization" in note)
        )
    return blocks


def frames(chain, data, options, progress):
    """Reads the bounds of the blocks."""
    del data, options
    return {"lipschitz": lipschitz(chain, progress=progress)}
