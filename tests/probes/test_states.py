"""States on disk: their numbers, their bytes after kills, and what is refused.

Not covered: a machine that loses its power.
"""

import hashlib
import signal

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
import zarr
from reference import numpy_network, sequences
from reference.batches import Batches
from reference.random_network import random_batch, random_network
from reference.small_networks import BFLOAT16, functional_network, small_images, small_network
from refusals import refused

import tfresidual as tfr
from tfresidual.probes import load_states, save_states

PLACES = [(1, 0), (1, 1), (2, 0), (2, 1)]


def digests(folder):
    """The hash of every file of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def means(state):
    return state.mean(axis=tuple(range(1, state.ndim - 1)))


@pytest.fixture(scope="module")
def net():
    return random_network(blocks=2, widths=(2, 3), seed=4)


@pytest.fixture(scope="module")
def batch(net):
    return random_batch(net, images=10)


@pytest.fixture(scope="module")
def expected(net, batch):
    """The state after every block, in float64."""
    run = numpy_network.analyse(net.get_config(), numpy_network.weights_of(net), *batch)
    after = [[*own[1:], last] for own, last in zip(run.states, run.last_states, strict=True)]
    return dict(zip(PLACES, (state for own in after for state in own), strict=True))


def as_dataset(images, labels, size):
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)


# What data may be; of each the same states come.
DATA = {
    "arrays": lambda x, y: (x, y),
    "batches of 1": lambda x, y: as_dataset(x, y, 1),
    "batches of 7": lambda x, y: as_dataset(x, y, 7),
    "a PyDataset": lambda x, y: Batches((x[:4], y[:4]), (x[4:], y[4:])),
    "an iterator": lambda x, y: iter([(x[:4], y[:4]), (x[4:], y[4:])]),
}


@pytest.mark.eager
@pytest.mark.parametrize("form", DATA)
@pytest.mark.parametrize("pool", ["mean", None])
def test_states_are_those_of_the_numpy_version(net, batch, expected, form, pool, tmp_path):
    made = save_states(net, DATA[form](*batch), tmp_path / "new" / "states", pool=pool)
    states = load_states(tmp_path / "new" / "states")
    assert list(states) == list(made) == PLACES
    assert [*states.index[["stage", "block"]].itertuples(index=False, name=None)] == PLACES
    for place, state in expected.items():
        state = means(state) if pool else state
        np.testing.assert_allclose(states[place][:], state, rtol=1e-4, atol=1e-5)
        assert states[place].dtype == np.float32
    np.testing.assert_array_equal(states.labels, batch[1])
    np.testing.assert_array_equal(states.weights, np.ones(10))
    parts, labels, weights = zip(*states.batches(), strict=True)
    np.testing.assert_array_equal(np.concatenate(labels), batch[1])
    assert sum(map(len, weights)) == 10
    for place in PLACES:
        joined = np.concatenate([part[place] for part in parts])
        np.testing.assert_array_equal(joined, states[place][:])


@pytest.mark.eager
def test_any_reader_of_zarr_opens_the_folder(net, batch, expected, tmp_path):
    images, labels = batch
    weights = np.array([1, 0, 2, 1, 1, 0.5, 1, 1, 0, 1])
    parts = {"train": (images, labels, weights), "test": images[:1]}
    made = save_states(
        net, parts, tmp_path, blocks=[(2, 1), (1, 0)], dtype="float16", progress=True
    )
    group, counted = zarr.open_group(tmp_path, mode="r"), weights > 0
    assert set(group) == set(made) == {"train", "test"}
    for split, is_in in (("train", counted), ("test", np.arange(10) == 0)):
        array = group[split]["stage2/block1"]
        assert array.dtype == np.float16
        np.testing.assert_allclose(array[:], means(expected[2, 1])[is_in], rtol=2e-3, atol=1e-3)
        place = {"stage": 2, "block": 1, "layer": None, "split": split}
        assert dict(array.attrs) == place
        assert made[split].index.to_dict("records")[1] == {
            name: value
            for name, value in (place | {"array": "stage2/block1"}).items()
            if name != "split"
        }
    np.testing.assert_array_equal(group["train/labels"][:], labels[counted])
    np.testing.assert_array_equal(group["train/weights"][:], weights[counted])
    # Without labels.
    assert made["test"].labels is None and "labels" not in group["test"]
    # A split more; those that are there stay.
    before = digests(tmp_path / "train")
    more = save_states(net, {"more": batch}, tmp_path, blocks=[(1, 0), (2, 1)], dtype="float16")
    assert list(more) == ["train", "test", "more"]
    assert digests(tmp_path / "train") == before


@pytest.mark.eager
@pytest.mark.parametrize("pool", ["mean", None, 1, [0, 3]])
def test_padding_is_in_no_mean_and_is_told(pool, tmp_path):
    kind = "encoder"
    weights = sequences.random_weights()
    chain = sequences.sequence_chain(kind, weights)
    # As long as they are in two batches, and one that is all padding.
    short, long = (
        sequences.batch(kind, 5),
        sequences.batch(kind, 6 if pool == "mean" else 5, empty=1),
    )
    states = save_states(chain, Batches(short, long), tmp_path, pool=pool)
    rows = [*sequences.SEQUENCES, *sequences.SEQUENCES]
    for place in range(3):
        found = states[1, place][:]
        assert len(found) == 9
        for row, state in zip(rows, found[:8], strict=True):
            own = sequences.walk(weights, kind, weights["embedding"][row])[place + 1]
            if pool == "mean":
                np.testing.assert_allclose(state, own.mean(axis=0), rtol=1e-4, atol=1e-5)
                continue
            chosen = np.atleast_1d(range(5) if pool is None else pool)
            for position, one in zip(chosen, np.reshape(state, (len(chosen), -1)), strict=True):
                if position < len(row):
                    np.testing.assert_allclose(one, own[position], rtol=1e-4, atol=1e-5)
    if pool == "mean":
        assert states.valid_positions is None
        assert np.isnan(found[8]).all()
    else:
        lengths = states.valid_positions[:].sum(axis=1).tolist()
        assert lengths == [*map(len, rows), 0]


@pytest.mark.eager
def test_bfloat16_states_are_exact_and_labels_are_of_the_output(tmp_path):
    net = functional_network(BFLOAT16)
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    whole = save_states(net, images, tmp_path / "whole", pool=None)
    chain = tfr.chain(net)
    pairs, _ = chain.walk(chain.stem(images))
    for place, (_, after) in zip(whole, pairs, strict=True):
        assert after.dtype == tf.bfloat16
        np.testing.assert_array_equal(whole[place][:], tf.cast(after, tf.float32))
    # The mean is taken in float32.
    mean = save_states(net, images, tmp_path / "mean")
    np.testing.assert_allclose(mean[1, 0][:], means(whole[1, 0][:]), rtol=1e-5, atol=1e-6)
    two = keras.Model(
        net.input, [net.output, keras.layers.Dense(2, name="two")(net.layers[-2].output)]
    )
    labels = [np.zeros(3), np.arange(3)]
    states = save_states(tfr.chain(two, output="two"), (images, labels), tmp_path / "two")
    assert states.labels.tolist() == [0, 1, 2]


def test_what_is_written_is_not_measured_again(net, batch, tmp_path):
    """Neither its files change nor, where the rest is missing, those before."""
    images, labels = batch

    def stopping():
        yield from ((images[i : i + 2], labels[i : i + 2]) for i in range(0, 6, 2))
        raise OSError("the disk is gone")

    whole = save_states(net, DATA["arrays"](*batch), tmp_path / "whole", pool=None)
    assert len(whole.weights) == 10
    for folder in ("a", "whole"):
        if folder == "a":
            with pytest.raises(OSError, match="the disk is gone"):
                save_states(net, stopping(), tmp_path / "a", pool=None)
            with refused("folder"):
                load_states(tmp_path / "a")
        files = [path for path in (tmp_path / folder).rglob("c.*")]
        before = {path: path.stat().st_mtime_ns for path in files}
        assert len(before) == (21 if folder == "a" else 7)
        save_states(net, as_dataset(*batch, 2), tmp_path / folder, pool=None)
        assert {path: path.stat().st_mtime_ns for path in files} == before
    save_states(net, as_dataset(*batch, 2), tmp_path / "b", pool=None)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


# Arguments: the folder, at which of its operations on files there it is killed, and a network.
PROGRAM = """
import os, signal, sys

