"""How much worse the network is without one of its attention heads."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tfresidual import sources
from tfresidual.probes.drop_blocks import frame_of_rows
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_scored
from tfresidual.routing.heads import checked_heads, without_heads
from tfresidual.routing.replacement import Replacement
from tfresidual.routing.routes import unperturbed, with_weights

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain


def drop_heads(
    chain: Chain | ChainSource,
    data: Data,
    *,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network without each of its heads, one head at a time.

    An attention layer adds up the outputs of its heads, each times its rows of the kernel of the
    output projection, and a bias. Without a head, its rows are 0 while the block is applied. The
    metrics are those of `evaluate_routes`; the distance is that of the stage of the block.

    Heads are those of `keras.layers.MultiHeadAttention`, `GroupQueryAttention` and what is derived
    from them, such as the attention of keras-hub's GPT-2, BERT and ViT, in chains of Keras models.

    Example:

    >>> encoder = keras.Sequential([keras.Input((8,), dtype="int32"), keras.layers.Embedding(9, 6)])
    >>> state = encoder.output
    >>> state = state + keras.layers.MultiHeadAttention(2, 3)(state, state)
    >>> model = keras.Model(encoder.inputs, keras.layers.Dense(4)(state[:, 0]))
    >>> drop_heads(tfresidual.chain(model), (np.ones((5, 8), int), np.zeros(5, int)))["head"].max()
    1

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with a row per head and the columns `stage` (from 1), `block` (from 0),
        `head` (from 0; a block with several attention layers counts their heads on), `error`,
        `cross_entropy`, `entropy`, `agreement`, `distance`, `unperturbed_error`, the error of the
        whole network, `error_rise` and `cross_entropy_rise`, what is lost without the head, each
        followed by its standard error over the same images (`error_rise_se`). If `data` is a dict,
        `split` is the first column.

    Raises:
        ValueError: if an argument cannot be used, no block has heads, or the outputs of the network
            are not classes.

    Reference:
        Michel et al. 2019, https://arxiv.org/abs/1905.10650, section 3.2; Voita et al. 2019,
        https://arxiv.org/abs/1905.09418.
    """
    chain = sources.numbered(chain)
    check_scored(chain)
    whole, rows = unperturbed(chain), []
    for (stage, block), heads in checked_heads(chain).items():
        for index, (kernel, head) in enumerate(heads):
            # Computed when the block is applied: the kernels of all heads may not fit into memory.
            cut = functools.partial(without_heads, heads=[head])
            other = Replacement(f"without head {index}", [kernel], [cut])
            name = f"stage {stage} block {block} without head {index}"
            route = with_weights(whole, {(stage, block): other}, name)
            rows.append(({"stage": stage, "block": block, "head": index}, route))
    return frame_of_rows(chain, data, rows, memory_limit, progress)
