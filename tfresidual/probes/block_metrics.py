"""What every block does to the state, and how that relates to the gradient of the loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual import sources
from tfresidual.definitions.declarations import (
    LINES,
    TRAINING,
    ZERO,
    Column,
    Drawing,
    Figure,
    Level,
    Line,
    Panel,
    Probe,
    Study,
    over_blocks,
)
from tfresidual.probes.measure import measure
from tfresidual.probes.perturbation import ALL_STAGES, distances_of
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.routing.block_values import BLOCK_METRICS, STATE_METRICS, block_values

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

# Metrics whose sign matters: their means are returned with standard errors.
SIGNED = ("cosine_loss", "readout_cosine_loss")


DECLARATION = Probe(
    "block_metrics",
    place=1,
    frames={
        "block_metrics": (
            "stage",
            "block",
            "cosine_loss",
            "l2_ratio",
            "gradient_norm",
            "perturbation",
        ),
        "computational_distance": ("stage", "blocks", "distance"),
    },
    columns={
        "cosine_loss_below_zero": Column(
            "share of the images whose `cosine_loss` is below 0",
            at_least=0,
            at_most=1,
            low="for most images, the block raises the loss, to first order",
            high="for most images, it lowers it",
        ),
        "cosine_loss": Column(
            "cosine of `F` and `g`",
            at_least=-1,
            at_most=1,
            low="below 0, the block steps down the loss",
            high="near 0, its effect shows only after later blocks; above 0, it steps up",
            paper="II 4.1, fig. 4",
        ),
        "readout_cosine_loss": Column(
            "cosine of `F` and the gradient of the head applied directly to `h`; last stage only",
            at_least=-1,
            at_most=1,
            low="the block improves what could be read out already",
            high="as above",
            paper="II fig. 13",
        ),
        "l2_ratio": Column(
            "norm of `F` over norm of `h`",
            at_least=0,
            low=(
                "the block adjusts the state; to first order the cosine tells the change of "
                "the loss"
            ),
            high=("near or above 1, the block replaces the state, and the cosine tells little"),
            paper="II fig. 2",
        ),
        "gradient_norm": Column(
            "norm of `g`",
            at_least=0,
            low="by orders of magnitude along the network: vanishing",
            high="exploding",
            paper="II fig. 8",
        ),
        "perturbation": Column(
            "norm of `F`", at_least=0, low="a small step", high="a large step", paper="PI fig. 2"
        ),
        "scaled_perturbation": Column(
            "`l2_ratio` by another name",
            at_least=0,
            low="close to the identity",
            high="far from it",
            paper="PI fig. 5",
        ),
        "distance": Column(
            (
                "sum of the perturbations of the blocks of a stage, 0 if none keeps the shape; of "
                "routes, see below"
            ),
            at_least=0,
            low="an image moves little on its way through the stage",
            high="it moves far",
            paper="PI fig. 3",
            of="computational_distance",
        ),
        "scaled_distance": Column(
            "sum of the scaled perturbations of a stage",
            at_least=0,
            low="as `distance`, each step relative to where it starts",
            paper="PI fig. 6",
            of="computational_distance",
        ),
        "mean_perturbation": Column(
            "`distance` over the number of blocks",
            at_least=0,
            low="a block moves an image little",
            high="it moves it far",
            paper="PI fig. 4",
            of="computational_distance",
        ),
        "mean_scaled_perturbation": Column(
            "`scaled_distance` over the number of blocks",
            at_least=0,
            low="the stopping rule asks for `epsilon` or less",
            high="more blocks are asked for",
            paper="PI fig. 7",
            of="computational_distance",
        ),
        "depth_asked_for": Column(
            "`scaled_distance` over `epsilon` (0.1 by default), rounded up: blocks that keep the "
            "shape; `depth` in the logs of `Perturbation`",
            at_least=0,
            high=(
                "how many blocks the rule asks for, *if* the distance stays as it is in a "
                "deeper network"
            ),
            paper="PI 2.3",
            of="DepthSearch.trace",
        ),
    },
    published={
        "cosine_loss": "keeping",
        "readout_cosine_loss": "last keeping",
        "l2_ratio": "keeping",
        "gradient_norm": "all",
    },
    figures=(
        Figure(
            name="cosine_loss",
            decision=(
                "At 0 with a small step: a candidate to take out; `drop_blocks` says what "
                "that costs."
            ),
            column="cosine_loss",
            title="Do blocks move down the loss gradient?",
            question=(
                "The cosine between what a block adds to the state and the gradient of the "
                "loss there, averaged over images."
            ),
            reading=(
                "Below zero, what a block adds points to where the loss falls, to first order and "
                "in the mean over the images: single images may have the other sign, and the mean "
                "loss need not fall, which 'Does the gradient predict what a block does?' shows. "
                "The band is one standard error to either side. "
                "Near zero, the step is perpendicular to the gradient. Columns whose names "
                "end in _se are standard errors over the images. Blocks that change the shape "
                "of the state do not add to their input and are left out."
            ),
            source="Jastrzebski et al. 2018, figure 4",
            frames=("block_metrics",),
            has_table=True,
            finding="cosine_loss",
            drawing=over_blocks(
                "Cosine loss",
                "cosine of block output F(h)\nand loss gradient ∂L/∂h",
                "cosine_loss",
                levels=(ZERO,),
            ),
        ),
        Figure(
            name="l2_ratio",
            shown_by="scaled_perturbation",
            column="l2_ratio",
            title="How much does a block change?",
            question="The norm of what a block adds, divided by the norm of its input.",
            reading=(
                "A block with a ratio near or above 1 replaces much of the state; one with a "
                "small ratio adjusts it. The smaller the ratio, the better the cosine above "
                "predicts how the loss changes."
            ),
            source="Jastrzebski et al. 2018, figure 2",
            frames=("block_metrics",),
            drawing=over_blocks(
                "l2 ratio",
                "size of block output over input\n‖F(h)‖ / ‖h‖",
                "l2_ratio",
                scale="wide",
            ),
        ),
        Figure(
            name="gradient_norm",
            decision=(
                "Orders of magnitude between the first and the last block: change shortcut, "
                "normalization or first weights before you train longer."
            ),
            column="gradient_norm",
            title="How large is the gradient?",
            question=("The norm of the loss gradient of an image at the state before each block."),
            reading=(
                "A norm that grows or shrinks by orders of magnitude along the network "
                "indicates exploding or vanishing gradients."
            ),
            frames=("block_metrics",),
            drawing=over_blocks(
                "Gradient norm",
                "size of loss gradient at the\nblock input ‖∂L/∂h‖",
                "gradient_norm",
                scale="wide",
            ),
        ),
        Figure(
            name="perturbation",
            column="perturbation",
            title="Perturbation",
            question="The norm of what each block adds to the state.",
            reading=(
                "The heights are an image's steps on its way through the network; the steps "
                "of a stage add up to the distance it travels there."
            ),
            source="Hauser 2019, figure 2",
            frames=("block_metrics",),
            drawing=over_blocks(
                "Perturbation",
                "distance the block moves\nthe state ‖F(h)‖",
                "perturbation",
                scale="wide",
            ),
        ),
        Figure(
            name="scaled_perturbation",
            decision=(
                "Under epsilon in every stage: by the stopping rule of the depth search, more "
                "blocks would add little."
            ),
            column="scaled_perturbation",
            title="Scaled perturbation",
            question=(
                "The norm of what each block adds, divided by the norm of the state: the step "
                "relative to where it starts."
            ),
            reading=(
                "The dashed line is the mean that the stopping rule allows for a stage. The "
                "closer a block is to 0, the closer it is to the identity."
            ),
            source="Hauser 2019, figure 5",
            frames=("block_metrics",),
            drawing=over_blocks(
                "Scaled perturbation",
                "distance moved over size of state\n‖F(h)‖ / ‖h‖",
                "scaled_perturbation",
                scale="wide",
                levels=(Level(argument="epsilon", name="ε = {:g}", dash="--"),),
            ),
        ),
        Figure(
            name="computational_distance",
            decision=(
                "The scaled distance, divided by epsilon, estimates how many blocks a stage needs."
            ),
            column="distance",
            title="Distance through each stage",
            question=(
                "The steps of all blocks of a stage added up, absolute and scaled; in the table of "
                "a report, also the number of blocks at which the mean scaled step would fall to "
                "epsilon."
            ),
            reading=(
                "A stage without a block that keeps the shape has nothing to add up: 0. "
                "A stage with fewer blocks than the depth asked for takes larger steps than "
                "the stopping rule allows; the rule assumes that the distance stays the same "
                "in a deeper network."
            ),
            source="Hauser 2019, figures 3 and 6, section 2.3",
            has_table=True,
            drawing=Drawing(
                "Computational distance",
                (
                    Panel(
                        "sum of ‖F(h)‖ over the blocks",
                        (Line("distance", mark="bar"),),
                        title="absolute",
                    ),
                    Panel(
                        "sum of ‖F(h)‖ / ‖h‖ over the blocks",
                        (Line("scaled_distance", mark="bar"),),
                        title="scaled",
                    ),
                ),
                "stage",
                "",
                keys=(),
                texts=("stage",),
                rows=(),
                columns=("panel",),
            ),
        ),
        Figure(
            name="cosine_loss_by_epoch",
            group=TRAINING,
            column="cosine_loss",
            title="The cosine over training",
            question=(
                "The cosine between block output and loss gradient on validation images, "
                "epoch by epoch."
            ),
            reading=LINES,
            source=("Jastrzebski et al. 2018, figure 13, with the gradient through the network"),
            frames=("block_metrics_by_epoch",),
            draw="cosine_loss",
        ),
        Figure(
            name="readout_cosine_loss_by_epoch",
            group=TRAINING,
            column="readout_cosine_loss",
            title="The cosine of the read-out",
            question=(
                "The same in the last stage, with the gradient of the classifier applied "
                "straight to the block's input."
            ),
            reading=LINES,
            source="Jastrzebski et al. 2018, figure 13",
            frames=("block_metrics_by_epoch",),
            draw="readout_cosine_loss",
            drawing=over_blocks(
                "Cosine loss, read-out form",
                "cosine of block output F(h) and\ngradient of the read-out loss",
                "readout_cosine_loss",
                levels=(ZERO,),
                sparse=True,
            ),
        ),
        Figure(
            name="l2_ratio_by_epoch",
            group=TRAINING,
            column="l2_ratio",
            title="The size of the steps over training",
            question=("The norm of what a block adds over the norm of its input, epoch by epoch."),
            reading=LINES,
            source="Jastrzebski et al. 2018, figure 14",
            frames=("block_metrics_by_epoch",),
            draw="l2_ratio",
        ),
    ),
    studies=(Study(),),
)


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
    distances = distances_of(blocks, chain)
    in_stages = distances[distances["stage"] != ALL_STAGES]
    measured = (in_stages["blocks"] > 0) & in_stages["scaled_distance"].notna()
    asked_for = pd.Series(
        depth_for(in_stages.loc[measured, "scaled_distance"], options.epsilon),
        index=in_stages.index[measured],
    )
    distances["depth_asked_for"] = asked_for.reindex(distances.index).astype("Int64")
    return {"block_metrics": blocks, "computational_distance": distances}
