"""The figure of a search for the depth.

Not covered: how it looks; that was judged by eye on 1 to 5 stages and 1 to 60 trials.
"""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points
from refusals import refused

from tfresidual import plots

VERDICTS = ("meets the rule", "does not")
DEPTHS = ((3, 3), (20, 25), (30, 20), (45, 50), (41, 44), (45, 48))


def search_frame(depths=DEPTHS, epsilon=0.1, statuses=None, found=None, distance=4.1):
    """A search frame: the distance stays what it is at all depths, save for some noise.

    The first block of every stage but the first changes the shape and is not measured.
    """
    rng = np.random.default_rng(0)
    rows = []
    for trial, of_stages in enumerate(depths):
        status = (statuses or {}).get(trial, "completed")
        for stage, blocks in enumerate(of_stages, start=1):
            measured = blocks - (stage > 1)
            known = status == "completed" and measured > 0
            scaled = distance * stage**0.1 * (1 + 0.05 * rng.random()) if known else np.nan
            rows.append(
                {
                    "trial": trial,
                    "status": status,
                    "stage": stage,
                    "blocks": blocks,
                    "measured_blocks": measured if status == "completed" else pd.NA,
                    "distance": 30 * scaled,
                    "scaled_distance": 0.0 if status == "completed" and not measured else scaled,
                    "mean_perturbation": 30 * scaled / measured if known else np.nan,
                    "mean_scaled_perturbation": scaled / measured if known else np.nan,
                    "scaled_distance_deviation": 0.05 * scaled,
                    "depth_asked_for": int(np.ceil(scaled / epsilon)) if known else pd.NA,
                    "meets_rule": bool(scaled / measured <= epsilon) if known else pd.NA,
                    "found": trial == found,
                    "width": 16,
                    "seconds": 1.5,
                    "error": "out of memory" if status == "failed" else "",
                }
            )
    types = {"measured_blocks": "Int64", "depth_asked_for": "Int64", "meets_rule": "boolean"}
    return pd.DataFrame(rows).astype(types)


def dots(axes, *states):
    """The dots of these states, as a sorted list of (place, height)."""
    return sorted(
        (float(x), float(y))
        for state in states
        for line in lines_with(axes, state)
        for x, y in zip(*line.get_data(), strict=True)
    )


def pairs(rows, *columns):
    return sorted(rows[list(columns)].astype(float).itertuples(index=False, name=None))


def trials_and_depths(axes, state):
    return sorted((round(x), y) for x, y in dots(axes, state))


def is_hollow(line):
    return to_rgb(line.get_markerfacecolor()) == (1.0, 1.0, 1.0)


def test_what_the_networks_give_as_built():
    """A line for each stage, where the frame has it."""
    frame = search_frame()
    assert not [a for a in plots.depth_search(frame).axes if lines_with(a, "as built")]
    built = 1.3 * frame["mean_scaled_perturbation"].where(frame["trial"] != 1)
    figure = plots.depth_search(frame.assign(mean_scaled_perturbation_as_built=built))
    distance, mean, way = figure.axes
    assert not lines_with(distance, "as built") + lines_with(way, "as built")
    assert len(lines_with(mean, "as built")) == 2
    known = frame.assign(built=built)[frame["trial"] != 1]
    # Depths that were tried twice have the mean of both.
    known = known.groupby(["stage", "measured_blocks"], as_index=False)["built"].mean()
    expected = pairs(known, "measured_blocks", "built")
    np.testing.assert_allclose(dots(mean, "as built"), expected)
    assert "as built" in legend_texts(figure)


