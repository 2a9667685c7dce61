"""Chains whose blocks add their branch to the input of their stage; of shared and bounded blocks.

Not covered here: the probes on such chains, which are in tests/probes.
"""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from reference.numpy_network import NumpyNetwork, weights_of
from reference.random_network import (
    CONSTRAINED_CASES,
    case_id,
    random_batch,
    random_network,
    randomise,
    states_of,
)
from reference.route_values import TOLERANCE, every_route, expected_of
from reference.wild_routes import is_given_up_at_once, wild_routes

import tfresidual as tfr
from tfresidual.routing import Block, Chain, Stage, evaluate, plan_of
from tfresidual.routing.routes import follow, repeat_last_block, unperturbed

# One network of each transition; stages that change the shape in their first block, bounds, and
# batch normalizations of every kind. Compiling bounds takes long: there are few blocks.
SMALL = {"input_shape": (8, 4, 3), "blocks": (1, 3), "widths": (4, 8)}
CASES = [
    CONSTRAINED_CASES[2] | SMALL,
    CONSTRAINED_CASES[5] | SMALL | {"blocks": 3},
    CONSTRAINED_CASES[18] | SMALL | {"blocks": 2},
    SMALL
    | {
        "share_from": 0,
        "batch_norm": "unshared",
        "lipschitz": 0.9,
        "anchor": "input",
    },
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, marks=pytest.mark.nightly if i > 1 else pytest.mark.system)
        for i, case in enumerate(CASES)
    ],
    ids=case_id,
)
def case(request):
    """A network, its chain, and a batch."""
    net = random_network(seed=3, **request.param)
    return net, tfr.chain(net), random_batch(net, images=4)


def test_is_the_network(case):
    net, chain, (images, labels) = case
    np.testing.assert_array_equal(chain(images), net(images))
    outputs = evaluate(chain, (images, labels), [unperturbed(chain)], with_outputs=True).outputs
    expected = net.predict(images, verbose=0)
    if net.lipschitz is None:
        np.testing.assert_array_equal(outputs[0], expected)
    else:
        # TensorFlow rounds a divisor otherwise where it optimises the network as one.
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-6)
    states, last_states, _ = states_of(net, images)
    pairs, last = chain.walk(chain.stem(images))
    flat = [state for stage in states for state in stage]
    for (before, _), state in zip(pairs, flat, strict=True):
        np.testing.assert_array_equal(before, state)
    np.testing.assert_array_equal(last, last_states[-1])
    takes = [block.takes_anchor for block in chain.blocks]
    assert takes == [block.keeps_shape for block in chain.blocks]


def test_every_route_equals_numpy_and_the_followed_chain(case):
    net, chain, (images, labels) = case
    routes = every_route(chain)
    values = evaluate(chain, (images, labels), routes, with_outputs=True)
    for name, expected in expected_of(net, routes, images, labels).items():
        np.testing.assert_allclose(getattr(values, name), expected, **TOLERANCE, err_msg=name)
    for route, outputs in list(zip(routes, values.outputs, strict=True))[::4]:
        followed = follow(chain, route)
        np.testing.assert_allclose(outputs, followed(images), atol=1e-6, err_msg=str(route))
    # The routes do differ, except for read-outs after the last block.
    distinct = {row.tobytes() for row in values.outputs}
    assert len(distinct) >= 0.7 * len({route.stages for route in routes})


def test_leading_to_a_block_and_on(case):
    net, chain, (images, _) = case
    states, last_states, outputs = states_of(net, images)
    stem = chain.stem(images)
    for stage in chain.stages:
        # The anchor is the state with which the blocks that keep the shape begin.
        first = next(block.index for block in stage.blocks if block.keeps_shape)
        of_stage = [*states[stage.index - 1], last_states[stage.index - 1]]
        for block in stage.blocks:
            state, anchor = chain.lead_to(stem, block.stage, block.index)
            np.testing.assert_array_equal(state, of_stage[block.index])
            begin = first if block.index >= first else 0
            np.testing.assert_array_equal(anchor, of_stage[begin])
            np.testing.assert_array_equal(block(state, anchor), of_stage[block.index + 1])
            last = chain.lead_on(state, anchor, block.stage, block.index)
            np.testing.assert_array_equal(last, last_states[-1])
    np.testing.assert_array_equal(chain.head(last), outputs)


