"""Batches of images in memory, for every backend of Keras."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine import backends

if TYPE_CHECKING:
    from tfresidual.definitions.types import Array, ArrayLike, Tensor

# How far an image is moved at most, in pixels along either axis.
PADDING = 4
# Largest part of the free memory of an accelerator that images may take.
MOST_OF_MEMORY = 0.5


class ArrayDataset(keras.utils.PyDataset):
    """Batches `(images, labels)` of arrays, for `fit`, `evaluate` and `training.train`.

    The order and the augmentation of epoch e are determined by `seed` and e alone. Every iteration
    over all batches is the next epoch; `set_epoch` sets e, so that a resumed training sees the
    batches of an uninterrupted one. Pass `shuffle=False` to `fit`: the data does its own shuffling.

    On the GPU of JAX or PyTorch, images that fit are put into its memory once, and batches are made
    there.

    Example:

    >>> data = ArrayDataset(images, labels, 8, shuffle=True)
    >>> len(data), data[0][0].shape
    (2, (8, 8, 8, 1))

    Args:
        images: Array `[N, ...]`, with `augment` `[N, H, W, C]`. uint8 is kept in memory as it is,
            all else as float32.
        labels: Array `[N, ...]`.
        batch_size: Positive integer. The last batch may be smaller.
        shuffle: Whether to draw a new order of the images for each epoch.
        augment: Whether to mirror each image left to right with probability one half, and to move
            it by -4 to 4 pixels along either axis; zeros fill the gap.
        seed: Non-negative integer.
        factor: What pixels are multiplied with, a number or an array that broadcasts.
        offset: What is then subtracted, likewise.
        on_device: Whether the images are put into the memory of the backend's device; None means
            if it is a GPU or TPU and they take at most half of its free memory. On TensorFlow,
            whose datasets are on the CPU, it must not be True.

    Raises:
        ValueError: If an argument is out of range, or images and labels differ in number.
    """

    def __init__(
        self,
        images: ArrayLike,
        labels: ArrayLike,
        batch_size: int = 64,
        *,
        shuffle: bool = False,
        augment: bool = False,
        seed: int = 0,
        factor: ArrayLike = 1.0,
        offset: ArrayLike = 0.0,
        on_device: bool | None = None,
    ) -> None:
        super().__init__()
        self.images, self.labels = _kept("images", images), _kept("labels", labels)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.augment = augment
        self.seed = seed
        # NumPy before version 2 gives products with scalars another dtype.
        self.factor, self.offset = (
            np.atleast_1d(np.asarray(part, "float32")) for part in (factor, offset)
        )
        if len(self.images) != len(self.labels):
            raise ArgumentError(
                ("images", "labels"),
                "hold the same number of entries",
                received=f"images.shape={self.images.shape}, labels.shape={self.labels.shape}",
            )
        if self.augment and self.images.ndim != 4:
            raise ArgumentError(
                "images",
                "be of shape [N, H, W, C] with `augment=True`",
                received=f"images.shape={self.images.shape}",
            )
        if on_device is None:
            size = self.images.nbytes + self.labels.nbytes
            on_device = size <= MOST_OF_MEMORY * backends.accelerator_memory()
        self.on_device = on_device
        if self.on_device and backends.BACKEND not in ("jax", "torch"):
            raise ArgumentError(
                "on_device",
                "be False or None on this backend",
                received=f"on_device={on_device!r}, KERAS_BACKEND={backends.BACKEND}",
            )
        self._epoch, self._is_over = 0, False
        self._order: tuple[int, Array] | None = None

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[Tensor | Array, Tensor | Array]:
        """Returns batch `index` of the current epoch: float32 images, and labels."""
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} batches. Received: index={index!r}")
        if index == len(self) - 1:
            self._is_over = True
        epoch, places = self._epoch, slice(index * self.batch_size, (index + 1) * self.batch_size)
        if self.shuffle or self.on_device:
            places = self._order_of(epoch)[places]
        draws = self._draws(epoch, index) if self.augment else None
        if not self.on_device:
            images = _finished(np, self.images[places], draws, self.factor, self.offset)
            return images, self.labels[places]
        images, labels = self._resident
        return _batch_on_device(images, labels, places, draws, self.factor, self.offset)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, a non-negative integer; counting continues."""
        self._epoch, self._is_over = epoch, False

    def on_epoch_begin(self) -> None:
        """Counts epochs; Keras calls it, also before it looks at the first batch of all."""
        if self._is_over:
            self.set_epoch(self._epoch + 1)

    def plain(self) -> ArrayDataset:
        """Returns the same images, unshuffled and not augmented."""
        return self._with(len(self.images))

    def take(self, count: int) -> ArrayDataset:
        """Returns the images of the first `count` batches of `plain`."""
        return self._with(count * self.batch_size)

    def _with(self, count):
        return ArrayDataset(
            self.images[:count],
            self.labels[:count],
            self.batch_size,
            factor=self.factor,
            offset=self.offset,
            on_device=self.on_device,
        )

    def _order_of(self, epoch):
        if self._order is None or self._order[0] != epoch:
            order = np.arange(len(self.images), dtype="int32")
            if self.shuffle:
                # The augmentation of batches is drawn from the seeds that end in 1 and more.
                np.random.default_rng([self.seed, epoch, 0]).shuffle(order)
            self._order = epoch, order
        return self._order[1]

    def _draws(self, epoch, index):
        """Returns for each image of a batch how far it is moved down and right, and mirrored."""
        count = min(self.batch_size, len(self.images) - index * self.batch_size)
        generator = np.random.default_rng([self.seed, epoch, index + 1])
        moves = generator.integers(-PADDING, PADDING, (2, count), "int32", endpoint=True)
        return moves[0], moves[1], generator.integers(0, 2, count, "int32")

    @functools.cached_property
    def _resident(self):
        return [keras.ops.convert_to_tensor(part) for part in (self.images, self.labels)]


