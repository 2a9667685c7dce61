"""Dropped blocks against the NumPy version and by hand."""

import numpy as np
import pytest
from keras import ops
from reference.route_probes import (
    METRICS,
    NETWORKS,
    all_networks,
    assert_equals_numpy,
    counted,
    counting_chain,
    network,
    numpy_means,
    numpy_values,
    shape_changing,
    trained_applications,
    with_stage,
)

from tfresidual import probes

pytestmark = pytest.mark.eager


@all_networks("bounded", "at its anchor")
def test_equals_numpy(settings):
    net, batch = network(settings)
    fixed = shape_changing(net, batch[0])
    expected = []
    for stage, applications in enumerate(trained_applications(net), start=1):
        for block in range(len(applications)):
            kept = with_stage(net, stage, applications[:block] + applications[block + 1 :])
            route = None if (stage, block) in fixed else kept
            expected.append(numpy_means(net, batch, stage, route))
    frame = probes.drop_blocks(net, batch)
    assert frame.columns.tolist() == ["stage", "block", *METRICS, "unperturbed_error"]
    assert_equals_numpy(frame, expected)
    assert frame["error"].isna().sum() == len(fixed)
    unperturbed = numpy_values(net, batch, trained_applications(net))["wrong"].mean()
    np.testing.assert_allclose(frame["unperturbed_error"], unperturbed)


def test_solved_by_hand():
    # Without block b of 4, (b + 1) tenths of the images are wrong; with all of them, none.
    weights = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    chain = counting_chain(lambda n: ops.sum((1 - n) * weights, axis=1), 3, 1)
    frame = probes.drop_blocks(chain, counted(np.arange(20) % 4))
    assert frame[["stage", "block"]].to_numpy().tolist() == [[1, 0], [1, 1], [1, 2], [2, 0]]
    np.testing.assert_allclose(frame["error"], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(frame["agreement"], [0.9, 0.8, 0.7, 0.6], rtol=1e-6)
    np.testing.assert_allclose(frame["distance"], [1, 1, 1, 1], rtol=1e-6)
    assert frame["unperturbed_error"].tolist() == [0] * 4


def test_distance_is_that_of_the_stage_of_the_block():
    net, batch = network(NETWORKS["original"])
    frame = probes.drop_blocks(net, batch).set_index(["stage", "block"])
    for stage, block in ((1, 0), (2, 1)):
        kept = [pair for pair in trained_applications(net)[stage - 1] if pair[0] != block]
        values = numpy_values(net, batch, with_stage(net, stage, kept))["distance"]
        own = values[:, stage - 1].mean()
        assert frame.loc[(stage, block), "distance"] == pytest.approx(own, rel=1e-4)


def test_blocks_that_change_shape():
    chain = counting_chain(lambda n: 1 - ops.sum(n, axis=1) / 8, 1, 2, changes=[(1, 0), (2, 1)])
    frame = probes.drop_blocks(chain, counted([0, 1, 2, 3]))
    assert frame["error"].isna().tolist() == [True, False, True]
    assert frame.loc[[0, 2], METRICS].isna().all(axis=None)
    # 5/8 with all three blocks: 2 of 4 images lie under it; 6/8 without one: 3 do.
    assert frame["unperturbed_error"].tolist() == [0.5] * 3
    assert frame.loc[1, "error"] == 0.75