@pytest.mark.parametrize(
    ("panel", "column"), [(0, "scaled_distance"), (1, "mean_scaled_perturbation")]
)
class TestOverBlocks:
    def test_dots_are_the_frames(self, panel, column):
        frame = search_frame(statuses={2: "failed"}, found=5)
        axes = plots.depth_search(frame.sample(frac=1.0, random_state=1)).axes[panel]
        completed = frame[frame["status"] == "completed"]
        for state, meets in zip(VERDICTS, (True, False), strict=True):
            rows = completed[completed["meets_rule"] == meets]
            assert len(rows) >= 3
            assert dots(axes, state) == pairs(rows, "measured_blocks", column)
            for line in lines_with(axes, state):
                assert is_hollow(line) == (not meets)
                assert line.get_linestyle() == "None"

    def test_stages_have_looks(self, panel, column):
        axes = plots.depth_search(search_frame([(3, 4, 5, 6, 7), (50, 51, 52, 53, 54)])).axes[panel]
        lines = lines_with(axes, "does not")
        assert len({(line.get_color(), line.get_marker()) for line in lines}) == 5
        assert len({line.get_color() for line in lines}) == 5
        assert [line.get_color() for line in metric_lines(axes)] == [
            line.get_color() for line in lines
        ]

    def test_lines_go_through_the_means_of_equal_depths(self, panel, column):
        frame = search_frame([(12, 13)] * 4 + [(50, 40)] * 3 + [(20, 13)])
        axes = plots.depth_search(frame).axes[panel]
        assert [line.get_label() for line in metric_lines(axes)] == ["stage 1", "stage 2"]
        for stage, line in enumerate(metric_lines(axes), start=1):
            rows = frame[frame["stage"] == stage]
            means = rows.groupby(rows["measured_blocks"].astype(float))[column].mean()
            assert list(line.get_xdata()) == sorted(means.index)
            assert points(line) == pytest.approx(means.to_dict())

    def test_the_line_of_the_rule(self, panel, column):
        axes = plots.depth_search(search_frame(epsilon=0.25), epsilon=0.25).axes[panel]
        (line,) = lines_with(axes, "rule")
        blocks, heights = line.get_data()
        bound = 0.25 * blocks if panel == 0 else np.full(len(blocks), 0.25)
        assert list(heights) == pytest.approx(list(bound))
        low, high = axes.get_xlim()
        assert (blocks[0], blocks[-1]) == pytest.approx((low, high), abs=0.01 * (high - low))
        assert axes.get_ylim()[0] < heights[-1] < axes.get_ylim()[1]
        (text,) = axes.texts
        assert text.get_text() == ("ε L" if panel == 0 else "ε")
        assert text.xy == pytest.approx((high, heights[-1]))
        (shade,) = [shade for shade in axes.collections if shade.get_gid() == "meets the rule"]
        edge = shade.get_paths()[0].vertices[:, 1]
        assert edge.max() == pytest.approx(max(heights))
        assert edge.min() == pytest.approx(axes.get_ylim()[0])
        assert axes.get_title() == "shaded: the rule is met"

    def test_no_trial_completed(self, panel, column):
        frame = search_frame(DEPTHS[:2], statuses={0: "failed", 1: "running"})
        figure = plots.depth_search(frame)
        axes = figure.axes[panel]
        assert [text.get_text() for text in axes.texts] == ["no values"]
        assert axes.get_lines() == []
        assert legend_texts(figure) == ["stage 1", "stage 2", "failed", "running"]
        draws(figure)

    def test_a_stage_without_measured_blocks_has_no_dot(self, panel, column):
        frame = search_frame([(1, 1), (50, 50)])
        axes = plots.depth_search(frame).axes[panel]
        measured = frame[frame["measured_blocks"] > 0]
        assert len(measured) == 3
        assert dots(axes, *VERDICTS, "not measured") == pairs(measured, "measured_blocks", column)


