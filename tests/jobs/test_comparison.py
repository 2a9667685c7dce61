"""Runs compared on one page: real trainings, and what probes measured on them.

The figures and tables of probes are tested in `tests/report/test_comparison.py`.
"""

import html
import json
import re
import shutil

import pandas as pd
import pytest
from refusals import refused

from tfresidual.jobs import probing, training
from tfresidual.jobs.comparison import compare
from tfresidual.jobs.settings import Settings
from tfresidual.report import write

pytestmark = [pytest.mark.system, pytest.mark.eager]

TINY = {"depth": 8, "width": 4, "epochs": 2, "batch_size": 32}
TINY |= {"train_size": 64, "validation": 40, "test_size": 40}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folders of two runs: with the identity, probed on all test images, and with a gate."""
    runs, data_dir = tmp_path_factory.mktemp("runs"), str(tmp_path_factory.mktemp("clutter"))
    for name, changes in {"plain": {}, "gated": {"shortcut": "exclusive_gate", "seed": 1}}.items():
        training.train(runs / name, Settings(**TINY, data_dir=data_dir, **changes))
    probing.probe(runs / "plain", ["readout", "effective_parameters"])
    probing.probe(runs / "gated", ["readout", "effective_parameters"], images=32)
    return runs / "plain", runs / "gated"


@pytest.fixture
def runs(trained, tmp_path):
    """Copies of the two folders."""
    return [shutil.copytree(folder, tmp_path / "runs" / folder.name) for folder in trained]


def text_of(path):
    """The text of a page; cells of tables are apart."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", path.read_text("utf-8"))).split())


@pytest.fixture(scope="module")
def text(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "new" / "page.html"
    assert compare(trained, path) == path
    return text_of(path)


def test_settings_that_differ(text):
    assert "plain and gated compared" in text
    section = text.split("What is not the same The settings")[1].split("Training Losses")[0]
    assert "shortcut identity exclusive_gate" in section
    assert "seed 0 1" in section
    assert "gate_bias \N{EN DASH} -6" in section
    assert "depth" not in section and "keras" not in section


def test_results_are_those_of_the_logs(text, trained):
    first, second = (pd.read_csv(folder / "log.csv") for folder in trained)
    found = re.search(r"val_loss, last ([\d.]+) ([\d.]+)", text)
    expected = first["val_loss"].iloc[-1], second["val_loss"].iloc[-1]
    assert [float(number) for number in found.groups()] == pytest.approx(expected, rel=1e-3)
    assert "epochs 2 2" in text


def test_what_probes_measured_on_all_runs_is_preferred(runs):
    """A study of one of them, on other images, does not count then."""
    for folder in runs:
        shutil.copytree(folder / "probes", folder / "frames")
        records = json.loads((folder / "probes" / "probes.json").read_text())
        records["readout"]["images"] = {"test": 20}
        (folder / "probes" / "probes.json").write_text(json.dumps(records))
    assert "On 20 test images of Digitclutter" in text_of(compare(runs))
    (runs[1] / "probes" / "readout.csv").unlink()
    # Now each run has its study only.
    assert "Not the same images: 40 test images of Digitclutter" in text_of(compare(runs))


def test_errors_stand_beside_chance_and_their_noise(runs):
    said = [text_of(compare(runs))]
    for folder, error in zip(runs, (0.5, 0.7), strict=True):
        records = json.loads((folder / "probes" / "probes.json").read_text())
        row = dict.fromkeys(("convergence_index", "recurrence_index", "divergence_index"), 0.5)
        row = {"basis": "labels", "stage": "mean", **row, "error": error, "chance": 0.75}
        changes = {"images": {"test": 100}}
        records["convergence_indices"] = records["readout"] | changes
        (folder / "probes" / "probes.json").write_text(json.dumps(records))
        pd.DataFrame([row]).to_csv(folder / "probes" / "convergence_indices.csv", index=False)
        said.append(text_of(compare(runs)))
    assert "Digitclutter, 3 digits 0.5000 \N{EN DASH}" in said[1]
    assert "Not judged: plain, gated;" in said[0] and "Not judged: gated;" in said[1]
    text = said[-1]
    assert "ot judged" not in text
    assert "Digitclutter, 3 digits, standard error 0.05000 0.04583" in text
    assert "of guessing 0.7500 0.7500" in text
    # 0.7 is less than two standard errors of 0.043 below 0.75.
    assert "Not below chance by two standard errors: gated." in text


@pytest.mark.parametrize("content", ["mine", "<!DOCTYPE html><p>tfresidual compare</p>", None, []])
def test_what_something_else_wrote_is_kept(runs, tmp_path, content):
    path = tmp_path / "page.html"
    if content is None:
        path.mkdir()
    elif content == []:
        write(path, "A study", [])
    else:
        path.write_text(content)
    before = path.read_bytes() if path.is_file() else None
    with refused("page"):
        compare(runs, path)
    assert path.is_dir() if before is None else path.read_bytes() == before
