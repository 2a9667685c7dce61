"""Shuffled blocks against the NumPy version and by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest
from reference.plane import at, plane_chain
from reference.route_probes import (
    METRICS,
    NETWORKS,
    TOLERANCE,
    all_networks,
    network,
    numpy_means,
    shape_changing,
    trained_applications,
    with_stage,
)

from tfresidual import probes
from tfresidual.probes.shuffle_blocks import kendall_tau

pytestmark = pytest.mark.eager


def discordant(order):
    return sum(a > b for a, b in itertools.combinations(order, 2))


@all_networks("bounded", mark=pytest.mark.nightly)
def test_equals_numpy(settings):
    net, batch = network(settings)
    frame = probes.shuffle_blocks(net, batch, swaps=(1, 2, 3), draws=3)
    places = ["stage", "swaps", "draw", "kendall_tau"]
    rises = [f"{name}_rise{end}" for name in ("error", "cross_entropy") for end in ("", "_se")]
    assert frame.columns.tolist() == [*places, *METRICS, "unperturbed_error", *rises]
    np.testing.assert_allclose(frame["error_rise"], frame["error"] - frame["unperturbed_error"])
    fixed = shape_changing(net, batch[0])
    expected_stages = []
    for stage, applications in enumerate(trained_applications(net), start=1):
        depth = len(applications)
        moving = [block for block in range(depth) if (stage, block) not in fixed]
        if len(moving) < 2:
            continue
        expected_stages.append(stage)
        # The numbers of every order there is, by how many pairs stand the wrong way round.
        orders = {}
        for moved in itertools.permutations(moving):
            order = list(range(depth))
            for place, block in zip(moving, moved, strict=True):
                order[place] = block
            route = with_stage(net, stage, [(block, 1.0) for block in order])
            orders[tuple(order)] = numpy_means(net, batch, stage, route)
        for row in frame[frame["stage"] == stage].to_dict("records"):
            # An odd number of swaps always leaves an odd number of such pairs.
            found = [
                order
                for order, values in orders.items()
                if np.allclose([row[name] for name in METRICS], values, **TOLERANCE)
                and discordant(order) % 2 == row["swaps"] % 2
            ]
            assert len(found) == 1
            pairs = depth * (depth - 1) / 2
            tau = 1 - 2 * discordant(found[0]) / pairs
            assert row["kendall_tau"] == pytest.approx(tau)
    assert frame["stage"].unique().tolist() == expected_stages
    places = list(itertools.product(expected_stages, (1, 2, 3), range(3)))
    assert list(frame[["stage", "swaps", "draw"]].itertuples(index=False, name=None)) == places


def test_two_blocks_solved_by_hand():
    def mirror(h):
        return h[..., ::-1] - h

    def stretch(h):
        return h * [2.0, 0.0]

    # (1, 2) -> (2, 1) -> (6, 1) as trained; (1, 2) -> (3, 2) -> (2, 3) the other way round.
    chain = plane_chain(mirror, stretch)
    frame = probes.shuffle_blocks(chain, at(1, 2), swaps=(1, 2), draws=2)
    # One swap of two blocks turns them round, two swaps bring them back, whatever the draw.
    assert frame["kendall_tau"].tolist() == [-1, -1, 1, 1]
    np.testing.assert_allclose(frame["distance"], [np.sqrt(4**2 + 2**2)] * 2 + [0, 0], rtol=1e-6)
    assert frame["error"].tolist() == [1, 1, 0, 0]
    assert frame["agreement"].tolist() == [0, 0, 1, 1]
    assert frame["unperturbed_error"].tolist() == [0] * 4


def test_seed():
    net, batch = network(NETWORKS["one stage, several labels"])
    first = probes.shuffle_blocks(net, batch, swaps=[4], draws=3, seed=1)
    again = probes.shuffle_blocks(net, batch, swaps=[4], draws=3, seed=1)
    other = probes.shuffle_blocks(net, batch, swaps=[4], draws=3, seed=100)
    pd.testing.assert_frame_equal(first, again)
    assert len(set(first["distance"])) > 1
    assert not np.allclose(first["distance"], other["distance"])


@pytest.mark.parametrize(
    ("order", "tau"),
    [
        ([0, 1, 2, 3], 1),
        ([3, 2, 1, 0], -1),
        ([1, 0, 2, 3], 2 / 3),  # one of six pairs
        ([3, 1, 2, 0], -2 / 3),  # a swap of the ends turns five
        ([0, 1], 1),
        ([1, 0], -1),
        ([2, 0, 1], -1 / 3),
    ],
    ids=str,
)
def test_kendall_tau(order, tau):
    assert kendall_tau(order) == pytest.approx(tau)
