"""Figures of the effective number of parameters and of how much blocks differ.

Not covered: how the figures look; that was judged by eye, with four widths and 3x16 blocks.
"""

import numpy as np
import pandas as pd
import pytest
from plots.make_runs import NAMES, ROLES, TICKS, deviation_frame, run_frame, varied_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots


class TestEfficiency:
    def test_a_line_per_setting_over_the_widths(self):
        frame = run_frame()
        figure = plots.parameter_efficiency(frame.sample(frac=1.0, random_state=1))
        pairs = [
            ("raw_parameters", "effective_parameters"),
            ("raw_parameters", "error"),
            ("effective_parameters", "error"),
        ]
        for axes, (across, up) in zip(figure.axes, pairs, strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == NAMES
            rows = frame[(frame["coupling"] == 0.9)].groupby("width")[[across, up]].mean()
            assert list(lines[3].get_xdata()) == pytest.approx(rows[across])
            assert list(lines[3].get_ydata()) == pytest.approx(rows[up])
            dots = np.concatenate([line.get_xdata() for line in lines_with(axes, "run")])
            assert sorted(dots) == sorted(frame[across])
        assert legend_texts(figure) == [*NAMES, "effective = raw"]

    def test_scales_and_words(self):
        figure = plots.parameter_efficiency(run_frame())
        assert [axes.get_xscale() for axes in figure.axes] == ["log"] * 3
        assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "linear"]
        assert [axes.get_xlabel() for axes in figure.axes] == [
            "raw parameters",
            "raw parameters",
            "effective parameters",
        ]
        assert [axes.get_ylabel() for axes in figure.axes] == ["effective parameters", "error", ""]
        assert figure.axes[1].get_ylim() == figure.axes[2].get_ylim()
        assert figure.axes[2].yaxis.get_major_formatter()(0.1, None) == "10%"

    def test_equality_is_marked(self):
        frame = run_frame()
        figure = plots.parameter_efficiency(frame)
        (line,) = lines_with(figure.axes[0], "equality")
        assert list(line.get_xdata()) == list(line.get_ydata())
        assert line.get_xdata()[0] < frame["raw_parameters"].min()
        assert lines_with(figure.axes[1], "equality") == []

    def test_variations(self):
        figure = plots.parameter_efficiency(varied_frame(widths=(16, 32)), dash="variation")
        texts = legend_texts(figure)
        assert texts[5:7] == ["standard", "gamma = 0.1"]
        assert len(texts) == 5 + 5 + 1
        lines = {line.get_label(): line for line in metric_lines(figure.axes[2])}
        assert lines["1 (rec.), standard"].get_linestyle() == "-"
        assert lines["1 (rec.), triangular kernel"].get_linestyle() != "-"
        draws(figure)

    def test_a_setting_keeps_its_look(self):
        def looks(frame):
            lines = metric_lines(plots.parameter_efficiency(frame).axes[0])
            return {line.get_label(): (line.get_color(), line.get_marker()) for line in lines}

        quarter = run_frame(settings=((0.25, "recurrent"),), seed=1)
        plain, more = looks(run_frame()), looks(pd.concat([run_frame(), quarter]))
        assert plain == {name: more[name] for name in plain}
        assert len(set(more.values())) == 6

    def test_one_network(self):
        figure = plots.parameter_efficiency(run_frame(widths=(8,), seeds=1).iloc[:1])
        assert legend_texts(figure) == ["0 (non-rec.)", "effective = raw"]
        draws(figure)

    def test_refused(self):
        function, frame = plots.parameter_efficiency, run_frame(widths=(8,))
        with pytest.raises(ValueError, match=r"missing: `effective_parameters`\. Received: "):
            function(frame.drop(columns="effective_parameters"))
        with pytest.raises(ValueError, match=r"missing: `width`\. Received: "):
            function(frame.drop(columns="width"))
        with pytest.raises(ValueError, match=r"positive.*`raw_parameters`.*Received: 0"):
            function(frame.assign(raw_parameters=0))
        with pytest.raises(ValueError, match=r"finite number.*`error`.*Received: 15 rows"):
            function(frame.assign(error=np.nan))
        with pytest.raises(ValueError, match=r"must not mix.*`gamma`.*Received: gamma="):
            function(pd.concat([frame, frame.assign(gamma=0.1, seed=5)]))


