"""The report on one network: its figures, and what they are said to show.

A figure of the report is an entry of `FIGURES`; that is all there is to add for a new one.
"""

import dataclasses
from collections.abc import Callable

from tfresidual import plots
from tfresidual.report.section import Section

INFERENCE = "Jastrzebski et al. 2018"
HAUSER = "Hauser 2019"


@dataclasses.dataclass(frozen=True)
class FigureOfStudy:
    """A figure of the report, and the words around it.

    Attributes:
        name: str, name of its file.
        frame: str, name of the frame it is drawn from.
        column: str, the column it shows; without a number there, there is no figure.
        draw: function `(frame, epsilon) -> figure`.
        title: heading of its section.
        question: what was measured, in a sentence.
        reading: how to read it.
        source: the paper and its figure, or `None`.
        has_table: whether the frame is shown beside it.
    """

    name: str
    frame: str
    column: str
    draw: Callable
    title: str
    question: str
    reading: str
    source: str | None = None
    has_table: bool = False


FIGURES = (
    FigureOfStudy(
        "training_curves",
        "log",
        "loss",
        lambda frame, epsilon: plots.training_curves(frame),
        "Training",
        "Loss and accuracy on the training and the validation images, epoch by epoch.",
        "The network of the epoch with the best validation value is the one probed below. A gap "
        "between training and validation is overfitting.",
    ),
    FigureOfStudy(
        "cosine_loss",
        "block_metrics",
        "cosine_loss",
        lambda frame, epsilon: plots.cosine_loss(frame),
        "Do blocks follow the loss gradient?",
        "The cosine between what a block adds to the state and the gradient of the loss there, "
        "averaged over images.",
        "Below zero, a block moves the state so that the loss falls: it refines. Near zero, it "
        "does something the gradient does not ask for. Blocks that change the shape of the state "
        "add nothing to the state they take, and are left out.",
        f"{INFERENCE}, figure 4",
        has_table=True,
    ),
    FigureOfStudy(
        "l2_ratio",
        "block_metrics",
        "l2_ratio",
        lambda frame, epsilon: plots.l2_ratio(frame),
        "How much does a block change?",
        "The norm of what a block adds, divided by the norm of the state it takes.",
        "Blocks with a high ratio build a new representation, those with a low one adjust it. "
        "Where the ratio is small, the cosine above tells the change of the loss to first order.",
        f"{INFERENCE}, figure 2",
    ),
    FigureOfStudy(
        "gradient_norm",
        "block_metrics",
        "gradient_norm",
        lambda frame, epsilon: plots.gradient_norm(frame),
        "Where is the gradient?",
        "The norm of the gradient of an image's loss at the state before each block.",
        "A norm that grows or shrinks by orders of magnitude along the network marks gradients "
        "that explode or vanish.",
    ),
    FigureOfStudy(
        "perturbation",
        "block_metrics",
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
        "block_metrics",
        "scaled_perturbation",
        lambda frame, epsilon: plots.scaled_perturbation(frame, epsilon=epsilon),
        "Scaled perturbation",
        "The same, divided by the norm of the state: the step relative to where it starts.",
        "Blocks under the broken line are small perturbations from the identity.",
        f"{HAUSER}, figure 5",
    ),
    FigureOfStudy(
        "computational_distance",
        "computational_distance",
        "distance",
        lambda frame, epsilon: plots.computational_distance(frame),
        "Distance through each stage",
        "The steps of all blocks of a stage added up, absolute and scaled, and the number of "
        "blocks at which the mean scaled step would fall under the broken line above.",
        "A stage with fewer blocks than the depth asked for takes large steps; the rule assumes "
        "that the distance stays the same in a deeper network.",
        f"{HAUSER}, figures 3 and 6, section 2.3",
        has_table=True,
    ),
    FigureOfStudy(
        "cosine_loss_by_epoch",
        "block_metrics_by_epoch",
        "cosine_loss",
        lambda frame, epsilon: plots.cosine_loss(frame),
        "The cosine over training",
        "The cosine between block output and loss gradient on validation images, behind every "
        "epoch.",
        "One line a block, from blue (first) to red (last of the stage).",
        f"{INFERENCE}, figure 13, with the gradient through the network",
    ),
    FigureOfStudy(
        "readout_cosine_loss_by_epoch",
        "block_metrics_by_epoch",
        "readout_cosine_loss",
        lambda frame, epsilon: plots.readout_cosine_loss(frame),
        "The cosine of the read-out",
        "The same in the last stage, with the gradient of the classifier applied straight to the "
        "block's input.",
        "One line a block, from blue (first) to red (last of the stage).",
        f"{INFERENCE}, figure 13",
    ),
    FigureOfStudy(
        "l2_ratio_by_epoch",
        "block_metrics_by_epoch",
        "l2_ratio",
        lambda frame, epsilon: plots.l2_ratio(frame),
        "The size of the steps over training",
        "The norm of what a block adds over the norm of its input, behind every epoch.",
        "One line a block, from blue (first) to red (last of the stage).",
        f"{INFERENCE}, figure 14",
    ),
)


def study_figures(frames, epsilon):
    """Draws the figures of a study of one network.

    Args:
        frames: frames by name: `log` (of the training), `block_metrics`,
            `computational_distance` and `block_metrics_by_epoch`. A figure whose column holds no
            number (of a stage whose only block changes the shape, say) is left out.
        epsilon: mean scaled perturbation of the stopping rule.

    Returns:
        A dict of `matplotlib.figure.Figure` by name.
    """
    return {
        figure.name: figure.draw(frames[figure.frame], epsilon)
        for figure in FIGURES
        if _is_drawable(frames[figure.frame], figure.column)
    }


def _is_drawable(frame, column):
    has_numbers = column in frame and frame[column].notna().any()
    # What is drawn over the epochs needs two of them; the log itself is drawn from the first on.
    is_single = "block" in frame and "epoch" in frame and len(set(frame["epoch"])) < 2
    return has_numbers and not is_single


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
            frame=frames[figure.frame] if figure.has_table else None,
            reading=figure.reading,
            source=figure.source,
        )
        for figure in FIGURES
        if figure.name in figures
    ]
