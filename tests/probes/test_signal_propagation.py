"""Signal propagation against the NumPy version, and cases solved by hand.

Not covered here: networks on a GPU.
"""

import numpy as np
import pytest
from keras import ops
from reference import numpy_signal
from reference.plane import anchored_chain, at, chain_of, plane_chain
from reference.random_network import (
    CASES,
    CONSTRAINED_CASES,
    case_id,
    random_batch,
    random_network,
    sample,
)

from tfresidual import probes
from tfresidual.layers.shortcuts import (
    DropoutShortcut,
    ExclusiveGateShortcut,
    ScaledShortcut,
)
from tfresidual.probes.signal_propagation import METRICS
from tfresidual.routing import Block

pytestmark = pytest.mark.eager

# Relative to the size of the number; shares, which cancel, also absolutely.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}
# Every layout, shortcut and transition; shared blocks, anchors, bounded branches; and more.
ANCHORED = [case for case in CONSTRAINED_CASES if case["anchor"] == "input"]
# The first one, which is not nightly, has no bounds.
ANCHORED = [*ANCHORED[7::3], *ANCHORED[1:7:3]]
NETWORKS = {
    "gates half open": {
        "shortcut": ExclusiveGateShortcut(bias=0.0),
        "layout": "original",
        "widths": (4, 8),
    },
    "lambda 1.3": {"shortcut": ScaledShortcut(scale=1.3, branch_scale=0.7), "widths": (4, 8)},
    "dropout": {"shortcut": DropoutShortcut(0.25), "widths": (4, 8)},
    "several labels": {"classifier_activation": "sigmoid", "pooling": 2, "widths": (4, 6)},
    "bounded": {
        "widths": (4,),
        "anchor": "input",
        "lipschitz": 0.9,
        "share_from": 0,
        "batch_norm": "unshared",
    },
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "settings",
    [
        *sample(NETWORKS, every=1),
        *sample(CASES[::5], every=3, others=pytest.mark.nightly),
        pytest.param(ANCHORED[0], id=case_id(ANCHORED[0]), marks=pytest.mark.nightly),
        *(pytest.param(case, id=case_id(case), marks=pytest.mark.nightly) for case in ANCHORED[1:]),
    ],
)
def test_equals_numpy(settings):
    net = random_network(seed=3, **settings)
    images, labels = random_batch(net, images=4)
    frame = probes.signal_propagation(net, (images, labels), per_image=True)
    assert frame.columns.tolist() == ["stage", "block", "image", *METRICS]
    analysed = numpy_signal.analyse(net, images, labels)
    # Of a bounded branch the divisor is known as well as the power iteration has converged.
    tolerance = TOLERANCE if net.lipschitz is None else {"rtol": 2e-3, "atol": 1e-4}
    for name, expected in numpy_signal.signal_metrics(*analysed).items():
        measured = frame[name].to_numpy().reshape(-1, len(images)).T
        np.testing.assert_allclose(measured, expected, **tolerance, err_msg=name)


def scaled_block(index, scale, branch):
    """The block h -> scale * h + branch(h), which tells the two apart."""
    return Block(
        1,
        index,
        True,
        lambda h: scale * h + branch(h),
        branch=branch,
        join=lambda h, changed: scale * h + changed,
    )


def test_solved_by_hand():
    # (3, 4), halved, then doubled by branches h -> -h / 2 and h -> h: the shortcuts alone pass the
    # last gradient (3, 4) on as it is, and the whole network turns it into 2 and 1 times that.
    frame = probes.signal_propagation(plane_chain(lambda h: -h / 2, lambda h: h), at(3, 4))
    np.testing.assert_allclose(frame["state_norm"], [2.5, 5], rtol=1e-6)
    np.testing.assert_allclose(frame["state_l1"], [3.5, 7], rtol=1e-6)
    np.testing.assert_allclose(frame["state_gradient_norm"], [10, 5], rtol=1e-6)
    np.testing.assert_allclose(frame["gradient_ratio"], [1, 0.5], rtol=1e-6)
    np.testing.assert_allclose(frame["shortcut_share"], [1, 0.5], rtol=1e-6)
    np.testing.assert_allclose(frame["shortcut_norm"], [1, 0.5], rtol=1e-6)
    assert frame["shortcut_product"].tolist() == [1, 1]
    assert frame["sum_deviation"].tolist() == [0, 0]


