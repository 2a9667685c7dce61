"""Every Python block of the README and of the site runs as written, page by page.

Those of one page share their names and a folder, which is empty at first. Digitclutter is drawn
once for all of them. Whole pages are nightly tests but one; of a tutorial, every run has its first
blocks. Commands are compared with the command line: every word that they use is known to it.
"""

import itertools
import re
import shlex

import click
import pytest
from docs.pages import PAGES, ROOT, blocks_of, name_of

import tfresidual_cli

pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
]
# A test applies the steps of this page, which are not one program.
APART = ("CONTRIBUTING.md",)
README = ROOT / "README.md"
RUN = [page for page in PAGES if list(blocks_of(page, "python")) and page.name not in APART]
EVERY_RUN = ROOT / "docs" / "howto" / "add_data.md"
TUTORIALS = [page for page in RUN if page.parent.name == "tutorial"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def place(data, tmp_path, monkeypatch):
    """The test runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(data))
    (tmp_path / "data").symlink_to(data)


def run(blocks, page):
    names = {"__name__": "__main__"}
    for _, block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=() if page == EVERY_RUN else pytest.mark.nightly)
        for page in RUN
    ],
)
def test_python_runs(page, tmp_path, place):
    run(blocks_of(page, "python"), page)
    if page == README:
        header, *rows = (tmp_path / "log.csv").read_text().splitlines()
        assert len(rows) == 3
        assert {"stage1/block0/cosine_loss", "stage1/block0/l2_ratio"} <= set(header.split(","))
        assert (tmp_path / "drop_blocks.png").read_bytes().startswith(b"\x89PNG")


def test_a_tutorial_begins(place):
    """The network of the pages about design, and what is asked of it before it is trained."""
    (page,) = [page for page in TUTORIALS if page.stem == "design"]
    names = run(itertools.islice(blocks_of(page, "python"), 3), page)
    assert names["shared"].count_params() < names["plain"].count_params()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_known(page):
    for _, block in blocks_of(page, "sh"):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["tfresidual"]:
                check(words[1:])


def check(words):
    command = tfresidual_cli.cli.commands[words[0]]
    with click.Context(command, info_name=words[0]) as context:
        command.make_parser(context).parse_args(words[1:])
