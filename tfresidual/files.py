"""Paths as arguments, and files that are there whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import tempfile


def checked_path(name, value):
    """An argument as a `pathlib.Path`; raises a `ValueError` if it cannot be one."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(
            f"Argument `{name}` must be a path, as a str without null characters or as a "
            f"`pathlib.Path`. Received: {name}={value!r}"
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
    target stays as it was.

    Args:
        path: the target. Its folder must exist.

    Yields:
        A `pathlib.Path` in the same folder and with the same ending.
    """
    path = pathlib.Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    written = pathlib.Path(name)
    try:
        yield written
        # mkstemp makes files for the owner alone.
        umask = os.umask(0)
        os.umask(umask)
        written.chmod(0o666 & ~umask)
        with written.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(written, path)
    finally:
        written.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path):
    """A new folder beside the target to write into, which then takes the target's place.

    If the block raises, the target stays as it was. What stood there is removed when the new one
    is in place; a process that dies in between leaves both, the old one under a name that begins
    with a dot.

    Args:
        path: the target. Its folder must exist.

    Yields:
        A `pathlib.Path` of an empty folder.
    """
    path = pathlib.Path(path)
    beside = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        written = beside / path.name
        # mkdtemp makes folders for the owner alone.
        written.mkdir()
        yield written
        _exchange(written, path, beside / "replaced")
    finally:
        shutil.rmtree(beside, ignore_errors=True)


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
