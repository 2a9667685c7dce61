"""Folders that one process at a time writes to.

Not covered: Windows, and network file systems.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import datetime

import filelock
import pytest
from bare_package import BARE

from tfresidual.machine.locks import FolderInUseError, locked, remove_abandoned

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


def killed_holder(folder, *arguments):
    with holder(folder, *arguments, ends_by=signal.SIGKILL):
        pass


def enter(folder, *arguments, **options):
    with locked(folder, *arguments, **options):
        pass


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_folder_is_made_and_nothing_else_stays(tmp_path):
    with locked(tmp_path / "new" / "run"):
        assert names(tmp_path) == ["new", "new/run", "new/run/.lock"]
    assert names(tmp_path) == ["new", "new/run"]


@pytest.mark.parametrize(
    ("error", "writes", "left"),
    [
        (ValueError, False, []),
        (KeyboardInterrupt, False, []),
        (ValueError, True, ["new", "new/run", "new/run/log.csv"]),
    ],
)
def test_a_block_that_fails_leaves_what_it_has_written(tmp_path, error, writes, left):
    with pytest.raises(error), locked(tmp_path / "new" / "run"):
        if writes:
            (tmp_path / "new" / "run" / "log.csv").write_text("mine")
        raise error
    assert names(tmp_path) == left


@pytest.mark.parametrize("beside", [False, True])
def test_a_second_process_is_told_who_holds_it(tmp_path, beside):
    target = tmp_path / "run"
    begun = time.monotonic()
    with holder(target, *(["beside"] if beside else [])) as process:
        before = names(tmp_path)
        with pytest.raises(FolderInUseError) as raised:
            enter(target, "path", beside=beside)
    assert names(tmp_path) == before
    message = str(raised.value)
    assert f"process {process.pid} on {socket.gethostname()}, `-c {target}" in message
    since = datetime.fromisoformat(message.split(", since ")[1].split(". Wait")[0])
    assert abs(time.time() - since.timestamp()) < time.monotonic() - begun + 2
    assert message.endswith(f"choose another `path`. Received: path={str(target)!r}")


def test_a_killed_process_holds_nothing_and_is_not_named(tmp_path):
    killed_holder(tmp_path)
    assert names(tmp_path) == [".lock"]
    # Between the lock and the signature of whoever holds it now.
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(FolderInUseError) as raised:
        enter(tmp_path)
    assert "writing to this folder. Wait" in str(raised.value)
    with (
        holder(tmp_path, ends_by=signal.SIGKILL) as second,
        pytest.raises(FolderInUseError) as raised,
    ):
        enter(tmp_path)
    assert f"process {second.pid} on" in str(raised.value)
    enter(tmp_path)
    assert names(tmp_path) == []


def test_a_record_that_nobody_wrote_is_not_read(tmp_path):
    path, text = tmp_path / ".lock", " " + '{"pid": ' * 100_000
    path.write_text(text)
    enter(tmp_path)
    with filelock.FileLock(path):
        path.write_text(text)
        with pytest.raises(FolderInUseError):
            enter(tmp_path)


def test_what_killed_processes_held_is_removed(tmp_path):
    """And nothing else: what others hold, or wrote."""
    killed_holder(tmp_path / "killed", "beside")
    with holder(tmp_path / "alive", "beside"):
        (tmp_path / ".other.lock").write_text("{}")
        (tmp_path / ".empty.lock").touch()
        before = names(tmp_path)
        remove_abandoned(tmp_path)
        assert ".killed.lock" in before
        assert names(tmp_path) == [name for name in before if name != ".killed.lock"]


REFUSED = (
    BARE
    + "from tfresidual.machine.locks import *\n"
    + """
remove_abandoned(sys.argv[1])
try:
    with locked(sys.argv[1] + "/run", beside=True): pass
except FolderInUseError as error:
    print(error)
"""
)


def test_another_container_is_told_who_holds_it(tmp_path, in_container):
    """There, no process has the id of this one."""
    with locked(tmp_path / "run", beside=True):
        told = subprocess.check_output([*in_container, REFUSED, str(tmp_path)], text=True)
        assert names(tmp_path) == [".run.lock"]
    assert f"process {os.getpid()} on" in told


def test_a_thread_may_lock_again_and_another_may_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = []

    def other():
        try:
            enter(tmp_path / "run")
        except FolderInUseError as error:
            refused.append(str(error))

    with locked(tmp_path / "run"):
        enter("run")
        assert names(tmp_path) == ["run", "run/.lock"]
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1 and f"process {os.getpid()} on" in refused[0]
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
    with pytest.raises(NotADirectoryError, match="`out` must be a folder"):
        enter(tmp_path / "file" / "run", "out")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match=r"file system that can lock files.* Received: folder="):
        enter(tmp_path / "run")
    monkeypatch.undo()
    # Nothing that another process would take for a lock.
    assert names(tmp_path) in ([], ["run", "run/.lock"])
    enter(pathlib.Path(tmp_path, "run"))
