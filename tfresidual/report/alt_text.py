"""Alternative text for figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure


def alt_text(section):
    """Returns what the figure of a section shows: its title and its axes."""
    drawn = axes_text(section.figure)
    return f"Figure: {section.title}." + (f" Drawn: {drawn}." if drawn else "")


def axes_text(figure: Figure) -> str:
    """Returns what the axes of a figure are, such as `"error over block; error over epoch"`.

    Args:
        figure: a `matplotlib.figure.Figure`.
    """
    names = []
    for axes in figure.axes:
        across, up = axes.get_xlabel(), axes.get_ylabel()
        if across and up:
            names.append(f"{up} over {across}")
        elif up:
            names.append(up)
    names.append(" over ".join(filter(None, (figure.get_supylabel(), figure.get_supxlabel()))))
    return "; ".join(dict.fromkeys(" ".join(name.split()) for name in names if name))
