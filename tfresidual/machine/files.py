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
import tempfile
import time

import psutil

# Name of a file or folder that is beside its target until it is complete. It contains the id and
# the host of the process that writes it.
UNFINISHED = re.compile(r"\.(?P<target>.+)-(?P<pid>\d+)@(?P<host>[0-9a-f]{8})-\w{8}(\.\w+)?")
# Seconds after which an unfinished file of a process on another machine counts as abandoned.
ABANDONED_AFTER = 86400
# Name of an old folder that was moved out of the way, beside the new folder that replaces it.
REPLACED = "replaced"
# Error numbers of a full disk.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Names of the files and folders that this process is writing now.
_unfinished: set[str] = set()


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
    """Provides a path beside the target; the file written to it replaces the target.

    The target changes in one step, when the block ends. If the block raises, or the process dies,
    the target stays as it was. Unfinished files in the folder whose process died are removed.

    Args:
        path: the target. Its folder must exist.

    Yields:
        A `pathlib.Path` in the same folder and with the same suffix.
    """
    path = pathlib.Path(path)
    remove_unfinished(path.parent)
    handle, name = tempfile.mkstemp(prefix=_prefix(path.stem), suffix=path.suffix, dir=path.parent)
    os.close(handle)
    written = pathlib.Path(name)
    try:
        _unfinished.add(written.name)
        yield written
        # mkstemp creates files that only their owner can access.
        umask = os.umask(0)
        os.umask(umask)
        written.chmod(0o666 & ~umask)
        with written.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(written, path)
    except OSError as error:
        if is_full(error):
            raise no_room(path, error) from error
        raise
    finally:
        written.unlink(missing_ok=True)
        _unfinished.discard(written.name)


@contextlib.contextmanager
def replacing_folder(path):
    """Provides a new folder beside the target, which replaces the target when the block ends.

    If the block raises, the target stays as it was. An old folder is removed once the new one is in
    its place. A process that dies in between leaves both in a folder whose name begins with a dot;
    `remove_unfinished` then moves the new one into place.

    Args:
        path: the target. Its folder must exist.

    Yields:
        The `pathlib.Path` of an empty folder.
    """
    path = pathlib.Path(path)
    remove_unfinished(path.parent)
    beside = pathlib.Path(tempfile.mkdtemp(prefix=_prefix(path.name), dir=path.parent))
    try:
        _unfinished.add(beside.name)
        written = beside / path.name
        # mkdtemp creates folders that only their owner can access.
        written.mkdir()
        yield written
        _exchange(written, path, beside / REPLACED)
    except OSError as error:
        if is_full(error):
            raise no_room(path, error) from error
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        _unfinished.discard(beside.name)


def remove_unfinished(folder):
    """Removes unfinished files and folders of this module in a folder if their process died.

    A new folder that is complete, and whose target was already moved out of the way, is moved into
    the place of the target instead.
    """
    for path in pathlib.Path(folder).iterdir():
        match = UNFINISHED.fullmatch(path.name)
        if match is None or not _is_abandoned(path, match):
            continue
        if not path.is_dir():
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        target = path.with_name(match["target"])
        if (path / REPLACED).exists() and (path / target.name).exists():
            if os.path.lexists(target):
                # Another target was created in the meantime. Keep all three.
                continue
            try:
                os.replace(path / target.name, target)
            except OSError:
                continue
        shutil.rmtree(path, ignore_errors=True)


def is_full(error):
    """Returns whether an error means a full disk, judging by its number or its message.

    Some libraries only mention the full disk in the message of their errors.
    """
    return getattr(error, "errno", None) in DISK_FULL or any(
        os.strerror(code) in str(error) for code in DISK_FULL
    )


def no_room(path, error):
    """Returns the error for a file or folder that was not written, for example on a full disk."""
    codes = [code for code in DISK_FULL if os.strerror(code) in str(error)]
    reason = os.strerror(codes[0]) if codes else " ".join(str(error).split())
    return OSError(
        f"{str(path)!r} could not be written: {reason}. Existing files are unchanged. Free some "
        "space and try again"
    )


def read_json(path, remedy):
    """Returns the content of a JSON file, a dict.

    Args:
        path: the file.
        remedy: str, what to do if the file is damaged, for the error.

    Raises:
        ValueError: if the file is damaged.
        OSError: if the file cannot be read.
    """
    text = pathlib.Path(path).read_bytes()
    try:
        content = json.loads(text)
        reason = "its content is not a dict"
    except (ValueError, RecursionError) as error:
        content, reason = None, f"it is not JSON, {error}"
    if not isinstance(content, dict):
        raise damaged(path, reason, remedy)
    return content


def damaged(path, reason, remedy):
    """Returns the error for a file that does not hold what was written into it."""
    # Error messages of libraries may take pages.
    reason = " ".join(str(reason).split())[:300].rstrip(".")
    name = pathlib.Path(path).name
    return ValueError(f"{name} is damaged: {reason}. {remedy}. Received: path={str(path)!r}")


def _prefix(name):
    """Returns the prefix of the names of files with which this process will replace another."""
    return f".{name}-{os.getpid()}@{_host()}-"


def _host():
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_abandoned(path, match):
    """Returns whether the process that was writing a file or folder is gone.

    On another machine, this is judged by the age of the file or folder.
    """
    if match["host"] == _host():
        pid = int(match["pid"])
        return path.name not in _unfinished if pid == os.getpid() else not psutil.pid_exists(pid)
    try:
        return path.lstat().st_mtime < time.time() - ABANDONED_AFTER
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def written(path):
    """Does the same as `replacing`, but creates the target's folder if it does not exist."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        yield beside


def _exchange(new, path, old):
    """Moves the folder at `path`, if there is one, to `old`, and the folder `new` to `path`."""
    if not path.exists():
        os.replace(new, path)
        return
    os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old, path)
        raise
