"""Pure functions that determine from measurements which depths to train next.

The search assumes that the mean scaled perturbation of a stage decreases with its depth, and that
stages hardly depend on one another: a measurement of a stage is used whatever the depths of the
others were. The result does not rely on the second assumption: it is a single trained network in
which all stages meet the rule.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tfresidual.probes.stopping_rule import depth_for

if TYPE_CHECKING:
    from typing import Literal

# The largest ratio of an extrapolated depth to the deepest measured one that fails. The depth that
# the rule gives after one measurement is not limited.
MOST_GROWTH = 6
# The smallest ratio of the two depths from which to extrapolate.
LEAST_SPREAD = 1.25
# With this number of measured depths or more, a bracket is halved instead of interpolated, because
# the measurements do not follow the laws assumed here.
MOST_INTERPOLATIONS = 6
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Measurement of one stage of a trained network.

    Attributes:
        blocks: int, number of blocks of the stage.
        counted: int, number of these blocks that keep the shape of the state: L in the rule.
        distance: float, scaled computational distance, the sum over the counted blocks.
    """

    blocks: int
    counted: int
    distance: float

    def meets(self, epsilon: float) -> bool:
        """Returns whether the mean scaled perturbation is epsilon or less."""
        return self.counted > 0 and depth_for(self.distance, epsilon) <= self.counted


@dataclasses.dataclass(frozen=True)
class Plan:
    """Conclusion from the finished trials.

    Attributes:
        status: `"searching"`, `"found"`, `"not satisfied"` (a stage does not meet the rule at its
            largest depth) or `"failed"` (the remaining settings could not be trained).
        proposals: settings to train next, tuples of ints, the most informative first. All but the
            first are for training several networks at once.
        best: the shallowest trained setting in which all stages meet the rule, or `None`.
        failing: list of the deepest depth of every stage that is known not to meet the rule (one
            less than the smallest possible depth if there is none).
        smallest: list of the smallest possible depths: those allowed, with a counted block.
        capped: list of the stages, from 1, that do not meet the rule at their largest depth.
    """

    status: Literal["searching", "found", "not satisfied", "failed"]
    proposals: list[tuple[int, ...]]
    best: tuple[int, ...] | None
    failing: list[int]
    smallest: list[int]
    capped: list[int]


def plan(measured, failed, start, limits, epsilon, tolerance=0):
    """Returns what to train next, or the result of the search, a `Plan`.

    Args:
        measured: list of the finished trials in the order in which they were started, each a list
            of `Measurement`, one per stage.
        failed: list of settings, tuples of ints, that could not be trained.
        start: tuple of ints, the first setting.
        limits: list of pairs of ints, the smallest and the largest depth of each stage.
        epsilon: float over 0, of the stopping rule.
        tolerance: int, the number of blocks by which a stage may be deeper than the smallest depth.
    """
    trained = [tuple(m.blocks for m in trial) for trial in measured]
    tried = {*trained, *failed}
    feasible = [
        setting
        for setting, trial in zip(trained, measured, strict=True)
        if all(m.meets(epsilon) for m in trial)
        # The limits may have changed since it was trained.
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
    # A setting at least as deep in every stage as one that could not be trained is assumed to be
    # untrainable too, unless a deeper one could be trained.
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
        # A stage with no further candidate uses its first one.
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
    """Returns the setting, moved half-way to the failing depths until it may be trainable."""
    while any(_is_as_deep(setting, other) for other in too_much):
        half = tuple(
            max(low + 1, (low + depth) // 2) for low, depth in zip(failing, setting, strict=True)
        )
        if half == setting:
            return None
        setting = half
    return setting


def _beside(setting, measured, failed, best, limits, epsilon):
    """Returns settings near one that failed the rule, due to noise or the other stages."""
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
    """Bracket of one stage: its deepest failing depth and the shallowest one above that meets."""

    def __init__(self, measured, best, start, smallest, largest, epsilon, tolerance):
        self.measured = measured
        self.start, self.largest = start, largest
        # A stage without a counted block has no mean.
        self.smallest = max([smallest, *(m.blocks - m.counted + 1 for m in measured)])
        self.epsilon, self.tolerance = epsilon, tolerance
        failing = [
            m.blocks for m in measured if not m.meets(epsilon) and (best is None or m.blocks < best)
        ]
        self.low = min(max([self.smallest - 1, *failing]), largest)
        meeting = [m.blocks for m in measured if m.meets(epsilon)]
        self.high = min((depth for depth in meeting if self.low < depth <= largest), default=None)

    def candidates(self):
        """Returns the depths to try, the most informative first."""
        if self.high is not None and self.high - self.low <= 1 + self.tolerance:
            return [self.high]
        first, last = self.low + 1, self.largest if self.high is None else self.high - 1
        if first > last:
            # Due to noise, the stage fails at its largest depth: there is no deeper one.
            return [self.largest if self.high is None else self.high]
        if not self.measured:
            doubled = [min(self.start * 2**power, last) for power in range(8)]
            return list(dict.fromkeys(min(max(depth, first), last) for depth in doubled))
        depth = min(max(self._expected(first, last), first), last)
        # The next shallower depth must fail in the end; the next deeper one helps if the estimate
        # was too low. Then come the depths half-way to either side.
        around = [depth, depth - 1, depth + 1, (self.low + depth) // 2, (depth + last + 1) // 2]
        return list(dict.fromkeys(other for other in around if first <= other <= last))

    def _expected(self, first, last):
        """Returns the smallest depth expected to meet the rule, or a depth to try below `high`."""
        if self.high is not None:
            # Only a depth more than `tolerance` below a known one that meets the rule is an
            # improvement.
            last = max(first, last - self.tolerance)
            if len({m.blocks for m in self.measured}) >= MOST_INTERPOLATIONS:
                return (first + last) // 2
        points, offset = self._points()
        depths = np.arange(first, last + 1)
        counted = np.maximum(depths - offset, 0)
        # Keeps exact multiples of epsilon exact in spite of rounding.
        most = self.epsilon * counted * (1 + ROUNDING)
        meets = (counted > 0) & (expected_distance(points, counted) <= most)
        expected = int(depths[np.argmax(meets)]) if meets.any() else last
        if self.high is None and len(points) > 1:
            return min(expected, MOST_GROWTH * self.low)
        return expected

    def _points(self):
        """Returns the one or two measurements to use as pairs, and the count of other blocks."""
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
            # With two depths close together, noise would outweigh the trend. If the limits have
            # changed, the depth known to fail was perhaps not measured.
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
    """Returns the scaled distance expected at other depths, from that at one or two depths.

    - One measurement: the distance stays constant, as in the paper's rule.
    - Two, and the distance grew: it saturates, `D (1 - exp(-k L))`, as in figure 6 of the paper.
      If it grew in proportion to L or faster, it continues in proportion.
    - Two, and the distance shrank: a power of L.

    Args:
        points: list of up to two pairs of a depth over 0 and a scaled distance, sorted by depth.
        depths: NumPy array of ints.
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
    """Returns the k at which 1 - exp(-k L) grows by the factor `growth` between the depths."""
    # Growth falls from last_depth / depth to 1 as k goes from 0 to infinity.
    low, high = 0.0, 800.0 / depth
    for _ in range(200):
        middle = (low + high) / 2
        if math.expm1(-middle * last_depth) / math.expm1(-middle * depth) > growth:
            low = middle
        else:
            high = middle
    return (low + high) / 2
