"""Batches of arrays in memory, on TensorFlow; tests/backends has the other backends."""

import keras
import numpy as np
import pytest
from refusals import refused

from tfresidual import datasets
from tfresidual.datasets import ArrayDataset

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (23, 5, 6, 3), dtype=np.uint8)
# Labels name their images.
LABELS = np.arange(23)


def labels_of(data):
    return [labels.tolist() for _, labels in (data[index] for index in range(len(data)))]


def images_of(data):
    return np.concatenate([data[index][0] for index in range(len(data))])


def epoch_of(number, **options):
    data = ArrayDataset(IMAGES, LABELS, 8, **options)
    data.set_epoch(number)
    return data


def test_batches_in_order():
    data = ArrayDataset(IMAGES, LABELS, 8, factor=[0.5, 2, 1], offset=[0, 1, 2])
    assert (len(data), data.num_batches) == (3, 3)
    assert labels_of(data) == [list(range(8)), list(range(8, 16)), list(range(16, 23))]
    images = images_of(data)
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images, IMAGES * np.array([0.5, 2, 1]) - np.array([0, 1, 2]))
    # Python iterates until there are no more.
    assert [labels.tolist() for _, labels in data] == labels_of(data)


def test_each_epoch_has_every_image_once_in_an_order_of_its_own():
    orders = [LABELS.tolist()]
    for epoch in range(3):
        data = epoch_of(epoch, shuffle=True)
        orders.append(np.concatenate(labels_of(data)).tolist())
        assert sorted(orders[-1]) == LABELS.tolist()
        # Images come with their labels.
        np.testing.assert_array_equal(images_of(data), IMAGES[orders[-1]].astype("float32"))
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize("augment", [False, True])
def test_an_epoch_is_a_function_of_seed_and_number(augment):
    options = {"shuffle": True, "augment": augment}
    others = [
        images_of(epoch_of(e, seed=s, **options)) for e, s in ((4, 1), (5, 1), (4, 2), (1, 4))
    ]
    for index, one in enumerate(others):
        assert not any(np.array_equal(one, other) for other in others[:index])
    # Batches may be asked for in any order.
    data = epoch_of(4, seed=1, **options)
    batches = {index: data[index][0] for index in (2, 0, 1)}
    np.testing.assert_array_equal(np.concatenate([batches[i] for i in range(3)]), others[0])


def test_fit_counts_the_epochs():
    seen = []

    class Seen(ArrayDataset):
        def __getitem__(self, index):
            batch = super().__getitem__(index)
            seen.append(batch[1][:, 0].tolist())
            return batch

    network = keras.Sequential(
        [keras.Input((5, 6, 3)), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    network.compile("sgd", "mse")
    data = Seen(IMAGES, np.tile(LABELS[:, None], (1, 3)), 8, shuffle=True, seed=3)
    network.fit(data, epochs=3, shuffle=False, verbose=0)
    # Keras looks at the first batches for their shapes.
    for epoch in range(3):
        expected = labels_of(epoch_of(epoch, shuffle=True, seed=3))
        assert seen[len(seen) - 9 :][3 * epoch : 3 * epoch + 3] == expected


def moved(image, down, right, is_mirrored):
    """The same as loops over pixels."""
    height, width, _ = image.shape
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            from_row, from_column = row - down, column - right
            if 0 <= from_row < height and 0 <= from_column < width:
                source = width - 1 - from_column if is_mirrored else from_column
                result[row, column] = image[from_row, source]
    return result


def test_what_is_augmented_are_the_pixels_before_they_are_normalized():
    data = ArrayDataset(IMAGES, LABELS, 23, augment=True, factor=0.1, offset=2)
    images, labels = data[0]
    draws = zip(*data._draws(0, 0), strict=True)
    expected = [moved(image, *draw) for image, draw in zip(IMAGES, draws, strict=True)]
    expected = np.stack(expected).astype("float32") * np.float32(0.1) - np.float32(2)
    np.testing.assert_array_equal(images, expected)
    assert labels.tolist() == LABELS.tolist()


def test_plain_and_take():
    data = epoch_of(3, shuffle=True, augment=True, seed=2, factor=2)
    for plain in (data.plain(), datasets.plain(data)):
        np.testing.assert_array_equal(images_of(plain), IMAGES * 2.0)
        assert np.concatenate(labels_of(plain)).tolist() == LABELS.tolist()
    assert labels_of(data.take(2)) == [list(range(8)), list(range(8, 16))]
    assert len(data.take(100)) == 3
    datasets.set_epoch(data, 4)
    assert labels_of(data) == labels_of(epoch_of(4, shuffle=True, seed=2))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"labels": LABELS[:-1]}, ["images", "labels"]),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, ["images"]),
        ({"images": np.array(["a"] * 23)}, ["images"]),
        ({"labels": 3}, ["labels"]),
        # Rows that are augmented.
        ({"images": IMAGES[:, :, 0], "augment": True}, ["images"]),
        # The device of another backend.
        ({"on_device": True}, ["on_device"]),
    ],
)
def test_refused(arguments, names):
    with refused(*names):
        ArrayDataset(**{"images": IMAGES, "labels": LABELS} | arguments)
