"""What is known of the Lipschitz constants of the blocks that are bounded."""

import pandas as pd

from tfresidual import sources
from tfresidual.arguments import check_bool
from tfresidual.routing.batches import progress_bar

METRICS = ("estimate", "residual", "certified", "divisor")


def lipschitz(chain, *, progress=False):
    """Reads what bounds the branches of blocks with a Lipschitz bound, at inference.

    A branch is a product of convolutions, with batch normalization folded in, and ReLUs: its
    Lipschitz constant is at most the product of the convolutions' spectral norms on their grid.
    Of this product and the branch as it is before it is divided:

    - `lipschitz`: what the block's branch may have, over 0.
    - `estimate`: by power iteration, which is run to convergence before. It approaches the
      product from below, and is not over it but for rounding.
    - `residual`: how far the iteration is from convergence, the largest of the convolutions'
      relative residuals, 0 or more.
    - `certified`: a bound that is not under the product.
    - `divisor`: by what the branch is divided, max(estimate / bound, 1), 1 or more.

    The constant of the branch as the block adds it is at most `certified / divisor`, and at most
    the block's bound, but for what the estimate is under the product. No data is read, and but
    for the vectors of the power iteration the network is left as it was.

    Example:

    >>> net = networks.ResidualNetwork((8, 8, 1), 3, blocks=2, widths=(4,), lipschitz=0.95)
    >>> frame = lipschitz(net)
    >>> bool((frame["estimate"] <= frame["certified"]).all())
    True

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
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
    check_bool("progress", progress)
    chain = sources.chain(chain)
    blocks = bounded_blocks(chain)
    if chain.prepare is not None:
        chain.prepare()
    rows = []
    with progress_bar("lipschitz" if progress else None, len(blocks)) as advance:
        for block in blocks:
            known = block.lipschitz()
            rows.append({"stage": block.stage, "block": block.step})
            rows[-1] |= {name: known[name] for name in ("lipschitz", *METRICS)}
            advance(1)
    return pd.DataFrame(rows)


def bounded_blocks(chain):
    """The blocks of a chain whose branch has a Lipschitz bound; a `ValueError` without one."""
    blocks = [block for block in chain.blocks if block.lipschitz is not None]
    if not blocks:
        raise ValueError(
            "Argument `chain` must have a block whose branch is bounded: build the network with "
            f"`lipschitz`. Received: {chain.name}, where no block is"
        )
    return blocks
