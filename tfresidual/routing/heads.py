"""The heads of the attention layers of blocks. TensorFlow only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfresidual.definitions.types import Tensor
    from tfresidual.routing.chain import Chain

# keras-hub's `CachedMultiHeadAttention` and what is derived from it are among these.
ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def heads_by_block(chain: Chain) -> dict[tuple[int, int], list[tuple[keras.Variable, int]]]:
    """Returns the heads of the blocks of a chain that have some, by (stage, block).

    A head is the kernel `(heads, features of a head, ...)` by which an attention layer multiplies
    the outputs of its heads, and the index of its rows. Without them, the head adds nothing.
    """
    parts = [] if chain.source is None else chain.source.model._flatten_layers()
    kernels = {
        id(kernel): kernel
        for part in parts
        if isinstance(part, ATTENTION)
        and isinstance(kernel := part._output_dense.kernel, keras.Variable)
    }
    found = {
        (block.stage, block.index): [
            (variable, head)
            for variable in block.variables
            if id(variable) in kernels
            for head in range(variable.shape[0])
        ]
        for block in chain.blocks
    }
    return {place: heads for place, heads in found.items() if heads}


def checked_heads(chain: Chain) -> dict[tuple[int, int], list[tuple[keras.Variable, int]]]:
    """Returns `heads_by_block`; raises a `ValueError` if no block has heads."""
    found = heads_by_block(chain)
    if not found:
        names = " or ".join(f"`{kind.__name__}`" for kind in ATTENTION)
        raise ArgumentError(
            "chain",
            f"be made of a Keras model with {names}, or a layer derived from one, in its blocks, "
            "neither quantized nor with LoRA",
            received=f"{chain.name}, in whose blocks none is found",
        )
    return found


def without_heads(kernel: Tensor, heads: Sequence[int]) -> Tensor:
    """Returns a kernel of `heads_by_block` in which the rows of some heads are 0."""
    is_kept = ~np.isin(np.arange(kernel.shape[0]), heads)
    is_kept = is_kept.reshape(-1, *[1] * (len(kernel.shape) - 1))
    return ops.where(is_kept, kernel, ops.zeros_like(kernel))
