"""Log and networks of a training run on disk, so that it can be killed and resumed."""

import json
import pathlib
import re
import zipfile

import keras
import pandas as pd

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine import backends
from tfresidual.machine.files import damaged, read_table, remove_unfinished, replacing

CHECKPOINT = re.compile(r"epoch-([0-9]+)\.keras")
# Keras does not save the states of random generators (of dropout) in a .keras file.
GENERATORS = "tfresidual-generators.json"
# Nor those of generators that belong to no network.
OTHER_GENERATORS = "tfresidual-torch-generators.json"
REMEDY = "Put it back, or train in another folder"


class TrainingFolder:
    """Files of a training run: its log, its newest checkpoint and its best network.

    - `log.csv`: a row per epoch with everything in `logs`.
    - `checkpoints/epoch-0007.keras`: network and optimizer after the newest epoch.
    - `model.keras`: the network of the epoch with the best monitored value.

    After each epoch, the log is written first, then the checkpoint, then the best network. After a
    kill, the files are therefore consistent up to the newest checkpoint; later work is repeated.

    Args:
        path: folder of the training run, created when the run starts.
        monitor: key of the logs whose highest value marks the best epoch.
    """

    def __init__(self, path, monitor):
        self.path = pathlib.Path(path)
        self.monitor = monitor
        self.checkpoints = self.path / "checkpoints"
        self.log_path = self.path / "log.csv"
        self.model_path = self.path / "model.keras"
        # Of generators that belong to no network, after the last complete epoch; if there are any.
        self.random_state = None

    def newest(self):
        """Returns the newest checkpoint as (epoch, path), or `None`."""
        names = ((CHECKPOINT.fullmatch(path.name), path) for path in self.checkpoints.glob("*"))
        return max(((int(name[1]), path) for name, path in names if name), default=None)

    def epochs(self):
        """Returns the number of complete epochs; reads no file."""
        newest = self.newest()
        return 0 if newest is None else newest[0] + 1

    def log(self):
        """Returns the log as a `pandas.DataFrame`, without rows if there is no log."""
        if not self.log_path.exists():
            return pd.DataFrame()
        return read_table(self.log_path, REMEDY)

    def best_epoch(self, log):
        """Returns the epoch with the highest monitored value, the earliest if there are several."""
        if log[self.monitor].isna().all():
            raise ValueError(
                f"The network has no best epoch: `{self.monitor}` is NaN in every epoch, "
                f"the training diverged. Received: {len(log)} epochs in {self.log_path}"
            )
        return int(log.loc[log[self.monitor].idxmax(), "epoch"])

    def resume(self):
        """Restores the newest checkpoint: its network or `None`, the epochs done, their log."""
        newest = self.newest()
        for folder in filter(pathlib.Path.is_dir, (self.path, self.checkpoints)):
            remove_unfinished(folder)
        if newest is None:
            # A kill before the first checkpoint leaves at most the log of one epoch, and no
            # network.
            if self.model_path.exists() or len(self.log()) > 1:
                raise ValueError(
                    "There is a training, but no checkpoint of it. Put the newest one back, or "
                    "train in another folder. "
                    f"Received: path={str(self.checkpoints)!r}"
                )
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.log_path.unlink(missing_ok=True)
            return None, 0, pd.DataFrame()
        epoch, path = newest
        network = opened(path)
        self.random_state = _random_state_in(path)
        log = self._log_until(epoch)
        self._write_log(log)
        self._keep_best(log, epoch, path)
        return network, epoch + 1, log

    def add(self, log, network):
        """Writes the log and checkpoint of an epoch and, if it is the best so far, its network."""
        epoch = int(log["epoch"].iloc[-1])
        self._write_log(log)
        path = self.checkpoints / f"epoch-{epoch:04d}.keras"
        with replacing(path) as written:
            network.save(written)
            with zipfile.ZipFile(written, "a") as archive:
                states = [
                    keras.ops.convert_to_numpy(state).tolist() for state in _generators(network)
                ]
                archive.writestr(GENERATORS, json.dumps(states))
                if (others := backends.random_state()) is not None:
                    archive.writestr(OTHER_GENERATORS, json.dumps(others))
        self._keep_best(log, epoch, path)
        for old in self.checkpoints.iterdir():
            if CHECKPOINT.fullmatch(old.name) and old != path:
                old.unlink()

    def _log_until(self, epoch):
        log = self.log()
        if len(log):
            log = log[log["epoch"] <= epoch]
            if list(log["epoch"]) == list(range(epoch + 1)):
                return log
        raise ValueError(
            f"There is a checkpoint of epoch {epoch}, but log.csv does not hold the epochs up to "
            f"it. {REMEDY}. Received: path={str(self.log_path)!r}"
        )

    def _write_log(self, log):
        with replacing(self.log_path) as written:
            log.to_csv(written, index=False)

    def _keep_best(self, log, epoch, path):
        if not log[self.monitor].isna().all() and self.best_epoch(log) == epoch:
            with replacing(self.model_path) as written:
                written.write_bytes(path.read_bytes())


def _generators(network):
    """Returns the states of a network's random generators, always in the same order."""
    return [state for state in network.variables if state.name == "seed_generator_state"]


def _random_state_in(path):
    """Returns the state of generators that belong to no network, or `None`, from a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        if backends.BACKEND != "torch" or OTHER_GENERATORS not in archive.namelist():
            return None
        return json.loads(archive.read(OTHER_GENERATORS))


def opened(path):
    """Returns the network in a run's `.keras` file, with the states of its random generators."""
    try:
        with zipfile.ZipFile(path) as archive:
            network = keras.saving.load_model(path)
            # The file of a network without random generators need not have the states.
            if GENERATORS in archive.namelist() or _generators(network):
                states = json.loads(archive.read(GENERATORS))
                for variable, state in zip(_generators(network), states, strict=True):
                    variable.assign(state)
    except zipfile.BadZipFile as error:
        raise damaged(path, error, REMEDY) from error
    return network


class Checkpoints(keras.callbacks.Callback):
    """Keeps a `TrainingFolder` up to date, after the log of previous epochs; the last callback."""

    def __init__(self, folder, log):
        super().__init__()
        self.folder = folder
        self.log = log

    def on_epoch_end(self, epoch, logs=None):
        if self.folder.monitor not in (logs or {}):
            metric = self.folder.monitor.removeprefix("val_")
            raise ArgumentError(
                "metric",
                "be the name of a metric that the network was compiled with; the logs hold "
                f"{', '.join(logs or {})}",
                metric,
            )
        row = pd.DataFrame([{"epoch": epoch, **(logs or {})}])
        self.log = pd.concat([self.log, row], ignore_index=True) if len(self.log) else row
        self.folder.add(self.log, self.model)
