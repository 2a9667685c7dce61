"""Flips and crops against loops in NumPy. Not covered: their speed, and images on a GPU."""

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from tfresidual.datasets.augmentation import flip_and_crop, random_crop, random_flip

SEED = tf.constant([3, 14], tf.int64)
functions = pytest.mark.parametrize("function", [random_flip, random_crop, flip_and_crop])


def batch(count=64, height=6, width=5, channels=3, dtype=np.uint8):
    # No pixel is zero, so that padding cannot be mistaken for one.
    values = np.random.default_rng(0).integers(1, 256, (count, height, width, channels))
    return values.astype(dtype)


def all_crops(image, padding):
    """Every crop of the padded image, by the place of its corner."""
    height, width, _ = image.shape
    padded = np.zeros((height + 2 * padding, width + 2 * padding, image.shape[2]), image.dtype)
    padded[padding : padding + height, padding : padding + width] = image
    return {
        (y, x): padded[y : y + height, x : x + width]
        for y in range(2 * padding + 1)
        for x in range(2 * padding + 1)
    }


def corners(results, images, padding):
    """The corners at which the results were cut out of the images."""
    found = []
    for result, image in zip(results, images, strict=True):
        crops = all_crops(image, padding)
        found.append([corner for corner, crop in crops.items() if np.array_equal(crop, result)])
    assert all(len(places) == 1 for places in found)
    return [places[0] for places in found]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_flip_gives_each_image_or_its_mirror_image(dtype):
    images = batch(400, dtype=dtype)
    results = random_flip(images, SEED)
    assert results.dtype == dtype
    mirrored = [np.array_equal(r, i[:, ::-1]) for r, i in zip(results, images, strict=True)]
    kept = [np.array_equal(r, i) for r, i in zip(results, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 150 < sum(mirrored) < 250


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_crop_cuts_a_window_out_of_the_padded_image(dtype):
    images = batch(dtype=dtype)
    # The padding of the papers, without an argument.
    results = random_crop(images, SEED)
    assert results.dtype == dtype
    assert {y for y, _ in corners(results.numpy(), images, padding=4)} == set(range(9))
    np.testing.assert_array_equal(random_crop(images, SEED, padding=0), images)


def test_flip_and_crop_does_both_independently():
    images = batch(400)
    results = flip_and_crop(images, SEED, padding=1).numpy()
    flipped = []
    for result, image in zip(results, images, strict=True):
        plain = [np.array_equal(result, crop) for crop in all_crops(image, 1).values()]
        mirrored = [np.array_equal(result, crop) for crop in all_crops(image[:, ::-1], 1).values()]
        assert sum(plain) + sum(mirrored) == 1
        flipped.append(any(mirrored))
    assert 150 < sum(flipped) < 250


@functions
def test_depends_on_the_seed_alone_in_a_graph_too(function):
    images = batch()
    first = function(images, SEED)
    tf.random.set_seed(1)
    np.testing.assert_array_equal(function(images, SEED), first)
    assert not np.array_equal(function(images, [3, 15]), first)
    # Of unknown batch size.
    spec = tf.TensorSpec([None, 6, 5, 3], tf.uint8)
    graph = tf.function(function, input_signature=[spec, tf.TensorSpec([2], tf.int64)])
    np.testing.assert_array_equal(graph(images, SEED), first)
    assert graph(images[:0], SEED).shape == (0, 6, 5, 3)
    assert graph.get_concrete_function().output_shapes == tf.TensorShape([None, 6, 5, 3])


@functions
def test_refused(function):
    with refused("images"):
        function(batch()[0], SEED)
    with refused("seed"):
        function(batch(), 3)
