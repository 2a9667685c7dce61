"""Which depths to train next, from what was measured: pure functions on numbers.

The search assumes of every stage that its mean scaled perturbation falls as the stage gets deeper,
and that the stages hardly depend on one another: what a stage measured at some depth counts for it
whatever the depths of the others were. The answer of a search does not rest on the second
assumption: it is one trained network in which all stages meet the rule.
"""

import dataclasses
import math

import numpy as np

from tfresidual.tuning.stopping_rule import depth_for

# An extrapolation goes at most so many times as deep as what was measured; the rule itself, after
# one measurement, is not held back.
MOST_GROWTH = 6
# Two depths to extrapolate from are so many times apart, at least.
LEAST_SPREAD = 1.25
# From so many measured depths on a bracket is halved, not interpolated: the measurements follow no
# law that is known here.
MOST_INTERPOLATIONS = 6
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one trained network says of one of its stages.

    Attributes:
        blocks: int, blocks of the stage.
        counted: int, those of them that keep the shape of the state: the rule's L.
        distance: float, scaled computational distance, the sum over these blocks.
    """

    blocks: int
    counted: int
    distance: float

    def meets(self, epsilon):
        """Whether the mean scaled perturbation is epsilon or less."""
        return self.counted > 0 and depth_for(self.distance, epsilon) <= self.counted


@dataclasses.dataclass(frozen=True)
class Plan:
    """What follows from the finished trials.

    Attributes:
        status: `"searching"`, `"found"`, `"not satisfied"` (a stage does not meet the rule at its
            largest depth) or `"failed"` (what is left to try could not be trained).
        proposals: settings to train next, the one that tells the most first; tuples of ints. More
            than one is for those who train several at once.
        best: the shallowest setting trained in which all stages meet the rule, or `None`.
        failing: list with the deepest depth of every stage that is known not to meet the rule
            (one less than the smallest possible, where none is).
        smallest: list with the smallest possible depth of every stage: the one allowed, or the
            first with a block that is counted.
        capped: list of the stages, from 1, that do not meet the rule at their largest depth.
    """

    status: str
    proposals: list
    best: tuple | None
    failing: list
    smallest: list
    capped: list


def plan(measured, failed, start, limits, epsilon, tolerance=0):
    """What to train next, or what was found.

    Args:
        measured: list of the finished trials in the order in which they began, each a list of
            `Measurement`, one per stage.
        failed: list of settings, tuples of ints, that could not be trained.
        start: tuple of ints, the setting to begin with.
        limits: list of pairs of ints, the smallest and the largest depth of each stage.
        epsilon: float over 0, of the stopping rule.
        tolerance: int, by how many blocks a stage may be deeper than the smallest depth.

    Returns:
        A `Plan`.
    """
    trained = [tuple(m.blocks for m in trial) for trial in measured]
    tried = {*trained, *failed}
    feasible = [
        setting
        for setting, trial in zip(trained, measured, strict=True)
        if all(m.meets(epsilon) for m in trial)
        # The limits may be others than when it was trained.
        and all(low <= d <= high for d, (low, high) in zip(setting, limits, strict=True))
    ]
    best = min(feasible, key=sum, default=None)
    stages = [
        _Stage(
            [trial[place] for trial in measured],
            None if best is None else best[place],
            start[place],
            smallest,
            largest,
            epsilon,
            tolerance,
        )
        for place, (smallest, largest) in enumerate(limits)
    ]
    # What is as deep in every stage as something that could not be trained cannot be either, unless
    # something deeper could.
    too_much = [f for f in failed if not any(_is_as_deep(setting, f) for setting in trained)]
    failing = [stage.low for stage in stages]
    known = (best, failing, [stage.smallest for stage in stages])
    if best is not None and all(
        depth - low <= 1 + tolerance for depth, low in zip(best, failing, strict=True)
    ):
        return Plan("found", [], *known, [])
    capped = [place for place, stage in enumerate(stages, start=1) if stage.low >= stage.largest]
    if capped and best is None:
        return Plan("not satisfied", [], *known, capped)
    ranked = [stage.candidates() for stage in stages]
    wanted = [
        # A stage with no further candidate stays at its first.
        tuple(depths[place if place < len(depths) else 0] for depths in ranked)
        for place in range(max(map(len, ranked)))
    ]
    if best is not None and all(setting in tried for setting in wanted):
        wanted = _beside(wanted[0], measured, failed, best, limits, epsilon)
    possible = [_shallower(setting, failing, too_much) for setting in wanted]
    proposals = [s for s in dict.fromkeys(possible) if s is not None and s not in tried]
    if proposals:
        return Plan("searching", proposals, *known, capped)
    return Plan("found" if best is not None else "failed", [], *known, capped)


def _is_as_deep(setting, other):
    return all(depth >= than for depth, than in zip(setting, other, strict=True))


def _shallower(setting, failing, too_much):
    """The setting, or one between it and what is known to fail the rule that may be trainable.

    Half-way, again and again: one block less would hardly do. `None` where there is none.
    """
    while any(_is_as_deep(setting, other) for other in too_much):
        half = tuple(
            max(low + 1, (low + depth) // 2) for low, depth in zip(failing, setting, strict=True)
        )
        if half == setting:
            return None
        setting = half
    return setting


def _beside(setting, measured, failed, best, limits, epsilon):
    """A setting near one that was tried and did not meet the rule, against what was expected.

    By noise, or because of its other depths: the stages that failed in it get deeper, as long as
    the whole stays shallower than the best.
    """
    trials = {tuple(m.blocks for m in trial): trial for trial in measured}
    while setting in trials and setting not in failed:
        setting = tuple(m.blocks + (not m.meets(epsilon)) for m in trials[setting])
        is_inside = all(
            depth <= largest for depth, (_, largest) in zip(setting, limits, strict=True)
        )
        if not is_inside or sum(setting) >= sum(best):
            return []
    return [] if setting in failed else [setting]


class _Stage:
    """One stage between the deepest depth that fails and the shallowest above it that meets.

    Where a whole network meets the rule, what fails at that network's depth or deeper (by noise,
    or by what other stages did) no longer counts.
    """

    def __init__(self, measured, best, start, smallest, largest, epsilon, tolerance):
        self.measured = measured
        self.start, self.largest = start, largest
        # A stage without a block that is counted has no mean.
        self.smallest = max([smallest, *(m.blocks - m.counted + 1 for m in measured)])
        self.epsilon, self.tolerance = epsilon, tolerance
        failing = [
            m.blocks for m in measured if not m.meets(epsilon) and (best is None or m.blocks < best)
        ]
        self.low = min(max([self.smallest - 1, *failing]), largest)
        meeting = [m.blocks for m in measured if m.meets(epsilon)]
        self.high = min((depth for depth in meeting if self.low < depth <= largest), default=None)

    def candidates(self):
        """Depths to try, the one that tells the most first."""
        if self.high is not None and self.high - self.low <= 1 + self.tolerance:
            return [self.high]
        first, last = self.low + 1, self.largest if self.high is None else self.high - 1
        if first > last:
            # Of a stage that fails at its largest depth, in noise: there is nothing deeper.
            return [self.largest if self.high is None else self.high]
        if not self.measured:
            doubled = [min(self.start * 2**power, last) for power in range(8)]
            return list(dict.fromkeys(min(max(depth, first), last) for depth in doubled))
        depth = min(max(self._expected(first, last), first), last)
        # The next shallower one must fail in the end, the next deeper one helps where the guess
        # fell short; then halfway to either side.
        around = [depth, depth - 1, depth + 1, (self.low + depth) // 2, (depth + last + 1) // 2]
        return list(dict.fromkeys(other for other in around if first <= other <= last))

    def _expected(self, first, last):
        """The smallest depth expected to meet the rule, or the most telling below a known one."""
        if self.high is not None:
            # A known depth that meets must be undercut by what makes the difference.
            last = max(first, last - self.tolerance)
            if len({m.blocks for m in self.measured}) >= MOST_INTERPOLATIONS:
                return (first + last) // 2
        points, offset = self._points()
        depths = np.arange(first, last + 1)
        counted = np.maximum(depths - offset, 0)
        # What is an exact multiple of epsilon stays one in floats.
        most = self.epsilon * counted * (1 + ROUNDING)
        meets = (counted > 0) & (expected_distance(points, counted) <= most)
        expected = int(depths[np.argmax(meets)]) if meets.any() else last
        if self.high is None and len(points) > 1:
            return min(expected, MOST_GROWTH * self.low)
        return expected

    def _points(self):
        """The one or two measurements to go by, as pairs, and how many blocks are not counted."""
        by_depth = {}
        for m in sorted(self.measured, key=lambda m: m.blocks):
            by_depth.setdefault(m.blocks, []).append(m)
        depths = list(by_depth)
        if self.low in by_depth and self.high is not None:
            depths = [self.low, self.high]
        elif self.high is not None:
            spread = [depth for depth in depths if depth >= self.high * LEAST_SPREAD]
            depths = [self.high, *spread[:1]]
        else:
            # Of two depths close to one another the noise would tell more than the law.
            # Where the limits have changed, what is known to fail was perhaps not measured.
            last = max((depth for depth in depths if depth <= self.low), default=depths[0])
            spread = [depth for depth in depths if depth <= last / LEAST_SPREAD]
            depths = [*spread[-1:], last]
        counted = [by_depth[depth][0].counted for depth in depths]
        distances = [
            math.fsum(m.distance for m in by_depth[depth]) / len(by_depth[depth])
            for depth in depths
        ]
        points = [point for point in zip(counted, distances, strict=True) if point[0] > 0]
        return points, depths[-1] - counted[-1]


def expected_distance(points, depths):
    """The scaled distance expected at other depths, from that at one or two.

    - One measurement: the distance stays what it is, as in the paper's rule.
    - Two, and the distance grew: it saturates, `D (1 - exp(-k L))`, as in figure 6 of the paper.
      Where it grew in proportion to L or faster, it goes on in proportion.
    - Two, and the distance shrank: a power of L.

    Args:
        points: list of up to two pairs of a depth over 0 and a scaled distance, by depth.
        depths: NumPy array of ints.

    Returns:
        A NumPy array of floats.
    """
    depths = np.asarray(depths, float)
    if not points:
        return np.full(depths.shape, np.inf)
    (last_depth, last) = points[-1]
    if len(points) == 1 or min(points[0][1], last) <= 0:
        return np.full(depths.shape, float(last))
    (depth, distance) = points[0]
    growth, ratio = last / distance, last_depth / depth
    if growth >= ratio:
        return last / last_depth * depths
    if growth <= 1:
        with np.errstate(divide="ignore"):
            return last * (depths / last_depth) ** (math.log(growth) / math.log(ratio))
    rate = _saturation(depth, last_depth, growth)
    return last * np.expm1(-rate * depths) / math.expm1(-rate * last_depth)


def _saturation(depth, last_depth, growth):
    """The k at which 1 - exp(-k L) grows by `growth` from one depth to the other."""
    # Growth falls from last_depth / depth to 1 as k goes from 0 to infinity.
    low, high = 0.0, 800.0 / depth
    for _ in range(200):
        middle = (low + high) / 2
        if math.expm1(-middle * last_depth) / math.expm1(-middle * depth) > growth:
            low = middle
        else:
            high = middle
    return (low + high) / 2
