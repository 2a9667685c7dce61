"""Routes: which blocks are applied in which order, how they print, and what they refuse.

What comes out at their end is in test_evaluator.py.
"""

import itertools

import numpy as np
import pytest
from keras import ops
from reference.random_network import LAYOUTS, random_batch, random_network

import tfresidual as tfr
from tfresidual.routing import Block, Chain, Route, Stage, evaluate
from tfresidual.routing.routes import (
    Application,
    drop,
    follow,
    readout,
    repeat_last_block,
    shuffle,
    swap,
    unperturbed,
)

pytestmark = pytest.mark.eager


@pytest.fixture(scope="module")
def chain():
    """Three stages of four blocks, all of which keep the shape."""
    return tfr.chain(random_network(blocks=4, widths=(2, 2, 2), transition="convolution"))


@pytest.fixture(scope="module")
def projecting():
    """Stages of four, four and one blocks; block 0 of stages 2 and 3 changes the shape."""
    return tfr.chain(random_network(blocks=(4, 4, 1), widths=(2, 3, 4)))


def plane_chain(*keeps_shape):
    """One stage in the plane whose blocks add 1, and say so of their shape."""
    blocks = tuple(
        Block(1, index, keeps, lambda h: h + 1) for index, keeps in enumerate(keeps_shape)
    )
    return Chain(
        name="plane",
        stem=lambda images: images,
        stages=(Stage(1, blocks),),
        head=lambda state: ops.reshape(state, (-1, 2)),
        loss=lambda labels, outputs: ops.sum(outputs, axis=-1),
        input_shape=(1, 1, 2),
    )


def blocks_of(route):
    """The blocks of every stage, as strings; fails where a branch is scaled."""
    assert all(a.scale == 1 for stage in route.stages for a in stage)
    return [" ".join(str(a.block) for a in stage) for stage in route.stages]


PRINTED = [
    (lambda c: unperturbed(c), "unperturbed: 0 1 2 3 | 0 1 2 3 | 0 1 2 3"),
    (lambda c: drop(c, (1, 2)), "without stage 1 block 2: 0 1 3 | 0 1 2 3 | 0 1 2 3"),
    (
        lambda c: drop(c, (3, 0), (1, 1)),
        "without stage 3 block 0 and stage 1 block 1: 0 2 3 | 0 1 2 3 | 1 2 3",
    ),
    (
        lambda c: drop(c, (2, 0), (2, 1), (2, 2), (2, 3)),
        "without stage 2 block 0 and stage 2 block 1 and stage 2 block 2 and stage 2 block 3: "
        "0 1 2 3 | none | 0 1 2 3",
    ),
    (lambda c: readout(c, 2, 0), "stage 2 read out after block 0: 0 1 2 3 | 0 | 0 1 2 3"),
    (
        lambda c: repeat_last_block(c, 3, 3),
        "stage 3 block 3 applied 3 more times: 0 1 2 3 | 0 1 2 3 | 0 1 2 3 (x4)",
    ),
    (
        lambda c: repeat_last_block(c, 1, 2, 0.25),
        "stage 1 block 3 applied 2 more times, scaled by 0.25: "
        "0 1 2 3 3*0.25 (x2) | 0 1 2 3 | 0 1 2 3",
    ),
    (
        lambda c: swap(c, 2, 0, 3),
        "stage 2 blocks 0 and 3 swapped: 0 1 2 3 | 3 1 2 0 | 0 1 2 3",
    ),
]


@pytest.mark.parametrize(("make", "text"), PRINTED, ids=[text.split(":")[0] for _, text in PRINTED])
def test_prints_as_it_is(chain, make, text):
    assert str(make(chain)) == text


def test_shuffled_routes_print_their_seed(chain):
    route = shuffle(chain, 2, seed=7)
    order = " ".join(str(a.block) for a in route.stages[1])
    assert str(route) == f"stage 2 shuffled (seed 7): 0 1 2 3 | {order} | 0 1 2 3"
    assert shuffle(chain, 2, seed=7, swaps=2).name == "stage 2 shuffled by 2 swaps (seed 7)"


def test_counts_its_applications(chain):
    assert unperturbed(chain).applications == 12
    assert drop(chain, (1, 0), (3, 3)).applications == 10
    assert readout(chain, 2, 1).applications == 10
    assert repeat_last_block(chain, 3, 16).applications == 28
    assert shuffle(chain, 1).applications == swap(chain, 1, 0, 1).applications == 12


