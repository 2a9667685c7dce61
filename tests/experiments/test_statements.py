"""The statements on frames made by hand: as the paper has it, and with one thing otherwise."""

import numpy as np
import papers
import perturbation_from_identity
import pytest
import statements
from catalogue import STATEMENTS, verdict_of
from reference.statement_cases.of_ic import IC
from reference.statement_cases.of_ii import II
from reference.statement_cases.of_im import IM
from reference.statement_cases.of_pi import PI

papers.load()
TOLD = II | IC | PI | IM


def cases(name, **change):
    return list(STATEMENTS[name].cases(TOLD[name].frames(**change)))


@pytest.mark.parametrize("name", TOLD)
def test_as_the_paper_has_it(name):
    found = cases(name)
    assert verdict_of(found) == "holds"
    for case in found:
        assert case.effect == pytest.approx(TOLD[name].effect), case.name


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, one in TOLD.items() for change in one.otherwise]
)
def test_otherwise(name, change):
    assert verdict_of(cases(name, **change)) != "holds"


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("II-T1", "ResNet-110"),
        ("II-T1", "182 UBN"),
        ("IM-T1g", "exclusive gate, bias -10"),
    ],
)
def test_an_error_that_is_not_known_is_not_in_order(name, network):
    frames = TOLD[name].frames()
    frame = frames["summary"]
    is_first = (frame["network"] == network) & (frame["seed"] == frame["seed"].min())
    frames["summary"] = frame.assign(error=frame["error"].mask(is_first))
    assert verdict_of(list(STATEMENTS[name].cases(frames))) == "mixed"


def test_every_statement_is_told():
    assert set(TOLD) == set(STATEMENTS)


def test_the_rule_and_the_depth_by_experiment():
    """The distance is 4 at every depth: the mean is 4/L, which is 0.2 at L = 20."""
    rule = perturbation_from_identity.rule_of(PI["PI-R"].frames()["perturbation"])
    np.testing.assert_allclose(rule["experiment"], 20)
    assert (rule["rule"] == 20).all()
    # A mean that does not fall is over 0.2 up to the largest depth.
    rule = perturbation_from_identity.rule_of(PI["PI-R"].frames(power=0)["perturbation"])
    assert rule["experiment"].isna().all()
    assert (rule["at_least"] == 24).all()


@pytest.mark.parametrize("name", ["IC-3b", "IC-13"])
def test_networks_that_learnt_next_to_nothing_decide_nothing(name):
    """Errors of 85 %: far from chance with hidden digits, near it with ten classes."""
    frames = TOLD[name].frames()
    frames["summary"]["error"] = frames["summary"]["error"] / 100 + 0.85
    found = list(STATEMENTS[name].cases(frames))
    decisive = [case for case in found if statements.has_value(case)]
    assert 0 < len(decisive) < len(found)
    assert decisive == [case for case in found if "Digitclutter" in case.name]


def test_networks_of_one_width():
    """They decide what coupling does, and nothing on the number of parameters."""

    def of_one_width(**change):
        return {k: f[f["width"] == 8] for k, f in TOLD["IC-3a"].frames(**change).items()}

    found = list(STATEMENTS["IC-3a"].cases(of_one_width(wider=-0.1)))
    assert verdict_of(found) == "holds"
    assert verdict_of(list(STATEMENTS["IC-3a"].cases(of_one_width(rise=-0.5)))) == "fails"
    found = STATEMENTS["IC-3c"].cases(of_one_width())
    assert not any(statements.has_value(case) for case in found)
