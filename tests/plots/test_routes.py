"""Figures of the errors on changed routes."""

import numpy as np
import pandas as pd
import pytest
from plots.make_frames import drop_frame, readout_frame, repeat_frame, shuffle_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots


def three(blocks=5, **settings):
    return (
        readout_frame(blocks, **settings),
        drop_frame(blocks, **settings),
        repeat_frame(**settings),
    )


class TestRouteErrors:
    @pytest.mark.parametrize("blocks", [1, 5, 18])
    def test_a_line_per_stage_in_each_panel(self, blocks):
        tables = three(blocks)
        figure = plots.route_errors(*tables, chance=0.9)
        keys = (("block", 1), ("block", 0), ("repetition", 0))
        for axes, frame, (key, first) in zip(figure.axes, tables, keys, strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == ["stage 1", "stage 2", "stage 3"]
            for stage, line in enumerate(lines, start=1):
                rows = frame[(frame["stage"] == stage) & frame["error"].notna()]
                assert points(line) == dict(zip(rows[key] + first, rows["error"], strict=True))

    def test_a_scale_is_named(self):
        readout, dropped, repeated = three()
        figure = plots.route_errors(readout, dropped, repeated.assign(scale=0.3))
        assert figure.get_suptitle() == "Errors on changed routes, branch scaled by 0.3"
        assert plots.route_errors(*three()).get_suptitle() == "Errors on changed routes"

    def test_words(self):
        figure = plots.route_errors(*three(), chance=0.9)
        titles = [axes.get_title() for axes in figure.axes]
        assert titles == ["convergence", "recurrence", "divergence"]
        assert [axes.get_xlabel() for axes in figure.axes] == [
            "number of evaluated blocks",
            "dropped block",
            "repetitions of the last block",
        ]
        assert [axes.get_ylabel() for axes in figure.axes] == ["error", "", ""]
        stages = ["stage 1", "stage 2", "stage 3"]
        assert legend_texts(figure) == [*stages, "unperturbed", "chance"]

    def test_rows_of_panels_for_splits(self):
        figure = plots.route_errors(*three(splits=("test", "train")))
        titles = [axes.get_title() for axes in figure.axes]
        assert titles[0] == "convergence, train"
        assert titles[-1] == "divergence, test"
        levels = [lines_with(axes, "unperturbed")[0].get_ydata()[0] for axes in figure.axes]
        assert levels == pytest.approx([0.07] * 3 + [0.02] * 3)
        assert [axes.get_xlabel() for axes in figure.axes[:3]] == ["", "", ""]
        draws(figure)

    def test_one_axis_from_zero_to_above_chance_or_data(self):
        assert plots.route_errors(*three(), chance=0.95).axes[0].get_ylim() == (
            0,
            pytest.approx(0.95 * 1.06),
        )
        tables = three()
        highest = max(frame["error"].max() for frame in tables)
        figure = plots.route_errors(*tables, chance=0.1)
        tops = [axes.get_ylim()[1] for axes in figure.axes]
        assert tops == pytest.approx([highest * 1.06] * 3)
        assert figure.axes[0].yaxis.get_major_formatter()(0.5, None) == "50%"

    def test_chance_is_a_broken_line(self):
        (line,) = lines_with(plots.route_errors(*three(), chance=0.9).axes[2], "chance")
        assert list(line.get_ydata()) == [0.9, 0.9]
        assert line.get_linestyle() == "--"
        figure = plots.route_errors(*three())
        assert lines_with(figure.axes[2], "chance") == []
        assert "chance" not in legend_texts(figure)

    def test_a_stage_keeps_its_look_where_another_is_missing(self):
        readout, dropped, _ = three()
        figure = plots.route_errors(readout, dropped, repeat_frame(first_stage=2))
        looks = [
            {line.get_label(): (line.get_color(), line.get_marker()) for line in metric_lines(axes)}
            for axes in figure.axes
        ]
        assert list(looks[2]) == ["stage 2", "stage 3"]
        assert looks[2] == {name: looks[0][name] for name in looks[2]}

    def test_many_stages_look_different_and_have_a_legend_of_several_rows(self):
        figure = plots.route_errors(*three(2, stages=9), chance=0.9)
        looks = {(line.get_color(), line.get_marker()) for line in metric_lines(figure.axes[0])}
        assert len(looks) == 9
        assert len(legend_texts(figure)) == 11
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 > 0.2 * figure.bbox.width

    def test_gaps_and_nothing_to_draw_in_a_panel(self):
        readout, dropped, repeated = three()
        repeated.loc[repeated["repetition"] > 3, "error"] = np.inf
        figure = plots.route_errors(readout, dropped.assign(error=np.nan), repeated)
        assert [points(line) for line in metric_lines(figure.axes[1])] == [{}, {}, {}]
        assert list(points(metric_lines(figure.axes[2])[0])) == [0, 1, 2, 3]
        draws(figure)

    def test_a_network_without_errors(self):
        readout, dropped, repeated = (frame.assign(error=0.0) for frame in three())
        figure = plots.route_errors(readout, dropped.assign(unperturbed_error=0.0), repeated)
        assert figure.axes[0].get_ylim() == (0, 1)

    @pytest.mark.parametrize("chance", [0, -0.1, 1.5, np.nan])
    def test_chance_is_refused(self, chance):
        with pytest.raises(ValueError, match=r"`chance` must be.*Received: "):
            plots.route_errors(*three(), chance=chance)

    def test_refused(self):
        readout, dropped, repeated = three(splits=("train", "test"))
        function = plots.route_errors
        with pytest.raises(ValueError, match=r"`readout`.*missing: `block`\. Received: columns="):
            function(readout.drop(columns="block"), dropped, repeated)
        with pytest.raises(ValueError, match=r"`drop_blocks`.*missing: `unperturbed_error`"):
            function(readout, dropped.drop(columns="unperturbed_error"), repeated)
        with pytest.raises(ValueError, match=r"`repeat_last_block`.*whole numbers.*Received: "):
            function(readout, dropped, repeated.assign(repetition=0.5))
        with pytest.raises(
            ValueError, match=r"same splits.*Received: .*drop_blocks with \['train'\]"
        ):
            function(readout, dropped[dropped["split"] == "train"], repeated)
        with pytest.raises(
            ValueError, match=r"`readout`.*one row per stage and block.*Received: several rows"
        ):
            function(pd.concat([readout, readout]), dropped, repeated)
        with pytest.raises(ValueError, match=r"`readout` must.*finite.*`error`.*Received: 30 rows"):
            function(readout.assign(error=np.nan), dropped, repeated)


class TestShuffleBlocks:
    def test_a_panel_per_stage_and_dots_per_split(self):
        frame = shuffle_frame(splits=("test", "train"))
        figure = plots.shuffle_blocks(frame)
        assert [axes.get_title() for axes in figure.axes] == ["stage 1", "stage 2", "stage 3"]
        for stage, axes in enumerate(figure.axes, start=1):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == ["train", "test"]
            rows = frame[(frame["stage"] == stage) & (frame["split"] == "test")]
            assert lines[1].get_xdata().tolist() == rows["kendall_tau"].tolist()
            assert lines[1].get_ydata().tolist() == rows["error"].tolist()
            assert lines[1].get_linestyle() == "None"
            levels = [line.get_ydata()[0] for line in lines_with(axes, "unperturbed")]
            assert levels == pytest.approx([0.07, 0.02])
        assert legend_texts(figure) == ["train", "test", "order kept"]

    def test_the_kept_order_is_at_the_left(self):
        frame = shuffle_frame()
        figure = plots.shuffle_blocks(frame)
        left, right = figure.axes[0].get_xlim()
        assert left > 1 > frame["kendall_tau"].min() > right
        assert figure.axes[0].get_ylim()[0] == 0
        assert "Kendall" in figure.get_supxlabel()
        assert figure.get_supylabel() == "error"
        assert legend_texts(figure) == ["order kept"]

    def test_one_row(self):
        frame = shuffle_frame().assign(kendall_tau=1.0).iloc[:1]
        left, right = plots.shuffle_blocks(frame).axes[0].get_xlim()
        assert left > 1 > right

    def test_many_stages_wrap_and_gaps_are_left_out(self):
        frame = shuffle_frame(stages=6)
        frame.loc[frame["stage"] == 2, ["error", "unperturbed_error"]] = np.nan
        figure = plots.shuffle_blocks(frame)
        assert len(figure.axes) == 6
        assert lines_with(figure.axes[1], "unperturbed") == []
        draws(figure)

    def test_refused(self):
        frame = shuffle_frame()
        with pytest.raises(ValueError, match=r"missing: `kendall_tau`\. Received: columns="):
            plots.shuffle_blocks(frame.drop(columns="kendall_tau"))
        with pytest.raises(ValueError, match=r"finite number.*`error`.*Received: 60 rows"):
            plots.shuffle_blocks(frame.assign(error=np.inf))
        with pytest.raises(ValueError, match=r"numbers.*`stage`.*Received: \['first'\]"):
            plots.shuffle_blocks(frame.assign(stage="first"))


def test_chance_of_each_split():
    splits = ("train", "test")
    figure = plots.route_errors(
        readout_frame(3, splits=splits),
        drop_frame(3, splits=splits),
        repeat_frame(4, splits=splits),
        chance={"train": 0.9, "test": 0.7},
    )
    levels = [
        [line.get_ydata()[0] for line in axes.lines if line.get_gid() == "chance"]
        for axes in figure.axes
    ]
    assert levels == [[0.9]] * 3 + [[0.7]] * 3
