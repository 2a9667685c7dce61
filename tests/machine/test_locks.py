"""Folders that one process at a time writes to.

Not covered: Windows, and network file systems.
"""

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


def holder(folder, *arguments):
    """A process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def end(process, how):
    process.send_signal(how)
    process.wait()
    process.stdout.close()


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_folder_is_made_and_nothing_else_stays(tmp_path):
    with locked(tmp_path / "new" / "run"):
        assert names(tmp_path) == ["new", "new/run", "new/run/.lock"]
    assert names(tmp_path) == ["new", "new/run"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_no_folder(tmp_path, error):
    with pytest.raises(error), locked(tmp_path / "new" / "run"):
        raise error
    assert names(tmp_path) == []


def test_what_a_failed_block_has_written_stays(tmp_path):
    with pytest.raises(ValueError), locked(tmp_path / "run"):
        (tmp_path / "run" / "log.csv").write_text("mine")
        raise ValueError
    assert names(tmp_path) == ["run", "run/log.csv"]


@pytest.mark.parametrize("beside", [False, True])
def test_a_second_process_is_told_who_holds_it(tmp_path, beside):
    target = tmp_path / "run"
    begun = time.monotonic()
    process = holder(target, *(["beside"] if beside else []))
    before = names(tmp_path)
    try:
        with pytest.raises(FolderInUseError) as raised, locked(target, "path", beside=beside):
            pass
    finally:
        end(process, signal.SIGTERM)
    assert names(tmp_path) == before
    message = str(raised.value)
    assert f"process {process.pid} on {socket.gethostname()}, `-c {target}" in message
    since = message.split(", since ")[1].split(". Wait")[0]
    assert (
        abs(time.time() - datetime.fromisoformat(since).timestamp()) < time.monotonic() - begun + 2
    )
    assert message.endswith(f"choose another `path`. Received: path={str(target)!r}")


def test_a_killed_process_holds_nothing_and_is_not_named(tmp_path):
    first = holder(tmp_path)
    end(first, signal.SIGKILL)
    assert names(tmp_path) == [".lock"]
    second = holder(tmp_path)
    with pytest.raises(FolderInUseError) as raised, locked(tmp_path):
        pass
    assert f"process {second.pid} on" in str(raised.value)
    end(second, signal.SIGKILL)
    with locked(tmp_path):
        pass
    assert names(tmp_path) == []


def test_a_record_of_a_dead_process_is_not_believed(tmp_path):
    """Between the lock and the signature of whoever holds it now."""
    first = holder(tmp_path)
    end(first, signal.SIGKILL)
    lock = filelock.FileLock(tmp_path / ".lock")
    with lock, pytest.raises(FolderInUseError) as raised, locked(tmp_path):
        pass
    assert "writing to this folder. Wait" in str(raised.value)


def test_a_record_that_nobody_wrote_is_not_read(tmp_path):
    (tmp_path / ".lock").write_text(" " + '{"pid": ' * 100_000)
    with locked(tmp_path):
        pass
    with filelock.FileLock(tmp_path / ".lock"):
        (tmp_path / ".lock").write_text(" " + '{"pid": ' * 100_000)
        with pytest.raises(FolderInUseError), locked(tmp_path):
            pass


def test_what_killed_processes_held_is_removed(tmp_path):
    """And nothing else: what others hold, or wrote."""
    killed, alive = (holder(tmp_path / name, "beside") for name in ("killed", "alive"))
    end(killed, signal.SIGKILL)
    (tmp_path / ".other.lock").write_text("{}")
    (tmp_path / ".empty.lock").touch()
    before = names(tmp_path)
    remove_abandoned(tmp_path)
    left = names(tmp_path)
    end(alive, signal.SIGKILL)
    assert ".killed.lock" in before
    assert left == [name for name in before if name != ".killed.lock"]


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
            with locked(tmp_path / "run"):
                pass
        except FolderInUseError as error:
            refused.append(str(error))

    with locked(tmp_path / "run"):
        with locked("run"):
            pass
        assert names(tmp_path) == ["run", "run/.lock"]
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1 and f"process {os.getpid()} on" in refused[0]
    assert names(tmp_path) == ["run"]


def test_a_link_is_the_folder_that_it_leads_to(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    process = holder(tmp_path / "run")
    try:
        with pytest.raises(FolderInUseError), locked(tmp_path / "link"):
            pass
    finally:
        end(process, signal.SIGTERM)


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
    processes = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path / "run")]) for _ in range(3)
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(NotADirectoryError, match="`out` must be a folder"),
        locked(tmp_path / "file" / "run", "out"),
    ):
        pass
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(OSError, match="file system that can lock files") as raised,
        locked(tmp_path / "run"),
    ):
        pass
    assert str(raised.value).endswith(f"Received: folder={str(tmp_path / 'run')!r}")
    monkeypatch.undo()
    # Nothing that another process would take for a lock.
    assert names(tmp_path) in ([], ["run", "run/.lock"])
    with locked(pathlib.Path(tmp_path, "run")):
        pass
