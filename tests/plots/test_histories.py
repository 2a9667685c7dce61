"""Figures of several networks over their training.

Not covered: how the figures look; that was judged by eye, with three and four networks.
"""

import numpy as np
import pandas as pd
import pytest
from plots.make_runs import network_frame, propagation_frame
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots

NETWORKS = ["ResNet-110", "ResNet-38", "naive sharing"]


def norms(blocks=(18, 6, 18), **settings):
    return pd.concat(
        [
            propagation_frame(count, network=network, growth=1 + 3 * ("naive" in network))
            for count, network in zip(blocks, NETWORKS, strict=True)
        ]
    ).assign(**settings)


class TestEpochs:
    def test_a_line_per_network_and_split(self):
        frame = network_frame(seeds=3)
        figure = plots.network_curves(frame.sample(frac=1.0, random_state=1))
        lines = {line.get_label(): line for line in metric_lines(figure.axes[0])}
        assert set(lines) == {name for n in NETWORKS for name in (n, f"{n}, training")}
        for column, suffix, dash in (("train_error", ", training", "-"), ("error", "", "--")):
            line = lines[f"naive sharing{suffix}"]
            rows = frame[frame["network"] == "naive sharing"].groupby("epoch")[column].mean()
            assert line.get_linestyle() == dash
            assert points(line) == pytest.approx(dict(zip(rows.index + 1, rows, strict=True)))
        assert figure.axes[0].yaxis.get_major_formatter()(0.5, None) == "50%"

    def test_words(self):
        figure = plots.network_curves(network_frame())
        assert [axes.get_xlabel() for axes in figure.axes] == ["epoch", "epoch"]
        assert figure.axes[0].get_ylabel() == "error"
        assert figure.axes[1].get_ylabel().startswith("gradient norm ratio r")
        assert legend_texts(figure) == [*NETWORKS, "training", "validation"]

    def test_a_metric_without_a_twin_is_solid(self):
        axes = plots.network_curves(network_frame()).axes[1]
        lines = metric_lines(axes)
        assert [line.get_label() for line in lines] == NETWORKS
        assert {line.get_linestyle() for line in lines} == {"-"}

    def test_a_network_has_one_colour(self):
        figure = plots.network_curves(network_frame(), propagation=norms())
        colours = {}
        for axes in figure.axes:
            for line in metric_lines(axes):
                colours.setdefault(line.get_label().split(",")[0], set()).add(line.get_color())
        assert set(colours) == set(NETWORKS)
        assert [len(found) for found in colours.values()] == [1, 1, 1]
        assert len(set.union(*colours.values())) == 3

    def test_the_band_holds_all_seeds(self):
        frame = network_frame(networks=["one"], epochs=4, seeds=3)
        (band,) = plots.network_curves(frame, metrics=["state_l1"]).axes[0].collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(frame["state_l1"].min())
        assert heights.max() == pytest.approx(frame["state_l1"].max())
        one = plots.network_curves(frame[frame["seed"] == 0], metrics=["state_l1"])
        assert list(one.axes[0].collections) == []

    def test_the_norm_of_the_state_is_logarithmic(self):
        figure = plots.network_curves(network_frame(), metrics=("error", "state_l1"))
        assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log"]
        assert "L1 norm of the last state (log scale)" in figure.axes[1].get_ylabel()

    def test_a_wide_ratio_is_logarithmic(self):
        frame = network_frame()
        frame.loc[frame["network"] == "naive sharing", "gradient_ratio"] *= 1e3
        axes = plots.network_curves(frame).axes[1]
        assert axes.get_yscale() == "log"
        assert "log scale" in axes.get_ylabel()
        assert plots.network_curves(network_frame()).axes[1].get_yscale() == "linear"

    def test_other_metrics(self):
        frame = network_frame().assign(cross_entropy=1.0)
        figure = plots.network_curves(frame, metrics=["cross_entropy"])
        assert figure.axes[0].get_ylabel() == "cross entropy"
        assert legend_texts(figure) == NETWORKS

    def test_diverged_training_leaves_gaps(self):
        frame = network_frame(networks=["naive"], epochs=6, seeds=1)
        frame.loc[frame["epoch"] > 2, ["state_l1", "error"]] = np.inf
        frame.loc[0, "state_l1"] = 0.0
        figure = plots.network_curves(frame, metrics=("state_l1", "error"))
        assert list(points(metric_lines(figure.axes[0])[0])) == [2, 3]
        assert list(points(metric_lines(figure.axes[1])[1])) == [1, 2, 3]
        draws(figure)

    def test_nothing_positive_to_draw(self):
        figure = plots.network_curves(network_frame().assign(state_l1=0.0), metrics=["state_l1"])
        assert [text.get_text() for text in figure.axes[0].texts] == ["no values"]
        draws(figure)

    def test_one_epoch_without_seeds(self):
        frame = network_frame(epochs=1, seeds=1).drop(columns="seed")
        figure = plots.network_curves(frame)
        # Networks differ in their markers too, for those who do not see the colours.
        markers = [line.get_marker() for line in metric_lines(figure.axes[1])]
        assert len(set(markers)) == len(markers)
        draws(figure)


