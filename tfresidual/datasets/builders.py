"""Files of tensorflow-datasets: found, prepared, and read into memory."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import sys

import numpy as np
import tensorflow as tf

from tfresidual.machine.console import progress_bar, redirected
from tfresidual.machine.files import damaged, is_full, no_room
from tfresidual.machine.memory import check_fits
from tfresidual.machine.passes import without_tuning


def digitclutter_builder(digits, train_size, validation_size, test_size, data_dir):
    """Returns the builder of Digitclutter after drawing its images."""
    from tfresidual.datasets.digitclutter import Digitclutter, DigitclutterConfig

    drawn = train_size + 2 * max(validation_size, test_size)
    check_fits(
        # The images are read into memory as bytes.
        drawn * 32 * 32,
        "Arguments `train_size`, `validation` and `test_size` must fit into the memory of this "
        "machine: the images",
        f"train_size={train_size}, validation={validation_size}, test_size={test_size}",
    )
    config = DigitclutterConfig(
        digits=int(digits),
        train_size=train_size,
        # At least as many as test images, so that requesting them later does not redraw everything.
        validation_size=max(validation_size, test_size),
        test_size=test_size,
    )
    with _damaged(folder_of(data_dir, "digitclutter", config.name)):
        builder = Digitclutter(config=config, data_dir=data_dir)
    with _with_room(builder):
        builder.download_and_prepare()
    return builder


def public_builder(name, title, data_dir, download):
    """Returns the builder of a public dataset whose files are on disk."""
    import tensorflow_datasets as tfds

    with _damaged(folder_of(data_dir, name)):
        builder = tfds.builder(name, data_dir=data_dir)
    if builder.data_path.exists():
        return builder
    if not download:
        where = "" if data_dir is None else f", data_dir={str(data_dir)!r}"
        raise FileNotFoundError(
            f"{title} is not prepared: there is no {builder.data_path}. Pass "
            f"download=True to `load`, or run `tfresidual data {name} --download`, or run the "
            "following on a machine with an internet connection and copy the folder to this one: "
            f'python -c "import tensorflow_datasets as tfds; tfds.load({name!r}{where})". '
            f"Received: name={name!r}, data_dir={data_dir!r}"
        )
    # tensorflow-datasets prints to stdout, which is reserved for the caller's output, and would
    # write progress bars into logs.
    terminal = sys.stderr
    bars = terminal if terminal.isatty() else io.StringIO()
    with redirected(terminal, bars), _with_room(builder):
        builder.download_and_prepare()
    return builder


def folder_of(data_dir, *names):
    """Returns the folder in which tensorflow-datasets stores the data of these names."""
    import tensorflow_datasets as tfds

    return pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser().joinpath(*names)


# The data may be intact and the libraries not fit for it, so nothing is to be removed.
_REMEDY = "Move the folder elsewhere and prepare the data again"


@contextlib.contextmanager
def _damaged(path):
    """Reports errors of tensorflow-datasets on reading a folder as damaged or unreadable data."""
    try:
        yield
    except (PermissionError, tf.errors.PermissionDeniedError) as error:
        raise PermissionError(f"The data cannot be read. Received: path={str(path)!r}") from error
    except Exception as error:
        # tensorflow-datasets passes on errors of many kinds from its dependencies.
        reason = re.sub(r"{{.*}}|\[Op:.*", "", getattr(error, "message", str(error)))
        raise damaged(path, reason, _REMEDY) from error


@contextlib.contextmanager
def _with_room(builder):
    """Reports errors of tensorflow-datasets that are caused by a full disk as such."""
    try:
        yield
    except Exception as error:
        if is_full(error):
            raise no_room(builder.data_path, error) from error
        raise


def read_split(builder, split):
    """Reads a split into memory: images uint8 `[N, H, W, C]`; labels int64 `[N]`, or k-hot."""
    with _damaged(builder.data_path):
        return _read_all(builder, split)


def _read_all(builder, split):
    import tensorflow_datasets as tfds

    config = tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1)
    dataset = without_tuning(builder.as_dataset(split=split, read_config=config).batch(1024))
    batches = []
    with progress_bar(f"Reading {builder.name} {split}", len(dataset)) as advance:
        for batch in dataset.as_numpy_iterator():
            batches.append(batch)
            advance()
    images = np.concatenate([batch["image"] for batch in batches])
    if "label" in batches[0]:
        return images, np.concatenate([batch["label"] for batch in batches]).astype(np.int64)
    digits = np.concatenate([batch["digits"] for batch in batches])
    return images, np.eye(10, dtype=np.uint8)[digits].sum(axis=1, dtype=np.uint8)
