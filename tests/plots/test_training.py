"""Figures over the epochs of a training.

Not covered: how they look; that was judged by eye.
"""

import numpy as np
from plots import make_frames as make
from plots.read_figures import by_label, lines_with, metric_lines, panels

from tfresidual import plots


class TestTrainingCurves:
    def test_losses_and_metrics_over_epochs_from_one(self):
        frame = make.history_frame(40)
        # The first epochs after which there was validation.
        frame.loc[frame["epoch"] % 5 != 4, "val_loss"] = np.nan
        figure = plots.training_curves(frame)
        for axes, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
            assert by_label(axes) == {
                f"{split}, {name}": dict(zip(rows["epoch"] + 1, rows[column], strict=True))
                for split, column in (("training", name), ("validation", f"val_{name}"))
                for rows in [frame.dropna(subset=column)]
            }
            assert axes.get_ylabel() == name
            assert axes.get_xlabel() == "epoch"
            styles = [line.get_linestyle() for line in metric_lines(axes)]
            assert styles == ["-", "--"]

    def test_the_best_epoch_is_that_of_the_validation_metric(self):
        frame = make.history_frame(40, metric="exact_match")
        frame.loc[11, "val_exact_match"] = 0.99
        figure = plots.training_curves(frame)
        for axes, height in zip(figure.axes, (frame.loc[11, "val_loss"], 0.99), strict=True):
            level, ring = lines_with(axes, "best")
            assert level.get_xdata()[0] == 12
            assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (12, height)


class TestIterativeInference:
    def test_three_panels_of_every_stage_and_split(self):
        frame = make.inference_frame(5, splits=("validation", "train"))
        figure = plots.iterative_inference(frame.sample(frac=1.0, random_state=1), stages=[1, 3])
        grid = np.reshape(panels(figure), (4, 3))
        cells = [(split, stage) for split in ("train", "validation") for stage in (1, 3)]
        for row, (split, stage) in zip(grid, cells, strict=True):
            here = frame[(frame["split"] == split) & (frame["stage"] == stage)]
            metrics = ("cosine_loss", "l2_ratio", "readout_error")
            for axes, metric in zip(row, metrics, strict=True):
                assert axes.get_title() == f"stage {stage}, {split}"
                assert by_label(axes) == {
                    f"block {block}, {metric}": dict(
                        zip(rows["epoch"] + 1, rows[metric], strict=True)
                    )
                    for block, rows in here.dropna(subset=metric).groupby("block")
                }
        assert [axes.get_xlabel() for axes in grid[-1]] == ["epoch"] * 3
        assert [axes.get_ylabel() for axes in grid[0]] == [
            "cosine loss",
            "l2 ratio ‖F(h)‖ / ‖h‖",
            "error when left after the block",
        ]
