"""Exports a series of SavedModels during training, to be probed later."""

from __future__ import annotations

import contextlib
import copy
import os
from typing import TYPE_CHECKING

import keras

from tfresidual.callbacks.failures import GoesOn
from tfresidual.callbacks.probe_callback import chain_in_training, epoch_numbers
from tfresidual.definitions.arguments import (
    check_bool,
    check_ints,
    checked_path,
)
from tfresidual.definitions.warning import warn
from tfresidual.machine.files import check_folder, remove_unfinished
from tfresidual.machine.locks import locked
from tfresidual.sources.exporting import export
from tfresidual.sources.saved_model.format import check_can_open, series_of, series_path
from tfresidual.sources.saved_model.writer import obstacle_at, parts_to_save

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable
    from typing import Any

    from tfresidual.definitions.types import OnError, StrPath


class ExportForProbing(GoesOn, keras.callbacks.Callback):
    """Exports the network at chosen epochs of `fit`, see `tfresidual.export`.

    Writes `folder/epoch0001`, `folder/epoch0002` and so on, each complete or not at all. Epochs are
    counted from 1, as on the progress bar; 0 is the network before training. `tfresidual probe
    folder` draws results over the epochs; `tfresidual.chain("folder/epoch0001")` opens one export.

    The functions of the network are compiled once, before training. Only one training run at a time
    can write to a folder.

    Example:

    >>> series = ExportForProbing("runs/series", every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[series], verbose=0)
    >>> frame = probes.readout(tfresidual.chain("runs/series/epoch0005"), test)

    Args:
        folder: the directory to write to, created if need be. TensorFlow cannot open a path with
            `[` or a backslash, which are parts of a pattern to it.
        every: int, the network is exported once every `every` epochs.
        epochs: ints, the epochs to export instead of `every`, at least one of them an epoch of the
            training. When training is resumed, earlier epochs count too, but are not exported
            again.
        overwrite: whether existing exports of the same epochs are replaced.
        inputs: see `tfresidual.export`; needed for a network that leaves the sizes of its inputs
            open.
        on_error: what happens if an export fails after training has begun: `"warn"`, a warning, and
            training continues without it, or `"raise"`, the error.

    Raises:
        ValueError: if an argument cannot be used; when training begins, if the network cannot be
            exported.
        FileExistsError: when training begins, if an export would replace something.
        tfresidual.machine.locks.FolderInUseError: when training begins, if another training run
            writes to the folder.
    """

    def __init__(
        self,
        folder: StrPath,
        *,
        every: int = 1,
        epochs: Iterable[int] | None = None,
        overwrite: bool = False,
        inputs: Any = None,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__()
        self.set_on_error(on_error)
        self.every: int = every
        self.overwrite: bool = check_bool("overwrite", overwrite)
        self.inputs = inputs
        self.folder: pathlib.Path = checked_path("folder", folder)
        check_can_open("folder", self.folder)
        self.epochs: frozenset[int] | None = None
        if epochs is not None:
            self.epochs = frozenset(check_ints("epochs", epochs, at_least=0))
        self._has_begun = False
        self._held = contextlib.ExitStack()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._has_begun, self.warned_of = False, set()
        # A previous training run that failed did not release the folder, which may be gone.
        with contextlib.suppress(OSError):
            self._held.close()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        # Only now is the first epoch of this training run known.
        last = (self.params or {}).get("epochs") or epoch + 1
        to_come = range(epoch + 1 if epoch else 0, last + 1)
        planned = {number for number in to_come if self._is_chosen(number)}
        if not planned:
            warn(
                "ExportForProbing will export nothing: the training has only "
                f"{epoch_numbers(epoch, last)}."
            )
        if planned:
            check_folder("folder", self.folder)
            with contextlib.ExitStack() as held:
                held.enter_context(locked(self.folder))
                # Removes what a training run that was killed left behind.
                remove_unfinished(self.folder)
                self._check_folder(planned)
                # Finds out here, not after the epoch, whether the model can be exported. A model
                # that is built by its first batch can only be checked after that batch.
                if self.model.built:
                    parts_to_save(chain_in_training(self.model), inputs=self.inputs)
                self._held = held.pop_all()
        if epoch == 0 and self._is_chosen(0):
            self._export(0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._is_chosen(epoch + 1):
            with self.going_on("the export of this epoch"):
                self._export(epoch + 1)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        with self.going_on("what its folder held"):
            self._held.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportForProbing:
        """Returns a copy without a model, which holds no lock on a folder."""
        new = copy.copy(self)
        memo[id(self)] = new
        new._model, new._has_begun, new._held = None, False, contextlib.ExitStack()
        return new

    def _is_chosen(self, number):
        if self.epochs is not None:
            return number in self.epochs
        return number > 0 and number % self.every == 0

    def _check_folder(self, planned):
        received = f"Received: folder={str(self.folder)!r}"
        # Anything that has the name of a planned export.
        named = series_of(self.folder, is_member=os.path.lexists)
        there = {number: path for number, path in named.items() if number in planned}
        if there and not self.overwrite:
            raise FileExistsError(
                "Argument `folder` must hold no exports of the epochs to come, unless "
                f"`overwrite=True` is given. {received}, which holds those of epochs "
                f"{', '.join(map(str, there))}"
            )
        for path in there.values():
            obstacle = obstacle_at(path, self.overwrite)
            if obstacle is not None:
                raise FileExistsError(
                    "Argument `folder` must hold only exports, which are replaced, under the "
                    f"names of the epochs to come. {received} with {path.name}, {obstacle}"
                )

    def _export(self, number):
        path = series_path(self.folder, number)
        chain = chain_in_training(self.model)
        export(chain, path, overwrite=self.overwrite, inputs=self.inputs)
