"""How many parameters a network has if similar weights of different blocks count as one."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import keras
import numpy as np
import pandas as pd
from keras import ops

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_int

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Frame
    from tfresidual.routing import Chain


def weight_deviations(chain: Chain | ChainSource, *, first_block: int = 0) -> Frame:
    """Measures how far the weights of every block are from the mean over the blocks of its stage.

    For the weights W of one role in a block, the deviation is D = (W - mean of W over its
    counterparts in the stage) / (standard deviation of all of these weights), or 0 if that standard
    deviation is 0. Only weights with a counterpart in another block, or that two blocks share, are
    included; docs/concepts/probes.md says which weights are counterparts.

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
        ValueError: if the blocks of the chain hold no weights, or integers as weights, or no stage
            has a block `first_block`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", appendix
        C.1, fig. 7c.
    """
    rows = []
    for weights in _coupled(sources.numbered(chain), first_block):
        values = np.abs(normalized_deviations(_values(weights)))
        for weight, deviations in zip(weights, values, strict=True):
            rows.append(
                {
                    "stage": weight.stage,
                    "block": weight.block,
                    "role": weight.role,
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
    - `uncoupled`: the number of parameters without a counterpart in another block, see
      `weight_deviations`.
    - `recurrent`: the number of parameters if counterparts were equal: `uncoupled` plus the
      parameters of one block of each kind for each stage.
    - `effective`: `recurrent` plus the sum of |D| over all blocks, see `weight_deviations`. It is
      `recurrent` for equal blocks and close to `raw` for weights drawn at random.

    Example:

    >>> effective_parameters(tfresidual.chain(net)).columns.tolist()
    ['raw', 'uncoupled', 'recurrent', 'effective']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        first_block: int, blocks with a smaller block index count as uncoupled, as in late coupling.

    Returns:
        A `pandas.DataFrame` of one row.

    Raises:
        ValueError: if the blocks of the chain hold no weights, or integers as weights, or no stage
            has a block `first_block`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", appendix
        C.1, fig. 7b.
    """
    chain = sources.numbered(chain)
    raw = sum(_size(weight) for weight in {id(w): w for w in chain.weights}.values())
    coupled, of_one_block, deviations = 0, 0, 0.0
    for weights in _coupled(chain, first_block):
        size = _size(weights[0].variable)
        coupled += size * len(weights)
        of_one_block += size
        deviations += float(np.abs(normalized_deviations(_values(weights))).sum())
    uncoupled = raw - coupled
    recurrent = uncoupled + of_one_block
    counts = {"raw": raw, "uncoupled": uncoupled, "recurrent": recurrent}
    return pd.DataFrame([counts | {"effective": recurrent + deviations}])


def normalized_deviations(values):
    """Returns (W - mean over the blocks) / (standard deviation of all), or 0 if the latter is 0."""
    # One of the numbers is subtracted first, so that equal numbers have a deviation of exactly 0.
    apart = values - values.flat[0]
    spread = apart.std()
    change = values - values[0]
    deviations = change - change.mean(axis=0)
    return deviations / spread if spread > 0 else np.zeros_like(deviations)


@dataclasses.dataclass(frozen=True, eq=False)
class _Weight:
    """A weight in the first block that holds it."""

    stage: int
    block: int
    role: str
    variable: keras.Variable

    @property
    def place(self):
        """The block, as a pair of stage and index."""
        return self.stage, self.block


def _coupled(chain, first_block):
    """Returns the weights that have counterparts, as a list of lists of `_Weight`."""
    if not chain.weights or not any(block.weights for block in chain.blocks):
        raise ArgumentError(
            "chain",
            "know the trainable weights of its blocks, as the chain of a "
            "`tfresidual.networks.ResidualNetwork` does",
            received=f"{chain.name}, whose blocks have none",
        )
    if any(not keras.backend.is_float_dtype(weight.dtype) for weight in chain.weights):
        raise ArgumentError(
            "chain",
            "have weights in floating point: integers are compared by scales of their own, and may "
            "be several in a byte",
            received=f"{chain.name}, which is quantized",
        )
    deepest = max(block.index for block in chain.blocks)
    first_block = check_int("first_block", first_block, at_least=0)
    if first_block > deepest:
        raise ArgumentError(
            "first_block",
            f"be a block of {chain.name}, whose stages have blocks up to {deepest}",
            received=f"first_block={first_block}",
        )
    alike = {}
    for block in chain.blocks:
        if not block.keeps_shape or block.index < first_block:
            continue
        kind = tuple(dict.fromkeys(role.rpartition("/")[0] for role in block.weights))
        for role, variable in block.weights.items():
            key = (block.stage, kind, role, tuple(variable.shape))
            weight = _Weight(block.stage, block.index, role, variable)
            alike.setdefault(key, []).append(weight)
    group_of = {}
    for weights in alike.values():
        # Roles that share a weight are one.
        others = {id(own): own for w in weights if (own := group_of.get(id(w.variable)))}
        group = [*itertools.chain(*others.values()), *weights]
        group_of |= {id(weight.variable): group for weight in group}
    groups = {id(group): group for group in group_of.values()}.values()
    return [_first_holders(group) for group in groups if len({w.place for w in group}) > 1]


def _first_holders(group):
    """Returns every weight of a group once, in the first block that holds it."""
    ordered = sorted(group, key=lambda weight: weight.place, reverse=True)
    first = {id(weight.variable): weight for weight in ordered}
    return sorted(first.values(), key=lambda weight: weight.place)


def _values(weights):
    values = [ops.convert_to_numpy(weight.variable) for weight in weights]
    return np.stack(values).astype(np.float64)


def _size(variable):
    return int(np.prod(variable.shape))


def frames(chain, data, options, progress):
    """Measures how similar the blocks of each stage are."""
    del data, progress
    first = options.first_block or 0
    return {
        "effective_parameters": effective_parameters(chain, first_block=first),
        "weight_deviations": weight_deviations(chain, first_block=first),
    }
