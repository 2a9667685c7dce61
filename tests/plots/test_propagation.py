"""The figure of how state and gradient travel through the network.

Not covered: how it looks; that was judged by eye, with 3x18 blocks and with 20 epochs.
"""

import numpy as np
import pandas as pd
import pytest
from plots.make_runs import propagation_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, panels, points

from tfresidual import plots

METRICS = ("state_norm", "state_gradient_norm", "shortcut_share")


@pytest.mark.parametrize("blocks", [3, 18])
def test_a_panel_per_metric_and_a_line_per_split(blocks):
    frame = propagation_frame(blocks, splits=("test", "train"))
    figure = plots.signal_propagation(frame.sample(frac=1.0, random_state=1))
    for axes, metric in zip(figure.axes, METRICS, strict=True):
        lines = metric_lines(axes)
        assert [line.get_label() for line in lines] == ["train", "test"]
        for line in lines:
            rows = frame[frame["split"] == line.get_label()]
            places = (rows["stage"] - 1) * blocks + rows["block"]
            assert points(line) == dict(zip(places, rows[metric], strict=True))
    assert legend_texts(figure) == ["train", "test"]


def test_scales_and_words():
    figure = plots.signal_propagation(propagation_frame())
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
    labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
    assert labels == [
        "norm of the state after the block (log scale)",
        "norm of the loss gradient there (log scale)",
        "share of the gradient through shortcuts",
    ]
    assert figure.axes[-1].get_xlabel() == "residual block index"
    assert figure.legends == []


def test_stages_are_marked_in_every_panel():
    for axes in plots.signal_propagation(propagation_frame(5)).axes:
        assert [line.get_xdata()[0] for line in lines_with(axes, "boundary")] == [4.5, 9.5]
        assert [text.get_text() for text in axes.texts] == ["stage 1", "stage 2", "stage 3"]
    (axes, *_) = plots.signal_propagation(propagation_frame(5, 1)).axes
    assert lines_with(axes, "boundary") == []


def test_a_line_per_epoch():
    frame = propagation_frame(splits=("train", "test"), epochs=4)
    figure = plots.signal_propagation(frame)
    assert len(figure.axes) == 4
    lines = metric_lines(panels(figure)[1])
    assert [line.get_label() for line in lines[:4]] == [f"train, epoch {n}" for n in (1, 2, 3, 4)]
    rows = frame.query("split == 'test' and epoch == 3")["state_gradient_norm"]
    assert list(points(lines[-1]).values()) == list(rows)
    assert [line.get_linestyle() for line in lines] == ["-"] * 4 + ["--"] * 4
    assert len({line.get_color() for line in lines}) == 4
    assert legend_texts(figure) == ["train", "test"]
    draws(figure)


def test_shares_below_zero_have_a_zero_line():
    frame = propagation_frame()
    assert lines_with(plots.signal_propagation(frame).axes[2], "zero") == []
    frame.loc[2, "shortcut_share"] = -0.2
    assert len(lines_with(plots.signal_propagation(frame).axes[2], "zero")) == 1


def test_gaps():
    frame = propagation_frame().assign(shortcut_share=np.nan)
    frame.loc[1, "state_norm"] = np.inf
    frame.loc[2, "state_gradient_norm"] = 0.0
    state, gradient, share = plots.signal_propagation(frame.drop(index=4)).axes
    assert list(points(metric_lines(state)[0])) == [0, 2, 3, 5, 6, 7, 8]
    assert list(points(metric_lines(gradient)[0])) == [0, 1, 3, 5, 6, 7, 8]
    assert "no values" in [text.get_text() for text in share.texts]
    draws(state.figure)


def test_the_frame_is_left_alone():
    frame = propagation_frame()
    before = frame.copy()
    plots.signal_propagation(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_refused():
    function, frame = plots.signal_propagation, propagation_frame()
    with pytest.raises(ValueError, match=r"missing: `shortcut_share`\. Received: columns="):
        function(frame.drop(columns="shortcut_share"))
    with pytest.raises(ValueError, match=r"DataFrame.*Received: .*dict"):
        function({})
    with pytest.raises(ValueError, match=r"finite number.*Received: 9 rows"):
        function(frame.assign(**dict.fromkeys(METRICS, np.nan)))
    with pytest.raises(ValueError, match=r"one row per stage and block.*Received: several"):
        function(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match=r"must hold numbers.*`state_norm`.*Received: \['high'\]"):
        function(frame.assign(state_norm="high"))
