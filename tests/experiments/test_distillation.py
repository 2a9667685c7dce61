"""The experiment on distillation: at its smallest size, and the page of the frame kept."""

import pathlib

import distillation as experiment
import processes
import pytest
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
    assert "[" not in done.stdout
    frame = kept_frames(tmp_path / "smoke" / "frames")["ways"]
    # The ResNet has statistics of batch normalization, too.
    assert frame.groupby("network").size().to_dict() == {
        experiment.RESNET: 6 * 2,
        experiment.TRANSFORMER: 5 * 2,
    }


def test_the_table_of_the_page_is_that_of_the_frame():
    frame = kept_frames(experiment.KEPT)["ways"]
    assert set(frame["seed"]) == set(range(experiment.SIZES["small"].seeds))
    page = (SCRIPT.parent / "README.md").read_text()
    for place, cells in experiment.table(frame).iterrows():
        assert f"| {' | '.join([*place, *cells])} |" in page
