"""The experiment with residual branches: at its smallest size, and the frames that are kept."""

import pathlib

import pandas as pd
import processes
import pytest
import residual_branches

KINDS = {*residual_branches.BRANCHES, residual_branches.DROPPED}


def is_whole(frames, rates, seeds):
    """Whether frames have all networks: every rate with the first seed, the best one with all."""
    history, drops = frames["history"], frames["drops"]
    assert set(history["branches"]) == KINDS
    runs = history.groupby("branches")[["rate", "seed"]].apply(lambda rows: rows.drop_duplicates())
    expected = dict.fromkeys(residual_branches.BRANCHES, rates + seeds - 1)
    assert runs.groupby("branches").size().to_dict() == expected | {
        residual_branches.DROPPED: seeds
    }
    assert set(drops["network"]) == {
        residual_branches.CONTROL,
        residual_branches.DROPPED,
        residual_branches.UNTRAINED,
    }
    assert set(drops["seed"]) == set(range(seeds))
    return True


@pytest.mark.nightly
def test_networks_are_trained_once_and_probed(tmp_path):
    script = pathlib.Path(residual_branches.__file__)
    options = ["--size", "smoke", "--out", tmp_path]
    done = processes.run(script, *options, "--most", "3")
    assert done.returncode == 0, done.stderr
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trained.weights.h5")}
    assert len(weights) == 3
    assert not list(tmp_path.rglob("*.png"))
    done = processes.run(script, *options)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == time for path, time in weights.items())
    folder = tmp_path / "smoke"
    frames = {path.stem: pd.read_csv(path) for path in (folder / "frames").glob("*.csv")}
    size = residual_branches.SIZES["smoke"]
    assert is_whole(frames, len(size.rates), size.seeds)
    assert len(list(folder.glob("*.png"))) == len(residual_branches.drawn(frames))


def test_kept_frames_are_those_of_the_size_small_and_can_be_drawn():
    size = residual_branches.SIZES["small"]
    frames = {path.stem: pd.read_csv(path) for path in residual_branches.KEPT.glob("*.csv")}
    assert is_whole(frames, len(size.rates), size.seeds)
    history = frames["history"]
    assert history.groupby(["branches", "rate", "seed"]).size().eq(size.epochs).all()
    assert len(frames["drops"]) == 3 * size.seeds * size.blocks * 3
    for name, figure in residual_branches.drawn(frames).items():
        assert (residual_branches.IMAGES / f"{name}.png").exists()
        assert figure.axes
    ended, costs = residual_branches.tables(frames)
    assert set(ended.index.get_level_values("branches")) == KINDS
    assert len(costs) == 3
