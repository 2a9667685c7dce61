"""Flips and crops against loops in NumPy. Not covered: their speed, and images on a GPU."""

import numpy as np
import pytest
import tensorflow as tf

from tfresidual.datasets.augmentation import flip_and_crop, random_crop, random_flip

SEED = tf.constant([3, 14], tf.int64)


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
    results = random_crop(images, SEED, padding=4)
    assert results.dtype == dtype
    corners(results.numpy(), images, padding=4)


def test_crop_reaches_every_place_about_equally_often():
    images = batch(900)
    found = corners(random_crop(images, SEED, padding=1).numpy(), images, padding=1)
    counts = [found.count((y, x)) for y in range(3) for x in range(3)]
    assert min(counts) > 60 and max(counts) < 140


def test_crop_without_padding_changes_nothing():
    images = batch()
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


@pytest.mark.parametrize("function", [random_flip, random_crop, flip_and_crop])
def test_depends_on_the_seed_alone(function):
    images = batch()
    first = function(images, SEED)
    tf.random.set_seed(1)
    np.testing.assert_array_equal(function(images, SEED), first)
    assert not np.array_equal(function(images, [3, 15]), first)


@pytest.mark.parametrize("function", [random_flip, random_crop, flip_and_crop])
def test_graph_with_unknown_batch_size(function):
    spec = tf.TensorSpec([None, 6, 5, 3], tf.uint8)
    graph = tf.function(function, input_signature=[spec, tf.TensorSpec([2], tf.int64)])
    images = batch()
    np.testing.assert_array_equal(graph(images, SEED), function(images, SEED))
    assert graph(images[:0], SEED).shape == (0, 6, 5, 3)
    assert graph.get_concrete_function().output_shapes == tf.TensorShape([None, 6, 5, 3])


def test_errors():
    with pytest.raises(ValueError, match=r"`images`.*Received: images\.shape=\(6, 5, 3\)"):
        random_flip(batch()[0], SEED)
    with pytest.raises(ValueError, match=r"`seed`.*Received: seed\.shape=\(\)"):
        random_crop(batch(), 3)
    with pytest.raises(ValueError, match=r"`padding`.*Received: padding=-1"):
        flip_and_crop(batch(), SEED, padding=-1)
