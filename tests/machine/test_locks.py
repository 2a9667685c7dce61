"""Folders that one process at a time writes to.

Not covered: Windows, and network file systems.
"""

import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from bare_package import BARE

from tfresidual.machine.locks import FolderInUseError, locked

HOLD = (
    BARE
    + """
import time
from tfresidual.machine.locks import locked
with locked(sys.argv[1], beside=len(sys.argv) > 2 and sys.argv[2] == "beside"):
    print("held", flush=True)
    time.sleep(60)
"""
)


@contextlib.contextmanager
def holder(folder, *arguments, ends_by=signal.SIGTERM):
    """A process that holds a folder during a block."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.send_signal(ends_by)
        process.wait()
        process.stdout.close()


def enter(folder, *arguments, **options):
    with locked(folder, *arguments, **options):
        pass


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("error", "writes", "left"),
    [
        (None, False, ["new", "new/run"]),
        (ValueError, False, []),
        (KeyboardInterrupt, False, []),
        (ValueError, True, ["new", "new/run", "new/run/log.csv"]),
    ],
)
def test_a_block_leaves_what_it_has_written(tmp_path, error, writes, left):
    with pytest.raises(error) if error else contextlib.nullcontext(), locked(tmp_path / "new/run"):
        assert names(tmp_path) == ["new", "new/run", "new/run/.lock"]
        if writes:
            (tmp_path / "new" / "run" / "log.csv").write_text("mine")
        if error:
            raise error
    assert names(tmp_path) == left


@pytest.mark.parametrize("beside", [False, True])
def test_a_second_process_is_refused(tmp_path, beside):
    target = tmp_path / "run"
    with holder(target, *(["beside"] if beside else [])):
        before = names(tmp_path)
        with pytest.raises(FolderInUseError, match="`path`"):
            enter(target, "path", beside=beside)
    assert names(tmp_path) == before


def test_a_killed_process_holds_nothing(tmp_path):
    with holder(tmp_path, ends_by=signal.SIGKILL):
        pass
    assert names(tmp_path) == [".lock"]
    enter(tmp_path)
    assert names(tmp_path) == []


def test_a_thread_may_lock_again_and_another_may_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = []

    def other():
        try:
            enter(tmp_path / "run")
        except FolderInUseError as error:
            refused.append(error)

    with locked(tmp_path / "run"):
        enter("run")
        assert names(tmp_path) == ["run", "run/.lock"]
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert names(tmp_path) == ["run"]


def test_a_link_is_the_folder_that_it_leads_to(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with holder(tmp_path / "run"), pytest.raises(FolderInUseError):
        enter(tmp_path / "link")


WAIT = (
    BARE
    + """
from tfresidual.machine.locks import locked
with locked(sys.argv[1], wait=True):
    path = __import__("pathlib").Path(sys.argv[1], "order")
    path.write_text(path.read_text() + "b" if path.exists() else "b")
"""
)


def test_waiting(tmp_path):
    with locked(tmp_path):
        waiting = subprocess.Popen([sys.executable, "-c", WAIT, str(tmp_path)])
        time.sleep(1)
        assert waiting.poll() is None
        (tmp_path / "order").write_text("a")
    assert waiting.wait(timeout=30) == 0
    assert (tmp_path / "order").read_text() == "ab"


RACE = (
    BARE
    + """
import pathlib
from tfresidual.machine.locks import FolderInUseError, locked
folder = pathlib.Path(sys.argv[1])
done = 0
while done < 40:
    try:
        with locked(folder):
            # Made by one, it is gone before the next one begins.
            (folder / "alone").touch(exist_ok=False)
            (folder / "alone").unlink()
            if done % 2:
                raise ValueError
        done += 1
    except ValueError:
        done += 1
    except FolderInUseError:
        pass
"""
)


def test_processes_take_turns(tmp_path):
    """Also where the folder, made by one of them, goes with it."""
    command = [sys.executable, "-c", RACE, str(tmp_path / "run")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="`out`"):
        enter(tmp_path / "file" / "run", "out")
    assert names(tmp_path) == ["file"]
