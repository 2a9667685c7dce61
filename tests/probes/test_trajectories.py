"""Read-outs in the plane against float64 NumPy, and what they come to on courses made by hand."""

import keras
import numpy as np
import pandas as pd
import pytest
from reference.inverse_problem import KINDS, forward, points, randomised

from tfresidual import datasets, networks, probes
from tfresidual.routing import routes

pytestmark = pytest.mark.eager

COLUMNS = ["route", "input", "x1", "x2", "stage", "step", "z1", "z2"]
METRICS = ["error", "early_error", "closer", "drop", "worst_drop", "drift"]
METRICS += ["first_speed", "last_speed"]


def estimates(frame):
    """The estimates of a frame of one route, `(inputs, applications + 1, 2)`."""
    shape = (frame["input"].nunique(), frame["step"].nunique(), 2)
    return frame[["z1", "z2"]].to_numpy().reshape(shape)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_numpy(kind):
    network = randomised(kind, blocks=4, width=5, hidden=6)
    chain = probes.inverse_problem_chain(network)
    x = points(9).astype(np.float32)
    ways = {
        routes.unperturbed(chain): [0, 1, 2, 3],
        **{routes.drop(chain, (1, t)): [s for s in range(4) if s != t] for t in range(4)},
        routes.drop(chain, (1, 0), (1, 2)): [1, 3],
        routes.readout(chain, 1, 1): [0, 1],
        routes.repeat_last_block(chain, 1, 5): [0, 1, 2, 3, 3, 3, 3, 3, 3],
        routes.swap(chain, 1, 0, 3): [3, 1, 2, 0],
    }
    frame = probes.trajectories(network, x, routes=list(ways))
    for route, blocks in ways.items():
        part = frame[frame["route"] == route.name]
        expected = forward(network, x, blocks).transpose(1, 0, 2)
        np.testing.assert_allclose(estimates(part), expected, rtol=2e-4, atol=2e-4)


def test_the_algorithm_as_a_network():
    x, _ = datasets.inverse_problem(20)
    chain = probes.inverse_problem_chain(networks.error_correcting_network(steps=8))
    frame = probes.trajectories(chain, x, routes=[routes.repeat_last_block(chain, 1, 16)])
    expected = networks.error_correction(x.astype(np.float64), steps=24)
    np.testing.assert_allclose(estimates(frame), expected.transpose(1, 0, 2), atol=2e-6)
    # Without any one of the blocks, it is one step behind.
    for block in range(8):
        frame = probes.trajectories(chain, x, routes=[routes.drop(chain, (1, block))])
        np.testing.assert_allclose(estimates(frame)[:, -1], expected[7], atol=2e-6)


def course(*routes_of_points, inputs=1):
    """A frame as `trajectories` gives it, whose routes are lists of estimates."""
    rows = [
        (f"route {place}", i, 9.0, 9.0, 1, step, *np.add(z, 100.0 * i))
        for place, route in enumerate(routes_of_points)
        for i in range(inputs)
        for step, z in enumerate(route)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


class TestSummary:
    readout = ((0, 8), (0, 4), (3, 4), (0, 1))
    dropped = (((0, 8), (3, 4), (0, 3)), ((0, 8), (0, 4), (4, 1)), ((0, 8), (0, 4), (3, 4)))
    repeated = (*readout, (4, 1), (4, 1))

    @pytest.mark.parametrize("inputs", [1, 3])
    def test_by_hand(self, inputs):
        frames = [
            course(self.readout, inputs=inputs),
            course(*self.dropped, inputs=inputs),
            course(self.repeated, inputs=inputs),
        ]
        solutions = [[100.0 * i, 100.0 * i] for i in range(inputs)]
        frame = probes.trajectory_summary(*frames, solutions)
        assert frame.columns.tolist() == METRICS
        assert len(frame) == 1
        # Distances to the solution are 8, 4, 5, 1; without a block the ends are off by 2, 4 and
        # sqrt(18); the last block moves the estimate by sqrt(18), the extra ones by 4 and 0.
        expected = [1, 4.5, 2 / 3, (6 + 18**0.5) / 3, 18**0.5, 4, 4 / 18**0.5, 0]
        np.testing.assert_allclose(frame.iloc[0], expected, rtol=1e-12)

    def test_means_over_inputs_and_medians(self):
        readout = pd.concat(
            [course([(0, 0), (1, 0)]).assign(input=i, z2=float(i)) for i in range(3)]
        )
        dropped = readout[readout["step"] == 0]
        extra = [(0, 0), (1, 0), (2, 0)]
        repeated = pd.concat([course(extra).assign(input=i, z2=float(i)) for i in range(3)])
        # The third input continues ten times as fast.
        repeated.loc[(repeated["input"] == 2) & (repeated["step"] == 2), "z1"] = 11
        solutions = [[1, 0], [2, 1], [3, 2]]
        row = probes.trajectory_summary(readout, dropped, repeated, solutions).iloc[0]
        assert row["error"] == 1
        assert np.isnan(row["early_error"])
        assert row["drift"] == 4
        assert row["first_speed"] == row["last_speed"] == 1


def test_the_algorithm_approaches_and_stays():
    x, z = datasets.inverse_problem(100)
    network = networks.error_correcting_network(steps=8)
    chain = probes.inverse_problem_chain(network)
    row = probes.trajectory_summary(
        probes.trajectories(chain, x),
        probes.trajectories(chain, x, routes=[routes.drop(chain, (1, t)) for t in range(8)]),
        probes.trajectories(chain, x, routes=[routes.repeat_last_block(chain, 1, 16)]),
        z,
    ).iloc[0]
    errors = np.linalg.norm(networks.error_correction(x.astype("f8"), steps=8) - z, axis=-1)
    np.testing.assert_allclose(row["error"], errors[-1].mean(), rtol=1e-3)
    np.testing.assert_allclose(row["early_error"], errors[1:-1].mean(), rtol=1e-4)
    assert row["closer"] == 1
    np.testing.assert_allclose(row["drop"], row["worst_drop"], rtol=1e-3)
    assert 0.4 < row["first_speed"] < 0.56
    assert row["last_speed"] < 1e-3
    np.testing.assert_allclose(row["drift"], row["error"], rtol=1e-2)


@pytest.mark.system
@pytest.mark.compiled
@pytest.mark.parametrize("kind", [pytest.param("residual", marks=pytest.mark.nightly), "recurrent"])
def test_a_trained_residual_network_approaches_and_does_not_stay(kind):
    x, z = datasets.inverse_problem(1024)
    network = networks.InverseProblemNetwork(kind)
    network.compile(keras.optimizers.Adam(3e-3), "mse", steps_per_execution=16)
    network.fit(x, z, batch_size=64, epochs=12, verbose=0)
    chain = probes.inverse_problem_chain(network)
    x, z = datasets.inverse_problem(100, seed=1)
    row = probes.trajectory_summary(
        probes.trajectories(chain, x),
        probes.trajectories(chain, x, routes=[routes.drop(chain, (1, t)) for t in range(8)]),
        probes.trajectories(chain, x, routes=[routes.repeat_last_block(chain, 1, 16)]),
        z,
    ).iloc[0]
    assert row["closer"] > 0.7
    assert row["drop"] < 0.5
    assert 0.6 < row["first_speed"] < 1.3
    assert row["drift"] > 10 * row["error"]
