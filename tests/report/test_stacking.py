"""Figures for narrow screens.

Not covered: how they look; that was judged by eye, at 390 pixels.
"""

import itertools

import pytest
from matplotlib.figure import Figure
from plots.read_figures import draws, legend_texts, panels
from plots.test_figures import FIGURES

from tfresidual import plots
from tfresidual.report.stacking import WIDTH, stacked

# Panels side by side, in rows, in both; with a scale of colours; alone.
SOME = ("training_curves", "lens", "repetition_metrics", "iterative_inference", "cosine_loss")


def drawn(name, **settings):
    figure = getattr(plots, name)(*FIGURES[name][0](**settings).values())
    figure.draw_without_rendering()
    figure.set_layout_engine(None)
    return figure


@pytest.mark.parametrize("name", SOME)
def test_panels_in_a_column(name):
    figure = drawn(name)
    before = draws(figure)
    narrow = stacked(figure)
    assert draws(figure) == before
    width, height = narrow.get_size_inches()
    assert width == WIDTH
    assert height > width or len(panels(figure)) == 1
    assert narrow.get_suptitle() == figure.get_suptitle()
    assert legend_texts(narrow) == legend_texts(figure)
    assert len(narrow.axes) == len(figure.axes)
    titles = [[one.get_title() for one in panels(each)] for each in (narrow, figure)]
    assert titles[0] == titles[1]
    # Every panel says what is up; nothing touches, and nothing is cut off.
    assert all(one.get_ylabel() for one in panels(narrow))
    narrow.draw_without_rendering()
    boxes = [one.get_tightbbox() for one in narrow.axes]
    boxes += [one.get_window_extent() for one in narrow.legends]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    whole = narrow.bbox.padded(1)
    assert all(whole.contains(*corner) for box in boxes for corner in (box.min, box.max))


def test_titles_of_columns_stay_with_their_panels():
    narrow = stacked(drawn("repetition_metrics"))
    order = sorted(panels(narrow), key=lambda axes: -axes.get_position().y0)
    assert [axes.get_title() for axes in order] == ["stage 1", "", "stage 2", "", "stage 3", ""]


def test_small_panels_stay_side_by_side():
    figure = plots.images([[[[0.0]]]] * 16, map(str, range(16)))
    figure.draw_without_rendering()
    narrow = stacked(figure)
    assert len({round(axes.get_position().x0, 3) for axes in narrow.axes}) == 3


def test_what_is_no_grid_or_narrow_already():
    placed = Figure((9, 3))
    placed.add_axes((0.1, 0.1, 0.3, 0.8))
    small = Figure((WIDTH, 3))
    small.subplots(1, 2)
    assert stacked(placed) is stacked(small) is None