def test_is_a_value(chain):
    assert drop(chain, (1, 2)) == drop(chain, (1, 2))
    assert len({drop(chain, (1, 2)), drop(chain, (1, 2)), drop(chain, (1, 3))}) == 2
    assert drop(chain, (1, 2), (2, 1)).stages == drop(chain, (2, 1), (1, 2)).stages


def test_numpy_ints_are_ints(chain):
    one, two = np.int64(1), np.int32(2)
    assert drop(chain, (one, two)) == drop(chain, (1, 2))
    assert readout(chain, one, two) == readout(chain, 1, 2)
    assert repeat_last_block(chain, one, two, np.float64(0.5)) == repeat_last_block(
        chain, 1, 2, 0.5
    )
    assert swap(chain, one, one, two) == swap(chain, 1, 1, 2)
    assert shuffle(chain, one, two, one) == shuffle(chain, 1, 2, 1)


def test_pairs_may_be_lists(chain):
    assert drop(chain, [1, 2], [2, 0]) == drop(chain, (1, 2), (2, 0))


@pytest.mark.parametrize("scale", [np.float32(0.5), np.float16(0.5)], ids=["float32", "float16"])
def test_scales_may_be_of_numpy(chain, scale):
    assert repeat_last_block(chain, 1, 2, scale) == repeat_last_block(chain, 1, 2, 0.5)


def test_readout_after_the_last_block_is_the_network(chain, projecting):
    for stage in (1, 2, 3):
        assert readout(chain, stage, 3).stages == unperturbed(chain).stages
    assert readout(projecting, 3, 0).stages == unperturbed(projecting).stages


def test_repetitions_by_hand(chain):
    route = repeat_last_block(chain, 2, 2, scale=-3)
    last = (Application(3), Application(3, -3.0), Application(3, -3.0))
    assert route.stages[1] == (*map(Application, range(3)), *last)
    assert route.stages[0] == route.stages[2] == unperturbed(chain).stages[0]
    assert repeat_last_block(chain, 2, 2, scale=1) == repeat_last_block(chain, 2, 2)


def test_swaps_every_pair(chain):
    for first, second in itertools.permutations(range(4), 2):
        order = list("0123")
        order[first], order[second] = order[second], order[first]
        assert blocks_of(swap(chain, 3, first, second)) == ["0 1 2 3", "0 1 2 3", " ".join(order)]


def test_shuffles_are_permutations_of_one_stage(chain):
    for seed, swaps in itertools.product(range(20), (None, 1, 3)):
        first, second, third = blocks_of(shuffle(chain, 2, seed, swaps))
        assert sorted(second.split()) == list("0123")
        assert first == third == "0 1 2 3"


def test_the_seed_is_the_order(chain):
    for swaps in (None, 2):
        assert shuffle(chain, 1, 5, swaps) == shuffle(chain, 1, 5, swaps)
        orders = {shuffle(chain, 1, seed, swaps).stages for seed in range(30)}
        assert len(orders) > 5


def test_every_order_has_an_equal_chance(projecting):
    # Blocks 1, 2 and 3 of stage 2 move: 6 orders, 100 times each on average. 4 standard
    # deviations are 4 sqrt(600 * 1/6 * 5/6) = 37.
    orders = [blocks_of(shuffle(projecting, 2, seed))[1] for seed in range(600)]
    expected = {" ".join("0" + "".join(order)) for order in itertools.permutations("123")}
    assert set(orders) == expected
    assert all(abs(orders.count(order) - 100) < 37 for order in expected)


def is_even(order):
    pairs = itertools.combinations(order, 2)
    return sum(first > second for first, second in pairs) % 2 == 0


@pytest.mark.parametrize("swaps", [1, 2, 3, 8])
def test_as_many_swaps_as_asked_for(chain, swaps):
    for seed in range(20):
        order = [a.block for a in shuffle(chain, 3, seed, swaps).stages[2]]
        assert is_even(order) == (swaps % 2 == 0)
        moved = sum(block != place for place, block in enumerate(order))
        assert moved <= 2 * swaps
        assert moved == 2 or swaps > 1


