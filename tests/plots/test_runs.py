"""Figures of indices and errors of many trained networks.

Not covered: how the figures look; that was judged by eye, with four widths and four variations.
"""

import numpy as np
import pandas as pd
import pytest
from plots.make_runs import NAMES, SETTINGS, TICKS, run_frame, varied_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines

from tfresidual import plots

INDICES = ("convergence", "recurrence", "divergence")
WIDTHS = ["8 channels", "16 channels", "32 channels", "64 channels"]
FUNCTIONS = ("indices_of_runs", "error_of_runs", "error_against_indices")


def ticks(axes):
    return [tick.get_text() for tick in axes.get_xticklabels()]


def means(frame, column, **selected):
    """The mean of a column in each setting, in the order of the figure."""
    for key, value in selected.items():
        frame = frame[frame[key] == value]
    groups = frame.groupby(["coupling", "initialization"])[column].mean()
    return [groups[setting] for setting in SETTINGS if setting in groups]


def looks(axes):
    return {
        line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in metric_lines(axes)
    }


class TestIndices:
    def test_lines_of_means_in_the_order_of_the_coupling(self):
        frame = run_frame()
        figure = plots.indices_of_runs(frame.sample(frac=1.0, random_state=1))
        titles = [axes.get_title() for axes in figure.axes]
        assert titles == ["convergence index", "recurrence index", "divergence index"]
        for axes, index in zip(figure.axes, INDICES, strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == WIDTHS
            for line, width in zip(lines, (8, 16, 32, 64), strict=True):
                assert list(line.get_ydata()) == pytest.approx(means(frame, index, width=width))
                assert np.round(line.get_xdata()).tolist() == [0, 1, 2, 3, 4]
            assert ticks(axes) == TICKS
        assert figure.get_supxlabel() == "coupling (initialization)"
        assert legend_texts(figure) == WIDTHS

    def test_a_dot_per_run(self):
        frame = run_frame(widths=(16, 32), seeds=4)
        figure = plots.indices_of_runs(frame)
        for axes, index in zip(figure.axes, INDICES, strict=True):
            heights = np.concatenate([line.get_ydata() for line in lines_with(axes, "run")])
            assert sorted(heights) == sorted(frame[index])

    def test_groups_stand_beside_each_other(self):
        lines = metric_lines(plots.indices_of_runs(run_frame()).axes[0])
        places = np.array([line.get_xdata() for line in lines])
        assert (np.diff(places, axis=0) > 0.05).all()
        assert abs(places - np.arange(5)).max() < 0.3

    def test_limits_hold_zero_one_and_the_data(self):
        axes = plots.indices_of_runs(run_frame(widths=(8,))).axes
        assert len({panel.get_ylim() for panel in axes}) == 1
        frame = run_frame(widths=(8,))
        frame.loc[0, "convergence"] = -1.5
        assert plots.indices_of_runs(frame).axes[2].get_ylim()[0] < -1.5

    def test_a_row_of_panels_per_variation(self):
        frame = varied_frame(widths=(16, 32), seeds=2)
        figure = plots.indices_of_runs(frame, panels="variation")
        labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes[::3]]
        assert labels == [
            "standard",
            "gamma = 0.1",
            "triangular kernel",
            "coupled from block 5",
            "gamma = 0.1, coupled from block 5",
        ]
        assert [axes.get_title() for axes in figure.axes[3:]] == [""] * 12
        rows = frame[(frame["kernel"] == "triangular") & (frame["width"] == 32)]
        line = metric_lines(figure.axes[8])[1]
        assert list(line.get_ydata()) == pytest.approx(means(rows, "divergence"))
        draws(figure)

    def test_own_names_of_variations(self):
        frame = run_frame(widths=(8,)).assign(variation="swapped")
        assert plots.indices_of_runs(frame, panels="variation").axes[0].get_ylabel() == "swapped"

    def test_runs_without_an_index(self):
        frame = run_frame(widths=(8, 16))
        frame.loc[(frame["width"] == 8) & (frame["coupling"] == 1), "convergence"] = np.nan
        frame["divergence"] = np.inf
        figure = plots.indices_of_runs(frame)
        assert np.round(metric_lines(figure.axes[0])[0].get_xdata()).tolist() == [0, 1, 2, 3]
        assert [text.get_text() for text in figure.axes[2].texts] == ["no values"]
        assert ticks(figure.axes[2]) == TICKS
        draws(figure)


