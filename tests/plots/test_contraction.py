"""Figures of the approach to a fixed point, and of the Lipschitz bounds behind it.

Not covered: how they look; that was judged by eye, with 16 and 32 steps and 3x16 blocks.
"""

import numpy as np
import pandas as pd
import pytest
from plots.make_runs import fixed_point_frame, lipschitz_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots

STAGES = ["stage 1", "stage 2", "stage 3"]


class TestFixedPoint:
    def test_a_line_per_stage(self):
        frame = fixed_point_frame()
        figure = plots.fixed_point(frame.sample(frac=1.0, random_state=1))
        metrics = ("change", "distance", "contraction")
        for axes, metric in zip(figure.axes, metrics, strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == STAGES
            for stage, line in enumerate(lines, start=1):
                rows = frame[(frame["stage"] == stage) & (frame[metric] > 0)]
                assert points(line) == dict(zip(rows["repetition"], rows[metric], strict=True))
        assert legend_texts(figure) == STAGES

    def test_scales_and_words(self):
        figure = plots.fixed_point(fixed_point_frame())
        assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
        starts = ("change of the state", "distance to the last", "contraction")
        for axes, start in zip(figure.axes, starts, strict=True):
            assert axes.get_ylabel().startswith(start)
            assert axes.get_xlabel() == "extra applications of the last block"
        assert figure.axes[2].get_ylim()[0] == 0

    def test_the_slope_of_mu(self):
        frame = fixed_point_frame()
        figure = plots.fixed_point(frame, mu=0.95)
        slopes = lines_with(figure.axes[0], "slope")
        assert len(slopes) == 3
        for stage, line in enumerate(slopes, start=1):
            first = frame[frame["stage"] == stage]["change"].iloc[0]
            heights = first * 0.95 ** np.arange(33)
            assert list(line.get_ydata()) == pytest.approx(heights)
            assert list(line.get_xdata()) == list(range(33))
            assert line.get_color() == metric_lines(figure.axes[0])[stage - 1].get_color()
        (level,) = lines_with(figure.axes[2], "mu")
        assert list(level.get_ydata()) == [0.95, 0.95]
        assert figure.axes[2].get_ylim()[1] > 0.95
        assert legend_texts(figure)[-1] == "μ = 0.95 per repetition"
        assert lines_with(plots.fixed_point(frame).axes[0], "slope") == []

    def test_the_slope_begins_where_the_changes_do(self):
        frame = fixed_point_frame(stages=1)
        frame.loc[:1, "change"] = np.nan
        (line,) = lines_with(plots.fixed_point(frame, mu=0.5).axes[0], "slope")
        assert line.get_xdata()[0] == 2
        assert line.get_ydata()[:2].tolist() == pytest.approx(
            frame["change"][2] * np.array([1, 0.5])
        )

    def test_the_band_ends_at_the_largest_contraction(self):
        frame = fixed_point_frame(stages=1)
        (band,) = plots.fixed_point(frame).axes[2].collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.max() == pytest.approx(frame["largest_contraction"].max())
        assert heights.min() == pytest.approx(frame["contraction"].min())

    def test_splits_are_solid_and_broken(self):
        figure = plots.fixed_point(fixed_point_frame(splits=("test", "train")), mu=0.9)
        lines = metric_lines(figure.axes[0])
        assert [line.get_label() for line in lines[::3]] == ["stage 1, train", "stage 1, test"]
        assert [line.get_linestyle() for line in lines] == ["-"] * 3 + ["--"] * 3
        assert legend_texts(figure) == [*STAGES, "train", "test", "μ = 0.9 per repetition"]
        draws(figure)

    def test_gaps_and_stages_that_do_not_move(self):
        frame = fixed_point_frame(5).assign(distance=np.nan, largest_contraction=np.nan)
        frame["contraction"] = np.nan
        frame.loc[frame["stage"] == 1, "change"] = 0.0
        figure = plots.fixed_point(frame, mu=0.9)
        assert points(metric_lines(figure.axes[0])[0]) == {}
        assert len(lines_with(figure.axes[0], "slope")) == 2
        for axes in figure.axes[1:]:
            assert [text.get_text() for text in axes.texts] == ["no values"]
        draws(figure)

    @pytest.mark.parametrize("mu", [0, -1, np.nan, True, "1"])
    def test_mu_is_refused(self, mu):
        with pytest.raises(ValueError, match=r"`mu` must be a finite number over 0.*Received: "):
            plots.fixed_point(fixed_point_frame(), mu=mu)
        with pytest.raises(ValueError, match=r"`mu` must be a finite number over 0.*Received: "):
            plots.lipschitz_bounds(lipschitz_frame(), mu=mu)

    def test_refused(self):
        function, frame = plots.fixed_point, fixed_point_frame(4)
        with pytest.raises(ValueError, match=r"missing: `largest_contraction`\. Received: "):
            function(frame.drop(columns="largest_contraction"))
        with pytest.raises(
            ValueError, match=r"one row per stage and repetition.*Received: several"
        ):
            function(pd.concat([frame, frame]))
        nothing = ["change", "distance", "contraction", "largest_contraction"]
        with pytest.raises(ValueError, match=r"finite number.*Received: 15 rows"):
            function(frame.assign(**dict.fromkeys(nothing, np.inf)))


class TestLipschitzBounds:
    @pytest.mark.parametrize("blocks", [3, 16])
    def test_the_bounds_and_the_divisor_of_every_block(self, blocks):
        frame = lipschitz_frame(blocks)
        figure = plots.lipschitz_bounds(frame.sample(frac=1.0, random_state=1))
        places = (frame["stage"] - 1) * blocks + frame["block"]
        lines = {line.get_label(): line for line in metric_lines(figure.axes[0])}
        lines |= {line.get_label(): line for line in metric_lines(figure.axes[1])}
        assert set(lines) == {"estimate", "certified", "divisor"}
        for column, line in lines.items():
            assert points(line) == dict(zip(places, frame[column], strict=True))
        assert legend_texts(figure) == ["estimate", "certified"]

    def test_the_band_lies_between_the_two(self):
        frame = lipschitz_frame(3, 1)
        (band,) = plots.lipschitz_bounds(frame).axes[0].collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert set(np.round(heights, 9)) == set(
            np.round([*frame["estimate"], *frame["certified"]], 9)
        )

    def test_mu_and_one_are_lines(self):
        figure = plots.lipschitz_bounds(lipschitz_frame(), mu=0.95)
        (level,) = lines_with(figure.axes[0], "mu")
        assert list(level.get_ydata()) == [0.95, 0.95]
        (one,) = lines_with(figure.axes[1], "one")
        assert list(one.get_ydata()) == [1.0, 1.0]
        assert legend_texts(figure)[-1] == "μ = 0.95"

    def test_stages_and_words(self):
        figure = plots.lipschitz_bounds(lipschitz_frame(5))
        for axes in figure.axes:
            assert [line.get_xdata()[0] for line in lines_with(axes, "boundary")] == [4.5, 9.5]
            assert axes.get_yscale() == "linear"
        labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
        assert labels == ["bound of the branch's Lipschitz constant", "divisor of the branch"]
        assert figure.axes[1].get_xlabel() == "residual block index"

    def test_wide_bounds_are_logarithmic(self):
        frame = lipschitz_frame()
        frame.loc[0, ["estimate", "certified", "divisor"]] = [300.0, 310.0, 320.0]
        for axes in plots.lipschitz_bounds(frame).axes:
            assert axes.get_yscale() == "log"
            assert "log scale" in axes.get_ylabel()

    def test_unbounded_blocks_and_lacking_certificates_are_gaps(self):
        frame = lipschitz_frame().assign(divisor=np.nan)
        frame.loc[1, "certified"] = np.inf
        figure = plots.lipschitz_bounds(frame[frame["stage"] > 1])
        assert len(points(metric_lines(figure.axes[0])[0])) == 6
        certified, estimate = metric_lines(plots.lipschitz_bounds(frame).axes[0])
        assert 1 not in points(certified)
        assert 1 in points(estimate)
        assert "no values" in [text.get_text() for text in figure.axes[1].texts]
        draws(figure)

    def test_refused(self):
        function, frame = plots.lipschitz_bounds, lipschitz_frame()
        with pytest.raises(ValueError, match=r"missing: `certified`\. Received: columns="):
            function(frame.drop(columns="certified"))
        with pytest.raises(ValueError, match=r"one row per stage and block.*Received: several"):
            function(pd.concat([frame, frame]))
        with pytest.raises(ValueError, match=r"numbers.*`estimate`.*Received: \['high'\]"):
            function(frame.assign(estimate="high"))
