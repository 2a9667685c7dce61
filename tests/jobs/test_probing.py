"""Probes by name on saved networks: a real run, and its network as a file on its own."""

import json
import shutil

import pandas as pd
import pytest
from reference.random_network import random_network

import tfresidual as tfr
from tfresidual import datasets, probes
from tfresidual.jobs import probing, training
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import Settings
from tfresidual.probes import running

pytestmark = pytest.mark.system

SETTINGS = {"train_size": 64, "validation": 40, "test_size": 40, "batch_size": 32, "epochs": 1}
# What a network for Digitclutter has.
OF_CLUTTER = {"input_shape": (32, 32, 1), "classes": 10, "classifier_activation": "sigmoid"}
# The frames of each probe.
FRAMES = {name: [name] for name in running.PROBES if name not in ("lipschitz", "drop_heads")} | {
    "block_metrics": ["block_metrics", "computational_distance"],
    "repeat_last_block": ["repetition_metrics", "trained_blocks"],
    "convergence_indices": ["convergence_indices", "readout", "drop_blocks", "repeat_last_block"],
    "effective_parameters": ["effective_parameters", "weight_deviations"],
    "line_element": ["line_element", "path_lengths"],
}
# Frames of what the weights alone tell.
WITHOUT_IMAGES = ("effective_parameters", "weight_deviations")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a training of three stages of two blocks, all of which keep the shape."""
    settings = Settings(
        **SETTINGS,
        network="hauser_resnet",
        depth=2,
        data_dir=str(tmp_path_factory.mktemp("clutter")),
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    training.train(folder, settings)
    return folder, settings


def data_changes(run):
    """What a network outside of the folder of the run needs to be told."""
    data = {"data": "digitclutter", "data_dir": run[1].data_dir, **SETTINGS}
    del data["epochs"]
    return data


@pytest.fixture(scope="module")
def test_images(run):
    return {"test": prepare(run[1])[2]}


@pytest.fixture(scope="module")
def both_splits(run, test_images):
    """As many training images, in whole batches."""
    return {"train": datasets.plain(prepare(run[1])[0]).take(2)} | test_images


def expected_of(name, chain, images):
    """The first frame of a probe, called with the options of the test below."""
    if name == "convergence_indices":
        return probes.convergence_frames(chain, images, times=2, at_chance="nan")[1]
    if name == "effective_parameters":
        return probes.effective_parameters(chain)
    options = {
        "repeat_last_block": {"times": 2, "scale": 0.5},
        "borderline": {"times": 2, "scale": 0.5},
        "fixed_point": {"times": 2},
        "patching": {"what": "addition"},
        "linear_probe": {"seed": 0},
        "round_blocks": {"seed": 0},
    }
    return getattr(probes, name)(chain, images, **options.get(name, {}))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if place % 8 else [])
        for place, name in enumerate(FRAMES)
    ],
)
def test_frames_are_those_of_the_probe(run, test_images, both_splits, tmp_path, name):
    options = running.ProbeOptions(times=2, scale=0.5, at_chance="nan")
    frames, paths = probing.probe(run[0], [name], tmp_path / "new" / "out", options=options)
    assert list(frames) == FRAMES[name]
    for frame_name, frame in frames.items():
        saved = pd.read_csv(tmp_path / "new" / "out" / f"{frame_name}.csv")
        assert saved.columns.tolist() == frame.columns.tolist()
        assert len(saved) == len(frame) > 0
    assert all(path.is_file() for path in paths)
    assert any(path.suffix == ".png" for path in paths)
    is_read = json.loads((tmp_path / "new" / "out" / "probes.json").read_text())[FRAMES[name][0]]
    fits = running.PROBES[name].fits
    assert {*is_read["images"]} == ({"train", "test"} if fits else {"test"})
    images = both_splits if fits else test_images
    expected = expected_of(name, tfr.chain(run[0] / "model.keras"), images)
    pd.testing.assert_frame_equal(frames[FRAMES[name][0]], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_everything_by_default_beside_the_network(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    frames, paths = probing.probe(folder, splits=("train", "test"), images=32)
    named_only = ("line_element", "patching", "block_importance", "linear_probe", "similarity")
    named_only += ("round_blocks",)
    others = {name: names for name, names in FRAMES.items() if name not in named_only}
    assert set(frames) >= {name for names in others.values() for name in names}
    assert not set(frames) & {frame for name in named_only for frame in FRAMES[name]}
    assert {path.parent for path in paths} == {folder / "probes"}
    of_images = [frame for name, frame in frames.items() if name not in WITHOUT_IMAGES]
    assert all(list(frame["split"].unique()) == ["train", "test"] for frame in of_images)
    again, _ = probing.probe(folder / "model.keras", ["readout"], splits=("train",), images=32)
    of_train = frames["readout"].query("split == 'train'").reset_index(drop=True)
    pd.testing.assert_frame_equal(again["readout"], of_train)


def test_what_frames_were_measured_on_is_written_beside_them(run, tmp_path):
    changes = data_changes(run)
    one = random_network(**OF_CLUTTER)
    one.save(tmp_path / "one.keras")
    tfr.export(one, tmp_path / "two")
    for name, pixels in (("one.keras", "0-1"), ("two", "standardized")):
        target = tmp_path / name
        probing.probe(target, "effective_parameters", images=5, changes=changes, pixels=pixels)
        probing.probe(target, "readout", images=40, changes=changes, pixels=pixels)
        _, paths = probing.probe(target, "readout", images=5, changes=changes, pixels=pixels)
        folder = tmp_path / "probes" / target.stem
        assert folder / "probes.json" in paths
        assert {path.parent for path in paths} == {folder}
        known = json.loads((folder / "probes.json").read_text())
        assert list(known) == ["effective_parameters", "weight_deviations", "readout"]
        for what in known.values():
            assert what["network"] == str(target)
            assert what["data"] == "digitclutter" and what["pixels"] == pixels
            # Whole batches of 32.
            assert what["images"] == {"test": 32}
    # What is known of the other frames is not written over.
    (folder / "probes.json").write_text("{")
    with pytest.raises(ValueError, match=r"probes\.json is damaged.*move it elsewhere"):
        probing.probe(tmp_path / "two", "readout", images=5, changes=changes)
    assert (folder / "probes.json").read_text() == "{"


def test_probes_that_a_network_has_blocks_for():
    # No network of convolutions has heads.
    every = [name for name in running.PROBES if name != "drop_heads"]
    bounded = random_network(transition="convolution", lipschitz=0.9)
    assert running.possible(tfr.chain(bounded)) == every
    every.remove("lipschitz")
    assert running.possible(tfr.chain(random_network(transition="convolution"))) == every
    # One block a stage: the first stage has it to repeat, no stage another to change places with.
    single = tfr.chain(random_network(blocks=1))
    assert set(every) - set(running.possible(single)) == {"shuffle_blocks"}
    changing = tfr.chain(random_network(blocks=1, widths=(4, 8), stem_width=3))
    assert set(every) - set(running.possible(changing)) == {
        "repeat_last_block",
        "fixed_point",
        "shuffle_blocks",
    }


def test_a_probe_that_fails_loses_nothing(run, tmp_path):
    probing.probe(run[0], ["readout"], tmp_path)
    content = (tmp_path / "readout.csv").read_bytes()
    options = running.ProbeOptions(memory_limit=1)
    with pytest.raises(ValueError, match="`memory_limit`"):
        probing.probe(run[0], ["readout"], tmp_path, options=options)
    assert (tmp_path / "readout.csv").read_bytes() == content
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"probes.json", "readout.csv", "readout.png"}


# SavedModels, and series of them


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Before the first epoch, and after the second and the fourth; the network of the last."""
    folder = tmp_path_factory.mktemp("series")
    net = random_network(**OF_CLUTTER, blocks=2, widths=(2,))
    chain = tfr.chain(net)
    for number in (0, 2, 4):
        for variable in net.trainable_variables:
            variable.assign(1.1 * variable)
        tfr.export(chain, folder / f"epoch{number:04d}")
    return folder, net


