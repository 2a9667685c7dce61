"""Plans that run many routes and compute the parts they share only once.

The routes form a prefix tree whose edges are operations on a state. The plan walks it depth first:
every operation is applied once, for all routes that pass it, and a state is freed as soon as
nothing needs it. The unperturbed route comes first, since the other states are compared with its
states; where routes branch off, the edge that most of them pass comes last. So few states are kept,
however many routes there are.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from tfresidual.routing.chain import checked_chain
from tfresidual.routing.replacement import Replacement
from tfresidual.routing.routes import Route, checked_routes, unperturbed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tfresidual.routing.chain import Chain

STEM, TRANSITION, BLOCK, DISTANCE, HEAD = "stem", "transition", "block", "distance", "head"


class Operation(NamedTuple):
    """An operation on a state.

    Attributes:
        kind: `"stem"`, `"transition"` (into the stage), `"block"`, `"distance"` (between the last
            state of the stage and that of the unperturbed route) or `"head"`.
        stage: int, counted from 1; 0 for stem and head.
        block: int, the block index.
        scale: float, the factor by which the branch of the block is multiplied.
        weights: the `Replacement` of weights of the block, or `None`.
    """

    kind: str
    stage: int = 0
    block: int = 0
    scale: float = 1.0
    weights: Replacement | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step of a plan. States have places, counted from 0; the place of the images is -1.

    Attributes:
        operation: an `Operation`.
        source: int, the place of the state that the operation takes.
        target: int, the place of the state that it returns; `None` for a distance and a head.
        reference: int, the place of the state that a distance is measured to, or of the anchor for
            a block that takes the anchor; otherwise `None`.
        frees: tuple of ints, the places whose states are not needed after this step.
        routes: tuple of ints, the indices of the routes that pass here.
    """

    operation: Operation
    source: int
    target: int | None
    reference: int | None
    frees: tuple[int, ...]
    routes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The steps that run a set of routes, in order.

    Attributes:
        routes: tuple of `Route`s. The first is always the unperturbed one, requested or not.
        steps: tuple of `Step`s.

    Example:

    >>> print(plan_of(chain, [routes.drop(chain, (1, 0)), routes.drop(chain, (1, 1))]))
    3 routes: 15 block applications instead of 16
    """

    routes: tuple[Route, ...]
    steps: tuple[Step, ...]

    @property
    def applications(self) -> int:
        """The number of times a block is applied to a batch of images."""
        return sum(step.operation.kind == BLOCK for step in self.steps)

    @property
    def plain_applications(self) -> int:
        """The number of times a block would be applied if every route was run by itself."""
        return sum(route.applications for route in self.routes)

    def most_held(self, sizes: Sequence[int], extras: Sequence[int]) -> int:
        """Returns the largest memory that is held at any time.

        `sizes` are those of the states at every place, `extras` what every step needs besides.
        """
        held, most = 0, 0
        for step, extra in zip(self.steps, extras, strict=True):
            held += 0 if step.target is None else sizes[step.target]
            most = max(most, held + extra)
            held -= sum(sizes[place] for place in step.frees)
        return most

    def __str__(self) -> str:
        return (
            f"{len(self.routes)} routes: {self.applications:,} block applications instead of "
            f"{self.plain_applications:,}"
        )


def plan_of(chain: Chain, routes: Iterable[Route]) -> Plan:
    """Plans how a set of routes is run, without running it.

    Args:
        chain: a `tfresidual.routing.Chain`.
        routes: `Route`s through it.

    Raises:
        ValueError: if `routes` holds something that is not a route, or a route of another chain.
    """
    chain = checked_chain(chain)
    reference = unperturbed(chain)
    routes = checked_routes(chain, routes)
    routes = (reference, *(route for route in routes if route.stages != reference.stages))
    root = _Node()
    for index, route in enumerate(routes):
        node = root
        for operation in _operations(chain, route):
            node = node.children.setdefault(operation, _Node())
            node.routes.append(index)
    return Plan(routes, _with_frees(_walk(chain, root)))


class _Node:
    """A node of the prefix tree: the operations that follow, and the routes that pass, in order."""

    def __init__(self):
        self.children = {}
        self.routes = []


def _operations(chain, route):
    yield Operation(STEM)
    for stage, applications in zip(chain.stages, route.stages, strict=True):
        if stage.transition is not None:
            yield Operation(TRANSITION, stage.index)
        for application in applications:
            yield Operation(BLOCK, stage.index, *application)
        yield Operation(DISTANCE, stage.index)
    yield Operation(HEAD)


def _walk(chain, root):
    """Returns the steps of a depth-first walk over the tree, which do not yet free states."""
    steps, references, places = [], {}, 0
    waiting = [(operation, node, -1, -1) for operation, node in root.children.items()]
    while waiting:
        operation, node, source, anchor = waiting.pop()
        place, target, reference, needed = source, None, None, True
        if operation.kind == DISTANCE:
            if 0 in node.routes[:1]:
                references[operation.stage] = source
            reference = references[operation.stage]
            # The unperturbed route is at distance 0 from itself.
            needed = reference != source
        elif operation.kind != HEAD:
            place = target = places
            places += 1
            block = None
            if operation.kind == BLOCK:
                block = chain.stages[operation.stage - 1].blocks[operation.block]
            reference = anchor if block and block.takes_anchor else None
        if needed:
            steps.append(Step(operation, source, target, reference, (), tuple(node.routes)))
        # The output of the stem, a transition or a block that changes the shape is the next anchor.
        if target is not None and (block is None or not block.keeps_shape):
            anchor = target
        elif operation.kind == DISTANCE:
            anchor = source
        # The last item of the list is taken first.
        following = sorted(
            node.children.items(),
            key=lambda item: (0 not in item[1].routes[:1], len(item[1].routes)),
            reverse=True,
        )
        waiting += [(operation, child, place, anchor) for operation, child in following]
    return steps


def _with_frees(steps):
    """Returns the steps; each frees the states that no later step needs, except for the images."""
    needed, done = {-1}, []
    for step in reversed(steps):
        taken = [p for p in (step.source, step.target, step.reference) if p is not None]
        done.append(dataclasses.replace(step, frees=tuple(sorted(set(taken) - needed))))
        needed.update(taken)
    return tuple(reversed(done))
