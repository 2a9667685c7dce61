"""Routes: which blocks are applied in which order, how they print, and what they refuse.

What comes out at their end is in test_evaluator.py.
"""

import itertools

import numpy as np
import pytest
from reference.plane import chain_of
from reference.random_network import LAYOUTS, random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual.routing import Block, Route, evaluate, plan_of
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
    return chain_of(
        *(Block(1, index, keeps, lambda h: h + 1) for index, keeps in enumerate(keeps_shape))
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
    pair = repeat_last_block(chain, 2, 2, blocks=2)
    assert str(pair) == (
        "stage 2 blocks 2 and 3 applied 2 more times: 0 1 2 3 | 0 1 2 3 2 3 2 3 | 0 1 2 3"
    )


def test_every_order_has_an_equal_chance(projecting):
    # Blocks 1, 2 and 3 of stage 2 move: 6 orders, 100 times each on average. 4 standard
    # deviations are 4 sqrt(600 * 1/6 * 5/6) = 37.
    orders = [blocks_of(shuffle(projecting, 2, seed))[1] for seed in range(600)]
    expected = {" ".join("0" + "".join(order)) for order in itertools.permutations("123")}
    assert set(orders) == expected
    assert all(abs(orders.count(order) - 100) < 37 for order in expected)


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
    with refused("first", "second"):
        swap(chain, 1, 1, 3)


PAIRS = [(), (1,), (1, 2), ((1, 1, 1),), ("11",), ((1, 1), (2, 1), (1, 1))]
BAD = [
    *((drop, pairs, "blocks") for pairs in PAIRS),
    *((drop, [(stage, 0)], "stage") for stage in (4, 0, True, 1.0)),
    *((drop, [(1, block)], "blocks") for block in (4, -1, True, 1.0, "1")),
    (drop, [(1, 0), (2, 0)], "blocks"),
    *((readout, (stage, 0), "stage") for stage in (4, "1")),
    *((readout, (3, after), "after") for after in (1, False, -1)),
    *((repeat_last_block, (stage, 1), "stage") for stage in (0, 1.0, 3)),
    *((repeat_last_block, (1, times), "times") for times in (0, 1001, True, 1.0)),
    *(
        (repeat_last_block, (1, 1, scale), "scale")
        for scale in (np.nan, -np.inf, 1e39, True, "1", None)
    ),
    (repeat_last_block, (1, 1, 1.0, 0), "blocks"),
    (repeat_last_block, (1, 1, 1.0, 5), "stage"),
    (swap, (4, 0, 1), "stage"),
    (swap, (1, 0, 4), "second"),
    *((swap, (1, first, 0), "first") for first in (-1, True)),
    (swap, (1, 2, 2), ("first", "second")),
    # The first block of stage 2 changes the shape.
    (swap, (2, 0, 1), "first"),
    (swap, (2, 1, 0), "second"),
    *((shuffle, (stage,), "stage") for stage in (4, 3)),
    *((shuffle, (1, 0, swaps), "swaps") for swaps in (0, True)),
]


def test_bad_arguments(projecting):
    for function, arguments, names in BAD:
        with refused(*([names] if isinstance(names, str) else names)):
            function(projecting, *arguments)
    for chain in (3, random_network(blocks=1, widths=(2,))):
        for function, arguments in (
            *((unperturbed, ()), (drop, [(1, 1)]), (shuffle, (1,)), (repeat_last_block, (1, 1))),
            *((plan_of, ([],)), (follow, (None,)), (evaluate, (None, []))),
        ):
            with refused("chain"):
                function(chain, *arguments)


def test_a_readout_may_not_skip_a_change_of_the_shape():
    chain = plane_chain(True, False, True)
    with refused("after"):
        readout(chain, 1, 0)
    assert blocks_of(readout(chain, 1, 1)) == ["0 1"]


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaling_a_scaled_branch_multiplies_the_scales(layout):
    net = random_network(layout=layout, widths=(4,))
    chain, (images, _) = tfr.chain(net), random_batch(net)
    state = chain.stem(images)
    half = follow(chain, repeat_last_block(chain, 1, 1, 0.5)).stages[0].blocks[2]
    quarter = chain.stages[0].blocks[1](state, scale=0.25)
    np.testing.assert_allclose(half(state, scale=0.5), quarter, rtol=1e-5, atol=1e-6)