@pytest.mark.parametrize("scales", [(0.5, 0.5, 0.5), (1.5, 2.0, 3.0), (0.9, 1.0, -0.4)])
def test_share_is_the_product_of_the_lambdas(scales):
    # Branches (1 - lambda) h make every block the identity, and every whole gradient the last one.
    blocks = [
        scaled_block(index, scale, lambda h, scale=scale: (1 - scale) * h)
        for index, scale in enumerate(scales)
    ]
    frame = probes.signal_propagation(chain_of(*blocks), at(3, 4))
    products = np.cumprod(scales[::-1])[::-1]
    np.testing.assert_allclose(frame["shortcut_share"], products, rtol=1e-6)
    np.testing.assert_allclose(frame["shortcut_norm"], np.abs(products), rtol=1e-6)
    np.testing.assert_allclose(frame["shortcut_product"], np.abs(products), rtol=1e-6)
    np.testing.assert_allclose(frame["state_gradient_norm"], 5, rtol=1e-6)
    # Every state is (3, 4), and the sum has (1 - lambda) of it more for every block.
    sums = np.cumsum([1 - scale for scale in scales])
    np.testing.assert_allclose(frame["sum_deviation"], np.abs(sums), rtol=1e-6)


def test_anchor_by_hand():
    # z_1 = x + z/2 .. : the last state is 15/8 x, with the gradient 15/8 (3, 4). At x the network
    # multiplies it by 15/8, of which 1 is the last shortcut; at later states by 1/4 and 1/2,
    # through branches alone.
    frame = probes.signal_propagation(anchored_chain(0.5, 3), at(3, 4))
    last = 5 * 15 / 8
    np.testing.assert_allclose(frame["state_norm"], [5 * 3 / 2, 5 * 7 / 4, last], rtol=1e-6)
    np.testing.assert_allclose(frame["state_gradient_norm"], [last / 4, last / 2, last], rtol=1e-6)
    np.testing.assert_allclose(frame["gradient_ratio"], [1, 15 / 8 * 4, 15 / 8 * 2], rtol=1e-6)
    np.testing.assert_allclose(frame["shortcut_share"], [8 / 15, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(frame["shortcut_norm"], [8 / 15, 0, 0], rtol=1e-6)


def test_blocks_that_do_not_tell_their_shortcut():
    def double(h):
        return ops.repeat(h, 2, axis=1)

    blocks = [
        Block(1, 0, True, lambda h: 2 * h),
        Block(1, 1, False, double),
        Block(1, 2, True, lambda h: 4 * h),
    ]
    chain = chain_of(*blocks, head=lambda state: ops.reshape(state, (-1, 4)))
    frame = probes.signal_propagation(chain, at(3, 4))
    np.testing.assert_array_equal(frame["shortcut_share"].isna(), [True, True, False])
    np.testing.assert_array_equal(frame["shortcut_norm"].isna(), [True, True, False])
    np.testing.assert_array_equal(frame["shortcut_product"].isna(), [True, True, False])
    np.testing.assert_array_equal(frame["sum_deviation"].isna(), [False, True, False])
    assert frame["shortcut_share"][2] == pytest.approx(1 / 4)
    assert frame[list(METRICS[:4])].notna().all(axis=None)
    only = chain_of(Block(1, 0, False, double), head=lambda state: ops.reshape(state, (-1, 4)))
    assert probes.signal_propagation(only, at(3, 4))["shortcut_share"].isna().all()


@pytest.mark.parametrize(("rescale", "scale"), [(False, 0.5), (True, 1)])
def test_dropout_shortcuts_pass_the_mean_of_their_masks(rescale, scale):
    net = random_network(shortcut=DropoutShortcut(rescale=rescale), blocks=3, widths=(4,))
    for variable in net.trainable_variables:
        if "convolution" in variable.path:
            # No branch adds anything: what arrives came through the shortcuts.
            variable.assign(np.zeros(variable.shape))
    frame = probes.signal_propagation(net, random_batch(net))
    sizes = frame["gradient_ratio"].iloc[0] / frame["gradient_ratio"]
    np.testing.assert_allclose(sizes, [1, 1 / scale, 1 / scale**2], rtol=1e-5)
    np.testing.assert_allclose(frame["shortcut_share"], 1, rtol=1e-5)
