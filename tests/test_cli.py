"""The command `tfresidual`, in processes of its own where these are what is tested.

Not covered: `data --download`, which needs a connection.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import click
import pytest

import tfresidual_cli

pytestmark = pytest.mark.system

COMMAND = pathlib.Path(sys.executable).with_name("tfresidual")
# Noise of the libraries, and errors that nobody caught.
NOISE = ("onednn", "cuda", "absl", "warning", "i0000", "traceback", "e0000", "w0000")
LOADING = "loading Keras"
KERNELS = "convolutions run on kernels of oneDNN\n"
SIZES = ["--train-size", "64", "--validation", "40", "--test-size", "40", "--batch-size", "32"]
TINY = [*SIZES, "--depth", "8", "--width", "4", "--epochs", "2"]


def environment():
    """As a user has it: the tests silence TensorFlow, the command has to do so itself."""
    quiet = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "KERAS_BACKEND", "PYTHONWARNINGS")
    kept = {key: value for key, value in os.environ.items() if key not in quiet}
    # A command that should have failed must not draw data into the user's folder.
    return kept | {"TFDS_DATA_DIR": "/dev/null/none"}


def process(*command, cwd=None, **variables):
    """What a process returns, with these variables in its environment."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def tfresidual(*arguments, cwd=None):
    return process(COMMAND, *arguments, cwd=cwd)


