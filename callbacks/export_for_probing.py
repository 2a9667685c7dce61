"""Leaves a series of SavedModels behind a training, to be probed later."""

import contextlib
import copy
import os
import warnings

import keras
from tfresidual.callbacks.probe_callback import chain_in_training

from tfresidual.arguments import check_bool, check_int, check_ints
from tfresidual.exporting import export
from tfresidual.files import checked_path, remove_unfinished
from tfresidual.locks import locked, remove_abandoned
from tfresidual.saved_model.format import series_of, series_path
from tfresidual.saved_model.writer import obstacle_at, parts_to_save


class ExportForProbing(keras.callbacks.Callback):
    """Exports the network at chosen epochs of `fit`, see `tfresidual.export`.

    Writes `folder/epoch0001`, `folder/epoch0002` and so on, counted from 1 as on the progress bar;
    0 is the network before the first epoch. Each is there whole or not at all. `tfresidual probe
    folder` probes the series and draws it over the epochs, `tfresidual.chain("folder/epoch0001")`
    opens one of it.

    The functions of the network are compiled once, before anything is trained, and written again
    with the weights of each epoch. What cannot be exported, or not to there, is an error then.

    Example:

    >>> series = ExportForProbing("runs/series", every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[series], verbose=0)
    >>> frame = probes.readout(tfresidual.chain("runs/series/epoch0005"), test)

    One training at a time writes to a folder: another one, in whatever process, does not begin.

    Args:
        folder: where to write, made if it is not there.
        every: int, the network is exported after every so many epochs.
        epochs: ints, the epochs to export instead, 0 for the network as training begins. Not
            together with `every`. One of them at least must be among those of the training. When a
            training is resumed, those before it count, although they are not exported any more.
        overwrite: whether exports of the same epochs that are there are replaced. Without, a
            training that would replace one does not begin.

    Raises:
        ValueError: if an argument cannot be used, or both `every` and `epochs` are given; as a
            training begins, if it has none of the `epochs`, or the network cannot be exported.
        FileExistsError: as a training begins, if an export would replace something.
        tfresidual.locks.FolderInUseError: as a training begins, if another one writes to the
            folder.
    """

    def __init__(self, folder, *, every=1, epochs=None, overwrite=False):
        super().__init__()
        self.every = check_int("every", every, at_least=1)
        self.overwrite = check_bool("overwrite", overwrite)
        if epochs is not None and every != 1:
            raise ValueError(
                "Arguments `every` and `epochs` must not both be given. "
                f"Received: every={every!r}, epochs={epochs!r}"
            )
        self.folder = checked_path("folder", folder)
        if epochs is not None:
            epochs = frozenset(check_ints("epochs", epochs, at_least=0))
        self.epochs = epochs
        self._has_begun = False
        self._held = contextlib.ExitStack()

    def on_train_begin(self, logs=None):
        self._has_begun = False
        # A training that failed did not let go of it.
        self._held.close()
        last = (self.params or {}).get("epochs")
        if not last:
            return
        if self.epochs is not None and min(self.epochs) > last:
            raise ValueError(
                f"Argument `epochs` must hold one of the epochs of the training, from 0 to {last}. "
                f"Received: epochs={sorted(self.epochs)}"
            )
        if self.epochs is None and self.every > last:
            warnings.warn(
                f"ExportForProbing exports every {self.every} epochs of a training that has "
                f"{last}: it will not export anything.",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch, logs=None):
        if self._has_begun:
            return
        self._has_begun = True
        # Now it is known with which epoch the training begins.
        last = (self.params or {}).get("epochs") or epoch + 1
        to_come = range(epoch + 1 if epoch else 0, last + 1)
        planned = {number for number in to_come if self._is_chosen(number)}
        if planned:
            with contextlib.ExitStack() as held:
                held.enter_context(locked(self.folder))
                # What a training that was killed has left.
                remove_unfinished(self.folder)
                remove_abandoned(self.folder)
                self._check_folder(planned)
                # What cannot be exported is found here, not after the epoch. A model that is built
                # by its first batch can only be looked at then.
                if self.model.built:
                    parts_to_save(chain_in_training(self.model))
                self._held = held.pop_all()
        if epoch == 0 and self._is_chosen(0):
            self._export(0)

    def on_epoch_end(self, epoch, logs=None):
        if self._is_chosen(epoch + 1):
            self._export(epoch + 1)

    def on_train_end(self, logs=None):
        self._held.close()

    def __deepcopy__(self, memo):
        """A copy without a model, which holds no folder."""
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
        # Whatever has the name of an export to come.
        named = series_of(self.folder, is_member=os.path.lexists)
        there = {number: path for number, path in named.items() if number in planned}
        if there and not self.overwrite:
            raise FileExistsError(
                "Argument `folder` must hold no exports of the epochs to come, or "
                f"`overwrite=True` be given. {received}, which holds those of epochs "
                f"{', '.join(map(str, there))}"
            )
        for path in there.values():
            obstacle = obstacle_at(path, self.overwrite)
            if obstacle is not None:
                raise FileExistsError(
                    "Argument `folder` must hold nothing but exports to replace under the names of "
                    f"the epochs to come. {received} with {path.name}, {obstacle}"
                )

    def _export(self, number):
        path = series_path(self.folder, number)
        export(chain_in_training(self.model), path, overwrite=self.overwrite)
