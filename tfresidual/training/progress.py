"""Progress of a training run on the terminal."""

import time

import keras
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tfresidual.machine.console import PlainColumn, say

SECONDS_BETWEEN_UPDATES = 0.2


class TrainingProgress(keras.callbacks.Callback):
    """Shows a progress bar over all epochs and prints a line after each epoch."""

    def __init__(self, epochs, steps, metric, console):
        super().__init__()
        self.epochs, self.steps, self.metric, self.console = epochs, steps, metric, console
        self._progress = None

    def on_train_begin(self, logs=None):
        self._progress = Progress(
            PlainColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            PlainColumn("{task.fields[loss]}"),
            console=self.console,
            transient=True,
        )
        self._task = self._progress.add_task("training", total=self.epochs * self.steps, loss="")
        self._progress.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = self._shown = time.monotonic()
        self._progress.update(
            self._task,
            description=f"training, epoch {epoch + 1} of {self.epochs}",
            completed=epoch * self.steps,
        )
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        if now - self._shown < SECONDS_BETWEEN_UPDATES:
            return
        self._shown = now
        self._progress.update(
            self._task,
            completed=self._epoch * self.steps + batch + 1,
            loss=f"loss {logs['loss']:.3f}" if logs else "",
        )

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.monotonic() - self._begun
        shown = ["loss", self.metric, "val_loss", f"val_{self.metric}"]
        values = "  ".join(f"{key} {logs[key]:.4f}" for key in shown if key in (logs or {}))
        say(self.console, f"epoch {epoch + 1:>3} of {self.epochs}  {values}  ({seconds:.0f} s)")

    def close(self):
        """Removes the progress bar, also after an interrupted training run."""
        if self._progress is not None:
            self._progress.stop()
