"""Lines and progress bars: what they say, letter by letter, and that bars are on terminals only."""

import io
import sys

import pytest
from rich.console import Console

from tfresidual.machine.console import progress_bar, redirected, say


def written(is_terminal, description="waiting", text=None):
    """What a bar writes that is advanced to 30 of 40."""
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    with progress_bar(description, 40, console) as advance:
        advance(10)
        advance(20, text)
    return console.file.getvalue()


@pytest.mark.parametrize(("text", "expected"), [(None, "waiting"), ("two epochs", "two epochs")])
def test_a_bar_on_a_terminal(text, expected):
    last = written(True, text=text).rsplit("%", 1)[0]
    assert last.endswith("75")
    assert expected in last


@pytest.mark.parametrize(
    ("is_terminal", "description"), [(False, "waiting"), (False, None), (True, None)]
)
def test_no_bar(is_terminal, description):
    assert written(is_terminal, description, "two epochs").strip() == ""


def test_streams_are_as_before_whichever_thread_leaves_first(capsys):
    """Blocks of two threads, as they may follow each other."""
    before, texts = (sys.stdout, sys.stderr), [io.StringIO(), io.StringIO()]
    blocks = [redirected(texts[0], texts[0]), redirected(texts[1])]
    for index, block in enumerate(blocks):
        block.__enter__()
        print(index)
    blocks[0].__exit__(None, None, None)
    print("still")
    blocks[1].__exit__(None, None, None)
    assert [text.getvalue() for text in texts] == ["0\n", "1\nstill\n"]
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == ""


FOREIGN = "[/b] [bold]x[/bold] :smile: a\x1b[31m\udcff\u202e"
PRINTED = "[/b] [bold]x[/bold] :smile: a\\x1b[31m\\udcff\\u202e"


def test_names_are_no_markup():
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    say(console, f"reading {FOREIGN}\nand more")
    assert console.file.getvalue() == f"reading {PRINTED}\nand more\n"


@pytest.mark.parametrize("text", [None, FOREIGN])
def test_names_beside_a_bar_are_no_markup(text):
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    with progress_bar(FOREIGN if text is None else "waiting", 40, console) as advance:
        advance(20, text)
    assert PRINTED in console.file.getvalue()