def started(*arguments, cwd):
    """A process of the command that is to be interrupted, with a group of its own."""
    return subprocess.Popen(
        [str(COMMAND), *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """A function that does what `tfresidual` does in this process, which has TensorFlow loaded."""

    def run(*arguments, cwd=tmp_path):
        monkeypatch.chdir(cwd)
        code = 0
        try:
            tfresidual_cli.main([*map(str, arguments)])
        except SystemExit as stopped:
            code = stopped.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


def assert_no_noise(text):
    text = text.replace(KERNELS, "").lower()
    for word in NOISE:
        assert word not in text


def save_network(folder, shape=(4, 4, 1), classes=None):
    """Writes a network of one block, which ends in a classifier if it has classes."""
    import keras

    inputs = keras.Input(shape)
    outputs = keras.layers.Conv2D(1, 3, padding="same")(inputs) + inputs
    outputs = keras.layers.Flatten()(outputs)
    if classes is not None:
        outputs = keras.layers.Dense(classes, "sigmoid")(outputs)
    keras.Model(inputs, outputs).save(folder / "net.keras")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("clutter")


# Help


def test_help_is_quick():
    times = []
    # Something else may have slowed down the first time.
    while min(times, default=1) >= 1 and len(times) < 3:
        begun = time.monotonic()
        result = tfresidual("study", "--help")
        times.append(time.monotonic() - begun)
        assert (result.returncode, result.stderr) == (0, "")
    assert min(times) < 1


@pytest.mark.parametrize("command", ["", *tfresidual_cli.cli.commands])
def test_help_has_examples_and_fits_the_screen(here, command):
    result = here(*command.split(), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: tfresidual {command}".rstrip())
    assert "Examples:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


LOADED = """
import contextlib, io, sys
import tfresidual_cli
for arguments in (["-h"], ["study", "--help"], ["--version"], [], ["study", "--epochs", "0"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        with contextlib.redirect_stderr(io.StringIO()):
            tfresidual_cli.main(arguments)
names = {name.split(".")[0] for name in sys.modules}
print(sorted(names & {"tensorflow", "keras", "numpy", "pandas", "rich"}))
"""


def test_help_and_wrong_arguments_load_nothing():
    assert process(sys.executable, "-c", LOADED).stdout == "[]\n"


def test_version():
    from importlib import metadata

    result = tfresidual("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"tfresidual {metadata.version('tfresidual')}\n"


def test_no_arguments_show_the_help(here):
    result = here()
    assert "Commands:" in result.stdout
    assert result.returncode == 2


OPTIONS = {
    (name, option.name): option
    for name, command in tfresidual_cli.cli.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
}


def test_defaults_are_those_of_the_package():
    """An option has none of its own, which would hide that of a run or of a file."""
    for (command, name), option in OPTIONS.items():
        assert option.default is False or not isinstance(option.default, (int, float, str)), name
        if name not in ("help", "download", "serving_only", "overwrite", "to", "target"):
            assert re.search(r"\[default: (?!None).+\]$", option.help), (command, name)


def test_choices_are_those_of_the_package():
    from tfresidual import datasets, networks, training
    from tfresidual.jobs.settings import Settings
    from tfresidual.layers.residual_unit import BATCH_NORMS, LAYOUTS
    from tfresidual.layers.shortcuts import SHORTCUTS
    from tfresidual.networks.specification import ANCHORS
    from tfresidual.training.gradient_coupling import KERNELS

    settings = tfresidual_cli.SETTINGS
    assert tuple(networks.PRESETS) == settings.NETWORKS
    assert tuple(BATCH_NORMS) == settings.BATCH_NORMS
    assert settings.KERNELS == KERNELS
    assert tuple(OPTIONS["study", "anchor"].type.choices) == ANCHORS
    assert set(settings.RECIPES) == set(training.RECIPES)
    assert set(settings.LAYOUTS) == set(LAYOUTS)
    assert set(settings.SHORTCUTS) == set(SHORTCUTS)
    with pytest.raises(ValueError, match="must be one of") as raised:
        datasets.describe("nothing")
    named = re.findall(r"'(\w+)'", str(raised.value).split("Received: ")[0])
    assert set(settings.DATASETS) == set(named)
    assert set(settings.DATASETS) <= set(training.RECIPES)
    assert Settings().data in settings.DATASETS


# Wrong arguments

HUGE = "99999999999999999999"


def lines(text):
    """The command lines in a text, as parameters."""
    return [line.strip() for line in re.split(r"[|\n]", text) if line.strip()]


WRONG = f"""
stduy | --quiet | probe | data | data imagenet | data digitclutter mnist | data mnist --to .
study cifar10 | study --epoch-count 3 | data digitclutter --epochs 3 | probe run --epochs 3
study --epochs | study --epochs 0 | study --epochs 2.5 | train --epochs '' | study --epochs {HUGE}
study --seed -1 | study --seed {2**32} | train --share-from -1 | train --depth 10001
study --epsilon 0 | study --epsilon -0.1 | train --coupling 2 | train --lipschitz 0
study --data imagenet | study --digits 6 | study --network resnet50 | study --layout none
study --shortcut none | study --recipe none | study --dtype float16 | train --anchor first
train --out {__file__} | train --backend numpy | study --backend jax
probe run --probe readouts | probe run --split validation | probe run --pixels 0-2
probe run --epsilon 0 | probe run --images 0 | probe run --images {HUGE}
probe run --times 1001 | probe run --scale half
probe run --memory-limit 0 | export | export run | export run saved more | compare
export run saved --probe readout | compare run other --probe readout | tune --depth 20
tune --start 4,x,4 | tune --start 0 | tune --max-blocks 4,,4 | tune --max-blocks 4,10001,4
tune --workers 0 | tune --workers {HUGE} | tune --tolerance -1 | tune --tolerance {HUGE}
"""


@pytest.mark.parametrize("command", lines(WRONG))
def test_wrong_arguments_take_one_line(tmp_path, here, command):
    """In this process; below a backend that is not installed is refused in its own."""
    result = here(*shlex.split(command))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("tfresidual: ")
    assert "--help'" in line
    assert all(word in line for word in command.split() if word.startswith("--"))
    assert list(tmp_path.iterdir()) == []


# What the package refuses. The line names the last option, or what stands after an arrow.
REFUSED = """
train --batch-norm unshared
train --depth 7 | train --depth 8 --share-from 99 | train --network wide_resnet --depth 8
train --network wide_resnet --stages 1 | train --stages 7
train --network hauser_resnet --transition max_pooling
train --gate-bias -6 | study --shortcut dropout --branch-scale 0.5 | train --gamma nan
train --epsilon 1e-300 | train --epsilon nan | train --learning-rate nan | train --lipschitz nan
train --coupling nan | train --coupling 1 --coupling-from 99
train --kernel triangular | train --coupling-from 1
study --data cifar10 | data mnist | tune --data mnist | study --data mnist --validation 60000
train --data-file nothing.npz | study --data-file file -> file
data digitclutter --to file
train --out '' | tune --out '' | study --out '' | train --out file/run
train --data cifar10 --data-dir file | train --data-dir ''
tune --start 4,4 | tune --start 4,4,4 --stages 2 -> --start
tune --start 9 --max-blocks 8 -> --start | tune --min-blocks 9 --max-blocks 8 -> blocks
tune --network wide_resnet | tune --share-from 1 --warm-start | tune --share-from 8 --max-blocks 8
probe '' --data mnist -> NETWORK | probe nothing | probe . | probe file
probe file --data mnist -> file
probe nothing --chance largest_class | probe nothing --chance 2 | probe nothing --scale nan
probe nothing --scale 1e39
"""


@pytest.mark.parametrize("case", lines(REFUSED))
def test_what_the_package_refuses_takes_one_line(tmp_path, here, case):
    (tmp_path / "file").write_text("mine")
    line, _, named = case.partition(" -> ")
    command, *rest = shlex.split(line)
    result = here(command, "--data-dir", "empty", *rest)
    assert (result.returncode, result.stdout) == (2, "")
    *_, told = result.stderr.splitlines()
    assert "Traceback" not in result.stderr
    assert told.startswith("tfresidual: ")
    *_, last = ["", *(word for word in rest if word.startswith("--"))]
    assert (named or last) in told
    # It names options, not the arguments of functions.
    names = {name for _, name in OPTIONS} | {"folder", "target", "source", "path"}
    assert not names & set(re.findall(r"`([^`]*)`", told))
    # Nothing is left of the attempt: the folder is free for other settings.
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_dir):
    folder = tmp_path_factory.mktemp("work")
    result = tfresidual("train", *TINY, "--data-dir", data_dir, cwd=folder)
    return folder, result


def test_train(trained, data_dir):
    folder, result = trained
    assert result.returncode == 0, result.stderr
    network, best = result.stdout.splitlines()
    assert network == "network: runs/resnet-digitclutter/model.keras"
    assert re.fullmatch(r"best epoch: [12], validation exact_match 0\.\d{4}", best)
    assert result.stderr.splitlines()[0] == LOADING
    assert_no_noise(result.stderr)
    assert "epoch   2 of 2" in result.stderr or "epoch 2 of 2" in result.stderr
    settings = json.loads((folder / "runs/resnet-digitclutter/settings.json").read_text())
    expected = {"depth": 8, "width": 4, "train_size": 64, "data_dir": str(data_dir), "seed": 0}
    assert settings["settings"] | expected == settings["settings"]


@pytest.mark.nightly
def test_study(trained, data_dir, tmp_path):
    """Of the network that `train` trained."""
    run = shutil.copytree(trained[0] / "runs/resnet-digitclutter", tmp_path / "run")
    before = (run / "log.csv").read_bytes()
    result = tfresidual("study", *TINY, "--data-dir", data_dir, "--out", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "report: run/report.html\n"
    assert (run / "report.html").stat().st_size > 10_000
    assert result.stderr.splitlines()[0] == LOADING
    assert_no_noise(result.stderr)
    assert (run / "log.csv").read_bytes() == before


@pytest.mark.filterwarnings("default:The network is no better than chance")
def test_probe(trained, data_dir, here):
    """Of a network that has not learned anything, of which one line warns."""
    folder, _ = trained
    run = folder / "runs/resnet-digitclutter"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    arguments = ["--probe", "readout", "--probe", "drop_blocks", "--images", "32"]
    result = here("probe", run, *arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    begin = "tfresidual: warning: "
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith(begin)]
    assert_no_noise(result.stderr.replace(warning, ""))
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["readout:", "drop_blocks:"]
    # Three stages of one block, of which the first keeps the shape of the state.
    assert len(lines) == 2 * (1 + 1 + 3)
    written = {path.name for path in (run / "probes").iterdir()}
    figures_and_frames = {"readout.csv", "readout.png", "drop_blocks.csv", "drop_blocks.png"}
    assert written == {"probes.json", *figures_and_frames}
    assert all(path.read_bytes() == content for path, content in before.items())


def test_compare(trained, tmp_path, here):
    run = trained[0] / "runs/resnet-digitclutter"
    other = shutil.copytree(run, tmp_path / "other")
    result = here("compare", run, other, "--out", "page.html")
    assert (result.returncode, result.stdout) == (0, "page: page.html\n"), result.stderr
    assert_no_noise(result.stderr)
    assert (tmp_path / "page.html").stat().st_size > 100_000
    (other / "report.html").write_text("mine")
    result = here("compare", run, other, "--out", other / "report.html")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        "tfresidual: Option `--out` must be a new file, or a page that `tfresidual compare` wrote: "
        f"nothing else is replaced. Received: --out='{other / 'report.html'}'"
    )
    assert (other / "report.html").read_text() == "mine"
    result = here("compare", run, tmp_path)
    assert result.returncode == 2
    assert "Argument `RUN RUN...` must be folders that" in result.stderr


def test_export_and_a_probe_of_it(trained, data_dir, here):
    """Outside of the folder of the run, whose frames it gives."""
    folder, _ = trained
    run = folder / "runs/resnet-digitclutter"
    result = here("export", run, "saved/net", cwd=folder)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert result.stderr.splitlines() == [LOADING, "wrote saved/net"]
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["net"]
    data = ["--data", "digitclutter", *SIZES, "--data-dir", data_dir]
    arguments = ["--probe", "readout", "--images", "32"]
    result = here("probe", "saved/net", *arguments, *data, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert_no_noise(result.stderr)
    lines = result.stdout.splitlines()
    assert lines[0] == "readout:"
    assert len(lines) == 1 + 1 + 3
    written = {path.name for path in (folder / "saved" / "probes" / "net").iterdir()}
    assert written == {"probes.json", "readout.csv", "readout.png"}
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["net", "probes"]


def test_export_to_serve_alone(tmp_path, here):
    save_network(tmp_path)
    for options in (["--serving-only"], ["--serving-only", "--overwrite"]):
        result = here("export", "net.keras", "saved", *options)
        assert (result.returncode, result.stderr.splitlines()[-1]) == (0, "wrote saved")
    layout = json.loads((tmp_path / "saved" / "assets.extra" / "tfresidual.json").read_text())
    assert layout["probing"] is False
    result = here("probe", "saved", "--data", "digitclutter")
    assert result.returncode == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("tfresidual: Argument `NETWORK` must be a SavedModel with the")


def test_data(tmp_path, data_dir, here):
    result = here("data", "digitclutter", *SIZES, "--data-dir", data_dir)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "train: 2 batches of 32, images 32x32x1",
        "validation: 2 batches of 32, images 32x32x1",
        "test: 2 batches of 32, images 32x32x1",
        "classes: 10, chance error 99.2%",
    ]
    assert_no_noise(result.stderr)
    assert list(tmp_path.iterdir()) == []


SEARCH = [
    *("tune", "--width", "2", "--epochs", "1", "--epsilon", "1e-6", "--start", "1,2,2"),
    *("--max-blocks", "2", "--train-size", "64", "--validation", "32", "--test-size", "32"),
    *("--batch-size", "32"),
]


def test_tune(data_dir, here):
    """No depth meets such an epsilon: the command says so, and so does its exit code."""
    result = here(*SEARCH, "--data-dir", data_dir)
    assert result.returncode == 1, result.stderr
    report, found = result.stdout.splitlines()
    assert report == "report: runs/depth-resnet-digitclutter/report.html"
    assert found.startswith("not satisfied: no depth inside the bounds brings every mean")
    assert "stage 2 at 2 blocks, stage 3 at 2 blocks" in found
    assert_no_noise(result.stderr)
    assert "trial 0: 1 2 2 blocks, mean scaled perturbation " in result.stderr
    again = here(*SEARCH, "--data-dir", data_dir)
    assert (again.returncode, again.stdout) == (1, result.stdout)
    assert "training" not in again.stderr
    assert_no_noise(again.stderr)


HELD = {
    "train": (["train", *TINY, "--out", "run"], "--out"),
    "tune": ([*SEARCH, "--out", "run"], "--out"),
    "export": (["export", "net.keras", "run"], "DIR"),
}


@pytest.mark.parametrize("name", HELD)
def test_a_folder_that_another_process_writes_to(tmp_path, here, elsewhere, name):
    from tfresidual.machine.locks import locked

    arguments, option = HELD[name]
    if "net.keras" in arguments:
        save_network(tmp_path, (32, 32, 1), classes=10)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with elsewhere(locked(tmp_path / "run", beside=arguments[0] == "export")):
        result = here(*arguments)
    assert (result.returncode, result.stdout) == (1, "")
    *_, line = result.stderr.splitlines()
    assert line.startswith("tfresidual: Another process is writing to this folder")
    assert f"choose another `{option}`." in line
    assert line.endswith(f"Received: {option}='run'")
    assert set(path.name for path in tmp_path.rglob("*")) - set(before) <= {"run"}


@pytest.mark.nightly
def test_ctrl_c(tmp_path, data_dir):
    arguments = [*TINY[:-1], "12", "--data-dir", str(data_dir), "--out", "run"]
    running = started("train", *arguments, cwd=tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 200
    while not (checkpoints.exists() and any(checkpoints.glob("epoch-*.keras"))):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert_no_noise(err)
    assert sum(line.startswith("tfresidual: ") for line in err.splitlines()) == 1
    assert err.splitlines()[-1].startswith("tfresidual: interrupted")
    assert 1 <= len((tmp_path / "run" / "log.csv").read_text().splitlines()) - 1 < 12
