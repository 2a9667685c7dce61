"""Which blocks of a network go, one after the other, and what that costs. TensorFlow only."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_int,
    check_ints,
    check_number,
)
from tfresidual.definitions.averages import rise_over, weighted_mean
from tfresidual.definitions.chance import chance_text, warn_of_chance
from tfresidual.machine.console import progress_bar
from tfresidual.probes.block_importance import CRITERIA, block_importance
from tfresidual.routing import evaluate, routes
from tfresidual.routing.agreement import allowed_for
from tfresidual.routing.costs import Costs, name_of
from tfresidual.routing.data import batches_of, first_batch
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.surgery.graphs import layers_of
from tfresidual.surgery.models import chain_of, rerouted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Frame, Images
    from tfresidual.routing import Chain

# Subsets that `exact` compares at most.
MOST_SUBSETS = 5000
PLAN_COLUMNS = ("step", "stage", "block", "blocks")


def plan(
    model: Chain | ChainSource,
    data: Images,
    *,
    blocks: int | None = None,
    speed: float | None = None,
    most_error: float | None = None,
    by: Literal["loss", "influence", "angular", "first_order", "l2_ratio"] = "loss",
    exact: bool = False,
    stages: Iterable[int] | None = None,
    test: Images | None = None,
    batch_sizes: Iterable[int] = (1, 256),
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Chooses blocks to take out of a network, one after the other, and measures what each costs.

    In every step, the block that a criterion needs least goes, and the criterion is measured again
    on the network without it: two blocks may cost nothing one by one, and much together. Blocks are
    chosen on `data` and judged on `test`, since the errors on the images that a choice was made on
    are too low. A warning says on which of them the whole network is no better than chance: there,
    nothing can be seen of what a block is good for.

    Where layers hold several blocks, as those of keras-hub, whole layers go; their value is the sum
    of those of their blocks. Left alone are blocks that change the shape of the state, that share
    weights with others, and that `without_blocks` refuses.

    Example:

    >>> steps = plan(net, test, blocks=2, by="l2_ratio", batch_sizes=())
    >>> steps["blocks_left"].tolist()
    [6, 5, 4]
    >>> smaller = tfresidual.surgery.without_blocks(net, steps)

    Args:
        model: a network as `without_blocks` takes it, or its chain, compiled with a loss.
        data: images and labels to choose on, see `tfresidual.definitions.types.Images`. It is read
            again in every step, and must hold the same images each time.
        blocks: int, how many blocks go, or layers that hold them. Give this, `speed` or
            `most_error`.
        speed: float over 1, how many times as fast the network is to be, by the measured time at
            the largest of `batch_sizes`.
        most_error: float, 0 or more: the plan ends before the error on `data` rises by more than
            this over that of the whole network, which must be better than chance.
        by: the criterion, see `tfresidual.probes.block_importance`; `"loss"` is the cross-entropy
            without the block.
        exact: whether all subsets of `blocks` blocks are compared by their cross-entropy, up to
            5,000 of them, instead of one block after the other. Within the best one, the block that
            costs least goes first.
        stages: ints, the stages from which blocks may go, counted from 1; by default all.
        test: images and labels to judge on, not those of `data`. By default, every second image of
            `data`, a `tf.data.Dataset` or arrays, which then is not chosen on.
        batch_sizes: ints, the batch sizes that are timed; `()` for none.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with a row for the whole network (step 0, with 0 blocks of stage 0) and
        one for each step:

        - `step`, `stage` (from 1), `block` (from 0) and `blocks`: what goes, by the numbers in the
          whole network; `blocks` is more than 1 for a layer with several blocks from `block` on;
        - `value`: that of the criterion, on `data`, for the network before the step;
        - `blocks_left`, and of the network after the step, on `test`, `error` and `cross_entropy`
          (as in `tfresidual.probes.evaluate_routes`), `error_rise` over the whole network with its
          standard error over the same images, `error_rise_se`; `error_selection`, on `data`;
        - `parameters`; `flops` of one image, two per multiplication in convolutions and matrix
          products; `milliseconds_1`, `milliseconds_256`, of a batch of this size at inference, the
          shortest of 7 calls or more, in half a second at least, in turn with the whole network.
          They are noisy: eight measurements of one network on two busy cores differed by up to 1.8
          times with a batch of 1, and 1.9 times with one of 256. Measure on an idle machine.

    Raises:
        ValueError: if an argument cannot be used, or not enough blocks can go.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431; Men et al. 2024,
        https://arxiv.org/abs/2403.03853; Gromov et al. 2024, https://arxiv.org/abs/2403.17887.
    """
    check_choice("by", by, tuple(CRITERIA))
    check_memory_limit(memory_limit)
    batch_sizes = tuple(batch_sizes) if np.iterable(batch_sizes) else batch_sizes
    goal = Goal(blocks, speed, most_error, max(batch_sizes, default=0))
    if exact and (by != "loss" or blocks is None):
        raise ArgumentError(
            "exact", "be False unless by='loss' and `blocks` is given", by=by, blocks=blocks
        )
    if speed is not None and not batch_sizes:
        raise ArgumentError("batch_sizes", "hold the batch size of `speed`", batch_sizes)
    chain = chain_of(model)
    model = chain.source.model
    if chain.outputs == "values":
        raise ArgumentError(
            "model",
            "return classes or labels, by which a plan is judged. For other networks, "
            "`tfresidual.probes.block_importance` ranks blocks, and "
            "`tfresidual.surgery.without_blocks` takes them out",
            received=f"{chain.name}, whose outputs are values",
        )
    units = _units(chain, stages)
    if goal.blocks is not None and goal.blocks > len(units):
        raise ArgumentError(
            "blocks",
            f"be at most {len(units)}, the blocks or layers of {chain.name} that can go",
            goal.blocks,
        )
    if exact and (subsets := math.comb(len(units), goal.blocks or 0)) > MOST_SUBSETS:
        raise ArgumentError(
            ("exact", "blocks"),
            f"leave at most {MOST_SUBSETS:,} subsets to compare; `stages` chooses fewer blocks",
            received=f"exact=True, blocks={blocks}, of {len(units)} blocks: {subsets:,} subsets",
        )
    if test is None:
        data, test = halves(data)
    planner = _Planner(model, chain, data, units, batch_sizes, memory_limit, by)
    with progress_bar("planning" if progress else None, goal.blocks) as advance:
        steps = planner.exact_steps(goal.blocks) if exact else planner.steps()
        rows = planner.until(goal, steps, advance)
    return planner.judged(rows, test)


