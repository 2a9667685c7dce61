"""The jobs with images from a file, on TensorFlow: the images, settings and folders of a run."""

import dataclasses

import numpy as np
import pytest

from tfresidual.datasets.image_file import write
from tfresidual.jobs import run_folder, targets
from tfresidual.jobs.data import prepare, write_file
from tfresidual.jobs.settings import Settings, check

SIZES = {"train_size": 40, "validation": 12, "test_size": 20}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Of a small Digitclutter from the files of tensorflow-datasets."""
    folder = tmp_path_factory.mktemp("clutter")
    return Settings(digits=4, data_dir=folder, batch_size=16, seed=3, **SIZES)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory, settings):
    path = tmp_path_factory.mktemp("files") / "clutter.npz"
    write_file(settings, path)
    return str(path)


def cifar(path, sizes=(6, 5, 4)):
    splits = {}
    for split, count in zip(("train", "validation", "test"), sizes, strict=True):
        splits[split] = np.zeros((count, 32, 32, 3), np.uint8), np.arange(count)
    write(path, "cifar10", 3, splits)
    return str(path)


def test_all_batches_are_those_of_tensorflow_datasets(settings, data_file):
    """In the order of the epoch, too."""
    of_file = dataclasses.replace(settings, data_dir=None, data_file=data_file)
    for one, other in zip(prepare(of_file), prepare(settings), strict=True):
        batches = zip(one.as_numpy_iterator(), other.as_numpy_iterator(), strict=True)
        for batch, its in batches:
            for array, expected in zip(batch, its, strict=True):
                np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": "mnist"}, "data"),
        ({"digits": 3}, "digits"),
        ({"train_size": 41}, "train_size"),
        ({"validation": 13}, "validation"),
        ({"test_size": 21}, "test_size"),
    ],
)
def test_images_that_the_file_does_not_hold(settings, data_file, changes, named):
    wrong = dataclasses.replace(settings, data_dir=None, data_file=data_file, **changes)
    with pytest.raises(ValueError, match=rf"`{named}` must .*Received: {named}=.*, data_file="):
        prepare(wrong)


def test_two_sources_of_images(settings, data_file):
    with pytest.raises(ValueError, match=r"`data_dir` and `data_file` must not .*Received: data_d"):
        check(dataclasses.replace(settings, data_file=data_file))


# The folder of a run


# What `tfresidual probe` takes


@pytest.fixture
def run(tmp_path, settings, data_file):
    """The network of a run on a file, and its settings."""
    of_file = dataclasses.replace(settings, data_dir=None, data_file=data_file)
    run_folder.claim(tmp_path / "run", {"settings": of_file})
    return tmp_path / "run" / "model.keras", of_file


def test_a_probe_has_the_images_of_the_run(tmp_path, run, settings):
    path, of_file = run

    def found(**changes):
        return targets.settings_for(path, path, changes)

    replaced = dataclasses.replace
    assert found() == of_file
    assert found(data_dir="there") == replaced(of_file, data_file=None, data_dir="there")
    assert found(data="digitclutter", test_size=5) == replaced(of_file, test_size=5)
    assert found(data="mnist") == replaced(of_file, data="mnist", data_file=None)
    assert found(digits=5) == replaced(of_file, digits=5, data_file=None)
    # A file of other sizes has the images of the run.
    bigger = str(tmp_path / "bigger.npz")
    more = replaced(settings, train_size=50, test_size=30)
    write_file(more, bigger)
    assert found(data_file=bigger) == replaced(of_file, data_file=bigger)
    other = cifar(tmp_path / "cifar.npz")
    sizes = {"train_size": 6, "validation": 5, "test_size": 4}
    assert found(data_file=other) == replaced(of_file, data="cifar10", data_file=other, **sizes)


def test_a_probe_of_a_network_outside_of_a_run_needs_no_more_than_a_file(tmp_path):
    path = cifar(tmp_path / "cifar.npz")
    network = tmp_path / "net.keras"
    found = targets.settings_for(network, network, {"data_file": path})
    assert (found.data, found.data_file, found.test_size) == ("cifar10", path, 4)
    with pytest.raises(ValueError, match="Argument `data` must be given"):
        targets.settings_for(network, network, {})
