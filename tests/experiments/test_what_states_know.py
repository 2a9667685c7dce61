"""The experiment on what states know: at its smallest size, and the page of the frames kept."""

import pathlib

import pandas as pd
import processes
import pytest
import what_states_know as experiment
from drawing import kept_frames

SCRIPT = pathlib.Path(experiment.__file__)


@pytest.mark.system
@pytest.mark.nightly
def test_networks_are_measured_once(tmp_path):
    options = ["--size", "smoke", "--data-dir", tmp_path / "data", "--out", tmp_path]
    for _ in range(2):
        done = processes.run(SCRIPT, *options)
        assert done.returncode == 0, done.stderr
    # Nothing was measured again.
    assert "blocks in" not in done.stdout
    frames = kept_frames(tmp_path / "smoke" / "frames")
    assert frames["readers"].groupby("network").size().to_dict() == {
        experiment.RESNET: 9 * 2,
        experiment.TRANSFORMER: 2 * 2,
    }
    assert (tmp_path / "smoke" / "what_states_know.png").stat().st_size > 10_000


def test_the_tables_of_the_page_are_those_of_the_frames():
    frames = kept_frames(experiment.KEPT)
    seeds = range(experiment.SIZES["small"].seeds)
    assert all(set(frame["seed"]) == set(seeds) for frame in frames.values())
    page = (SCRIPT.parent / "README.md").read_text()
    for table in experiment.tables(frames):
        for place, cells in table.iterrows():
            assert f"| {' | '.join(map(str, [*pd.Series(place).explode(), *cells]))} |" in page
    (figure,) = experiment.drawn(frames).values()
    assert len(figure.axes) == 2