@dataclasses.dataclass(frozen=True)
class Goal:
    """When a plan ends; one of these is not `None`. `timed` is the batch size of the speed."""

    blocks: int | None
    speed: float | None
    most_error: float | None
    timed: int = 0

    def __post_init__(self):
        given = dataclasses.asdict(self)
        del given["timed"]
        if sum(value is not None for value in given.values()) != 1:
            raise ArgumentError(
                tuple(given), "be given one at a time: how many blocks go, or when to stop", **given
            )
        if self.blocks is not None:
            check_int("blocks", self.blocks, at_least=1)
        if self.speed is not None:
            check_number("speed", self.speed, over=1)
        if self.most_error is not None:
            check_number("most_error", self.most_error, at_least=0, at_most=1)

    def is_met(self, rows):
        """Returns whether the last of some rows ends the plan."""
        if self.speed is None:
            return len(rows) - 1 == self.blocks
        return self.speed_of(rows) >= self.speed

    def speed_of(self, rows):
        """Returns how many times as fast as that of the first row the network of the last is."""
        if len(rows) == 1:
            return 1.0
        name = name_of(self.timed)
        return rows[0][name] / rows[-1][name]

    def is_exceeded(self, rows):
        """Returns whether the last of some rows costs too much."""
        rise = rows[-1]["error_selection"] - rows[0]["error_selection"]
        return self.most_error is not None and not rise <= self.most_error


def halves(data):
    """Returns the images of even and of odd places in the data."""
    if isinstance(data, tf.data.Dataset):
        batch = first_batch(data)
        size, single = len(keras.tree.flatten(batch)[0]), data.unbatch()
        return tuple(single.shard(2, place).batch(size) for place in (0, 1))
    if not isinstance(data, (tuple, list)):
        raise ArgumentError(
            "test", "be given unless `data` is a `tf.data.Dataset` or arrays", received="test=None"
        )
    arrays = keras.tree.map_structure(np.asarray, tuple(data))
    return tuple(
        keras.tree.map_structure(lambda one, place=place: one[place::2], arrays) for place in (0, 1)
    )


