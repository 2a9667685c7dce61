"""The statements on frames made by hand: as the paper has it, and with one thing otherwise."""

import numpy as np
import papers
import perturbation_from_identity
import pytest
from catalogue import STATEMENTS
from judging import (
    ALSO_UNTRAINED,
    CONFIRMED,
    IN_PART,
    REFUTED,
    UNDECIDABLE,
    WITHIN_NOISE,
    class_of,
)
from reference.statement_cases.of_ic import IC
from reference.statement_cases.of_ii import II
from reference.statement_cases.of_im import IM
from reference.statement_cases.of_pi import PI

papers.load()
TOLD = II | IC | PI | IM


def judged(name, untrained=None, **change):
    """Returns the class of a statement on frames, and its cases."""
    one, told = STATEMENTS[name], TOLD[name]
    frames = told.frames(**change)
    cases = list(one.cases(frames))
    before = one.cases(told.frames(**untrained)) if one.is_learnt and untrained is not None else ()
    return class_of(cases, before, one.gate(frames) if one.gate else ""), cases


def changes(kind):
    return [(name, change) for name, one in TOLD.items() for change in getattr(one, kind)]


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.sampled(45)
def test_as_the_paper_has_it(name):
    """True beyond noise; a control for which it is true as well makes it no finding."""
    found, cases = judged(name, untrained=TOLD[name].refuted[0])
    assert found == CONFIRMED
    for case in cases:
        assert case.effect.value == pytest.approx(TOLD[name].effect), case.name
    found, _ = judged(name, untrained={})
    assert found == (ALSO_UNTRAINED if STATEMENTS[name].is_learnt else CONFIRMED)


@pytest.mark.parametrize(("name", "change"), changes("refuted"))
@pytest.mark.sampled(45)
def test_refuted(name, change):
    assert judged(name, untrained={}, **change)[0] == REFUTED


@pytest.mark.sampled(25)
@pytest.mark.parametrize(("name", "change"), changes("otherwise"))
def test_true_in_part(name, change):
    assert judged(name, **change)[0] in (IN_PART, WITHIN_NOISE, REFUTED)


@pytest.mark.sampled(22)
@pytest.mark.parametrize(("name", "change"), changes("undecidable"))
def test_undecidable(name, change):
    assert judged(name, **change)[0] == UNDECIDABLE


def test_every_statement_is_told():
    assert set(TOLD) == set(STATEMENTS)
    for name, one in TOLD.items():
        assert bool(one.undecidable) == (STATEMENTS[name].gate is not None), name


def test_the_rule_and_the_depth_by_experiment():
    """The distance is 4 at every depth: the mean is 4/L, which is 0.2 at L = 20."""
    rule = perturbation_from_identity.rule_of(PI["PI-R"].frames()["perturbation"])
    np.testing.assert_allclose(rule["experiment"], 20)
    assert (rule["rule"] == 20).all()
    # A mean that does not fall is over 0.2 up to the largest depth.
    rule = perturbation_from_identity.rule_of(PI["PI-R"].frames(power=0)["perturbation"])
    assert rule["experiment"].isna().all()
    assert (rule["at_least"] == 32).all()
