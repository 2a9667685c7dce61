"""Figures of networks on changed routes.

Not covered: how they look; that was judged by eye.
"""

import numpy as np
import pytest
from plots import make_frames as make
from plots.read_figures import (
    by_label,
    legend_texts,
    levels,
    lines_with,
    metric_lines,
    named,
    points,
)

from tfresidual import plots

SPLITS = ("test", "train")
METRICS = ("accuracy", "cross_entropy", "entropy")
GROUPS = ("borderline", "correct", "all")
STAGES = ["stage 1", "stage 2", "stage 3"]
INDICES = ("convergence_index", "recurrence_index", "divergence_index")


def three(blocks=5, **settings):
    return (
        make.readout_frame(blocks, **settings),
        make.drop_frame(blocks, **settings),
        make.repeat_frame(**settings),
    )


def course(rows, place, height, label):
    """What a line of rows shows, in the form of `by_label`."""
    found = dict(zip(rows[place], rows[height], strict=True))
    return {label: {x: y for x, y in found.items() if np.isfinite(y)}}


def name_of(stage):
    return stage if stage == "mean" else f"stage {stage}"


class TestRouteErrors:
    @pytest.mark.parametrize("blocks", [1, 5])
    def test_a_row_per_split_and_a_line_per_stage(self, blocks):
        tables = three(blocks, splits=SPLITS)
        figure = plots.route_errors(*tables, chance={"train": 0.9, "test": 0.7})
        grid = np.reshape(figure.axes, (2, 3))
        for row, split, chance in zip(grid, ("train", "test"), (0.9, 0.7), strict=True):
            keys = (("block", 1), ("block", 0), ("repetition", 0))
            names = ("left early", "dropped", "repeated")
            for axes, frame, (key, first), name in zip(row, tables, keys, names, strict=True):
                expected = {}
                for stage, rows in frame[frame["split"] == split].groupby("stage"):
                    rows = rows.assign(place=rows[key] + first)
                    expected |= course(rows, "place", "error", f"stage {stage}, error")
                assert by_label(axes) == {k: v for k, v in expected.items() if v}
                assert axes.get_title() == f"{name}, {split}"
                assert levels(axes, "chance") == [chance]
                assert levels(axes, "unperturbed_error") == [frame_error(tables[1], split)]
        assert len({axes.get_ylim() for axes in grid.ravel()}) == 1
        assert grid[0, 0].get_ylim()[0] == 0
        assert legend_texts(figure) == [*STAGES, "unperturbed", "chance"]
        assert [axes.get_xlabel() for axes in grid[1]] == [
            "blocks before the stage is left",
            "dropped block",
            "repetitions of the last block",
        ]


def frame_error(frame, split):
    return frame.loc[frame["split"] == split, "unperturbed_error"].iloc[0]


class TestShuffleBlocks:
    def test_a_panel_per_stage_and_dots_per_split(self):
        frame = make.shuffle_frame(stages=6, splits=SPLITS)
        frame.loc[frame["stage"] == 2, "unperturbed_error"] = np.nan
        figure = plots.shuffle_blocks(frame)
        for stage, axes in enumerate(figure.axes, start=1):
            assert axes.get_title() == f"stage {stage}"
            for line, split in zip(metric_lines(axes), ("train", "test"), strict=True):
                rows = frame[(frame["stage"] == stage) & (frame["split"] == split)]
                assert line.get_xdata().tolist() == rows["kendall_tau"].tolist()
                assert line.get_ydata().tolist() == rows["error"].tolist()
                assert line.get_linestyle() == "None"
            expected = [] if stage == 2 else [0.07, 0.02]
            assert sorted(levels(axes, "unperturbed_error")) == pytest.approx(sorted(expected))
        left, right = axes.get_xlim()
        assert left > 1 > frame["kendall_tau"].min() > right
        assert axes.get_ylim()[0] == 0
        assert figure.get_supxlabel().startswith("Kendall")
        assert figure.get_supylabel() == "error"
        assert legend_texts(figure) == ["train", "test", "order kept"]


