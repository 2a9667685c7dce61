"""What the network sees, and what it answers."""

import numpy as np

from tfresidual.plots import style

COLUMNS = 8


def images(pictures, captions, right=None):
    """Draw images in rows, with a caption under each.

    Args:
        pictures: Array `(images, height, width, channels)` with 1 or 3 channels and any range;
            black and white are the lowest and highest value of all of them.
        captions: One text per image.
        right: One bool per image, whether its caption is drawn as right or as wrong; `None` draws
            all alike.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: where the shapes do not fit, or there is no image.
    """
    pictures = np.asarray(pictures, dtype=float)
    if pictures.ndim != 4 or pictures.shape[-1] not in (1, 3) or len(pictures) == 0:
        raise ValueError(
            "`pictures` must have the shape (images, height, width, channels), with 1 or 3 "
            f"channels and at least one image. Received: an array of shape {pictures.shape}"
        )
    right = [None] * len(pictures) if right is None else list(right)
    for name, values in (("captions", captions), ("right", right)):
        if len(values) != len(pictures):
            raise ValueError(
                f"`{name}` must have one entry per image. "
                f"Received: {len(values)} for {len(pictures)} images"
            )
    low, high = pictures.min(), pictures.max()
    pictures = (pictures - low) / (high - low if high > low else 1)
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = style.new_figure(1.2 * columns, 1.45 * rows + 0.4, "Images and answers")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    colours = {None: style.INK, True: style.BLUE, False: style.VERMILION}
    for axes, picture, caption, is_right in zip(grid.flat, pictures, captions, right, strict=False):
        axes.imshow(picture.squeeze(-1) if picture.shape[-1] == 1 else picture, cmap="gray",
                    vmin=0, vmax=1)  # fmt: skip
        key = None if is_right is None else bool(is_right)
        axes.set_title(caption, fontsize=style.SMALL_SIZE, color=colours[key], y=-0.28)
    return figure
