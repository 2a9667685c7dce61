"""The chain of a residual network."""

import numpy as np
import pytest
import tensorflow as tf
from reference.numpy_network import NumpyNetwork, weights_of
from reference.random_network import of_every_kind, random_batch, random_network, states_of

import tfresidual as tfr
from tfresidual import networks
from tfresidual.routing import Block

pytestmark = pytest.mark.eager


@pytest.fixture(scope="module", params=of_every_kind(others=pytest.mark.nightly))
def case(request):
    """A network, its chain, and images."""
    net = random_network(**request.param)
    return net, tfr.chain(net), random_batch(net)[0]


def test_is_the_network(case):
    net, chain, images = case
    np.testing.assert_array_equal(chain(images), net(images))
    states, _, _ = states_of(net, images)
    pairs, last = chain.walk(chain.stem(images))
    flat = [state for stage in states for state in stage]
    for (before, _), expected in zip(pairs, flat, strict=True):
        np.testing.assert_array_equal(before, expected)
    np.testing.assert_array_equal(pairs[-1][1], last)


def test_says_what_it_is():
    chain = tfr.chain(networks.resnet(20))
    assert [(b.stage, b.index, b.keeps_shape) for b in chain.blocks] == [
        (stage, index, stage == 1 or index > 0) for stage in (1, 2, 3) for index in range(3)
    ]
    assert str(chain).splitlines() == [
        "resnet20: 9 blocks in 3 stages",
        "  stage 1: 3 blocks",
        "    blocks 0 to 2 (identity): drop, move, read out after, repeat block 2",
        "  stage 2: 3 blocks",
        "    block 0 (projection): changes the shape, read out after",
        "    blocks 1 to 2 (identity): drop, move, read out after, repeat block 2",
        "  stage 3: 3 blocks",
        "    block 0 (projection): changes the shape, read out after",
        "    blocks 1 to 2 (identity): drop, move, read out after, repeat block 2",
    ]
    hauser = tfr.chain(networks.hauser_resnet(2))
    assert all(block.keeps_shape for block in hauser.blocks)
    assert "stage 2: 2 blocks, entered by a transition" in str(hauser)


def test_follows_the_weights():
    net = random_network()
    chain = tfr.chain(net)
    images, _ = random_batch(net)
    before = np.array(chain(images))
    net.get_layer("classifier").bias.assign_add([1.0, 0, 0, 0, 0])
    assert np.abs(np.array(chain(images)) - before).max() > 0.01


@pytest.mark.compiled
def test_runs_at_inference_inside_a_training_step():
    net = random_network(shortcut="dropout")
    chain = tfr.chain(net)
    images, _ = random_batch(net)
    expected = np.array(net(images, training=False))
    np.testing.assert_allclose(tf.function(chain)(tf.constant(images)), expected, atol=1e-5)


def test_blocks_with_their_branch_scaled_equal_numpy(case):
    net, chain, images = case
    states, _, _ = states_of(net, images)
    numpy_net = NumpyNetwork(net.get_config(), weights_of(net))
    for block in chain.blocks:
        state = np.asarray(states[block.stage - 1][block.index])
        unit = numpy_net.units[block.stage - 1][block.index]
        for scale in (0.3, -2.0):
            expected, _ = unit(state.astype("float64"), scale=scale)
            measured = block(state, scale=scale)
            np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=2e-5, err_msg=str(block))


def test_blocks_scaled_by_one_are_the_blocks(case):
    _, chain, images = case
    pairs, _ = chain.walk(chain.stem(images))
    for block, (before, after) in zip(chain.blocks, pairs, strict=True):
        np.testing.assert_array_equal(block(before, scale=1.0), after)
        np.testing.assert_array_equal(block(before), after)


def test_blocks_by_hand_are_scaled_by_their_change():
    block = Block(1, 0, True, lambda h: h * h)
    state = np.array([[1.0, 2.0, 3.0]])
    # h^2 - h is 0, 2 and 6.
    np.testing.assert_allclose(block(state), [[1, 4, 9]])
    for scale, expected in ((0.5, [1, 3, 6]), (0, [1, 2, 3]), (-1, [1, 0, -3]), (2, [1, 6, 15])):
        np.testing.assert_allclose(block(state, scale=scale), [expected])


def test_blocks_may_say_how_their_branch_is_joined():
    branch, join = lambda h: np.ones(1), lambda h, branch: 10 * h + branch
    block = Block(1, 0, True, lambda h: h + 1, branch=branch, join=join)
    assert block(2) == 3
    assert block(2, scale=0.5) == 20.5
    assert block(2, scale=0) == 20


def test_a_chain_of_a_chain_is_itself():
    chain = tfr.chain(random_network())
    assert tfr.chain(chain) is chain


def test_bad_source():
    with pytest.raises(ValueError, match=r"`source` must be.*Received: source=3 of type int"):
        tfr.chain(3)
