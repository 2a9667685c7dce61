"""How a published statement is judged: numbers with their noise, cases, gates, controls, classes.

A number is `Measured` with its standard error. Whether it is over or under a bound is answered by
`True`, `False`, or `None` where the bound is within `Z` standard errors. A `Case` is what one
network, seed or data set answers. The class of a statement follows from its cases, from those of
the same networks before their training, and from the gate: what networks must have learnt, or be,
to decide it at all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

# Standard errors by which a number must be over or under a bound.
Z = 3.0
# Draws of which the standard error of a statistic is taken.
DRAWS = 200
# Classes.
CONFIRMED, REFUTED, IN_PART = "confirmed", "refuted", "in part"
WITHIN_NOISE, ALSO_UNTRAINED = "within noise", "also untrained"
UNDECIDABLE, NOT_RUN = "not decidable here", "not run"
CLASSES = (CONFIRMED, IN_PART, WITHIN_NOISE, ALSO_UNTRAINED, REFUTED, UNDECIDABLE, NOT_RUN)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A number and its standard error, NaN where the noise was not measured."""

    value: float
    se: float = math.nan

    def over(self, bound):
        """Returns whether it is over a bound, `None` if that is not known beyond noise."""
        if not (self.known and math.isfinite(bound)):
            return None
        distance = self.value - bound
        return None if abs(distance) <= Z * self.se else bool(distance > 0)

    def under(self, bound):
        """Returns whether it is under a bound, `None` if that is not known beyond noise."""
        return no(self.over(bound))

    def within(self, low, high):
        """Returns whether it is between two bounds."""
        return every(self.over(low), self.under(high))

    def not_over(self, bound):
        """Returns whether it is not over a bound by more than noise, `None` if noise is unknown."""
        return no(self.over(bound)) is not False if self.known else None

    @property
    def known(self):
        """Whether there is a number and its noise."""
        return not (math.isnan(self.value) or math.isnan(self.se))

    @property
    def interval(self):
        """The values within `Z` standard errors: a bound outside of them is beyond noise."""
        return self.value - Z * self.se, self.value + Z * self.se

    def __sub__(self, other):
        """The difference from a number, or from one with noise of its own."""
        if isinstance(other, Measured):
            return Measured(self.value - other.value, math.hypot(self.se, other.se))
        return Measured(self.value - other, self.se)

    def __truediv__(self, other):
        """The quotient, by a number or one with noise of its own."""
        if not isinstance(other, Measured):
            return Measured(self.value / other, self.se / abs(other))
        if not other.value:
            return Measured(math.nan)
        value = self.value / other.value
        return Measured(value, math.hypot(self.se, value * other.se) / abs(other.value))

    def __mul__(self, factor):
        return Measured(self.value * factor, self.se * abs(factor))


def no(answer):
    """Returns the opposite answer."""
    return None if answer is None else not answer


def every(*answers):
    """Returns whether all answers are true: false if any is false, else `None` if any is open."""
    answers = [None if one is None else bool(one) for one in answers]
    return False if False in answers else None if None in answers else True


def share(part, images):
    """Returns a share of images with its binomial standard error, over 0 for none and all, too."""
    if math.isnan(part):
        return Measured(math.nan)
    # Two images more of each kind, so that 0 of 2,000 is not known without error.
    smoothed = (part * images + 2) / (images + 4)
    return Measured(float(part), math.sqrt(smoothed * (1 - smoothed) / (images + 4)))


def paired(error, whole, agreement, images):
    """Returns the change of an error on the same images, from that of the whole network.

    Images whose prediction stays add nothing to its noise; `agreement` is their share.
    """
    change, moved = float(error - whole), max(float(1 - agreement), 1 / images)
    return Measured(change, math.sqrt(max(moved - change**2, 1 / images) / images))


def mean_of(values):
    """Returns the mean over seeds, or pairs, with its standard error; of three and more."""
    values = np.asarray([getattr(one, "value", one) for one in values], float)
    se = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 2 else math.nan
    return Measured(float(values.mean()) if len(values) else math.nan, float(se))


