"""The figure of images and answers."""

import numpy as np
from matplotlib.font_manager import findfont, get_font

from tfresidual import plots
from tfresidual.plots import style

PICTURES = np.random.default_rng(0).normal(size=(10, 6, 5, 3))


def test_each_image_with_its_caption():
    captions = [str(number) for number in range(10)]
    figure = plots.images(PICTURES, captions, right=[True] * 9 + [False])
    shown = [axes for axes in figure.axes if axes.images]
    marks = [style.RIGHT] * 9 + [style.WRONG]
    titles = [f"{mark} {caption}" for mark, caption in zip(marks, captions, strict=True)]
    assert [axes.get_title() for axes in shown] == titles
    # A frame, which the right ones lack.
    assert [axes.axison for axes in shown] == [False] * 9 + [True]
    colours = [axes.title.get_color() for axes in shown]
    assert colours == [style.BLUE] * 9 + [style.VERMILION]
    drawn = np.stack([axes.images[0].get_array() for axes in shown])
    expected = (PICTURES - PICTURES.min()) / (PICTURES.max() - PICTURES.min())
    np.testing.assert_allclose(drawn, expected, atol=1e-6)

    # What the font lacks is drawn as an empty box.
    font = get_font(findfont("DejaVu Sans"))
    assert all(font.get_char_index(ord(mark)) for mark in (style.RIGHT, style.WRONG))
