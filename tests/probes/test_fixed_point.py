"""Stages whose last block is applied on and on: against the NumPy version, and by hand.

Not covered here: networks on a GPU, where convolutions may round more than float32 does.
"""

import itertools

import numpy as np
import pandas as pd
import pytest
from keras import ops
from reference import numpy_network, numpy_signal
from reference.plane import anchored_chain, at, plane_chain
from reference.random_network import CONSTRAINED_CASES, random_batch, random_network, sample

import tfresidual as tfr
from tfresidual import probes
from tfresidual.probes.fixed_point import METRICS

# The first one, which is not nightly, has no bounds.
CONSTRAINED = [*CONSTRAINED_CASES[14::7], *CONSTRAINED_CASES[:14:7]]
NETWORKS = {
    "only block changes shape": {"blocks": (2, 1), "widths": (4, 8), "layout": "original"},
    "channels change at once": {"blocks": 2, "widths": (4,), "stem_width": 3, "anchor": "input"},
    "float64": {"blocks": 2, "widths": (4,), "dtype": "float64", "anchor": "input"},
}
BOUNDED = {"blocks": 2, "widths": (4,), "anchor": "input", "lipschitz": 0.9}


def numpy_frame(net, batch, times):
    """The frame of the probe by the NumPy version, contractions where no number is near rounding.

    Beside it stands the mean norm of the states.
    """
    stages = numpy_signal.applied_on(*numpy_signal.analyse(net, *batch), times)
    rows, sizes = [], []
    for stage, states in stages.items():
        before = None
        for step, (state, after) in enumerate(itertools.pairwise(states)):
            change, size = numpy_network.norm(after - state), numpy_network.norm(after)
            contractions = np.nan, np.nan
            if step and (before > 1e-4 * size).all():
                contractions = (change / before).mean(), (change / before).max()
            distance = numpy_network.norm(after - states[-1])
            rows.append((stage + 1, step, change.mean(), *contractions, distance.mean()))
            sizes.append(size.mean())
            before = change
    return pd.DataFrame(rows, columns=["stage", "repetition", *METRICS]), np.array(sizes)


@pytest.mark.eager
@pytest.mark.parametrize(
    "settings",
    [
        *sample(NETWORKS, every=1),
        pytest.param(BOUNDED, id="bounded", marks=pytest.mark.nightly),
        *sample(CONSTRAINED, 5, pytest.mark.nightly),
    ],
)
def test_equals_numpy(settings):
    net = random_network(seed=4, **settings)
    batch = random_batch(net, images=4)
    frame = probes.fixed_point(net, batch, times=3)
    expected, sizes = numpy_frame(net, batch, times=3)
    assert frame.columns.tolist() == ["stage", "repetition", *METRICS]
    places = ["stage", "repetition"]
    pd.testing.assert_frame_equal(frame[places], expected[places])
    for name in ("change", "distance"):
        # Small ones are differences of large states.
        difference = (frame[name] - expected[name]).abs()
        assert (difference <= 3e-6 * sizes + 2e-4 * expected[name]).all(), name
    is_clear = expected["contraction"].notna()
    assert is_clear.sum() >= 1
    for name in ("contraction", "largest_contraction"):
        np.testing.assert_allclose(frame[name][is_clear], expected[name][is_clear], rtol=5e-3)
    assert frame["contraction"][frame["repetition"] == 0].isna().all()


@pytest.mark.parametrize("slope", [0.5, -0.8, 0.99])
def test_linear_contraction_by_hand(slope):
    # z_0 = x, z_{t+1} = x + a z_t: the changes are a^{t+1} x, the fixed point is x / (1 - a).
    times = 12
    frame = probes.fixed_point(anchored_chain(slope, 3), at(3, 4), times=times)
    assert frame["stage"].tolist() == [1] * (times + 1)
    assert frame["repetition"].tolist() == list(range(times + 1))
    # The last block takes z_2.
    steps = np.arange(times + 1)
    np.testing.assert_allclose(frame["change"], 5 * np.abs(slope) ** (steps + 3.0), rtol=1e-4)
    assert np.isnan(frame["contraction"][0]) and np.isnan(frame["largest_contraction"][0])
    for name in ("contraction", "largest_contraction"):
        np.testing.assert_allclose(frame[name][1:], abs(slope), rtol=1e-4)
    sums = np.cumsum(slope ** np.arange(times + 4.0))
    distance = 5 * np.abs(sums[3:] - sums[-1])
    np.testing.assert_allclose(frame["distance"], distance, rtol=1e-4, atol=1e-5)
    assert frame["distance"].iloc[-1] == 0


def test_at_rest_there_is_no_contraction():
    # After some 10 steps the changes of 1 / 8^t are rounding.
    frame = probes.fixed_point(anchored_chain(1 / 8, 1), at(3, 4), times=30)
    is_measured = frame["contraction"].notna()
    assert is_measured.tolist() == [False] + [True] * is_measured.sum() + [False] * (
        30 - is_measured.sum()
    )
    assert 5 <= is_measured.sum() <= 9
    np.testing.assert_allclose(frame["contraction"][is_measured], 1 / 8, rtol=0.1)
    np.testing.assert_allclose(frame["largest_contraction"][is_measured], 1 / 8, rtol=0.1)
    still = probes.fixed_point(plane_chain(lambda h: 0 * h), at(3, 4), times=2)
    assert still["change"].tolist() == still["distance"].tolist() == [0, 0, 0]
    assert still["contraction"].isna().all()


@pytest.mark.system
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.nightly)]
)
def test_bounded_blocks_contract(dtype):
    net = random_network(
        blocks=2, widths=(4,), lipschitz=0.5, anchor="input", layout="original", dtype=dtype
    )
    frame = probes.fixed_point(net, random_batch(net, images=6), times=40)
    measured = frame.dropna()
    assert 1 <= len(measured) < 40
    # What rounding adds to a change of few ulps.
    assert (measured["largest_contraction"] <= 0.5 * 1.1).all()
    assert (measured["contraction"] <= measured["largest_contraction"]).all()
    rest = frame["change"].iloc[-1]
    assert rest < 0.01 * frame["change"][0]
    assert frame["distance"].iloc[-1] == pytest.approx(0, abs=rest + 1e-12)
    # The fixed point is that of every start: here of the first block's.
    chain = tfr.chain(net)
    images, _ = random_batch(net, images=6)
    state = anchor = chain.stem(images)
    block = chain.blocks[-1]
    ends = []
    for start in (state, 0 * state):
        for _ in range(20):
            start = block(start, anchor)
        ends.append(np.asarray(ops.cast(start, "float32")))
    np.testing.assert_allclose(*ends, atol=0.05 if dtype == "mixed_bfloat16" else 1e-5)
