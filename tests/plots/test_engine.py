"""The engine of the figures: what each mark shows, the axes, the legend, and looks.

Not covered: how a figure looks; that was judged by eye.
"""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from plots import make_frames as make
from plots.read_figures import (
    band,
    by_label,
    legend_texts,
    levels,
    lines_with,
    metric_lines,
    named,
    named_items,
    panels,
    points,
)

from tfresidual import plots
from tfresidual.plots import style

SPLITS = ("train", "test")
GAP = "changes the shape"
LENS = ("cross_entropy", "entropy", "kl", "rank")


def gaps(axes):
    return sorted(patch.get_x() + 0.5 for patch in axes.patches if patch.get_gid() == "gap")


class TestMarks:
    def test_bars_and_their_sums(self):
        frame = make.state_frame(("attribution",), blocks=4, splits=SPLITS)
        figure = plots.attribution(frame)
        above, below = figure.axes
        lines = by_label(below)
        for number, (split, bars) in enumerate(zip(SPLITS, above.containers, strict=True)):
            heights = frame.loc[frame["split"] == split, "attribution"]
            np.testing.assert_allclose([bar.get_height() for bar in bars], heights)
            middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
            np.testing.assert_allclose(middles, np.arange(5) + (-0.195, 0.195)[number])
            sums = list(lines[f"{split}, attribution"].values())
            np.testing.assert_allclose(sums, heights.cumsum())
        assert named(below) == {0: "first", 1: "1.0", 2: "1.1", 3: "1.2", 4: "head"}
        assert [bars[0].get_hatch() for bars in above.containers] == ["", "////"]
        assert legend_texts(figure) == list(SPLITS)

    def test_a_band_is_one_standard_error_wide(self):
        frame = make.block_frame(3, gap=False).assign(cosine_loss_se=0.01)
        (axes,) = plots.cosine_loss(frame).axes
        edges = band(axes)
        for place, height in enumerate(frame["cosine_loss"]):
            assert {(place, round(height + side, 6)) for side in (-0.01, 0.01)} <= edges
        assert not plots.cosine_loss(frame.drop(columns="cosine_loss_se")).axes[0].collections

    def test_a_block_between_gaps_has_an_error_bar(self):
        frame = make.block_frame(2).assign(cosine_loss_se=0.01)
        (axes,) = plots.cosine_loss(frame).axes
        (bars,) = named_items(axes.collections, "error bar")
        for ends, place in zip(bars.get_segments(), (3, 5), strict=True):
            height = frame["cosine_loss"][place]
            np.testing.assert_allclose(ends, [(place, height - 0.01), (place, height + 0.01)])

    def test_a_line_is_the_mean_over_seeds_and_its_band_their_range(self):
        frame = make.network_frame(seeds=3)
        figure = plots.network_curves(frame.sample(frac=1.0, random_state=1))
        for network, rows in frame.groupby("network"):
            for column, split in (("train_error", "training"), ("error", "validation")):
                values = rows.groupby("epoch")[column].agg(["mean", "min", "max"])
                values.index += 1
                label = f"{network}, {split}, error"
                assert by_label(figure.axes[0])[label] == pytest.approx(dict(values["mean"]))
                edges = {
                    (x, y) for name in ("min", "max") for x, y in values[name].round(6).items()
                }
                assert edges == band(figure.axes[0], label)
        one = plots.network_curves(frame[frame["seed"] == 0], metrics=["error"])
        assert not one.axes[0].collections

    def test_a_map_of_positions(self):
        frame = make.keys(1, SPLITS, block=range(-1, 3), position=range(3)).iloc[1:]
        frame["effect"] = np.random.default_rng(0).random(len(frame))
        figure = plots.patching(frame)
        *shown, scale = figure.axes
        for axes, split in zip(shown, SPLITS, strict=True):
            (image,) = axes.get_images()
            rows = frame[frame["split"] == split].set_index(["position", "block"])["effect"]
            drawn = np.ma.filled(image.get_array(), np.nan)
            expected = [[rows.get((p, block), np.nan) for block in range(-1, 3)] for p in range(3)]
            np.testing.assert_array_equal(drawn, expected)
            assert image.get_clim() == (-1, 1)
            assert axes.get_title() == split
        assert named(axes) == {0: "first", 1: "1.0", 2: "1.1", 3: "1.2"}
        assert "effect" in scale.get_ylabel()

    @pytest.mark.parametrize("column", ["cross_entropy_rise", "effect"])
    def test_a_map_of_heads(self, column):
        frame = make.head_frame(stages=1).rename(columns={"cross_entropy_rise": column})
        draw = plots.patching if column == "effect" else plots.drop_heads
        shown, scale = draw(frame).axes
        (image,) = shown.get_images()
        drawn = np.ma.filled(image.get_array(), np.nan)
        rows = frame.pivot_table(column, "head", "block")
        np.testing.assert_array_equal(drawn[:, -3:], rows)
        largest = 1 if column == "effect" else frame[column].abs().max()
        assert image.get_clim() == (-largest, largest)
        assert shown.get_ylabel() == "head"
        assert ("effect" if column == "effect" else "nats") in scale.get_ylabel()

    def test_a_line_per_epoch(self):
        frame = make.propagation_frame(splits=SPLITS, epochs=4)
        figure = plots.signal_propagation(frame)
        columns = ("state_norm", "state_gradient_norm", "shortcut_share")
        for axes, column in zip(panels(figure), columns, strict=True):
            for (epoch, split), rows in frame.groupby(["epoch", "split"]):
                drawn = by_label(axes)[f"epoch {epoch + 1}, {split}, {column}"]
                assert list(drawn.values()) == rows[column].tolist()
            assert len({line.get_color() for line in metric_lines(axes)}) == 4
            assert {line.get_linestyle() for line in metric_lines(axes)} == {"-", "--"}
        assert legend_texts(figure) == list(SPLITS)
        assert figure.axes[-1].get_ylabel() == "epoch"


