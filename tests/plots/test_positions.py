"""The table of predictions by position and block."""

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from tfresidual import plots

STATES, POSITIONS = [(1, -1), (1, 0), (1, 1)], [2, 3, 5]
ROWS = [
    {
        "stage": stage,
        "block": block,
        "image": image,
        "position": position,
        "predicted": 10 * (block + 1) + position + image,
        "entropy": float(place + image),
        "probability": 0.1 * (place + 1),
    }
    for place, ((stage, block), position) in enumerate(
        (state, position) for state in STATES for position in POSITIONS
    )
    for image in (0, 1)
]
FRAME = pd.DataFrame(ROWS)


def drawn(**kwargs):
    figure = plots.lens_map(FRAME, **kwargs)
    axes = figure.axes[0]
    words = {text.get_position(): text.get_text() for text in axes.texts}
    ticks = [[one.get_text() for one in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis)]
    return axes, words, ticks


def test_words_colours_and_places():
    axes, words, (below, beside) = drawn(image=1)
    assert below == ["2", "3", "5"] and beside == ["first state", "block 0", "block 1"]
    assert words[0, 0] == "3" and words[2, 1] == "16" and len(words) == 9
    np.testing.assert_allclose(axes.images[0].get_array(), 1 + np.arange(9).reshape(3, 3))
    # White on what is dark: the surest.
    assert to_hex(axes.texts[0].get_color()) == "#ffffff" != to_hex(axes.texts[-1].get_color())
    axes, _, _ = drawn(column="probability")
    assert to_hex(axes.texts[-1].get_color()) == "#ffffff" != to_hex(axes.texts[0].get_color())


def test_texts_of_classes_and_inputs():
    _, words, (below, _) = drawn(words=lambda index: f"<{index}>", inputs=list("abcdef"))
    assert words[0, 0] == "<2>" and below == ["c", "d", "f"]
    _, words, _ = drawn(words=[f"word number {index}" for index in range(40)])
    assert words[0, 0].startswith("word num") and len(words[0, 0]) == 9
