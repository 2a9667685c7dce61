"""Whole routes against the NumPy version and by hand; what the tests of other probes share.

Every probe of routes is compared with `reference.numpy_routes`, which runs each route by itself in
float64. Where the answers must be known, a chain counts how often each block was applied, and
its head errs on a chosen share of the images.
"""

import numpy as np
import pytest
from reference.plane import plane_chain
from reference.random_network import sample
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
