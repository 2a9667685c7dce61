"""How many parameters a network has if similar weights of different blocks count as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from keras import ops

from tfresidual import sources
from tfresidual.arguments import check_int
from tfresidual.networks.weight_groups import BlockWeights, groups_of

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import ChainSource, Frame


def weight_deviations(chain: Chain | ChainSource, *, first_block: int = 0) -> Frame:
    """Measures how far the weights of every block are from the mean over the blocks of its stage.

    For the weights W of one role in a block, the deviation is D = (W - mean of W over the blocks
    of the stage) / (standard deviation of all weights of that role in the stage), or 0 if that
    standard deviation is 0.

    Only weights that can be coupled are included: at least two blocks of the stage that keep the
    shape of the state must hold a weight of that role, or share the weight. A shared weight counts
    once, in the first block that holds it.

    Example:

    >>> frame = weight_deviations(tfresidual.chain(net))
    >>> lengths = frame.groupby("stage")["l1"].sum()

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        first_block: int, blocks with a smaller block index are left out.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `role` (such as
        `"convolution1/kernel"`), `parameters` (their number), `deviation` (mean of |D|; its mean
        over the blocks of a role is at most 1) and `l1` (sum of |D|), both 0 or more.

    Raises:
        ValueError: if the blocks of the chain hold no weights, or no stage has a block
            `first_block`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", appendix
        C.1, fig. 7c.
    """
    rows = []
    for group in _coupled(sources.chain(chain), first_block):
        values = np.abs(normalized_deviations(_values(group)))
        for block, deviations in zip(group.blocks, values, strict=True):
            rows.append(
                {
                    "stage": group.stage,
                    "block": block,
                    "role": group.role,
                    "parameters": deviations.size,
                    "deviation": deviations.mean(),
                    "l1": deviations.sum(),
                }
            )
    columns = {"stage": int, "block": int, "role": str}
    columns |= {"parameters": int, "deviation": float, "l1": float}
    frame = pd.DataFrame(rows, columns=list(columns)).astype(columns)
    return frame.sort_values(["stage", "block"], kind="stable", ignore_index=True)


def effective_parameters(chain: Chain | ChainSource, *, first_block: int = 0) -> Frame:
    """Counts the parameters of a network; similar blocks of a stage reduce the effective number.

    - `raw`: the number of all parameters, trainable or frozen; parameters that blocks share count
      once.
    - `uncoupled`: the number of parameters without a counterpart in another block: those of stem,
      head, transitions and blocks that change the shape of the state.
    - `recurrent`: the number of parameters if all blocks of each stage were one: `uncoupled` plus
      the parameters of one block for each stage.
    - `effective`: `recurrent` plus the sum of |D| over all blocks, see `weight_deviations`.

    `effective` equals `recurrent` if all blocks of each stage are equal. It is close to `raw` if
    the weights are drawn at random. It may be a little larger, but at most `raw` plus one block
    for each stage, since the sum of |D| of a role is at most the number of its parameters. Weights
    that all have the same value have no deviation: newly initialized biases and batch
    normalizations count as those of one block.

    Example:

    >>> effective_parameters(tfresidual.chain(net)).columns.tolist()
    ['raw', 'uncoupled', 'recurrent', 'effective']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        first_block: int, blocks with a smaller block index count as uncoupled, as in late
            coupling.

    Returns:
        A `pandas.DataFrame` of one row.

    Raises:
        ValueError: if the blocks of the chain hold no weights, or no stage has a block
            `first_block`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", appendix
        C.1, fig. 7b.
    """
    chain = sources.chain(chain)
    raw = sum(_size(weight) for weight in {id(w): w for w in chain.weights}.values())
    coupled, of_one_block, deviations = 0, 0, 0.0
    for group in _coupled(chain, first_block):
        size = _size(group.variables[0])
        coupled += size * len(group.variables)
        of_one_block += size
        deviations += float(np.abs(normalized_deviations(_values(group))).sum())
    uncoupled = raw - coupled
    recurrent = uncoupled + of_one_block
    counts = {"raw": raw, "uncoupled": uncoupled, "recurrent": recurrent}
    return pd.DataFrame([counts | {"effective": recurrent + deviations}])


def normalized_deviations(values):
    """Returns (W - mean over the blocks) / (standard deviation of all), or 0 if the latter is 0.

    Args:
        values: float64 array `(blocks, ...)`, the weights of one role in each block.

    Returns:
        An array of the same shape.
    """
    # One of the numbers is subtracted first, so that equal numbers have a deviation of exactly 0.
    apart = values - values.flat[0]
    spread = apart.std()
    change = values - values[0]
    deviations = change - change.mean(axis=0)
    return deviations / spread if spread > 0 else np.zeros_like(deviations)


def _coupled(chain, first_block):
    """Returns the groups of weights that have a counterpart in another block."""
    blocks = [
        BlockWeights("", block.stage, block.index, block.weights)
        for block in chain.blocks
        if block.keeps_shape
    ]
    if not chain.weights or not any(block.weights for block in chain.blocks):
        raise ValueError(
            "Argument `chain` must know the trainable weights of its blocks, as the chain of a "
            f"`tfresidual.networks.ResidualNetwork` does. Received: {chain.name}, whose blocks "
            "have none"
        )
    deepest = max(block.index for block in chain.blocks)
    first_block = check_int("first_block", first_block, at_least=0)
    if first_block > deepest:
        raise ValueError(
            f"Argument `first_block` must be a block of {chain.name}, whose stages have blocks up "
            f"to {deepest}. Received: first_block={first_block}"
        )
    groups = groups_of(blocks, first_block)
    return [group for group in groups if _holders(group, blocks, first_block) > 1]


def _holders(group, blocks, first_block):
    """Returns the number of blocks that hold one of the weights of a group."""
    ids = {id(variable) for variable in group.variables}
    return sum(
        block.stage == group.stage
        and block.index >= first_block
        and id(block.weights.get(group.role)) in ids
        for block in blocks
    )


def _values(group):
    values = [ops.convert_to_numpy(variable) for variable in group.variables]
    return np.stack(values).astype(np.float64)


def _size(variable):
    return int(np.prod(variable.shape))