@pytest.mark.nightly
def test_a_saved_model_in_the_folder_of_its_run(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    tfr.export(folder / "model.keras", folder / "saved")
    assert probing.network_of(folder / "saved") == folder / "saved"
    assert probing.network_of(str(folder)) == folder / "model.keras"
    names = ["readout", "block_metrics"]
    frames, paths = probing.probe(folder / "saved", names)
    expected, _ = probing.probe(folder, names, tmp_path / "other")
    assert {path.parent for path in paths} == {folder / "probes" / "saved"}
    assert list(frames) == list(expected)
    for name, frame in frames.items():
        assert "epoch" not in frame
        pd.testing.assert_frame_equal(frame, expected[name], rtol=1e-5)


def test_a_series(run, series, tmp_path):
    """Every network by itself, one after the other, and figures over the epochs."""
    names = ["block_metrics", "readout", "drop_blocks"]
    changes = data_changes(run)
    frames, paths = probing.probe(series[0], names, tmp_path, images=32, changes=changes)
    assert set(frames) == {*names, "computational_distance"}
    for name, frame in frames.items():
        assert frame["epoch"].tolist() == sorted(frame["epoch"])
        # Epochs of frames are counted from 0, as in the logs; before the first is -1.
        assert frame["epoch"].unique().tolist() == [-1, 1, 3]
        saved = pd.read_csv(tmp_path / f"{name}.csv")
        assert saved["epoch"].tolist() == frame["epoch"].tolist()
    alone, _ = probing.probe(
        series[0] / "epoch0002", names, tmp_path / "alone", images=32, changes=changes
    )
    for name, frame in alone.items():
        part = frames[name].query("epoch == 1").drop(columns="epoch").reset_index(drop=True)
        pd.testing.assert_frame_equal(part, frame)
    figures = {path.stem for path in paths if path.suffix == ".png"}
    over_epochs = {"readout_by_epoch", "drop_blocks_by_epoch", "cosine_loss_by_epoch"}
    assert figures >= over_epochs | {"l2_ratio_by_epoch", "readout", "drop_blocks"}
    assert len(paths) == len(set(paths))
    assert all(path.stat().st_size > 0 for path in paths)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(path.name for path in paths), "alone"]
    )


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("part", ["saved_model.pb", "variables/variables.index"])
def test_a_damaged_series_is_found_before_the_first_probe(run, series, tmp_path, part):
    folder = shutil.copytree(series[0], tmp_path / "series")
    (folder / "epoch0004" / part).unlink()
    with pytest.raises(ValueError, match="epoch0004"):
        probing.probe(folder, ["readout"], changes=data_changes(run))
    assert not list(folder.rglob("*.csv"))


