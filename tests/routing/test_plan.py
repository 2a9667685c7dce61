"""The plan of a set of routes, against brute force: what is applied, held and given up, and when.

Nothing is computed here: what the values are is in test_evaluator.py.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.random_network import random_network
from reference.route_values import every_route
from reference.wild_routes import CHAIN, is_given_up_at_once, plane_chain, wild_routes
from refusals import refused

import tfresidual as tfr
from tfresidual.routing import Block, Chain, Route, Stage, plan_of
from tfresidual.routing.routes import (
    Application,
    drop,
    readout,
    repeat_last_block,
    shuffle,
    swap,
    unperturbed,
)


def anchored_chain(*kinds):
    """Stages of blocks that take the anchor, do not, or change the shape."""

    def block(stage, index, kind):
        return Block(stage, index, kind != "change", lambda *h: h, takes_anchor=kind == "anchored")

    stages = tuple(
        Stage(
            stage,
            tuple(block(stage, index, kind) for index, kind in enumerate(of_stage)),
            (lambda h: -h) if stage == 3 else None,
        )
        for stage, of_stage in enumerate(kinds, start=1)
    )
    return Chain("anchored", lambda h: h, stages, lambda h: h, lambda y, h: h, (1, 1, 2))


ANCHORED = anchored_chain(
    ["anchored"] * 4,
    ["change", "anchored", "anchored", "plain", "anchored"],
    ["plain", "anchored", "anchored"],
    ["anchored", "anchored"],
)


def way_of(chain, route):
    """All states of a route as nested tuples of what made them, and those at the ends of stages."""
    states, ends = [("stem", ())], []
    for stage, applied in zip(chain.stages, route.stages, strict=True):
        if stage.transition is not None:
            states.append(("transition", stage.index, states[-1]))
        anchor = states[-1]
        for index, scale, _ in applied:
            block = stage.blocks[index]
            taken = [anchor] if block.takes_anchor else []
            states.append(("block", stage.index, index, scale, states[-1], *taken))
            if not block.keeps_shape:
                anchor = states[-1]
        ends.append(states[-1])
    return states, ends


def check_plan(chain, routes):
    """Does what a plan says with nested tuples for states; a state that is gone is an error."""
    plan = plan_of(chain, routes)
    assert plan.routes[0] == unperturbed(chain)
    assert {r.stages for r in plan.routes[1:]} == (
        {r.stages for r in routes} - {unperturbed(chain).stages}
    )
    ways, ends = zip(*(way_of(chain, route) for route in plan.routes), strict=True)
    rng = np.random.default_rng(len(plan.steps))
    sizes = {place: int(rng.integers(1, 100)) for place in range(len(plan.steps))}
    extras = rng.integers(0, 100, len(plan.steps)).tolist()
    held, made, heads, distances, most = {-1: ()}, [], {}, {}, 0
    for step, extra in zip(plan.steps, extras, strict=True):
        kind, stage, *which, _ = step.operation
        state = held[step.source]
        reference = [] if step.reference is None else [held[step.reference]]
        if kind == "head":
            assert step.target is step.reference is None
            heads |= dict.fromkeys(step.routes, state)
        elif kind == "distance":
            assert step.target is None and reference == [ends[0][stage - 1]]
            distances |= {(route, stage): state for route in step.routes}
        else:
            made.append({
                "stem": ("stem", state),
                "transition": ("transition", stage, state),
                "block": ("block", stage, *which, state, *reference),
            }[kind])  # fmt: skip
            assert step.target not in held
            assert set(step.routes) == {i for i, way in enumerate(ways) if made[-1] in way}
            held[step.target] = made[-1]
        most = max(most, extra + sum(sizes[place] for place in held if place >= 0))
        for place in step.frees:
            del held[place]
    # Everything is given up at once, and each way ends where it should.
    assert list(held) == [-1] and is_given_up_at_once(plan)
    assert heads == {route: of_route[-1] for route, of_route in enumerate(ends)}
    for route, of_route in enumerate(ends):
        for stage, end in enumerate(of_route, start=1):
            # Distance 0 needs no step.
            expected = end if end != ends[0][stage - 1] else None
            assert distances.get((route, stage)) == expected
    # Every state once, and none that no route needs.
    states = {state for way in ways for state in way}
    assert len(made) == len(states) and set(made) == states
    assert plan.applications == sum(state[0] == "block" for state in states)
    assert plan.plain_applications == sum(state[0] == "block" for way in ways for state in way)
    assert plan.most_held(sizes, extras) == most
    own = [number for number, step in enumerate(plan.steps) if 0 in step.routes]
    assert own == list(range(len(own))) and plan.steps[own[-1]].operation.kind == "head"
    return plan, len(made)


@st.composite
def sets_of_routes(draw, chain=CHAIN):
    stage = st.integers(1, len(chain.stages))
    makers = [
        lambda s, t, k: drop(chain, (s, t)),
        lambda s, t, k: drop(chain, (s, t), (s % len(chain.stages) + 1, k % 2)),
        lambda s, t, k: readout(chain, s, t),
        lambda s, t, k: repeat_last_block(chain, s, k + 1),
        lambda s, t, k: repeat_last_block(chain, s, k + 1, (0.5, 0.25)[t % 2]),
        lambda s, t, k: swap(chain, s, t, (t + 1) % len(chain.stages[s - 1].blocks)),
        lambda s, t, k: shuffle(chain, s, k, t or None),
        lambda s, t, k: unperturbed(chain),
    ]
    routes = []
    for make in draw(st.lists(st.sampled_from(makers), max_size=25)):
        s = draw(stage)
        t = draw(st.integers(0, len(chain.stages[s - 1].blocks) - 1))
        routes.append(make(s, t, draw(st.integers(0, 3))))
    return routes


@settings(deadline=None, max_examples=150)
@given(st.one_of(sets_of_routes(), wild_routes()))
def test_against_brute_force(routes):
    check_plan(CHAIN, routes)


def fixed_first(routes):
    """The same with the block that changes the shape where it must stand, and nowhere else."""
    change = unperturbed(ANCHORED).stages[1][:1]
    for route in routes:
        first, second, *others = route.stages
        second = change + tuple(a for a in second if a.block != 0)
        yield Route(route.name, (first, second, *others))


@settings(deadline=None, max_examples=100)
@given(
    st.one_of(
        wild_routes(chain=ANCHORED).map(fixed_first).map(list),
        st.lists(st.sampled_from(every_route(ANCHORED)), max_size=15),
    )
)
def test_anchors_against_brute_force(routes):
    check_plan(ANCHORED, routes)


@pytest.mark.parametrize("blocks", [5, 60])
def test_the_cost_of_known_sets(blocks):
    chain, both = plane_chain(blocks), plane_chain(blocks, blocks)
    drops = [drop(chain, (1, block)) for block in range(blocks)]
    # Without block t, what follows it is applied once more.
    plan = plan_of(chain, drops)
    assert plan.applications == blocks + blocks * (blocks - 1) // 2
    assert str(plan) == (
        f"{blocks + 1} routes: {plan.applications:,} block applications instead of {blocks**2:,}"
    )
    # Read-outs apply nothing new, and every repetition one block.
    readouts = [readout(chain, 1, block) for block in range(blocks)]
    assert plan_of(chain, readouts).applications == blocks
    repetitions = [repeat_last_block(chain, 1, times) for times in range(1, 17)]
    assert plan_of(chain, repetitions).applications == blocks + 16
    # A read-out of stage 1 is followed by all of stage 2.
    readouts = [readout(both, 1, block) for block in range(blocks)]
    assert plan_of(both, readouts).applications == 2 * blocks + (blocks - 1) * blocks


def test_routes_of_one_path_are_run_once():
    chain = plane_chain(3, 2)
    once, twice = [drop(chain, (1, 1))], [unperturbed(chain), readout(chain, 1, 2)]
    assert len(plan_of(chain, [*once, *twice, *once]).steps) == len(plan_of(chain, once).steps)


CHANGES = tfr.chain(random_network(blocks=3, widths=(2, 4)))
WHOLE = tuple(map(Application, range(3)))
WRONG = {
    "no route": lambda c: [3],
    "stages": lambda c: [unperturbed(c).stages],
    "no list": lambda c: 3,
    "one route": lambda c: unperturbed(c),
    "more stages": lambda c: [unperturbed(plane_chain(4, 3, 2, 1))],
    "fewer stages": lambda c: [unperturbed(plane_chain(4, 3))],
    "more blocks": lambda c: [drop(c, (1, 1)), unperturbed(plane_chain(4, 3, 3))],
    "a negative block": lambda c: [Route("", ((Application(-1),), (), ()))],
} | {
    # Block 0 of stage 2 changes the shape: it must stand first, once.
    f"stage 2 is {blocks}": (WHOLE, tuple(map(Application, blocks)))
    for blocks in ((), (1, 2), (0, 0, 1, 2), (1, 0, 2))
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_route_through_a_chain(name):
    make = WRONG[name]
    chain, routes = (CHAIN, make(CHAIN)) if callable(make) else (CHANGES, [Route("", make)])
    with refused("routes"):
        plan_of(chain, routes)
