"""Files that are there whole or not at all."""

import os
import pathlib
import signal
import stat
import subprocess
import sys

import pytest

from tfresidual.files import replacing


def test_the_target_changes_when_the_block_ends(tmp_path):
    target = tmp_path / "log.csv"
    target.write_text("old")
    with replacing(target) as written:
        assert isinstance(written, pathlib.Path)
        assert written.parent == tmp_path
        assert written.suffix == ".csv"
        assert written != target
        written.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_target_appears_whole(tmp_path):
    target = tmp_path / "model.keras"
    with replacing(str(target)) as written:
        written.write_bytes(b"x" * 10_000)
        assert not target.exists()
    assert target.read_bytes() == b"x" * 10_000


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_target_and_nothing_else(tmp_path, error):
    target = tmp_path / "log.csv"
    target.write_text("old")
    with pytest.raises(error), replacing(target) as written:
        written.write_text("half")
        raise error
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_block_may_write_the_file_anew(tmp_path):
    target = tmp_path / "log.csv"
    with replacing(target) as written:
        written.unlink()
        written.write_text("new")
    assert target.read_text() == "new"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        plain = tmp_path / "plain"
        plain.write_text("")
        with replacing(tmp_path / "target") as written:
            written.write_text("")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "target")]
    assert modes[0] == modes[1]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "log.csv"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_two_writers_do_not_share_a_file(tmp_path):
    target = tmp_path / "log.csv"
    with replacing(target) as first:
        with replacing(target) as second:
            assert first != second
            first.write_text("first")
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"


KILLED = """
import os, signal, sys
from tfresidual.files import replacing
with replacing(sys.argv[1]) as written:
    with written.open("w") as file:
        file.write("half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_the_target(tmp_path):
    target = tmp_path / "log.csv"
    target.write_text("old")
    result = subprocess.run([sys.executable, "-c", KILLED, str(target)], stderr=subprocess.DEVNULL)
    assert result.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    # What is left carries a name that no pattern for the targets finds.
    stray = [path for path in tmp_path.iterdir() if path != target]
    assert len(stray) == 1
    assert stray[0].name.startswith(".")
