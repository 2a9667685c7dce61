"""Folders that one process at a time writes to."""

import contextlib
import datetime
import json
import os
import pathlib
import shlex
import socket
import sys

import filelock
import psutil

from tfresidual.machine.files import NO_LOCKS, check_folder, folders_above

# The locked file in the folder. It is removed when the folder is released; a process that is killed
# leaves it behind, unlocked.
LOCK = ".lock"
# Seconds to wait for a process that is just releasing a folder.
PATIENCE = 0.5
# The name of the holder is written after this many bytes: on Windows, other processes cannot read
# the locked part of a file.
LOCKED_BYTES = 1
LONGEST_COMMAND = 300


class FolderInUseError(OSError):
    """Another process, or another thread of this one, is writing to a folder."""


@contextlib.contextmanager
def locked(folder, argument="folder", beside=False, wait=False):
    """Holds a folder for this thread while the block runs.

    The operating system releases the folder when the process dies, even if it is killed. A thread
    that holds a folder may lock it again. A folder that does not exist is created, and removed
    again if the block fails and leaves it empty.

    Args:
        folder: the folder.
        argument: its name, for errors.
        beside: whether the locked file is in the parent folder, as `.NAME.lock`; for a folder that
            is replaced as a whole.
        wait: whether to wait for another holder instead of raising a `FolderInUseError`.
    """
    folder = pathlib.Path(folder)
    check_folder(argument, folder.parent if beside else folder)
    whole = folder.resolve()
    path = whole.parent / f".{whole.name}{LOCK}" if beside else whole / LOCK
    with folders_above(path):
        lock = filelock.FileLock(path, is_singleton=True, fallback_to_soft=False)
        is_first = not lock.is_locked
        try:
            lock.acquire(timeout=-1 if wait else PATIENCE)
        except (filelock.Timeout, FileNotFoundError):
            # Another process may have created the folder, failed, and removed it just now.
            raise FolderInUseError(
                f"Another process is writing to this folder{_holder(path)}. Wait until it has "
                f"ended, or choose another `{argument}`. Received: {argument}={str(folder)!r}"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise OSError(
                f"Argument `{argument}` must be a folder on a file system that can lock files; "
                f"this one reports: {error.strerror}. Received: {argument}={str(folder)!r}"
            ) from error
        held = path.stat()
        removed = FileNotFoundError(
            "The folder was removed while this process was writing to it, with what it had "
            f"written. Received: {argument}={str(folder)!r}"
        )
        try:
            if is_first:
                # A full disk must raise an error when the results are written, not here.
                with contextlib.suppress(OSError):
                    _sign(path)
            try:
                yield
            except Exception as error:
                if not _is_there(path, held):
                    raise removed from error
                raise
            if not _is_there(path, held):
                raise removed
        finally:
            if is_first and _is_there(path, held):
                # A process that opened the file and waits for it notices that it is gone, and
                # creates another. On Windows, releasing the lock removes the file.
                with contextlib.suppress(OSError):
                    path.unlink()
            lock.release()


def _is_there(path, held):
    """Returns whether a locked file is still the one that was locked."""
    try:
        return os.path.samestat(path.stat(), held)
    except OSError:
        return False


def remove_abandoned(folder):
    """Removes the locked files beside folders (see `locked`) whose holders were killed."""
    for path in pathlib.Path(folder).glob(f".?*{LOCK}"):
        record = _record(path)
        # The locks of other machines may not be seen from here.
        if record is None or record["host"] != socket.gethostname():
            continue
        try:
            found = path.stat()
        except OSError:
            continue
        lock = filelock.FileLock(path, is_singleton=True, fallback_to_soft=False)
        if lock.is_locked:
            continue
        # Remove it only while holding it, and only if nobody has signed it in the meantime. Before
        # filelock 4, holding it empties it.
        with contextlib.suppress(OSError), lock.acquire(timeout=0):
            if _is_there(path, found) and _record(path) in (record, None):
                path.unlink()


def _sign(path):
    """Writes into a locked file which process holds it."""
    command = shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "namespace": _namespace(),
        "command": command[:LONGEST_COMMAND],
        "since": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
    }
    with path.open("r+b", buffering=0) as file:
        file.seek(LOCKED_BYTES)
        file.write(json.dumps(record).encode())
        file.truncate()


def _holder(path):
    """Returns the holder of a locked file as text for an error, empty if it is not known."""
    record = _record(path)
    if record is None:
        return ""
    # In another container, ids mean other processes.
    here = {"host": socket.gethostname(), "namespace": _namespace()}
    if here.items() <= record.items() and not psutil.pid_exists(record["pid"]):
        # The process that signed was killed; the current holder has not signed yet.
        return ""
    return ": process {pid} on {host}, `{command}`, since {since}".format(**record)


def _record(path):
    """Returns what `_sign` wrote into a file, or `None` if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(LOCKED_BYTES)
            record = json.loads(file.read())
        return {key: record[key] for key in ("pid", "host", "namespace", "command", "since")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _namespace():
    """Returns what names the processes among which an id is unique, or `None` if they all are."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return None
