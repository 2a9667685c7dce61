"""Settings files that are damaged: nothing is trained, probed or searched on them."""

import json

import pytest
from refusals import refused

from tfresidual.jobs import depth_study, probing, study, training
from tfresidual.jobs.run_folder import claim, refuse_other_backend
from tfresidual.jobs.settings import Settings

JOBS = {
    "train": lambda folder: training.train(folder, Settings(depth=8, width=4)),
    "study": lambda folder: study.run(folder, Settings(depth=8, width=4)),
    "search": lambda folder: depth_study.run(folder, Settings(width=4)),
    "probe": probing.probe,
}


@pytest.mark.parametrize("job", JOBS)
def test_a_damaged_settings_file_is_named_and_stays(tmp_path, job):
    path = tmp_path / "settings.json"
    path.write_text("{")
    (tmp_path / "model.keras").write_bytes(b"a network")
    with pytest.raises(ValueError, match=r"^settings\.json is damaged: "):
        JOBS[job](tmp_path)
    assert path.read_text() == "{"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.keras", "settings.json"]


@pytest.mark.parametrize(
    ("left", "missing"),
    [
        ("log.csv", "settings.json"),
        ("checkpoints/epoch-0000.keras", "settings.json"),
        ("search/oracle.json", "settings.json"),
        ("settings.json frames/readout.csv", "checkpoints"),
        ("settings.json report.html", "checkpoints"),
        ("settings.json outcome.json", "search"),
    ],
)
def test_half_a_run_is_not_made_anew(tmp_path, left, missing):
    settings, jobs = Settings(network="hauser_resnet"), [training.train, study.run]
    parts = {"settings": settings}
    if missing == "search":
        jobs, parts = [depth_study.run], {**parts, "search": depth_study.SearchSettings()}
    for name in left.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if "settings" in left:
        (tmp_path / "settings.json").unlink()
        claim(tmp_path, parts)
    before = sorted(tmp_path.rglob("*"))
    for job in jobs:
        with pytest.raises(FileNotFoundError, match=rf"not its {missing}\. .*Received: folder="):
            job(tmp_path, settings)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_record_of_probes_stays(tmp_path):
    """Said before anything is probed."""
    claim(tmp_path, {"settings": Settings()})
    (tmp_path / "model.keras").write_bytes(b"not looked at")
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "probes.json").write_text("{")
    with pytest.raises(ValueError, match=r"probes\.json is damaged"):
        probing.probe(tmp_path)
    assert (tmp_path / "probes" / "probes.json").read_text() == "{"


@pytest.mark.parametrize("changed", [{"backend": "jax"}, {"kernels": "another library"}])
def test_another_machine_finishes_no_training(tmp_path, changed):
    """Other kernels round in another way, as another backend does."""
    claim(tmp_path, {"settings": Settings()})
    path = tmp_path / "settings.json"
    content = json.loads(path.read_text())
    refuse_other_backend(tmp_path, 1, 2)
    path.write_text(json.dumps(content | {"machine": content["machine"] | changed}))
    refuse_other_backend(tmp_path, 2, 2)
    with refused("folder"):
        refuse_other_backend(tmp_path, 1, 2)
