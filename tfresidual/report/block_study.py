"""The report on one network: its figures, how to read them, and what was found.

A figure of the report is an entry of `FIGURES`; that is all there is to add for a new one. Its
words hold whatever the numbers are. What depends on the numbers is computed, see `findings`.
"""

import dataclasses
from collections.abc import Callable

from tfresidual import plots
from tfresidual.arguments import check_number
from tfresidual.report import findings
from tfresidual.report.section import Section

INFERENCE = "Jastrzebski et al. 2018"
HAUSER = "Hauser 2019"
CONVERGENCE = "Iterative convergent computation is not a useful inductive bias for ResNets"
VEIT = "Veit et al. 2016"

LINES = (
    "One line per block, from blue and thin (first) to red and thick (last of the stage with the "
    "most blocks)."
)


@dataclasses.dataclass(frozen=True)
class FigureOfStudy:
    """A figure of the report, and the words around it.

    Attributes:
        name: str, name of its file.
        frames: names of the frames it is drawn from; without one of them, there is no figure.
        column: str, the column of the first that it shows; without a number there, there is no
            figure.
        draw: function `(*frames, epsilon) -> figure`.
        title: heading of its section.
        question: what was measured, in a sentence.
        reading: how to read it, whatever it shows.
        source: the paper and its figure, or `None`.
        has_table: whether the first frame is shown beside it.
        select: function from the first frame to the part of it that is drawn, or `None` for all.
        finding: function from all frames by name to a sentence on what was found, or to `None`
            where they do not tell; or `None`.
    """

    name: str
    frames: tuple[str, ...]
    column: str
    draw: Callable
    title: str
    question: str
    reading: str
    source: str | None = None
    has_table: bool = False
    select: Callable | None = None
    finding: Callable | None = None

    def parts(self, frames):
        """The frames it is drawn from, or `None` where they hold nothing to draw."""
        if any(name not in frames or frames[name].empty for name in self.frames):
            return None
        parts = [frames[name] for name in self.frames]
        if self.select is not None:
            parts[0] = self.select(parts[0])
        return parts if _has_numbers(parts[0], self.column) else None


def _chances(indices):
    """The error of guessing by split; `None` where guessing never errs."""
    if not (indices["chance"] > 0).all():
        return None
    if "split" not in indices:
        return float(indices["chance"].iloc[0])
    return indices.groupby("split")["chance"].first().to_dict()


