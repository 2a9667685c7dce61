"""All probes on networks of shared, anchored and bounded blocks, against the NumPy version.

The comparisons are those of the tests of each probe, which hold for these networks as they stand.
Not covered here: the probes that are about bounds and fixed points, which have tests of their own.
"""

import numpy as np
import pytest
from probes import (
    test_block_metrics,
    test_borderline,
    test_drop_blocks,
    test_evaluate_routes,
    test_perturbation,
    test_readout,
    test_repeat_last_block,
    test_shuffle_blocks,
)
from reference.random_network import CONSTRAINED_CASES, case_id
from reference.route_probes import (
    assert_equals_numpy,
    network,
    numpy_means,
    trained_applications,
    with_stage,
)

from tfresidual import probes

pytestmark = pytest.mark.system

SMALL = {"input_shape": (8, 4, 3)}
# Every kind of sharing, with and without bounds, joined to the last state and to the stage's input;
# two stages, the second of which begins with a change of the shape, or has no other block.
NETWORKS = {
    "unshared, anchored, bounded": {
        "blocks": (3, 3),
        "widths": (4, 8),
        "share_from": 0,
        "batch_norm": "unshared",
        "anchor": "input",
        "lipschitz": 0.9,
    },
    "unshared scale, bounded, several labels": {
        "blocks": (3, 3),
        "widths": (4, 8),
        "share_from": 1,
        "batch_norm": "unshared_scale",
        "lipschitz": 3.0,
        "layout": "original",
        "transition": "convolution",
        "classifier_activation": "sigmoid",
    },
    "unshared statistics, anchored, one block that keeps the shape": {
        "blocks": (3, 2),
        "widths": (4, 8),
        "share_from": 1,
        "batch_norm": "unshared_statistics",
        "anchor": "input",
        "shortcut": "shortcut_only_gate",
        "layout": "relu_only_preactivation",
    },
    "shared, anchored after the addition": {
        "blocks": (4,),
        "widths": (4,),
        "share_from": 0,
        "anchor": "input",
        "layout": "bn_after_addition",
    },
}
NETWORKS = {name: settings | SMALL for name, settings in NETWORKS.items()}
all_networks = pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)


def check_block_metrics(net, batch):
    frame = probes.block_metrics(net, batch, per_image=True)
    expected = test_block_metrics.numpy_metrics(net, *batch)
    # Where a block hardly changes the state, rounding turns the change, and resizes it.
    rounding = 3e-7 / np.maximum(expected["l2_ratio"], 1e-6)
    for name, values in expected.items():
        measured = frame[name].to_numpy().reshape(-1, len(batch[0])).T
        np.testing.assert_array_equal(np.isnan(measured), np.isnan(values), err_msg=name)
        allowed = 1e-4 * np.abs(values) + 2e-6
        if name != "gradient_norm":
            allowed += rounding * (1 if "cosine" in name else np.abs(values))
        assert not (np.abs(measured - values) > allowed).any(), name


@all_networks
def test_block_metrics_equal_numpy(settings):
    check_block_metrics(*network(settings))


@pytest.mark.slow
@pytest.mark.parametrize("case", CONSTRAINED_CASES, ids=case_id)
def test_block_metrics_of_all_settings_equal_numpy(case):
    check_block_metrics(*network(case))


BOUNDED, SEVERAL, SHORT, BEHIND = NETWORKS
ROUTES = [
    (test_drop_blocks, BOUNDED),
    (test_drop_blocks, SHORT),
    (test_readout, SEVERAL),
    (test_readout, BEHIND),
    (test_evaluate_routes, BOUNDED),
    (test_evaluate_routes, BEHIND),
    (test_shuffle_blocks, BOUNDED),
]


@pytest.mark.parametrize(("tests", "name"), ROUTES, ids=lambda v: getattr(v, "__name__", v))
def test_probes_of_routes_equal_numpy(tests, name):
    tests.test_equals_numpy(NETWORKS[name])


def test_groups_of_images_equal_numpy():
    test_borderline.test_equals_numpy(NETWORKS[BOUNDED], 0.3)


@pytest.mark.parametrize("name", [BOUNDED, BEHIND])
def test_distances_equal_numpy(name):
    settings = {key: value for key, value in NETWORKS[name].items() if key != "blocks"}
    test_perturbation.test_distance_equals_numpy(settings)


# Where the state is the anchor too, the gradient leaves out the way through the anchor.
AT_ITS_ANCHOR = pytest.mark.xfail(strict=True, raises=AssertionError)


@pytest.mark.parametrize(
    "name", [BOUNDED, SEVERAL, pytest.param(SHORT, marks=AT_ITS_ANCHOR), BEHIND]
)
def test_repeated_blocks_equal_numpy(name):
    """They continue with the batch norm of the last step, and with the stage's input."""
    net, batch = network(NETWORKS[name])
    scale = 1.0 if net.lipschitz else 0.25
    frame = probes.repeat_last_block(net, batch, times=3, scale=scale)
    routes, metrics = [], []
    for stage in test_repeat_last_block.repeated_stages(net, batch):
        applied = trained_applications(net)[stage - 1]
        for times in range(4):
            route = with_stage(net, stage, applied + [(applied[-1][0], scale)] * times)
            routes.append(numpy_means(net, batch, stage, route))
        scales = [1.0] + [scale] * 3
        metrics += test_repeat_last_block.numpy_metrics(net, batch, stage, scales)
    assert_equals_numpy(frame, routes)
    cosines, ratios, _ = np.transpose(metrics)
    np.testing.assert_allclose(frame["l2_ratio"], ratios, rtol=1e-3, atol=1e-7)
    error = np.abs(frame["cosine_loss"] - cosines)
    assert (error <= 1e-5 + 1e-3 * np.abs(cosines) + 3e-7 / ratios).all()


@AT_ITS_ANCHOR
def test_repetition_0_is_block_metrics_where_the_block_is_the_first_of_its_stage():
    net, batch = network(NETWORKS[SHORT])
    frame = probes.repeat_last_block(net, batch, times=1)
    zero = frame[frame["repetition"] == 0]
    metrics = probes.block_metrics(net, batch).groupby("stage").last()
    columns = ["cosine_loss", "l2_ratio"]
    np.testing.assert_allclose(zero[columns], metrics[columns], rtol=1e-4, atol=1e-6)
