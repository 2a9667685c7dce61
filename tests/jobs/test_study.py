"""The main job on a tiny Digitclutter, from nothing to the report.

Not covered: CIFAR and MNIST, which need their data.
"""

import dataclasses
import html
import re

import keras
import numpy as np
import pandas as pd
import pytest
from refusals import refused

from tfresidual import datasets, probes
from tfresidual.jobs import study
from tfresidual.jobs.building import build
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import Settings, check, used

pytestmark = pytest.mark.system

TINY = {"depth": 8, "width": 4, "epochs": 2, "batch_size": 32}
TINY |= {"train_size": 64, "validation": 40, "test_size": 40}
FRAMES = [
    "block_metrics", "block_metrics_by_epoch", "borderline", "computational_distance",
    "convergence_indices", "drop_blocks", "effective_parameters", "first_order", "lens", "readout",
    "repeat_last_block", "repetition_metrics", "repetition_metrics_scaled", "signal_propagation",
    "trained_blocks", "weight_deviations",
]  # fmt: skip


def contents(folder):
    """Every file below a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def checkpoint_times(folder):
    """When the checkpoints of the training were written, by name."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("checkpoints/*")}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("clutter"))


@pytest.fixture(scope="module")
def settings(data_dir):
    return Settings(**TINY, data_dir=data_dir)


@pytest.fixture(scope="module")
def done(tmp_path_factory, settings):
    """The folder of a study that was not interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "new" / "tiny"
    assert study.run(folder, settings) == folder / "report.html"
    return folder


def test_files(done):
    names = contents(done)
    figures = [name for name in names if name.startswith("figures/")]
    assert len(figures) >= 8
    assert {"figures/cosine_loss.png", "figures/computational_distance.png"} <= set(figures)
    frames = {name for name in names if name.startswith("frames/")} - {"frames/probes.json"}
    assert frames >= {f"frames/{name}.csv" for name in FRAMES}
    assert all(re.fullmatch(r"frames/\w+\.csv", name) for name in frames)
    assert set(names) - set(figures) - frames == {
        "settings.json",
        "frames/probes.json",
        "log.csv",
        "model.keras",
        "checkpoints/epoch-0001.keras",
        "report.html",
    }


@pytest.fixture(scope="module")
def saved(done, settings):
    """The network on the disk, and the images of the probes, loaded again."""
    network = keras.saving.load_model(done / "model.keras")
    train, _, test = prepare(settings)
    return network, {"train": datasets.plain(train), "test": test}


def test_block_metrics_are_those_of_the_saved_network(done, saved):
    expected = probes.block_metrics(*saved)
    frame = pd.read_csv(done / "frames" / "block_metrics.csv")
    assert list(frame.columns) == list(expected.columns)
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False, rtol=1e-5)
    assert len(frame) == 2 * 3  # splits and blocks


def test_report(done, saved):
    page = (done / "report.html").read_text("utf-8")
    # Three figures are shown by others.
    assert page.count("<img ") == len(list((done / "figures").iterdir())) - 3
    sources = re.findall(r' (?:src|href)="([^"]*)', page)
    assert sources and all(source.startswith(("data:", "#")) for source in sources)
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
    assert "Digitclutter, 3 digits" in text
    error = 1 - saved[0].evaluate(saved[1]["test"], return_dict=True, verbose=0)["exact_match"]
    assert f"{error:.1%}" in text
    assert "3 blocks" in text
    # Answers are told by marks too, and counted.
    assert re.search(r"\d+ of these 16 answers are correct", text)
    assert "\N{CHECK MARK} in blue" in text and "\N{BALLOT X} in orange" in text
    blocks = pd.read_csv(done / "frames" / "block_metrics.csv").query("split == 'test'")
    certain = (blocks["cosine_loss"] + 2 * blocks["cosine_loss_se"] < 0).sum()
    counted = blocks["cosine_loss"].notna().sum()
    tile = f"with a negative cosine with the loss gradient {certain} of {counted} mean"
    assert tile in text
    assert "train_size" in text and "64" in text


@pytest.mark.parametrize(
    ("changes", "expected", "missing"),
    [
        ({}, {"depth": 20, "train_size": 20_000, "test_size": 2_000}, {"kernel", "gamma"}),
        ({"depth": 8, "train_size": 64, "test_size": 40}, {"depth": 8, "train_size": 64}, set()),
        ({"network": "hauser_resnet"}, {"depth": 6, "width": 16}, set()),
        ({"network": "resnet110"}, {}, {"depth", "width"}),
        # What validation leaves of the 50,000.
        ({"data": "cifar10"}, {"train_size": 48_000, "test_size": 10_000}, {"digits"}),
        ({"coupling": 0.5}, {"coupling": 0.5, "kernel": "uniform", "coupling_from": 0}, set()),
        ({"recipe": "mnist", "gamma": 0.1}, {"learning_rate": 0.025, "gamma": 0.1}, set()),
        (
            {"data": "cifar10", "recipe": "one_cycle", "l2": 0.1},
            {"learning_rate": 0.4, "weight_decay": 5e-4, "l2": 0.1, "augment": True},
            {"gain"},
        ),
        ({"augment": True}, {"augment": False}, set()),
        ({"network": "average_pooling_resnet"}, {}, {"stages", "transition"}),
        ({"shortcut": "exclusive_gate"}, {"gate_bias": -6.0}, {"shortcut_scale"}),
        (
            {"shortcut": "scaled", "branch_scale": 0.5},
            {"shortcut_scale": 0.5, "branch_scale": 0.5},
            {"gate_bias"},
        ),
    ],
)
def test_settings_used(changes, expected, missing):
    values = used(Settings(**changes))
    assert {name: values[name] for name in expected} == expected
    assert missing.isdisjoint(values)
    assert None not in values.values()


@pytest.mark.nightly
def test_the_same_command_reads_the_finished_training(done, settings):
    before, times = contents(done), checkpoint_times(done)
    study.run(done, settings)
    # A training writes checkpoints; one that is read does not.
    assert checkpoint_times(done) == times
    assert times
    after = contents(done)
    assert set(after) == set(before)
    for name in before:
        if name != "report.html":  # which says how long the command took
            assert after[name] == before[name], name


@pytest.mark.parametrize("change", [{"epochs": 3}, {"layout": "original", "width": 8}])
def test_other_settings_are_refused(done, settings, change):
    before = contents(done)
    with pytest.raises(ValueError, match="must be new") as raised:
        study.run(done, dataclasses.replace(settings, **change))
    received = str(raised.value).split("Received: ")[1]
    assert str(done) in received
    for key, value in change.items():
        assert f"`{key}` was {getattr(settings, key)!r}" in str(raised.value)
        assert f"{key}={value!r}" in received
    assert contents(done) == before


@pytest.mark.parametrize(
    "given", [{}, {"share_from": 0, "batch_norm": "unshared"}, {"recurrent": True}]
)
def test_gain_is_a_factor_of_the_first_kernels_of_branches(settings, given):
    found = {}
    for gain in (1, 0.1):
        keras.utils.set_random_seed(0)
        found[gain] = build(dataclasses.replace(settings, depth=14, gain=gain, **given))
    for usual, scaled in zip(*(net.weights for net in found.values()), strict=True):
        is_scaled = re.search(r"block\d+/convolution\d/kernel", usual.path) is not None
        np.testing.assert_allclose(scaled, (0.1 if is_scaled else 1) * usual, rtol=1e-6)


@pytest.mark.parametrize(
    ("shortcut", "given"),
    [
        ("exclusive_gate", {"gate_bias": -3}),
        ("shortcut_only_gate", {"gate_bias": 0.0}),
        ("scaled", {"shortcut_scale": 0.25}),
        ("scaled", {"branch_scale": 0.5}),
    ],
)
def test_settings_of_shortcuts(settings, shortcut, given):
    changed = dataclasses.replace(settings, shortcut=shortcut, **given)
    check(changed)
    network = build(changed)
    for _, (unit, *_) in network.sections()[1]:
        if unit.resizing is not None:
            continue
        config = unit.shortcut.get_config()
        if "gate_bias" in given:
            (bias,) = set(unit.shortcut.gate.bias.numpy().tolist())
            assert bias == config["bias"] == given["gate_bias"]
        else:
            scales = {"shortcut_scale": 0.5, "branch_scale": 1.0} | given
            assert config["scale"] == scales["shortcut_scale"]
            assert config["branch_scale"] == scales["branch_scale"]
    # Nothing else changes, and files of the network can be opened.
    usual = build(dataclasses.replace(settings, shortcut=shortcut))
    assert [w.path for w in usual.weights] == [w.path for w in network.weights]
    again = type(network).from_config(network.get_config())
    assert again.get_config() == network.get_config()


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"network": "resnet101", "stages": 1}, (16,)),
        ({"network": "resnet101", "stages": 2, "depth": 3}, (3, 3)),
        ({"network": "hauser_resnet", "stages": 1}, (6,)),
        ({"network": "resnet", "stages": 1}, (9,)),
        ({"network": "resnet", "stages": 2, "depth": 10}, (2, 2)),
        ({"network": "resnet", "depth": 14}, (2, 2, 2)),
    ],
)
def test_stages(changes, blocks):
    network = build(Settings(data="mnist", **changes))
    assert network.blocks == blocks
    assert network.widths == (16, 32, 64)[: len(blocks)]
    assert network.input_shape == (None, 28, 28, 1)
    assert set(used(Settings(data="mnist", **changes))) >= {"stages"}


def test_transition():
    settings = Settings(network="resnet", depth=8, transition="max_pooling")
    network = build(settings)
    assert network.transition == "max_pooling"
    searched = dataclasses.replace(settings, depth=None)
    assert build(searched, (2, 1, 2)).transition == "max_pooling"
    for changes in (
        {"network": "hauser_resnet"},
        {"network": "single_representation"},
        {"stages": 1},
    ):
        with refused("transition"):
            build(dataclasses.replace(searched, **changes))
