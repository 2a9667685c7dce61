"""The figure of the convergence, recurrence and divergence index."""

import io

import numpy as np
import pandas as pd
import pytest
from plots.make_frames import index_frame
from plots.read_figures import draws, legend_texts, lines_with

from tfresidual import plots

INDICES = ("convergence_index", "recurrence_index", "divergence_index")


def dots(axes, stage):
    """Place, height and whether it is filled, for every dot of a stage."""
    return [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() != "white")
        for line in lines_with(axes, stage)
    ]


class TestDots:
    def test_a_panel_per_index_and_a_dot_per_stage(self):
        frame = index_frame(bases=("labels",))
        figure = plots.convergence_indices(frame)
        titles = [axes.get_title() for axes in figure.axes]
        assert titles == ["convergence index", "recurrence index", "divergence index"]
        for axes, index in zip(figure.axes, INDICES, strict=True):
            for row in frame.to_dict("records"):
                ((_, height, filled),) = dots(axes, str(row["stage"]))
                assert height == row[index]
                assert filled
        assert legend_texts(figure) == ["mean", "stage 1", "stage 2", "stage 3"]
        assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["labels"]

    def test_the_mean_is_larger(self):
        axes = plots.convergence_indices(index_frame()).axes[0]
        sizes = {
            stage: lines_with(axes, stage)[0].get_markersize() for stage in ("mean", "1", "2", "3")
        }
        assert sizes["mean"] > 1.5 * max(sizes["1"], sizes["2"], sizes["3"])

    def test_no_two_dots_share_a_place(self):
        frame = index_frame(splits=("train", "validation", "test", "held out"))
        axes = plots.convergence_indices(frame).axes[1]
        places = sorted(
            place for stage in ("mean", "1", "2", "3") for place, _, _ in dots(axes, stage)
        )
        assert len(places) == 4 * 4 * 2
        assert np.diff(places).min() > 0.2
        low, high = axes.get_xlim()
        assert low < places[0] < places[-1] < high

    def test_splits_are_named_and_bases_filled_or_open(self):
        figure = plots.convergence_indices(index_frame(splits=("test", "train")))
        axes = figure.axes[0]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["train", "test"]
        assert list(axes.get_xticks()) == [0.5, 2.5]
        assert [line.get_xdata()[0] for line in lines_with(axes, "border")] == [1.5]
        assert [filled for _, _, filled in dots(axes, "2")] == [True, False, True, False]
        assert legend_texts(figure)[-2:] == ["basis: labels", "basis: agreement"]

    def test_one_basis_is_named(self):
        frame = index_frame(splits=("train",), bases=("agreement",))
        figure = plots.convergence_indices(frame)
        assert figure.axes[0].get_ylabel() == "index (basis: agreement)"
        assert not any(filled for _, _, filled in dots(figure.axes[0], "mean"))
        assert legend_texts(figure) == ["mean", "stage 1", "stage 2", "stage 3"]

    def test_limits_hold_zero_one_and_the_data(self):
        low, high = plots.convergence_indices(index_frame()).axes[2].get_ylim()
        assert (low, high) == (pytest.approx(-0.05), pytest.approx(1.05))
        frame = index_frame()
        frame.loc[0, "divergence_index"] = -1.5
        frame.loc[1, "divergence_index"] = 1.3
        low, high = plots.convergence_indices(frame).axes[2].get_ylim()
        assert low < -1.5
        assert high > 1.3

    def test_gaps(self):
        frame = index_frame().assign(divergence_index=np.nan)
        frame.loc[1, "convergence_index"] = np.inf
        figure = plots.convergence_indices(frame)
        assert np.isnan(dots(figure.axes[0], "2")[0][1])
        assert [text.get_text() for text in figure.axes[2].texts] == ["no values"]
        assert figure.axes[1].texts[:] == []
        draws(figure)

    def test_a_frame_from_a_file_and_many_stages(self):
        buffer = io.StringIO(index_frame(stages=11).to_csv(index=False))
        frame = pd.read_csv(buffer).sample(frac=1.0, random_state=1)
        texts = legend_texts(plots.convergence_indices(frame))
        assert texts[:12] == ["mean", *(f"stage {stage}" for stage in range(1, 12))]

    def test_one_row(self):
        figure = plots.convergence_indices(index_frame().iloc[:1])
        assert [place for place, _, _ in dots(figure.axes[0], "1")] == [0.0]
        assert legend_texts(figure) == ["stage 1"]


def test_refused():
    frame = index_frame()
    function = plots.convergence_indices
    with pytest.raises(ValueError, match=r"missing: `basis`\. Received: columns="):
        function(frame.drop(columns="basis"))
    with pytest.raises(
        ValueError, match=r"'labels' or 'agreement'.*`basis`.*Received: \['truth'\]"
    ):
        function(frame.assign(basis="truth"))
    with pytest.raises(ValueError, match=r"one row per stage and basis.*Received: .*stage='1'"):
        function(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match=r"finite number.*`recurrence_index`.*Received: 8 rows"):
        function(frame.assign(**dict.fromkeys(INDICES, np.nan)))
    with pytest.raises(ValueError, match=r"numbers.*`recurrence_index`.*Received: \['high'\]"):
        function(frame.assign(recurrence_index="high"))
