"""Figures: what is drawn, how it is labelled, and what is refused.

Not covered: how a figure looks; that was judged by eye on 3x3 and 3x18 blocks.
"""

import ast
import io
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from plots.make_frames import block_frame, distance_frame, history_frame
from plots.read_figures import draws, legend_texts, metric_lines, panels

from tfresidual import plots

PACKAGE = pathlib.Path(__file__).parents[2] / "tfresidual"
BLOCK_FIGURES = (
    "cosine_loss",
    "readout_cosine_loss",
    "l2_ratio",
    "gradient_norm",
    "perturbation",
    "scaled_perturbation",
)
ROUTE_FIGURES = (
    "borderline",
    "convergence_curves",
    "convergence_indices",
    "drop_blocks",
    "route_errors",
    "readout",
    "repetition_metrics",
    "shuffle_blocks",
)
# Those whose tests stand elsewhere.
NETWORK_FIGURES = (
    "attribution",
    "depth_search",
    "deviation_of_runs",
    "error_against_indices",
    "error_of_runs",
    "first_order",
    "fixed_point",
    "indices_of_runs",
    "iterative_inference",
    "lens",
    "line_element",
    "lipschitz_bounds",
    "network_curves",
    "parameter_efficiency",
    "patching",
    "signal_propagation",
    "weight_deviations",
)
WORDS = {
    "cosine_loss": ("cosine of block output F(h) and loss gradient", "∂L/∂h"),
    "readout_cosine_loss": ("cosine of block output F(h)", "gradient of the read-out loss"),
    "l2_ratio": ("size of block output over input", "‖F(h)‖ / ‖h‖"),
    "gradient_norm": ("size of loss gradient", "‖∂L/∂h‖"),
    "perturbation": ("distance the block moves the state", "‖F(h)‖"),
    "scaled_perturbation": ("distance moved over size of state", "‖F(h)‖ / ‖h‖"),
}


class TestBlocks:
    @pytest.mark.parametrize("name", BLOCK_FIGURES)
    def test_words_and_title(self, name):
        figure = getattr(plots, name)(block_frame(3))
        (axes,) = figure.axes
        assert isinstance(figure, Figure)
        label = axes.get_ylabel().replace("\n", " ")
        assert all(words in label for words in WORDS[name])
        assert "block" in axes.get_xlabel()
        assert 0 < len(figure.get_suptitle()) <= 30

    @pytest.mark.parametrize("name", BLOCK_FIGURES)
    def test_one_line_per_split(self, name):
        figure = getattr(plots, name)(block_frame(18, splits=("test", "train", "held out")))
        lines = metric_lines(figure.axes[0])
        assert [line.get_label() for line in lines] == ["train", "test", "held out"]
        assert len({line.get_color() for line in lines}) == 3
        assert legend_texts(figure) == ["train", "test", "held out"]

    def test_without_splits_there_is_no_legend(self):
        figure = plots.cosine_loss(block_frame(3))
        assert len(metric_lines(figure.axes[0])) == 1
        assert figure.legends == []

    @pytest.mark.parametrize("blocks", [3, 18])
    def test_values_stand_at_their_block(self, blocks):
        frame = block_frame(blocks).sample(frac=1.0, random_state=3)
        (line,) = metric_lines(plots.cosine_loss(frame).axes[0])
        drawn = {}
        for place, height in zip(line.get_xdata(), line.get_ydata(), strict=True):
            if np.isfinite(height):
                drawn[int(place)] = height
        expected = {
            (row.stage - 1) * blocks + row.block: row.cosine_loss
            for row in frame.itertuples()
            if np.isfinite(row.cosine_loss)
        }
        assert drawn == expected

    def test_gaps_for_nan_and_between_stages(self):
        (line,) = metric_lines(plots.l2_ratio(block_frame(3)).axes[0])
        heights = np.asarray(line.get_ydata())
        # 0 1 2 | 3 4 5 | 6 7 8 with a break after 2 and 5, and 3 and 6 without values
        assert np.isnan(heights).tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]

    def test_a_missing_row_is_a_gap_and_moves_nothing(self):
        frame = block_frame(3, gap=False)
        frame = frame[~((frame["stage"] == 2) & (frame["block"] == 0))]
        (line,) = metric_lines(plots.l2_ratio(frame).axes[0])
        assert np.isnan(line.get_ydata()[4])
        assert line.get_xdata()[5] == 4

    def test_an_infinite_value_is_a_gap(self):
        frame = block_frame(3, gap=False)
        frame.loc[1, "gradient_norm"] = np.inf
        (line,) = metric_lines(plots.gradient_norm(frame).axes[0])
        assert np.isnan(line.get_ydata()[1])

    def test_stages_of_different_length_are_marked(self):
        frame = pd.concat(
            [block_frame(4, stages=1), block_frame(5, stages=2, gap=False).query("stage == 2")]
        )
        axes = plots.perturbation(frame).axes[0]
        marks = [line for line in axes.get_lines() if line.get_gid() == "boundary"]
        assert [line.get_xdata()[0] for line in marks] == [3.5]
        assert [text.get_text() for text in axes.texts] == ["stage 1", "stage 2"]

    def test_the_zero_line_is_the_cosines(self):
        def zero_lines(figure):
            return [line for line in figure.axes[0].get_lines() if line.get_gid() == "zero"]

        assert len(zero_lines(plots.cosine_loss(block_frame(3)))) == 1
        assert zero_lines(plots.l2_ratio(block_frame(3))) == []

    def test_the_readout_form_shows_the_last_stage_only(self):
        axes = plots.readout_cosine_loss(block_frame(3, gap=False)).axes[0]
        (line,) = metric_lines(axes)
        assert len(line.get_xdata()) == 3
        assert axes.get_xlabel() == "block of stage 3"

    def test_wide_spread_is_logarithmic(self):
        wide = plots.gradient_norm(block_frame(18)).axes[0]
        assert wide.get_yscale() == "log"
        assert "log scale" in wide.get_ylabel()
        assert plots.perturbation(block_frame(3)).axes[0].get_yscale() == "linear"
        assert plots.cosine_loss(block_frame(18)).axes[0].get_yscale() == "linear"

    def test_epsilon_is_a_named_line(self):
        figure = plots.scaled_perturbation(block_frame(3), epsilon=0.1)
        (line,) = [line for line in figure.axes[0].get_lines() if line.get_gid() == "ε = 0.1"]
        assert list(line.get_ydata()) == [0.1, 0.1]
        assert legend_texts(figure) == ["ε = 0.1"]
        with pytest.raises(ValueError, match=r"`epsilon` must be .* Received: epsilon=-1"):
            plots.scaled_perturbation(block_frame(3), epsilon=-1)


