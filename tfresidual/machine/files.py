"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import stat
import tempfile
import time

import filelock

# Name of the folder beside a target in which a process, by its id and host, writes a replacement.
UNFINISHED = re.compile(r"(?s)\.(?P<target>.+)-(?P<pid>\d+)@(?P<host>[0-9a-f]{8})-\w{8}")
# The file in it that this process locks. The system releases it when the process dies. A process in
# another container can see the lock, but not whether there is a process of that id.
HELD = ".held"
# Seconds after which an unfinished folder counts as abandoned if its lock says nothing: on a file
# system without locks, or one whose locks may not reach the other machine.
ABANDONED_AFTER = 86400
# Name of an old folder that was moved out of the way, beside the new folder that replaces it.
REPLACED = ".replaced"
# Error numbers of a full disk.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Error numbers of file systems without locks.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def file_above(path):
    """Returns the nearest existing parent of a path if it is not a directory, else `None`."""
    above = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path)
    return None if above.is_dir() else above


def check_folder(name: str, folder: pathlib.Path, within: str = "") -> None:
    """Raises a `NotADirectoryError` unless an argument is a directory or one can be created there.

    The same must hold for the path `within` in it.
    """
    file = file_above(folder / within / "any")
    if file is not None:
        raise NotADirectoryError(
            f"Argument `{name}` must be a folder, or a path where one can be created. "
            f"Received: {name}={str(folder)!r}, but {str(file)!r} is not a folder"
        )


def check_can_write(name: str, path: pathlib.Path, is_folder: bool = False) -> None:
    """Raises an `OSError` unless a file can be written to a path, or files in a folder there.

    Nothing is created. What may change, such as the room on a disk, is not checked.
    """
    received = f"Received: {name}={str(path)!r}"
    if is_folder:
        check_folder(name, path)
    elif (file := file_above(path)) is not None:
        raise NotADirectoryError(
            f"Argument `{name}` must be the path of a file in a folder. {received}, but "
            f"{str(file)!r} is not a folder"
        )
    elif path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "no file that can be replaced"
        raise FileExistsError(
            f"Argument `{name}` must be the path of a file. {received}, which is {what}"
        )
    above = path.absolute() / "any" if is_folder else path.absolute()
    folder = next(folder for folder in above.parents if folder.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if is_full(error):
            return
        what = "a folder" if is_folder else "the path of a file"
        raise OSError(
            f"Argument `{name}` must be {what} that can be written to; in {str(folder)!r}, the "
            f"system reports: {error.strerror}. {received}"
        ) from error


@contextlib.contextmanager
def folders_above(path):
    """Creates the parent folders of a path, and removes those it created if the block fails."""
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            # Another process may have put something into it.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def replacing(path):
    """Provides the path of an empty file, in a folder of its own; it then replaces the target.

    The target, whose folder must exist, changes in one step when the block ends. If the block
    raises, or the process dies, it stays as it was. Unfinished files in the folder whose process
    died are removed.
    """
    path = pathlib.Path(path)
    with _beside(path) as folder:
        new = folder / path.name
        new.touch()
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)


@contextlib.contextmanager
def replacing_folder(path):
    """Provides an empty folder beside the target, which it replaces when the block ends.

    If the block raises, the target stays as it was. An old folder is removed once the new one is in
    its place. A process that dies in between leaves both in a folder whose name begins with a dot;
    `remove_unfinished` then moves the new one into place.
    """
    path = pathlib.Path(path)
    with _beside(path) as folder:
        new, old = folder / path.name, folder / REPLACED
        new.mkdir()
        yield new
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except BaseException:
            if old.exists():
                os.replace(old, path)
            raise


@contextlib.contextmanager
def _beside(path):
    """Provides an empty folder beside a target, which is held and then removed."""
    remove_unfinished(path.parent)
    folder, lock = _held_folder(path)
    try:
        yield folder
    except Exception as error:
        if is_full(error):
            raise no_room(path, error) from error
        raise
    finally:
        _remove(folder, path)
        lock.release()
        # Windows does not remove a file that is locked.
        with contextlib.suppress(OSError):
            (folder / HELD).unlink(missing_ok=True)
            folder.rmdir()


