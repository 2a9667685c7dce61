"""The chain of a residual network: plain, anchored, shared and bounded."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from reference.numpy_network import NumpyNetwork, weights_of
from reference.plane import chain_of
from reference.random_network import (
    CONSTRAINED_CASES,
    case_id,
    of_every_kind,
    random_batch,
    random_network,
    randomise,
    states_of,
)
from reference.route_values import TOLERANCE, every_route, expected_of
from refusals import refused

import tfresidual as tfr
from tfresidual import networks
from tfresidual.routing import Block, evaluate
from tfresidual.routing.routes import follow, repeat_last_block, unperturbed

pytestmark = pytest.mark.eager

# One network of each transition; stages that change the shape in their first block, bounds, and
# batch normalizations of every kind. Compiling bounds takes long: there are few blocks.
SMALL = {"input_shape": (8, 4, 3), "blocks": (1, 3), "widths": (4, 8)}
BOUNDED = SMALL | {
    "share_from": 0,
    "batch_norm": "unshared",
    "lipschitz": 0.9,
    "anchor": "input",
}
ANCHORED = [
    CONSTRAINED_CASES[2] | SMALL,
    CONSTRAINED_CASES[5] | SMALL | {"blocks": 3},
    CONSTRAINED_CASES[18] | SMALL | {"blocks": 2},
    BOUNDED,
]
ANCHORED = [
    pytest.param(case, id=case_id(case), marks=pytest.mark.nightly if i > 1 else pytest.mark.system)
    for i, case in enumerate(ANCHORED)
]


def made(request):
    net = random_network(seed=3, **request.param)
    return net, tfr.chain(net), random_batch(net, images=4)


@pytest.fixture(scope="module", params=[*of_every_kind(others=pytest.mark.nightly), *ANCHORED])
def case(request):
    """A network, its chain, and a batch."""
    return made(request)


@pytest.fixture(scope="module", params=ANCHORED)
def anchored(request):
    """The same with an anchor."""
    return made(request)


@pytest.mark.sampled(5)
def test_is_the_network_in_one_walk_or_in_two_parts(case):
    net, chain, (images, _) = case
    np.testing.assert_array_equal(chain(images), net(images))
    states, last_states, outputs = states_of(net, images)
    stem = chain.stem(images)
    pairs, last = chain.walk(stem)
    flat = [state for stage in states for state in stage]
    for (before, _), state in zip(pairs, flat, strict=True):
        np.testing.assert_array_equal(before, state)
    np.testing.assert_array_equal(pairs[-1][1], last)
    np.testing.assert_array_equal(last, last_states[-1])
    np.testing.assert_array_equal(chain.head(last), outputs)
    for stage in chain.stages:
        # The anchor is the state with which the blocks that keep the shape begin.
        first = next((block.index for block in stage.blocks if block.keeps_shape), 0)
        of_stage = [*states[stage.index - 1], last_states[stage.index - 1]]
        for block in stage.blocks:
            assert block.takes_anchor == (net.anchor == "input" and block.keeps_shape)
            state, anchor = chain.walk_to(stem, block.stage, block.index)
            np.testing.assert_array_equal(state, of_stage[block.index])
            begin = first if block.index >= first else 0
            np.testing.assert_array_equal(anchor, of_stage[begin])
            for scale in (None, 1.0) if net.lipschitz is None else (None,):
                after = block(state, anchor, scale)
                np.testing.assert_array_equal(after, of_stage[block.index + 1])
            last = chain.continue_from(state, anchor, block.stage, block.index)
            np.testing.assert_array_equal(last, last_states[-1])


def test_blocks_with_their_branch_changed_equal_numpy(case):
    net, chain, (images, _) = case
    plain = NumpyNetwork(net.get_config(), weights_of(net))
    stem = chain.stem(images)
    for block in chain.blocks if net.anchor == "previous" else chain.blocks[::2]:
        state, anchor = chain.walk_to(stem, block.stage, block.index)
        # Another state and anchor than those of the network, so that they are told apart.
        state, anchor = state + 0.1, anchor - 0.2
        named = {"anchor": np.asarray(anchor, "f8")} if block.takes_anchor else {}
        unit = plain.units[block.stage - 1][block.index]
        for scale in (None, 0.3, -2.0):
            factor = 1.0 if scale is None else scale
            expected, _ = unit(np.asarray(state, "f8"), scale=factor, **named)
            measured = block(state, anchor, scale)
            np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=4e-5, err_msg=str(block))
        changed = block.changed(state, anchor, lambda f: -2.0 * f)
        np.testing.assert_array_equal(changed, measured)


def test_blocks_by_hand():
    block = Block(1, 0, True, lambda h: h * h)
    state = np.array([[1.0, 2.0, 3.0]])
    # h^2 - h is 0, 2 and 6.
    np.testing.assert_allclose(block(state), [[1, 4, 9]])
    for scale, expected in ((0.5, [1, 3, 6]), (0, [1, 2, 3]), (-1, [1, 0, -3]), (2, [1, 6, 15])):
        np.testing.assert_allclose(block(state, scale=scale), [expected])
    block = Block(1, 0, True, lambda h, x: x + h * h, takes_anchor=True)
    anchor = np.array([[10.0, 20.0, 30.0]])
    for scale, expected in ((None, [11, 24, 39]), (0.5, [10.5, 22, 34.5]), (0, [10, 20, 30])):
        np.testing.assert_allclose(block(state, anchor, scale), [expected])
    np.testing.assert_allclose(block.changed(state, anchor, lambda f: f + 1), [[12, 25, 40]])
    branch, join = lambda h: np.ones(1), lambda h, branch: 10 * h + branch
    block = Block(1, 0, True, lambda h: h + 1, branch=branch, join=join)
    assert [block(2), block(2, scale=0.5), block(2, scale=0)] == [3, 20.5, 20]


def test_says_what_it_is():
    network = networks.resnet(20)
    chain = tfr.chain(network)
    assert [(b.stage, b.index, b.keeps_shape) for b in chain.blocks] == [
        (stage, index, stage == 1 or index > 0) for stage in (1, 2, 3) for index in range(3)
    ]
    of_stage = [
        "    block 0 (projection): changes the shape, read out after",
        "    blocks 1 to 2 (identity): drop, move, read out after, repeat block 2",
    ]
    lines = [
        "resnet20: 9 blocks in 3 stages",
        "  stage 1: 3 blocks",
        "    blocks 0 to 2 (identity): drop, move, read out after, repeat block 2",
        *("  stage 2: 3 blocks", *of_stage, "  stage 3: 3 blocks", *of_stage),
    ]
    # The loss, too, unless it is that of `compile`.
    assert str(chain).splitlines()[:-1] == lines
    network.compile("sgd", "sparse_categorical_crossentropy")
    chain = tfr.chain(network)
    assert str(chain).splitlines() == lines
    hauser = tfr.chain(networks.hauser_resnet(2))
    assert all(block.keeps_shape for block in hauser.blocks)
    assert "stage 2: 2 blocks, entered by a transition" in str(hauser)
    assert tfr.chain(chain) is chain
    with refused("source"):
        tfr.chain(3)


@pytest.mark.compiled
def test_runs_at_inference_inside_a_training_step():
    net = random_network(shortcut="dropout")
    chain = tfr.chain(net)
    images, _ = random_batch(net)
    expected = np.array(net(images, training=False))
    np.testing.assert_allclose(tf.function(chain)(tf.constant(images)), expected, atol=1e-5)


# Anchors, shared weights and bounds


@pytest.mark.compiled
def test_every_route_equals_numpy_and_the_followed_chain(anchored):
    net, chain, (images, labels) = anchored
    routes = [unperturbed(chain), *every_route(chain)]
    values = evaluate(chain, (images, labels), routes, with_outputs=True)
    for name, expected in expected_of(net, routes, images, labels).items():
        np.testing.assert_allclose(getattr(values, name), expected, **TOLERANCE, err_msg=name)
    # TensorFlow rounds a divisor otherwise where it optimises the network as one.
    rtol = 0 if net.lipschitz is None else 1e-6
    expected = net.predict(images, verbose=0)
    np.testing.assert_allclose(values.outputs[0], expected, rtol=rtol)
    for route, outputs in list(zip(routes, values.outputs, strict=True))[::4]:
        followed = follow(chain, route)
        np.testing.assert_allclose(outputs, followed(images), atol=1e-6, err_msg=str(route))
    # The routes do differ, except for read-outs after the last block.
    distinct = {row.tobytes() for row in values.outputs}
    assert len(distinct) >= 0.7 * len({route.stages for route in routes})


@pytest.mark.compiled
def test_a_chain_knows_what_is_one_and_what_is_bounded():
    net = random_network(blocks=4, widths=(4, 8), share_from=1, batch_norm="unshared_scale",
                         lipschitz=0.9, anchor="input")  # fmt: skip
    chain = tfr.chain(net)
    assert [id(v) for v in chain.weights] == [id(v) for v in net.trainable_variables]
    found = {id(v) for block in chain.blocks for v in block.weights.values()}
    outside = [*net.get_layer("stem").weights, *net.get_layer("classifier").weights]
    outside += net.get_layer("head_normalization").trainable_weights
    assert found | {id(v) for v in outside} == {id(v) for v in chain.weights}
    first, second = chain.stages[1].blocks[1].weights, chain.stages[1].blocks[3].weights
    assert first.keys() == second.keys()
    one = {role for role in first if first[role] is second[role]}
    assert one == {f"convolution{i}/{name}" for i in (1, 2) for name in ("kernel", "bias")}
    bounded = [block.lipschitz is not None for block in chain.blocks]
    assert bounded == [block.keeps_shape for block in chain.blocks]
    assert chain.stages[1].blocks[3].lipschitz() == net.get_layer("stage2_block3").lipschitz_bound()


@pytest.mark.compiled
def test_bounds_follow_the_weights():
    # A chain made before its network has these weights, called directly and by the evaluator.
    net = random_network(input_shape=(8, 4, 3), widths=(4,), lipschitz=0.9, anchor="input")
    chain = tfr.chain(net)
    routes = [unperturbed(chain), repeat_last_block(chain, 1, 2)]
    images, labels = random_batch(net)
    for seed in (7, 8):
        randomise(net, seed)
        called = np.asarray(chain(images))
        values = evaluate(chain, (images, labels), routes, with_outputs=True)
        expected = expected_of(net, routes, images, labels)["outputs"]
        np.testing.assert_allclose(values.outputs, expected, **TOLERANCE)
        for outputs in (called, chain(images)):
            np.testing.assert_allclose(outputs, expected[0], **TOLERANCE)


@pytest.mark.system
@pytest.mark.compiled
def test_a_file_is_a_chain(tmp_path):
    net = random_network(**BOUNDED | {"blocks": (2, 1)})
    images, labels = random_batch(net)
    net.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", jit_compile=False)
    net.fit(images, labels, verbose=0)
    net.save(tmp_path / "net.keras")
    expected, values = (
        evaluate(chain, (images, labels), every_route(chain), with_outputs=True)
        for chain in (tfr.chain(net), tfr.chain(tmp_path / "net.keras"))
    )
    np.testing.assert_array_equal(values.outputs, expected.outputs)
    np.testing.assert_array_equal(values.distance, expected.distance)


def test_anchors_in_the_plane():
    # x + f(z) with f a quarter turn and a halving: from (4, 0) by (4, 2), (3, 2) to (3.2, 1.6).
    def turn(h):
        return ops.stack([-h[..., 1], h[..., 0]], axis=-1) / 2

    block = Block(1, 0, True, lambda h, x: x + turn(h), takes_anchor=True)
    chain = chain_of(block)
    image = np.array([4, 0], "float32").reshape(1, 1, 1, 2)
    routes = [repeat_last_block(chain, 1, times) for times in (1, 2, 60)]
    routes += [unperturbed(chain), repeat_last_block(chain, 1, 1, 0.5)]
    values = evaluate(chain, (image, np.zeros(1, int)), routes, with_outputs=True)
    expected = [(3, 2), (3, 1.5), (3.2, 1.6), (4, 2), (3.5, 1)]
    np.testing.assert_allclose(values.outputs[:, 0], expected, rtol=1e-5)
