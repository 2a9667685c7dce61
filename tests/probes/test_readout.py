"""Read-outs against the NumPy version and by hand."""

import numpy as np
import pytest
from keras import ops
from reference.route_probes import (
    METRICS,
    all_networks,
    assert_equals_numpy,
    counted,
    counting_chain,
    network,
    numpy_means,
    shape_changing,
    trained_applications,
    with_stage,
)

from tfresidual import probes

pytestmark = pytest.mark.eager


@all_networks("bounded, several labels", "shared", mark=pytest.mark.nightly)
def test_equals_numpy(settings):
    net, batch = network(settings)
    fixed = shape_changing(net, batch[0])
    expected = []
    for stage, applications in enumerate(trained_applications(net), start=1):
        for block in range(len(applications)):
            is_stuck = any((stage, later) in fixed for later in range(block + 1, len(applications)))
            route = None if is_stuck else with_stage(net, stage, applications[: block + 1])
            expected.append(numpy_means(net, batch, stage, route))
    frame = probes.readout(net, batch)
    assert frame.columns.tolist() == ["stage", "block", *METRICS]
    assert_equals_numpy(frame, expected)


def test_solved_by_hand():
    # Of 20 images as many are right as blocks were applied: 5, 2 of them in the first stage.
    chain = counting_chain(lambda n: 1 - ops.sum(n, axis=1) / 20, 2, 3)
    frame = probes.readout(chain, counted(np.arange(20) % 4))
    assert frame["stage"].tolist() == [1, 1, 2, 2, 2]
    assert frame["block"].tolist() == [0, 1, 0, 1, 2]
    np.testing.assert_allclose(frame["error"], [0.8, 0.75, 0.85, 0.8, 0.75], rtol=1e-6)
    # A prediction differs from that of the whole network where only one of them is right.
    np.testing.assert_allclose(frame["agreement"], [0.95, 1, 0.9, 0.95, 1], rtol=1e-6)
    # Every block not applied leaves one count at zero.
    np.testing.assert_allclose(frame["distance"], np.sqrt([1, 0, 2, 1, 0]), rtol=1e-6)


def test_stage_that_changes_shape_late():
    chain = counting_chain(lambda n: n[:, 0] * 0, 3, 2, changes=[(1, 1), (2, 1)])
    frame = probes.readout(chain, counted([0, 1, 2, 3]))
    # After block 0 the change of shape is still to come.
    assert frame["error"].isna().tolist() == [True, False, False, True, False]
    assert frame.loc[frame["error"].isna(), METRICS].isna().all(axis=None)
    assert frame.loc[frame["error"].notna(), METRICS].notna().all(axis=None)
