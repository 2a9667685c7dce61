"""What every block does to the state, and how that relates to the gradient of the loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual import sources
from tfresidual.probes.measure import measure
from tfresidual.probes.perturbation import ALL_STAGES, distances_of
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.routing.block_values import BLOCK_METRICS, STATE_METRICS, block_values

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

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
    through the rest of the network. Norms are over all features of one image, without padding;
    docs/concepts/probes.md says which images and positions count.

    - `cosine_loss`: <F, g> / (|F| |g|), in [-1, 1], 0 if F or g is zero. Below 0, the block moves
      the state of the image to where its loss falls, to first order (Jastrzebski et al. 2018,
      section 4.1, fig. 4).
    - `readout_cosine_loss`: the same, with the gradient of the loss of the head applied directly to
      h. Only for the last stage, NaN elsewhere (ibid., appendix C, fig. 13).
    - `l2_ratio`: |F| / |h|, 0 or more (ibid., fig. 2).
    - `gradient_norm`: |g|, 0 or more (ibid., fig. 8).
    - `perturbation`: |F| (Hauser 2019, eq. 3, fig. 2).
    - `scaled_perturbation`: |F| / |h|, `l2_ratio` under Hauser's name (ibid., eq. 2, fig. 5).
    - `cosine_loss_se`, `readout_cosine_loss_se`: the standard errors of two of the means, over the
      images (or positions, if these are measured).
    - `cosine_loss_below_zero`: the share of these images whose cosine loss is below 0, in [0, 1].

    Each metric is computed per image and then averaged over the images. A block that changes the
    shape of the state has no F, so all its metrics except `gradient_norm` are NaN.

    Example:

    >>> frame = block_metrics(tfresidual.chain(net), test)
    >>> frame.columns.tolist()[:3]
    ['stage', 'block', 'cosine_loss']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        per_image: whether to return the values of every image instead of their means.
        per_position: whether every position is measured by itself, with norms over the features of
            its state. The states must be `(images, positions, features)`.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), and the metrics.
        If `data` is a dict, `split` is the first column. With `per_image`, `image` (from 0) comes
        after `block`, and there are no standard errors and no share; with `per_position` too,
        `position` follows.
    """
    chain = sources.numbered(chain)
    function = functools.partial(block_values, chain)
    return measure(
        chain,
        "block metrics",
        function,
        data,
        per_image=per_image,
        progress=progress,
        with_errors=SIGNED,
        with_shares=SIGNED[:1],
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


def frames(chain, data, options, progress):
    """Measures the metrics of all blocks, the distances, and the depth of the stopping rule."""
    blocks = block_metrics(chain, data, progress=progress)
    # The distances are sums of the perturbations just measured.
    distances = distances_of(blocks, chain=chain)
    in_stages = distances[distances["stage"] != ALL_STAGES]
    measured = (in_stages["blocks"] > 0) & in_stages["scaled_distance"].notna()
    asked_for = pd.Series(
        depth_for(in_stages.loc[measured, "scaled_distance"], options.epsilon),
        index=in_stages.index[measured],
    )
    distances["depth_asked_for"] = asked_for.reindex(distances.index).astype("Int64")
    return {"block_metrics": blocks, "computational_distance": distances}
