"""The figures and sections of the report on one network."""

from tfresidual import plots
from tfresidual.arguments import check_number
from tfresidual.registry import ENTRIES
from tfresidual.registry.entry import Figure
from tfresidual.report.alt_text import numbers_text
from tfresidual.report.section import Section

_TRAINING = Figure(
    name="training_curves",
    frames=("log",),
    column="loss",
    draw=lambda frame, epsilon: plots.training_curves(frame),
    title="Training",
    question="Loss and accuracy on the training and the validation images, epoch by epoch.",
    reading=(
        "The network of the epoch with the best validation value is the one probed below. "
        "Training values are means over the epoch, while the weights change. Overfitting shows as "
        "a training loss that falls while the validation loss rises."
    ),
)
# How the images of a split are called.
_NAMES = {"train": "training"}
FIGURES = (_TRAINING, *(figure for entry in ENTRIES.values() for figure in entry.figures))


def study_figures(frames, epsilon):
    """Draws the figures of a study of one network.

    Args:
        frames: a dict of the frames named in `FIGURES`. A figure is left out if one of its frames
            is missing, or if its column holds no number (for example, because the only block of a
            stage changes the shape).
        epsilon: the mean scaled perturbation of the stopping rule.

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
            figures[figure.name] = draw(figure, parts, epsilon)
    return figures


def draw(figure, parts, epsilon):
    """Draws a figure from what its `parts` returned.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    drawn = figure.draw(*parts, epsilon=epsilon)
    # The layout is computed once for all file formats, which takes a quarter of the time.
    drawn.draw_without_rendering()
    drawn.set_layout_engine(None)
    return drawn


def study_sections(frames, figures, images=None):
    """Puts the figures and tables of a study into sections of a report.

    Args:
        frames: see `study_figures`.
        figures: the figures returned by `study_figures`.
        images: a dict from the names of frames to the numbers of images that they were measured on,
            a dict by split; frames that were measured on no images are left out.

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
            images=_images_of(figure, images or {}),
            numbers=numbers_text(figure.parts(frames)[0], figure.column),
        )
        for figure in FIGURES
        if figure.name in figures
    ]


def images_text(counts):
    """Returns numbers of images by split as text, such as "2,000 test images"."""
    return " and ".join(
        f"{count:,} {_NAMES.get(split, split)} images" for split, count in counts.items()
    )


def _images_of(figure, images):
    """Returns what the frames of a figure were measured on as text; `None` if on no images."""
    texts = [images_text(images[name]) for name in figure.frames if name in images]
    return "; ".join(dict.fromkeys(texts)) or None
