"""Every backbone and task of keras-hub: what is found in it is what docs/keras_hub.md says."""

import pytest

pytest.importorskip("keras_hub")

from sources import hub_table, zoo

ROWS = hub_table.read()


def test_the_page_is_made_from_the_table():
    """But for the version of keras-hub, which may be another one here."""
    lines = hub_table.PAGE.read_text(encoding="utf-8").splitlines()
    made = hub_table.page(ROWS).splitlines()
    assert [line for line in lines if line != lines[3]] == [
        line for line in made if line != made[3]
    ]


def test_no_chain_differs_from_its_model():
    assert {row["equal"] for row in ROWS.values() if row["blocks"]} == {"yes"}


@pytest.mark.nightly
def test_there_is_a_row_for_every_class():
    """A new version of keras-hub needs configurations in zoo.py."""
    assert list(zoo.classes()) == list(ROWS)


@pytest.mark.nightly
@pytest.mark.parametrize("name", zoo.classes())
def test_what_is_found(name):
    row = hub_table.row_of(name)
    assert {column: row[column] for column in hub_table.STABLE} == {
        column: ROWS[name][column] for column in hub_table.STABLE
    }
