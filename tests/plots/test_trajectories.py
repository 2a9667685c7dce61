"""The figure of trajectories: which estimates are drawn where, what can be seen, what is refused.

Not covered: how it looks; that was judged by eye, on three seeds.
"""

import numpy as np
import pandas as pd
import pytest
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points
from refusals import refused

from tfresidual import plots

BLOCKS, EXTRA = 4, 6
SOLUTIONS = np.array([[1.0, 1.0], [-0.5, 2.0]])
SLOPES = np.array([1.5, 0.75])
NETWORKS = {"algorithm": 0.1, "feed-forward": 30.0, "ResNet": 2.0}


def frame_of(network, estimates_of_routes, inputs):
    """A trajectories frame; `estimates_of_routes` holds for every route an array per input."""
    rows = []
    for route, estimates in enumerate(estimates_of_routes):
        for i in range(inputs):
            for step, z in enumerate(estimates[i]):
                x = SLOPES * SOLUTIONS[i]
                rows.append((network, f"route {route}", i, *x, 1, step, *z))
    columns = ["network", "route", "input", "x1", "x2", "stage", "step", "z1", "z2"]
    return pd.DataFrame(rows, columns=columns)


def three(inputs=1, networks=NETWORKS, blocks=BLOCKS):
    """Three frames of networks that come from as far as their number says."""
    rng = np.random.default_rng(0)
    parts = {"readout": [], "dropped": [], "repeated": []}
    for name, distance in networks.items():
        course = np.linspace(distance, 0, blocks + 1)[None, :, None] * rng.uniform(
            0.5, 1, (inputs, blocks + 1, 2)
        )
        plain = SOLUTIONS[:inputs, None] + course
        dropped = [np.delete(plain, place, axis=1) + 0.02 * distance for place in range(1, blocks)]
        dropped.append(plain[:, :-1])
        beyond = SOLUTIONS[:inputs, None] - 0.1 * distance * np.arange(1, EXTRA + 1)[:, None]
        repeated = np.concatenate([plain, beyond], axis=1)
        for key, estimates in (
            ("readout", [plain]),
            ("dropped", dropped),
            ("repeated", [repeated]),
        ):
            parts[key].append(frame_of(name, estimates, inputs))
    return {key: pd.concat(frames, ignore_index=True) for key, frames in parts.items()}


def panels(figure):
    return np.reshape(figure.axes, (3, len(NETWORKS)))


def of(frame, network):
    return frame[frame["network"] == network]


def dots(axes):
    """The dots of a panel and their colours."""
    (collection,) = axes.collections
    return np.asarray(collection.get_offsets()), [tuple(c) for c in collection.get_facecolors()]


def window(axes):
    return (*axes.get_xlim(), *axes.get_ylim())


@pytest.mark.parametrize("inputs", [1, 2])
class TestDrawn:
    def test_estimates_after_every_block(self, inputs):
        tables = three(inputs)
        grid = panels(plots.trajectories(**tables, solutions=SOLUTIONS[:inputs]))
        for axes, network in zip(grid[0], NETWORKS, strict=True):
            rows = of(tables["readout"], network)
            lines = metric_lines(axes)
            assert len(lines) == inputs
            for i, line in enumerate(lines):
                path = rows[rows["input"] == i]
                assert points(line) == dict(zip(path["z1"], path["z2"], strict=True))
            places, colours = dots(axes)
            np.testing.assert_array_equal(places, rows[["z1", "z2"]])
            assert len(set(colours)) == BLOCKS + 1
            assert colours[: BLOCKS + 1] * inputs == colours

    def test_last_estimate_without_a_block(self, inputs):
        tables = three(inputs)
        grid = panels(plots.trajectories(**tables, solutions=SOLUTIONS[:inputs]))
        for axes, above, network in zip(grid[1], grid[0], NETWORKS, strict=True):
            rows = of(tables["dropped"], network)
            places, colours = dots(axes)
            last = rows[rows["step"] == BLOCKS - 1]
            np.testing.assert_array_equal(places, last[["z1", "z2"]])
            # In the colours that the blocks have above.
            of_blocks = dots(above)[1][1 : BLOCKS + 1]
            assert colours == [colour for colour in of_blocks for _ in range(inputs)]
            assert metric_lines(axes) == []
            assert len(lines_with(axes, "unperturbed")) == inputs

    def test_extra_applications(self, inputs):
        tables = three(inputs)
        grid = panels(plots.trajectories(**tables, solutions=SOLUTIONS[:inputs]))
        for axes, network in zip(grid[2], NETWORKS, strict=True):
            rows = of(tables["repeated"], network)
            rows = rows[rows["step"] >= BLOCKS]
            for i, line in enumerate(metric_lines(axes)):
                path = rows[rows["input"] == i]
                assert len(path) == EXTRA + 1
                assert points(line) == dict(zip(path["z1"], path["z2"], strict=True))
            grey = lines_with(axes, "unperturbed")
            assert [len(line.get_xdata()) for line in grey] == [BLOCKS + 1] * inputs

    def test_inputs_and_solutions_are_marked_in_every_panel(self, inputs):
        figure = plots.trajectories(**three(inputs), solutions=SOLUTIONS[:inputs])
        for axes in figure.axes:
            (crosses,), (rings,) = lines_with(axes, "input"), lines_with(axes, "solution")
            np.testing.assert_allclose(crosses.get_xydata(), (SLOPES * SOLUTIONS)[:inputs])
            np.testing.assert_array_equal(rings.get_xydata(), SOLUTIONS[:inputs])
        draws(figure)


