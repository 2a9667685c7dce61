"""The chain of a residual network."""

import numpy as np
import pytest
import tensorflow as tf
from reference.random_network import CASES, case_id, random_batch, random_network, states_of

import tfresidual as tfr
from tfresidual import networks


@pytest.mark.parametrize("case", CASES[::4], ids=case_id)
def test_is_the_network(case):
    net = random_network(**case)
    images, _ = random_batch(net)
    chain = tfr.chain(net)
    np.testing.assert_array_equal(chain(images), net(images))
    states, _, _ = states_of(net, images)
    steps, last = chain.walk(chain.stem(images))
    flat = [state for stage in states for state in stage]
    for (before, _), expected in zip(steps, flat, strict=True):
        np.testing.assert_array_equal(before, expected)
    np.testing.assert_array_equal(steps[-1][1], last)


def test_says_what_it_is():
    chain = tfr.chain(networks.resnet(20))
    assert [(b.stage, b.step, b.keeps_shape) for b in chain.blocks] == [
        (stage, step, stage == 1 or step > 0) for stage in (1, 2, 3) for step in range(3)
    ]
    assert str(chain).splitlines() == [
        "resnet20: 9 blocks in 3 stages",
        "  stage 1: 3 blocks",
        "  stage 2: 3 blocks, shape changed by block 0",
        "  stage 3: 3 blocks, shape changed by block 0",
    ]
    hauser = tfr.chain(networks.hauser(2))
    assert all(block.keeps_shape for block in hauser.blocks)
    assert "stage 2: 2 blocks, entered by a transition" in str(hauser)


def test_follows_the_weights():
    net = random_network()
    chain = tfr.chain(net)
    images, _ = random_batch(net)
    before = np.array(chain(images))
    net.get_layer("classifier").bias.assign_add([1.0, 0, 0, 0, 0])
    assert np.abs(np.array(chain(images)) - before).max() > 0.01


def test_runs_at_inference_inside_a_training_step():
    net = random_network(shortcut="dropout")
    chain = tfr.chain(net)
    images, _ = random_batch(net)
    expected = np.array(net(images, training=False))
    np.testing.assert_allclose(tf.function(chain)(tf.constant(images)), expected, atol=1e-5)


def test_a_chain_of_a_chain_is_itself():
    chain = tfr.chain(random_network())
    assert tfr.chain(chain) is chain


def test_bad_source():
    with pytest.raises(ValueError, match=r"`source` must be.*Received: source=3 of type int"):
        tfr.chain(3)
