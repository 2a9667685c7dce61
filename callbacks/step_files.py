"""The files that hold the metrics of single training steps."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pandas as pd
import tensorflow as tf

from tfresidual.callbacks.training_step import METRICS
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.files import replacing
from tfresidual.probes.logs import log_key

if TYPE_CHECKING:
    import pathlib

    from tfresidual.definitions.types import Frame

COLUMNS = ("epoch", "step", "stage", "block", *METRICS)
HEADER = (",".join(COLUMNS) + "\n").encode()
HEADER_BESIDE = b"epoch,steps\n"


class StepTable:
    """A CSV file with a row per measured step and block, which is complete at any time.

    If not every step is measured, a second file beside it has a row per epoch with the number of
    steps of the training up to its end.

    Args:
        path: the file. Its folder is created.
        epoch: int, the first epoch of this training. Only rows of earlier epochs are kept.
        every: int, one step in so many is measured.

    Attributes:
        steps: the number of steps of the training before that epoch, `None` if it is not known.

    Raises:
        ValueError: if there is a file that is no such table.
    """

    def __init__(self, path: pathlib.Path, epoch: int, every: int) -> None:
        self.path, self.every = path, every
        path.parent.mkdir(parents=True, exist_ok=True)
        self.beside = path.with_name(f"{path.stem}.epochs.csv")
        # How many bytes of the file are kept when rows are added.
        self._size: int
        self._size, steps = self._kept_until(epoch) if path.exists() else (0, [])
        self._has_beside = self.beside.exists() and self._is_own()
        self._epochs = self._epochs_until(epoch) if self._size and self._has_beside else {}
        self.steps: int | None = self._epochs.get(epoch - 1)
        is_every = steps[-1] - steps[0] == 1 if len(steps) > 1 else every == 1
        if steps and is_every and not self._epochs:
            self.steps = steps[-1] + 1

    def _is_own(self):
        with self.beside.open("rb") as file:
            is_own = file.readline() == HEADER_BESIDE
        if not is_own and self.every > 1:
            raise ArgumentError(
                "csv",
                "be a path beside which `StepMetrics` can write a second file",
                received=f"csv={str(self.path)!r}, where {self.beside.name} is another file",
            )
        return is_own

    def _kept_until(self, epoch):
        """Returns the size of the rows before an epoch, and the last two steps before it."""
        steps, last = [], None
        with self.path.open("rb") as file:
            if file.readline() != HEADER:
                raise ArgumentError(
                    "csv",
                    "be the path of a new file, or of one that `StepMetrics` has written",
                    received=f"csv={str(self.path)!r}, a file without the columns "
                    f"{', '.join(COLUMNS)}",
                )
            size = file.tell()
            for line in file:
                # A row without its line end is not whole.
                known, step, *_ = line[: line.index(b"\n")].split(b",")
                if int(known) >= epoch:
                    break
                size += len(line)
                last = int(known)
                if steps[-1:] != [int(step)]:
                    steps = [*steps[-1:], int(step)]
        return (size if epoch else 0), (steps if last == epoch - 1 else [])

    def _epochs_until(self, epoch):
        frame = pd.read_csv(self.beside, dtype=int)
        rows = zip(frame["epoch"], frame["steps"], strict=True)
        return {int(one): int(steps) for one, steps in rows if one < epoch}

    def add(self, epoch: int, frame: Frame, steps: int) -> None:
        """Adds the rows of an epoch that ends after so many steps, all or none."""
        if self.every > 1 or self._epochs:
            self._epochs[epoch] = steps
            rows = pd.DataFrame({"epoch": self._epochs.keys(), "steps": self._epochs.values()})
            with replacing(self.beside) as beside:
                rows.to_csv(beside, index=False, lineterminator="\n")
            self._has_beside = True
        elif self._has_beside:
            self.beside.unlink(missing_ok=True)
        with replacing(self.path) as beside, beside.open("wb") as file:
            if self._size:
                with self.path.open("rb") as old:
                    shutil.copyfileobj(old, file, 1 << 20)
                file.seek(self._size)
                file.truncate()
            else:
                file.write(HEADER)
            frame.to_csv(file, columns=COLUMNS, index=False, header=False, lineterminator="\n")
            size = file.tell()
        self._size = size


class StepEvents:
    """Events of TensorBoard in a folder, with a scalar per measured step, block and metric."""

    def __init__(self, path: pathlib.Path) -> None:
        self._writer = tf.summary.create_file_writer(str(path))
        self._metadata = metadata_of("scalars")

    def add(self, epoch: int, frame: Frame, steps: int) -> None:
        """Writes the numbers in the rows of an epoch, see `StepTable.add`."""
        del epoch, steps
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


def metadata_of(plugin):
    """Returns the metadata of a summary for a plugin of TensorBoard, such as `"scalars"`.

    `tf.summary.scalar` and `tf.summary.image` write the same, but need TensorBoard.
    """
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return metadata
