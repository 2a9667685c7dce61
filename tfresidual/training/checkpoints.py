"""A training's log and networks on disk, so that it can be killed and gone on with."""

import csv
import io
import json
import pathlib
import re
import zipfile

import keras
import pandas as pd

from tfresidual.files import damaged, remove_unfinished, replacing

CHECKPOINT = re.compile(r"epoch-(\d+)\.keras")
# Keras leaves the states of random generators (dropout) out of a .keras file.
GENERATORS = "tfresidual-generators.json"
ANEW = "Put it back, or remove the folder to train anew"


class TrainingFolder:
    """The files of one training: its log, its newest checkpoint and its best network.

    - `log.csv`: a row per epoch with everything in `logs`.
    - `checkpoints/epoch-0007.keras`: network and optimizer behind the newest epoch.
    - `model.keras`: the network of the epoch whose monitored value was best.

    Every file is written beside its target and moved into place. An epoch's row of the log comes
    first, then its checkpoint, then the best network: whatever a kill leaves is consistent up to
    the newest checkpoint, and the rest is done again.

    Args:
        path: folder of the training, made when the training begins.
        monitor: key of the logs whose highest value marks the best epoch.
    """

    def __init__(self, path, monitor):
        self.path = pathlib.Path(path)
        self.monitor = monitor
        self.checkpoints = self.path / "checkpoints"
        self.log_path = self.path / "log.csv"
        self.model_path = self.path / "model.keras"

    def newest(self):
        """The newest checkpoint as (epoch, path), or `None`."""
        found = []
        for path in self.checkpoints.glob("*"):
            match = CHECKPOINT.fullmatch(path.name)
            if match:
                found.append((int(match[1]), path))
        return max(found, default=None)

    def log(self):
        """The log as a `pandas.DataFrame`, without rows, where there is none.

        Raises:
            ValueError: if it is damaged: pandas would fill up a row that is cut.
        """
        if not self.log_path.exists():
            return pd.DataFrame()
        try:
            text = self.log_path.read_bytes().decode()
            # pandas says of an empty file that it is one.
            log = pd.read_csv(self.log_path)
            header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        except (ValueError, csv.Error) as error:
            raise damaged(self.log_path, error, ANEW) from error
        widths = {len(row) for row in rows}
        if widths - {len(header)} or not text.endswith("\n"):
            raise damaged(self.log_path, "a row is cut", ANEW)
        for column in ("epoch", self.monitor):
            if column not in log:
                raise damaged(self.log_path, f"it has no column {column!r}", ANEW)
        for column in log:
            numbers = pd.to_numeric(log[column], errors="coerce").notna()
            is_text = log[column].notna() & ~numbers
            # A callback may publish text, but then in every epoch.
            if is_text.any() and (numbers.any() or column in ("epoch", self.monitor)):
                raise damaged(self.log_path, f"there is text in the column {column!r}", ANEW)
        return log

    def best_epoch(self, log):
        """The epoch with the highest monitored value, the earliest of equals."""
        if log[self.monitor].isna().all():
            raise ValueError(
                f"The network has no best epoch: `{self.monitor}` is NaN in every epoch, "
                f"the training diverged. Received: {len(log)} epochs in {self.log_path}"
            )
        return int(log.loc[log[self.monitor].idxmax(), "epoch"])

    def resume(self):
        """Brings the folder back to its newest checkpoint.

        Returns:
            A tuple `(network, epochs, log)`: the network as it was behind its last whole epoch,
            how many epochs that were, and their log; `(None, 0, empty log)` where there is no
            checkpoint.
        """
        newest = self.newest()
        for folder in filter(pathlib.Path.is_dir, (self.path, self.checkpoints)):
            remove_unfinished(folder)
        if newest is None:
            # A kill before the first checkpoint leaves the log of one epoch, and no network.
            if self.model_path.exists() or len(self.log()) > 1:
                raise ValueError(
                    "There is a training, but no checkpoint of it. Put the newest one back, or "
                    f"remove the folder to train anew. Received: path={str(self.checkpoints)!r}"
                )
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.log_path.unlink(missing_ok=True)
            return None, 0, pd.DataFrame()
        epoch, path = newest
        network = opened(path, "A training keeps only its newest checkpoint. " + ANEW)
        log = self._log_until(epoch)
        if not log[self.monitor].isna().all() and (best := self.best_epoch(log)) != epoch:
            self._check_best(best)
        self._write_log(log)
        self._keep_best(log, epoch, path)
        return network, epoch + 1, log

    def _check_best(self, epoch):
        """Raises an error unless the best network, of an epoch before the newest, is whole."""
        if not self.model_path.exists():
            raise FileNotFoundError(
                f"The network of epoch {epoch}, the best so far, is missing. {ANEW}. "
                f"Received: path={str(self.model_path)!r}"
            )
        opened(self.model_path)

    def add(self, log, network):
        """Writes an epoch's log, its checkpoint and, where it is the best, its network."""
        epoch = int(log["epoch"].iloc[-1])
        self._write_log(log)
        path = self.checkpoints / f"epoch-{epoch:04d}.keras"
        with replacing(path) as written:
            network.save(written)
            with zipfile.ZipFile(written, "a") as archive:
                states = [state.numpy().tolist() for state in _generators(network)]
                archive.writestr(GENERATORS, json.dumps(states))
        self._keep_best(log, epoch, path)
        for old in self.checkpoints.glob("epoch-*.keras"):
            if old != path:
                old.unlink()

    def _log_until(self, epoch):
        log = self.log()
        if len(log):
            log = log[log["epoch"] <= epoch]
            if list(log["epoch"]) == list(range(epoch + 1)):
                return log
        raise ValueError(
            f"There is a checkpoint of epoch {epoch}, but log.csv does not hold the epochs up to "
            f"it. {ANEW}. Received: path={str(self.log_path)!r}"
        )

    def _write_log(self, log):
        with replacing(self.log_path) as written:
            log.to_csv(written, index=False)

    def _keep_best(self, log, epoch, path):
        if not log[self.monitor].isna().all() and self.best_epoch(log) == epoch:
            with replacing(self.model_path) as written:
                written.write_bytes(path.read_bytes())


