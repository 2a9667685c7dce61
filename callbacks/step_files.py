"""The files that hold the metrics of single training steps."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pandas as pd
import tensorflow as tf

from tfresidual.callbacks.summaries import metadata_of
from tfresidual.callbacks.training_step import METRICS
from tfresidual.machine.files import damaged, written
from tfresidual.probes.logs import log_key

if TYPE_CHECKING:
    import pathlib

    from tfresidual.types import Frame

COLUMNS = ("epoch", "step", "stage", "block", *METRICS)
HEADER = (",".join(COLUMNS) + "\n").encode()


class StepTable:
    """A CSV file with a row per measured step and block, which is complete at any time.

    Args:
        path: the file. Its folder is created.
        epoch: int, the first epoch of this training. Rows of earlier epochs are kept, all others
            are of a training that was interrupted, or of another one.

    Raises:
        ValueError: if there is a file that is no such table.
    """

    def __init__(self, path: pathlib.Path, epoch: int) -> None:
        self.path = path
        # How many bytes of the file are kept when rows are added.
        self._size = self._size_until(epoch) if path.exists() else 0

    def _size_until(self, epoch):
        with self.path.open("rb") as file:
            if file.readline() != HEADER:
                raise ValueError(
                    "Argument `csv` must be the path of a new file, or of one that `StepMetrics` "
                    f"has written. Received: csv={str(self.path)!r}, a file without the columns "
                    f"{', '.join(COLUMNS)}"
                )
            size = file.tell()
            for line in file:
                known, *_ = line.split(b",")
                if not known.isdigit() or not line.endswith(b"\n"):
                    raise damaged(self.path, f"a row is {line[:80]!r}", "Move it away")
                if int(known) >= epoch:
                    break
                size += len(line)
        return size if epoch else 0

    def add(self, frame: Frame) -> None:
        """Adds rows; a file that a kill interrupts stays as it was."""
        with written(self.path) as beside, beside.open("wb") as file:
            if self._size:
                with self.path.open("rb") as old:
                    _copy(old, file, self._size)
            else:
                file.write(HEADER)
            frame.to_csv(file, columns=COLUMNS, index=False, header=False, lineterminator="\n")
            size = file.tell()
        self._size = size


def _copy(source, target, size):
    shutil.copyfileobj(source, target, 1 << 20)
    target.seek(size)
    target.truncate()


class StepEvents:
    """Events of TensorBoard with a scalar per measured step, block and metric.

    Args:
        path: the folder of the run.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._writer = tf.summary.create_file_writer(str(path))
        self._metadata = metadata_of("scalars")

    def add(self, frame: Frame) -> None:
        """Writes the numbers in rows."""
        with self._writer.as_default():
            for row in frame.to_dict("records"):
                for name in METRICS:
                    if not pd.isna(row[name]):
                        key = log_key(name, row["stage"], row["block"])
                        value = tf.constant(row[name], tf.float32)
                        tf.summary.write(key, value, step=row["step"], metadata=self._metadata)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
