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
from tfresidual.probes.round_blocks import rounding, savings
from tfresidual.routing import evaluate, routes
from tfresidual.routing.agreement import allowed_for
from tfresidual.routing.costs import Costs, name_of
from tfresidual.routing.data import batches_of, first_batch
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.routing.rounding import CHANNEL, WHOLE, bytes_of, check_bits, kernels_by_block
from tfresidual.surgery.graphs import layers_of
from tfresidual.surgery.models import GONE, chain_of, rerouted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Frame, Images
    from tfresidual.routing import Chain

# Subsets that `exact` compares at most.
MOST_SUBSETS = 5000
PLAN_COLUMNS = ("step", "stage", "block", "blocks")
MIB = 2**20


def plan(
    model: Chain | ChainSource,
    data: Images,
    *,
    blocks: int | None = None,
    speed: float | None = None,
    most_error: float | None = None,
    most_bytes: int | None = None,
    bits: Iterable[int] | None = None,
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

    With `bits`, weights may also be rounded, as by `tfresidual.probes.round_blocks`: in every step
    one block goes or gets fewer bits, that by which the loss rises least per byte. Blocks that
    change the shape of the state may be rounded, too.

    Example:

    >>> steps = plan(net, test, blocks=2, by="l2_ratio", batch_sizes=())
    >>> steps["blocks_left"].tolist()
    [6, 5, 4]
    >>> smaller = tfresidual.surgery.without_blocks(net, steps)

    Args:
        model: a network as `without_blocks` takes it, or its chain, compiled with a loss.
        data: images and labels to choose on, see `tfresidual.definitions.types.Images`. It is read
            again in every step, and must hold the same images each time.
        blocks: int, how many blocks go, or layers that hold them. Give this, `speed`, `most_error`
            or `most_bytes`.
        speed: float over 1, how many times as fast the network is to be, by the measured time at
            the largest of `batch_sizes`.
        most_error: float, 0 or more: the plan ends before the error on `data` rises by more than
            this over that of the whole network, which must be better than chance.
        most_bytes: int, what the weights of all layers may take at the end; with `bits`.
        bits: ints from 2 to 31, such as `(8, 4)`, that blocks may be rounded to, one scale per
            output channel; with `most_error` or `most_bytes`, and `by="loss"`.
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
          Rounding changes none of these;
        - with `bits`, also `bits`, those of the block after the step, 32 if it is whole and 0 if it
          goes, and `bytes`, those of all weights as they are stored. The value is per MiB.

    Raises:
        ValueError: if an argument cannot be used, or not enough blocks can go.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431; Men et al. 2024,
        https://arxiv.org/abs/2403.03853; Gromov et al. 2024, https://arxiv.org/abs/2403.17887.
    """
    check_choice("by", by, tuple(CRITERIA))
    check_memory_limit(memory_limit)
    batch_sizes = tuple(batch_sizes) if np.iterable(batch_sizes) else batch_sizes
    goal = Goal(blocks, speed, most_error, most_bytes, max(batch_sizes, default=0))
    if bits is not None:
        bits = check_bits(bits)
        if by != "loss" or WHOLE in bits or (blocks, speed) != (None, None):
            raise ArgumentError(
                "bits",
                f"be below {WHOLE}, and given with by='loss' and `most_error` or `most_bytes`",
                bits,
            )
    elif most_bytes is not None:
        raise ArgumentError("bits", "be given with `most_bytes`", bits)
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
    units = _units(chain, stages, bits is not None)
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
    planner = _Planner(model, chain, data, units, batch_sizes, memory_limit, by, bits)
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
    most_bytes: int | None = None
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
        check_int("most_bytes", self.most_bytes, at_least=1, or_none=True)

    def is_met(self, rows):
        """Returns whether the last of some rows ends the plan."""
        if self.most_bytes is not None:
            return rows[-1]["bytes"] <= self.most_bytes
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


def _units(chain, stages, with_changes=False):
    """Returns tuples of pairs (stage, block) that go together, those of one layer or single ones.

    A block that shares weights with another is in none, nor is one that changes the shape without
    `with_changes`.
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
        can_go = with_changes or all(block.keeps_shape for block in group)
        if is_free and can_go and all(block.stage in chosen for block in group):
            found.append(tuple(sorted(places)))
    if not found:
        raise ArgumentError(
            "model",
            "have a block that keeps the shape of the state and has weights of its own",
            received=f"{chain.name}, of which no block can go",
        )
    return found


class _Planner:
    """Takes blocks out of a network, on the images on which they are chosen.

    What is done in a step is a pair of a unit and the bits of its weights from then on, `GONE` if
    it goes.
    """

    def __init__(self, model, chain, data, units, batch_sizes, memory_limit, by, bits=None):
        self.model, self.chain, self.data, self.units = model, chain, data, units
        self.memory_limit, self.by, self.bits = memory_limit, by, bits
        batch = next(batches_of(data, chain))
        self.costs, self.refusal = Costs(model, batch[0], batch_sizes), None
        self.inputs = batch[0]
        self.options = [(unit, GONE) for unit in units]
        if bits is not None:
            self._prepare_rounding()
        self.whole = None
        self.whole = self._evaluated([])

    def _prepare_rounding(self):
        kernels = kernels_by_block(self.chain)
        self.rounded = {
            (place, count): rounding(own, count, CHANNEL)
            for place, own in kernels.items()
            for count in self.bits
        }
        blocks = {(block.stage, block.index): block for block in self.chain.blocks}
        saved = {count: savings(kernels, count, CHANNEL) for count in self.bits}
        saved[GONE] = {
            place: sum(map(bytes_of, block.variables)) for place, block in blocks.items()
        }
        self.saved = {
            (unit, count): sum(own[place] for place in unit)
            for count, own in saved.items()
            for unit in self.units
        }
        self.options = [
            (unit, count)
            for (unit, count), size in self.saved.items()
            if size > 0 and (count != GONE or all(blocks[place].keeps_shape for place in unit))
        ]

    def bytes_after(self, steps):
        """Returns the bytes of all weights after some steps."""
        whole = sum(map(bytes_of, self.model.weights))
        return whole - sum(self.saved[step] for step in dict(steps).items())

    def after(self, steps):
        """Returns the route after some steps, of which the last one of a unit counts."""
        bits_of = {pair: bits for unit, bits in dict(steps).items() for pair in unit}
        pairs = [pair for pair, bits in bits_of.items() if bits == GONE]
        route = routes.drop(self.chain, *pairs) if pairs else routes.unperturbed(self.chain)
        rounded = {pair: self.rounded[pair, bits] for pair, bits in bits_of.items() if bits}
        return routes.with_weights(route, rounded, route.name) if rounded else route

    def steps(self):
        """Yields steps in their order, with values; what is refused stays."""
        done, left = [], list(self.options)
        while left:
            values = self._values(done, left)
            # Of equal ones the last, which most of the network does not see.
            order = sorted(range(len(left)), key=lambda i: (_known(values[i]), -i))
            for place in order:
                if (yield left[place], values[place]):
                    unit, bits = left[place]
                    done.append((unit, bits))
                    left = [one for one in left if one[0] != unit or one[1] < bits]
                    break
            else:
                return

    def exact_steps(self, count):
        """Yields the steps of the best subset of a size, that which costs least first."""
        subsets = list(itertools.combinations(self.options, count))
        losses = self._losses([self.after(subset) for subset in subsets])
        left, gone = list(subsets[int(np.argmin([*map(_known, losses)]))]), []
        while left:
            values = self._values(gone, left)
            place = int(np.argmin([*map(_known, values)]))
            step, value = left.pop(place), values[place]
            gone.append(step)
            if not (yield step, value):
                raise self.refusal

    def _losses(self, asked):
        """Returns the cross-entropies of routes on the images that are chosen on."""
        found = self._evaluated(asked)
        return weighted_mean(found.cross_entropy[1:].T, found.weights)

    def _evaluated(self, asked):
        """Returns the values of routes on the images that are chosen on, read once more."""
        asked = [self.after([]), *asked]
        found = evaluate(self.chain, self.data, asked, memory_limit=self.memory_limit)
        if self.whole is not None:
            check_read_again("data", self.chain, self.whole, found)
        return found

    def _values(self, done, left):
        """Returns the values of the criterion of steps in the network after those done."""
        if self.by == "loss":
            whole, *others = self._losses(
                [self.after(done), *(self.after([*done, step]) for step in left)]
            )
            with np.errstate(invalid="ignore"):
                rises = [float(one - whole) for one in others]
            if self.bits is None:
                return rises
            now = self.bytes_after(done)
            saved = [(now - self.bytes_after([*done, step])) / MIB for step in left]
            pairs = zip(rises, saved, strict=True)
            return [rise / size if size > 0 else math.inf for rise, size in pairs]
        route = self.after(done)
        chain = routes.follow(self.chain, route) if done else self.chain
        frame = block_importance(chain, self.data, by=self.by, memory_limit=self.memory_limit)
        places = [
            (stage, application.block)
            for stage, applications in enumerate(route.stages, start=1)
            for application in applications
        ]
        values = dict(zip(places, frame[CRITERIA[self.by]], strict=True))
        return [float(sum(values[pair] for pair in unit)) for unit, _ in left]

    def until(self, goal, steps, advance):
        """Returns pairs of steps and a row of the frame, until a goal is met."""
        row = self._row(0, (((0, 0),), WHOLE), 0, math.nan, self.whole)
        rows = [row | self._stored([]) | self.costs.of_whole()]
        if goal.most_bytes is not None and goal.is_met(rows):
            raise ArgumentError(
                "most_bytes", f"be below the {rows[0]['bytes']:,} of the network", goal.most_bytes
            )
        if goal.most_error is not None:
            self._check_chance(goal.most_error)
        else:
            warn_of_chance({"the images of the selection": self.whole})
        done, answer, costs = [], None, {}
        while True:
            try:
                step, value = steps.send(answer)
            except StopIteration:
                break
            try:
                costs = self._costs([*done, step], costs)
            except ArgumentError as error:
                self.refusal, answer = error, False
                continue
            answer, found = True, self._evaluated([self.after([*done, step])])
            row = self._row(len(done) + 1, step, len(step[0]), value, found)
            rows.append(row | self._stored([*done, step]) | costs)
            rows[0] |= self.costs.times_of_whole()
            if goal.is_exceeded(rows):
                rows.pop()
                break
            done.append(step)
            advance(1)
            if goal.is_met(rows):
                break
        if goal.blocks is not None and len(done) < goal.blocks:
            raise ArgumentError(
                "blocks",
                f"be at most {len(done)} for this network; of another one, `without_blocks` says: "
                f"{self.refusal}",
                goal.blocks,
            )
        if goal.speed is not None and not (done and goal.is_met(rows)):
            raise ArgumentError(
                "speed",
                f"be lower: without all {len(done)} blocks that can go, the network is only "
                f"{goal.speed_of(rows):.3g} times as fast",
                goal.speed,
            )
        if goal.most_bytes is not None and not goal.is_met(rows):
            raise ArgumentError(
                "most_bytes",
                f"be {rows[-1]['bytes']:,} or more, what is left if all that can go is gone",
                goal.most_bytes,
            )
        if not done:
            raise ArgumentError(
                "most_error",
                "leave a block to take out: without the first one, the error on `data` rises by "
                "more",
                goal.most_error,
            )
        return [*zip([(), *done], rows, strict=True)]

    def _costs(self, steps, before):
        """Returns the costs after some steps; rounding leaves those `before` as they are."""
        if steps[-1][1] != GONE:
            return before or self.costs.of_whole() | self.costs.times_of_whole()
        gone = [step for step in steps if step[1] == GONE]
        # It is measured, and given to nobody.
        made = rerouted(self.chain, self.after(gone), "copy", self.inputs, is_compiled=False)
        return self.costs.of(made)

    def _stored(self, steps):
        """Returns the column of the bytes after some steps, if weights may be rounded."""
        return {} if self.bits is None else {"bytes": self.bytes_after(steps)}

    def _check_chance(self, most_error):
        """Raises a `ValueError` for a network that guesses, whose error cannot rise."""
        if text := chance_text(self.whole):
            raise ArgumentError("most_error", f"be left out. {text}", most_error)

    def _row(self, number, step, blocks, value, found):
        """Returns what is known of a step before the test, from what a network does on `data`."""
        (first, *_), bits = step
        return {
            **dict(zip(PLAN_COLUMNS, (number, *first, blocks), strict=True)),
            **({} if self.bits is None else {"bits": bits}),
            "value": value,
            "error_selection": float(weighted_mean(found.wrong[-1], found.weights)),
        }

    def judged(self, rows, test):
        """Returns the frame of a plan, with what its networks do on other images."""
        steps, rows = zip(*rows, strict=True)
        asked = [self.after(steps[1 : end + 1]) for end in range(len(steps))]
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