FIGURES = (
    FigureOfStudy(
        "training_curves",
        ("log",),
        "loss",
        lambda frame, epsilon: plots.training_curves(frame),
        "Training",
        "Loss and accuracy on the training and the validation images, epoch by epoch.",
        "The network of the epoch with the best validation value is the one probed below. Training "
        "values are means over the epoch, while the weights change. Overfitting shows as a "
        "training loss that falls while the validation loss rises.",
    ),
    FigureOfStudy(
        "cosine_loss",
        ("block_metrics",),
        "cosine_loss",
        lambda frame, epsilon: plots.cosine_loss(frame),
        "Do blocks move down the loss gradient?",
        "The cosine between what a block adds to the state and the gradient of the loss there, "
        "averaged over images.",
        "Below zero, a block moves the state so that the loss falls, to first order. Near zero, "
        "its step is across the gradient. The columns that end in _se are standard errors over "
        "the images. Blocks that change the shape of the state add nothing to the state they take, "
        "and are left out.",
        f"{INFERENCE}, figure 4",
        has_table=True,
        finding=findings.of_cosine_loss,
    ),
    FigureOfStudy(
        "l2_ratio",
        ("block_metrics",),
        "l2_ratio",
        lambda frame, epsilon: plots.l2_ratio(frame),
        "How much does a block change?",
        "The norm of what a block adds, divided by the norm of the state it takes.",
        "A block with a ratio near or over 1 replaces much of the state, one with a small ratio "
        "adjusts it. The smaller the ratio, the better the cosine above tells how the loss "
        "changes.",
        f"{INFERENCE}, figure 2",
    ),
    FigureOfStudy(
        "gradient_norm",
        ("block_metrics",),
        "gradient_norm",
        lambda frame, epsilon: plots.gradient_norm(frame),
        "Where is the gradient?",
        "The norm of the gradient of an image's loss at the state before each block.",
        "A norm that grows or shrinks by orders of magnitude along the network marks gradients "
        "that explode or vanish.",
    ),
    FigureOfStudy(
        "signal_propagation",
        ("signal_propagation",),
        "state_norm",
        lambda frame, epsilon: plots.signal_propagation(frame),
        "Do states and gradients grow?",
        "The norms of the state and of the loss gradient after every block, and the share of the "
        "gradient that arrives from the end of the stage through the shortcuts alone.",
        "Norms that change by orders of magnitude along the network mark states and gradients that "
        "explode or vanish. A share of 1 means that the branches add nothing along the gradient.",
        "He et al. 2016, equations 5 and 8",
    ),
    FigureOfStudy(
        "perturbation",
        ("block_metrics",),
        "perturbation",
        lambda frame, epsilon: plots.perturbation(frame),
        "Perturbation",
        "The norm of what each block adds to the state.",
        "The heights are steps on the way of an image through the network; all steps of a stage "
        "together are the distance it travels there.",
        f"{HAUSER}, figure 2",
    ),
    FigureOfStudy(
        "scaled_perturbation",
        ("block_metrics",),
        "scaled_perturbation",
        lambda frame, epsilon: plots.scaled_perturbation(frame, epsilon=epsilon),
        "Scaled perturbation",
        "The same, divided by the norm of the state: the step relative to where it starts.",
        "The broken line is the mean that the stopping rule asks of a stage. The nearer to 0 a "
        "block is, the nearer it is to the identity.",
        f"{HAUSER}, figure 5",
    ),
    FigureOfStudy(
        "computational_distance",
        ("computational_distance",),
        "distance",
        lambda frame, epsilon: plots.computational_distance(frame),
        "Distance through each stage",
        "The steps of all blocks of a stage added up, absolute and scaled, and the number of "
        "blocks at which the mean scaled step would be down at the broken line above.",
        "A stage with fewer blocks than the depth asked for takes larger steps than the stopping "
        "rule allows; the rule assumes that the distance stays the same in a deeper network.",
        f"{HAUSER}, figures 3 and 6, section 2.3",
        has_table=True,
    ),
    FigureOfStudy(
        "readout",
        ("readout",),
        "error",
        lambda frame, epsilon: plots.readout(frame),
        "Reading out early",
        "The accuracy of the network when a stage is left after each of its blocks and the next "
        "stage, or the classifier, follows at once.",
        "A stage whose line rises in small steps comes nearer to its result with every block; one "
        "that stays low until the last block builds something that only then can be read.",
        f"{INFERENCE}, figure 5, at the end of training",
    ),
    FigureOfStudy(
        "readout_by_epoch",
        ("block_metrics_by_epoch",),
        "error",
        lambda frame, epsilon: plots.readout(frame),
        "Reading out over training",
        "The accuracy on validation images when a stage is left after each of its blocks, epoch "
        "by epoch.",
        f"{LINES} Lines one above the other in this order mean that each further block comes "
        "nearer to the answer.",
        f"{INFERENCE}, figure 5, and the same for the earlier stages",
        select=lambda frame: frame.rename(columns={"readout_error": "error"}),
    ),
    FigureOfStudy(
        "drop_blocks",
        ("drop_blocks",),
        "error",
        lambda frame, epsilon: plots.drop_blocks(frame),
        "Which block is missed?",
        "The accuracy of the network without each of its blocks.",
        "The nearer a point is to the dotted line of the whole network, the less the block is "
        "missed. Blocks that change the shape of the state cannot be dropped.",
        f"{INFERENCE}, figures 3 and 12",
    ),
    FigureOfStudy(
        "drop_blocks_by_epoch",
        ("drop_blocks_by_epoch",),
        "error",
        lambda frame, epsilon: plots.drop_blocks(frame),
        "Dropped blocks over training",
        "The accuracy without one block, epoch by epoch.",
        f"{LINES} Dotted is the whole network. The lower a line falls below it, the more the block "
        "is missed.",
        f"{INFERENCE}, figure 3",
    ),
    FigureOfStudy(
        "perturbation_errors",
        ("readout", "drop_blocks", "repeat_last_block", "convergence_indices"),
        "error",
        lambda read, drop, repeat, indices, epsilon: plots.perturbation_errors(
            read, drop, repeat, chance=_chances(indices)
        ),
        "Read out early, drop, repeat",
        "The error when a stage is left early, when one of its blocks is dropped, and when its "
        "last block is applied again and again.",
        "An iterative method would come nearer to the answer with every block, would not mind "
        "which block is dropped, and would stay where it is when its last step is repeated.",
        f"{CONVERGENCE}, figure 2a",
    ),
    FigureOfStudy(
        "convergence_indices",
        ("convergence_indices",),
        "convergence_index",
        lambda frame, epsilon: plots.convergence_indices(frame),
        "Convergence, recurrence, divergence",
        "The three curves above, each as one number per stage: on the labels, and on agreement "
        "with the predictions of the whole network.",
        "Convergence is 1 when the first block already gives the final error; recurrence is 1 "
        "when it does not matter which block is dropped; divergence is 0 when repetition does no "
        "harm and 1 when it leads to chance at once.",
        f"{CONVERGENCE}, figures 2b and 6a",
        has_table=True,
        finding=findings.of_indices,
    ),
    FigureOfStudy(
        "convergence_curves",
        ("readout", "repeat_last_block"),
        "cross_entropy",
        lambda read, repeat, epsilon: plots.convergence_curves(read, repeat),
        "On the way to the last state, and past it",
        "The cross-entropy, and the distance of the state that leaves a stage to the one that "
        "leaves it in the whole network, over the blocks applied and the repetitions of the last.",
        "The distance is 0 at the trained number of blocks, by definition. Where it rises after "
        "that as fast as it fell, the state passes by; where it stays near 0, it has converged.",
        f"{CONVERGENCE}, figures 6b and 6c",
    ),
    FigureOfStudy(
        "borderline",
        ("borderline",),
        "accuracy",
        lambda frame, epsilon: plots.borderline(frame),
        "Which images do the last blocks help?",
        "Accuracy, cross-entropy and entropy after the last blocks, for images that are near the "
        "decision at the first of them, for those that are right there, and for all.",
        "The first point decides on the groups: there the accuracy of the correct ones is 1, and "
        "can only fall from there. What to look for is whether that of the borderline ones rises.",
        f"{INFERENCE}, figure 6",
    ),
    FigureOfStudy(
        "borderline_repeated",
        ("borderline",),
        "accuracy",
        lambda frame, epsilon: plots.borderline(frame, along="repetitions"),
        "Which images does repeating the last block help?",
        "The same along extra applications of the last block.",
        "The first point is the trained network, which decides on the groups.",
        f"{INFERENCE}, figure 7",
        select=lambda frame: frame[frame["along"] == "repetitions"],
    ),
    FigureOfStudy(
        "repetition_steps",
        ("repetition_steps",),
        "l2_ratio",
        lambda frame, epsilon: plots.repetition_steps(frame),
        "Does a repeated block go on refining?",
        "Cosine loss and l2 ratio of the last application, when the last block of a stage is "
        "applied again and again.",
        "As long as the cosine is below zero, one more application lowers the loss to first "
        "order. Repetition 0 is the block where it was trained.",
        f"{INFERENCE}, figure 20, left",
        finding=findings.of_repetition_steps,
    ),
    FigureOfStudy(
        "repetition_steps_scaled",
        ("repetition_steps_scaled",),
        "l2_ratio",
        lambda frame, epsilon: plots.repetition_steps(frame),
        "And with a scaled branch?",
        "The same with the branch of the extra applications multiplied by the number in the title "
        "of the figure.",
        "Under 1, the extra steps are smaller. Compare with the figure above: at how many "
        "repetitions does the cosine leave the side below zero?",
        f"{INFERENCE}, figure 20, right",
        finding=findings.of_scaled_repetition_steps,
    ),
    FigureOfStudy(
        "shuffle_blocks",
        ("shuffle_blocks",),
        "error",
        lambda frame, epsilon: plots.shuffle_blocks(frame),
        "Does the order matter?",
        "The error when blocks of a stage change places, over how much of their order is left.",
        "Where the error hardly rises, the order of the blocks matters little.",
        f"{VEIT}, on reordering",
    ),
    FigureOfStudy(
        "lipschitz_bounds",
        ("lipschitz",),
        "estimate",
        lambda frame, epsilon: plots.lipschitz_bounds(frame, mu=frame["lipschitz"].max()),
        "What bounds the blocks",
        "The bound on the Lipschitz constant of every branch before it is divided, from below and "
        "from above, and the divisor.",
        "Where the divisor is over 1, the bound is at work.",
        f"{CONVERGENCE}, section 4.2",
        has_table=True,
    ),
    FigureOfStudy(
        "fixed_point",
        ("fixed_point",),
        "change",
        lambda frame, epsilon: plots.fixed_point(frame),
        "Is there a fixed point?",
        "How far the state moves with every further application of a stage's last block.",
        "A straight line down on the logarithmic axis is what a contraction gives, on the way to a "
        "fixed point. A change that levels off far above rounding leads on and on.",
        f"{CONVERGENCE}, section 4.2",
    ),
    FigureOfStudy(
        "weight_deviations",
        ("weight_deviations",),
        "deviation",
        lambda frame, epsilon: plots.weight_deviations(frame),
        "How different are the blocks?",
        "The mean deviation of each block's weights from the mean block of its stage, in standard "
        "deviations of the stage's weights.",
        "0 for blocks that are one, about 0.8 for many blocks with weights drawn independently "
        "from a normal distribution.",
        f"{CONVERGENCE}, appendix C",
    ),
    FigureOfStudy(
        "cosine_loss_by_epoch",
        ("block_metrics_by_epoch",),
        "cosine_loss",
        lambda frame, epsilon: plots.cosine_loss(frame),
        "The cosine over training",
        "The cosine between block output and loss gradient on validation images, epoch by epoch.",
        LINES,
        f"{INFERENCE}, figure 13, with the gradient through the network",
    ),
    FigureOfStudy(
        "readout_cosine_loss_by_epoch",
        ("block_metrics_by_epoch",),
        "readout_cosine_loss",
        lambda frame, epsilon: plots.readout_cosine_loss(frame),
        "The cosine of the read-out",
        "The same in the last stage, with the gradient of the classifier applied straight to the "
        "block's input.",
        LINES,
        f"{INFERENCE}, figure 13",
    ),
    FigureOfStudy(
        "l2_ratio_by_epoch",
        ("block_metrics_by_epoch",),
        "l2_ratio",
        lambda frame, epsilon: plots.l2_ratio(frame),
        "The size of the steps over training",
        "The norm of what a block adds over the norm of its input, epoch by epoch.",
        LINES,
        f"{INFERENCE}, figure 14",
    ),
)


