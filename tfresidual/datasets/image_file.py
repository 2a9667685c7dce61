"""Images of a dataset in one .npz file, which is read without TensorFlow.

`tfds.data_source` does not replace it: without TensorFlow it reads neither the files that
tensorflow-datasets writes by default (TFRecord) nor writes others, and `array_record` is for Linux
alone. Where it can be used, 10,000 images of CIFAR-10 take 3.6 s instead of 0.1 s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from tfresidual.datasets.arrays import ArrayDataset
from tfresidual.datasets.description import (
    SPLITS,
    checked_options,
    describe,
    is_augmented,
    normalization,
)
from tfresidual.definitions.arguments import ArgumentError, check_int, checked_path
from tfresidual.definitions.data_sets import DATA_SETS
from tfresidual.machine.files import check_folder, damaged, replacing

if TYPE_CHECKING:
    import pathlib

    from tfresidual.definitions.types import Array, DatasetName, Pixels, StrPath

# File header, under HEADER.
HEADER, FORMAT, VERSION = "tfresidual", "images of tfresidual", 1
REMEDY = "Write a new one with `tfresidual data NAME --to FILE.npz`"
# The settings that limit the number of images of the splits.
SIZES = {"train": "train_size", "validation": "validation", "test": "test_size"}


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """What an .npz file holds, whose images have not been read yet."""

    path: pathlib.Path
    name: DatasetName
    # On an image of Digitclutter, otherwise None.
    digits: int | None
    # Number of images by split.
    sizes: dict[str, int]

    def read(self, split: str, count: int) -> tuple[Array, Array]:
        """Reads images of a split as `load` does, uint8, and labels, int64 or k-hot uint8."""
        with _reading(self.path) as file:
            images, labels = file[f"{split}_images"], file[f"{split}_labels"]
        whole = len(images)
        if count == whole:
            return images, labels
        is_end = split == "validation" and not DATA_SETS[self.name].drawn
        # Held out are the last images of the training set.
        part = slice(whole - count, None) if is_end else slice(count)
        # Copies, so that the others are not kept in memory.
        return images[part].copy(), labels[part].copy()

    def check_holds(
        self, name: str, digits: int, train_size: int, validation: int, test_size: int
    ) -> None:
        """Raises a `ValueError` unless the file holds a dataset and that many images of it."""
        received = f"data_file={str(self.path)!r}"
        held = {"data": (name, self.name), "digits": (digits, self.digits or digits)}
        for argument, (given, own) in held.items():
            if given != own:
                received = f"{argument}={given!r}, {received}"
                raise ArgumentError(
                    argument, f"be {own!r}, which `data_file` holds", received=received
                )
        asked = (train_size, validation, test_size)
        for (split, argument), count in zip(SIZES.items(), asked, strict=True):
            if count > self.sizes[split]:
                raise ArgumentError(
                    argument,
                    f"be at most {self.sizes[split]}, the number of images in `data_file`",
                    received=f"{argument}={count}, {received}",
                )


def open_file(data_file: StrPath) -> ImageFile:
    """Returns what a file that `save` wrote holds; reads no images. For errors, see `load_file`."""
    path = checked_path("data_file", data_file)
    wrote = "be a file that `tfresidual data NAME --to FILE.npz` wrote"
    if not path.exists():
        raise FileNotFoundError(
            f"Argument `data_file` must {wrote}; there is no such file. `data_dir` reads images of "
            f"tensorflow-datasets instead. Received: data_file={str(data_file)!r}"
        )
    with _reading(path) as file:
        header = json.loads(str(file[HEADER])) if HEADER in file else {}
    if header.get("format") != FORMAT:
        raise ArgumentError("data_file", f"{wrote}; this one is something else", str(data_file))
    if header["version"] != VERSION:
        raise ArgumentError(
            "data_file",
            f"have version {VERSION} of its format. {REMEDY}",
            received=f"version {header['version']!r}, data_file={str(data_file)!r}",
        )
    return ImageFile(path, header["name"], header["digits"], header["sizes"])


@contextlib.contextmanager
def _reading(path):
    """Opens an .npz file; errors say which file is damaged."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            yield file
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(path, error, REMEDY) from error