class TestDeviations:
    def test_bars_in_the_panel_of_distances_only(self):
        frame = search_frame(statuses={2: "failed"})
        frame.loc[0, "scaled_distance_deviation"] = np.nan
        figure = plots.depth_search(frame)
        bars = [bars for bars in figure.axes[0].collections if bars.get_gid() == "deviation"]
        drawn = sorted(
            (float(low[0]), float(low[1]), float(high[1]))
            for of_stage in bars
            for low, high in of_stage.get_segments()
        )
        rows = frame.dropna(subset="scaled_distance_deviation")
        ends = {
            "low": rows["scaled_distance"] - rows["scaled_distance_deviation"],
            "high": rows["scaled_distance"] + rows["scaled_distance_deviation"],
        }
        expected = pairs(rows.assign(**ends), "measured_blocks", "low", "high")
        assert len(drawn) == 9
        assert np.array(drawn) == pytest.approx(np.array(expected))
        for axes in figure.axes[1:]:
            assert "deviation" not in [item.get_gid() for item in axes.collections]

    def test_without_them(self):
        without = search_frame().drop(columns="scaled_distance_deviation")
        for frame in (without, without.assign(scaled_distance_deviation=np.nan)):
            axes = plots.depth_search(frame).axes[0]
            assert "deviation" not in [item.get_gid() for item in axes.collections]


class TestWay:
    def test_depths_over_trials_from_one(self):
        frame = search_frame(statuses={2: "failed", 5: "running"}, found=3)
        figure = plots.depth_search(frame.sample(frac=1.0, random_state=1))
        axes = figure.axes[2]
        frame["number"] = frame["trial"] + 1
        for stage, line in enumerate(metric_lines(axes), start=1):
            rows = frame[frame["stage"] == stage]
            assert [round(x) for x in line.get_xdata()] == rows["number"].tolist()
            assert list(line.get_ydata()) == rows["blocks"].tolist()
        completed = frame["status"] == "completed"
        chosen = {
            "meets the rule": completed & (frame["meets_rule"] == True),  # noqa: E712
            "does not": completed & (frame["meets_rule"] == False),  # noqa: E712
            "failed": frame["status"] == "failed",
            "running": frame["status"] == "running",
        }
        for state, rows in chosen.items():
            assert trials_and_depths(axes, state) == pairs(frame[rows], "number", "blocks")
        assert all(is_hollow(line) for line in lines_with(axes, "does not"))
        assert not any(is_hollow(line) for line in lines_with(axes, "meets the rule"))
        assert {line.get_marker() for line in lines_with(axes, "failed")} == {"x"}
        assert {line.get_marker() for line in lines_with(axes, "running")} == {"D"}
        assert {line.get_markerfacecolor() for line in lines_with(axes, "running")} == {"none"}
        assert axes.get_xlabel() == "trial"
        assert legend_texts(figure) == [
            "stage 1",
            "stage 2",
            "meets the rule",
            "does not",
            "failed",
            "running",
            "rule, ε = 0.1",
        ]

    @pytest.mark.parametrize("stages", [1, 2, 5])
    def test_equally_deep_stages_do_not_hide_each_other(self, stages):
        axes = plots.depth_search(search_frame([(8,) * stages, (9,) * stages])).axes[2]
        places = np.array([line.get_xdata() for line in metric_lines(axes)])
        assert len(np.unique(places[:, 0])) == stages
        assert np.abs(places - [1, 2]).max() < 0.31
        assert places.mean(axis=0) == pytest.approx([1, 2])

    def test_the_found_trial_has_a_band(self):
        axes = plots.depth_search(search_frame(found=3)).axes[2]
        (band,) = [patch for patch in axes.patches if patch.get_gid() == "found"]
        assert band.get_x() + band.get_width() / 2 == pytest.approx(4)
        assert 0.5 < band.get_width() < 1
        (text,) = axes.texts
        assert (text.get_text(), text.get_position()[0]) == ("found", 4)

    def test_nothing_found(self):
        for frame in (search_frame(), search_frame().drop(columns="found")):
            axes = plots.depth_search(frame).axes[2]
            assert list(axes.patches) == []
            assert list(axes.texts) == []

    def test_what_is_not_measured(self):
        frame = search_frame([(1, 1), (50, 50)])
        figure = plots.depth_search(frame)
        assert trials_and_depths(figure.axes[2], "not measured") == [(1, 1)]
        assert "not measured" in legend_texts(figure)