class TestDeviationOfRuns:
    def test_means_over_the_coupling(self):
        frame = run_frame()
        figure = plots.deviation_of_runs(frame)
        (axes,) = figure.axes
        rows = frame[frame["width"] == 32].groupby(["coupling", "initialization"])["deviation"]
        heights = metric_lines(axes)[2].get_ydata()
        assert list(heights) == pytest.approx(rows.mean().to_numpy())
        assert [tick.get_text() for tick in axes.get_xticklabels()] == TICKS
        assert axes.get_ylim()[0] <= 0
        assert "deviation" in axes.get_ylabel()
        assert len(legend_texts(figure)) == 4

    def test_kernels(self):
        frame = pd.concat([run_frame(widths=(16,)), run_frame(widths=(16,), kernel="triangular")])
        figure = plots.deviation_of_runs(frame, hue="kernel")
        assert legend_texts(figure) == ["uniform kernel", "triangular kernel"]

    def test_refused(self):
        with pytest.raises(ValueError, match=r"missing: `deviation`\. Received: columns="):
            plots.deviation_of_runs(run_frame(widths=(8,)).drop(columns="deviation"))
        with pytest.raises(ValueError, match=r"finite.*`deviation`.*Received: 15 rows"):
            plots.deviation_of_runs(run_frame(widths=(8,)).assign(deviation=np.nan))


class TestWeightDeviations:
    @pytest.mark.parametrize("blocks", [3, 16])
    def test_a_line_per_role(self, blocks):
        frame = deviation_frame(blocks)
        (axes,) = plots.weight_deviations(frame.sample(frac=1.0, random_state=1)).axes
        lines = {line.get_label(): line for line in metric_lines(axes)}
        assert set(lines) == set(ROLES)
        rows = frame[frame["role"] == "convolution2/kernel"]
        places = (rows["stage"] - 1) * blocks + rows["block"]
        drawn = points(lines["convolution2/kernel"])
        assert drawn == dict(zip(places, rows["deviation"], strict=True))
        marks = [line.get_xdata()[0] for line in lines_with(axes, "boundary")]
        assert marks == [blocks - 0.5, 2 * blocks - 0.5]

    def test_the_mean_over_all_parameters_is_weighted(self):
        frame = deviation_frame(4)
        (line,) = lines_with(plots.weight_deviations(frame).axes[0], "all")
        sums = frame.groupby(["stage", "block"])[["l1", "parameters"]].sum()
        expected = (sums["l1"] / sums["parameters"]).to_list()
        assert list(points(line).values()) == pytest.approx(expected)
        assert list(points(line)) == list(range(12))

    def test_layers_have_colours_and_variables_lines(self):
        figure = plots.weight_deviations(deviation_frame())
        lines = {line.get_label(): line for line in metric_lines(figure.axes[0])}
        kernel, bias = lines["convolution1/kernel"], lines["convolution1/bias"]
        assert kernel.get_color() == bias.get_color()
        assert (kernel.get_linestyle(), bias.get_linestyle()) == ("-", "--")
        assert kernel.get_color() != lines["convolution2/kernel"].get_color()
        assert set(legend_texts(figure)) == {
            "all parameters",
            *(part for role in ROLES for part in role.split("/")),
        }
        assert "log" not in figure.axes[0].get_yscale()
        assert figure.axes[0].get_ylim()[0] <= 0

    def test_a_role_that_some_blocks_lack(self):
        frame = deviation_frame(4, 1)
        frame = frame[~((frame["role"] == "convolution1/bias") & (frame["block"] == 1))]
        figure = plots.weight_deviations(frame)
        lines = {line.get_label(): line for line in metric_lines(figure.axes[0])}
        assert list(points(lines["convolution1/bias"])) == [0, 2, 3]
        assert figure.axes[0].get_xlabel() == "block of stage 1"
        draws(figure)

    def test_roles_without_a_layer(self):
        frame = deviation_frame(roles={"kernel": 9})
        assert legend_texts(plots.weight_deviations(frame)) == ["all parameters", "kernel"]

    def test_refused(self):
        function, frame = plots.weight_deviations, deviation_frame()
        with pytest.raises(ValueError, match=r"missing: `role`\. Received: columns="):
            function(frame.drop(columns="role"))
        with pytest.raises(ValueError, match=r"one row per stage and block and role.*Received: "):
            function(pd.concat([frame, frame]))
        with pytest.raises(ValueError, match=r"finite.*`deviation`.*Received: 72 rows"):
            function(frame.assign(deviation=np.nan))
        with pytest.raises(ValueError, match=r"whole numbers.*`block`.*Received: \[0.5\]"):
            function(frame.assign(block=0.5))