def _kept(name, values):
    """Returns an argument as an array of a dtype that every backend has."""
    array = np.asarray(values)
    if array.ndim < 1 or not len(array) or array.dtype.kind not in "biuf":
        raise ArgumentError(
            name,
            "be an array of numbers with at least one entry",
            received=f"{name} of shape {array.shape} and dtype {array.dtype}",
        )
    if name == "images":
        return array if array.dtype == np.uint8 else array.astype("float32", copy=False)
    return array.astype("float32") if array.dtype == np.float64 else array


def _batch_on_device(images, labels, places, draws, factor, offset):
    if backends.BACKEND == "torch":
        places, factor, offset = map(keras.ops.convert_to_tensor, (places, factor, offset))
        draws = None if draws is None else tuple(map(keras.ops.convert_to_tensor, draws))
    return _gathered(images, labels, places, draws, factor, offset)


@backends.compiled()
def _gathered(images, labels, places, draws, factor, offset):
    chosen = keras.ops.take(images, places, axis=0)
    return (
        _finished(keras.ops, chosen, draws, factor, offset),
        keras.ops.take(labels, places, axis=0),
    )


def _finished(xp, images, draws, factor, offset):
    """Returns images moved and mirrored as drawn, if `draws` is not None, and normalized."""
    images = images if draws is None else _rearranged(xp, images, *draws)
    return xp.subtract(xp.multiply(images, factor), offset)


def _rearranged(xp, images, down, right, is_mirrored):
    """Returns images that are first mirrored, then moved, with zeros in the gaps."""
    count, height, width, channels = images.shape
    rows = xp.arange(height, dtype="int32") - down[:, None]
    columns = xp.arange(width, dtype="int32") - right[:, None]
    is_row, is_column = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    columns = xp.where(is_mirrored[:, None] == 1, width - 1 - columns, columns)
    rows, columns = xp.clip(rows, 0, height - 1), xp.clip(columns, 0, width - 1)
    starts = (xp.arange(count, dtype="int32")[:, None] * height + rows) * width
    places = starts[:, :, None] + columns[:, None, :]
    pixels = xp.take(xp.reshape(images, (-1, channels)), places, axis=0)
    is_inside = (is_row[:, :, None] & is_column[:, None, :])[..., None]
    return xp.where(is_inside, pixels, xp.zeros_like(pixels))
