"""Files in the folder of a search: where they are, and how they are read and written."""

from __future__ import annotations

import json

from keras_tuner import errors

from tfresidual.machine.files import replacing

# Files in the folder of a trial: its measurements, its weights, and the error message of a failed
# worker.
TRIAL_FILE, WEIGHTS_FILE, FAILURE_FILE = "trial.json", "checkpoint.weights.h5", "failure.txt"
# The file in the folder of a search: the state of its oracle.
ORACLE_FILE = "oracle.json"
# What to do about a damaged file.
REMEDY = "Replace it by an intact copy, or search in another folder"


class TrialFileError(errors.FatalError, OSError):
    """A file of a search cannot be read or written; other depths will not help."""


def trial_files(folder):
    """Returns the sorted paths of the measurements of all trials in the folder of a search."""
    return sorted(folder.glob(f"trial_*/{TRIAL_FILE}"))


def write_json(path, content):
    """Writes JSON to a temporary file and moves it into place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        # keras-tuner would count the trial as failed.
        raise TrialFileError(str(error)) from error
