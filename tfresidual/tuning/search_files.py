"""Files in the folder of a search: where they are, and how they are read and written."""

from __future__ import annotations

import contextlib
import json
import pathlib

from tfresidual.machine.files import damaged, written

# Files in the folder of a trial: its measurements, and the error message of a failed worker.
TRIAL_FILE, FAILURE_FILE = "trial.json", "failure.txt"
# Files in the folder of a search: the state of its oracle, and what its networks are.
ORACLE_FILE, NETWORK_FILE = "oracle.json", "network.json"
# What to do about a damaged file.
REMEDY = "Replace it by an intact copy, or search in another folder"

# What Python and keras-tuner raise for a file that holds something else than was written.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)


def is_begun(path):
    """Returns whether a folder contains a search.

    Args:
        path: path of the file of the search in the folder.

    Raises:
        FileNotFoundError: if the folder contains trials but not the file of their search.
    """
    if path.exists():
        return True
    if trial_files(path.parent):
        raise FileNotFoundError(
            f"The folder of the search holds trials, but no {path}. Put the file back, or "
            f"search in another folder. Received: folder={str(path.parent)!r}"
        )
    return False


def trial_file(folder):
    """Returns the path of the measurements of a trial, from the path of its folder."""
    return pathlib.Path(folder) / TRIAL_FILE


def trial_files(folder):
    """Returns the sorted paths of the measurements of all trials in the folder of a search."""
    return sorted(folder.glob(f"trial_*/{TRIAL_FILE}"))


def message_of_worker(folder):
    """Returns the error message of the worker that failed in the folder of a trial, or `None`."""
    path = pathlib.Path(folder, FAILURE_FILE)
    return path.read_text(errors="replace") if path.exists() else None


@contextlib.contextmanager
def reading(path):
    """Reports errors in the block as damage to a file of the search.

    Raises:
        ValueError: if the block raises an error; the message names the file and a remedy.
    """
    try:
        yield
    except _UNREADABLE as error:
        raise damaged(path, f"{type(error).__name__}: {error}", REMEDY) from error


def write_json(path, content):
    """Writes JSON to a temporary file and moves it into place."""
    with written(path) as beside:
        beside.write_text(json.dumps(content), encoding="utf-8")
