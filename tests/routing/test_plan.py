"""The plan of a set of routes, against brute force: what is applied, held and given up, and when.

Nothing is computed here: what the values are is in test_evaluator.py.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.random_network import random_network
from reference.wild_routes import CHAIN, is_given_up_at_once, plane_chain, wild_routes

import tfresidual as tfr
from tfresidual.routing import Route, plan_of
from tfresidual.routing.routes import (
    Application,
    drop,
    readout,
    repeat_last_block,
    shuffle,
    swap,
    unperturbed,
)


def path(chain, route):
    """What a route applies to the images, in order, as plain tuples; scores are no part of it."""
    applied = [("stem",)]
    for stage, applications in zip(chain.stages, route.stages, strict=True):
        applied += [("transition", stage.index)] * (stage.transition is not None)
        applied += [("block", stage.index, block, scale) for block, scale in applications]
    return tuple(applied)


def path_to_the_end_of(chain, route, index):
    """As `path`, but only to the last state of a stage."""
    applied = path(chain, route)
    later = [i for i, what in enumerate(applied) if what[0] != "stem" and what[1] > index]
    return applied[: later[0]] if later else applied


def shared_states(chain, routes):
    """The states that the routes have on their ways, each once: all beginnings of their paths."""
    paths = [path(chain, route) for route in routes]
    return {applied[: i + 1] for applied in paths for i in range(len(applied))}


def follow_plan(chain, plan):
    """Does what a plan says with paths in place of states; fails where it cannot be done.

    Returns:
        A tuple of the paths made, in order, and the number of states held in every step.
    """
    reference = plan.routes[0]
    held, made, counts, ends, distances = {-1: ()}, [], [], {}, {}
    for number, step in enumerate(plan.steps):
        kind, stage, *which = step.operation
        state = held[step.source]
        paths = {path(chain, plan.routes[route]) for route in step.routes}
        assert all(applied[: len(state)] == state for applied in paths)
        if kind == "head":
            assert step.target is step.reference is None
            for route in step.routes:
                assert route not in ends
                ends[route] = state
        elif kind == "distance":
            assert step.target is None
            assert held[step.reference] == path_to_the_end_of(chain, reference, stage)
            for route in step.routes:
                assert (route, stage) not in distances
                distances[route, stage] = state
        else:
            what = {"stem": ("stem",), "transition": (kind, stage), "block": (kind, stage, *which)}
            assert step.target not in held
            held[step.target] = (*state, what[kind])
            made.append(held[step.target])
            assert all(applied[: len(made[-1])] == made[-1] for applied in paths)
        counts.append(len(held) - 1)
        for place in step.frees:
            del held[place]
            later = plan.steps[number + 1 :]
            assert all(place not in (s.source, s.reference) for s in later)
    # Everything is given up, and each way ends where it should.
    assert list(held) == [-1]
    assert ends == {i: path(chain, route) for i, route in enumerate(plan.routes)}
    for index, route in enumerate(plan.routes):
        for stage in chain.stages:
            end = path_to_the_end_of(chain, route, stage.index)
            if end == path_to_the_end_of(chain, reference, stage.index):
                # Distance 0 needs no step.
                assert (index, stage.index) not in distances
            else:
                assert distances[index, stage.index] == end
    return made, counts


@st.composite
def sets_of_routes(draw, chain=CHAIN):
    stage = st.integers(1, len(chain.stages))
    makers = {
        "drop": lambda s, t, k: drop(chain, (s, t)),
        "drop two": lambda s, t, k: drop(chain, (s, t), (s % len(chain.stages) + 1, k % 2)),
        "readout": lambda s, t, k: readout(chain, s, t),
        "repeat": lambda s, t, k: repeat_last_block(chain, s, k + 1),
        "scaled": lambda s, t, k: repeat_last_block(chain, s, k + 1, (0.5, 0.25)[t % 2]),
        "swap": lambda s, t, k: swap(chain, s, t, (t + 1) % len(chain.stages[s - 1].blocks)),
        "shuffle": lambda s, t, k: shuffle(chain, s, k, t or None),
        "unperturbed": lambda s, t, k: unperturbed(chain),
    }
    routes = []
    for name in draw(st.lists(st.sampled_from(sorted(makers)), max_size=25)):
        s = draw(stage)
        t = draw(st.integers(0, len(chain.stages[s - 1].blocks) - 1))
        routes.append(makers[name](s, t, draw(st.integers(0, 3))))
    return routes


@settings(deadline=None, max_examples=150)
@given(st.one_of(sets_of_routes(), wild_routes()))
def test_against_brute_force(routes):
    plan = plan_of(CHAIN, routes)
    assert plan.routes[0] == unperturbed(CHAIN)
    assert {r.stages for r in plan.routes[1:]} == (
        {r.stages for r in routes} - {unperturbed(CHAIN).stages}
    )
    made, counts = follow_plan(CHAIN, plan)
    # Every state once, and none that no route needs.
    expected = shared_states(CHAIN, [unperturbed(CHAIN), *routes])
    assert len(made) == len(expected)
    assert set(made) == expected
    assert plan.applications == sum(state[-1][0] == "block" for state in expected)
    assert plan.plain_applications == sum(
        what[0] == "block" for route in plan.routes for what in path(CHAIN, route)
    )
    assert is_given_up_at_once(plan)
    # Sizes of 1 for all states count them.
    sizes = dict.fromkeys(range(-1, len(made)), 1)
    assert plan.most_held(sizes, [0] * len(plan.steps)) == max(counts)


@settings(deadline=None, max_examples=50)
@given(sets_of_routes(), st.integers(0, 1000))
def test_most_held_against_brute_force(routes, seed):
    plan = plan_of(CHAIN, routes)
    rng = np.random.default_rng(seed)
    places = [step.target for step in plan.steps if step.target is not None]
    sizes = {place: int(rng.integers(1, 100)) for place in places}
    extras = rng.integers(0, 100, len(plan.steps)).tolist()
    held, most = set(), 0
    for step, extra in zip(plan.steps, extras, strict=True):
        held |= {step.target} - {None}
        most = max(most, sum(sizes[place] for place in held) + extra)
        held -= set(step.frees)
    assert plan.most_held(sizes, extras) == most


@settings(deadline=None, max_examples=50)
@given(sets_of_routes())
def test_the_unperturbed_route_comes_first(routes):
    plan = plan_of(CHAIN, routes)
    own = [number for number, step in enumerate(plan.steps) if 0 in step.routes]
    assert own == list(range(len(own)))
    assert plan.steps[own[-1]].operation.kind == "head"


def test_by_hand():
    # stem, 0, 1 and the head; then block 1 directly after the stem, its distance and the head.
    chain = plane_chain(2)
    plan = plan_of(chain, [drop(chain, (1, 0))])
    steps = [(s.operation.kind, s.source, s.target, s.reference, s.frees) for s in plan.steps]
    assert steps == [
        ("stem", -1, 0, None, ()),
        ("block", 0, 1, None, ()),
        ("block", 1, 2, None, (1,)),
        ("head", 2, None, None, ()),
        ("block", 0, 3, None, (0,)),
        ("distance", 3, None, 2, (2,)),
        ("head", 3, None, None, (3,)),
    ]
    assert [step.routes for step in plan.steps] == [(0, 1), (0,), (0,), (0,), (1,), (1,), (1,)]
    # Held, place by place: 0 | 0 1 | 0 1 2 | 0 2 | 0 2 3 | 2 3 | 3.
    sizes = {-1: 1000, 0: 1, 1: 10, 2: 100, 3: 5}
    assert plan.most_held(sizes, [0] * 7) == 111
    assert plan.most_held(sizes, [0, 0, 0, 20, 0, 0, 0]) == 121
    assert plan.most_held(sizes, [0, 0, 0, 0, 7, 0, 0]) == 113
    assert plan.most_held(sizes, [0, 0, 0, 0, 0, 9, 0]) == 114
    assert plan.most_held(sizes, [0, 0, 0, 0, 0, 0, 200]) == 205


def test_printing():
    # Dropping block 0 leaves 3 blocks to be applied again, dropping block 2 one.
    chain = plane_chain(4)
    plan = plan_of(chain, [drop(chain, (1, 0)), drop(chain, (1, 2))])
    assert (plan.applications, plan.plain_applications) == (4 + 3 + 1, 4 + 3 + 3)
    assert str(plan) == "3 routes: 8 block applications instead of 10"
    many = plane_chain(1000)
    assert str(plan_of(many, [repeat_last_block(many, 1, 500)])) == (
        "2 routes: 1,500 block applications instead of 2,500"
    )


@pytest.mark.parametrize("blocks", [5, 20, 60])
def test_the_cost_of_known_sets(blocks):
    chain = plane_chain(blocks)
    drops = [drop(chain, (1, block)) for block in range(blocks)]
    # Without block t, what follows it is applied once more.
    assert plan_of(chain, drops).applications == blocks + blocks * (blocks - 1) // 2
    # Read-outs apply nothing new, and every repetition one block.
    readouts = [readout(chain, 1, block) for block in range(blocks)]
    assert plan_of(chain, readouts).applications == blocks
    repetitions = [repeat_last_block(chain, 1, times) for times in range(1, 17)]
    assert plan_of(chain, repetitions).applications == blocks + 16
    # A read-out of stage 1 is followed by all of stage 2.
    both = plane_chain(blocks, blocks)
    readouts = [readout(both, 1, block) for block in range(blocks)]
    assert plan_of(both, readouts).applications == 2 * blocks + (blocks - 1) * blocks


def test_routes_of_one_path_are_run_once():
    chain = plane_chain(3, 2)
    once = plan_of(chain, [drop(chain, (1, 1))])
    again = plan_of(
        chain,
        [drop(chain, (1, 1)), unperturbed(chain), drop(chain, (1, 1)), readout(chain, 1, 2)],
    )
    assert again.applications == once.applications
    assert len(again.steps) == len(once.steps)


def test_no_routes_at_all():
    plan = plan_of(CHAIN, [])
    assert str(plan) == "1 routes: 9 block applications instead of 9"
    made, counts = follow_plan(CHAIN, plan)
    # Nothing is held but what leads from one state to the next, and the ends of the stages are
    # compared to nothing.
    assert (len(made), max(counts)) == (1 + 9 + 2, 2)
    assert plan_of(CHAIN, iter([])).routes == plan.routes


def most_states(chain, routes):
    plan = plan_of(chain, routes)
    sizes = dict.fromkeys(range(-1, len(plan.steps)), 1)
    return plan.most_held(sizes, [0] * len(plan.steps))


@pytest.mark.parametrize("lengths", [(12,), (4, 5, 6)], ids=str)
def test_few_states_are_held_however_many_the_routes_are(lengths):
    chain = plane_chain(*lengths)
    own = len(path(chain, unperturbed(chain)))
    drops = [drop(chain, (block.stage, block.index)) for block in chain.blocks]
    # Beside its own states the unperturbed route leaves behind, one that is taken and one made.
    assert most_states(chain, drops) <= own + 2
    rng = np.random.default_rng(0)
    stages = range(1, len(lengths) + 1)
    for count in (10, 100, 1000):
        routes = [shuffle(chain, int(rng.choice(stages)), seed) for seed in range(count)]
        for _ in range(count):
            places = rng.choice(len(chain.blocks), int(rng.integers(2, 8)), replace=False)
            blocks = [chain.blocks[place] for place in places]
            routes.append(drop(chain, *((block.stage, block.index) for block in blocks)))
        # A state waits only for what fewer than half of the routes that pass it do: with every
        # one that waits, at most half of the routes are left.
        assert most_states(chain, drops + routes) <= own + 2 + math.log2(len(drops + routes))


def test_readouts_and_repetitions_hold_next_to_nothing():
    chain = plane_chain(50)
    readouts = [readout(chain, 1, block) for block in range(50)]
    repetitions = [repeat_last_block(chain, 1, times) for times in range(1, 17)]
    own = len(path(chain, unperturbed(chain)))
    assert most_states(chain, readouts) <= own + 2
    # The reference, one state taken, one made.
    assert most_states(chain, repetitions) == 3


def test_deep_networks():
    chain = plane_chain(100, 100, 100)
    routes = [drop(chain, (block.stage, block.index)) for block in chain.blocks]
    routes += [repeat_last_block(chain, 3, 1000), repeat_last_block(chain, 1, 500, 0.5)]
    routes += [shuffle(chain, stage, seed) for stage in (1, 2, 3) for seed in range(5)]
    plan = plan_of(chain, routes)
    assert plan.plain_applications == 300 * 299 + 300 + 1300 + 800 + 15 * 300
    own = len(path(chain, unperturbed(chain)))
    sizes = dict.fromkeys(range(-1, len(plan.steps)), 1)
    assert plan.most_held(sizes, [0] * len(plan.steps)) <= own + 12
    del plan


WRONG = {
    "no route": lambda c: [3],
    "stages": lambda c: [unperturbed(c).stages],
    "more stages": lambda c: [unperturbed(plane_chain(4, 3, 2, 1))],
    "fewer stages": lambda c: [unperturbed(plane_chain(4, 3))],
    "more blocks": lambda c: [drop(c, (1, 1)), unperturbed(plane_chain(4, 3, 3))],
    "a negative block": lambda c: [Route("", ((Application(-1),), (), ()))],
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_routes_of_another_chain(make):
    with pytest.raises(ValueError, match=r"`routes` must hold routes through plane.*Received: "):
        plan_of(CHAIN, make(CHAIN))


@pytest.mark.parametrize("routes", [drop(CHAIN, (1, 1)), 3], ids=["route", "int"])
def test_routes_that_are_no_list(routes):
    with pytest.raises(ValueError, match=r"`routes` must .*Received: "):
        plan_of(CHAIN, routes)


@pytest.mark.parametrize("stage", [(), (1, 2), (0, 0, 1, 2), (1, 0, 2)], ids=str)
def test_what_changes_the_shape_stays(stage):
    # Routes of a network whose blocks all keep the shape, given to one whose block 0 does not.
    chain = tfr.chain(random_network(blocks=3, widths=(2, 4)))
    whole = tuple(map(Application, range(3)))
    with pytest.raises(ValueError, match=r"`routes` must hold routes through .*Received: "):
        plan_of(chain, [Route("", (whole, tuple(map(Application, stage))))])


def test_bad_chain():
    with pytest.raises(ValueError, match=r"`chain` must be a .*Chain.*Received: chain=3"):
        plan_of(3, [])
