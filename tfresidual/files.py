"""Paths as arguments, and files that are there whole or not at all."""

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

# What is written beside its target until it is whole is named after the process that writes it.
UNFINISHED = re.compile(r"\.(?P<target>.+)-(?P<pid>\d+)@(?P<host>[0-9a-f]{8})-\w{8}(\.\w+)?")
# Seconds after which what a process on another machine was writing counts as abandoned.
ABANDONED = 86400
# What was moved out of the way, beside the new folder that takes its place.
REPLACED = "replaced"
# What a disk answers that has no more room.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What this process is writing now.
_unfinished = set()


def checked_path(name, value):
    """An argument as a `pathlib.Path`; raises a `ValueError` if it cannot be one."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(
            f"Argument `{name}` must be a path, as a str without null characters that is not "
            f"empty, or as a `pathlib.Path`. Received: {name}={value!r}"
        )
    return pathlib.Path(text)


def file_above(path):
    """The nearest thing that is there on the way to a path, if that is no folder; or `None`."""
    above = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path)
    return None if above.is_dir() else above


def check_folder(name, folder, within=""):
    """Raises a `NotADirectoryError` unless an argument, and a folder in it, are or can be made."""
    file = file_above(folder / within / "any")
    if file is not None:
        raise NotADirectoryError(
            f"Argument `{name}` must be a folder, or a new one below one. "
            f"Received: {name}={str(folder)!r}, where {str(file)!r} is none"
        )


@contextlib.contextmanager
def folders_above(path):
    """Makes the folders above a path; those that it made are removed if the block fails."""
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            # Others may have put something into it.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def replacing(path):
    """A path beside the target to write to; what stands there takes the target's place.

    The target changes in one step, when the block ends; if it raises, or the process dies, the
    target stays as it was. What a process that died was writing in the folder is removed.

    Args:
        path: the target. Its folder must exist.

    Yields:
        A `pathlib.Path` in the same folder and with the same ending.
    """
    path = pathlib.Path(path)
    remove_unfinished(path.parent)
    handle, name = tempfile.mkstemp(prefix=_prefix(path.stem), suffix=path.suffix, dir=path.parent)
    os.close(handle)
    written = pathlib.Path(name)
    try:
        _unfinished.add(written.name)
        yield written
        # mkstemp makes files for the owner alone.
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
    """A new folder beside the target to write into, which then takes the target's place.

    If the block raises, the target stays as it was. What stood there is removed when the new one
    is in place; a process that dies in between leaves both under a name that begins with a dot,
    and `remove_unfinished` moves the new one into place.

    Args:
        path: the target. Its folder must exist.

    Yields:
        A `pathlib.Path` of an empty folder.
    """
    path = pathlib.Path(path)
    remove_unfinished(path.parent)
    beside = pathlib.Path(tempfile.mkdtemp(prefix=_prefix(path.name), dir=path.parent))
    try:
        _unfinished.add(beside.name)
        written = beside / path.name
        # mkdtemp makes folders for the owner alone.
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
    """Removes what processes that died were writing into a folder, by the functions here.

    A new folder that was whole, and whose target was moved out of the way already, takes its
    place.
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
                # Somebody has put another one there since. Nothing of the three is to be lost.
                continue
            try:
                os.replace(path / target.name, target)
            except OSError:
                continue
        shutil.rmtree(path, ignore_errors=True)


def is_full(error):
    """Whether an error, of Python or of a library that has it in its message, is a full disk."""
    return getattr(error, "errno", None) in FULL or any(
        os.strerror(code) in str(error) for code in FULL
    )


def no_room(path, error):
    """The error of a file or folder that was not written, because the disk is full for example."""
    codes = [code for code in FULL if os.strerror(code) in str(error)]
    reason = os.strerror(codes[0]) if codes else " ".join(str(error).split())
    return OSError(
        f"{str(path)!r} could not be written: {reason}. What was there before is unchanged. Make "
        "room for it, and do the same again"
    )


def read_json(path, remedy):
    """What a JSON file holds, a dict.

    Args:
        path: the file.
        remedy: str, what to do if it is damaged, for the error.

    Raises:
        ValueError: if it is damaged.
        OSError: if it cannot be read.
    """
    text = pathlib.Path(path).read_bytes()
    try:
        content = json.loads(text)
        reason = "what it holds is no dict"
    except (ValueError, RecursionError) as error:
        content, reason = None, f"it is no JSON, {error}"
    if not isinstance(content, dict):
        raise damaged(path, reason, remedy)
    return content


def damaged(path, reason, remedy):
    """The error of a file that does not hold what was written into it."""
    # What libraries say may take pages.
    reason = " ".join(str(reason).split())[:300].rstrip(".")
    name = pathlib.Path(path).name
    return ValueError(f"{name} is damaged: {reason}. {remedy}. Received: path={str(path)!r}")


def _prefix(name):
    """How the names of files begin that this process is writing to take the place of another."""
    return f".{name}-{os.getpid()}@{_host()}-"


def _host():
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_abandoned(path, match):
    """Whether the process that was writing a file or folder is gone."""
    if match["host"] == _host():
        pid = int(match["pid"])
        return path.name not in _unfinished if pid == os.getpid() else not psutil.pid_exists(pid)
    try:
        return path.lstat().st_mtime < time.time() - ABANDONED
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def written(path):
    """`replacing`, in a folder that is made if it is not there."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        yield beside


def _exchange(new, path, old):
    """Moves what is at a path out of the way, and something new there."""
    if not path.exists():
        os.replace(new, path)
        return
    os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old, path)
        raise
