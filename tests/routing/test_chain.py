"""The chain of a residual network: plain, anchored, shared and bounded."""

import keras
import numpy as np
import pytest
from reference.numpy_network import NumpyNetwork, weights_of
from reference.random_network import (
    CONSTRAINED_CASES,
    case_id,
    of_every_kind,
    random_batch,
    random_network,
    states_of,
)
from reference.route_values import TOLERANCE, every_route, expected_of

import tfresidual as tfr
from tfresidual.routing import Block, evaluate
from tfresidual.routing.routes import follow, unperturbed

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