def sampled(statistic, *columns):
    """Returns a statistic of values with noise of their own, and its standard error.

    The standard error is that over `DRAWS` draws of all values. Values of different blocks are
    drawn independently; where they are measured on the same images, that overstates the noise of
    their differences.

    Args:
        statistic: function from arrays of values to a number.
        *columns: pairs of an array of values and one of their standard errors.
    """
    columns = [tuple(np.asarray(part, float) for part in column) for column in columns]
    value = float(statistic(*(values for values, _ in columns)))
    # A value that is missing has no noise; noise that is missing makes the statistic's unknown.
    if any(np.isnan(se[~np.isnan(values)]).any() for values, se in columns):
        return Measured(value)
    rng = np.random.default_rng(0)
    drawn = [
        statistic(*(values + np.nan_to_num(se) * rng.standard_normal(values.shape)
                    for values, se in columns))
        for _ in range(DRAWS)
    ]  # fmt: skip
    return Measured(value, float(np.std(drawn, ddof=1)))


def ranks(x, y):
    """Returns the rank correlation of two arrays, over the places where both have a value."""
    x, y = (np.asarray(values, float) for values in (x, y))
    is_known = ~(np.isnan(x) | np.isnan(y))
    if not is_known.any():
        return math.nan
    # Of the ranks, as pandas computes it, without the frames that take most of its time.
    one, two = (pd.Series(values[is_known]).rank().to_numpy() for values in (x, y))
    one, two = one - one.mean(), two - two.mean()
    size = math.sqrt(one @ one) * math.sqrt(two @ two)
    return one @ two / size if size else math.nan


def slope(x, y):
    """Returns the slope of a line through points, with the standard error of its fit.

    With three points and more that differ in `x`; otherwise it has no value.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    spread = ((x - x.mean()) ** 2).sum() if len(x) else 0.0
    if len(x) < 3 or not spread:
        return Measured(math.nan)
    found = ((x - x.mean()) * y).sum() / spread
    left = y - y.mean() - found * (x - x.mean())
    return Measured(float(found), float(math.sqrt((left**2).sum() / (len(x) - 2) / spread)))


@dataclasses.dataclass(frozen=True)
class Case:
    """What one network, seed or data set says about a statement.

    Attributes:
        name: which one.
        effect: the number that shows how much.
        holds: whether the statement is true of it, `None` if that is within noise.
        beside: what else decides that, as text, or nothing.
    """

    name: Any
    effect: Measured
    holds: bool | None
    beside: str = ""


@dataclasses.dataclass(frozen=True)
class Judged:
    """What the frames of one size say about a statement.

    Attributes:
        kind: one of `CLASSES`.
        size: the size of the networks.
        cases: their cases.
        untrained: cases of the same networks before their training; empty if there are none.
        why: the gate that is not met and what would meet it, or why nothing was run.
    """

    kind: str
    size: str
    cases: tuple[Case, ...] = ()
    untrained: tuple[Case, ...] = ()
    why: str = ""


def class_of(cases: Iterable[Case], untrained: Iterable[Case] = (), gate: str = ""):
    """Returns the class of a statement, from its cases.

    Args:
        cases: the cases; with one without a value, it holds at most in part.
        untrained: cases of the networks before their training, if training is to make the statement
            true.
        gate: the gate that is not met; empty if all are.
    """
    cases = tuple(cases)
    answers = [case.holds for case in cases if has_value(case)]
    if gate or not answers:
        return UNDECIDABLE
    if all(answers) and len(answers) < len(cases):
        return IN_PART
    if all(answers):
        before = [case.holds for case in untrained if has_value(case)]
        return ALSO_UNTRAINED if before and all(before) else CONFIRMED
    if any(answers):
        return IN_PART
    return REFUTED if all(answer is False for answer in answers) else WITHIN_NOISE


def has_value(case):
    """Returns whether the effect of a case is a number; infinity is one."""
    return not math.isnan(case.effect.value)
