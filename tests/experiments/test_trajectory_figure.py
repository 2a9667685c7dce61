"""The figure of trajectories: which estimates are drawn where, what can be seen, what is refused.

Not covered: how it looks; that was judged by eye, on three seeds.
"""

import numpy as np
import pandas as pd
import pytest
import trajectory_figure
from plots.read_figures import lines_with, metric_lines, points

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
def test_estimates_of_each_row(inputs):
    tables = three(inputs)
    grid = panels(trajectory_figure.trajectories(**tables, solutions=SOLUTIONS[:inputs]))
    for (above, middle, below), network in zip(grid.T, NETWORKS, strict=True):
        readout, dropped, repeated = (of(frame, network) for frame in tables.values())
        # After every block.
        assert [points(line) for line in metric_lines(above)] == courses(readout)
        places, colours = dots(above)
        np.testing.assert_array_equal(places, readout[["z1", "z2"]])
        assert len(set(colours)) == BLOCKS + 1
        assert colours[: BLOCKS + 1] * inputs == colours
        # The last one without a block, in the colour that the block has above.
        places, of_dropped = dots(middle)
        last = dropped[dropped["step"] == BLOCKS - 1]
        np.testing.assert_array_equal(places, last[["z1", "z2"]])
        assert of_dropped == [c for c in colours[1 : BLOCKS + 1] for _ in range(inputs)]
        assert metric_lines(middle) == []
        # After extra applications.
        repeated = repeated[repeated["step"] >= BLOCKS]
        assert len(repeated) == inputs * (EXTRA + 1)
        assert [points(line) for line in metric_lines(below)] == courses(repeated)
        for axes in (middle, below):
            grey = lines_with(axes, "unperturbed")
            assert [points(line) for line in grey] == courses(readout)
        for axes in (above, middle, below):
            (crosses,), (rings,) = lines_with(axes, "input"), lines_with(axes, "solution")
            np.testing.assert_allclose(crosses.get_xydata(), (SLOPES * SOLUTIONS)[:inputs])
            np.testing.assert_array_equal(rings.get_xydata(), SOLUTIONS[:inputs])


def courses(rows):
    """What the line of each input shows."""
    return [dict(zip(path["z1"], path["z2"], strict=True)) for _, path in rows.groupby("input")]


def test_the_network_that_strays_furthest_is_cut_off_and_counted():
    tables = three()
    grid = panels(trajectory_figure.trajectories(**tables, solutions=SOLUTIONS[:1]))
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
