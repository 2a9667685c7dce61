"""Leaves a series of SavedModels behind a training, to be probed later."""

import pathlib
from collections.abc import Iterable

import keras
from tfresidual.callbacks.probe_callback import chain_in_training

from tfresidual.chains.saved_model import series_of, series_path
from tfresidual.exporting import export


class ExportForProbing(keras.callbacks.Callback):
    """Exports the network at chosen epochs of `fit`, see `tfresidual.export`.

    Writes `folder/epoch0001`, `folder/epoch0002` and so on, counted from 1 as on the progress bar;
    0 is the network before the first epoch. Each is there whole or not at all. `tfresidual probe
    folder` probes the series and draws it over the epochs, `tfresidual.chain("folder/epoch0001")`
    opens one of it.

    The functions of the network are compiled once, and written again with the weights of each
    epoch.

    Example:

    >>> net.fit(train, epochs=20, callbacks=[ExportForProbing("runs/series", every=5)])
    >>> frame = probes.readout(tfresidual.chain("runs/series/epoch0005"), test)

    Args:
        folder: where to write, made if it is not there.
        every: int, the network is exported after every so many epochs.
        epochs: ints, the epochs to export instead, 0 for the network as training begins.
        overwrite: whether exports of the same epochs that are there are replaced. Without, a
            training that would replace one does not begin.

    Raises:
        ValueError: if `every` or `epochs` cannot be used.
    """

    def __init__(self, folder, every=1, epochs=None, overwrite=False):
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"Argument `every` must be a positive int. Received: every={every!r}")
        self.folder = pathlib.Path(folder)
        self.every = every
        self.epochs = None if epochs is None else _checked(epochs)
        self.overwrite = overwrite
        self._has_begun = False

    def on_train_begin(self, logs=None):
        self._has_begun = False

    def on_epoch_begin(self, epoch, logs=None):
        if self._has_begun:
            return
        self._has_begun = True
        # Now it is known with which epoch the training begins.
        last = self.params.get("epochs") or epoch + 1
        to_come = range(epoch + 1 if epoch else 0, last + 1)
        planned = {number for number in to_come if self._is_chosen(number)}
        there = sorted(planned & set(series_of(self.folder)))
        if there and not self.overwrite:
            raise FileExistsError(
                "Argument `folder` must hold no exports of the epochs to come, or "
                f"`overwrite=True` be given. Received: folder={str(self.folder)!r}, which holds "
                f"those of epochs {', '.join(map(str, there))}"
            )
        if epoch == 0 and self._is_chosen(0):
            self._export(0)

    def on_epoch_end(self, epoch, logs=None):
        if self._is_chosen(epoch + 1):
            self._export(epoch + 1)

    def _is_chosen(self, number):
        if self.epochs is not None:
            return number in self.epochs
        return number > 0 and number % self.every == 0

    def _export(self, number):
        path = series_path(self.folder, number)
        export(chain_in_training(self.model), path, overwrite=self.overwrite)


def _checked(epochs):
    is_list = isinstance(epochs, Iterable) and not isinstance(epochs, (str, bytes, dict))
    checked = list(epochs) if is_list else []
    are_ints = [isinstance(e, int) and not isinstance(e, bool) and e >= 0 for e in checked]
    if not checked or not all(are_ints):
        raise ValueError(
            f"Argument `epochs` must hold ints, 0 or more. Received: epochs={epochs!r}"
        )
    return frozenset(checked)
