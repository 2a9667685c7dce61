"""Images in one file: those of `load`, and files that are damaged or something else."""

import io
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
from refusals import refused

from tfresidual import datasets
from tfresidual.datasets.image_file import check_target, open_file, write

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


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "digitclutter"])
def test_what_is_augmented(tmp_path, name):
    write(tmp_path / "file.npz", name, 3, images_of(name))
    for augment in (None, False, True):
        parts = datasets.load_file(tmp_path / "file.npz", augment=augment, seed=5)
        expected = augment if augment is not None else name.startswith("cifar")
        assert [part.augment for part in parts] == [expected, False, False]
        assert [part.shuffle for part in parts] == [True, False, False]
        assert parts[0].seed == 5


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


def changed(**changes):
    """A function that writes the arrays of a file with changes; `None` leaves one out."""

    def change(path):
        with np.load(path) as file:
            content = {name: file[name] for name in file.files} | changes
        np.savez(path, **{name: array for name, array in content.items() if array is not None})

    return change


def header(**changes):
    def change(path):
        with np.load(path) as file:
            content = json.loads(str(file["tfresidual"])) | changes
        changed(tfresidual=json.dumps(content))(path)

    return change


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


def twice(path):
    """Adds other labels under the name of those that are there."""
    labels = io.BytesIO()
    np.save(labels, np.zeros(6, int))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("train_labels.npy", labels.getvalue())


def pipe(path):
    path.unlink()
    os.mkfifo(path)


ELSE, NOT_OF_DATASET = "this one is something else", "are not those of a dataset"
DAMAGES = {
    "cut": (cut, "is damaged: it is cut short"),
    "empty": (empty, "is damaged: it is cut short"),
    "a bit": (flip, "is damaged: validation_images in it cannot be read"),
    "other arrays": (lambda path: np.savez(path, a=[1]), ELSE),
    "a header of another format": (header(format="x"), ELSE),
    "a header that is no JSON": (changed(tfresidual="{"), "is damaged: "),
    "a header of objects": (changed(tfresidual=np.array({}, dtype=object)), "is damaged: "),
    "a later version": (header(version=2), "must have version 1"),
    "an unknown dataset": (header(name="svhn"), NOT_OF_DATASET),
    "a header with a key twice": (
        changed(tfresidual='{"format": "x", "format": "y"}'),
        "'format' twice",
    ),
    "digits of CIFAR": (header(digits=3), NOT_OF_DATASET),
    "no sizes": (header(sizes={}), NOT_OF_DATASET),
    "another size": (
        header(sizes={"train": 6, "validation": 5, "test": 5}),
        "test_images in it has shape",
    ),
    "a split that is missing": (changed(test_labels=None), "test_labels in it cannot be read"),
    "floats": (changed(train_images=np.zeros((6, 32, 32, 3))), "train_images in it has shape"),
    "labels out of range": (changed(train_labels=np.full(6, 10)), "other numbers than labels"),
    "labels below 0": (changed(test_labels=np.full(4, -1)), "other numbers than labels"),
    "a name twice": (twice, "'train_labels.npy' is in it twice"),
    "a pipe": (pipe, "not a pipe"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_named(whole, name):
    damage, reason = DAMAGES[name]
    damage(whole)
    with pytest.raises((ValueError, OSError)) as raised:
        datasets.load_file(whole)
    message = str(raised.value)
    assert reason in message
    assert str(whole) in message.split("Received: ")[1]
    assert "\n" not in message


@pytest.mark.parametrize("damage", [cut, empty])
def test_a_damaged_file_may_be_written_anew(whole, damage):
    """As its error says."""
    damage(whole)
    assert check_target(whole) == whole


def test_a_file_that_becomes_many_times_as_large(whole):
    """Nothing of it is read, to which the memory testifies."""
    header(sizes={"train": 30_000, "validation": 5, "test": 4})(whole)
    with np.load(whole) as file:
        content = dict(file)
    content["train_images"] = np.zeros((30_000, 32, 32, 3), "uint8")
    np.savez_compressed(whole, **content)
    del content
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"images\.npz is not opened: .*Received: path="):
        datasets.load_file(whole)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("labels", [np.full((6, 10), 1), np.eye(10)[:6], 2 * np.eye(10)[:6]])
def test_rows_of_labels_that_do_not_name_the_digits(tmp_path, labels):
    splits = images_of("digitclutter")
    splits["train"] = splits["train"][0], labels.astype("uint8")
    write(tmp_path / "file.npz", "digitclutter", 3, splits)
    with pytest.raises(ValueError, match=r"file\.npz is damaged: train_labels .*Received: path="):
        datasets.load_file(tmp_path / "file.npz")


def test_files_that_cannot_be_read_are_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`data_file` must .* Received: data_file="):
        datasets.load_file(tmp_path / "nothing.npz")
    with pytest.raises(IsADirectoryError):
        datasets.load_file(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_size", 0),
        ("validation", 0.5),
        ("batch_size", 0),
        ("seed", -1),
        ("shuffle", None),
        ("augment", 1),
        ("pixels", "0-2"),
    ],
)
def test_refused(whole, name, value):
    with refused(name):
        datasets.load_file(whole, **{name: value})
