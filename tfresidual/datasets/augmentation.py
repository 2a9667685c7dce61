"""Random flips and crops of image batches, as pure functions of the images and a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from tfresidual.definitions.types import ArrayLike, Tensor

__all__ = ["flip_and_crop", "random_crop", "random_flip"]


def random_flip(images: Tensor | ArrayLike, seed: Tensor | ArrayLike) -> Tensor:
    """Mirrors each image left to right with probability one half.

    Args:
        images: Tensor `[N, H, W, C]` of any dtype.
        seed: Integer tensor of shape `[2]`. Equal seeds give equal flips.

    Returns:
        Tensor of the shape and dtype of `images`.

    Raises:
        ValueError: If `images` is not of rank 4 or `seed` is not of shape `[2]`.
    """
    images, seed = _checked(images, seed)
    count, height, width, _ = tf.unstack(tf.shape(images))
    rows = tf.broadcast_to(tf.range(height), [count, height])
    columns = tf.broadcast_to(tf.range(width), [count, width])
    return _rearranged(images, rows, _flipped(columns, width, seed))


def random_crop(images: Tensor | ArrayLike, seed: Tensor | ArrayLike, padding: int = 4) -> Tensor:
    """Pads each image with zeros on all sides and crops it to its size at a random position.

    Each of the `(2 * padding + 1) ** 2` positions is equally likely. Images and seed are those of
    `random_flip`.

    Args:
        images: Tensor `[N, H, W, C]` of any dtype.
        seed: Integer tensor of shape `[2]`.
        padding: Non-negative integer, the number of zeros added on each side.

    Reference:
        - [He et al., 2016](https://arxiv.org/abs/1512.03385), section 4.2
    """
    images, seed = _checked(images, seed)
    return _rearranged(images, *_cropped(images, padding, seed))


def flip_and_crop(images: Tensor | ArrayLike, seed: Tensor | ArrayLike, padding: int = 4) -> Tensor:
    """Applies the CIFAR augmentation of the papers: `random_flip`, then `random_crop`."""
    images, seed = _checked(images, seed)
    flip_seed, crop_seed = tf.unstack(tf.random.split(seed, 2))
    rows, columns = _cropped(images, padding, crop_seed)
    return _rearranged(images, rows, _flipped(columns, tf.shape(images)[2], flip_seed))


def _checked(images, seed):
    images, seed = tf.convert_to_tensor(images), tf.convert_to_tensor(seed)
    if images.shape.rank != 4:
        raise ArgumentError(
            "images",
            "be a batch of images, of shape [N, H, W, C]",
            received=f"images.shape={images.shape}",
        )
    if not seed.shape.is_compatible_with([2]):
        raise ArgumentError(
            "seed", "be two integers, of shape [2]", received=f"seed.shape={seed.shape}"
        )
    return images, seed


def _flipped(columns, width, seed):
    """Returns column indices `[N, W]`, reversed for each image with probability one half."""
    chosen = tf.random.stateless_uniform(tf.shape(columns)[:1], seed) < 0.5
    return tf.where(chosen[:, None], width - 1 - columns, columns)


def _cropped(images, padding, seed):
    """Returns row and column indices, `[N, H]` and `[N, W]`, of random crops of padded images."""
    count, height, width, _ = tf.unstack(tf.shape(images))
    moves = tf.random.stateless_uniform(
        [2, count, 1], seed, minval=-padding, maxval=padding + 1, dtype=tf.int32
    )
    return moves[0] + tf.range(height), moves[1] + tf.range(width)


def _rearranged(images, rows, columns):
    """Sets pixel `[n, y, x]` to `images[n, rows[n, y], columns[n, x]]`, or to zero outside."""
    # One gather of whole pixels is several times faster on a CPU than tf.pad, tf.reverse and
    # tf.where.
    count, height, width, channels = tf.unstack(tf.shape(images))
    outside = -count * height * width
    starts = (tf.range(count)[:, None] * height + rows) * width
    starts = tf.where((rows >= 0) & (rows < height), starts, outside)
    columns = tf.where((columns >= 0) & (columns < width), columns, outside)
    places = tf.maximum(starts[:, :, None] + columns[:, None, :], -1)
    # A black pixel is prepended; index -1 refers to it.
    black = tf.zeros([1, channels], images.dtype)
    pixels = tf.concat([black, tf.reshape(images, [-1, channels])], axis=0)
    return tf.ensure_shape(tf.gather(pixels, places + 1), images.shape)
