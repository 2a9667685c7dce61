"""The figure of what the blocks do over the epochs of a training.

Not covered: how it looks; that was judged by eye, with 18 blocks and with two stages and splits.
"""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from plots.make_runs import inference_frame
from plots.read_figures import draws, lines_with, metric_lines, panels, points

from tfresidual import plots


def test_three_panels_of_the_last_stage():
    frame = inference_frame(5)
    figure = plots.iterative_inference(frame.sample(frac=1.0, random_state=1))
    cosine, ratio, accuracy = panels(figure)
    assert [axes.get_title() for axes in panels(figure)] == ["stage 3"] * 3
    assert [axes.get_ylabel() for axes in panels(figure)] == [
        "cosine loss",
        "l2 ratio ‖F(h)‖ / ‖h‖",
        "intermediate accuracy",
    ]
    assert [axes.get_xlabel() for axes in panels(figure)] == ["epoch"] * 3
    frame = frame.assign(accuracy=1 - frame["readout_error"])
    for axes, metric in ((cosine, "cosine_loss"), (ratio, "l2_ratio"), (accuracy, "accuracy")):
        line = metric_lines(axes)[-1]
        rows = frame.query("stage == 3 and block == 4")
        assert line.get_label() == "block 4"
        assert points(line) == dict(zip(rows["epoch"] + 1, rows[metric], strict=True))
    assert [len(metric_lines(axes)) for axes in panels(figure)] == [4, 4, 5]
    assert accuracy.yaxis.get_major_formatter()(0.25, None) == "25%"
    assert len(lines_with(cosine, "zero")) == 1
    assert lines_with(ratio, "zero") == []


def test_colours_run_from_blue_to_red_and_are_a_blocks_own():
    figure = plots.iterative_inference(inference_frame(18, 1))
    colours = [[line.get_color() for line in metric_lines(axes)] for axes in panels(figure)]
    assert colours[0] == colours[1] == colours[2]
    warmth = np.diff(np.array([to_rgb(colour) for colour in colours[0]])[:, [2, 0]])[:, 0]
    assert (np.diff(warmth) > 0).all()
    assert [axes.get_label() for axes in figure.axes].count("<colorbar>") == 1


def test_rows_of_stages_and_splits():
    frame = inference_frame(3, splits=("validation", "train"))
    figure = plots.iterative_inference(frame, stages=[1, 3])
    titles = [axes.get_title() for axes in panels(figure)[::3]]
    assert titles == [f"stage {s}, {split}" for split in ("train", "validation") for s in (1, 3)]
    rows = frame.query("split == 'validation' and stage == 1 and block == 0")
    line = metric_lines(panels(figure)[7])[0]
    assert points(line) == dict(zip(rows["epoch"] + 1, rows["l2_ratio"], strict=True))
    draws(figure)


def test_wide_ratios_are_logarithmic():
    frame = inference_frame(3, 1)
    frame.loc[frame["block"] == 0, "l2_ratio"] *= 1e3
    axes = panels(plots.iterative_inference(frame))[1]
    assert axes.get_yscale() == "log"
    assert "log scale" in axes.get_ylabel()


def test_the_error_of_a_readout_frame():
    frame = inference_frame(3).rename(columns={"readout_error": "error"})
    line = metric_lines(panels(plots.iterative_inference(frame))[2])[0]
    rows = frame.query("stage == 3 and block == 0")
    assert list(points(line).values()) == list(1 - rows["error"])


def test_gaps():
    frame = inference_frame(3, 1, epochs=4).assign(readout_error=np.nan)
    frame.loc[(frame["block"] == 1) & (frame["epoch"] == 0), "l2_ratio"] = np.inf
    _, ratio, accuracy = panels(plots.iterative_inference(frame))
    assert list(points(metric_lines(ratio)[1])) == [2, 3, 4]
    assert [text.get_text() for text in accuracy.texts] == ["no values"]
    draws(ratio.figure)


def test_one_block_and_one_epoch():
    figure = plots.iterative_inference(inference_frame(1, 1, epochs=1))
    assert len(figure.axes) == 3
    draws(figure)


def test_refused():
    function, frame = plots.iterative_inference, inference_frame(3, epochs=2)
    with pytest.raises(ValueError, match=r"missing: `readout_error`\. Received: columns="):
        function(frame.drop(columns="readout_error"))
    with pytest.raises(ValueError, match=r"missing: `epoch`\. Received: columns="):
        function(frame.drop(columns="epoch"))
    with pytest.raises(ValueError, match=r"DataFrame.*Received: .*list"):
        function([1, 2])
    with pytest.raises(ValueError, match=r"`stages`.*\[1, 2, 3\]\. Received: \[4\]"):
        function(frame, stages=[4])
    with pytest.raises(ValueError, match=r"`stages`.*Received: \[\]"):
        function(frame, stages=[])
    with pytest.raises(ValueError, match=r"one row per stage and block.*Received: several"):
        function(pd.concat([frame, frame]))
    nothing = dict.fromkeys(["cosine_loss", "l2_ratio", "readout_error"], np.nan)
    with pytest.raises(ValueError, match=r"finite number.*Received: 18 rows"):
        function(frame.assign(**nothing))
    gone = frame.assign(**{name: frame[name].where(frame["stage"] < 3) for name in nothing})
    with pytest.raises(ValueError, match=r"finite number.*Received: 6 rows"):
        function(gone)
