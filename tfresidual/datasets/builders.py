"""Files of tensorflow-datasets: found, prepared, and read into memory."""

from __future__ import annotations

import importlib
import io
import math
import pathlib
import sys

import numpy as np

from tfresidual.definitions.data_sets import DATA_SETS
from tfresidual.machine.console import progress_bar, redirected
from tfresidual.machine.memory import check_fits
from tfresidual.machine.passes import without_tuning


def prepared(name, digits, sizes, data_dir, download):
    """Returns the builder of a dataset whose files are on disk, drawn or downloaded if need be."""
    import tensorflow_datasets as tfds

    data = DATA_SETS[name]
    if data.drawn:
        train_size, validation_size, test_size = sizes
        check_fits(
            # The images are read into memory as bytes.
            (train_size + 2 * max(validation_size, test_size)) * math.prod(data.input_shape),
            "Arguments `train_size`, `validation` and `test_size` must fit into the memory of this "
            "machine: the images",
            f"train_size={train_size}, validation={validation_size}, test_size={test_size}",
        )
        draw = importlib.import_module(f"tfresidual.datasets.{data.drawn}").builder
        builder = draw(digits, *sizes, data_dir)
        builder.download_and_prepare()
        return builder
    builder = tfds.builder(name, data_dir=data_dir)
    if builder.data_path.exists():
        return builder
    if not download:
        where = "" if data_dir is None else f", data_dir={str(data_dir)!r}"
        raise FileNotFoundError(
            f"{data.title} is not prepared: there is no {builder.data_path}. Pass "
            f"download=True to `load`, or run `tfresidual data {name} --download`, or run the "
            "following on a machine with an internet connection and copy the folder to this one: "
            f'python -c "import tensorflow_datasets as tfds; tfds.load({name!r}{where})". '
            f"Received: name={name!r}, data_dir={data_dir!r}"
        )
    # tensorflow-datasets prints to stdout, which is reserved for the caller's output, and would
    # write progress bars into logs.
    terminal = sys.stderr
    bars = terminal if terminal.isatty() else io.StringIO()
    with redirected(terminal, bars):
        builder.download_and_prepare()
    return builder


def folder_of(data_dir):
    """Returns the folder in which tensorflow-datasets stores its data."""
    import tensorflow_datasets as tfds

    return pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()


def read_split(builder, split):
    """Reads a split into memory: images uint8 `[N, H, W, C]`; labels int64 `[N]`, or k-hot."""
    import tensorflow_datasets as tfds

    batches = []
    config = tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1)
    dataset = without_tuning(builder.as_dataset(split=split, read_config=config).batch(1024))
    with progress_bar(f"Reading {builder.name} {split}", len(dataset)) as advance:
        for batch in dataset.as_numpy_iterator():
            batches.append(batch)
            advance()
    found = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    if "label" in found:
        return found["image"], found["label"].astype(np.int64)
    several = np.eye(DATA_SETS[builder.name].classes, dtype=np.uint8)[found["digits"]]
    return found["image"], several.sum(axis=1, dtype=np.uint8)
