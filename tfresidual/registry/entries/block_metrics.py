"""The entry of `tfresidual.probes.block_metrics`."""

import pandas as pd

from tfresidual import plots, probes
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.registry.entry import HAUSER, INFERENCE, LINES, Entry, Figure, Study
from tfresidual.report import findings


def run(chain, data, options, progress):
    """Measures the metrics of all blocks, the distances, and the depth of the stopping rule."""
    blocks = probes.block_metrics(chain, data, progress=progress)
    # The distances are sums of the perturbations just measured.
    distances = probes.distances_of(blocks, chain)
    in_stages = distances[distances["stage"] != probes.ALL_STAGES]
    measured = (in_stages["blocks"] > 0) & in_stages["scaled_distance"].notna()
    asked_for = pd.Series(
        depth_for(in_stages.loc[measured, "scaled_distance"], options.epsilon),
        index=in_stages.index[measured],
    )
    distances["depth_asked_for"] = asked_for.reindex(distances.index).astype("Int64")
    return {"block_metrics": blocks, "computational_distance": distances}


ENTRY = Entry(
    name="block_metrics",
    run=run,
    studies=(Study(),),
    figures=(
        Figure(
            name="cosine_loss",
            frames=("block_metrics",),
            column="cosine_loss",
            draw=lambda frame, epsilon: plots.cosine_loss(frame),
            title="Do blocks move down the loss gradient?",
            question=(
                "The cosine between what a block adds to the state and the gradient of the loss "
                "there, averaged over images."
            ),
            reading=(
                "Below zero, a block moves the state so that the loss falls, to first order. "
                "Near zero, its step is perpendicular to the gradient. Columns whose names end "
                "in _se are standard errors over the images. Blocks that change the shape of the "
                "state do not add to their input and are left out."
            ),
            source=f"{INFERENCE}, figure 4",
            has_table=True,
            finding=findings.of_cosine_loss,
        ),
        Figure(
            name="l2_ratio",
            frames=("block_metrics",),
            column="l2_ratio",
            draw=lambda frame, epsilon: plots.l2_ratio(frame),
            title="How much does a block change?",
            question="The norm of what a block adds, divided by the norm of its input.",
            reading=(
                "A block with a ratio near or above 1 replaces much of the state; one with a "
                "small ratio adjusts it. The smaller the ratio, the better the cosine above "
                "predicts how the loss changes."
            ),
            source=f"{INFERENCE}, figure 2",
        ),
        Figure(
            name="gradient_norm",
            frames=("block_metrics",),
            column="gradient_norm",
            draw=lambda frame, epsilon: plots.gradient_norm(frame),
            title="How large is the gradient?",
            question="The norm of the loss gradient of an image at the state before each block.",
            reading=(
                "A norm that grows or shrinks by orders of magnitude along the network indicates "
                "exploding or vanishing gradients."
            ),
        ),
        Figure(
            name="perturbation",
            frames=("block_metrics",),
            column="perturbation",
            draw=lambda frame, epsilon: plots.perturbation(frame),
            title="Perturbation",
            question="The norm of what each block adds to the state.",
            reading=(
                "The heights are an image's steps on its way through the network; the steps of a "
                "stage add up to the distance it travels there."
            ),
            source=f"{HAUSER}, figure 2",
        ),
        Figure(
            name="scaled_perturbation",
            frames=("block_metrics",),
            column="scaled_perturbation",
            draw=lambda frame, epsilon: plots.scaled_perturbation(frame, epsilon=epsilon),
            title="Scaled perturbation",
            question=(
                "The same, divided by the norm of the state: the step relative to where it starts."
            ),
            reading=(
                "The dashed line is the mean that the stopping rule allows for a stage. The "
                "closer a block is to 0, the closer it is to the identity."
            ),
            source=f"{HAUSER}, figure 5",
        ),
        Figure(
            name="computational_distance",
            frames=("computational_distance",),
            column="distance",
            draw=lambda frame, epsilon: plots.computational_distance(frame),
            title="Distance through each stage",
            question=(
                "The steps of all blocks of a stage added up, absolute and scaled, and the "
                "number of blocks at which the mean scaled step would fall to the dashed line "
                "above."
            ),
            reading=(
                "A stage with fewer blocks than the depth asked for takes larger steps than the "
                "stopping rule allows; the rule assumes that the distance stays the same in a "
                "deeper network."
            ),
            source=f"{HAUSER}, figures 3 and 6, section 2.3",
            has_table=True,
        ),
        Figure(
            name="cosine_loss_by_epoch",
            frames=("block_metrics_by_epoch",),
            column="cosine_loss",
            draw=lambda frame, epsilon: plots.cosine_loss(frame),
            title="The cosine over training",
            question=(
                "The cosine between block output and loss gradient on validation images, epoch by "
                "epoch."
            ),
            reading=LINES,
            source=f"{INFERENCE}, figure 13, with the gradient through the network",
        ),
        Figure(
            name="readout_cosine_loss_by_epoch",
            frames=("block_metrics_by_epoch",),
            column="readout_cosine_loss",
            draw=lambda frame, epsilon: plots.readout_cosine_loss(frame),
            title="The cosine of the read-out",
            question=(
                "The same in the last stage, with the gradient of the classifier applied straight "
                "to the block's input."
            ),
            reading=LINES,
            source=f"{INFERENCE}, figure 13",
        ),
        Figure(
            name="l2_ratio_by_epoch",
            frames=("block_metrics_by_epoch",),
            column="l2_ratio",
            draw=lambda frame, epsilon: plots.l2_ratio(frame),
            title="The size of the steps over training",
            question="The norm of what a block adds over the norm of its input, epoch by epoch.",
            reading=LINES,
            source=f"{INFERENCE}, figure 14",
        ),
    ),
)
