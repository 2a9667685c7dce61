"""Files and folders that are there whole or not at all."""

import os
import pathlib
import signal
import stat
import subprocess
import sys

import pandas as pd
import pytest
from bare_package import BARE

from tfresidual.machine.files import (
    read_json,
    read_table,
    remove_unfinished,
    replacing,
    replacing_folder,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("old")
    return path


def test_the_target_changes_when_the_block_ends(target):
    with replacing(str(target)) as new:
        assert isinstance(new, pathlib.Path) and new.name == "log.csv"
        new.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(target.parent) == ["log.csv"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_target_and_nothing_else(target, error):
    with pytest.raises(error), replacing(target) as new:
        new.write_text("half")
        raise error
    assert target.read_text() == "old"
    assert names(target.parent) == ["log.csv"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "plain").write_text("")
        with replacing(tmp_path / "target") as new:
            new.write_text("")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "target")]
    assert modes[0] == modes[1]


def test_two_writers_do_not_share_a_file(target):
    with replacing(target) as first:
        with replacing(target) as second:
            first.write_text("first")
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"


def test_leftovers_of_a_kill_are_removed(target, killed_while_writing):
    left = killed_while_writing(target)
    assert target.read_text() == "old"
    assert names(target.parent) == [left.parent.name, "log.csv"]
    remove_unfinished(target.parent)
    assert names(target.parent) == ["log.csv"]


KILLED_BETWEEN = (
    BARE
    + """
import os, signal, sys
from tfresidual.machine.files import replacing_folder

def watch(event, arguments):
    if event == "os.rename":
        renames.append(arguments)
        if len(renames) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

renames = []
sys.addaudithook(watch)
with replacing_folder(sys.argv[1]) as written:
    (written / "saved_model.pb").write_text("new")
os.kill(os.getpid(), signal.SIGKILL)
"""
)


@pytest.mark.parametrize(("rename", "content"), [(1, "old"), (2, "new"), (3, "new")])
def test_a_folder_is_put_right_after_a_kill(tmp_path, rename, content):
    """Killed just before the old folder moves away, before the new one comes, and at the end."""
    target = tmp_path / "net"
    target.mkdir()
    (target / "saved_model.pb").write_text("old")
    result = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, str(target), str(rename)])
    assert result.returncode == -signal.SIGKILL
    assert target.exists() == (rename != 2)
    remove_unfinished(tmp_path, "net")
    assert names(tmp_path) == ["net"]
    assert (target / "saved_model.pb").read_text() == content


def test_a_folder_stays_after_an_error(tmp_path):
    target = tmp_path / "net"
    for content, error in (("old", None), ("new", ValueError)):
        try:
            with replacing_folder(target) as new:
                (new / "saved_model.pb").write_text(content)
                if error is not None:
                    raise error
        except ValueError:
            pass
        assert (target / "saved_model.pb").read_text() == "old"
        assert names(tmp_path) == ["net"]


def test_a_table_is_read_as_it_was_written(tmp_path):
    frame = pd.DataFrame({"name": ["a", "b"], "loss": [0.1 + 0.2, float("nan")], "count": [1, 2]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "a.csv"), frame, check_exact=True)


@pytest.mark.parametrize(("read", "content"), [(read_json, "{"), (read_table, "a\n1\n2,3\n")])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_damaged_file_is_named(tmp_path, read, content, is_empty):
    (tmp_path / "file").write_text("" if is_empty else content)
    with pytest.raises(ValueError, match=r"^file is damaged: .*Help\. Received: path="):
        read(tmp_path / "file", "Help")
