"""Settings files that are damaged: nothing is trained, probed or searched on them."""

import dataclasses
import json

import pytest

from tfresidual.jobs import depth_study, probing, study, training
from tfresidual.jobs.run_folder import claim, read_settings, refuse_other_settings
from tfresidual.jobs.settings import Settings

WHOLE = json.dumps({"settings": dataclasses.asdict(Settings(depth=8, width=4))}, indent=2)
DAMAGED = {
    "cut": (WHOLE[:100].encode(), "it is not JSON"),
    "empty": (b"", "it is not JSON"),
    "binary": (b"\x00\xff\xfe" * 30, "it is not JSON"),
    "null": (b"null", "its content is not a dict"),
    "a list": (b"[1, 2]", "its content is not a dict"),
    "nested without end": (b"[" * 100_000, "it is not JSON"),
    "no settings": (b"{}", "it does not hold the settings of the run"),
    "settings that are a list": (b'{"settings": []}', "it does not hold the settings"),
    "an unknown key": (
        WHOLE.replace('"width"', '"breadth"').encode(),
        "it has settings that this version of tfresidual does not know: 'breadth'",
    ),
}


JOBS = {
    "train": lambda folder: training.train(folder, Settings(depth=8, width=4)),
    "study": lambda folder: study.run(folder, Settings(depth=8, width=4)),
    "search": lambda folder: depth_study.run(folder, Settings(width=4)),
    "probe": probing.probe,
}


@pytest.mark.parametrize(
    ("kind", "job"),
    [*((kind, "train") for kind in DAMAGED), *(("cut", job) for job in JOBS if job != "train")],
)
def test_a_damaged_settings_file_is_named(tmp_path, kind, job):
    content, reason = DAMAGED[kind]
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    (tmp_path / "model.keras").write_bytes(b"a network")
    with pytest.raises(ValueError, match=r"^settings\.json is damaged: ") as raised:
        JOBS[job](tmp_path)
    message = str(raised.value)
    assert reason in message
    assert message.endswith(f"Put it back, or choose another folder. Received: path={str(path)!r}")
    assert "\n" not in message
    assert path.read_bytes() == content
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


def test_a_search_whose_settings_are_damaged(tmp_path):
    parts = {"settings": Settings(), "search": depth_study.SearchSettings()}
    claim(tmp_path, parts)
    content = read_settings(tmp_path)
    refuse_other_settings(tmp_path, parts)
    for search in (None, [], {"starts": 3}):
        (tmp_path / "settings.json").write_text(json.dumps(content | {"search": search}))
        with pytest.raises(ValueError, match=r"settings\.json is damaged: .*Received: path="):
            refuse_other_settings(tmp_path, parts)


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path):
    (tmp_path / "settings.json").mkdir()
    with pytest.raises(IsADirectoryError, match=r"settings\.json"):
        training.train(tmp_path, Settings(depth=8, width=4))


@pytest.mark.parametrize("content", [b"", b"null", b"{", b"\xff"])
def test_a_damaged_record_of_probes_stays(tmp_path, content):
    """Said before anything is probed."""
    claim(tmp_path, {"settings": Settings()})
    (tmp_path / "model.keras").write_bytes(b"not looked at")
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "probes.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"probes\.json is damaged.*move it elsewhere.*Received:"):
        probing.probe(tmp_path)
    assert (tmp_path / "probes" / "probes.json").read_bytes() == content