class TestEpochs:
    @pytest.mark.parametrize("blocks", [3, 18])
    def test_a_panel_per_stage_and_a_line_per_block(self, blocks):
        figure = plots.cosine_loss(block_frame(blocks, epochs=4))
        lines = [len(metric_lines(axes)) for axes in panels(figure)]
        assert lines == [blocks, blocks - 1, blocks - 1]  # the blocks without values have no line
        assert [axes.get_title() for axes in panels(figure)] == ["stage 1", "stage 2", "stage 3"]
        assert figure.get_supxlabel() == "epoch"
        assert "cosine of block output" in figure.get_supylabel()

    def test_splits_have_panels_of_their_own(self):
        figure = plots.l2_ratio(block_frame(3, splits=("train", "test"), epochs=3))
        titles = [axes.get_title() for axes in panels(figure)]
        assert titles[0] == "stage 1, train"
        assert titles[-1] == "stage 3, test"
        assert len(titles) == 6

    def test_colours_run_from_blue_to_red(self):
        figure = plots.cosine_loss(block_frame(18, stages=1, epochs=3))
        lines = metric_lines(panels(figure)[0])
        colours = np.array([to_rgb(line.get_color()) for line in lines])
        assert colours[0, 2] > 2 * colours[0, 0]
        assert colours[-1, 0] > 2 * colours[-1, 2]
        warmth = colours[:, 0] - colours[:, 2]
        assert (np.diff(warmth) > 0).all()

    def test_epochs_are_counted_from_one(self):
        figure = plots.gradient_norm(block_frame(3, stages=1, epochs=4))
        assert list(metric_lines(panels(figure)[0])[0].get_xdata()) == [1, 2, 3, 4]

    def test_a_single_epoch_is_drawn_over_the_blocks(self):
        figure = plots.cosine_loss(block_frame(3, epochs=1))
        assert figure.axes[0].get_xlabel() == "residual block index"

    def test_the_readout_form_has_one_panel(self):
        figure = plots.readout_cosine_loss(block_frame(3, epochs=3))
        assert [axes.get_title() for axes in panels(figure)] == ["stage 3"]

    def test_many_stages_wrap(self):
        figure = plots.cosine_loss(block_frame(3, stages=5, epochs=3))
        assert len(panels(figure)) == 5
        draws(figure)