def _units(chain, stages):
    """Returns tuples of pairs (stage, block) that go together, those of one layer or single ones.

    A block that changes the shape, or shares weights with another, is in none.
    """
    chosen = {stage.index for stage in chain.stages}
    if stages is not None:
        asked = set(check_ints("stages", stages, at_least=1))
        if not asked <= chosen:
            raise ArgumentError("stages", f"hold stages of {chain.name}: {sorted(chosen)}", stages)
        chosen = asked
    owners = {}
    for block in chain.blocks:
        for variable in block.variables:
            owners.setdefault(id(variable), set()).add((block.stage, block.index))
    # The outermost layers of which there are several, such as those of a backbone inside of a task.
    deepest = max(len(block.inside) for block in chain.blocks)
    level = next((one for one in range(deepest) if len(layers_of(chain, one)) > 1), 0)
    groups = {}
    for block in chain.blocks:
        is_inside = len(block.inside) > level
        key = id(block.inside[level]) if is_inside else (block.stage, block.index)
        groups.setdefault(key, []).append(block)
    found = []
    for group in groups.values():
        places = {(block.stage, block.index) for block in group}
        is_free = all(
            owners[id(variable)] <= places for block in group for variable in block.variables
        )
        if is_free and all(block.keeps_shape and block.stage in chosen for block in group):
            found.append(tuple(sorted(places)))
    if not found:
        raise ArgumentError(
            "model",
            "have a block that keeps the shape of the state and has weights of its own",
            received=f"{chain.name}, of which no block can go",
        )
    return found


class _Planner:
    """Takes blocks out of a network, on the images on which they are chosen."""

    def __init__(self, model, chain, data, units, batch_sizes, memory_limit, by):
        self.model, self.chain, self.data, self.units = model, chain, data, units
        self.memory_limit, self.by = memory_limit, by
        batch = next(batches_of(data, chain))
        self.costs, self.refusal = Costs(model, batch[0], batch_sizes), None
        self.inputs = batch[0]
        self.whole = None
        self.whole = self._evaluated([])

    def without(self, units):
        """Returns the route without some units."""
        pairs = [pair for unit in units for pair in unit]
        return routes.drop(self.chain, *pairs) if pairs else routes.unperturbed(self.chain)

    def steps(self):
        """Yields units in the order in which they go, with values; what is refused stays."""
        gone, left = [], list(self.units)
        while left:
            values = self._values(gone, left)
            # Of equal ones the last, which most of the network does not see.
            order = sorted(range(len(left)), key=lambda i: (_known(values[i]), -i))
            for place in order:
                if (yield left[place], values[place]):
                    gone.append(left.pop(place))
                    break
            else:
                return

    def exact_steps(self, count):
        """Yields the units of the best subset of a size, that which costs least first."""
        subsets = list(itertools.combinations(self.units, count))
        losses = self._losses([self.without(subset) for subset in subsets])
        left, gone = list(subsets[int(np.argmin([*map(_known, losses)]))]), []
        while left:
            values = self._values(gone, left)
            place = int(np.argmin([*map(_known, values)]))
            unit, value = left.pop(place), values[place]
            gone.append(unit)
            if not (yield unit, value):
                raise self.refusal

    def _losses(self, asked):
        """Returns the cross-entropies of routes on the images that are chosen on."""
        found = self._evaluated(asked)
        return weighted_mean(found.cross_entropy[1:].T, found.weights)

    def _evaluated(self, asked):
        """Returns the values of routes on the images that are chosen on, read once more."""
        asked = [self.without([]), *asked]
        found = evaluate(self.chain, self.data, asked, memory_limit=self.memory_limit)
        if self.whole is not None:
            check_read_again("data", self.chain, self.whole, found)
        return found

    def _values(self, gone, left):
        """Returns the values of the criterion of units in the network without those that went."""
        if self.by == "loss":
            whole, *others = self._losses(
                [self.without(gone), *(self.without([*gone, unit]) for unit in left)]
            )
            with np.errstate(invalid="ignore"):
                return [float(one - whole) for one in others]
        route = self.without(gone)
        chain = routes.follow(self.chain, route) if gone else self.chain
        frame = block_importance(chain, self.data, by=self.by, memory_limit=self.memory_limit)
        places = [
            (stage, application.block)
            for stage, applications in enumerate(route.stages, start=1)
            for application in applications
        ]
        values = dict(zip(places, frame[CRITERIA[self.by]], strict=True))
        return [float(sum(values[pair] for pair in unit)) for unit in left]

    def until(self, goal, steps, advance):
        """Returns pairs of the units that go and a row of the frame, until a goal is met."""
        rows = [self._row(0, ((0, 0),), 0, math.nan, self.whole) | self.costs.of_whole()]
        if goal.most_error is not None:
            self._check_chance(goal.most_error)
        else:
            warn_of_chance({"the images of the selection": self.whole})
        gone, answer = [], None
        while True:
            try:
                unit, value = steps.send(answer)
            except StopIteration:
                break
            route = self.without([*gone, unit])
            try:
                # It is measured, and given to nobody.
                made = rerouted(self.chain, route, "copy", self.inputs, is_compiled=False)
            except ArgumentError as error:
                self.refusal, answer = error, False
                continue
            answer, found = True, self._evaluated([route])
            row = self._row(len(gone) + 1, unit, len(unit), value, found)
            rows.append(row | self.costs.of(made))
            rows[0] |= self.costs.times_of_whole()
            if goal.is_exceeded(rows):
                rows.pop()
                break
            gone.append(unit)
            advance(1)
            if goal.is_met(rows):
                break
        if goal.blocks is not None and len(gone) < goal.blocks:
            raise ArgumentError(
                "blocks",
                f"be at most {len(gone)} for this network; of another one, `without_blocks` says: "
                f"{self.refusal}",
                goal.blocks,
            )
        if goal.speed is not None and not (gone and goal.is_met(rows)):
            raise ArgumentError(
                "speed",
                f"be lower: without all {len(gone)} blocks that can go, the network is only "
                f"{goal.speed_of(rows):.3g} times as fast",
                goal.speed,
            )
        if not gone:
            raise ArgumentError(
                "most_error",
                "leave a block to take out: without the first one, the error on `data` rises by "
                "more",
                goal.most_error,
            )
        return [*zip([(), *gone], rows, strict=True)]

    def _check_chance(self, most_error):
        """Raises a `ValueError` for a network that guesses, whose error cannot rise."""
        if text := chance_text(self.whole):
            raise ArgumentError("most_error", f"be left out. {text}", most_error)

    def _row(self, step, unit, blocks, value, found):
        """Returns what is known of a step before the test, from what a network does on `data`."""
        return {
            **dict(zip(PLAN_COLUMNS, (step, *unit[0], blocks), strict=True)),
            "value": value,
            "error_selection": float(weighted_mean(found.wrong[-1], found.weights)),
        }

    def judged(self, rows, test):
        """Returns the frame of a plan, with what its networks do on other images."""
        units, rows = zip(*rows, strict=True)
        asked = [self.without(units[1 : end + 1]) for end in range(len(units))]
        found = evaluate(self.chain, test, asked, memory_limit=self.memory_limit)
        warn_of_chance({"the images of the judgement": found})
        columns = outcome(found, found.wrong[0])
        left = [route.applications for route in asked]
        frame = pd.DataFrame(rows).assign(blocks_left=left, **columns)
        first = [*PLAN_COLUMNS, "value", "blocks_left", *columns, "error_selection"]
        return frame[[*first, *frame.columns.drop(first)]]


