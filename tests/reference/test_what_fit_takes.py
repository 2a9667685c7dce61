"""What callbacks and probes do with what `fit` takes: what docs/what_fit_takes.md says."""

import pytest

from reference import what_fit_takes

ROWS = what_fit_takes.read()
# One row of each group, in every run.
FIRST = [next(iter(group)) for group in what_fit_takes.ROWS.values()]
OTHERS = [name for name in what_fit_takes.names() if name not in FIRST]


def test_the_page_is_made_from_the_table():
    assert what_fit_takes.PAGE.read_text(encoding="utf-8") == what_fit_takes.page(ROWS)


def test_no_number_is_wrong():
    """What does not work says so."""
    cells = [cell for row in ROWS.values() for cell in list(row.values())[1:]]
    assert not [cell for cell in cells if cell.startswith("**")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [*FIRST, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]
)
def test_what_is_measured(name):
    assert what_fit_takes.row_of(name) == ROWS[name]
