"""Shows images and the answers of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.plots import style

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import ArrayLike, Figure

COLUMNS = 8


def images(
    pictures: ArrayLike, captions: Iterable[str], *, right: Iterable[bool] | None = None
) -> Figure:
    """Draws images in rows, with a caption under each.

    A right caption is blue and has a check mark. A wrong one is orange and has a cross, and its
    image has a dashed frame.

    Args:
        pictures: Array `(images, height, width, channels)` with 1 or 3 channels and any range;
            black is the lowest and white the highest value of all images together.
        captions: One text per image.
        right: One bool per image, whether its caption is drawn as right or as wrong; with `None`
            all captions look the same and have no mark.
    """
    pictures = np.asarray(pictures, dtype=float)
    marks = [None] * len(pictures) if right is None else right
    low, high = pictures.min(), pictures.max()
    shown = (pictures - low) / (high - low if high > low else 1)
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure = style.new_figure(1.2 * columns, 1.45 * rows + 0.4, "Images and answers")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    answers = zip(shown, captions, marks, strict=True)
    for axes, (picture, caption, is_right) in zip(grid.flat, answers, strict=False):
        is_grey = picture.shape[-1] == 1
        axes.imshow(picture[..., 0] if is_grey else picture, cmap="gray", vmin=0, vmax=1)
        caption, colour = str(caption), style.INK
        if is_right is not None:
            caption = f"{style.RIGHT if is_right else style.WRONG} {caption}"
            colour = style.BLUE if is_right else style.VERMILION
        if is_right is not None and not is_right:
            axes.axis("on")
            axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
            for spine in axes.spines.values():
                spine.set(color=style.VERMILION, linewidth=1.4, linestyle=(0, (3, 2)))
        axes.set_title(caption, fontsize=style.SMALL_SIZE, color=colour, y=-0.28, **style.PLAIN)
    return figure
