"""The sections of the report on one network."""

from tfresidual.definitions.declarations import GROUPS
from tfresidual.plots.declared import FIGURES, frames_of
from tfresidual.report import findings
from tfresidual.report.section import Section

# Display names of splits.
_NAMES = {"train": "training"}


def study_sections(frames, figures, images=None):
    """Returns the figures and tables of a study as a list of `Section`, group by group.

    A figure that another one shows with more beside it is left out.

    Args:
        frames: see `study_figures`.
        figures: the figures returned by `study_figures`.
        images: the numbers of images that frames were measured on, dicts by split, by frame.
    """
    return [
        Section(
            figure.title,
            figure.question,
            figure=figures[figure.name],
            frame=frames[frames_of(figure)[0]] if figure.has_table else None,
            reading=figure.reading,
            source=figure.source,
            finding=figure.finding and getattr(findings, f"of_{figure.finding}")(frames),
            images=_images_of(figure, images or {}),
            group=figure.group,
        )
        for figure in sorted(FIGURES, key=lambda figure: GROUPS.index(figure.group))
        if figure.name in figures and figure.shown_by not in figures
    ]


def images_text(counts):
    """Returns numbers of images by split as text, such as "2,000 test images"."""
    return " and ".join(
        f"{count:,} {_NAMES.get(split, split)} images" for split, count in counts.items()
    )


def _images_of(figure, images):
    """Returns what the frames of a figure were measured on as text; `None` if on no images."""
    texts = [images_text(images[name]) for name in frames_of(figure) if name in images]
    return "; ".join(dict.fromkeys(texts)) or None
