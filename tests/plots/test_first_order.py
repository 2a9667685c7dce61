"""The figure of the change of the loss by each block and what the gradient predicts.

Not covered: how it looks; that was judged by eye.
"""

import numpy as np
import pandas as pd
import pytest
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots

COLUMNS = ("loss_change", "first_order", "first_order_after")
CORRELATIONS = ("rank_correlation", "rank_correlation_after")


def first_order_frame(stages=3, blocks=4, splits=(None,), first=1.0):
    """Every block lowers the loss; the first one by `first` times as much."""
    rows = []
    for place, split in enumerate(splits):
        for stage in range(1, stages + 1):
            for block in range(blocks):
                change = -0.1 / stage * (first if (stage, block) == (1, 0) else 1)
                row = {"split": split, "stage": stage, "block": block, "loss_change": change}
                row |= {"first_order": (1.2 + place / 10) * change}
                row |= {"first_order_after": 0.9 * change}
                row |= {"rank_correlation": 0.5 + block / 10, "rank_correlation_after": 0.9}
                rows.append(row)
    frame = pd.DataFrame(rows)
    return frame if splits != (None,) else frame.drop(columns="split")


def test_lines():
    frame = first_order_frame(splits=("train", "test"))
    figure = plots.first_order(frame.sample(frac=1.0, random_state=1))
    for axes, columns in zip(figure.axes, (COLUMNS, CORRELATIONS), strict=True):
        lines = {line.get_label(): line for line in metric_lines(axes)}
        assert set(lines) == {f"{split}, {name}" for name in columns for split in ("train", "test")}
        for split in ("train", "test"):
            rows = frame[frame["split"] == split]
            places = (rows["stage"] - 1) * 4 + rows["block"]
            for name in columns:
                drawn = points(lines[f"{split}, {name}"])
                assert drawn == dict(zip(places, rows[name], strict=True))
        assert len(lines_with(axes, "zero")) == 1
        assert len(lines_with(axes, "boundary")) == 2
    names = ["with and without the block", "predicted at its input", "predicted at its output"]
    assert legend_texts(figure) == [*names, "train", "test"]
    assert legend_texts(plots.first_order(first_order_frame())) == names


def test_one_block_that_dwarfs_all_others():
    plain, wide = (plots.first_order(first_order_frame(first=first)) for first in (1, 1000))
    assert [figure.axes[0].get_yscale() for figure in (plain, wide)] == ["linear", "symlog"]
    labels = [figure.axes[0].get_ylabel() for figure in (plain, wide)]
    assert labels == ["mean change of the loss", "mean change of the loss (log scale)"]
    assert draws(wide).startswith(b"\x89PNG")


def test_gaps_and_a_single_image():
    frame = first_order_frame()
    frame.loc[4, list(COLUMNS)] = np.nan
    frame[list(CORRELATIONS)] = np.nan
    above, below = plots.first_order(frame).axes
    assert 4 not in points(metric_lines(above)[0])
    assert "no values" in [text.get_text() for text in below.texts]


def test_frames_that_cannot_be_drawn():
    frame = first_order_frame()
    with pytest.raises(ValueError, match=r"missing: `rank_correlation`.*Received: "):
        plots.first_order(frame.drop(columns="rank_correlation"))
    with pytest.raises(ValueError, match=r"one row per stage and block.*Received: "):
        plots.first_order(pd.concat([frame, frame]))
