"""Writes the figures of probes into TensorBoard during training."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tfresidual.callbacks.failures import GoesOn
from tfresidual.callbacks.order import callbacks_before
from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.callbacks.step_files import metadata_of
from tfresidual.definitions.arguments import ArgumentError, checked_path
from tfresidual.definitions.probes import PROBES
from tfresidual.definitions.settings import EPSILON
from tfresidual.machine.files import check_folder
from tfresidual.plots.declared import study_figures

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable
    from typing import Any

    from tfresidual.definitions.types import OnError, StrPath

# The mean that the stopping rule allows where no callback says another one.
_DPI = 100
_PROBE_OF = {figure.name: probe.name for probe in PROBES.values() for figure in probe.figures}


class Figures(GoesOn, keras.callbacks.Callback):
    """Draws what probes measured, and writes the figures for TensorBoard's tab of images.

    The figures are those of the report, drawn in the epochs in which the probes run and written as
    `"PROBE/FIGURE"`, such as `"block_metrics/cosine_loss"`, with the epoch (from 0) as the step. A
    figure that cannot be drawn, for example because the training diverged, is left out with a
    warning.

    Example:

    >>> probe = callbacks.BlockMetrics(test.take(4))
    >>> figures = callbacks.Figures(probe, "logs/figures")
    >>> history = net.fit(train, callbacks=[probe, figures], verbose=0)

    Args:
        probes: a callback that runs a probe, or a list of them, which come before this one in
            `fit`.
        log_dir: the folder to write, such as `"logs/figures"` beside the `"logs/train"` of
            `keras.callbacks.TensorBoard`.
        every: int, figures are drawn once every `every` epochs, if the probes run in them.
        on_error: what happens if figures cannot be drawn or written, see `ProbeCallback`.

    Raises:
        ValueError: if an argument cannot be used; when training begins, if a probe does not come
            before this callback.
        OSError: when training begins, if `log_dir` cannot be written to.
    """

    def __init__(
        self,
        probes: ProbeCallback | Iterable[ProbeCallback],
        log_dir: StrPath,
        *,
        every: int = 1,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__()
        self.set_on_error(on_error)
        if isinstance(probes, ProbeCallback):
            probes = [probes]
        self.probes: list[ProbeCallback] = list(probes)
        self.log_dir: pathlib.Path = checked_path("log_dir", log_dir)
        self.every: int = every
        self._writer: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.warned_of = set()
        before = callbacks_before(self)
        late = [type(probe).__name__ for probe in self.probes if probe not in before]
        if late:
            raise ArgumentError(
                "probes",
                "hold callbacks that come before `Figures` in the list of callbacks: it draws "
                "what they measured in the same epoch",
                received=f"probes={late!r}, which come later or not at all",
            )
        check_folder("log_dir", self.log_dir)
        self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (epoch + 1) % self.every:
            return
        drawn: dict[str, Any] = {}
        for probe in self.probes:
            with self.going_on(f"figures of {type(probe).__name__} in this epoch"):
                found = study_figures(probe.frames, getattr(probe, "epsilon", EPSILON))
                drawn = found | drawn
        with self.going_on("the figures of this epoch"), self._writer.as_default():
            for name, figure in drawn.items():
                _write(f"{_PROBE_OF[name]}/{name}", figure, epoch)
            self._writer.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        with self.going_on("the last figures"):
            self._writer.close()
        self._writer = None


def _write(tag, figure, step):
    """Writes a figure as an image, in the form that TensorBoard's tab of images reads."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    sizes = [f"{round(size * _DPI)}" for size in figure.get_size_inches()]
    content = tf.constant([*sizes, file.getvalue()])
    tf.summary.write(tag, content, step=step, metadata=metadata_of("images"))