def test_blocks_with_their_branch_changed(case):
    net, chain, (images, _) = case
    plain = NumpyNetwork(net.get_config(), weights_of(net))
    stem = chain.stem(images)
    for block in chain.blocks[::2]:
        state, anchor = chain.lead_to(stem, block.stage, block.index)
        # Another state and anchor than those of the network, so that they are told apart.
        state, anchor = state + 0.1, anchor - 0.2
        named = {"anchor": np.asarray(anchor, "f8")} if block.takes_anchor else {}
        unit = plain.units[block.stage - 1][block.index]
        for scale in (None, -0.5):
            factor = 1.0 if scale is None else scale
            expected, _ = unit(np.asarray(state, "f8"), scale=factor, **named)
            measured = block(state, anchor, scale)
            np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=2e-5, err_msg=str(block))
        changed = block.changed(state, anchor, lambda f: -0.5 * f)
        np.testing.assert_array_equal(changed, measured)


def test_blocks_by_hand():
    block = Block(1, 0, True, lambda h, x: x + h * h, takes_anchor=True)
    state, anchor = np.array([[1.0, 2.0, 3.0]]), np.array([[10.0, 20.0, 30.0]])
    np.testing.assert_allclose(block(state, anchor), [[11, 24, 39]])
    np.testing.assert_allclose(block(state, anchor, 0.5), [[10.5, 22, 34.5]])
    np.testing.assert_allclose(block(state, anchor, 0), anchor)
    np.testing.assert_allclose(block.changed(state, anchor, lambda f: f + 1), [[12, 25, 40]])


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
        np.testing.assert_allclose(chain(images), expected[0], **TOLERANCE)
        np.testing.assert_allclose(called, expected[0], **TOLERANCE)


@pytest.mark.system
def test_a_file_is_a_chain(tmp_path):
    net = random_network(**CASES[-1] | {"blocks": (2, 1)})
    images, labels = random_batch(net)
    net.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", jit_compile=False)
    net.fit(images, labels, verbose=0)
    net.save(tmp_path / "net.keras")
    chain, loaded = tfr.chain(net), tfr.chain(tmp_path / "net.keras")
    routes = every_route(chain)
    expected = evaluate(chain, (images, labels), routes, with_outputs=True)
    values = evaluate(loaded, (images, labels), every_route(loaded), with_outputs=True)
    np.testing.assert_array_equal(values.outputs, expected.outputs)
    np.testing.assert_array_equal(values.distance, expected.distance)


# Plans: what the anchor is, and how long it is kept


def anchored_chain():
    """Stages whose blocks take the anchor, with a change of the shape, and blocks that do not."""

    def block(stage, index, kind):
        return Block(stage, index, kind != "change", lambda *h: h, takes_anchor=kind == "anchored")

    kinds = [
        ["anchored"] * 4,
        ["change", "anchored", "anchored", "plain", "anchored"],
        ["plain", "anchored", "anchored"],
        ["anchored", "anchored"],
    ]
    return Chain(
        name="anchored",
        stem=lambda images: images,
        stages=tuple(
            Stage(
                stage,
                tuple(block(stage, index, kind) for index, kind in enumerate(of_stage)),
                (lambda h: -h) if stage == 3 else None,
            )
            for stage, of_stage in enumerate(kinds, start=1)
        ),
        head=lambda state: state,
        loss=lambda labels, outputs: outputs,
        input_shape=(1, 1, 2),
    )


ANCHORED = anchored_chain()


def ends_of(route):
    """What a route makes of the images, stage by stage, as nested tuples; block by block."""
    state, ends = ("stem", ()), []
    for stage, applied in zip(ANCHORED.stages, route.stages, strict=True):
        if stage.transition is not None:
            state = ("transition", stage.index, state)
        anchor = state
        for index, scale in applied:
            block = stage.blocks[index]
            taken = [anchor] if block.takes_anchor else []
            state = ("block", stage.index, index, scale, state, *taken)
            if not block.keeps_shape:
                anchor = state
        ends.append(state)
    return ends


