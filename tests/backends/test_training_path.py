"""Training from a file on JAX and PyTorch, without TensorFlow, and what TensorFlow makes of it."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pandas as pd
import pytest
from reference import train_from_file

from tfresidual import datasets
from tfresidual.datasets.image_file import write
from tfresidual.jobs import probing, run_folder, study
from tfresidual.jobs.settings import Settings, with_data_of_file
from tfresidual.training.checkpoints import opened

pytestmark = pytest.mark.eager

BACKENDS = [
    pytest.param("jax", marks=pytest.mark.system),
    pytest.param("torch", marks=pytest.mark.nightly),
]
PROGRAM = pathlib.Path(train_from_file.__file__)
# As if they were not installed.
WITHOUT_TENSORFLOW = """
import runpy, sys
for name in ("tensorflow", "tensorflow_datasets"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
"""


def process(backend, code, *arguments, cwd=None):
    """Runs a program on a backend, where TensorFlow cannot be imported."""
    # -P: the installed package, not the files in the folder this runs in.
    return subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_TENSORFLOW + code, *map(str, arguments)],
        env=os.environ | {"KERAS_BACKEND": backend},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def train(backend, *arguments):
    return process(backend, "runpy.run_path(sys.argv[0], run_name='__main__')", PROGRAM, *arguments)


def command(backend, *arguments, cwd):
    return process(
        backend, "import tfresidual_cli; tfresidual_cli.main(sys.argv)", *arguments, cwd=cwd
    )


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """JAX compiles a training once for all processes."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        environment.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        environment.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    """Random images in the form of CIFAR-10, whose training images are augmented."""
    path, rng = tmp_path_factory.mktemp("data") / "cifar10.npz", np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 40), ("validation", 20), ("test", 40)):
        images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        splits[split] = images, rng.integers(0, 10, count)
    write(path, "cifar10", 3, splits)
    return path


@pytest.fixture(scope="module")
def settings(data_file):
    return Settings(**with_data_of_file({"data_file": data_file, **train_from_file.SETTINGS}))


@pytest.fixture(scope="module")
def runs(backend, data_file, tmp_path_factory):
    """A training without interruption, one that was killed, and one that was resumed after that."""
    folder = tmp_path_factory.mktemp(backend)
    killed = train(backend, data_file, f"{folder / 'resumed'}:1")
    assert killed.returncode == -9, killed.stderr
    unlocked = shutil.ignore_patterns(".lock")
    shutil.copytree(folder / "resumed", folder / "killed", ignore=unlocked)
    result = train(backend, data_file, folder / "whole", folder / "resumed")
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.nightly
def test_a_killed_training_resumes_to_the_same_end(backend, runs):
    assert len(pd.read_csv(runs / "killed" / "log.csv")) == 1
    whole, resumed = (pd.read_csv(runs / name / "log.csv") for name in ("whole", "resumed"))
    assert list(whole["epoch"]) == [0, 1, 2]
    assert len(set(whole["learning_rate"])) > 1
    pd.testing.assert_frame_equal(resumed, whole)
    for path in ("model.keras", "checkpoints/epoch-0002.keras"):
        networks = [opened(runs / name / path) for name in ("whole", "resumed")]
        for variables in ("variables", "optimizer.variables"):
            values = []
            for network in networks:
                of = network.optimizer if variables.startswith("optimizer") else network
                values.append([keras.ops.convert_to_numpy(value) for value in of.variables])
            for one, other in zip(*values, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.nightly
def test_the_folder_says_what_it_was_trained_with(backend, runs, settings):
    content = run_folder.read_settings(runs / "whole")
    assert content["machine"]["backend"] == backend
    assert content["versions"][backend]
    assert "tensorflow-datasets" in content["versions"]
    assert run_folder.settings_of(runs / "whole") == settings


@pytest.mark.nightly
def test_an_unfinished_training_stays_on_its_backend(backend, runs, settings):
    before = {path: path.read_bytes() for path in (runs / "killed").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"began on {backend}, and 1 of 3 epochs.*Received: "):
        study.run(runs / "killed", settings)
    after = {path: path.read_bytes() for path in (runs / "killed").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.nightly
def test_tensorflow_probes_the_network(runs):
    frames, paths = probing.probe(runs / "whole", "drop_blocks")
    assert len(frames["drop_blocks"]) == 3
    assert {path.parent for path in paths} == {runs / "whole" / "probes"}
    record = json.loads((runs / "whole" / "probes" / "probes.json").read_text())
    assert record["drop_blocks"]["images"] == {"test": 40}


@pytest.mark.nightly
def test_tensorflow_studies_the_run(runs, settings, data_file):
    """The same settings train nothing; the log without metrics of the blocks leaves these out."""
    names = ("log.csv", "model.keras", "settings.json")
    before = [(runs / "whole" / name).read_bytes() for name in names]
    report = study.run(runs / "whole", settings)
    assert [(runs / "whole" / name).read_bytes() for name in names] == before
    assert "backend" in report.read_text()
    folder = report.parent
    frames = {path.stem for path in (folder / "frames").iterdir()}
    assert "block_metrics" in frames and "block_metrics_by_epoch" not in frames
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert {"training_curves", "cosine_loss"} <= figures
    assert not any(name.endswith("by_epoch") for name in figures)
    # What TensorFlow computes is what the other backend logged.
    network = opened(runs / "whole" / "model.keras")
    log = pd.read_csv(runs / "whole" / "log.csv")
    best = log.loc[log["val_accuracy"].idxmax()]
    loss, accuracy = network.evaluate(datasets.load_file(data_file, 16)[1], verbose=0)
    assert accuracy == best["val_accuracy"]
    assert loss == pytest.approx(best["val_loss"], rel=1e-4)


ON_DEVICE = """
import keras, numpy as np
from tfresidual.datasets import ArrayDataset, load_file
parts = load_file(sys.argv[0], 16, seed=3)
assert not any(part.on_device for part in parts)
for part in parts:
    other = ArrayDataset(
        part.images, part.labels, 16, shuffle=part.shuffle, augment=part.augment, seed=part.seed,
        factor=part.factor, offset=part.offset, on_device=True,
    )
    for epoch in range(2):
        part.set_epoch(epoch)
        other.set_epoch(epoch)
        for one, its in zip(part, other, strict=True):
            for array, tensor in zip(one, its, strict=True):
                assert keras.ops.is_tensor(tensor)
                value = keras.ops.convert_to_numpy(tensor)
                assert value.shape == array.shape
                np.testing.assert_allclose(value, array, rtol=1e-6, atol=1e-6)
    assert other.take(1).on_device and len(other.take(1)) == 1
network = keras.Sequential([
    keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")
])
network.compile("sgd", "sparse_categorical_crossentropy")
losses = []
for data in (parts[0], other):
    losses.append(network.fit(data, epochs=1, shuffle=False, verbose=0).history["loss"])
print("the same")
"""


@pytest.mark.nightly
def test_batches_on_the_device_are_those_of_numpy(backend, data_file):
    result = process(backend, ON_DEVICE, data_file)
    assert result.stdout == "the same\n", result.stderr


COMMANDS = """
import contextlib, tfresidual_cli
for text in ("study", "probe run --data mnist", "tune", "export run new"):
    with contextlib.suppress(SystemExit):
        tfresidual_cli.main(text.split())
"""


@pytest.mark.nightly
def test_commands_of_tensorflow_say_so(tmp_path, backend):
    result = process(backend, COMMANDS, cwd=tmp_path)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 8
    assert set(lines[::2]) == {"loading Keras"}
    assert len(set(lines[1::2])) == 1
    assert lines[1].startswith("tfresidual: Probes, callbacks, ")
    assert lines[1].endswith(f"Received: KERAS_BACKEND={backend}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_images_that_need_tensorflow(tmp_path, backend):
    for arguments in (["train", "--depth", "8"], ["data", "mnist", "--to", "mnist.npz"]):
        result = command(backend, *arguments, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.splitlines()[-1].startswith("tfresidual: Images are read from")
        assert result.stderr.splitlines()[-1].endswith("Received: --data-dir=None")
        assert list(tmp_path.iterdir()) == []


def test_the_command_trains(tmp_path, backend, data_file):
    """The option counts more than the environment."""
    options = ["--depth", "8", "--width", "2", "--epochs", "1", "--batch-size", "20"]
    other = "tensorflow"
    result = command(
        other, "train", "--backend", backend, "--data-file", data_file, *options, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "runs" / "resnet-cifar10"
    network, best = result.stdout.splitlines()
    assert network == "network: runs/resnet-cifar10/model.keras"
    assert best.startswith("best epoch: 1, validation accuracy ")
    assert "without the metrics of the blocks" in result.stderr
    assert "epoch 1 of 1" in " ".join(result.stderr.split())
    assert run_folder.read_settings(folder)["machine"]["backend"] == backend
    assert run_folder.settings_of(folder).test_size == 40
    # TensorFlow opens what was written, and has the same loss.
    logged = pd.read_csv(folder / "log.csv")["val_loss"][0]
    validation = datasets.load_file(data_file, 20)[1]
    loss, _ = opened(folder / "model.keras").evaluate(validation, verbose=0)
    assert loss == pytest.approx(logged, rel=1e-4)
