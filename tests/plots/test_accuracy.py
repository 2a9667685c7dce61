"""Figures of the accuracy after, and without, every block."""

import numpy as np
import pandas as pd
import pytest
from plots.make_frames import drop_frame, readout_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, panels, points

from tfresidual import plots

FIGURES = {"readout": readout_frame, "drop_blocks": drop_frame}


@pytest.mark.parametrize("name", FIGURES)
class TestBoth:
    @pytest.mark.parametrize("blocks", [1, 5, 18])
    def test_the_accuracy_of_every_block(self, name, blocks):
        frame = FIGURES[name](blocks, splits=("test", "train"))
        lines = metric_lines(getattr(plots, name)(frame.sample(frac=1.0, random_state=1)).axes[0])
        assert [line.get_label() for line in lines] == ["train", "test"]
        for line in lines:
            rows = frame[(frame["split"] == line.get_label()) & frame["error"].notna()]
            places = (rows["stage"] - 1) * blocks + rows["block"]
            assert points(line) == dict(zip(places, 1 - rows["error"], strict=True))

    def test_words_and_percent(self, name):
        axes = getattr(plots, name)(FIGURES[name](5)).axes[0]
        assert axes.get_ylabel().startswith("accuracy")
        assert axes.get_xlabel() == "residual block index"
        assert axes.yaxis.get_major_formatter()(0.925, None) == "92.5%"
        assert axes.yaxis.get_major_formatter()(0.15, None) == "15%"

    def test_low_accuracies_stay_on_a_linear_axis(self, name):
        frame = FIGURES[name](18)
        frame.loc[5, "error"] = 0.999
        axes = getattr(plots, name)(frame).axes[0]
        assert axes.get_yscale() == "linear"
        assert -0.05 < axes.get_ylim()[0] <= 0.001
        assert 0.98 < axes.get_ylim()[1] < 1.05

    def test_a_panel_per_stage_and_split_over_epochs(self, name):
        frame = FIGURES[name](5, splits=("train", "test"), epochs=4)
        figure = getattr(plots, name)(frame)
        assert [axes.get_title() for axes in panels(figure)] == [
            f"stage {stage}, {split}" for split in ("train", "test") for stage in (1, 2, 3)
        ]
        line = metric_lines(panels(figure)[5])[-1]
        rows = frame.query("split == 'test' and stage == 3 and block == 4")
        assert line.get_label() == "block 4"
        assert points(line) == dict(zip(rows["epoch"] + 1, 1 - rows["error"], strict=True))
        assert figure.get_supylabel().startswith("accuracy")

    def test_an_infinite_error_is_a_gap(self, name):
        frame = FIGURES[name](5)
        frame.loc[2, "error"] = np.inf
        (line,) = metric_lines(getattr(plots, name)(frame).axes[0])
        assert 2 not in points(line)
        assert 3 in points(line)

    def test_the_frame_is_left_alone(self, name):
        frame = FIGURES[name](3)
        before = frame.copy()
        getattr(plots, name)(frame)
        pd.testing.assert_frame_equal(frame, before)

    def test_refused(self, name):
        function, frame = getattr(plots, name), FIGURES[name](3)
        with pytest.raises(ValueError, match=r"missing: `error`\. Received: columns="):
            function(frame.drop(columns="error"))
        with pytest.raises(ValueError, match=r"pandas.DataFrame.*Received: .*dict"):
            function({})
        with pytest.raises(ValueError, match=r"finite number.*`error`.*Received: 9 rows"):
            function(frame.assign(error=np.nan))
        with pytest.raises(ValueError, match=r"must hold numbers.*`error`.*Received: \['high'\]"):
            function(frame.assign(error="high"))
        with pytest.raises(ValueError, match=r"one row per stage and block.*Received: several"):
            function(pd.concat([frame, frame]))


class TestUnperturbed:
    def test_a_dotted_line_per_split(self):
        figure = plots.drop_blocks(drop_frame(5, splits=("train", "test")))
        axes = figure.axes[0]
        lines = lines_with(axes, "reference")
        assert [line.get_ydata()[0] for line in lines] == pytest.approx([0.98, 0.93])
        assert [line.get_linestyle() for line in lines] == [":", ":"]
        colours = [line.get_color() for line in metric_lines(axes)]
        assert [line.get_color() for line in lines] == colours
        assert legend_texts(figure) == ["train", "test", "no block dropped"]

    def test_a_split_without_it_has_no_line(self):
        frame = drop_frame(5, splits=("train", "test"))
        frame.loc[frame["split"] == "train", "unperturbed_error"] = np.nan
        (line,) = lines_with(plots.drop_blocks(frame).axes[0], "reference")
        assert line.get_ydata()[0] == pytest.approx(0.93)

    def test_its_course_over_epochs(self):
        frame = drop_frame(5, splits=("train", "test"), epochs=4)
        figure = plots.drop_blocks(frame)
        (line,) = lines_with(panels(figure)[4], "reference")
        final = frame.query("split == 'test'").groupby("epoch")["unperturbed_error"].first()
        assert points(line) == {epoch + 1: 1 - error for epoch, error in final.items()}
        assert legend_texts(figure) == ["no block dropped"]
        draws(figure)

    def test_the_readout_has_none(self):
        assert lines_with(plots.readout(readout_frame(5)).axes[0], "reference") == []

    def test_refused(self):
        with pytest.raises(ValueError, match=r"missing: `unperturbed_error`\. Received: columns="):
            plots.drop_blocks(drop_frame(3).drop(columns="unperturbed_error"))