def _generators(network):
    """The states of the random generators of a network, always in the same order."""
    return [state for state in network.variables if state.name == "seed_generator_state"]


def check_archive(path, remedy):
    """Raises an error unless a `.keras` file is whole, as far as is seen without opening it.

    Raises:
        ValueError: if it is damaged.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                reason = archive.testzip() and f"{archive.testzip()} in it is"
        except Exception as error:
            # A library for every kind of compression, and errors of each.
            raise damaged(path, error, remedy) from error
    if reason:
        raise damaged(path, reason, remedy)


def opened(path, remedy=ANEW):
    """The network in a `.keras` file of a training, with the states of its random generators.

    Raises:
        ValueError: if it is damaged.
        OSError: if it cannot be read.
    """
    check_archive(path, remedy)
    try:
        network = keras.saving.load_model(path)
        with zipfile.ZipFile(path) as archive:
            # A network without any may come from elsewhere.
            if GENERATORS in archive.namelist() or _generators(network):
                states = json.loads(archive.read(GENERATORS))
                for variable, state in zip(_generators(network), states, strict=True):
                    variable.assign(state)
    except Exception as error:
        # Keras raises whatever its parts raise.
        raise damaged(path, error, remedy) from error
    return network


class Checkpoints(keras.callbacks.Callback):
    """Keeps a `TrainingFolder` up to date; must be the last callback of `fit`.

    Args:
        folder: a `TrainingFolder`.
        log: the log of the epochs before, as a `pandas.DataFrame`.
    """

    def __init__(self, folder, log):
        super().__init__()
        self.folder = folder
        self.log = log

    def on_epoch_end(self, epoch, logs=None):
        if self.folder.monitor not in (logs or {}):
            metric = self.folder.monitor.removeprefix("val_")
            raise ValueError(
                "Argument `metric` must be the name of a metric that the network was compiled "
                f"with; the logs hold {', '.join(logs or {})}. Received: metric={metric!r}"
            )
        row = pd.DataFrame([{"epoch": epoch, **(logs or {})}])
        self.log = pd.concat([self.log, row], ignore_index=True) if len(self.log) else row
        self.folder.add(self.log, self.model)