def check_plan(plan):
    """Does what a plan says with nested tuples for states; a state that is gone is an error."""
    expected = [ends_of(route) for route in plan.routes]
    held, made, heads, distances, counts = {-1: ()}, [], {}, {}, []
    for step in plan.steps:
        kind, stage, *which = step.operation
        state = held[step.source]
        reference = [] if step.reference is None else [held[step.reference]]
        if kind == "head":
            heads |= dict.fromkeys(step.routes, state)
        elif kind == "distance":
            assert reference == [expected[0][stage - 1]]
            distances |= {(route, stage): state for route in step.routes}
        else:
            if kind == "block":
                takes = ANCHORED.stages[stage - 1].blocks[which[0]].takes_anchor
                assert len(reference) == takes
                result = (kind, stage, *which, state, *reference)
            else:
                assert reference == []
                result = (kind, state) if kind == "stem" else (kind, stage, state)
            made.append(result)
            held[step.target] = result
        counts.append(len(held) - 1)
        for place in step.frees:
            del held[place]
    assert list(held) == [-1]
    assert heads == {route: ends[-1] for route, ends in enumerate(expected)}
    for route, ends in enumerate(expected):
        for stage, end in enumerate(ends, start=1):
            is_far = end != expected[0][stage - 1]
            assert distances.get((route, stage)) == (end if is_far else None)
    # Nothing is made twice, and nothing is kept that nothing needs.
    assert len(made) == len(set(made))
    assert is_given_up_at_once(plan)
    sizes = dict.fromkeys(range(-1, len(made)), 1)
    assert plan.most_held(sizes, [0] * len(plan.steps)) == max(counts)


def fixed_first(routes):
    """The same with the block that changes the shape where it must stand, and nowhere else."""
    change = unperturbed(ANCHORED).stages[1][:1]
    return [
        type(route)(
            route.name,
            (
                route.stages[0],
                change + tuple(a for a in route.stages[1] if a.block != 0),
                *route.stages[2:],
            ),
        )
        for route in routes
    ]


@settings(deadline=None, max_examples=100)
@given(wild_routes(chain=ANCHORED))
def test_plans_of_wild_routes(routes):
    check_plan(plan_of(ANCHORED, fixed_first(routes)))


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_plans_of_the_papers_routes(data):
    routes = every_route(ANCHORED)
    chosen = data.draw(st.lists(st.sampled_from(routes), max_size=15))
    check_plan(plan_of(ANCHORED, chosen))


def test_a_plan_by_hand():
    """The stem's output is the anchor of both blocks, and waits for the last one that takes it."""
    blocks = tuple(Block(1, index, True, lambda h, x: x, takes_anchor=True) for index in range(2))
    chain = Chain("two", lambda h: h, (Stage(1, blocks),), lambda h: h, lambda y, h: h, (1, 1, 2))
    plan = plan_of(chain, [repeat_last_block(chain, 1, 1)])
    steps = [(s.operation.kind, s.source, s.target, s.reference, s.frees) for s in plan.steps]
    assert steps == [
        ("stem", -1, 0, None, ()),
        ("block", 0, 1, 0, ()),
        ("block", 1, 2, 0, (1,)),
        ("head", 2, None, None, ()),
        ("block", 2, 3, 0, (0,)),
        ("distance", 3, None, 2, (2,)),
        ("head", 3, None, None, (3,)),
    ]


def test_anchors_in_the_plane():
    # x + f(z) with f a quarter turn and a halving: from (4, 0) by (4, 2), (3, 2) to (3.2, 1.6).
    def turn(h):
        return ops.stack([-h[..., 1], h[..., 0]], axis=-1) / 2

    block = Block(1, 0, True, lambda h, x: x + turn(h), takes_anchor=True)
    chain = Chain(
        name="turn",
        stem=lambda images: ops.convert_to_tensor(images),
        stages=(Stage(1, (block,)),),
        head=lambda state: ops.reshape(state, (-1, 2)),
        loss=lambda labels, outputs: ops.sum(outputs, axis=-1),
        input_shape=(1, 1, 2),
    )
    image = np.array([4, 0], "float32").reshape(1, 1, 1, 2)
    routes = [repeat_last_block(chain, 1, times) for times in (1, 2, 60)]
    routes += [unperturbed(chain), repeat_last_block(chain, 1, 1, 0.5)]
    values = evaluate(chain, (image, np.zeros(1, int)), routes, with_outputs=True)
    expected = [(3, 2), (3, 1.5), (3.2, 1.6), (4, 2), (3.5, 1)]
    np.testing.assert_allclose(values.outputs[:, 0], expected, rtol=1e-5)
