"""Perturbations and distances against the NumPy version and by hand."""

import numpy as np
import pytest
from reference import numpy_network
from reference.plane import TOLERANCE, at, plane_chain
from reference.random_network import CASES, random_batch, random_network, sample
from reference.route_probes import CONSTRAINED_NETWORKS, constrained

from tfresidual import probes

pytestmark = pytest.mark.eager


@pytest.mark.parametrize(
    "settings",
    [
        *sample(CASES[::5], every=2, others=pytest.mark.nightly),
        *constrained("shared"),
        pytest.param(CONSTRAINED_NETWORKS["bounded"], id="bounded", marks=pytest.mark.nightly),
    ],
)
def test_distance_equals_numpy(settings):
    net = random_network(seed=5, **settings | {"blocks": 3})
    images, labels = random_batch(net, images=4)
    run = numpy_network.analyse(
        net.get_config(), numpy_network.weights_of(net), images, np.asarray(labels)
    )
    expected = numpy_network.computational_distance(run)
    frame = probes.computational_distance(net, (images, labels)).set_index("stage")
    for kind, distance, mean in (
        ("absolute", "distance", "mean_perturbation"),
        ("scaled", "scaled_distance", "mean_scaled_perturbation"),
    ):
        values = expected[kind]
        np.testing.assert_allclose(
            frame[distance], [*values["stages"], values["total"]], **TOLERANCE
        )
        np.testing.assert_allclose(
            frame[mean], [*values["stage_means"], values["mean"]], **TOLERANCE
        )


def test_solved_by_hand():
    # (3, 4) -> (0, 4) -> (0, 0): steps of 3 and 4 from states of 5 and 4.
    chain = plane_chain(lambda h: h * [-1.0, 0.0], lambda h: h * [0.0, -1.0])
    frame = probes.computational_distance(chain, at(3, 4))
    assert frame["stage"].tolist() == [1, "all"]
    for row in frame.to_dict("records"):
        assert row["blocks"] == 2
        assert row["distance"] == pytest.approx(7)
        assert row["scaled_distance"] == pytest.approx(3 / 5 + 1)
        assert row["mean_perturbation"] == pytest.approx(3.5)
        assert row["mean_scaled_perturbation"] == pytest.approx(0.8)
