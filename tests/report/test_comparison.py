"""Several networks in the figures of a report, on frames as probes would give them.

Not covered: how the figures look; that was judged by eye.
"""

import numpy as np
import pandas as pd
import pytest
from plots.make_frames import (
    block_frame,
    borderline_frame,
    distance_frame,
    drop_frame,
    index_frame,
    readout_frame,
    repeat_frame,
    shuffle_frame,
)
from plots.read_figures import legend_texts

from tfresidual.report.comparison import Measured, comparison_sections, differences

OPTIONS = {"times": 16, "scale": 1.0, "chance": "uniform", "epsilon": 0.1, "seed": 0}
FRAMES = {
    "block_metrics": block_frame(),
    "block_metrics_by_epoch": block_frame(epochs=3),
    "computational_distance": distance_frame(),
    "readout": readout_frame(),
    "drop_blocks": drop_frame(),
    "repeat_last_block": repeat_frame(),
    "convergence_indices": index_frame(),
    "borderline": borderline_frame(),
    "repetition_metrics": repeat_frame(),
    "trained_blocks": block_frame(),
    "shuffle_blocks": shuffle_frame(),
}


def measured(frame, on="40 test images of Digitclutter, 3 digits", **options):
    return Measured(frame, on, OPTIONS | options)


def network(*names, **options):
    return {name: measured(FRAMES[name], **options) for name in names or FRAMES}


def sections_of(networks):
    return {section.title: section for section in comparison_sections(networks, 0.1)}


@pytest.fixture(scope="module")
def compared():
    return sections_of({"deep": network(), "wide": network(), "shallow": network()})


@pytest.mark.system
def test_every_figure_has_every_network(compared):
    assert len(compared) >= 17
    for title, section in compared.items():
        panels = [axes.get_title() for axes in section.figure.axes]
        ticks = [t.get_text() for axes in section.figure.axes for t in axes.get_xticklabels()]
        shown = " ".join([*legend_texts(section.figure), *panels, *ticks])
        assert all(name in shown for name in ("deep", "wide", "shallow")), (title, shown)
        assert section.caution is None
        assert section.images == "40 test images of Digitclutter, 3 digits"
    axes = compared["The cosine over training"].figure.axes[:9]
    assert len({panel.get_ylim() for panel in axes}) == 1
    assert len({panel.get_xlim() for panel in axes}) == 1


@pytest.mark.system
def test_a_network_has_one_colour_on_the_page(compared):
    colours = {}
    for section in compared.values():
        for axes in section.figure.axes:
            for line in axes.get_lines():
                colours.setdefault(line.get_label().split(",")[0], set()).add(line.get_color())
    found = [colours[name] for name in ("deep", "wide", "shallow")]
    assert [len(one) for one in found] == [1, 1, 1]
    assert len(set.union(*found)) == 3


def two_networks(first, second):
    """The frames of two networks with one metric of the blocks of a stage."""
    frames = [
        pd.DataFrame({"split": name, "stage": 1, "block": range(len(values)), "l2_ratio": values})
        for name, values in {"a": first, "b": second}.items()
    ]
    return pd.concat(frames)


def test_differences_by_hand():
    table = differences(two_networks([1.0, 2.0, 3.0], [1.5, 0.5, np.nan]), "l2_ratio")
    expected = pd.DataFrame(
        {"stage": 1, "block": [1, 0], "a": [2.0, 1.0], "b": [0.5, 1.5], "b minus a": [-1.5, 0.5]}
    )
    pd.testing.assert_frame_equal(table, expected, check_names=False)


def test_the_last_epoch_of_each_network_is_compared():
    frame = two_networks([1.0, 2.0], [3.0, 4.0]).drop(columns="block")
    frame["epoch"], frame["block"] = [0, 1, 0, 1], 0
    frame = frame[frame["l2_ratio"] != 4.0]
    (row,) = differences(frame, "l2_ratio").to_dict("records")
    assert (row["a"], row["b"], row["b minus a"]) == (2.0, 3.0, 1.0)


def test_other_images_are_said():
    on = "20 test images of MNIST"
    for section in comparison_sections(
        {"a": network("readout"), "b": network("readout", on=on)}, 1
    ):
        assert section.caution == (
            "Not the same images: 40 test images of Digitclutter, 3 digits (a); 20 test images of "
            "MNIST (b)."
        )
        assert section.images is None
    networks = {"a": network("readout"), "b": network("readout", on=None)}
    cautions = {section.caution for section in comparison_sections(networks, 0.1)}
    assert cautions == {"What b was measured on is not recorded."}


def test_other_options_are_said_where_they_matter():
    names = ("readout", "shuffle_blocks", "repetition_metrics", "trained_blocks")
    names = (*names, "convergence_indices")
    found = sections_of({"a": network(*names), "b": network(*names, seed=1, times=4)})
    assert found["Does the order matter?"].caution == "Not the same seed: 0 (a); 1 (b)."
    times = "Not the same times: 16 (a); 4 (b)."
    assert found["Does a repeated block keep refining?"].caution == times
    assert found["Convergence, recurrence, divergence"].caution == times
    assert found["Reading out early"].caution is None


def test_what_only_one_network_has_is_left_out():
    networks = {"a": network(), "b": network("readout")}
    assert list(sections_of(networks)) == ["Reading out early"]