class TestError:
    def test_one_panel_in_percent(self):
        frame = run_frame()
        figure = plots.error_of_runs(frame)
        (axes,) = figure.axes
        for line, width in zip(metric_lines(axes), (8, 16, 32, 64), strict=True):
            assert list(line.get_ydata()) == pytest.approx(means(frame, "error", width=width))
        assert axes.yaxis.get_major_formatter()(0.05, None) == "5%"
        assert axes.get_title() == ""
        assert figure.get_supylabel() == "error"
        assert ticks(axes) == TICKS

    def test_training_and_held_out_images_and_a_variation(self):
        frame = pd.concat([run_frame(gamma=0.1, seed=1), run_frame()])
        figure = plots.error_of_runs(frame, dash="gamma", errors=("train_error", "error"))
        assert [axes.get_title() for axes in figure.axes] == ["training images", "held-out images"]
        assert legend_texts(figure) == [*WIDTHS, "gamma = 1", "gamma = 0.1"]
        lines = {line.get_label(): line for line in metric_lines(figure.axes[0])}
        plain, small = (lines[f"16 channels, gamma = {gamma}"] for gamma in (1, 0.1))
        assert plain.get_color() == small.get_color()
        assert (plain.get_linestyle(), small.get_linestyle()) == ("-", "--")
        assert plain.get_markerfacecolor() != "white"
        assert small.get_markerfacecolor() == "white"
        rows = frame[(frame["gamma"] == 0.1) & (frame["width"] == 16)]
        assert list(small.get_ydata()) == pytest.approx(means(rows, "train_error"))

    def test_a_panel_per_data_set(self):
        frame = pd.concat(
            [
                run_frame(widths=(16, 32)).assign(dataset="Digitclutter-5"),
                run_frame(seed=1).assign(dataset="CIFAR-10"),
            ]
        )
        figure = plots.error_of_runs(frame, panels="dataset")
        assert [axes.get_title() for axes in figure.axes] == ["Digitclutter-5", "CIFAR-10"]
        first, second = (looks(axes) for axes in figure.axes)
        assert first == {name: second[name] for name in WIDTHS[1:3]}

    @pytest.mark.parametrize("share_y", [True, False])
    def test_panels_with_one_value_axis(self, share_y):
        frame = pd.concat(
            [
                run_frame().assign(variation="none"),
                run_frame(seed=1).assign(variation="late", error=lambda rows: 2 * rows["error"]),
            ]
        )
        figure = plots.error_of_runs(frame, panels="variation", share_y=share_y)
        first, second = (axes.get_ylim() for axes in figure.axes)
        assert (first == second) == share_y
        for axes in figure.axes:
            for line in metric_lines(axes):
                low, high = axes.get_ylim()
                assert low < min(line.get_ydata()) <= max(line.get_ydata()) < high

    def test_many_panels_wrap(self):
        frame = pd.concat([run_frame(widths=(8,)).assign(dataset=f"task {n}") for n in range(5)])
        figure = plots.error_of_runs(frame, panels="dataset")
        assert [axes.get_title() for axes in figure.axes] == [f"task {n}" for n in range(5)]
        draws(figure)

    def test_bounded_beside_unbounded(self):
        frame = pd.concat([run_frame(lipschitz=0.95, widths=(16,)), run_frame()])
        figure = plots.error_of_runs(frame, dash="lipschitz")
        assert legend_texts(figure)[4:] == ["unbounded", "μ = 0.95"]
        assert "16 channels, μ = 0.95" in looks(figure.axes[0])

    def test_properly_and_improperly_convergent(self):
        frame = pd.concat([run_frame(lipschitz=0.95, anchor="input"), run_frame(lipschitz=0.95)])
        figure = plots.error_of_runs(frame, hue="anchor", panels="width")
        assert legend_texts(figure) == ["adds to the block's input", "adds to the stage's input"]
        assert [axes.get_title() for axes in figure.axes] == WIDTHS
        varied = plots.error_of_runs(frame, dash="variation")
        assert legend_texts(varied)[4:] == ["μ = 0.95", "μ = 0.95, adds to the stage's input"]

    def test_without_hue_there_is_no_legend(self):
        figure = plots.error_of_runs(run_frame(widths=(16,)), hue=None)
        assert figure.legends == []
        assert len(metric_lines(figure.axes[0])) == 1

    def test_what_runs_leave_empty_is_standard(self):
        frame = run_frame(widths=(16,))
        columns = ["kernel", "gamma", "first_block", "anchor"]
        empty = frame.assign(**dict.fromkeys(columns, np.nan), seed=frame["seed"] + 9)
        (axes,) = plots.error_of_runs(pd.concat([frame, empty])).axes
        assert len(lines_with(axes, "run")[0].get_xdata()) == 30

    def test_a_single_run_and_other_numbers(self):
        figure = plots.error_of_runs(run_frame(widths=(5,), seeds=1).iloc[2:3].assign(depth=3))
        assert ticks(figure.axes[0]) == ["0.5\n(rec.)"]
        assert legend_texts(figure) == ["5 channels"]
        frame = run_frame(widths=(8,)).assign(depth=3)
        assert legend_texts(plots.error_of_runs(frame, hue="depth")) == ["depth 3"]

    def test_a_width_keeps_its_look(self):
        few = looks(plots.error_of_runs(run_frame(widths=(16, 64))).axes[0])
        all_of_them = looks(plots.error_of_runs(run_frame(widths=(4, 8, 16, 32, 64))).axes[0])
        assert few == {name: all_of_them[name] for name in few}
        assert len(set(all_of_them.values())) == 5

    def test_many_widths_look_different(self):
        frame = run_frame(widths=range(2, 14), seeds=1)
        assert len(set(looks(plots.error_of_runs(frame).axes[0]).values())) == 12

    @pytest.mark.parametrize("errors", [(), ("loss",), ("error", "error")])
    def test_errors_are_refused(self, errors):
        with pytest.raises(ValueError, match=r"`errors` must hold.*Received: \("):
            plots.error_of_runs(run_frame(widths=(8,)), errors=errors)