class TestConvergenceCurves:
    @pytest.mark.parametrize("blocks", [1, 5, 18])
    def test_blocks_and_then_repetitions(self, blocks):
        readout = make.readout_frame(blocks, splits=SPLITS)
        repeated = make.repeat_frame(16, splits=SPLITS)
        figure = plots.convergence_curves(readout, repeated)
        for axes, column in zip(figure.axes, ("cross_entropy", "distance"), strict=True):
            expected = {}
            for (stage, split), rows in readout.groupby(["stage", "split"]):
                rest = repeated.query(f"stage == {stage} and split == '{split}' and repetition > 0")
                heights = [*rows[column], *rest[column]]
                assert len(heights) == blocks + 16
                expected[f"stage {stage}, {split}, {column}"] = dict(enumerate(heights, start=1))
            assert by_label(axes) == expected
            assert [line.get_xdata()[0] for line in lines_with(axes, "length")] == [blocks]
            assert axes.get_xlabel() == "number of blocks applied"
        assert [axes.get_yscale() for axes in figure.axes] == ["log", "symlog"]
        assert legend_texts(figure) == [*STAGES, "train", "test", "trained number of blocks"]


class TestRepetitionMetrics:
    @pytest.mark.parametrize("blocks", [None, 1, 5, 18])
    def test_trained_blocks_and_then_repetitions(self, blocks):
        frame, trained = make.repeat_frame(20, splits=SPLITS), None
        frame.loc[frame["stage"] == 1, "cosine_loss"] = np.nan
        if blocks is not None:
            trained = make.block_frame(blocks, splits=SPLITS, gap=False)
            frame = frame[frame["stage"] < 3]
        figure = plots.repetition_metrics(frame, trained)
        stages = sorted(set(frame["stage"]))
        grid = np.reshape(figure.axes, (2, len(stages)))
        for row, column in zip(grid, ("cosine_loss", "l2_ratio"), strict=True):
            for axes, stage in zip(row, stages, strict=True):
                expected = {}
                for split in ("train", "test"):
                    rows = frame.query(f"stage == {stage} and split == '{split}'")
                    heights, first = rows[column].tolist(), 0
                    if blocks is not None:
                        before = trained.query(f"stage == {stage} and split == '{split}'")
                        heights, first = [*before[column], *heights[1:]], 1
                    found = {x: y for x, y in enumerate(heights, start=first) if np.isfinite(y)}
                    expected[f"{split}, {column}"] = found
                assert by_label(axes) == {name: line for name, line in expected.items() if line}
                marks = [line.get_xdata()[0] for line in lines_with(axes, "length")]
                assert marks == ([] if blocks is None else [blocks])
            assert len({axes.get_ylim() for axes in row}) == 1
        assert [axes.get_title() for axes in grid[0]] == STAGES[: len(stages)]
        assert [text.get_text() for text in grid[0, 0].texts] == (
            ["no values"] if blocks is None else []
        )
        below = "repetition of the last block (0: as trained)"
        assert figure.get_supxlabel() == (below if blocks is None else "number of blocks applied")


class TestFixedPoint:
    def test_a_line_per_stage_and_the_slope_of_mu(self):
        frame = make.fixed_point_frame(splits=SPLITS)
        frame.loc[(frame["stage"] == 1) & (frame["repetition"] < 2), "change"] = np.nan
        figure = plots.fixed_point(frame.sample(frac=1.0, random_state=1), mu=0.95)
        metrics = ("change", "distance", "contraction")
        for axes, metric in zip(figure.axes, metrics, strict=True):
            expected = {}
            for (stage, split), rows in frame[frame[metric] > 0].groupby(["stage", "split"]):
                expected |= course(rows, "repetition", metric, f"stage {stage}, {split}, {metric}")
            assert by_label(axes) == expected
        slopes = lines_with(figure.axes[0], "slope")
        assert len(slopes) == 6
        for line in slopes:
            begin = int(line.get_xdata()[0])
            rows = frame[(frame["repetition"] == begin) & (frame["change"] == line.get_ydata()[0])]
            assert begin == (2 if rows["stage"].iloc[0] == 1 else 0)
            assert list(line.get_xdata()) == list(range(begin, 33))
            heights = rows["change"].iloc[0] * 0.95 ** np.arange(33 - begin)
            assert list(line.get_ydata()) == pytest.approx(heights)
        assert levels(figure.axes[2], "mu") == [0.95]
        assert figure.axes[2].get_ylim()[0] == 0
        assert figure.axes[2].get_ylim()[1] > 0.95
        assert legend_texts(figure) == [*STAGES, "train", "test", "μ = 0.95 per repetition"]
        assert lines_with(plots.fixed_point(frame).axes[0], "slope") == []


