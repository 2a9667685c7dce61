"""How state and gradient travel through the network, and how much the shortcuts carry.

TensorFlow only.
"""

import functools

import tensorflow as tf
from keras import ops

from tfresidual import sources
from tfresidual.metrics import cosine, norm, ratio
from tfresidual.probes.measure import measure
from tfresidual.routing.gradients import known_gradients

METRICS = (
    "state_norm",
    "state_l1",
    "state_gradient_norm",
    "gradient_ratio",
    "shortcut_share",
    "shortcut_norm",
)


def signal_propagation(chain, data, *, per_image=False, progress=False):
    """Measures state and gradient at every block, and what of the gradient the shortcuts carry.

    With L the loss of one image, h the state before a block, g = dL/dh through the rest of the
    network, and g_s the part of g that arrives from the stage's last state through the shortcuts
    alone, all norms over all features of one image:

    - `state_norm`: Euclidean norm of the state behind the block, 0 or more.
    - `state_l1`: sum of the absolute values of that state, 0 or more; of a network's last block
      the number of Jastrzebski et al. 2018, fig. 9.
    - `state_gradient_norm`: norm of dL/d(state behind the block), 0 or more.
    - `gradient_ratio`: |g| of the network's first block over |g| of this one, 0 or more. That of
      the last stage's first block is r of Jastrzebski et al. 2018, fig. 8.
    - `shortcut_share`: <g_s, g> / |g|^2, the share of the gradient that comes through the
      shortcuts. What is missing to 1 comes through the branches. Over 1 where the branches turn
      back a part of what the shortcuts carry, under 0 where they turn back more than all of it.
    - `shortcut_norm`: |g_s| / |g|, 0 or more, and not under the absolute value of the share.

    g_s is the first of the two terms of He et al. 2016, eq. 5 and 8: where shortcuts multiply by
    lambdas, it is the stage's last gradient times their product. All branches are held constant;
    the gate of a gated shortcut, the projection or subsampling with which a block changes the
    shape, and what stands behind the addition belong to the shortcut. A block that joins its
    branch to the stage's anchor has a shortcut from there, and none from the state it takes: its
    share is 0, unless the state is the anchor.

    A figure is the mean over images of the images' values. Ratios and shares of an image without
    a gradient, g = 0, are 0. A block that changes the shape of the state, made by hand without
    telling branch and shortcut apart, and what stands before it in its stage, have NaN as share
    and norm of the shortcut. The network runs at inference and is left as it was.

    Before training, the moving statistics of batch normalization, 0 and 1, are not those of the
    data. To measure at initialization, let them become so first, which changes no other weight:
    `for images, _ in train.take(500): network(images, training=True)`.

    Example:

    >>> frame = signal_propagation(tfresidual.chain(net), test)
    >>> r = frame[frame["stage"] == 3]["gradient_ratio"].iloc[0]

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by the name of the split.
        per_image: whether to return every image's own values instead of their means.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0) and the metrics;
        `split` first, where `data` is a dict; `image` (from 0, in the order of the data) behind
        `block`, where `per_image` is set.

    Raises:
        ValueError: if the chain or the data cannot be used.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, section 2 and 3; Jastrzebski et al.
        2018, https://arxiv.org/abs/1710.04773, section 4.5, fig. 8 and 9.
    """
    chain = sources.chain(chain)
    function = functools.partial(_batch_values, chain)
    return measure(chain, "signal propagation", function, data, per_image, progress)


def _batch_values(chain, images, labels):
    """All metrics of a batch, each `(images, blocks)`."""
    # The stem needs no gradient, so it stays outside the tape.
    state = chain.stem(images)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(state)
        steps, last = chain.walk(state)
        # Summed over the images, so that every image's gradient is its own.
        total = tf.reduce_sum(chain.loss(labels, chain.head(last)))
    before, after = zip(*steps, strict=True)
    # A state that a stage with an anchor does not read has no gradient.
    gradients, gradients_after = tape.gradient(total, [before, after])
    gradients = known_gradients(chain, before, gradients)
    gradients_after = known_gradients(chain, after, gradients_after)
    through_shortcuts, end = [], 0
    for stage in chain.stages:
        if stage.blocks:
            begin, end = end, end + len(stage.blocks)
            through_shortcuts += _through_shortcuts(
                stage.blocks, before[begin:end], gradients_after[end - 1]
            )
    first_size = norm(gradients[0])
    values = [
        {
            "state_norm": norm(state),
            "state_l1": _one_norm(state),
            "state_gradient_norm": norm(gradient_after),
            "gradient_ratio": ratio(first_size, norm(gradient)),
            **_shortcut_values(gradient, through_shortcut),
        }
        for state, gradient, gradient_after, through_shortcut in zip(
            after, gradients, gradients_after, through_shortcuts, strict=True
        )
    ]
    return {name: ops.stack([value[name] for value in values], axis=1) for name in METRICS}


def _through_shortcuts(blocks, states, gradient):
    """What of a stage's last gradient arrives at every block's input through the shortcuts alone.

    Args:
        blocks: the `Block`s of a stage.
        states: the state before each of them.
        gradient: the gradient of the loss at the state behind the last of them.

    Returns:
        A list of tensors of the shapes of the states; `None` where no shortcut is known.
    """
    unknown = [block.step for block in blocks if not (block.keeps_shape or block.join)]
    first = unknown[-1] + 1 if unknown else 0
    if first == len(blocks):
        return [None] * first
    # The same states once more, in a walk whose branches pass no gradient. The graph computes
    # what both walks have in common only once.
    state = anchor = tf.stop_gradient(states[first])
    copies = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(state)
        for block in blocks[first:]:
            copies.append(state)
            state = block.changed(state, anchor, tf.stop_gradient)
            anchor = anchor if block.keeps_shape else state
    arriving = tape.gradient(
        state, copies, gradient, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [None] * first + arriving


def _one_norm(state):
    """The sum of the absolute values of each image's features, `(images,)`."""
    # In float64: a sum of so many terms loses digits in float32, and most of them in bfloat16.
    return ops.sum(ops.abs(ops.cast(state, "float64")), axis=tuple(range(1, len(state.shape))))


def _shortcut_values(gradient, through_shortcut):
    size = norm(gradient)
    if through_shortcut is None:
        undefined = ops.full_like(size, float("nan"))
        return {"shortcut_share": undefined, "shortcut_norm": undefined}
    relative = ratio(norm(through_shortcut), size)
    return {
        "shortcut_share": relative * cosine(through_shortcut, gradient),
        "shortcut_norm": relative,
    }
