"""What every block does to the state, and how that relates to the gradient of the loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tfresidual import sources
from tfresidual.probes.measure import measure
from tfresidual.routing.block_values import BLOCK_METRICS, STATE_METRICS, block_values

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import ChainSource, Data, Frame

# Metrics whose sign matters: their means are returned with standard errors.
SIGNED = ("cosine_loss", "readout_cosine_loss")


def block_metrics(
    chain: Chain | ChainSource,
    data: Data,
    *,
    per_image: bool = False,
    per_position: bool = False,
    progress: bool = False,
) -> Frame:
    """Measures what every block does to the state, in one forward and one backward pass.

    Let L be the loss of one image, h the state before a block, F = block(h) - h, and g = dL/dh
    through the rest of the network. All norms are over all features of one image; positions that
    the network masks as padding do not count. For outputs per position, L is the mean over the
    positions that count (see `evaluate_routes`). An image in which no position counts has no L: its
    cosines and its |g| are NaN, and no mean is over them; for an image that is all padding, all
    metrics are.

    - `cosine_loss`: <F, g> / (|F| |g|), in [-1, 1]. If it is negative, the block moves the state
      in a direction that lowers the loss (Jastrzebski et al. 2018, section 4.1, fig. 4). 0 if F
      or g is zero.
    - `readout_cosine_loss`: the same, where g is the gradient of the loss of the head applied
      directly to h. Only for the last stage, NaN elsewhere (ibid., appendix C, fig. 13).
    - `l2_ratio`: |F| / |h|, 0 or more (ibid., fig. 2).
    - `gradient_norm`: |g|, 0 or more (ibid., fig. 8).
    - `perturbation`: |F| (Hauser 2019, eq. 3, fig. 2).
    - `scaled_perturbation`: |F| / |h|, the same number as `l2_ratio` under Hauser's name (Hauser
      2019, eq. 2, fig. 5).

    Each metric is computed per image and then averaged over the images; it is never a ratio of
    means. `cosine_loss_se` and `readout_cosine_loss_se` are the standard errors of two of these
    means: the standard deviation over the images (or positions, if these are measured) divided by
    the square root of their number. A block that changes the shape of the state has no F, so all
    its metrics except `gradient_norm` are NaN. The network runs in inference mode and is not
    changed.

    Example:

    >>> frame = block_metrics(tfresidual.chain(net), test)
    >>> frame.columns.tolist()[:3]
    ['stage', 'block', 'cosine_loss']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by split name.
        per_image: whether to return the values of every image instead of their means.
        per_position: whether every position of a sequence is measured by itself, with norms over
            the features of its state. Means are then over all positions that are not padding. The
            states must be `(images, positions, features)`.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), the metrics and
        the two standard errors. If `data` is a dict, `split` is the first column. If `per_image`
        is set, `image` (from 0, in the order of the data) comes after `block`, and there are no
        standard errors; if `per_position` is set too, `position` (from 0) comes after `image`.

    Raises:
        ValueError: if the chain or the data cannot be used.
    """
    chain = sources.chain(chain)
    function = functools.partial(block_values, chain)
    return measure(
        chain,
        "block metrics",
        function,
        data,
        per_image,
        progress,
        with_errors=SIGNED,
        per_position=per_position,
        of_states=STATE_METRICS,
        with_plain=True,
    )


def metrics_of(chain, block):
    """Returns the names of the metrics that are defined for a block."""
    if not block.keeps_shape:
        return ("gradient_norm",)
    is_readout = block.stage == chain.stages[-1].index
    return tuple(name for name in BLOCK_METRICS if is_readout or name != "readout_cosine_loss")