def check_target(data_file: StrPath) -> pathlib.Path:
    """Returns where a file is to be written; raises an error if it cannot be."""
    target = checked_path("data_file", data_file)
    if target.suffix != ".npz" or target.is_dir():
        raise ValueError(
            "Argument `data_file` must be a file whose name ends in .npz. Received: "
            f"data_file={str(data_file)!r}" + (", which is a folder" if target.is_dir() else "")
        )
    check_folder("data_file", target.parent)
    if target.exists() and not _is_own(target):
        raise ArgumentError(
            "data_file",
            "be a new file, or one that `tfresidual data NAME --to FILE.npz` wrote, damaged or "
            "not: nothing else is replaced",
            str(data_file),
        )
    return target


def _is_own(path):
    """Returns whether a file is empty, or starts as those of `write` do; it may be damaged."""
    with path.open("rb") as file:
        # The name of its first part follows 30 bytes that describe it.
        head = file.read(30 + len(HEADER))
    return not head or head[30:] == HEADER.encode()


def write(
    path: pathlib.Path, name: DatasetName, digits: int, splits: dict[str, tuple[Array, Array]]
) -> None:
    """Writes images and labels of a dataset, by split; the file changes in one step."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "digits": describe(name, digits).digits,
        "sizes": {split: len(images) for split, (images, _) in splits.items()},
    }
    arrays: dict[str, Any] = {HEADER: json.dumps(header)}
    for split, (images, labels) in splits.items():
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        np.savez(beside, **arrays)


def load_file(
    data_file: StrPath,
    batch_size: int = 64,
    *,
    train_size: int | None = None,
    validation: int | None = None,
    test_size: int | None = None,
    augment: bool | None = None,
    shuffle: bool = True,
    seed: int = 0,
    pixels: Pixels = "standardized",
) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
    """Reads a file that `save` or `tfresidual data NAME --to FILE.npz` wrote, on any backend.

    Images and labels are those of `load`. The order of the training images and their augmentation
    are drawn in the same way, but not the same.

    Args:
        data_file: The file.
        batch_size: See `load`, like the other arguments.
        train_size: Number of images to train on, or None for all in the file.
        validation: Number of images held out, or None for all in the file.
        test_size: Number of test images, or None for all in the file.
        augment: See `load`.
        shuffle: See `load`.
        seed: See `load`.
        pixels: See `load`.

    Returns:
        `(train, validation, test)`, see `ArrayDataset`.

    Raises:
        ValueError: If an argument is out of range, or the file is damaged or something else.
        OSError: If there is no such file, or it cannot be read.
    """
    options = checked_options(
        batch_size=batch_size, augment=augment, shuffle=shuffle, seed=seed, pixels=pixels
    )
    given = {"train_size": train_size, "validation": validation, "test_size": test_size}
    given = {key: check_int(key, size, at_least=1, or_none=True) for key, size in given.items()}
    file = open_file(data_file)
    sizes = [given[key] or file.sizes[split] for split, key in SIZES.items()]
    read = reader_of(file, file.name, file.digits or 3, *sizes)
    return array_datasets(read, file.name, digits=file.digits or 3, **options)


def reader_of(file, name, digits, train_size, validation, test_size):
    """Returns a function from the name of a split to that many images and labels of a file."""
    file.check_holds(name, digits, train_size, validation, test_size)
    counts = dict(zip(SPLITS, (train_size, validation, test_size), strict=True))
    return lambda split: file.read(split, counts[split])


def array_datasets(read, name, *, digits, batch_size, augment, shuffle, seed, pixels):
    """Returns three `ArrayDataset`s; `read` returns images and labels of the split it is given."""
    factor, offset = normalization(name, digits, pixels)
    of_training = {"shuffle": shuffle, "augment": is_augmented(name, augment), "seed": seed}
    found = []
    for split in SPLITS:
        images, labels = read(split)
        labels = labels.astype("float32") if labels.ndim == 2 else labels
        options = of_training if split == "train" else {}
        found.append(
            ArrayDataset(images, labels, batch_size, factor=factor, offset=offset, **options)
        )
    return tuple(found)
