"""Figures of read-outs and repetitions: curves, and single applications."""

import numpy as np
import pandas as pd
import pytest
from plots.make_frames import block_frame, readout_frame, repeat_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots


class TestConvergenceCurves:
    @pytest.mark.parametrize("blocks", [1, 5, 18])
    def test_blocks_and_then_repetitions(self, blocks):
        readout, repeated = readout_frame(blocks), repeat_frame(16)
        figure = plots.convergence_curves(readout, repeated)
        for axes, column in zip(figure.axes, ("cross_entropy", "distance"), strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == ["stage 1", "stage 2", "stage 3"]
            for stage, line in enumerate(lines, start=1):
                expected = [
                    *readout.loc[readout["stage"] == stage, column],
                    *repeated.query(f"stage == {stage} and repetition > 0")[column],
                ]
                assert points(line) == dict(enumerate(expected, start=1))
                assert len(expected) == blocks + 16

    def test_one_mark_where_repetitions_begin(self):
        axes = plots.convergence_curves(readout_frame(5), repeat_frame()).axes[0]
        assert [line.get_xdata()[0] for line in lines_with(axes, "length")] == [5]

    def test_marks_of_stages_that_differ_have_their_colours(self):
        readout = pd.concat(
            [readout_frame(5).query("stage == 1"), readout_frame(3).query("stage > 1")]
        )
        axes = plots.convergence_curves(readout, repeat_frame()).axes[1]
        colours = [line.get_color() for line in metric_lines(axes)]
        marks = {line.get_color(): line.get_xdata()[0] for line in lines_with(axes, "length")}
        assert marks == {colours[0]: 5, colours[1]: 3, colours[2]: 3}
        draws(axes.figure)

    def test_splits_are_solid_and_broken(self):
        splits = ("test", "train")
        figure = plots.convergence_curves(
            readout_frame(5, splits=splits), repeat_frame(splits=splits)
        )
        looks = {
            line.get_label(): (line.get_color(), line.get_linestyle())
            for line in metric_lines(figure.axes[0])
        }
        assert looks["stage 1, train"][0] == looks["stage 1, test"][0]
        assert looks["stage 1, train"][1] == "-"
        assert looks["stage 1, test"][1] == "--"
        stages = ["stage 1", "stage 2", "stage 3"]
        assert legend_texts(figure) == [*stages, "train", "test", "trained number of blocks"]

    def test_decades_are_logarithmic_and_zero_has_a_place(self):
        figure = plots.convergence_curves(readout_frame(5), repeat_frame())
        entropy, distance = figure.axes
        assert (entropy.get_yscale(), distance.get_yscale()) == ("log", "symlog")
        assert entropy.get_ylabel() == "cross-entropy (log scale)"
        assert distance.get_ylabel() == "distance to final state (log scale)"
        bottom, top = distance.get_ylim()
        assert bottom < 0
        assert top > repeat_frame()["distance"].max()
        assert [axes.get_xlabel() for axes in figure.axes] == ["number of blocks applied"] * 2

    def test_a_scale_is_named(self):
        scaled = repeat_frame().assign(scale=0.3)
        title = plots.convergence_curves(readout_frame(5), scaled).get_suptitle()
        assert title == "Stages, and their last blocks, branch scaled by 0.3"
        title = plots.convergence_curves(readout_frame(5), repeat_frame()).get_suptitle()
        assert title == "Stages, and their last blocks"

    def test_similar_values_stay_linear(self):
        readout = readout_frame(5).assign(distance=[1.0, 1.5, 2.0, 2.5, 0.0] * 3)
        repeated = repeat_frame(2).assign(distance=2.0, cross_entropy=1.0)
        figure = plots.convergence_curves(readout, repeated)
        assert [axes.get_yscale() for axes in figure.axes] == ["linear", "linear"]
        assert figure.axes[1].get_ylabel() == "distance to final state"

    def test_an_exploded_state_ends_its_line(self):
        repeated = repeat_frame()
        repeated.loc[repeated["repetition"] > 9, ["cross_entropy", "distance"]] = np.inf
        readout = readout_frame(5)
        readout.loc[2, "distance"] = np.nan
        figure = plots.convergence_curves(readout, repeated)
        for axes in figure.axes:
            assert max(points(metric_lines(axes)[2])) == 5 + 9
        assert 3 not in points(metric_lines(figure.axes[1])[0])
        draws(figure)

    def test_missing_stages_and_repetitions(self):
        figure = plots.convergence_curves(readout_frame(5), repeat_frame(first_stage=2))
        assert max(points(metric_lines(figure.axes[0])[0])) == 5
        assert max(points(metric_lines(figure.axes[0])[1])) == 21
        one = plots.convergence_curves(readout_frame(1, 1), repeat_frame(0, 1))
        assert list(points(metric_lines(one.axes[0])[0])) == [1]
        draws(one)

    def test_a_panel_without_values(self):
        frames = (
            frame.assign(cross_entropy=np.nan) for frame in (readout_frame(5), repeat_frame())
        )
        figure = plots.convergence_curves(*frames)
        assert [text.get_text() for text in figure.axes[0].texts] == ["no values"]

    def test_refused(self):
        readout, repeated = readout_frame(5), repeat_frame()
        function = plots.convergence_curves
        with pytest.raises(ValueError, match=r"`readout`.*missing: `distance`\. Received: "):
            function(readout.drop(columns="distance"), repeated)
        with pytest.raises(ValueError, match=r"`repeat_last_block`.*missing: `repetition`"):
            function(readout, repeated.drop(columns="repetition"))
        with pytest.raises(ValueError, match=r"stages of `readout`.*Received: stages \[3\]"):
            function(readout.query("stage < 3"), repeated)
        with pytest.raises(ValueError, match=r"same splits.*Received: .*\['train'\]"):
            function(readout_frame(5, splits=("train",)), repeated)
        with pytest.raises(ValueError, match=r"one row per stage and repetition.*repetition=0"):
            function(readout, pd.concat([repeated, repeated]))
        nothing = repeated.assign(cross_entropy=np.nan, distance=np.inf)
        with pytest.raises(ValueError, match=r"`cross_entropy`, `distance`.*Received: 51 rows"):
            function(readout, nothing)


class TestRepetitionSteps:
    def test_a_column_of_two_panels_per_stage(self):
        frame = repeat_frame(20, splits=("test", "train"))
        figure = plots.repetition_metrics(frame)
        grid = np.reshape(figure.axes, (2, 3))
        assert [axes.get_title() for axes in grid[0]] == ["stage 1", "stage 2", "stage 3"]
        for row, column in zip(grid, ("cosine_loss", "l2_ratio"), strict=True):
            for stage, axes in enumerate(row, start=1):
                lines = metric_lines(axes)
                assert [line.get_label() for line in lines] == ["train", "test"]
                rows = frame[(frame["stage"] == stage) & (frame["split"] == "train")]
                assert points(lines[0]) == dict(zip(rows["repetition"], rows[column], strict=True))
        assert legend_texts(figure) == ["train", "test"]

    @pytest.mark.parametrize(
        ("scale", "title"),
        [(1.0, "Repeated last block"), (0.3, "Repeated last block, branch scaled by 0.3")],
    )
    def test_a_scale_is_named(self, scale, title):
        frame = repeat_frame(3).assign(scale=scale)
        assert plots.repetition_metrics(frame).get_suptitle() == title

    @pytest.mark.parametrize("blocks", [1, 5, 18])
    def test_trained_blocks_and_then_repetitions(self, blocks):
        splits = ("test", "train")
        trained, frame = block_frame(blocks, splits=splits), repeat_frame(20, splits=splits)
        frame = frame[(frame["stage"] == 1) | (blocks > 1)]
        figure = plots.repetition_metrics(frame, trained.sample(frac=1.0, random_state=1))
        stages = sorted(frame["stage"].unique())
        grid = np.reshape(figure.axes, (2, len(stages)))
        for row, column in zip(grid, ("cosine_loss", "l2_ratio"), strict=True):
            for stage, axes in zip(stages, row, strict=True):
                before = trained.query(f"stage == {stage} and split == 'train'")
                after = frame.query(f"stage == {stage} and split == 'train' and repetition > 0")
                expected = dict(enumerate([*before[column], *after[column]], start=1))
                assert len(expected) == blocks + 20
                expected = {place: y for place, y in expected.items() if np.isfinite(y)}
                assert points(metric_lines(axes)[0]) == expected
                assert [line.get_xdata()[0] for line in lines_with(axes, "length")] == [blocks]
        assert figure.get_supxlabel() == "number of blocks applied"
        assert legend_texts(figure) == ["train", "test", "trained number of blocks"]
        draws(figure)

    def test_stages_of_different_lengths(self):
        trained = pd.concat([block_frame(5).query("stage == 1"), block_frame(3).query("stage > 1")])
        frame = repeat_frame(4)
        grid = np.reshape(plots.repetition_metrics(frame, trained).axes, (2, 3))
        for axes, length in zip(grid[0], (5, 3, 3), strict=True):
            assert [line.get_xdata()[0] for line in lines_with(axes, "length")] == [length]
            assert max(points(metric_lines(axes)[0])) == length + 4

    def test_trained_blocks_are_refused(self):
        function, frame, trained = plots.repetition_metrics, repeat_frame(), block_frame(5)
        with pytest.raises(ValueError, match=r"`block_metrics`.*missing: `l2_ratio`\. Received: "):
            function(frame, trained.drop(columns="l2_ratio"))
        with pytest.raises(ValueError, match=r"`frame`.*stages of `block_metrics`.*stages \[3\]"):
            function(frame, trained.query("stage < 3"))
        with pytest.raises(ValueError, match=r"`block_metrics`, `frame` must have the same splits"):
            function(frame, block_frame(5, splits=("train",)))

    def test_words_and_the_zero_line(self):
        figure = plots.repetition_metrics(repeat_frame(20))
        grid = np.reshape(figure.axes, (2, 3))
        assert "loss gradient ∂L/∂h" in grid[0, 0].get_ylabel()
        assert "‖F(h)‖ / ‖h‖ (log scale)" in grid[1, 0].get_ylabel()
        assert [len(lines_with(axes, "zero")) for axes in grid.ravel()] == [1, 1, 1, 0, 0, 0]
        assert {axes.get_yscale() for axes in grid[1]} == {"log"}
        assert "0: as trained" in figure.get_supxlabel()
        assert figure.legends == []

    def test_all_panels_of_a_row_share_their_axis(self):
        grid = np.reshape(plots.repetition_metrics(repeat_frame(20)).axes, (2, 3))
        for row in grid:
            assert len({axes.get_ylim() for axes in row}) == 1

    def test_gaps(self):
        frame = repeat_frame(5)
        frame.loc[frame["repetition"] > 3, "l2_ratio"] = np.inf
        frame.loc[frame["stage"] == 1, "cosine_loss"] = np.nan
        figure = plots.repetition_metrics(frame)
        assert [text.get_text() for text in figure.axes[0].texts] == ["no values"]
        assert list(points(metric_lines(figure.axes[3])[0])) == [0, 1, 2, 3]
        figure.draw_without_rendering()
        assert any(tick.label1.get_visible() for tick in figure.axes[0].yaxis.get_major_ticks())

    def test_one_row(self):
        figure = plots.repetition_metrics(repeat_frame(0, 1))
        assert len(figure.axes) == 2
        draws(figure)

    def test_refused(self):
        frame = repeat_frame()
        function = plots.repetition_metrics
        with pytest.raises(ValueError, match=r"missing: `cosine_loss`, `l2_ratio`\. Received: "):
            function(frame.drop(columns=["cosine_loss", "l2_ratio"]))
        with pytest.raises(ValueError, match=r"`cosine_loss`, `l2_ratio`.*Received: 51 rows"):
            function(frame.assign(cosine_loss=np.nan, l2_ratio=np.nan))
        with pytest.raises(ValueError, match=r"one row per stage and repetition.*Received: "):
            function(pd.concat([frame, frame.assign(scale=0.5)]))