class TestPlaces:
    def test_stages_of_different_length_are_marked_and_never_joined(self):
        parts = (make.block_frame(4, stages=1), make.block_frame(5, stages=2).query("stage == 2"))
        (axes,) = plots.perturbation(pd.concat(parts)).axes
        assert [line.get_xdata()[0] for line in lines_with(axes, "boundary")] == [3.5]
        assert [text.get_text() for text in axes.texts] == ["stage 1", "stage 2"]
        (line,) = metric_lines(axes)
        heights = dict(zip(*line.get_data(), strict=True))
        assert np.isnan(heights[3.5])
        names = [f"{stage}.{i}" for stage in (1, 2) for i in range(3 + stage)]
        assert list(named(axes).values()) == names
        assert axes.get_xlabel() == "block"

    def test_blocks_that_change_the_shape_are_hatched(self):
        figure = plots.l2_ratio(make.block_frame(3, splits=SPLITS))
        assert gaps(figure.axes[0]) == [3, 6]
        assert legend_texts(figure) == [*SPLITS, GAP]
        # Neither an infinite value nor a missing row says so.
        frame = make.block_frame(3, gap=False)
        frame.loc[1, "l2_ratio"] = np.inf
        figure = plots.l2_ratio(frame.drop(index=4))
        assert gaps(figure.axes[0]) == []
        assert figure.legends == []
        assert sorted(points(metric_lines(figure.axes[0])[0])) == [0, 2, 3, 5, 6, 7, 8]

    def test_own_names_of_blocks(self):
        frame = make.block_frame(2, stages=1).assign(name=["attention 0", "conv4_block2"])
        assert list(named(plots.cosine_loss(frame).axes[0]).values()) == frame["name"].tolist()

    def test_states_without_a_value_have_no_place(self):
        frame = make.state_frame(LENS, stages=3)
        is_gone = (frame["stage"] == 1) | ((frame["stage"] == 3) & (frame["block"] < 1))
        frame.loc[is_gone, [*LENS]] = np.nan
        above, *_, below = plots.lens(frame).axes
        expected = ["first", "2.0", "2.1", "2.2", "3.1", "3.2"]
        assert list(named(below).values()) == expected
        assert len(lines_with(above, "boundary")) == 1
        assert below.get_xlabel() == "after block"


class TestScales:
    @pytest.mark.parametrize(
        ("name", "frame", "scales"),
        [
            ("gradient_norm", make.block_frame(18), ["log"]),
            ("perturbation", make.block_frame(3), ["linear"]),
            ("cosine_loss", make.block_frame(18), ["linear"]),
            ("readout", make.readout_frame(18).assign(error=0.999), ["linear"]),
            ("first_order", make.first_order_frame(), ["linear", "linear"]),
            ("first_order", make.first_order_frame(first=1000), ["symlog", "linear"]),
            ("line_element", make.line_element_frame(growth=4.0), ["log", "log"]),
            ("signal_propagation", make.propagation_frame(), ["log", "log", "linear"]),
            ("fixed_point", make.fixed_point_frame(), ["log", "log", "linear"]),
            ("iterative_inference", make.inference_frame(9, 1), ["linear", "linear", "linear"]),
        ],
    )
    def test_values_that_differ_much_are_logarithmic(self, name, frame, scales):
        figure = getattr(plots, name)(frame)
        assert [axes.get_yscale() for axes in panels(figure)] == scales
        for axes, scale in zip(panels(figure), scales, strict=True):
            label = axes.get_ylabel()
            assert ("(log scale" in label, "linear near 0)" in label) == (
                scale != "linear",
                scale == "symlog",
            )


