"""What the network predicts at every position of a sequence, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.definitions.arguments import check_choice
from tfresidual.plots import style

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tfresidual.definitions.types import Figure, Frame

# The columns that the colour may show, with their titles.
COLOURS = {
    "entropy": "entropy of the prediction, nats",
    "cross_entropy": "cross-entropy, nats",
    "probability": "probability of the label",
    "kl": "KL to the final prediction, nats",
    "rank": "rank of the label",
}
# Letters of a word that fit into a cell.
LONGEST = 9


def lens_map(
    frame: Frame,
    *,
    image: int = 0,
    column: str = "entropy",
    words: Callable[[int], str] | Sequence[str] | None = None,
    inputs: Iterable[object] | None = None,
) -> Figure:
    """Draws what the head predicts after every block, at every position of one sequence.

    A row is a state, from the first one at the bottom to the last one at the top, and a column a
    position. The word is the prediction there, the colour how sure it is, or another column.

    Args:
        frame: the frame of `tfresidual.probes.lens(..., per_position=True)` of one split.
        image: which sequence, as in the column `image`.
        column: what the colour shows: `"entropy"`, `"cross_entropy"`, `"probability"` (of the
            label), `"kl"` or `"rank"`.
        words: the text of a class: a function of its index (`tokenizer.id_to_token`), or a list of
            texts (`tokenizer.get_vocabulary()`); by default, the index.
        inputs: what is written below the columns, one entry per position of the sequence, such as
            the tokens that the network reads; by default, the positions.

    Raises:
        ValueError: if `column` is something else.
    """
    check_choice("column", column, tuple(COLOURS))
    places = ["stage", "block", "image", "position"]
    rows = frame[frame["image"] == image]
    table = rows.set_index(places)[[column, "predicted"]].unstack("position")
    colours = table[column].to_numpy(float)
    predicted = table["predicted"].to_numpy(float)
    positions = [int(one) for one in table[column].columns]
    below = positions if inputs is None else [_short(str([*inputs][one])) for one in positions]
    count, across = colours.shape
    figure = style.new_figure(
        max(4.2, 1.4 + 0.72 * across), 1.3 + 0.36 * count, "Prediction after every block"
    )
    axes = figure.subplots()
    # The surest predictions are dark.
    is_low_sure = column != "probability"
    shown = axes.imshow(
        np.ma.masked_invalid(colours),
        cmap="Blues_r" if is_low_sure else "Blues",
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    low, high = shown.get_clim()
    for row, position in np.argwhere(np.isfinite(predicted)):
        place = (colours[row, position] - low) / (high - low or 1)
        is_dark = (place < 0.45) if is_low_sure else (place > 0.55)
        look = {"color": "white" if is_dark else style.INK, "fontsize": style.SMALL_SIZE}
        word = _word(words, int(predicted[row, position]))
        axes.text(position, row, word, ha="center", va="center", **look, **style.PLAIN)
    states = list(table.index.droplevel("image"))
    names = ["first state" if block < 0 else f"block {block}" for _, block in states]
    if len({stage for stage, _ in states}) > 1:
        names = [f"stage {stage}, {name}" for (stage, _), name in zip(states, names, strict=True)]
    axes.set_yticks(range(count), names)
    axes.set_xticks(range(across), below)
    axes.tick_params(labelsize=style.SMALL_SIZE, length=0, labelcolor=style.INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    style.axis_labels(axes, below="position" if inputs is None else "input", beside="after")
    bar = figure.colorbar(shown, ax=axes, pad=0.01, aspect=30)
    bar.set_label(COLOURS[column], fontsize=style.SMALL_SIZE, color=style.INK)
    bar.ax.tick_params(labelsize=style.SMALL_SIZE, length=0)
    bar.outline.set_visible(False)
    return figure


def _word(words, index):
    """Returns the text of a class."""
    if words is None:
        return str(index)
    return _short(str(words(index) if callable(words) else words[index]))


def _short(text):
    """Returns a text as it fits into a cell; ends of lines are seen."""
    text = text.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
