"""What the gradient predicts of the loss against the NumPy version, and cases solved by hand."""

import dataclasses

import numpy as np
import pytest
from keras import ops
from reference import numpy_network, numpy_routes
from reference.plane import at, plane_chain
from reference.random_network import sample
from reference.route_probes import (
    CONSTRAINED_NETWORKS,
    NETWORKS,
    constrained,
    network,
    shape_changing,
    trained_applications,
    with_stage,
)

from tfresidual import probes
from tfresidual.probes.first_order import TERMS, VALUES, rank_correlation

pytestmark = pytest.mark.eager

COMPARED = [f"{name}{end}" for end in TERMS for name in ("ratio", "rank_correlation")]


def numpy_values(net, batch):
    """Every value of the probe by name, `(blocks, images)`, in float64."""
    images, labels = batch
    config, weights = net.get_config(), numpy_network.weights_of(net)
    plain = numpy_network.NumpyNetwork(config, weights)
    run = numpy_network.analyse(config, weights, images, labels)
    rows = {name: [] for name in VALUES}
    for s, stage in enumerate(run.by_stage()):
        after = [*run.gradients[s][1:], run.last_gradients[s]]
        for t, ((h, f, g, _), g_after) in enumerate(zip(stage, after, strict=True)):
            if f is None:
                for columns in rows.values():
                    columns.append(np.full(len(images), np.nan))
                continue
            applied = trained_applications(net)[s]
            kept = with_stage(net, s + 1, applied[:t] + applied[t + 1 :])
            _, logits = numpy_routes.run(plain, kept, images)
            without, _ = numpy_network.loss_of_logits(logits, labels)
            rows["first_order"].append([np.vdot(a, b) for a, b in zip(f, g, strict=True)])
            rows["first_order_after"].append(
                [np.vdot(a, b) for a, b in zip(f, g_after, strict=True)]
            )
            rows["loss_change"].append(run.losses - without)
            # The head takes the state at the beginning of a last stage of the same shape.
            gradient = run.readout_gradients[t] if s == len(run.gradients) - 1 else None
            if gradient is None:
                rows["first_order_readout"].append(np.full(len(images), np.nan))
                rows["readout_change"].append(np.full(len(images), np.nan))
            else:
                rows["first_order_readout"].append(np.sum(f * gradient, axis=(1, 2, 3)))
                ends = [with_stage(net, s + 1, applied[:end]) for end in (t + 1, t)]
                logits = [numpy_routes.run(plain, route, images)[1] for route in ends]
                then, now = (numpy_network.loss_of_logits(one, labels)[0] for one in logits)
                rows["readout_change"].append(then - now)
            rows["l2_ratio"].append(numpy_network.norm(f) / numpy_network.norm(h))
    return {name: np.array(columns) for name, columns in rows.items()}


def ranks(values):
    """Places from 1, the mean of them for equal values; quadratic and plain."""
    return np.array([(np.sum(values < v) + np.sum(values <= v) + 1) / 2 for v in values])


@pytest.mark.parametrize(
    "settings",
    [
        *sample(NETWORKS, 6, pytest.mark.nightly),
        pytest.param(
            CONSTRAINED_NETWORKS["bounded"], id="constrained bounded", marks=pytest.mark.nightly
        ),
        *constrained("at its anchor"),
    ],
)
def test_equals_numpy(settings):
    net, batch = network(settings)
    expected = numpy_values(net, batch)
    images = len(batch[0])
    tolerance = {"rtol": 1e-3, "atol": 2e-5}
    if net.lipschitz is not None:
        tolerance = {"rtol": 0.01, "atol": 1e-3}
    own = probes.first_order(net, batch, per_image=True)
    assert own.columns.tolist() == ["stage", "block", "image", *VALUES]
    for name in VALUES:
        measured = own[name].to_numpy().reshape(-1, images)
        np.testing.assert_allclose(measured, expected[name], **tolerance, err_msg=name)
    assert own["first_order"].isna().sum() == images * len(shape_changing(net, batch[0]))
    frame = probes.first_order(net, batch)
    errors = [f"{name}_se" for name in VALUES]
    assert frame.columns.tolist() == ["stage", "block", *VALUES, *COMPARED, *errors]
    values = {name: own[name].to_numpy().reshape(-1, images) for name in VALUES}
    for name in VALUES:
        np.testing.assert_allclose(frame[name], values[name].mean(axis=1), rtol=1e-6, atol=1e-7)
        noise = values[name].std(axis=1, ddof=1) / images**0.5
        np.testing.assert_allclose(frame[f"{name}_se"], noise, rtol=1e-6, atol=1e-7)
    for suffix, (term, change) in TERMS.items():
        quotients = values[term].mean(axis=1) / values[change].mean(axis=1)
        np.testing.assert_allclose(frame[f"ratio{suffix}"], quotients, rtol=1e-3)
        for place, pair in enumerate(zip(values[term], values[change], strict=True)):
            measured = frame[f"rank_correlation{suffix}"].iloc[place]
            if np.isnan(pair).any():
                assert np.isnan(measured)
            else:
                wanted = np.corrcoef(*map(ranks, pair))[0, 1]
                assert measured == pytest.approx(wanted, abs=1e-6)


