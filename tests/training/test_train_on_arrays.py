"""Training on arrays and on a `PyDataset`, on TensorFlow; tests/backends has the other backends."""

import keras
import numpy as np
import pandas as pd
import pytest
from reference.random_network import sample
from refusals import refused

from tfresidual import datasets, training
from tfresidual.networks import ResidualNetwork

pytestmark = pytest.mark.eager

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 3
EPOCHS = 3


def augmented(seed=0):
    return datasets.ArrayDataset(
        IMAGES, LABELS, 8, shuffle=True, augment=True, seed=seed, factor=1 / 255
    )


class Stop(Exception):
    pass


def stop(epoch, logs):
    if epoch == 1:
        raise Stop


def train(folder, data, callbacks=(), **kwargs):
    keras.utils.set_random_seed(7)
    network = ResidualNetwork((8, 8, 3), 3, blocks=1, widths=(3,), shortcut="dropout")
    metric = training.compile_network(network, "mnist", epochs=EPOCHS, steps_per_epoch=3)
    held_out = kwargs.pop("held_out", (IMAGES[:8] / 255, LABELS[:8]))
    return training.train(
        network,
        data,
        held_out,
        folder=folder,
        epochs=EPOCHS,
        metric=metric,
        callbacks=callbacks,
        **kwargs,
    )


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
    interruption = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
    with pytest.raises(Stop):
        train(tmp_path / "parts", DATA[kind](), [interruption], **batch_size)
    assert_equal_trainings(train(tmp_path / "parts", DATA[kind](), **batch_size), whole)
    assert list(whole.log["epoch"]) == list(range(EPOCHS))


@pytest.mark.system
def test_arrays_are_batches_of_64_in_an_order_of_each_epoch(tmp_path):
    """The same as an `ArrayDataset`."""
    images, labels = np.repeat(IMAGES, 5, 0), np.repeat(LABELS, 5)
    data = datasets.ArrayDataset(images, labels, shuffle=True)
    assert len(data) == 2
    expected = train(tmp_path / "dataset", data)
    assert_equal_trainings(train(tmp_path / "arrays", [images, labels]), expected)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        # Batches have one already.
        ({"data": augmented(), "held_out": augmented(), "batch_size": 8}, ["batch_size"]),
        ({"data": (IMAGES, LABELS[:-1])}, ["images", "labels"]),
    ],
)
def test_refused(tmp_path, arguments, names):
    with refused(*names):
        train(tmp_path / "run", **{"data": (IMAGES, LABELS)} | arguments)
    assert list(tmp_path.iterdir()) == []
