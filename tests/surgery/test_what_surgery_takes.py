"""What surgery does with kinds of layers and models: what docs/what_surgery_takes.md says."""

import pytest
from reference import what_surgery_takes

LINES = what_surgery_takes.PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_has_every_case():
    assert LINES[: -len(what_surgery_takes.CASES)] == what_surgery_takes.HEAD.splitlines()
    assert not any("wrong" in line for line in LINES)


@pytest.mark.eager
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", what_surgery_takes.CASES)
def test_what_is_measured(name):
    assert what_surgery_takes.line_of(name) in LINES