def test_words():
    figure = plots.trajectories(**three(), solutions=SOLUTIONS[:1])
    grid = panels(figure)
    assert [axes.get_title() for axes in grid[0]] == list(NETWORKS)
    assert [axes.get_ylabel().split("\n")[0] for axes in grid[:, 0]] == [
        "early read-out",
        "one block dropped",
        "extra applications",
    ]
    assert [axes.get_xlabel() for axes in grid[2]] == ["ẑ₁"] * 3
    ends = ["first block", "last block", "extra applications"]
    assert legend_texts(figure) == ["input", "solution", *ends]
    assert 0 < len(figure.get_suptitle()) <= 30


def test_the_network_that_strays_furthest_is_cut_off_and_counted():
    tables = three()
    grid = panels(plots.trajectories(**tables, solutions=SOLUTIONS[:1]))
    for row in grid:
        assert len({window(axes) for axes in row}) == 1
        left, right, low, high = window(row[0])
        assert right - left == pytest.approx(high - low)
        assert row[0].get_aspect() == 1
        # All of the others can be seen.
        assert [len(axes.texts) for axes in row] == [0, 1, 0]
    left, right, low, high = window(grid[0][0])
    far = of(tables["readout"], "feed-forward")
    seen = far["z1"].between(left, right) & far["z2"].between(low, high)
    assert 0 < seen.sum() < len(far)
    assert grid[0][1].texts[0].get_text() == f"{(~seen).sum()} of {len(far)} outside"
    # Input and solution are inside, and the second row is enlarged.
    for axes in (grid[0][0], grid[2][0]):
        left, right, low, high = window(axes)
        assert left < 1 < 1.5 < right
        assert low < 0.75 < 1 < high
    assert np.ptp(grid[1][0].get_xlim()) < 0.5 * np.ptp(grid[0][0].get_xlim())


def test_what_explodes_does_not_hide_the_rest():
    tables = three()
    late = tables["repeated"]["step"] > BLOCKS + 2
    tables["repeated"].loc[late, ["z1", "z2"]] *= 1e9
    tables["repeated"].loc[tables["repeated"]["step"] > BLOCKS + 4, "z1"] = np.inf
    grid = panels(plots.trajectories(**tables, solutions=SOLUTIONS[:1]))
    assert np.ptp(grid[2][0].get_xlim()) <= 4 * np.ptp(grid[0][0].get_xlim())
    assert grid[2][2].texts[0].get_text() == f"4 of {EXTRA + 1} outside"
    draws(grid[0][0].figure)


def test_one_network_without_a_name_and_without_solutions():
    tables = {key: of(frame, "ResNet").drop(columns="network") for key, frame in three(2).items()}
    before = {key: frame.copy() for key, frame in tables.items()}
    figure = plots.trajectories(**tables)
    assert [axes.get_title() for axes in figure.axes] == [""] * 3
    assert "solution" not in legend_texts(figure)
    assert not any(len(axes.texts) for axes in figure.axes)
    draws(figure)
    for key, frame in tables.items():
        pd.testing.assert_frame_equal(frame, before[key])


def test_one_block():
    draws(plots.trajectories(**three(networks={"short": 1.0}, blocks=1)))


def test_the_order_of_rows_does_not_matter_within_a_route():
    tables = three(2)
    shuffled = tables | {
        "readout": tables["readout"].sort_values("step", ascending=False, kind="stable")
    }
    first, second = (panels(plots.trajectories(**frames)) for frames in (tables, shuffled))
    for one, other in zip(first[0], second[0], strict=True):
        # Means of the same values in another order.
        np.testing.assert_allclose(dots(one)[0], dots(other)[0], rtol=1e-12)


def test_refused():
    tables = three(2)
    twice = pd.concat([tables["readout"]] * 2)
    for name, frame in (
        ("readout", twice),
        ("dropped", tables["dropped"].query("network != 'ResNet'")),
        ("repeated", tables["repeated"].query("input == 0")),
    ):
        with refused(name):
            plots.trajectories(**tables | {name: frame})
    for solutions in ([[1, 1]], [1, 1], [[1, 1], [np.nan, 1]], "solutions"):
        with refused("solutions"):
            plots.trajectories(**tables, solutions=solutions)
