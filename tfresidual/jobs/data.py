"""The images of a study, loaded as its settings say, or written into a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.datasets.image_file import array_datasets, open_file, reader_of
from tfresidual.jobs.settings import Settings, augments, check, split_sizes
from tfresidual.machine.backends import BACKEND
from tfresidual.machine.console import say

if TYPE_CHECKING:
    from rich.console import Console

    from tfresidual.datasets import ArrayDataset
    from tfresidual.definitions.types import Dataset, Pixels, StrPath


def prepare(
    settings: Settings | None = None,
    console: Console | None = None,
    download: bool = False,
    pixels: Pixels = "standardized",
) -> tuple[Dataset, Dataset, Dataset] | tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
    """Loads the data of a study; Digitclutter is generated if it is not on the disk.

    Args:
        settings: a `Settings`, by default those of the embedded study.
        console: a `rich.console.Console` for progress, or `None` for no output.
        download: whether tensorflow-datasets may download missing data.
        pixels: format of the pixels, see `tfresidual.datasets.load`.

    Returns:
        A tuple `(train, validation, test)` of `tf.data.Dataset` on TensorFlow, and of
        `tfresidual.datasets.ArrayDataset` on other backends.

    Raises:
        ValueError: if a setting cannot be used, or `data_file` is damaged or does not hold the
            images of the settings.
        FileNotFoundError: if the dataset is not on the disk.
    """
    settings = settings or Settings()
    check(settings)
    say(console, f"preparing {settings.data}")
    sizes = split_sizes(settings)
    if settings.data_file is not None:
        file = open_file(settings.data_file)
        read = reader_of(file, settings.data, settings.digits, *sizes)
    else:
        loading = _loading(settings.data_dir)
        read = loading.reader(settings.data, settings.digits, sizes, settings.data_dir, download)
    batched = array_datasets
    if BACKEND == "tensorflow":
        batched = _loading(settings.data_dir).pipelines
    return batched(
        read,
        settings.data,
        digits=settings.digits,
        batch_size=settings.batch_size,
        augment=augments(settings),
        shuffle=True,
        seed=settings.seed,
        pixels=pixels,
    )


def write_file(
    settings: Settings, path: StrPath, console: Console | None = None, download: bool = False
) -> None:
    """Writes the data of a study into one file, see `tfresidual.datasets.save`."""
    check(settings)
    say(console, f"preparing {settings.data}")
    _loading(settings.data_dir).save(
        path,
        settings.data,
        digits=settings.digits,
        train_size=settings.train_size,
        validation=settings.validation,
        test_size=settings.test_size,
        data_dir=settings.data_dir,
        download=download,
    )


def _loading(data_dir):
    """Returns the module that reads the files of tensorflow-datasets, with TensorFlow."""
    try:
        from tfresidual.datasets import loading
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "tensorflow_datasets"):
            raise
        raise ValueError(
            "Images are read from the files of tensorflow-datasets only where it and TensorFlow "
            "are installed. Elsewhere, the setting data_file (--data-file) must name a file that "
            f"`tfresidual data NAME --to FILE.npz` wrote. Received: data_dir={data_dir!r}"
        ) from error
    return loading