class TestConvergenceIndices:
    def test_a_dot_per_stage_split_and_basis(self):
        splits = ("train", "validation", "test", "held out")
        frame = make.index_frame(splits=splits)
        frame.loc[0, "divergence_index"] = -1.5
        frame.loc[1, "recurrence_index"] = np.inf
        figure = plots.convergence_indices(frame.sample(frac=1.0, random_state=1))
        for axes, index in zip(figure.axes, INDICES, strict=True):
            drawn = [
                (*line.get_label().split(", ")[:2], line.get_markerfacecolor() != "none", round(x))
                for line in metric_lines(axes)
                for x in points(line)
            ]
            rows = frame[np.isfinite(frame[index])]
            stages = ["mean", 1, 2, 3]
            expected = [
                (split, basis, basis == "labels", stages.index(stage))
                for split, basis, stage in zip(rows.split, rows.basis, rows.stage, strict=True)
            ]
            assert sorted(drawn) == sorted(expected)
            assert list(named(axes).values()) == ["mean", *STAGES]
            heights = sorted(y for line in metric_lines(axes) for y in points(line).values())
            assert heights == sorted(rows[index])
        assert legend_texts(figure) == [*splits, "labels", "agreement"]


class TestBorderline:
    @pytest.mark.parametrize("along", ["blocks", "repetitions"])
    def test_a_line_per_group_and_split(self, along):
        frame = make.borderline_frame(splits=SPLITS)
        figure = plots.borderline(frame.sample(frac=1.0, random_state=1), along=along)
        chosen = frame[frame["along"] == along]
        for axes, metric in zip(figure.axes, METRICS, strict=True):
            expected = {}
            for (group, split), rows in chosen.groupby(["group", "split"]):
                expected |= course(rows, "block", metric, f"{group}, {split}, {metric}")
            assert by_label(axes) == expected
            assert ("repetitions" in axes.get_xlabel()) == (along == "repetitions")
        counts = {"borderline": "310", "correct": "9,000", "all": "10,000"}
        assert legend_texts(figure) == [
            f"{group}, {split} ({counts[group]} images)"
            for group in GROUPS
            for split in ("train", "test")
        ]

    def test_groups_of_the_next_block(self):
        frame = make.borderline_frame().assign(
            accuracy_before=0.5,
            cross_entropy_before=1e-4,
            entropy_before=lambda rows: rows["block"] / 100,
            scale=lambda rows: np.where(rows["along"] == "blocks", 1.0, 0.3),
        )
        frame.loc[(frame["group"] == "correct") & (frame["block"] == 14), "images"] = 8000
        figure = plots.borderline(frame)
        for axes, metric in zip(figure.axes, METRICS, strict=True):
            for line, group in zip(metric_lines(axes), GROUPS, strict=True):
                rows = frame[(frame["along"] == "blocks") & (frame["group"] == group)]
                places, heights = (np.reshape(values, (-1, 3)) for values in line.get_data())
                expected = np.stack([rows["block"] - 1, rows["block"]], axis=1)
                np.testing.assert_array_equal(places[:, :2], expected)
                np.testing.assert_array_equal(heights[:, :2], rows[[f"{metric}_before", metric]])
                assert np.isnan([places[:, 2], heights[:, 2]]).all()
        assert figure.axes[1].get_yscale() == "log"
        assert legend_texts(figure)[1] == "correct (8,000 to 9,000 images)"
        assert figure.get_suptitle() == "Borderline before each block"
        again = plots.borderline(frame, along="repetitions").get_suptitle()
        assert again == "Borderline before each block, branch scaled by 0.3"

    def test_a_group_without_images_has_no_line_but_is_counted(self):
        frame = make.borderline_frame().assign(entropy=np.nan)
        frame.loc[frame["group"] == "borderline", ["images", "accuracy"]] = 0
        figure = plots.borderline(frame)
        assert list(by_label(figure.axes[0])) == ["correct, accuracy", "all, accuracy"]
        assert legend_texts(figure)[0] == "borderline (0 images)"
        assert [text.get_text() for text in figure.axes[2].texts] == ["no values"]
