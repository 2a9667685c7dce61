"""Files that are there whole or not at all."""

import errno
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time

import pytest
from bare_package import BARE

from tfresidual.machine.files import remove_unfinished, replacing, replacing_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("old")
    return path


def test_the_target_changes_when_the_block_ends(target):
    with replacing(str(target)) as new:
        assert isinstance(new, pathlib.Path)
        assert (new.parent.parent, new.name) == (target.parent, "log.csv")
        # The block may write the file anew.
        new.unlink()
        new.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(target.parent) == ["log.csv"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
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
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "target")]
    assert modes[0] == modes[1]


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "log.csv"):
        pass
    assert names(tmp_path) == []


def test_two_writers_do_not_share_a_file(target):
    with replacing(target) as first:
        with replacing(target) as second:
            assert first != second
            first.write_text("first")
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"


def test_what_a_killed_process_left_is_removed_by_the_next(target, killed_while_writing):
    left = killed_while_writing(target)
    assert target.read_text() == "old"
    # It carries a name that no pattern for the targets finds.
    assert names(target.parent) == sorted([left.parent.name, "log.csv"])
    assert left.parent.name.startswith(".")
    with replacing(target.with_name("other.csv")) as new:
        new.write_text("new")
    assert names(target.parent) == ["log.csv", "other.csv"]


def test_what_others_are_writing_is_left_alone(tmp_path, killed_while_writing):
    """Also what only looks alike, and what a process of another machine began lately."""
    left = killed_while_writing(tmp_path / "log.csv").parent
    host = re.search("@([0-9a-f]{8})-", left.name)[1]
    elsewhere = left.name.replace(host, "0" * 8)
    left.rename(tmp_path / elsewhere)
    kept = {".log-backup00.csv", elsewhere, left.name[:-1]}
    for name in kept - {elsewhere}:
        (tmp_path / name).write_text("mine")
    with replacing(tmp_path / "log.csv") as first, replacing(tmp_path / "log.csv") as second:
        assert first.exists() and second.exists()
    assert set(names(tmp_path)) == {*kept, "log.csv"}
    long_ago = time.time() - 7 * 86400
    os.utime(tmp_path / elsewhere, (long_ago, long_ago))
    remove_unfinished(tmp_path)
    assert set(names(tmp_path)) == {*kept, "log.csv"} - {elsewhere}


REMOVE = BARE + "from tfresidual.machine.files import *\nremove_unfinished(sys.argv[1])"
# It would survive a signal of its own.
DIES = BARE + (
    "import os\nfrom tfresidual.machine.files import *\n"
    "with replacing(sys.argv[1]) as new:\n    new.write_text('half')\n    os._exit(1)"
)


@pytest.mark.parametrize("kind", [replacing, replacing_folder])
def test_what_is_written_in_another_container_is_left_alone(tmp_path, kind, in_container):
    """There, no process has the id of this one."""
    with kind(tmp_path / "net") as new:
        half = new / "half" if kind is replacing_folder else new
        half.write_text("half")
        subprocess.run([*in_container, REMOVE, str(tmp_path)], check=True)
        assert half.read_text() == "half"
    assert names(tmp_path) == ["net"]


def test_what_was_killed_in_another_container_is_removed(tmp_path, in_container):
    """There, it was process 1, which lives here."""
    subprocess.run([*in_container, DIES, str(tmp_path / "log.csv")])
    assert len(names(tmp_path)) == 1
    remove_unfinished(tmp_path)
    assert names(tmp_path) == []


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


@pytest.fixture
def killed_folder(tmp_path):
    """A function that replaces a folder in a process, which is killed before a rename."""
    target = tmp_path / "net"
    target.mkdir()
    (target / "saved_model.pb").write_text("old")

    def kill(rename):
        arguments = [sys.executable, "-c", KILLED_BETWEEN, str(target), str(rename)]
        result = subprocess.run(arguments, stderr=subprocess.DEVNULL)
        assert result.returncode == -signal.SIGKILL
        return target

    return kill


@pytest.mark.parametrize(("rename", "content"), [(1, "old"), (2, "new"), (3, "new")])
def test_a_folder_is_put_right_after_a_kill(killed_folder, rename, content):
    """Killed just before the old folder moves away, before the new one comes, and at the end."""
    target = killed_folder(rename)
    assert target.exists() == (rename != 2)
    remove_unfinished(target.parent)
    assert names(target.parent) == ["net"]
    assert (target / "saved_model.pb").read_text() == content


def test_of_three_folders_none_is_lost(killed_folder):
    target = killed_folder(2)
    target.mkdir()
    (target / "saved_model.pb").write_text("somebody's")
    remove_unfinished(target.parent)
    assert (target / "saved_model.pb").read_text() == "somebody's"
    contents = {path.read_text() for path in target.parent.rglob("saved_model.pb")}
    assert contents == {"old", "new", "somebody's"}


@pytest.mark.parametrize("kind", [replacing, replacing_folder])
def test_a_full_disk(target, kind):
    message = "could not be written: No space left"
    with pytest.raises(OSError, match=message) as raised, kind(target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(raised.value).startswith(repr(str(target)))
    assert names(target.parent) == ["log.csv"]
    assert target.read_text() == "old"
