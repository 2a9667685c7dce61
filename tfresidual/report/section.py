"""One section of a report."""

from dataclasses import KW_ONLY, dataclass

import pandas as pd
from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Section:
    """One measurement: the question, the figure and table that answer it, and how to read them.

    Example:

    >>> frame = probes.block_metrics(chain, test)
    >>> section = Section(
    ...     "Cosine loss",
    ...     "Does each block move the state where the loss falls?",
    ...     figure=plots.cosine_loss(frame),
    ...     frame=frame,
    ...     reading="Below zero it points to where the loss falls, in the mean over the images.",
    ...     source="Jastrzebski et al. 2018, figure 4",
    ... )

    `reading` and `finding` are separate: the reading is true whatever the numbers are, the finding
    follows from the numbers.

    Args:
        title: Heading of the section.
        question: One sentence that says what was asked and measured.
        figure: A `matplotlib.figure.Figure`, or `None`.
        frame: A `pandas.DataFrame` shown as a table, or `None`.
        reading: One line on how to read the figure or table.
        source: The paper and figure the measurement comes from, or `None`.
        finding: A sentence on what was found, computed from the numbers shown, or `None`.
        images: What the numbers were measured on, such as "2,000 test images", shown after the
            reading; or `None`.
        caution: What a reader must know before trusting the numbers, or `None`.
        group: Heading of the sections that it belongs to, which the page folds; neighbours with one
            heading share it. `None` for a section of its own.
    """

    title: str
    question: str
    _: KW_ONLY
    figure: Figure | None = None
    frame: pd.DataFrame | None = None
    reading: str
    source: str | None = None
    finding: str | None = None
    images: str | None = None
    caution: str | None = None
    group: str | None = None
