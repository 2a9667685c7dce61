"""The figure of a search for the depth.

Not covered: how it looks; that was judged by eye on 1 to 5 stages and 1 to 60 trials.
"""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

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
                    "scaled_distance": 0.0 if status == "completed" and not measured else scaled,
                    "mean_scaled_perturbation": scaled / measured if known else np.nan,
                    "scaled_distance_deviation": 0.05 * scaled,
                    "meets_rule": bool(scaled / measured <= epsilon) if known else pd.NA,
                    "found": trial == found,
                }
            )
    return pd.DataFrame(rows).astype({"measured_blocks": "Int64", "meets_rule": "boolean"})


def dots(axes, *states):
    """The dots of these states, as a sorted list of (place, height)."""
    lines = [line for state in states for line in lines_with(axes, state)]
    return sorted((float(x), float(y)) for line in lines for x, y in line.get_xydata())


def pairs(rows, *columns):
    return sorted(rows[list(columns)].astype(float).itertuples(index=False, name=None))


def is_hollow(line):
    return to_rgb(line.get_markerfacecolor()) == (1.0, 1.0, 1.0)


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
        assert axes.get_ylim()[0] < heights[-1] < axes.get_ylim()[1]

    def test_no_trial_completed(self, panel, column):
        frame = search_frame(DEPTHS[:2], statuses={0: "failed", 1: "running"})
        figure = plots.depth_search(frame)
        axes = figure.axes[panel]
        assert [text.get_text() for text in axes.texts] == ["no values"]
        assert axes.get_lines() == []
        assert legend_texts(figure) == ["stage 1", "stage 2", "failed", "running"]
        draws(figure)


def test_what_the_networks_give_as_built():
    frame = search_frame()
    assert not [a for a in plots.depth_search(frame).axes if lines_with(a, "as built")]
    built = 1.3 * frame["mean_scaled_perturbation"].where(frame["trial"] != 1)
    figure = plots.depth_search(frame.assign(mean_scaled_perturbation_as_built=built))
    assert [len(lines_with(axes, "as built")) for axes in figure.axes] == [0, 2, 0]
    known = frame.assign(built=built)[frame["trial"] != 1]
    # Depths that were tried twice have the mean of both.
    known = known.groupby(["stage", "measured_blocks"], as_index=False)["built"].mean()
    expected = pairs(known, "measured_blocks", "built")
    np.testing.assert_allclose(dots(figure.axes[1], "as built"), expected)
    assert "as built" in legend_texts(figure)


class TestWay:
    def test_depths_over_trials(self):
        frame = search_frame(statuses={2: "failed", 5: "running"}, found=3)
        figure = plots.depth_search(frame.sample(frac=1.0, random_state=1))
        axes = figure.axes[2]
        for stage, line in enumerate(metric_lines(axes), start=1):
            rows = frame[frame["stage"] == stage]
            assert [round(x) for x in line.get_xdata()] == rows["trial"].tolist()
            assert list(line.get_ydata()) == rows["blocks"].tolist()
        verdicts = frame["meets_rule"].map({True: VERDICTS[0], False: VERDICTS[1]})
        states = verdicts.where(frame["status"] == "completed", frame["status"])
        looks = {}
        for state, rows in frame.groupby(states):
            drawn = sorted((round(x), y) for x, y in dots(axes, state))
            assert drawn == pairs(rows, "trial", "blocks")
            looks[state] = {is_hollow(line) for line in lines_with(axes, state)}
        assert (looks["does not"], looks["meets the rule"]) == ({True}, {False})
        assert {line.get_marker() for line in lines_with(axes, "failed")} == {"x"}
        assert {line.get_marker() for line in lines_with(axes, "running")} == {"D"}
        assert {line.get_markerfacecolor() for line in lines_with(axes, "running")} == {"none"}
        assert axes.get_xlabel() == "trial"
        states = [*VERDICTS, "failed", "running"]
        assert legend_texts(figure) == ["stage 1", "stage 2", *states, "rule, ε = 0.1"]
