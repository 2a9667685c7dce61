"""What every block does to the state, and how that lies to the loss gradient."""

import functools

from keras import ops

from tfresidual.chains import chain as chain_of
from tfresidual.chains.gradients import walk_with_gradients
from tfresidual.metrics import change_of, cosine, norm
from tfresidual.probes.measure import measure
from tfresidual.probes.perturbation import step_values

METRICS = (
    "cosine_loss",
    "readout_cosine_loss",
    "l2_ratio",
    "gradient_norm",
    "perturbation",
    "scaled_perturbation",
)
# Means whose sign is read: they come with their standard error.
SIGNED = ("cosine_loss", "readout_cosine_loss")


def block_metrics(chain, data, per_image=False, progress=False):
    """Measures what every block does to the state, in one forward and one backward pass.

    With L the loss of one image, h the state before a block, F = block(h) - h and g = dL/dh
    through the rest of the network, all norms over all features of one image:

    - `cosine_loss`: <F, g> / (|F| |g|), in [-1, 1]. Negative: the block moves the state so that
      the loss falls (Jastrzebski et al. 2018, section 4.1, fig. 4). 0 where F or g is zero.
    - `readout_cosine_loss`: the same with g of the loss of the head applied straight to h. Last
      stage only, NaN elsewhere (ibid., appendix C, fig. 13).
    - `l2_ratio`: |F| / |h|, 0 or more (ibid., fig. 2).
    - `gradient_norm`: |g|, 0 or more (ibid., fig. 8).
    - `perturbation`: |F| (Hauser 2019, eq. 3, fig. 2).
    - `scaled_perturbation`: |F| / |h|, the number of `l2_ratio` under Hauser's name (Hauser
      2019, eq. 2, fig. 5).

    A figure is the mean over images of the images' values, never a ratio of means;
    `cosine_loss_se` and `readout_cosine_loss_se` are the standard errors of two of these means,
    the standard deviation over the images divided by the square root of their number. A block
    that changes the shape of the state has no F: all but its `gradient_norm` is NaN. The network
    runs at inference and is left as it was.

    Example:

    >>> frame = block_metrics(tfresidual.chain(net), test)
    >>> frame.columns.tolist()[:3]
    ['stage', 'block', 'cosine_loss']

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by the name of the split.
        per_image: whether to return every image's own values instead of their means.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), the metrics and
        the two standard errors; `split` first, where `data` is a dict. Where `per_image` is set,
        `image` (from 0, in the order of the data) stands after `block`, and there are no standard
        errors.

    Raises:
        ValueError: if the chain or the data cannot be used.
    """
    chain = chain_of(chain)
    function = functools.partial(batch_values, chain)
    return measure(chain, "block metrics", function, data, per_image, progress, with_errors=SIGNED)


def metrics_of(chain, block):
    """The names of the metrics that are defined for a block."""
    if not block.keeps_shape:
        return ("gradient_norm",)
    is_read_out = block.stage == chain.stages[-1].index
    return tuple(name for name in METRICS if is_read_out or name != "readout_cosine_loss")


def batch_values(chain, images, labels):
    """All metrics of a batch, each `(images, blocks)`, as a dict by name."""
    walk = walk_with_gradients(chain, images, labels)
    values = [
        _block_values(block, *step, gradient, readout_gradient)
        for block, step, gradient, readout_gradient in zip(
            chain.blocks, walk.steps, walk.gradients, walk.readout_gradients, strict=True
        )
    ]
    return {name: ops.stack([value[name] for value in values], axis=1) for name in METRICS}


def _block_values(block, before, after, gradient, readout_gradient):
    values = step_values(block, before, after)
    undefined = ops.full_like(values["perturbation"], float("nan"))
    values |= {
        "cosine_loss": undefined,
        "readout_cosine_loss": undefined,
        "l2_ratio": values["scaled_perturbation"],
        "gradient_norm": norm(gradient),
    }
    if block.keeps_shape:
        change = change_of(before, after)
        values["cosine_loss"] = cosine(change, gradient)
        if readout_gradient is not None:
            values["readout_cosine_loss"] = cosine(change, readout_gradient)
    return values
