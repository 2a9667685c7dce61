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


def test_stage_without_a_block_to_measure():
    net = random_network(blocks=1)
    frame = probes.computational_distance(net, random_batch(net)).set_index("stage")
    assert frame["blocks"].tolist() == [1, 0, 1]
    assert frame.loc[2, "distance"] == 0
    assert np.isnan(frame.loc[2, "mean_perturbation"])


def test_a_network_that_diverged():
    """NaN in one block is NaN in the sums of its stage and of the whole, not a block less."""
    net = random_network(blocks=2)
    kernel = next(w for w in net.trainable_weights if w.path.startswith("stage2_block1/conv"))
    kernel.assign(np.full(kernel.shape, np.nan))
    batch = random_batch(net)
    frame = probes.computational_distance(net, batch).set_index("stage")
    assert frame["blocks"].tolist() == [2, 1, 3]
    assert np.isfinite(frame.loc[1]).all()
    assert frame.loc[[2, "all"]].drop(columns="blocks").isna().all(axis=None)
    assert np.isnan(probes.lens(net, batch)["kl"].iloc[-1])
