"""Images in one file: those of `load`, and files that are damaged or something else."""

import numpy as np
import pytest
from refusals import refused

from tfresidual import datasets
from tfresidual.datasets.image_file import open_file, write

SIZES = {"train_size": 40, "validation": 12, "test_size": 20}


def images_of(name, digits=3):
    """Random images and labels by split."""
    description, rng = datasets.describe(name, digits), np.random.default_rng(0)
    splits = {}
    for split, count in {"train": 6, "validation": 5, "test": 4}.items():
        images = rng.integers(0, 256, (count, *description.input_shape), dtype=np.uint8)
        labels = rng.integers(0, description.classes, count)
        if description.multi_label:
            chosen = rng.permuted(np.tile(np.arange(10), (count, 1)), axis=1)[:, :digits]
            labels = np.eye(10, dtype=np.uint8)[chosen].sum(axis=1, dtype=np.uint8)
        splits[split] = images, labels
    return splits


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("clutter")


@pytest.fixture(scope="module")
def clutter(tmp_path_factory, data_dir):
    path = tmp_path_factory.mktemp("files") / "new" / "clutter.npz"
    datasets.save(path, "digitclutter", digits=4, data_dir=data_dir, **SIZES)
    return path


def arrays(data):
    is_array = isinstance(data, datasets.ArrayDataset)
    batches = data if is_array else data.as_numpy_iterator()
    return [np.concatenate(part) for part in zip(*batches, strict=True)]


@pytest.mark.parametrize(
    ("pixels", "sizes"),
    [
        *((pixels, SIZES) for pixels in datasets.PIXELS),
        ("standardized", {"train_size": 30, "validation": 7, "test_size": 9}),
    ],
)
def test_images_are_those_of_load(clutter, data_dir, pixels, sizes):
    options = {"batch_size": 16, "pixels": pixels, "shuffle": False}
    expected = datasets.load("digitclutter", digits=4, data_dir=data_dir, **options, **sizes)
    found = datasets.load_file(clutter, **options, **({} if sizes == SIZES else sizes))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, datasets.ArrayDataset)
        assert len(one) == len(other)
        for array, its in zip(arrays(one), arrays(other), strict=True):
            assert array.dtype == its.dtype
            np.testing.assert_array_equal(array, its)


def test_fewer_held_out_images_are_the_last(tmp_path):
    """Those of MNIST and CIFAR are the last of the training images."""
    splits = images_of("mnist")
    write(tmp_path / "mnist.npz", "mnist", 3, splits)
    file = open_file(tmp_path / "mnist.npz")
    assert (file.name, file.digits) == ("mnist", None)
    assert file.sizes == {"train": 6, "validation": 5, "test": 4}
    for split, chosen in (("train", slice(2)), ("validation", slice(3, 5)), ("test", slice(2))):
        for one, other in zip(file.read(split, 2), splits[split], strict=True):
            np.testing.assert_array_equal(one, other[chosen])


def test_saving_again_replaces_the_file_when_the_new_one_is_complete(tmp_path, data_dir):
    path = tmp_path / "a.npz"
    write(path, "cifar10", 3, images_of("cifar10"))
    before = path.read_bytes()
    with pytest.raises(FileNotFoundError, match="MNIST is not prepared"):
        datasets.save(path, "mnist", data_dir=tmp_path / "empty")
    with refused("validation"):
        datasets.save(path, "mnist", validation=None)
    assert path.read_bytes() == before
    datasets.save(path, "digitclutter", digits=4, data_dir=data_dir, **SIZES)
    assert open_file(path).sizes == {"train": 40, "validation": 12, "test": 20}
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("name", ["images", "images.npy", "folder.npz", "", "file/images.npz"])
def test_names_that_no_file_can_have(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises((ValueError, OSError), match=r"`data_file` must .* Received: data_file="):
        datasets.save(name, "digitclutter", **SIZES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.npz"]


@pytest.mark.parametrize("content", ["mine", "PK", None])
def test_what_something_else_wrote_is_not_replaced(tmp_path, content):
    path = tmp_path / "mine.npz"
    np.savez(path, mine=[1]) if content is None else path.write_text(content)
    before = path.read_bytes()
    with refused("data_file"):
        datasets.save(path, "digitclutter", **SIZES)
    assert path.read_bytes() == before


# Damaged files


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "images.npz"
    write(path, "cifar10", 3, images_of("cifar10"))
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    """Changes a bit of an image."""
    with np.load(path) as file:
        pixels = file["validation_images"].tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(pixels) + 1000] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, empty, flip])
def test_damaged_files_are_named(whole, damage):
    damage(whole)
    with pytest.raises(ValueError, match=r"^images\.npz is damaged"):
        datasets.load_file(whole)


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=[1])
    with refused("data_file"):
        datasets.load_file(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_size", 0),
        ("pixels", "0-2"),
    ],
)
def test_refused(whole, name, value):
    with refused(name):
        datasets.load_file(whole, **{name: value})
