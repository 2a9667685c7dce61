"""The experiment on mixed bits: at its smallest size, and the page of the frames kept."""

import pathlib

import mixed_bits as experiment
import processes
import pytest
from drawing import kept_frames

SCRIPT = pathlib.Path(experiment.__file__)


@pytest.mark.system
@pytest.mark.nightly
def test_mixed_networks_take_no_more_bytes(tmp_path):
    options = ["--size", "smoke", "--data-dir", tmp_path / "data", "--out", tmp_path]
    done = processes.run(SCRIPT, *options)
    assert done.returncode == 0, done.stderr
    frame = kept_frames(tmp_path / "smoke" / "frames")["networks"]
    sizes = frame.pivot_table(index=["network", "seed"], columns="what", values="bytes")
    assert len(sizes) == 4
    assert (sizes[[experiment.MIXED, experiment.RANDOM]].max(axis=1) <= sizes["4 bits"]).all()


def test_the_table_of_the_page_is_that_of_the_frames():
    frames = kept_frames(experiment.KEPT)
    seeds = set(range(experiment.SIZES["small"].seeds))
    assert all(set(frame["seed"]) == seeds for frame in frames.values())
    page = (SCRIPT.parent / "README.md").read_text()
    (table,) = experiment.tables(frames)
    for place, cells in table.iterrows():
        assert f"| {' | '.join([*place, *cells])} |" in page
    (figure,) = experiment.drawn(frames).values()
    assert len(figure.axes) == 2