def test_blocks_that_change_the_shape_keep_their_places():
    chain = plane_chain(True, True, False, True, True, True)
    orders = set()
    for seed, swaps in itertools.product(range(60), (None, 1, 4)):
        order = [a.block for a in shuffle(chain, 1, seed, swaps).stages[0]]
        assert order[2] == 2
        orders.add((tuple(order[:2]), tuple(order[3:])))
    # Nobody gets past it: states have another shape there.
    before, behind = itertools.permutations((0, 1)), itertools.permutations((3, 4, 5))
    assert orders == set(itertools.product(before, behind))
    with pytest.raises(ValueError, match=r"`first` and `second` .* between them .*Received: "):
        swap(chain, 1, 1, 3)


BAD = {
    "drop nothing": (lambda c: drop(c), "`blocks` must be one or more different pairs"),
    "drop twice": (lambda c: drop(c, (1, 1), (2, 1), (1, 1)), "one or more different pairs"),
    "drop an int": (lambda c: drop(c, 1), "`blocks` must be pairs"),
    "drop ints": (lambda c: drop(c, 1, 2), "`blocks` must be pairs"),
    "drop a triple": (lambda c: drop(c, (1, 1, 1)), "`blocks` must be pairs"),
    "drop a string": (lambda c: drop(c, "11"), "`blocks` must be pairs"),
    "drop: no such stage": (lambda c: drop(c, (4, 0)), "`stage` must be a stage .* from 1 to 3"),
    "drop: stage 0": (lambda c: drop(c, (0, 0)), "`stage` must be an int, 1 or more"),
    "drop: bool stage": (lambda c: drop(c, (True, 1)), "`stage` must be an int"),
    "drop: float stage": (lambda c: drop(c, (1.0, 1)), "`stage` must be an int"),
    "drop: no such block": (lambda c: drop(c, (1, 4)), "block of stage 1 .* from 0 to 3"),
    "drop: negative block": (lambda c: drop(c, (1, -1)), "block of stage 1 .* from 0 to 3"),
    "drop: bool block": (lambda c: drop(c, (1, True)), "block of stage 1"),
    "drop: float block": (lambda c: drop(c, (1, 1.0)), "block of stage 1"),
    "drop: string block": (lambda c: drop(c, (1, "1")), "block of stage 1"),
    "drop: shape": (lambda c: drop(c, (1, 0), (2, 0)), "stage 2 block 0 .* to be dropped"),
    "read out: no such stage": (lambda c: readout(c, 4, 0), "`stage` must be a stage"),
    "read out: string stage": (lambda c: readout(c, "1", 0), "`stage` must be an int"),
    "read out: no such block": (lambda c: readout(c, 3, 1), "`after` must be a block of stage 3"),
    "read out: bool": (lambda c: readout(c, 1, False), "`after` must be a block of stage 1"),
    "read out: before the first": (lambda c: readout(c, 1, -1), "`after` must be a block"),
    "repeat: no such stage": (lambda c: repeat_last_block(c, 0, 1), "`stage` must be an int"),
    "repeat: float stage": (lambda c: repeat_last_block(c, 1.0, 1), "`stage` must be an int"),
    "repeat: 0 times": (
        lambda c: repeat_last_block(c, 1, 0),
        "`times` must be an int, from 1 to 1000",
    ),
    "repeat: True times": (lambda c: repeat_last_block(c, 1, True), "`times` must be an int"),
    "repeat: 1.0 times": (lambda c: repeat_last_block(c, 1, 1.0), "`times` must be an int"),
    "repeat: nan": (
        lambda c: repeat_last_block(c, 1, 1, np.nan),
        "`scale` must be a finite number",
    ),
    "repeat: inf": (
        lambda c: repeat_last_block(c, 1, 1, -np.inf),
        "`scale` must be a finite number",
    ),
    "repeat: bool scale": (lambda c: repeat_last_block(c, 1, 1, True), "`scale` must be a finite"),
    "repeat: string scale": (lambda c: repeat_last_block(c, 1, 1, "1"), "`scale` must be a finite"),
    "repeat: no scale": (lambda c: repeat_last_block(c, 1, 1, None), "`scale` must be a finite"),
    "repeat: shape": (lambda c: repeat_last_block(c, 3, 1), "stage 3 block 0 .* to be repeated"),
    "swap: no such stage": (lambda c: swap(c, 4, 0, 1), "`stage` must be a stage"),
    "swap: no such block": (lambda c: swap(c, 1, 0, 4), "`second` must be a block of stage 1"),
    "swap: negative": (lambda c: swap(c, 1, -1, 0), "`first` must be a block of stage 1"),
    "swap: bool": (lambda c: swap(c, 1, True, 0), "`first` must be a block of stage 1"),
    "swap with itself": (lambda c: swap(c, 1, 2, 2), "`first` and `second` must be two blocks"),
    "swap: shape, first": (lambda c: swap(c, 2, 0, 1), "`first` .* stage 2 block 0 .* moved"),
    "swap: shape, second": (lambda c: swap(c, 2, 1, 0), "`second` .* stage 2 block 0 .* moved"),
    "shuffle: no such stage": (lambda c: shuffle(c, 4), "`stage` must be a stage"),
    "shuffle: one block": (lambda c: shuffle(c, 3), "`stage` must have at least two blocks"),
    "shuffle: negative seed": (lambda c: shuffle(c, 1, -1), "`seed` must be an int, 0 or more"),
    "shuffle: float seed": (lambda c: shuffle(c, 1, 1.0), "`seed` must be an int"),
    "shuffle: no seed": (lambda c: shuffle(c, 1, None), "`seed` must be an int"),
    "shuffle: 0 swaps": (lambda c: shuffle(c, 1, 0, 0), "`swaps` must be an int, 1 or more"),
    "shuffle: bool swaps": (lambda c: shuffle(c, 1, 0, True), "`swaps` must be an int"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments(projecting, make, message):
    with pytest.raises(ValueError, match=rf"Arguments? .*{message}.*Received: \S+.*$"):
        make(projecting)


@pytest.mark.parametrize("function", [unperturbed, drop, shuffle, repeat_last_block])
def test_bad_chain(function):
    arguments = {unperturbed: (), drop: ((1, 1),), shuffle: (1,), repeat_last_block: (1, 1)}[
        function
    ]
    for other in (3, random_network(blocks=1, widths=(2,))):
        with pytest.raises(ValueError, match=r"`chain` must be a .*Chain.*Received: chain="):
            function(other, *arguments)


def test_a_readout_may_not_skip_a_change_of_the_shape():
    chain = plane_chain(True, False, True)
    with pytest.raises(ValueError, match=r"`after` .* stage 1 block 1 .* to be skipped"):
        readout(chain, 1, 0)
    assert blocks_of(readout(chain, 1, 1)) == ["0 1"]


RECEIVED = {
    "stage": (lambda c: repeat_last_block(c, 3, 1), r"Received: stage=3\b"),
    "after": (lambda c: readout(plane_chain(True, False, True), 1, 0), r"Received: after=0\b"),
    "shape": (lambda c: drop(c, (2, 0)), r"Received: blocks=.*2, 0"),
    "block": (lambda c: drop(c, (1, 9)), r"Received: blocks=.*1, 9"),
}


@pytest.mark.parametrize(("make", "received"), RECEIVED.values(), ids=RECEIVED.keys())
def test_messages_end_with_what_was_given(projecting, make, received):
    with pytest.raises(ValueError, match=received):
        make(projecting)


# The chain of a route


def values_of(chain, routes, batch):
    values = evaluate(chain, batch, routes, with_outputs=True)
    return values.outputs, values.cross_entropy, values.wrong


ROUTES = {
    "drop": lambda c: drop(c, (1, 0), (2, 1)),
    "whole stage": lambda c: drop(c, (2, 0), (2, 1), (2, 2)),
    "read-out": lambda c: readout(c, 2, 0),
    "repeated": lambda c: repeat_last_block(c, 2, 2),
    "scaled": lambda c: repeat_last_block(c, 1, 2, 0.5),
    "shuffled": lambda c: shuffle(c, 2, 1),
}


@pytest.mark.parametrize(
    "layout", ["full_preactivation", pytest.param("original", marks=pytest.mark.nightly)]
)
def test_follows_a_route(layout):
    net = random_network(
        blocks=(1, 3), widths=(2, 3), transition="downsampling_block", layout=layout
    )
    chain = tfr.chain(net)
    batch = random_batch(net)
    routes = [make(chain) for make in ROUTES.values()]
    expected = values_of(chain, routes, batch)
    for index, route in enumerate(routes):
        followed = follow(chain, route)
        measured = values_of(followed, [unperturbed(followed)], batch)
        for value, rows in zip(measured, expected, strict=True):
            np.testing.assert_array_equal(value[0], rows[index], err_msg=route.name)
        np.testing.assert_allclose(followed(batch[0]), expected[0][index], rtol=1e-5, atol=1e-7)


def test_a_followed_chain_is_counted_anew(chain):
    route = repeat_last_block(chain, 2, 2, 0.5)
    followed = follow(chain, route)
    assert [(b.stage, b.index) for b in followed.blocks] == [
        (stage, block) for stage, length in ((1, 4), (2, 6), (3, 4)) for block in range(length)
    ]
    assert followed.name == route.name
    assert str(followed).splitlines()[0] == f"{route.name}: 14 blocks in 3 stages"
    assert (followed.input_shape, followed.outputs) == (chain.input_shape, chain.outputs)
    assert [stage.transition for stage in followed.stages] == [s.transition for s in chain.stages]
    assert followed.compiled is not chain.compiled
    assert str(drop(followed, (2, 5))) == "without stage 2 block 5: 0 1 2 3 | 0 1 2 3 4 | 0 1 2 3"


def test_a_followed_chain_knows_what_changes_the_shape(projecting):
    followed = follow(projecting, drop(projecting, (2, 1)))
    assert [b.index for b in followed.stages[1].blocks if not b.keeps_shape] == [0]
    with pytest.raises(ValueError, match="stage 2 block 0"):
        drop(followed, (2, 0))


def test_routes_through_a_followed_chain():
    net = random_network(blocks=(1, 3), transition="average_pooling")
    chain, batch = tfr.chain(net), random_batch(net)
    # What is block 1 of the followed stage is block 2 of the chain's own.
    followed = follow(chain, drop(chain, (2, 1)))
    measured = values_of(
        followed, [drop(followed, (2, 1)), repeat_last_block(followed, 2, 1)], batch
    )
    first, _ = unperturbed(chain).stages
    by_hand = Route("by hand", (first, tuple(map(Application, (0, 2, 2)))))
    expected = values_of(chain, [drop(chain, (2, 1), (2, 2)), by_hand], batch)
    for values, others in zip(measured, expected, strict=True):
        np.testing.assert_array_equal(values, others)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=[] if layout == "bn_after_addition" else [pytest.mark.nightly])
        for layout in LAYOUTS
    ],
)
def test_branches_are_scaled_in_a_followed_chain_as_in_its_own(layout):
    # `original` and `bn_after_addition` do something after the addition, so that a block's
    # branch is not all of F, and only the unit itself can scale it.
    net = random_network(layout=layout, widths=(4,))
    chain, batch = tfr.chain(net), random_batch(net)
    followed = follow(chain, unperturbed(chain))
    measured = values_of(followed, [repeat_last_block(followed, 1, 2, 0.5)], batch)
    expected = values_of(chain, [repeat_last_block(chain, 1, 2, 0.5)], batch)
    for value, other in zip(measured, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaling_a_scaled_branch_multiplies_the_scales(layout):
    net = random_network(layout=layout, widths=(4,))
    chain, (images, _) = tfr.chain(net), random_batch(net)
    state = chain.stem(images)
    half = follow(chain, repeat_last_block(chain, 1, 1, 0.5)).stages[0].blocks[2]
    quarter = chain.stages[0].blocks[1](state, scale=0.25)
    np.testing.assert_allclose(half(state, scale=0.5), quarter, rtol=1e-5, atol=1e-6)


def test_a_followed_chain_in_low_precision_can_be_scaled():
    net = random_network(dtype="mixed_bfloat16", widths=(4,))
    chain, batch = tfr.chain(net), random_batch(net)
    followed = follow(chain, unperturbed(chain))
    measured, *_ = values_of(followed, [repeat_last_block(followed, 1, 2, 0.5)], batch)
    expected, *_ = values_of(chain, [repeat_last_block(chain, 1, 2, 0.5)], batch)
    np.testing.assert_allclose(measured, expected, atol=0.05)


def test_a_stage_without_blocks_has_no_last_block(chain):
    followed = follow(chain, drop(chain, *((2, block) for block in range(4))))
    assert len(followed.stages[1].blocks) == 0
    with pytest.raises(ValueError, match=r"`stage` .*Received: stage=2"):
        repeat_last_block(followed, 2, 1)


def test_a_chain_follows_its_own_routes_only(chain, projecting):
    small = tfr.chain(random_network(blocks=1, widths=(2, 2, 2), transition="convolution"))
    with pytest.raises(ValueError, match=r"`route` .*Received: "):
        follow(small, unperturbed(chain))