def linear_chain(*branches, slopes=(1.0, -2.0)):
    """A chain in the plane whose loss is linear; block t adds `branches[t](h)`."""

    def loss(labels, outputs):
        return ops.sum(outputs * np.array(slopes, "float32"), axis=-1)

    return dataclasses.replace(plane_chain(*branches), loss=loss)


POINTS = np.array([[3, 4], [1, 0], [-2, 5]], "float32")[:, None, None], np.array([0, 1, 1])


def test_exact_where_everything_is_linear():
    # L = x - 2y. Branches a h for a = 1 and -1/2: the whole network is the identity. The change by
    # the first block is (2 - 1) / 2 of L(h), by the second one 1 - 2 times L(h).
    chain = linear_chain(lambda h: h, lambda h: -h / 2)
    own = probes.first_order(chain, POINTS, per_image=True)
    losses = np.array([-5, 1, -12])
    np.testing.assert_allclose(own["loss_change"], np.r_[losses / 2, -losses], rtol=1e-6)
    np.testing.assert_allclose(own["first_order_after"], own["loss_change"], rtol=1e-6)
    # 1 + a times that.
    factors = np.repeat([2, 1 / 2], 3)
    np.testing.assert_allclose(own["first_order"], factors * own["loss_change"], rtol=1e-6)
    frame = probes.first_order(chain, POINTS)
    np.testing.assert_allclose(frame["ratio"], [2, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(frame["ratio_after"], 1, rtol=1e-6)
    assert frame["rank_correlation"].tolist() == [1, 1]
    # The head alone: each block adds a times the loss of its own input, L(h) and 2 L(h).
    np.testing.assert_allclose(frame["readout_change"], [-16 / 3, 16 / 3], rtol=1e-6)
    np.testing.assert_allclose(frame["first_order_readout"], frame["readout_change"], rtol=1e-6)
    np.testing.assert_allclose(frame["l2_ratio"], [1, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(frame["loss_change"], [-8 / 3, 16 / 3], rtol=1e-6)


def test_a_loss_with_curvature():
    # L = |h|^2 / 2 of (3, 4), and a step of -h / 10: from 12.5 to 10.125.
    row = probes.first_order(plane_chain(lambda h: -h / 10), at(3, 4)).iloc[0]
    assert row["loss_change"] == pytest.approx(10.125 - 12.5)
    # g at the input is 0.9 * (2.7, 3.6), at the output (2.7, 3.6).
    assert row["first_order"] == pytest.approx(-0.1 * 0.81 * 25)
    assert row["first_order_after"] == pytest.approx(-0.1 * 0.9 * 25)
    assert row["ratio"] == pytest.approx(2.025 / 2.375)
    # Of the head alone: <-h / 10, h>.
    assert row["first_order_readout"] == pytest.approx(-2.5)
    assert row["ratio_readout"] == pytest.approx(2.5 / 2.375)
    assert np.isnan(row["rank_correlation"])


def test_rank_correlation():
    assert rank_correlation(np.array([1, 2, 30]), np.array([-3, -2.5, 0])) == 1
    assert rank_correlation(np.array([1, 2, 3]), np.array([3, 2, 1])) == -1
    # 1 - 6 sum d^2 / (n (n^2 - 1)) with d = (0, 1, -1, 0).
    assert rank_correlation(np.array([1, 2, 3, 4]), np.array([1, 3, 2, np.inf])) == pytest.approx(
        1 - 12 / 60
    )
    tied = rank_correlation(np.array([1, 1, 2]), np.array([1, 2, 3]))
    assert tied == pytest.approx(np.sqrt(3) / 2)
    for left, right in (([1], [1]), ([1, 1], [1, 2]), ([1, np.nan, 2], [1, 2, 3])):
        assert np.isnan(rank_correlation(np.array(left, float), np.array(right, float)))