class TestScales:
    def test_decades_are_logarithmic(self):
        figure = plots.depth_search(search_frame([(1, 2), (20, 20), (200, 200)]))
        for axes in figure.axes:
            assert axes.get_yscale() == "log"
            assert axes.get_ylabel().endswith("(log scale)")
        assert [axes.get_xscale() for axes in figure.axes] == ["log", "log", "linear"]
        narrow = plots.depth_search(search_frame([(40, 41), (50, 50)]))
        assert {axes.get_yscale() for axes in narrow.axes} == {"linear"}
        assert {axes.get_xscale() for axes in narrow.axes} == {"linear"}

    @pytest.mark.parametrize(
        ("depths", "distance"),
        [
            pytest.param(depths, distance, marks=[pytest.mark.nightly] if (i + j) % 3 else [])
            for i, depths in enumerate([[(5,)], [(1, 1)], [(3, 3), (150, 200)], [(7,) * 5] * 60])
            for j, distance in enumerate([0.0, 4.1, 1e6])
        ],
    )
    def test_all_dots_lie_inside(self, depths, distance):
        """The rare ones are nightly: every depth and every distance is there in every run."""
        figure = plots.depth_search(search_frame(depths, distance=distance, found=0))
        for axes in figure.axes:
            left, right = axes.get_xlim()
            low, high = axes.get_ylim()
            drawn = dots(axes, *VERDICTS)
            assert drawn
            assert all(left < x < right and low < y < high for x, y in drawn)
        figure.draw_without_rendering()

    def test_texts_do_not_overlap(self):
        statuses = {2: "failed", 5: "running"}
        figure = plots.depth_search(search_frame(statuses=statuses, found=4))
        figure.draw_without_rendering()
        texts = [text for axes in figure.axes for text in (*axes.texts, axes.title)]
        texts += [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)]
        texts += [figure._suptitle, *figure.legends[0].get_texts()]
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        assert len(boxes) >= 17
        for place, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_a_frame_from_a_file():
    frame = search_frame(statuses={2: "failed"}, found=5)
    figures = []
    for found in (frame, pd.read_csv(io.StringIO(frame.to_csv(index=False)))):
        figures.append(plots.depth_search(found))
    for own, read in zip(*(figure.axes for figure in figures), strict=True):
        for state in (*VERDICTS, "failed"):
            assert np.array(dots(own, state)) == pytest.approx(np.array(dots(read, state)))
        assert len(own.patches) == len(read.patches)
    assert legend_texts(figures[0]) == legend_texts(figures[1])


def test_columns_of_objects():
    frame = search_frame(statuses={2: "failed"}, found=5)
    figure = plots.depth_search(frame.astype(object))
    assert legend_texts(figure) == legend_texts(plots.depth_search(frame))


def test_columns_that_are_not_drawn_may_be_missing():
    others = ["distance", "mean_perturbation", "depth_asked_for", "width", "seconds", "error"]
    plots.depth_search(search_frame().drop(columns=others))


@pytest.mark.parametrize(
    ("column", "value", "must"),
    [
        ("found", [False] * 8 + [True] * 4, "one trial"),
        ("status", "paused", "'completed', 'failed' or 'running'"),
        ("status", np.nan, "`status`"),
        ("status", pd.array([pd.NA] * 12, dtype="string"), "`status`"),
        ("meets_rule", "maybe", "True, False or nothing"),
        ("blocks", 2.5, "whole numbers"),
    ],
)
def test_values_that_are_refused(column, value, must):
    with refused("frame") as caught:
        plots.depth_search(search_frame().assign(**{column: value}))
    assert must in str(caught.value)
