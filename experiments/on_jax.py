"""Trains networks of papers.py on a GPU where there is JAX and no TensorFlow, and takes them back.

    python experiments/on_jax.py list II-2 IC-4 --size trained --anew > networks.json
    KERAS_BACKEND=jax python experiments/on_jax.py train networks.json --data-file cifar10.npz
    python experiments/on_jax.py take runs/jax

`list` names the networks that are missing; `train` needs their images in a file of `tfresidual data
NAME --to FILE.npz`, and can be started several times side by side: each takes the next network;
`take` turns what comes back (`log.csv`, `network.json` and `weights` of every network) into folders
of `papers.py`, which then measures them: the block metrics of every epoch are measured here, on its
weights. Kernels are kept as the training used them, in bfloat16 where it was its dtype, those of
the best and the last epoch in full.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pandas as pd
from clock import clocked

from tfresidual.jobs import training
from tfresidual.jobs.settings import Settings
from tfresidual.training.checkpoints import TrainingFolder

LOG, NETWORK, WEIGHTS = "log.csv", "network.json", "weights"


class Weights(keras.callbacks.Callback):
    """Keeps the weights of every epoch, or of the best and the last one alone."""

    def __init__(self, folder, every_epoch):
        super().__init__()
        self.folder, self.every_epoch = folder, every_epoch
        self.exact, self.most = {}, -1.0

    def on_epoch_end(self, epoch, logs=None):
        found = [np.asarray(weight) for weight in self.model.get_weights()]
        value = next(logs[name] for name in ("val_accuracy", "val_exact_match") if name in logs)
        if value > self.most:
            self.most, self.exact["best"] = value, (epoch, found)
        self.exact["last"] = epoch, found
        if self.every_epoch:
            self._write(epoch, found, self.model.dtype_policy.compute_dtype == "bfloat16")

    def on_train_end(self, logs=None):
        for epoch, found in self.exact.values():
            self._write(epoch, found, False)

    def _write(self, epoch, found, rounded):
        parts = {
            f"{number:04d}": weight.astype(ml_dtypes.bfloat16).view("uint16")
            if rounded and weight.ndim > 1
            else weight
            for number, weight in enumerate(found)
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez(self.folder / f"{epoch:04d}.npz", **parts)


def read_weights(path):
    """Returns the weights of an epoch, as `set_weights` takes them."""
    with np.load(path) as file:
        parts = [file[name] for name in sorted(file.files)]
    return [
        part.view(ml_dtypes.bfloat16).astype("float32") if part.dtype == np.uint16 else part
        for part in parts
    ]


def listed(arguments):
    """Prints the settings of the networks that are missing, as JSON."""
    import papers

    catalogue = papers.load()
    entries = papers.chosen(catalogue, arguments.names)
    networks, measures = papers.networks_of(entries, arguments.size)
    keys = papers.missing(networks, measures, arguments.out, arguments.size, arguments.anew)
    found = []
    for key in keys:
        network = catalogue.with_dtype(networks[key], arguments.dtype)
        found.append(
            {
                "size": arguments.size,
                "key": key,
                "settings": dataclasses.asdict(network.settings),
                "every_epoch": network.callbacks is not clocked,
            }
        )
    json.dump(found, sys.stdout, indent=1)


def train(arguments):
    """Trains the networks of a file that no other process has begun."""
    for one in json.loads(Path(arguments.names[0]).read_text()):
        folder = arguments.folder / "-".join([one["size"], *one["key"]])
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        settings = one["settings"] | {"data_dir": None, "data_file": arguments.data_file}
        kept = Weights(folder / WEIGHTS, one["every_epoch"])
        training.train(
            folder / "run",
            Settings(**settings),
            callbacks=lambda images, kept=kept: [*clocked(images), kept],
        )
        (folder / NETWORK).write_text(json.dumps(one))
        (folder / "run" / LOG).rename(folder / LOG)
        print(folder.name, pd.read_csv(folder / LOG).iloc[-1].to_dict(), flush=True)


def take(arguments):
    """Makes folders of papers.py of the networks that were trained elsewhere."""
    import papers

    catalogue = papers.load()
    for folder in sorted(path.parent for path in Path(arguments.names[0]).rglob(NETWORK)):
        one = json.loads((folder / NETWORK).read_text())
        networks, _ = papers.networks_of(list(catalogue.ENTRIES.values()), one["size"])
        key = tuple(one["key"])
        into = papers.folder_of(arguments.out, one["size"], key)
        if TrainingFolder(into, "").epochs() == one["settings"]["epochs"]:
            continue
        network = catalogue.on_disk(networks[key], arguments.data_dir)
        if changed := papers.other_settings(repr(Settings(**one["settings"])), network.settings):
            raise SystemExit(f"{folder} was trained with other settings: {', '.join(changed)}")
        network = catalogue.with_dtype(network, one["settings"]["dtype"])
        if not one["every_epoch"]:
            network = dataclasses.replace(network, callbacks=clocked)
        take_one(network, folder, into)
        print(into, flush=True)


def take_one(network, folder, into):
    """Writes the log, the newest checkpoint and the best network of a training."""
    from catalogue import Trained

    from tfresidual.jobs.building import compile_for
    from tfresidual.jobs.run_folder import claim

    trained = Trained(network, into)
    model = trained.untrained()
    metric = compile_for(model, network.settings, 1)
    # The optimizer in the file then fits the one that Keras makes when it opens it.
    model.optimizer.build(model.trainable_variables)
    few = dict.fromkeys(("train", "validation"), training.IMAGES_PER_EPOCH)
    followers = list(network.callbacks(trained.images(few)))
    for follower in followers:
        follower.set_model(model)
        follower.on_train_begin()
    log = pd.read_csv(folder / LOG)
    claim(into, {"settings": network.settings})
    (into / "checkpoints").mkdir(parents=True, exist_ok=True)
    kept = TrainingFolder(into, f"val_{metric}")
    rows = []
    for row in log.to_dict("records"):
        epoch = int(row["epoch"])
        path = folder / WEIGHTS / f"{epoch:04d}.npz"
        # The processor time of a machine with a GPU says nothing.
        rows.append(row | {"epoch": epoch, "seconds": float("nan")})
        if not path.exists():
            continue
        model.set_weights(read_weights(path))
        logs = dict(rows[-1])
        # One by one: a `CallbackList` gives each of them a copy of the logs.
        for follower in followers:
            follower.on_epoch_begin(epoch)
            follower.on_epoch_end(epoch, logs)
        rows[-1] = logs | {"epoch": epoch, "seconds": float("nan")}
        kept.add(pd.DataFrame(rows), model)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "train", "take"])
    parser.add_argument("names", nargs="+", help="figures and papers; a file; or a folder")
    parser.add_argument("--size", default="trained")
    parser.add_argument("--anew", action="store_true", help="networks whose frames are kept, too")
    parser.add_argument("--dtype", help="dtype policy of the trainings")
    parser.add_argument("--data-file", help="images to train on")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--folder", type=Path, default=Path("runs/jax"), help="of `train`")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    arguments = parser.parse_args()
    {"list": listed, "train": train, "take": take}[arguments.command](arguments)


if __name__ == "__main__":
    main()