def study_figures(frames, epsilon):
    """Draws the figures of a study of one network.

    Args:
        frames: frames by name: those that `FIGURES` name. A figure is left out where one of its
            frames is missing, or its column holds no number (of a stage whose only block changes
            the shape, say).
        epsilon: mean scaled perturbation of the stopping rule.

    Returns:
        A dict of `matplotlib.figure.Figure` by name.

    Raises:
        ValueError: if `epsilon` is not a finite number over 0.
    """
    check_number("epsilon", epsilon, over=0)
    figures = {}
    for figure in FIGURES:
        parts = figure.parts(frames)
        if parts is not None:
            drawn = figures[figure.name] = figure.draw(*parts, epsilon=epsilon)
            # Laid out once for all formats it is saved in: a quarter of the time.
            drawn.draw_without_rendering()
            drawn.set_layout_engine(None)
    return figures


def _has_numbers(frame, column):
    """Whether a column has something to draw."""
    # What is drawn over the epochs needs two of them; the log itself is drawn from the first on.
    is_single = "block" in frame and "epoch" in frame and len(set(frame["epoch"])) < 2
    return column in frame and bool(frame[column].notna().any()) and not is_single


def study_sections(frames, figures):
    """Puts the figures and tables of a study into sections of a report.

    Args:
        frames: see `study_figures`.
        figures: what `study_figures` returned.

    Returns:
        A list of `Section`.
    """
    return [
        Section(
            figure.title,
            figure.question,
            figure=figures[figure.name],
            frame=frames[figure.frames[0]] if figure.has_table else None,
            reading=figure.reading,
            source=figure.source,
            finding=None if figure.finding is None else figure.finding(frames),
        )
        for figure in FIGURES
        if figure.name in figures
    ]
