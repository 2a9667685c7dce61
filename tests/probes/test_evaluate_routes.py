"""Whole routes against the NumPy version and by hand; what the tests of other probes share.

Every probe of routes is compared with `reference.numpy_routes`, which runs each route by itself in
float64. Where the answers must be known, a chain counts how often each block was applied, and
its head errs on a chosen share of the images.
"""

import numpy as np
import pandas as pd
import pytest
from reference.plane import plane_chain
from reference.random_network import random_batch, sample
from reference.route_probes import (
    METRICS,
    NETWORKS,
    TOLERANCE,
    constrained,
    network,
    numpy_values,
    trained_applications,
    with_stage,
)

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import routes

pytestmark = pytest.mark.eager


@pytest.mark.parametrize(
    "settings",
    [*sample(NETWORKS, every=3), *constrained("bounded", "shared", mark=pytest.mark.nightly)],
)
def test_equals_numpy(settings):
    net, batch = network(settings)
    chain = tfr.chain(net)
    stage = len(chain.stages)
    last = len(chain.stages[-1].blocks) - 1
    first = 0 if chain.stages[-1].blocks[0].keeps_shape else 1
    kept = [block for block in range(last + 1) if block != first]
    chosen = {
        routes.unperturbed(chain): trained_applications(net),
        routes.drop(chain, (stage, first)): with_stage(net, stage, [(t, 1.0) for t in kept]),
        routes.repeat_last_block(chain, stage, 2, 0.25): with_stage(
            net, stage, [*trained_applications(net)[-1], (last, 0.25), (last, 0.25)]
        ),
        routes.readout(chain, 1, len(chain.stages[0].blocks) - 2): with_stage(
            net, 1, trained_applications(net)[0][:-1]
        ),
    }
    frame = probes.evaluate_routes(chain, batch, chosen, per_image=True)
    assert frame["route"].unique().tolist() == [route.name for route in chosen]
    for (_, part), stages in zip(frame.groupby("route", sort=False), chosen.values(), strict=True):
        expected = numpy_values(net, batch, stages)
        for name in METRICS[:-1]:
            np.testing.assert_allclose(part[name], expected[name], **TOLERANCE, err_msg=name)
        np.testing.assert_allclose(part["margin"], expected["margin"], **TOLERANCE)
        for index in range(stage):
            np.testing.assert_allclose(
                part[f"stage{index + 1}_distance"], expected["distance"][:, index], **TOLERANCE
            )


def test_solved_by_hand():
    # (1, 2), labels 0 and 1; the block turns the logits to (2, 1), so the first image is right.
    chain = plane_chain(lambda h: h[..., ::-1] - h)
    images = np.array([[[[1, 2]]], [[[1, 2]]]], "float32")
    data = images, np.array([0, 1])
    frame = probes.evaluate_routes(
        chain, data, [routes.unperturbed(chain), routes.drop(chain, (1, 0))]
    )
    assert frame["error"].tolist() == [0.5, 0.5]
    assert frame["agreement"].tolist() == [1, 0]
    # -log p of the higher logit is log(1 + 1/e), of the lower 1 more.
    high = np.log(1 + np.exp(-1))
    np.testing.assert_allclose(frame["cross_entropy"], [high + 0.5] * 2, rtol=1e-6)
    p = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(frame["entropy"], high + (1 - p), rtol=1e-6)
    np.testing.assert_allclose(frame["stage1_distance"], [0, np.sqrt(2)], rtol=1e-6)


def test_columns_and_splits():
    net, batch = network(NETWORKS["only block changes shape"])
    chain = tfr.chain(net)
    chosen = [routes.drop(chain, (3, 1)), routes.unperturbed(chain)]
    distances = ["stage1_distance", "stage2_distance", "stage3_distance"]
    frame = probes.evaluate_routes(chain, batch, chosen)
    assert frame.columns.tolist() == ["route", *METRICS[:-1], *distances]
    assert frame["route"].tolist() == ["without stage 3 block 1", "unperturbed"]
    data = {"b": batch, "a": random_batch(net, images=3, seed=8)}
    both = probes.evaluate_routes(chain, data, chosen)
    assert both.columns.tolist() == ["split", *frame.columns]
    assert both["split"].tolist() == ["b", "b", "a", "a"]
    pd.testing.assert_frame_equal(both.drop(columns="split").head(2), frame)
    images = probes.evaluate_routes(chain, data, chosen, per_image=True)
    own = ["split", "route", "image", *METRICS[:-1], "margin", *distances]
    assert images.columns.tolist() == own
    assert images["image"].tolist() == [*range(7), *range(7), *range(3), *range(3)]
    means = images.groupby(["split", "route"], sort=False)[frame.columns[1:].tolist()].mean()
    np.testing.assert_allclose(means, both[frame.columns[1:]], rtol=1e-6)