class TestPropagation:
    def test_the_norm_after_every_block(self):
        frame = norms()
        axes = plots.network_curves(network_frame(), propagation=frame).axes[2]
        assert axes.get_yscale() == "log"
        assert "at initialization" in axes.get_ylabel()
        lines = {line.get_label(): line for line in metric_lines(axes)}
        for network, blocks in zip(NETWORKS, (18, 6, 18), strict=True):
            rows = frame[frame["network"] == network]
            places = (rows["stage"] - 1) * blocks + rows["block"]
            assert points(lines[network]) == dict(zip(places, rows["state_norm"], strict=True))

    def test_stages_are_marked_where_all_networks_have_the_same(self):
        different = plots.network_curves(network_frame(), propagation=norms()).axes[2]
        assert lines_with(different, "boundary") == []
        same = plots.network_curves(network_frame(), propagation=norms((6, 6, 6))).axes[2]
        assert [line.get_xdata()[0] for line in lines_with(same, "boundary")] == [5.5, 11.5]

    def test_splits_are_solid_and_dashed(self):
        frame = pd.concat([norms(split="validation"), norms(split="train")])
        figure = plots.network_curves(network_frame(), ["gradient_ratio"], frame)
        lines = {line.get_label(): line.get_linestyle() for line in metric_lines(figure.axes[1])}
        assert lines["ResNet-38, train"] == "-"
        assert lines["ResNet-38, validation"] == "--"
        assert legend_texts(figure)[-2:] == ["training", "validation"]

    def test_an_exploded_state_ends_its_line(self):
        frame = norms()
        frame.loc[frame["state_norm"] > 1e4, "state_norm"] = np.inf
        axes = plots.network_curves(network_frame(), propagation=frame).axes[2]
        lines = {line.get_label(): line for line in metric_lines(axes)}
        assert 10 < max(points(lines["naive sharing"])) < 53

    def test_a_network_without_history(self):
        frame = norms().replace({"network": {"ResNet-38": "untrained"}})
        figure = plots.network_curves(network_frame(NETWORKS[:1]), propagation=frame)
        assert legend_texts(figure)[:3] == ["ResNet-110", "untrained", "naive sharing"]


def test_refused():
    function, frame = plots.network_curves, network_frame(epochs=3)
    with pytest.raises(ValueError, match=r"`histories`.*missing: `state_l1`\. Received: columns="):
        function(frame.drop(columns="state_l1"), metrics=["state_l1"])
    with pytest.raises(ValueError, match=r"`histories`.*DataFrame.*Received: .*dict"):
        function({})
    with pytest.raises(ValueError, match=r"`metrics` must hold columns.*Received: \(\)"):
        function(frame, metrics=())
    with pytest.raises(ValueError, match=r"`histories`.*network and seed.*Received: several rows"):
        function(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match=r"`histories` must.*finite.*`gradient_ratio`.*Received: "):
        function(frame.assign(gradient_ratio=np.nan))
    with pytest.raises(ValueError, match=r"`histories` must.*whole.*`epoch`.*Received: \[0.5\]"):
        function(frame.assign(epoch=0.5))
    with pytest.raises(ValueError, match=r"`propagation`.*missing: `network`\. Received: "):
        function(frame, propagation=propagation_frame())
    several = propagation_frame(epochs=2, network="one")
    with pytest.raises(ValueError, match=r"`propagation`.*one row per.*Received: several rows"):
        function(frame, propagation=several)


def test_the_frames_are_left_alone():
    histories, propagation = network_frame(epochs=3), norms()
    before = histories.copy(), propagation.copy()
    plots.network_curves(histories, propagation=propagation)
    pd.testing.assert_frame_equal(histories, before[0])
    pd.testing.assert_frame_equal(propagation, before[1])