class TestErrorAgainstIndices:
    def test_a_line_per_width_through_the_means(self):
        frame = run_frame()
        figure = plots.error_against_indices(frame)
        labels = [axes.get_xlabel() for axes in figure.axes]
        assert labels == ["convergence index", "divergence index"]
        assert [axes.get_ylabel() for axes in figure.axes] == ["error", ""]
        for axes, index in zip(figure.axes, ("convergence", "divergence"), strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == WIDTHS
            for line, width in zip(lines, (8, 16, 32, 64), strict=True):
                assert list(line.get_xdata()) == pytest.approx(means(frame, index, width=width))
                assert list(line.get_ydata()) == pytest.approx(means(frame, "error", width=width))
        assert legend_texts(figure) == [*WIDTHS, *NAMES]

    def test_markers_tell_the_setting(self):
        axes = plots.error_against_indices(run_frame(widths=(16, 32))).axes[0]
        markers = [line.get_marker() for line in lines_with(axes, "mean")]
        assert len(markers) == 10
        assert markers[:5] == markers[5:]
        assert len(set(markers)) == 5

    def test_runs_of_one_setting(self):
        frame = run_frame(widths=(16,), settings=SETTINGS[:1], seeds=6)
        figure = plots.error_against_indices(frame, indices=INDICES)
        assert len(figure.axes) == 3
        (dots,) = lines_with(figure.axes[2], "run")
        assert sorted(dots.get_xdata()) == sorted(frame["divergence"])
        assert len(metric_lines(figure.axes[0])[0].get_xdata()) == 1
        draws(figure)

    def test_a_run_without_an_index_is_left_out_there(self):
        frame = run_frame(widths=(16,), seeds=2)
        frame.loc[frame["coupling"] == 0.9, "convergence"] = np.nan
        convergence, divergence = plots.error_against_indices(frame).axes
        assert len(metric_lines(convergence)[0].get_xdata()) == 4
        assert len(metric_lines(divergence)[0].get_xdata()) == 5

    @pytest.mark.parametrize("indices", [(), ("error",), ("convergence", "convergence")])
    def test_indices_are_refused(self, indices):
        with pytest.raises(ValueError, match=r"`indices` must hold.*Received: \("):
            plots.error_against_indices(run_frame(widths=(8,)), indices=indices)

    def test_an_index_that_no_run_has(self):
        with pytest.raises(ValueError, match=r"finite number.*`divergence`.*Received: 15 rows"):
            plots.error_against_indices(run_frame(widths=(8,)).assign(divergence=np.nan))


@pytest.mark.parametrize("name", FUNCTIONS)
class TestRefused:
    def test_columns(self, name):
        function, frame = getattr(plots, name), run_frame(widths=(8,))
        with pytest.raises(ValueError, match=r"missing: `coupling`\. Received: columns="):
            function(frame.drop(columns="coupling"))
        with pytest.raises(ValueError, match=r"missing: `depth`\. Received: columns="):
            function(frame, hue="depth")
        with pytest.raises(ValueError, match=r"pandas.DataFrame.*Received: .*list"):
            function([1, 2])
        with pytest.raises(ValueError, match=r"at least one row.*Received: "):
            function(frame.iloc[:0])

    def test_values(self, name):
        function, frame = getattr(plots, name), run_frame(widths=(8,))
        with pytest.raises(ValueError, match=r"from 0 to 1.*`coupling`.*Received: \[2\]"):
            function(frame.assign(coupling=2))
        with pytest.raises(ValueError, match=r"`initialization`.*Received: \['zeros'\]"):
            function(frame.assign(initialization="zeros"))
        columns = ["error", *INDICES]
        with pytest.raises(ValueError, match=r"finite number.*Received: 15 rows"):
            function(frame.assign(**dict.fromkeys(columns, np.nan)))
        with pytest.raises(ValueError, match=r"must hold numbers.*Received: \['high'\]"):
            function(frame.assign(**dict.fromkeys(columns, "high")))

    @pytest.mark.parametrize(
        ("column", "value"),
        [("lipschitz", 0.95), ("kernel", "triangular"), ("dataset", "MNIST"), ("width", 16)],
    )
    def test_different_networks_in_one_mean(self, name, column, value):
        frame = run_frame(widths=(8,)).assign(dataset="CIFAR-10")
        both = pd.concat([frame, frame.assign(**{column: value}, seed=lambda rows: rows.seed + 9)])
        with pytest.raises(
            ValueError, match=rf"must not mix.*`{column}`.*Received: {column}=\[.* for 0 \(non-rec"
        ):
            getattr(plots, name)(both, hue=None)

    def test_a_run_twice(self, name):
        frame = run_frame(widths=(8,))
        with pytest.raises(ValueError, match=r"per network and seed.*Received: .*8 ch.*seed=0"):
            getattr(plots, name)(pd.concat([frame, frame]))

    def test_the_frame_is_left_alone(self, name):
        frame = run_frame(widths=(8,), seeds=1).assign(kernel=None)
        before = frame.copy()
        getattr(plots, name)(frame)
        pd.testing.assert_frame_equal(frame, before)
