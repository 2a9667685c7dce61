"""The sections of the report on a search for depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual import plots
from tfresidual.report.section import Section

if TYPE_CHECKING:
    from tfresidual.definitions.types import Frame

# The most important columns; the CSV file contains all of them.
COLUMNS = (
    "trial",
    "status",
    "stage",
    "blocks",
    "measured_blocks",
    "scaled_distance",
    "mean_scaled_perturbation",
    "mean_scaled_perturbation_as_built",
    "moved",
    "depth_asked_for",
    "meets_rule",
    "error",
    "chance_error",
    "seconds",
)


def search_sections(trace: Frame, epsilon: float, images: str | None = None) -> list[Section]:
    """Returns the sections of a report on the trace of a search.

    Args:
        trace: frame of `tfresidual.tuning.DepthSearch.trace`.
        epsilon: float over 0, the largest mean scaled perturbation that meets the stopping rule.
        images: what the networks were measured on, such as "2,000 validation images", or `None`.

    Returns:
        A list of `Section`.
    """
    return [
        Section(
            "The search",
            "How far does each stage carry the state at the depths that were tried, and in which "
            "order were depths tried?",
            figure=plots.depth_search(trace, epsilon=epsilon),
            reading="Filled: the stage meets the rule, its mean scaled perturbation is epsilon or "
            "less. Where the distance no longer grows with depth, the mean falls as one over "
            "the number of blocks. Dotted: the mean of the same networks before training, which "
            "falls with depth, too.",
            source="Hauser 2019, figures 6 and 7, section 2.3",
            images=images,
        ),
        Section(
            "Trials",
            "What was trained, and what was measured on images that were held out?",
            frame=trace[[column for column in COLUMNS if column in trace]],
            reading="Trials count from 0. The depth asked for is the number of blocks to measure "
            "at which the rule would be met if the distance stayed the same. Blocks that change "
            "the shape of the state are not measured. As built: the same network untrained, with "
            "the statistics of these images; training has moved a mean if it has changed by more "
            "than two standard errors. Chance: the error of always giving the most common label.",
            source="Hauser 2019, equation 11",
            images=images,
        ),
    ]