class TestDistance:
    def test_bars_per_stage_and_split(self):
        figure = plots.computational_distance(distance_frame(splits=("train", "test")))
        assert len(figure.axes) == 2
        for axes, column in zip(figure.axes, ("distance", "scaled_distance"), strict=True):
            heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
            frame = distance_frame(splits=("train", "test"))
            assert heights == [
                frame[frame["split"] == split][column].tolist() for split in ("train", "test")
            ]
        assert legend_texts(figure) == ["train", "test"]

    def test_words(self):
        absolute, scaled = plots.computational_distance(distance_frame(18)).axes
        ticks = [tick.get_text() for tick in absolute.get_xticklabels()]
        assert ticks == [
            "stage 1\n18 blocks",
            "stage 2\n18 blocks",
            "stage 3\n18 blocks",
            "all\n54 blocks",
        ]
        assert absolute.get_ylabel() == "sum of ‖F(h)‖ over the blocks"
        assert scaled.get_ylabel() == "sum of ‖F(h)‖ / ‖h‖ over the blocks"
        assert "3.69" in [text.get_text() for text in scaled.texts]

    def test_a_frame_from_a_file(self):
        buffer = io.StringIO(distance_frame(stages=11).to_csv(index=False))
        frame = pd.read_csv(buffer).drop(columns="blocks").sample(frac=1.0, random_state=1)
        ticks = plots.computational_distance(frame).axes[0].get_xticklabels()
        assert [tick.get_text() for tick in ticks] == [*(f"stage {s}" for s in range(1, 12)), "all"]

    def test_a_missing_distance_is_a_gap(self):
        frame = distance_frame()
        frame.loc[0, "scaled_distance"] = np.nan
        scaled = plots.computational_distance(frame).axes[1]
        assert np.isnan(scaled.containers[0][0].get_height())
        draws(scaled.figure)

    def test_refused(self):
        frame = distance_frame()
        with pytest.raises(ValueError, match=r"missing: `scaled_distance`.*Received: columns="):
            plots.computational_distance(frame.drop(columns="scaled_distance"))
        with pytest.raises(ValueError, match=r"one row per stage.*Received: .*stage='1'"):
            plots.computational_distance(pd.concat([frame, frame]))
        with pytest.raises(ValueError, match=r"finite number.*`distance`.*Received:"):
            plots.computational_distance(frame.assign(distance=np.nan))


class TestTraining:
    def test_panels_lines_and_epochs_from_one(self):
        figure = plots.training_curves(history_frame(40))
        assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy"]
        for axes in figure.axes:
            labels = [line.get_label() for line in metric_lines(axes)]
            assert labels == ["training", "validation"]
            assert list(metric_lines(axes)[0].get_xdata()) == list(range(1, 41))
            assert axes.get_xlabel() == "epoch"

    def test_drops_stand_between_the_epochs_and_are_named(self):
        axes = plots.training_curves(history_frame(40)).axes[0]
        marks = [line.get_xdata()[0] for line in axes.get_lines() if line.get_gid() == "drop"]
        assert marks == [20.5, 30.5]
        assert [text.get_text() for text in axes.texts] == ["0.01", "0.001"]

    def test_a_smooth_schedule_has_no_drops(self):
        frame = history_frame(40, drops=()).assign(learning_rate=np.linspace(0.1, 0.001, 40))
        frame.loc[39, "learning_rate"] = frame.loc[38, "learning_rate"]
        axes = plots.training_curves(frame.iloc[:30]).axes[0]
        assert not [line for line in axes.get_lines() if line.get_gid() == "drop"]

    def test_the_best_epoch_is_that_of_the_validation_metric(self):
        frame = history_frame(40, metric="exact_match")
        frame.loc[11, "val_exact_match"] = 0.99
        figure = plots.training_curves(frame)
        mark = [line for line in figure.axes[1].get_lines() if line.get_gid() == "best"]
        assert mark[0].get_xdata()[0] == 12
        assert "best validation exact match: 0.990 (epoch 12)" in legend_texts(figure)

    def test_loss_alone(self):
        frame = history_frame(5)[["epoch", "loss"]]
        figure = plots.training_curves(frame)
        assert len(figure.axes) == 1
        assert "best training loss" in legend_texts(figure)[-1]

    def test_a_metric_without_validation(self):
        figure = plots.training_curves(history_frame(5)[["epoch", "loss", "accuracy"]])
        assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy"]

    def test_chosen_metrics(self):
        figure = plots.training_curves(history_frame(5), metrics=["stage1/block1/l2_ratio"])
        assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "stage1/block1/l2 ratio"]

    def test_validation_in_some_epochs_only(self):
        frame = history_frame(40)
        frame.loc[frame["epoch"] % 5 != 4, ["val_loss", "val_accuracy"]] = np.nan
        line = metric_lines(plots.training_curves(frame).axes[0])[1]
        assert line.get_marker() == "s"  # points that no line joins must still be seen

    def test_one_epoch(self):
        assert len(draws(plots.training_curves(history_frame(1)))) > 5_000

    def test_refused(self):
        with pytest.raises(ValueError, match=r"`history`.*missing: `loss`.*Received: columns="):
            plots.training_curves(history_frame(5).drop(columns="loss"))
        with pytest.raises(ValueError, match=r"missing: `top_5`.*Received: columns="):
            plots.training_curves(history_frame(5), metrics=["top_5"])
        with pytest.raises(ValueError, match=r"`history`.*DataFrame.*Received: .*dict"):
            plots.training_curves({"loss": [1.0]})
        with pytest.raises(ValueError, match=r"at least one row.*Received:"):
            plots.training_curves(history_frame(5).iloc[:0])
        with pytest.raises(ValueError, match=r"finite number.*`val_loss`.*Received:"):
            plots.training_curves(history_frame(5).assign(val_loss=np.nan))