def truncate_variables(path):
    """What only opening it finds."""
    (data,) = (path / "variables").glob("*.data-*")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])


def replace_by_other_classes(path):
    tfr.export(random_network(**OF_CLUTTER | {"classes": 7}, blocks=1), path, overwrite=True)


@pytest.mark.parametrize(
    "damage",
    [truncate_variables, pytest.param(replace_by_other_classes, marks=pytest.mark.nightly)],
)
@pytest.mark.nightly
def test_a_series_that_ends_early_leaves_whole_frames_as_they_were(run, series, tmp_path, damage):
    folder, names = tmp_path / "series", ["effective_parameters", "readout"]
    shutil.copytree(series[0], folder)
    changes = data_changes(run)
    frames, paths = probing.probe(folder, names, images=32, changes=changes)
    before = content_of(folder / "probes")
    assert set(before) == set(paths)
    damage(folder / "epoch0004")
    with pytest.raises((ValueError, IndexError)):
        probing.probe(folder, names, images=32, changes=changes)
    assert content_of(folder / "probes") == before
    # And the next time, of what is left, everything is in its place.
    shutil.rmtree(folder / "epoch0004")
    probing.probe(folder, names, images=32, changes=changes)
    assert set(content_of(folder / "probes")) == set(paths)
    saved = pd.read_csv(folder / "probes" / "readout.csv")
    assert len(saved) < len(frames["readout"])
    assert saved["epoch"].unique().tolist() == [-1, 1]