import keras
import numpy as np
import tensorflow as tf
from tfresidual import probes

folder, left = sys.argv[1], int(sys.argv[2])

def watch(event, arguments):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
        if isinstance(arguments[0], (str, bytes, os.PathLike)):
            if os.fsdecode(arguments[0]).startswith(folder + os.sep):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
images = np.random.default_rng(5).normal(size=(21, 4, 4, 1)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((images, np.arange(21) % 3)).batch(2)
probes.save_states(keras.models.load_model(sys.argv[3]), {"test": data}, folder, pool=None)
print(-left)
"""


@pytest.mark.system
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_killed_it_leaves_the_bytes_of_a_run_that_was_not(kills, tmp_path):
    model, rng = tmp_path / "model.keras", np.random.default_rng(kills)
    small_network().save(model)
    most = int(processes.run(PROGRAM, tmp_path / "whole", 0, model).stdout.splitlines()[-1])
    whole, folder, done = digests(tmp_path / "whole"), tmp_path / "killed", 0
    while done < kills or folder.exists():
        # At any operation, until all are killed; what is finished is begun again.
        result = processes.run(PROGRAM, folder, rng.integers(1, most) * (done < kills), model)
        if result.returncode == 0:
            assert digests(folder) == whole
            folder.rename(tmp_path / f"finished after {done}")
            continue
        assert result.returncode == -signal.SIGKILL, result.stderr
        done += 1
        if not (folder / "zarr.json").exists():
            with refused("folder"):
                load_states(folder)


# What differs from the call that wrote the folder, and what the error names.
REFUSED = {
    "other weights": ("folder", lambda x, y: {"chain": small_network(scale=2.0)}),
    "other values": ("folder", lambda x, y: {"data": (x + 1, y)}),
    "other labels": ("folder", lambda x, y: {"data": (x, 2 - y)}),
    "other weights of images": ("folder", lambda x, y: {"data": (x, y, np.full(6, 2.0))}),
    "no labels": ("folder", lambda x, y: {"data": x}),
    "another order": ("folder", lambda x, y: {"data": (x[::-1], y[::-1])}),
    "fewer images": ("folder", lambda x, y: {"data": (x[:4], y[:4])}),
    "more images": ("folder", lambda x, y: {"data": (np.concatenate([x, x]), np.tile(y, 2))}),
    "splits": ("folder", lambda x, y: {"data": {"test": (x, y)}}),
    "another pooling": ("folder", lambda x, y: {"pool": "mean"}),
    "another dtype": ("folder", lambda x, y: {"dtype": "float64"}),
    "something else there": ("folder", lambda x, y: {"folder": "else"}),
    "a file": ("folder", lambda x, y: {"folder": "file"}),
    "a block that is not there": ("blocks", lambda x, y: {"blocks": [(1, 1)]}),
    "one block": ("blocks", lambda x, y: {"blocks": (1, 0)}),
    "no blocks": ("blocks", lambda x, y: {"blocks": []}),
    "positions of images": ("pool", lambda x, y: {"pool": 0, "folder": "new"}),
    "no such pooling": ("pool", lambda x, y: {"pool": "max"}),
    "no such dtype": ("dtype", lambda x, y: {"dtype": "bfloat16"}),
    "too large for float16": (
        "dtype",
        lambda x, y: {"data": (1e6 * x, y), "dtype": "float16", "folder": "new"},
    ),
    "a split that leads elsewhere": ("data", lambda x, y: {"data": {"../a": x}, "folder": "new"}),
    "no images": ("data", lambda x, y: {"data": (x[:0], y[:0]), "folder": "new"}),
}


@pytest.mark.eager
def test_what_does_not_fit_is_refused_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = small_images(6), np.arange(6) % 3
    call = {"chain": small_network(), "data": (images, labels), "folder": "states", "pool": None}
    save_states(**call)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = digests(tmp_path)
    for name, (argument, changes) in REFUSED.items():
        with refused(argument) if name != "a file" else pytest.raises(NotADirectoryError):
            save_states(**call | changes(images, labels))
            pytest.fail(name)
        assert digests(tmp_path) == before, name
        assert not (tmp_path / "new").exists(), name
    # Weights that compute something else where the values are the same.
    changed = small_network()
    changed.layers[2].activation = keras.activations.tanh
    with refused("folder"):
        save_states(**call | {"chain": changed})
    with refused("folder"):
        load_states("nothing")
    data = Batches((np.array([[1, 2]]), np.array([0])), (np.array([[1, 2, 3]]), np.array([0])))
    chain = sequences.sequence_chain("encoder")
    with refused("data"):
        save_states(chain, data, "sequences", pool=None)
    with refused("pool"):
        save_states(chain, data, "positions", pool=[2])