def check_read_again(name, chain, before, now, in_order=False):
    """Raises a `ValueError` if data held other images when it was read again.

    Images are told by their labels, and by the cross-entropies of a network that has not changed.

    Args:
        name: the argument that the data was.
        chain: that of the network.
        before: `RouteValues` of routes of which the first one is unperturbed.
        now: the same from another time.
        in_order: whether their order has to be the same, too.
    """
    pairs = []
    for found in (before, now):
        pair = found.labels.ravel(), found.cross_entropy[0]
        pairs.append(pair if in_order else tuple(map(np.sort, pair)))
    labels, losses = zip(*pairs, strict=True)
    share = allowed_for(chain)
    usual = np.nan_to_num(np.median(losses[0]), posinf=0.0)
    options = {"rtol": share, "atol": share * usual, "equal_nan": True}
    if not np.array_equal(*labels) or not np.allclose(*losses, **options):
        raise ArgumentError(
            name,
            "hold the same images whenever it is read. Data that is augmented does not, nor does "
            "data that is shuffled and then cut, as it is without `test`. "
            "`tfresidual.datasets.plain(train)` gives the images of a training dataset as they are",
            received="other images, or another order of them, when it was read again",
        )


def outcome(found, whole):
    """Returns the columns of a plan that judge the routes of `RouteValues`.

    Args:
        found: the values.
        whole: on which of these images the whole network is wrong.
    """
    rise, noise = rise_over(found.wrong.T, whole, found.weights)
    return {
        "error": weighted_mean(found.wrong.T, found.weights),
        "cross_entropy": weighted_mean(found.cross_entropy.T, found.weights),
        "error_rise": rise,
        "error_rise_se": noise,
    }


def _known(value):
    return math.inf if math.isnan(value) else value