@pytest.mark.parametrize("name", BLOCK_FIGURES)
class TestRefused:
    def test_missing_columns(self, name):
        frame = block_frame(3).drop(columns=["block", name])
        with pytest.raises(
            ValueError, match=rf"`frame`.*missing: `block`, `{name}`\. Received: columns="
        ):
            getattr(plots, name)(frame)

    def test_no_frame(self, name):
        with pytest.raises(
            ValueError, match=r"`frame` must be a pandas.DataFrame.*Received: .*list"
        ):
            getattr(plots, name)([1, 2])

    def test_no_rows(self, name):
        with pytest.raises(ValueError, match=r"at least one row.*Received: a frame of shape \(0,"):
            getattr(plots, name)(block_frame(3).iloc[:0])

    def test_nothing_but_nan(self, name):
        with pytest.raises(ValueError, match=rf"finite number.*`{name}`.*Received: 9 rows"):
            getattr(plots, name)(block_frame(3).assign(**{name: np.nan}))

    def test_text(self, name):
        with pytest.raises(ValueError, match=rf"must hold numbers.*`{name}`.*Received: \['high'\]"):
            getattr(plots, name)(block_frame(3).assign(**{name: "high"}))

    def test_rows_that_repeat(self, name):
        frame = pd.concat([block_frame(3), block_frame(3)])
        with pytest.raises(ValueError, match=r"one row per stage and block.*Received: several"):
            getattr(plots, name)(frame)

    def test_broken_block_numbers(self, name):
        with pytest.raises(ValueError, match=r"whole numbers.*`block`.*Received: \[0.5\]"):
            getattr(plots, name)(block_frame(3).assign(block=0.5))


def test_the_frame_is_left_alone():
    frame = block_frame(3, splits=("train", "test"))
    before = frame.copy()
    plots.cosine_loss(frame)
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_figures_can_be_saved(kind):
    content = draws(plots.cosine_loss(block_frame(18, splits=("train", "test"))), kind)
    assert len(content) > 10_000
    assert (b"<svg" if kind == "svg" else b"\x89PNG") in content[:2000]


def test_public_names():
    others = {"computational_distance", "images", "training_curves", "trajectories"}
    assert set(plots.__all__) >= {*BLOCK_FIGURES, *ROUTE_FIGURES, *NETWORK_FIGURES, *others}
    assert plots.__all__ == sorted(plots.__all__)
    assert all(callable(getattr(plots, name)) for name in plots.__all__)
    assert set(plots.__all__) <= set(dir(plots))
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        _ = plots.pie


@pytest.mark.parametrize("folder", ["plots", "report"])
def test_no_import_of_tensorflow_keras_or_pyplot(folder):
    files = sorted((PACKAGE / folder).glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                assert name.split(".")[0] not in ("tensorflow", "keras", "keras_tuner"), file
                assert "pyplot" not in name, file


def test_pyplot_is_never_loaded():
    # The parent package may load Keras, which loads pyplot itself; a bare stand-in does not.
    program = textwrap.dedent(
        f"""
        import io, sys, types
        parent = types.ModuleType("tfresidual")
        parent.__path__ = [{str(PACKAGE)!r}]
        sys.modules["tfresidual"] = parent
        sys.path.insert(0, {str(pathlib.Path(__file__).parents[1])!r})
        import matplotlib
        before = matplotlib.rcParams.copy()
        from plots.make_frames import block_frame, history_frame, repeat_frame
        from tfresidual import plots
        for figure in (
            plots.cosine_loss(block_frame(3, epochs=2)),
            plots.training_curves(history_frame(3)),
            plots.repetition_metrics(repeat_frame(3)),
        ):
            figure.savefig(io.BytesIO(), format="png")
        assert matplotlib.rcParams.copy() == before
        loaded = {{"matplotlib.pyplot", "tensorflow", "keras"}} & set(sys.modules)
        assert not loaded, loaded
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
