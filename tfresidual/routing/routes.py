"""Routes: ways through the blocks of a chain, one of which is the unperturbed network."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfresidual.definitions.arguments import ArgumentError, check_int, is_int, is_number
from tfresidual.definitions.settings import MOST_TIMES
from tfresidual.routing.chain import Stage, checked_chain, multiplied, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tfresidual.routing.chain import Chain
    from tfresidual.routing.replacement import Replacement


class Application(NamedTuple):
    """One application of a block.

    Attributes:
        block: int, its index in the stage.
        scale: float, the factor of its branch.
        weights: the `Replacement` of some of its weights, in this application alone, or `None`.
    """

    block: int
    scale: float = 1.0
    weights: Replacement | None = None


@dataclasses.dataclass(frozen=True)
class Route:
    """The blocks applied, in order.

    Stages, transitions and head keep their places. Within a stage, any block that keeps the shape
    of the state may be left out, applied again or moved.

    Attributes:
        name: str, a description of the route.
        stages: for every stage, the tuple of its `Application`s.

    Example:

    >>> print(drop(chain, (1, 1)))
    without stage 1 block 1: 0 | 0 1 | 0 1
    """

    name: str
    stages: tuple[tuple[Application, ...], ...]

    @property
    def applications(self) -> int:
        """The number of blocks applied."""
        return sum(map(len, self.stages))

    def __str__(self) -> str:
        return f"{self.name}: {' | '.join(map(_applications_text, self.stages))}"


def unperturbed(chain: Chain) -> Route:
    """Returns the `Route` of the network as it was trained."""
    stages = checked_chain(chain).stages
    return Route(
        "unperturbed",
        tuple(tuple(Application(block.index) for block in stage.blocks) for stage in stages),
    )


def drop(chain: Chain, *blocks: tuple[int, int]) -> Route:
    """Returns the `Route` without one or several blocks.

    Args:
        chain: a `tfresidual.routing.Chain`.
        *blocks: pairs (stage, block), stages counted from 1 and blocks from 0.

    Raises:
        ValueError: if a block does not exist, is given twice, or changes the shape of the state.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431; Jastrzebski et al. 2018, fig. 3.
    """
    chain = checked_chain(chain)
    received = f"blocks={blocks!r}"
    for pair in blocks:
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not is_pair or any(isinstance(part, (tuple, list)) for part in pair):
            raise ArgumentError("blocks", "be pairs (stage, block)", received=f"{received}")
    dropped = [_movable(chain, "blocks", *pair, "dropped", received) for pair in blocks]
    if not dropped or len(set(dropped)) < len(dropped):
        raise ArgumentError(
            "blocks", "be one or more different pairs (stage, block)", received=f"{received}"
        )
    route = unperturbed(chain)
    stages = tuple(
        tuple(a for a in applications if (index, a.block) not in dropped)
        for index, applications in enumerate(route.stages, start=1)
    )
    names = " and ".join(f"stage {stage} block {block}" for stage, block in dropped)
    return Route(f"without {names}", stages)


def readout(chain: Chain, stage: int, after: int) -> Route:
    """Returns the `Route` that leaves a stage early and continues with the next stage or the head.

    Args:
        chain: a `tfresidual.routing.Chain`.
        stage: int, the stage to leave, counted from 1.
        after: int, the last block of the stage that is applied, counted from 0.

    Raises:
        ValueError: if there is no such block, or a later block of the stage changes the shape of
            the state.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 3.3
        and fig. 2a; Jastrzebski et al. 2018, fig. 5.
    """
    chain = checked_chain(chain)
    blocks, received = _stage(chain, stage).blocks, f"after={after!r}"
    block_of(chain, "after", stage, after, received)
    for block in blocks[after + 1 :]:
        _movable(chain, "after", stage, block.index, "skipped", received)
    kept = tuple(Application(block.index) for block in blocks[: after + 1])
    return _replaced(chain, stage, kept, f"stage {stage} read out after block {after}")


def repeat_last_block(
    chain: Chain, stage: int, times: int, scale: float = 1.0, blocks: int = 1
) -> Route:
    """Returns the `Route` that applies the last block of a stage, or the last ones, again.

    Args:
        chain: a `tfresidual.routing.Chain`.
        stage: int, counted from 1.
        times: int, the number of extra applications of the block, 1 or more.
        scale: float, the factor by which the branch of the block is multiplied in these.
        blocks: int, how many blocks at the end of the stage are repeated, one after the other: 2
            for a layer of attention and MLP.

    Raises:
        ValueError: if an argument cannot be used, or one of these blocks changes the shape of the
            state.

    Reference:
        Jastrzebski et al. 2018, section 4.4; "Iterative convergent computation is not a useful
        inductive bias for ResNets", section 3.3 and fig. 2a.
    """
    chain = checked_chain(chain)
    own = _stage(chain, stage).blocks
    check_times(times)
    check_scale(scale)
    check_int("blocks", blocks, at_least=1)
    if len(own) < blocks:
        raise ArgumentError(
            "stage",
            f"be a stage of {chain.name} with {'a block' if blocks == 1 else f'{blocks} blocks'}",
            received=f"stage={stage}",
        )
    repeated = own[-blocks:]
    for block in reversed(repeated):
        _movable(chain, "stage", stage, block.index, "repeated", f"stage={stage}")
    extra = tuple(Application(block.index, float(scale)) for block in repeated) * times
    names = " and ".join(str(block.index) for block in repeated)
    name = f"stage {stage} block{'s' if blocks > 1 else ''} {names} applied "
    name += plural(times, "more time") + ("" if scale == 1 else f", scaled by {scale:g}")
    return _replaced(chain, stage, unperturbed(chain).stages[stage - 1] + extra, name)


def swap(chain: Chain, stage: int, first: int, second: int) -> Route:
    """Returns the `Route` with two blocks of a stage swapped.

    Args:
        chain: a `tfresidual.routing.Chain`.
        stage: int, counted from 1.
        first: int, a block of the stage, counted from 0.
        second: int, another block of the stage.

    Raises:
        ValueError: if a block does not exist or changes the shape of the state, if both are the
            same block, or if a block between them changes the shape of the state.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431.
    """
    chain = checked_chain(chain)
    _stage(chain, stage)
    for name, block in (("first", first), ("second", second)):
        _movable(chain, name, stage, block, "moved", f"{name}={block!r}")
    parts = _parts(chain.stages[stage - 1])
    if first == second or parts[first] != parts[second]:
        raise ArgumentError(
            ("first", "second"),
            "be two blocks with no block between them that changes the shape of the state",
            received=f"first={first}, second={second}",
        )
    order = [a.block for a in unperturbed(chain).stages[stage - 1]]
    order[first], order[second] = order[second], order[first]
    applications = tuple(map(Application, order))
    return _replaced(
        chain, stage, applications, f"stage {stage} blocks {first} and {second} swapped"
    )


def shuffle(chain: Chain, stage: int, seed: int = 0, swaps: int | None = None) -> Route:
    """Returns the `Route` with the blocks of a stage in a random order.

    Blocks that change the shape of the state keep their places.

    Args:
        chain: a `tfresidual.routing.Chain`.
        stage: int, counted from 1.
        seed: int, 0 or more; the same seed gives the same order.
        swaps: int, the number of random pairs of blocks that change places, one after the other;
            `None` for a random order, all orders being equally likely.

    Raises:
        ValueError: if an argument cannot be used, or no two blocks of the stage can change places.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431.
    """
    chain = checked_chain(chain)
    blocks = _stage(chain, stage).blocks
    check_int("swaps", swaps, at_least=1, or_none=True)
    runs = movable_runs(chain.stages[stage - 1])
    if not runs:
        raise ArgumentError(
            "stage",
            "have at least two blocks that can change places, that is, blocks that keep the "
            "shape of the state",
            received=f"stage={stage} of {chain.name}",
        )
    rng = np.random.default_rng(seed)
    order = [block.index for block in blocks]
    if swaps is None:
        for run in runs:
            for place, block in zip(run, rng.permutation(run).tolist(), strict=True):
                order[place] = block
    pairs = [pair for run in runs for pair in itertools.combinations(run, 2)]
    for first, second in rng.choice(pairs, swaps or 0):
        order[first], order[second] = order[second], order[first]
    how = "shuffled" if swaps is None else f"shuffled by {plural(swaps, 'swap')}"
    applications = tuple(map(Application, order))
    return _replaced(chain, stage, applications, f"stage {stage} {how} (seed {seed})")


def with_weights(
    route: Route, replacements: Mapping[tuple[int, int], Replacement], name: str
) -> Route:
    """Returns the `Route` in which blocks, pairs (stage, block), are applied with other weights."""
    stages = tuple(
        tuple(one._replace(weights=replacements.get((stage, one.block))) for one in applications)
        for stage, applications in enumerate(route.stages, start=1)
    )
    return Route(name, stages)


def follow(chain: Chain, route: Route) -> Chain:
    """Returns the chain whose blocks are the applications of a route, numbered anew.

    It has the same stem, transitions and head, and neither reference nor source.
    """
    chain = checked_chain(chain)
    checked_routes(chain, [route], "route")
    check_own_weights("route", route)
    stages = [
        Stage(
            stage.index,
            tuple(
                _applied(stage.blocks[application.block], place, application.scale)
                for place, application in enumerate(applications)
            ),
            stage.transition,
        )
        for stage, applications in zip(chain.stages, route.stages, strict=True)
    ]
    changes: dict[str, Any] = {
        "name": route.name,
        "stages": tuple(stages),
        "reference": None,
        "source": None,
        "compiled": {},
    }
    return dataclasses.replace(chain, **changes)


def checked_routes(chain: Chain, routes: Iterable[Route], name: str = "routes") -> list[Route]:
    """Returns the routes as a list; raises a `ValueError` unless all of them fit the chain."""
    if isinstance(routes, Route) or not isinstance(routes, Iterable):
        raise ArgumentError("routes", "be a list of routes", routes)
    routes = list(routes)
    for route in routes:
        fits = isinstance(route, Route) and len(route.stages) == len(chain.stages)
        if not fits or not all(map(_leads_through, chain.stages, route.stages)):
            raise ArgumentError(
                name,
                f"hold routes through {chain.name}, made by the functions of `tfresidual.routes`",
                received=f"{route!r}",
            )
    return routes


def check_own_weights(name: str, route: Route) -> None:
    """Raises a `ValueError` for a route that applies blocks with other weights."""
    if any(one.weights is not None for applications in route.stages for one in applications):
        raise ArgumentError(name, "be a route of blocks with their own weights", f"{route}")


def _leads_through(stage, applications):
    """Returns whether applications fit a stage: each block receives the state shape it needs."""
    parts, changes = _parts(stage), [b.index for b in stage.blocks if not b.keeps_shape]
    passed = []
    for block, *_ in applications:
        if block not in range(len(stage.blocks)) or parts[block] != len(passed):
            return False
        if block in changes:
            passed.append(block)
    return passed == changes


def movable_runs(stage):
    """Returns lists of the indices of blocks that can change places with each other.

    Two blocks can do so if no block between them changes the shape of the state.
    """
    parts = _parts(stage)
    runs = [
        [block.index for block in stage.blocks if block.keeps_shape and parts[block.index] == part]
        for part in sorted(set(parts))
    ]
    return [run for run in runs if len(run) > 1]


def _parts(stage):
    """Returns, for every block, the number of blocks before it that change the shape."""
    return list(itertools.accumulate((not b.keeps_shape for b in stage.blocks), initial=0))[:-1]


def _applied(block, place, scale):
    """Returns a copy of a block at another place, with its branch scaled."""
    if scale == 1:
        return dataclasses.replace(block, index=place)

    def branch(state):
        return multiplied(scale, block.branch(state))

    return dataclasses.replace(
        block,
        index=place,
        apply=functools.partial(block, scale=scale),
        branch=None if block.branch is None else branch,
    )


def _replaced(chain, stage, applications, name):
    stages = list(unperturbed(chain).stages)
    stages[stage - 1] = applications
    return Route(name, tuple(stages))


def _stage(chain, stage):
    check_int("stage", stage, at_least=1)
    if stage > len(chain.stages):
        raise ArgumentError(
            "stage",
            f"be a stage of {chain.name}, from 1 to {len(chain.stages)}",
            received=f"stage={stage}",
        )
    return chain.stages[stage - 1]


def block_of(chain, name, stage, index, received):
    """Returns a block of a stage; `name` and `received` describe the argument in the error."""
    blocks = _stage(chain, stage).blocks
    if not is_int(index) or index not in range(len(blocks)):
        raise ArgumentError(
            name,
            f"be a block of stage {stage} of {chain.name}, from 0 to {len(blocks) - 1}",
            received=f"{received}",
        )
    return blocks[index]


def _movable(chain, name, stage, index, what, received):
    """Returns the pair (stage, block) of a block; raises a `ValueError` if it changes the shape."""
    block = block_of(chain, name, stage, index, received)
    if not block.keeps_shape:
        raise ArgumentError(
            name,
            f"not name {block} of {chain.name} to be {what}: it changes the shape of the state, "
            "and what follows needs the new shape",
            received=f"{received}",
        )
    return block.stage, block.index


def check_times(times, at_least=1):
    """Returns a number of applications as an int; raises a `ValueError` if it cannot be used."""
    return check_int("times", times, at_least, MOST_TIMES)


def check_scale(scale):
    """Raises a `ValueError` unless branches can be multiplied by a number."""
    # A float32 cannot hold much more than this.
    if not is_number(scale) or not abs(float(scale)) < 3e38:
        raise ArgumentError("scale", "be a finite number", scale)


def _applications_text(applications):
    """Returns a text such as `0 1 2 3 (x4)`, in which a repeated application appears once."""
    if not applications:
        return "none"
    parts = []
    for application, group in itertools.groupby(applications):
        count = len(list(group))
        text = str(application.block)
        text += "" if application.scale == 1 else f"*{application.scale:g}"
        text += "" if application.weights is None else f" ({application.weights.name})"
        parts.append(text + ("" if count == 1 else f" (x{count})"))
    return " ".join(parts)
