"""Files and folders that are written completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

# What the names of folders begin with in which a file is written, beside its target.
UNFINISHED = ".unfinished-"
# The ends of the names of a new folder, and of the old one that it replaces, beside the target.
NEW, OLD = ".new", ".old"


def file_above(path):
    """Returns the nearest existing parent of a path if it is not a directory, else `None`."""
    above = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path)
    return None if above.is_dir() else above


def check_folder(name: str, folder: pathlib.Path) -> None:
    """Raises a `NotADirectoryError` unless an argument is a directory or one can be created."""
    file = file_above(folder / "any")
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
    """Provides the path of a new file, in a folder of its own; it then replaces the target.

    The target, whose folder must exist, changes in one step when the block ends. If the block
    raises, or the process dies, it stays as it was.
    """
    path = pathlib.Path(path)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=path.parent) as folder:
        new = pathlib.Path(folder, path.name)
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)


@contextlib.contextmanager
def replacing_folder(path):
    """Provides an empty folder beside the target, which it replaces when the block ends.

    If the block raises, the target stays as it was. Only one process at a time may replace a
    folder: the caller holds its lock, see `tfresidual.machine.locks.locked`. If the process dies
    while it moves the folders, `remove_unfinished` puts the new one in place.
    """
    path = pathlib.Path(path)
    new, old = (path.with_name(f".{path.name}{end}") for end in (NEW, OLD))
    new.mkdir()
    try:
        yield new
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except BaseException:
            if old.exists():
                os.replace(old, path)
            raise
    finally:
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)


def remove_unfinished(folder, target="*"):
    """Removes what processes that were killed left in a folder, or beside one target in it.

    No other process may be writing there. A new folder whose target was already moved out of the
    way is complete, and is put in its place.
    """
    folder = pathlib.Path(folder)
    for old in folder.glob(f".{target}{OLD}"):
        path = old.with_name(old.name[1 : -len(OLD)])
        new = old.with_name(f".{path.name}{NEW}")
        if new.exists() and not path.exists():
            os.replace(new, path)
    ends = [f".{target}{NEW}", f".{target}{OLD}", *([f"{UNFINISHED}*"] if target == "*" else [])]
    for path in (path for end in ends for path in folder.glob(end)):
        shutil.rmtree(path, ignore_errors=True)


def read_json(path, remedy=""):
    """Returns the content of a JSON file; `remedy` says what to do if it is damaged."""
    try:
        return json.loads(pathlib.Path(path).read_bytes())
    except ValueError as error:
        raise damaged(path, error, remedy) from error


def read_table(path, remedy=""):
    """Returns the table in a CSV file; `remedy` says what to do if it is damaged."""
    import pandas as pd

    # To the last digit, as pandas from version 3 on reads by default.
    options = {"float_precision": "round_trip"} if pd.__version__ < "3" else {}
    try:
        return pd.read_csv(path, **options)
    except ValueError as error:
        raise damaged(path, error, remedy) from error


def damaged(path, reason, remedy=""):
    """Returns the error for a file without what was written; `reason` may be an error."""
    # Error messages of libraries may take pages.
    reason = " ".join(str(reason).split())[:300].rstrip(".")
    text = f"{pathlib.Path(path).name} is damaged: {reason}."
    return ValueError(f"{text}{remedy and f' {remedy}.'} Received: path={str(path)!r}")
