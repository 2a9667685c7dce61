"""The figures that probes declare, each drawn from the frames it names."""

import functools

import numpy as np

from tfresidual import plots
from tfresidual.definitions.declarations import TRAINING, Figure
from tfresidual.definitions.probes import PROBES
from tfresidual.plots.engine import DRAWINGS
from tfresidual.plots.frames import finite

_TRAINING = Figure(
    name="training_curves",
    frames=("log",),
    column="loss",
    title="Training",
    question="Loss and accuracy on the training and the validation images, epoch by epoch.",
    reading=(
        "The network of the epoch with the best validation value is kept, and probed. "
        "Training values are means over the epoch, while the weights change. Overfitting shows as "
        "a training loss that falls while the validation loss rises."
    ),
    group=TRAINING,
)
FIGURES = (_TRAINING, *(figure for probe in PROBES.values() for figure in probe.figures))


def frames_of(figure):
    """Returns the names of the frames that a figure is drawn from."""
    return figure.frames or (figure.name,)


def parts_of(figure, frames):
    """Returns the frames a figure is drawn from, or `None` if there is nothing to draw."""
    parts = [frames.get(name) for name in frames_of(figure)]
    if any(part is None or part.empty for part in parts):
        return None
    first = parts[0].rename(columns=figure.renamed)
    for column, value in figure.rows.items():
        first = first[first[column] == value]
    # A frame of blocks over epochs needs two epochs; the training log is drawn from the first one.
    is_single = "block" in first and "epoch" in first and first["epoch"].nunique() < 2
    has_numbers = figure.column in first and bool(np.isfinite(finite(first[figure.column])).any())
    return [first, *parts[1:]] if has_numbers and not is_single else None


def study_figures(frames, epsilon):
    """Draws the figures of a study of one network.

    Args:
        frames: a dict of frames by name. A figure is left out if one of its frames is missing, or
            if its column holds no number.
        epsilon: the mean scaled perturbation of the stopping rule, a finite number over 0.

    Returns:
        A dict of `matplotlib.figure.Figure` by name.
    """
    figures = {}
    for figure in FIGURES:
        parts = parts_of(figure, frames)
        if parts is not None:
            figures[figure.name] = draw(figure, parts, epsilon)
    return figures


def draw(figure, parts, epsilon):
    """Returns the `matplotlib.figure.Figure` of what `parts_of` returned."""
    name, options = figure.draw or figure.name, dict(figure.options)
    panels = DRAWINGS[name].panels if name in DRAWINGS else ()
    taken = {level.argument for panel in panels for level in panel.levels}
    if "epsilon" in taken:
        options["epsilon"] = epsilon
    if "chance" in taken:
        *parts, indices = parts
        options["chance"] = _chances(indices)
    if "mu" in taken and "lipschitz" in parts[0]:
        options["mu"] = parts[0]["lipschitz"].max()
    function = getattr(plots, name, functools.partial(plots.draw, name=name))
    drawn = function(*parts, **options)
    # The layout is computed once for all file formats, which takes a quarter of the time.
    drawn.get_layout_engine().execute(drawn)
    drawn.set_layout_engine(None)
    return drawn


def _chances(indices):
    """Returns the error of guessing by split; `None` if guessing never errs on some split."""
    if not (indices["chance"] > 0).all():
        return None
    if "split" not in indices:
        return float(indices["chance"].iloc[0])
    return indices.groupby("split")["chance"].first().to_dict()
