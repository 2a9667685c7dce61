"""The importance of blocks against the NumPy version, and cases solved by hand."""

import itertools

import numpy as np
import pytest
from keras import ops
from reference import numpy_network
from reference.decoder import Decoder
from reference.plane import at, plane_chain
from reference.random_network import sample
from reference.route_probes import CONSTRAINED_NETWORKS, NETWORKS, network, shape_changing

from tfresidual import probes
from tfresidual.definitions.metrics import cosine_distance_and_angle
from tfresidual.probes.block_importance import OF_LOSS

pytestmark = pytest.mark.eager


def turns(before, after):
    """1 - cosine and angle over pi of each image, in float64."""
    before, after = (one.reshape(len(one), -1).astype(float) for one in (before, after))
    product = np.sum(before * after, axis=1)
    cosines = product / np.sqrt(np.sum(before**2, axis=1) * np.sum(after**2, axis=1))
    return (1 - cosines).mean(), (np.arccos(cosines) / np.pi).mean()


@pytest.mark.parametrize(
    "settings",
    [
        *sample(NETWORKS, 6, pytest.mark.nightly),
        pytest.param(CONSTRAINED_NETWORKS["bounded"], id="bounded", marks=pytest.mark.nightly),
    ],
)
def test_equals_numpy(settings):
    net, batch = network(settings)
    config, weights = net.get_config(), numpy_network.weights_of(net)
    run = numpy_network.analyse(config, weights, *batch)
    frame = probes.block_importance(net, batch, run=2).set_index(["stage", "block"])
    tolerance = {"rtol": 2e-3, "atol": 2e-5}
    if net.lipschitz is not None:
        tolerance = {"rtol": 0.02, "atol": 1e-3}
    for s, stage in enumerate(run.by_stage(), start=1):
        for t, (h, f, g, _) in enumerate(stage):
            row = frame.loc[s, t]
            if f is None:
                assert row.isna().all()
                continue
            ratio = (numpy_network.norm(f) / numpy_network.norm(h)).mean()
            product = [np.vdot(a, b) for a, b in zip(f, g, strict=True)]
            influence, _ = turns(h, h + f)
            found = row[["influence", "l2_ratio", "predicted_rise", "predicted_rise_se"]]
            noise = np.std(product, ddof=1) / len(product) ** 0.5
            wanted = [influence, ratio, -np.mean(product), noise]
            np.testing.assert_allclose(found, wanted, **tolerance)
            following = [*stage[t + 1 : t + 2]]
            if not following or following[0][1] is None:
                assert np.isnan(row["angular_distance"])
            else:
                _, angle = turns(h, following[0][0] + following[0][1])
                np.testing.assert_allclose(row["angular_distance"], angle, **tolerance)
    assert len(frame) == sum(map(len, run.by_stage()))
    assert frame["influence"].isna().sum() == len(shape_changing(net, batch[0]))
    drops = probes.drop_blocks(net, batch).set_index(["stage", "block"])
    np.testing.assert_array_equal(frame[list(OF_LOSS)], drops[list(OF_LOSS)])


def test_solved_by_hand():
    # (1, 0) -> (1, 1) -> (0, 1) -> (0, 1): an eighth of a whole turn twice, then nothing.
    chain = plane_chain(
        lambda h: ops.stack([0 * h[..., 0], h[..., 0]], axis=-1),
        lambda h: ops.stack([-h[..., 0], 0 * h[..., 0]], axis=-1),
        lambda h: 2 * h,
    )
    by = ["l2_ratio", "influence", "angular"]
    frame = probes.block_importance(chain, at(1, 0), by=by, run=2)
    assert frame.columns.tolist() == ["stage", "block", "influence", "angular_distance", "l2_ratio"]
    half = 1 - 0.5**0.5
    np.testing.assert_allclose(frame["influence"], [half, half, 0], atol=1e-6)
    np.testing.assert_allclose(frame["l2_ratio"], [1, 0.5**0.5, 2], rtol=1e-6)
    np.testing.assert_allclose(frame["angular_distance"], [0.5, 0.25, np.nan], rtol=1e-6)
    assert probes.block_importance(chain, at(1, 0), by="influence").columns[-1] == "influence"


def test_positions_are_measured_one_by_one():
    """As Men et al. 2024 do: the mean over positions is not that of the whole state."""
    decoder = Decoder()
    chain, data = decoder.chain(), decoder.batch()
    own, whole = (
        probes.block_importance(chain, data, by=["influence"], per_position=one)
        for one in (True, False)
    )
    states, _ = decoder.run(**data[0])
    states = [state[data[0]["mask"]] for state in states]
    expected = [turns(*pair)[0] for pair in itertools.pairwise(states)]
    np.testing.assert_allclose(own["influence"], expected, rtol=1e-3)
    assert not np.allclose(own["influence"], whole["influence"], rtol=1e-3)


def test_small_angles_are_exact():
    """In float32, the cosine of these is 1."""
    angles = np.array([1e-6, 1e-4, 0.1, 3.0])
    left = np.tile([[3.0, 4.0]], (4, 1)).astype("float32")
    turned = angles + np.arctan2(4.0, 3.0)
    right = 1e-3 * np.stack([np.cos(turned), np.sin(turned)], axis=1)
    found = cosine_distance_and_angle(left, right.astype("float32"))
    np.testing.assert_allclose(found[0], 1 - np.cos(angles), rtol=0.2, atol=1e-13)
    np.testing.assert_allclose(found[1], angles / np.pi, rtol=0.1)
    # Where nothing is added, nothing turns, zeros included.
    zeros = np.zeros((1, 2), "float32")
    np.testing.assert_array_equal(cosine_distance_and_angle(zeros, left[:1]), [[1.0], [0.5]])
    np.testing.assert_array_equal(cosine_distance_and_angle(zeros, zeros), [[0.0], [0.0]])
