"""Pipelines on Digitclutter, drawn small; with TFRESIDUAL_DATA_DIR set also on MNIST and CIFAR.

Not covered: downloads.
"""

import math
import os
import time

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from tfresidual import datasets
from tfresidual.datasets import describe, load, set_epoch

TRAIN, TEST = 160, 75


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture
def clutter(folder):
    """`load` for a small Digitclutter."""

    def call(batch_size=64, **options):
        options = {"train_size": TRAIN, "test_size": TEST, "data_dir": folder} | options
        return load("digitclutter", batch_size, **options)

    return call


def arrays(dataset):
    images, labels = zip(*dataset.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def in_order(images):
    """The images, sorted, so that two orders of the same images compare equal."""
    return np.array(sorted(images.reshape(len(images), -1).tolist()))


def test_elements(clutter):
    train, test = clutter()
    for dataset, size in ((train, TRAIN), (test, TEST)):
        batches = math.ceil(size / 64)
        assert dataset.cardinality() == len(dataset) == batches
        shapes = [(images.shape, labels.shape) for images, labels in dataset]
        last = size - 64 * (batches - 1)
        assert shapes[:-1] == [((64, 32, 32, 1), (64, 10))] * (batches - 1)
        assert shapes[-1] == ((last, 32, 32, 1), (last, 10))
        images, labels = dataset.element_spec
        assert images == tf.TensorSpec([None, 32, 32, 1], tf.float32)
        assert labels == tf.TensorSpec([None, 10], tf.float32)


@pytest.mark.parametrize("digits", [3, 4, 5])
def test_digitclutter_is_normalised_and_k_hot(clutter, digits):
    train, test = clutter(digits=digits)
    for dataset in (train, test):
        images, labels = arrays(dataset)
        assert abs(images.mean()) < 0.06
        assert images.std() == pytest.approx(1, abs=0.06)
        assert set(np.unique(labels)) == {0, 1}
        assert (labels.sum(axis=1) == digits).all()


def test_images_for_networks_that_were_trained_elsewhere(clutter):
    _, standardized = clutter()
    standardized, labels = next(iter(standardized))
    found = {}
    for pixels in ("0-1", "0-255"):
        found[pixels], same = next(iter(clutter(pixels=pixels)[1]))
        np.testing.assert_array_equal(same, labels)
    whole = found["0-255"].numpy()
    assert whole.min() >= 0 and whole.max() > 200 and (whole == np.round(whole)).all()
    np.testing.assert_allclose(found["0-1"], whole / 255, rtol=1e-6)
    np.testing.assert_allclose(standardized, (whole / 255 - 0.4492) / 0.2845, atol=1e-5)


def test_images_and_labels_belong_together(clutter):
    from tfresidual.datasets.digitclutter import draw, sample_scene

    train, test = clutter(shuffle=False)
    for split, dataset in (("train", train), ("test", test)):
        images, labels = arrays(dataset)
        for index in (0, 1, 70):
            scene = sample_scene(index, 3, split)
            pixels = (draw(scene) / 255 - 0.4492) / 0.2845
            np.testing.assert_allclose(images[index], pixels, atol=1e-5)
            assert set(np.flatnonzero(labels[index])) == set(scene.digits)


def test_each_epoch_has_every_image_once_in_an_order_of_its_own(clutter):
    train, _ = clutter()
    plain, _ = clutter(shuffle=False)
    first, second, ordered = arrays(train), arrays(train), arrays(plain)
    assert not np.array_equal(first[0], second[0])
    for epoch in (first, second):
        np.testing.assert_array_equal(in_order(epoch[0]), in_order(ordered[0]))
        # Shuffled over the whole set: the first batch comes from all over it.
        places = [
            np.flatnonzero((ordered[0] == image).all((1, 2, 3)))[0] for image in epoch[0][:64]
        ]
        assert min(places) < TRAIN / 10 and max(places) > TRAIN * 9 / 10
        np.testing.assert_array_equal(epoch[1][:64], ordered[1][places])


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_is_a_function_of_seed_and_number(clutter, augment, shuffle):
    options = {"augment": augment, "shuffle": shuffle}
    train, _ = clutter(seed=1, **options)
    epochs = [arrays(train)[0] for _ in range(3)]

    set_epoch(train, 1)
    np.testing.assert_array_equal(arrays(train)[0], epochs[1])
    np.testing.assert_array_equal(arrays(train)[0], epochs[2])
    next(iter(train))  # an epoch begun counts as one
    set_epoch(train, 0)
    np.testing.assert_array_equal(arrays(train)[0], epochs[0])

    tf.random.set_seed(123)
    again, _ = clutter(seed=1, **options)
    set_epoch(again, 2)
    np.testing.assert_array_equal(arrays(again)[0], epochs[2])
    other, _ = clutter(seed=2, **options)
    if augment or shuffle:
        assert not np.array_equal(arrays(other)[0], epochs[0])
        assert not np.array_equal(epochs[0], epochs[1])
    else:
        np.testing.assert_array_equal(arrays(other)[0], epochs[0])
        np.testing.assert_array_equal(epochs[0], epochs[1])


def test_augmentation_is_for_training_images_only(clutter):
    plain_train, plain_test = clutter(shuffle=False)
    train, validation, test = clutter(shuffle=False, augment=True, validation=20)
    assert not np.array_equal(arrays(train)[0], arrays(plain_train)[0])
    for data, same in ((test, plain_test), (test, test), (validation, validation)):
        np.testing.assert_array_equal(arrays(data)[0], arrays(same)[0])


@pytest.mark.parametrize(("validation", "size"), [(20, 20), (0.2, 32), (np.int64(20), 20)])
def test_digitclutter_has_validation_images_of_its_own(clutter, validation, size):
    train, held_out, test = clutter(validation=validation)
    assert len(arrays(train)[0]) == TRAIN
    assert len(arrays(held_out)[0]) == size
    assert not np.array_equal(arrays(held_out)[0][:20], arrays(test)[0][:20])


def test_set_epoch_refuses(clutter):
    train, test = clutter()
    for wrong in (test, train.take(1), [1, 2]):
        with refused("train"):
            set_epoch(wrong, 0)
        with refused("train"):
            datasets.plain(wrong)


REFUSED = [
    *((value, {}, ["name"]) for value in ("cifar11", ["mnist"])),
    ("mnist", {"pixels": "bytes"}, ["pixels"]),
    *(("mnist", {"train_size": value}, ["train_size"]) for value in (0, 60_001)),
    *(("mnist", {"test_size": value}, ["test_size"]) for value in (-3, 10_001)),
    ("cifar10", {"train_size": 49_000, "validation": 2000}, ["train_size", "validation"]),
    ("cifar100", {"validation": 50_000}, ["train_size", "validation"]),
    *(
        ("mnist", {"validation": value}, ["validation"])
        for value in (0, 0.0, 1.0, 1e-9, math.nan, "10%")
    ),
    *(("digitclutter", {"digits": value}, ["digits"]) for value in (2, 6, True)),
    ("digitclutter", {"train_size": 1.5}, ["train_size"]),
]


@pytest.mark.parametrize(("name", "options", "names"), REFUSED)
def test_refused(tmp_path, name, options, names):
    with refused(*names):
        load(name, data_dir=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_missing_data_is_said_at_once(tmp_path):
    name = "mnist"
    started = time.perf_counter()
    with pytest.raises(FileNotFoundError) as error:
        load(name, data_dir=tmp_path)
    assert time.perf_counter() - started < 5
    download = f"tfds.load('{name}', data_dir='{tmp_path}')"
    for part in (str(tmp_path / name), download, "download=True"):
        assert part in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def real():
    """`load` for the data in TFRESIDUAL_DATA_DIR, skipped where it is not there."""

    def call(name, **options):
        if "TFRESIDUAL_DATA_DIR" not in os.environ:
            pytest.skip("TFRESIDUAL_DATA_DIR is not set")
        try:
            return load(name, data_dir=os.environ["TFRESIDUAL_DATA_DIR"], **options)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return call


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_real_data(real, name):
    options = {"validation": 500, "test_size": 1000, "shuffle": False}
    train, validation, test = real(name, train_size=4000, augment=False, **options)
    description = describe(name)
    for dataset, size in ((train, 4000), (validation, 500), (test, 1000)):
        images, labels = arrays(dataset)
        assert images.shape == (size, *description.input_shape)
        assert (labels.dtype, labels.shape) == (np.int64, (size,))
        assert labels.min() >= 0 and labels.max() == description.classes - 1
        np.testing.assert_allclose(images.mean((0, 1, 2)), 0, atol=0.1)
        np.testing.assert_allclose(images.std((0, 1, 2)), 1, atol=0.1)

    augmented, _, _ = real(name, train_size=4000, **options)
    same = np.array_equal(arrays(augmented)[0], arrays(train)[0])
    assert same == (name == "mnist")
