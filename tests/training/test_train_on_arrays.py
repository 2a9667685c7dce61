"""Training on arrays and on a `PyDataset`, on TensorFlow; tests/backends has the other backends."""

import keras
import numpy as np
import pandas as pd
import pytest
from reference.random_network import sample

from tfresidual import datasets, training
from tfresidual.networks import ResidualNetwork

pytestmark = pytest.mark.eager

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 3
EPOCHS = 3


def compiled():
    keras.utils.set_random_seed(7)
    network = ResidualNetwork((8, 8, 3), 3, blocks=1, widths=(3,), shortcut="dropout")
    metric = training.compile_network(network, "mnist", EPOCHS, 3)
    return network, metric


def augmented(seed=0):
    return datasets.ArrayDataset(
        IMAGES, LABELS, 8, shuffle=True, augment=True, seed=seed, factor=1 / 255
    )


class Stop(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop


def train(folder, data, callbacks=(), **kwargs):
    network, metric = compiled()
    held_out = IMAGES[:8] / 255, LABELS[:8]
    return training.train(network, data, held_out, folder, EPOCHS, metric, callbacks, **kwargs)


def assert_equal_trainings(one, other):
    pd.testing.assert_frame_equal(one.log, other.log)
    for weights, its in zip(one.network.get_weights(), other.network.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, its)


DATA = {"arrays": lambda: (IMAGES / 255, LABELS), "a PyDataset": augmented}


@pytest.mark.system
@pytest.mark.parametrize("kind", sample({kind: kind for kind in DATA}, 2, pytest.mark.nightly))
def test_a_training_that_is_interrupted_resumes_with_the_batches_of_the_whole(tmp_path, kind):
    batch_size = {"batch_size": 8} if kind == "arrays" else {}
    whole = train(tmp_path / "whole", DATA[kind](), **batch_size)
    with pytest.raises(Stop):
        train(tmp_path / "parts", DATA[kind](), [StopAt(1)], **batch_size)
    assert_equal_trainings(train(tmp_path / "parts", DATA[kind](), **batch_size), whole)
    assert list(whole.log["epoch"]) == list(range(EPOCHS))
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} <= set(whole.log)


@pytest.mark.system
def test_the_order_is_that_of_the_seed(tmp_path):
    one, other = (train(tmp_path / str(seed), augmented(seed)) for seed in (0, 1))
    assert not np.allclose(one.log["loss"], other.log["loss"])


@pytest.mark.system
def test_arrays_are_batches_of_64_in_an_order_of_each_epoch(tmp_path):
    """The same as an `ArrayDataset`."""
    data = datasets.ArrayDataset(np.repeat(IMAGES, 5, 0), np.repeat(LABELS, 5), shuffle=True)
    assert len(data) == 2
    expected = train(tmp_path / "dataset", data)
    found = train(tmp_path / "arrays", [np.repeat(IMAGES, 5, 0), np.repeat(LABELS, 5)])
    assert_equal_trainings(found, expected)


@pytest.mark.system
def test_a_dataset_without_an_epoch_is_used_as_it_is(tmp_path):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            part = slice(index * 10, (index + 1) * 10)
            return IMAGES[part] / np.float32(255), LABELS[part]

    result = train(tmp_path, Batches(), batch_size=4)
    assert len(result.log) == EPOCHS


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True, "8"])
def test_a_batch_size_that_is_none(tmp_path, batch_size):
    with pytest.raises(ValueError, match=r"`batch_size` must .* Received: batch_size="):
        train(tmp_path / "run", (IMAGES, LABELS), batch_size=batch_size)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_size_of_batches(tmp_path):
    network, metric = compiled()
    data = augmented()
    with pytest.raises(ValueError, match=r"`batch_size` must .*Received: batch_size=8"):
        training.train(network, data, data, tmp_path / "run", 1, metric, batch_size=8)
    assert list(tmp_path.iterdir()) == []


def test_arrays_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"`images` and `labels` must .* Received: "):
        train(tmp_path / "run", (IMAGES, LABELS[:-1]))
    assert list(tmp_path.iterdir()) == []
