"""What tells lines, dots and bars apart for readers who do not see their colours; wrong lists.

Not covered: how well it does so; that was judged by eye, on figures without colours.
"""

import numpy as np
import pandas as pd
import pytest
from plots import make_frames, make_runs
from plots.read_figures import metric_lines

from tfresidual import plots


def test_lines_over_epochs_grow_thicker_from_block_to_block():
    frame = make_frames.block_frame(5, epochs=4)
    for axes in plots.cosine_loss(frame).axes[:3]:
        widths = {
            int(line.get_label().removeprefix("block ")): line.get_linewidth()
            for line in axes.get_lines()
            if line.get_label().startswith("block ")
        }
        assert len(widths) >= 4
        ordered = [widths[block] for block in sorted(widths)]
        assert (np.diff(ordered) > 0).all()


def test_levels_of_splits_end_in_their_markers():
    frame = make_frames.drop_frame(splits=("train", "test"))
    (axes,) = plots.drop_blocks(frame).axes
    levels = [line for line in axes.get_lines() if line.get_gid() == "reference"]
    drawn = metric_lines(axes)
    assert [line.get_marker() for line in levels] == [line.get_marker() for line in drawn]
    assert len({line.get_marker() for line in levels}) == 2


def test_bars_of_splits_differ_in_hatching():
    frame = make_frames.distance_frame(splits=("train", "test"))
    for axes in plots.computational_distance(frame).axes:
        assert [bars[0].get_hatch() for bars in axes.containers] == ["", "////"]


def test_validation_is_dashed_however_long_the_training():
    axes = plots.training_curves(make_frames.history_frame(200)).axes[0]
    lines = {line.get_label(): line.get_linestyle() for line in axes.get_lines()}
    assert (lines["training"], lines["validation"]) == ("-", "--")


def test_layers_differ_in_their_markers():
    frame = pd.DataFrame(
        [
            {"stage": 1, "block": block, "role": f"{layer}/{name}", "parameters": 2, "deviation": 1}
            for block in range(3)
            for layer in ("convolution1", "convolution2")
            for name in ("kernel", "bias")
        ]
    )
    (axes,) = plots.weight_deviations(frame).axes
    markers = {
        line.get_label(): line.get_marker() for line in axes.get_lines() if line.get_gid() != "all"
    }
    for name in ("kernel", "bias"):
        assert markers[f"convolution1/{name}"] != markers[f"convolution2/{name}"]


WRONG_LISTS = {
    "training_curves": (make_frames.history_frame, "metrics", ["accuracy", 3]),
    "iterative_inference": (
        make_runs.inference_frame,
        "stages",
        [3, "1"],
    ),
    "error_of_runs": (make_runs.run_frame, "errors", ["error", None]),
    "error_against_indices": (make_runs.run_frame, "indices", ["convergence", 1]),
    "indices_of_runs": (make_runs.run_frame, "hue", [3, ["width"]]),
    "borderline": (make_frames.borderline_frame, "along", [["blocks"], None]),
}


@pytest.mark.parametrize("name", WRONG_LISTS)
def test_wrong_types_are_refused(name):
    make, argument, values = WRONG_LISTS[name]
    for value in values:
        with pytest.raises(ValueError, match=rf"`{argument}` must .*Received: "):
            getattr(plots, name)(make(), **{argument: value})