class TestLevels:
    def test_numbers_and_arguments(self):
        assert levels(plots.cosine_loss(make.block_frame(3)).axes[0], "0") == [0]
        figure = plots.scaled_perturbation(make.block_frame(3, gap=False), epsilon=0.1)
        assert levels(figure.axes[0], "epsilon") == [0.1]
        assert legend_texts(figure) == ["ε = 0.1"]
        bounds = plots.lipschitz_bounds(make.lipschitz_frame(), mu=0.95)
        assert levels(bounds.axes[0], "mu") == [0.95]
        assert levels(bounds.axes[1], "1") == [1]
        assert legend_texts(bounds) == ["estimate", "certified", "μ = 0.95"]
        axes = plots.patching(make.state_frame(("effect",))).axes[0]
        assert levels(axes, "0") + levels(axes, "1") == [0, 1]

    def test_courses_over_epochs(self):
        frame = make.drop_frame(5, splits=SPLITS, epochs=4)
        figure = plots.drop_blocks(frame)
        (line,) = lines_with(panels(figure)[4], "unperturbed_error")
        final = frame.query("split == 'test'").groupby("epoch")["unperturbed_error"].first()
        assert points(line) == {epoch + 1: error for epoch, error in final.items()}
        assert legend_texts(figure) == ["no block dropped"]


class TestLooks:
    def test_lines_over_epochs_run_from_thin_and_blue_to_thick_and_red(self):
        figure = plots.cosine_loss(make.block_frame(18, stages=1, epochs=3))
        lines = metric_lines(panels(figure)[0])
        warmth = np.array([to_rgb(line.get_color()) for line in lines])
        assert (np.diff(warmth[:, 0] - warmth[:, 2]) > 0).all()
        assert (np.diff([line.get_linewidth() for line in lines]) > 0).all()
        assert figure.axes[-1].get_ylabel() == "block within its stage"

    def test_columns_differ_in_dashes_and_open_markers(self):
        figure = plots.first_order(make.first_order_frame(splits=SPLITS))
        looks = {
            line.get_label(): (line.get_linestyle(), line.get_markerfacecolor())
            for line in metric_lines(figure.axes[0])
        }
        assert looks["train, loss_change"] == ("-", style.BLUE)
        assert looks["train, first_order"] == ("--", "none")
        assert looks["train, first_order_after"] == (":", "none")
        names = ["with and without the block", "predicted at its input", "predicted at its output"]
        assert legend_texts(figure) == [*names, *SPLITS]
        # Of a single split, they have colours of their own, in all panels.
        figure = plots.first_order(make.first_order_frame(splits=("test",)))
        above, below = ([line.get_color() for line in metric_lines(a)] for a in figure.axes)
        assert len(set(above)) == 3
        assert below == above[1:]
        assert legend_texts(figure) == names

    def test_a_name_keeps_its_look_on_a_page(self):
        with style.page(["a", "b", "c"]):
            looks = style.looks(["a", "b", "c"])
            assert style.looks(["c", "b"]) == {"c": looks["c"], "b": looks["b"]}
        assert style.looks(["c"])["c"] == looks["a"]


class TestWeightDeviations:
    @pytest.mark.parametrize("blocks", [3, 16])
    def test_a_line_per_role_and_their_weighted_mean(self, blocks):
        frame = make.deviation_frame(blocks)
        frame = frame[(frame["role"] != "convolution1/bias") | (frame["block"] != 1)]
        figure = plots.weight_deviations(frame.sample(frac=1.0, random_state=1))
        (axes,) = figure.axes
        places = (frame["stage"] - 1) * blocks + frame["block"]
        drawn = by_label(axes)
        for role in make.ROLES:
            rows = frame["role"] == role
            expected = dict(zip(places[rows], frame.loc[rows, "deviation"], strict=True))
            assert drawn[f"{role.replace('/', ', ')}, deviation"] == expected
        sums = frame.groupby(places)[["l1", "parameters"]].sum()
        mean = (sums["l1"] / sums["parameters"]).to_dict()
        assert drawn["all parameters, kernel, deviation"] == pytest.approx(mean)
        assert len(drawn) == len(make.ROLES) + 1
        assert axes.get_ylim()[0] <= 0
        names = {"all parameters", *(part for role in make.ROLES for part in role.split("/"))}
        assert set(legend_texts(figure)) == names
        lines = {line.get_label(): line for line in metric_lines(axes)}
        kernel, bias = (lines[f"convolution1, {name}, deviation"] for name in ("kernel", "bias"))
        assert kernel.get_color() == bias.get_color()
        assert (kernel.get_linestyle(), bias.get_linestyle()) == ("-", "--")
        assert kernel.get_marker() != lines["convolution2, kernel, deviation"].get_marker()