def _held_folder(path):
    """Returns a new folder beside a target, and the lock with which this process holds it."""
    while True:
        prefix = f".{path.name}-{os.getpid()}@{_host()}-"
        folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
        lock = _lock_of(folder)
        try:
            lock.acquire()
        except (filelock.Timeout, FileNotFoundError):
            # Another process has removed it, since it was not locked yet.
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return folder, lock


def remove_unfinished(folder):
    """Removes unfinished files and folders of this module in a folder if their process died.

    A new folder that is complete, and whose target was already moved out of the way, is moved into
    the place of the target instead.
    """
    for path in pathlib.Path(folder).iterdir():
        match = UNFINISHED.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        # An empty one has just been created, and its process then creates another, or it is left.
        with contextlib.suppress(OSError):
            path.rmdir()
            continue
        lock = _lock_of(path)
        try:
            if _is_abandoned(path, match["host"], lock):
                _remove(path, path.with_name(match["target"]))
        finally:
            lock.release()


def _lock_of(folder):
    return filelock.FileLock(folder / HELD, timeout=0, fallback_to_soft=False)


def _is_abandoned(path, host, lock):
    """Returns whether the process that wrote in a folder is gone; if so, takes the lock."""
    try:
        if (path / HELD).exists():
            lock.acquire()
            if host == _host():
                return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return False
    try:
        return path.stat().st_mtime < time.time() - ABANDONED_AFTER
    except FileNotFoundError:
        return False


def _remove(folder, target):
    """Removes the folder of a target's replacement, after moving a complete one into place."""
    new, old = folder / target.name, folder / REPLACED
    if new.exists() and old.exists():
        if os.path.lexists(target):
            # Another target was created in the meantime. Keep all three.
            return
        try:
            os.replace(new, target)
        except OSError:
            return
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            # The lock goes last: a folder without it would be kept.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != HELD:
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def is_full(error):
    """Returns whether an error means a full disk; some libraries only say so in its message."""
    return getattr(error, "errno", None) in DISK_FULL or any(
        os.strerror(code) in str(error) for code in DISK_FULL
    )


def check_room(path, size):
    """Raises the error of a full disk unless a file of so many bytes can be written; empties it."""
    with open(path, "wb") as file:
        # Not every system can tell.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(0)


def no_room(path, error):
    """Returns the error for a file or folder that was not written, for example on a full disk."""
    codes = [code for code in DISK_FULL if os.strerror(code) in str(error)]
    reason = os.strerror(codes[0]) if codes else " ".join(str(error).split())
    return OSError(
        f"{str(path)!r} could not be written: {reason}. Existing files are unchanged. Free some "
        "space and try again"
    )


def read_json(path, remedy):
    """Returns the content of a JSON file, a dict; `remedy` says what to do if it is damaged."""
    check_file(path)
    text = pathlib.Path(path).read_bytes()
    try:
        content = json_of(text)
        reason = "its content is not a dict"
    except (ValueError, RecursionError) as error:
        content, reason = None, f"it is not JSON, {error}"
    if not isinstance(content, dict):
        raise damaged(path, reason, remedy)
    return content


def check_file(path):
    """Raises an `OSError` for a pipe, a socket or a device: reading it might never end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(f"A file is expected, not a pipe or a device. Received: path={str(path)!r}")


def json_of(text):
    """Returns the content of JSON text; raises a `ValueError` if a dict has one key twice."""

    def once(pairs):
        content = {}
        for name, value in pairs:
            if name in content:
                raise ValueError(f"it has {name!r} twice")
            content[name] = value
        return content

    return json.loads(text, object_pairs_hook=once)


def damaged(path, reason, remedy):
    """Returns the error for a file without what was written; `reason` may be an error."""
    # Error messages of libraries may take pages.
    reason = " ".join(str(reason).split())[:300].rstrip(".")
    name = pathlib.Path(path).name
    return ValueError(f"{name} is damaged: {reason}. {remedy}. Received: path={str(path)!r}")


def _host():
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


@contextlib.contextmanager
def written(path):
    """Does the same as `replacing`, but creates the target's folder if it does not exist."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        yield beside
