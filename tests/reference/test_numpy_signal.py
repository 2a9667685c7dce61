"""The NumPy version of what shortcuts carry, against finite differences and by hand."""

import itertools

import numpy as np
import pytest

from reference import numpy_network, numpy_signal
from reference.random_network import CASES, case_id, random_batch, random_network


@pytest.mark.parametrize("case", CASES[2::9], ids=case_id)
def test_shortcuts_are_the_way_to_the_stage_end_with_the_branches_kept(case):
    settings = {"blocks": 3, "widths": (4, 8)} | case
    for anchor in ("previous", "input"):
        net = random_network(seed=3, anchor=anchor, **settings)
        plain, run = numpy_signal.analyse(net, *random_batch(net, images=2))
        rng = np.random.default_rng(5)
        for s, arriving in enumerate(numpy_signal.through_shortcuts(plain, run)):
            for index, gradient in enumerate(arriving):
                direction = rng.normal(size=gradient.shape)
                ends = [
                    end_of_stage(plain, run, s, index, sign * 1e-6 * direction) for sign in (1, -1)
                ]
                expected = np.vdot(run.last_gradients[s], ends[0] - ends[1]) / 2e-6
                measured = np.vdot(gradient, direction)
                assert measured == pytest.approx(expected, rel=1e-5, abs=1e-9)


def end_of_stage(net, run, stage, index, move):
    """The last state of a stage, where the state before a block is moved and no branch knows."""
    states = dict(enumerate(run.states[stage]))
    states[index] = states[index] + move
    first = max(net.changes[stage], default=-1) + 1
    for later in range(index, len(run.states[stage])):
        is_anchored = net.config["anchor"] == "input" and later >= first
        base = states[first] if is_anchored else states[later]
        # The branch reads the state that was not moved.
        states[later + 1], _ = net.units[stage][later](run.states[stage][later], anchor=base)
    return states[len(run.states[stage])]


def test_the_last_block_goes_on():
    net = random_network(seed=3, blocks=2, widths=(4, 8), anchor="input", transition="convolution")
    plain, run = numpy_signal.analyse(net, *random_batch(net))
    for s, states in numpy_signal.applied_on(plain, run, 2).items():
        np.testing.assert_allclose(states[1], run.last_states[s], rtol=1e-12)
        for before, after in itertools.pairwise(states[1:]):
            expected, _ = plain.units[s][1](before, anchor=run.states[s][0])
            np.testing.assert_array_equal(after, expected)
    # Without an anchor; the only block of the second stage changes the shape.
    net = random_network(seed=3, blocks=(2, 1), widths=(4, 8))
    plain, run = numpy_signal.analyse(net, *random_batch(net))
    stages = numpy_signal.applied_on(plain, run, 1)
    assert list(stages) == [0]
    expected, _ = plain.units[0][1](stages[0][1])
    np.testing.assert_allclose(stages[0][2], expected, rtol=1e-12)


def test_shares_of_shortcut_and_branch_sum_to_one():
    net = random_network(seed=3, blocks=3, widths=(4,), shortcut="shortcut_only_gate")
    plain, run = numpy_signal.analyse(net, *random_batch(net))
    shortcuts = numpy_signal.through_shortcuts(plain, run)[0]
    # Of the last block, the rest comes through its own branch.
    _, pull = plain.units[0][2](run.states[0][2], anchor=run.states[0][2])
    through_branch, through_shortcut = pull(run.last_gradients[0])
    np.testing.assert_allclose(shortcuts[2], through_shortcut)
    np.testing.assert_allclose(run.gradients[0][2], through_branch + through_shortcut)
    share = numpy_signal.signal_metrics(plain, run)["shortcut_share"][:, 2]
    gradient, size = run.gradients[0][2], numpy_network.norm(run.gradients[0][2])
    rest = (through_branch * gradient).sum((1, 2, 3)) / size**2
    np.testing.assert_allclose(share + rest, 1)
