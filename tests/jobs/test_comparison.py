"""Runs compared on one page: real trainings, and what probes measured on them.

The figures and tables of probes are tested in `tests/report/test_comparison.py`.
"""

import html
import json
import math
import os
import re
import shutil

import pandas as pd
import pytest
from reference.random_network import sample
from refusals import refused

from tfresidual.jobs import comparison, probing, training
from tfresidual.jobs.comparison import compare
from tfresidual.jobs.frames import read_frame, read_frames
from tfresidual.jobs.settings import Settings
from tfresidual.machine.console import printable
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


def test_other_images_are_said_and_the_rest_is_compared(text, trained):
    assert (
        "Not the same images: 40 test images of Digitclutter, 3 digits (plain); "
        "32 test images of Digitclutter, 3 digits (gated)."
    ) in text
    # A training does not record what its callbacks measured.
    assert "What plain and gated were measured on is not recorded." in text
    read = [
        pd.read_csv(f / "probes" / "readout.csv").set_index(["stage", "block"])["error"]
        for f in trained
    ]
    largest = (read[1] - read[0]).abs().max()
    section = text.split("Reading out early The accuracy")[1]
    # The first row of the table: stage, block, both errors and their difference.
    found = re.search(r"gated minus plain \d \d [\d.]+ [\d.]+ \W?([\d.]+)", section)
    assert float(found[1]) == pytest.approx(largest, rel=1e-3)
    assert "The cosine over training The cosine between" in text


def test_the_default_place_and_a_second_time(runs):
    for folder in runs:
        shutil.rmtree(folder / "probes")
    path = compare(map(str, runs))
    assert path == runs[0].parent / "compare-plain-gated.html"
    first = path.read_bytes()
    log = pd.read_csv(runs[1] / "log.csv")
    log.assign(val_loss=1e-3).to_csv(runs[1] / "log.csv", index=False)
    assert compare(runs) == path
    assert path.read_bytes() != first
    assert sorted(os.listdir(runs[0].parent)) == ["compare-plain-gated.html", "gated", "plain"]


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
        changes = {"images": {"test": 100}, "columns": list(row), "rows": 1}
        records["convergence_indices"] = records["readout"] | changes
        (folder / "probes" / "probes.json").write_text(json.dumps(records))
        pd.DataFrame([row]).to_csv(folder / "probes" / "convergence_indices.csv", index=False)
        said.append(text_of(compare(runs)))
    assert "error on test images not judged not judged" in said[0]
    assert "Digitclutter, 3 digits 0.5000 not judged" in said[1]
    assert "Not judged: plain, gated," in said[0] and "Not judged: gated," in said[1]
    text = said[-1]
    assert "ot judged" not in text
    assert "Digitclutter, 3 digits, standard error 0.05000 0.04583" in text
    assert "of guessing 0.7500 0.7500" in text
    # 0.7 is less than two standard errors of 0.043 below 0.75.
    assert "Not below chance by two standard errors: gated." in text


def test_pixels_and_digits_are_part_of_the_images(runs):
    for folder, changes in zip(runs, ({"pixels": "0-1"}, {"digits": 4}), strict=True):
        records = json.loads((folder / "probes" / "probes.json").read_text())
        assert records["readout"]["digits"] == 3
        records["readout"] |= changes | {"images": {"test": 20}}
        (folder / "probes" / "probes.json").write_text(json.dumps(records))
    assert (
        "Not the same images: 20 test images of Digitclutter, 3 digits, pixels 0-1 (plain); "
        "20 test images of Digitclutter, 4 digits (gated)."
    ) in text_of(compare(runs))


def test_runs_of_one_name_are_told_apart(runs, tmp_path):
    other = shutil.copytree(runs[0], tmp_path / "other" / "plain")
    path = compare([runs[0], other])
    assert path == runs[0].parent / "compare-runs-plain-other-plain.html"
    assert "runs/plain and other/plain compared" in text_of(path)
    assert "There are none." in text_of(path)


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


def test_runs_that_cannot_be_compared(runs, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for given in (
        *([], runs[:1], str(runs[0]), [runs[0], str(runs[0])]),
        *([runs[0], tmp_path / name] for name in ("nowhere", "loop")),
    ):
        with refused("runs"):
            compare(given)
    with pytest.raises(NotADirectoryError, match=r"`page`.*Received"):
        compare(runs, runs[0] / "log.csv" / "page.html")
    assert sorted(os.listdir(runs[0].parent)) == ["gated", "plain"]


def in_json(**changes):
    """A function that changes what a JSON file says of the read-outs, or of the run."""

    def change(text):
        content = json.loads(text)
        (content.get("readout") or content).update(changes)
        return json.dumps(content)

    return change


def in_settings(name, value):
    """A function that changes one setting of a run."""

    def change(text):
        content = json.loads(text)
        content["settings"][name] = value
        return json.dumps(content)

    return change


def with_cell(row, column, value):
    """A function that puts a value into a row of a table; the header is row 1."""

    def change(text):
        rows = [line.split(",") for line in text.splitlines()]
        rows[row - 1][rows[0].index(column)] = value
        return "".join(",".join(cells) + "\n" for cells in rows)

    return change


def rows(*chosen):
    """A function that takes rows of a table, in this order."""
    return lambda text: "".join(text.splitlines(keepends=True)[row - 1] for row in chosen)


def cut(share):
    return lambda text: text[: int(len(text) * share)]


LOG, READOUT, RECORD = "log.csv", "probes/readout.csv", "probes/probes.json"
SETTINGS, NESTED = "settings.json", '{"a": ' * 20_000
# What is done to a file of the second run, and what the message says of the place.
DAMAGED = [
    *((name, cut(0.6), "row [1-4] ") for name in (LOG, READOUT)),
    (READOUT, lambda text: text.replace("block", "b", 1), ".*"),
    *((name, rows(1, 1, 2, 3), "row 2 ") for name in (LOG, READOUT)),
    (LOG, rows(1), "no epoch"),
    (LOG, rows(1, 2), "ends after row 2"),
    (LOG, rows(1, 2, 2), "row 3 is of epoch 0"),
    (LOG, rows(1, 3, 2), "row 2 is of epoch 1"),
    (LOG, lambda text: text + text.splitlines()[-1].replace("1", "2", 1) + "\n", "row 4"),
    (LOG, with_cell(3, "epoch", ""), "row 3 .*'epoch'"),
    (LOG, with_cell(3, "val_loss", "good"), "row 3 .*'val_loss'"),
    (LOG, with_cell(3, "stage1/block0/l2_ratio", "good"), "row 3 .*'stage1/block0/l2_ratio'"),
    (LOG, lambda text: text.replace("val_exact_match", "exact"), "'val_exact_match'"),
    (READOUT, rows(1, 2, 3), "ends after row 3"),
    (READOUT, rows(1, 2, 3, 4, 4), "row 5 has the same .* as an earlier row"),
    (READOUT, with_cell(3, "error", "1.5"), "row 3 .*'error'"),
    (READOUT, with_cell(3, "stage", "nan"), "row 3 .*'stage'"),
    (READOUT, with_cell(3, "split", ""), "row 3 has no split"),
    (READOUT, with_cell(3, "split", "train"), "row 4, .* other splits .*'train'"),
    (READOUT, lambda text: text.replace("entropy", "e"), "columns"),
    (READOUT, lambda text: text.replace("error", "e"), "row 1 .*'error'"),
    (RECORD, cut(0.5), "not JSON"),
    (RECORD, lambda text: NESTED, "not JSON"),
    (RECORD, lambda text: "[]", "not a dict"),
    (RECORD, lambda text: text.replace('"rows"', '"columns"'), "'columns' twice"),
    (RECORD, in_json(images=[3]), "'images' .*'readout'"),
    (RECORD, in_json(images={"test": -1}), "'images' .*'readout'"),
    (RECORD, in_json(data=["mnist"]), "'data' .*'readout'"),
    (RECORD, in_json(pixels={}), "'pixels' .*'readout'"),
    (RECORD, in_json(options=None), "'options' .*'readout'"),
    (RECORD, in_json(options={"times": [3]}), "'options' .*'readout'"),
    (RECORD, in_json(rows="3"), "'rows' .*'readout'"),
    (RECORD, in_json(digits=[3]), "'digits' .*'readout'"),
    (RECORD, lambda text: '{"readout": null}', "'network' .*'readout'"),
    (SETTINGS, in_json(versions=NESTED[:50]), "'versions'"),
    (SETTINGS, in_json(machine={"system": {}}), "'machine'"),
    (SETTINGS, in_json(search=[]), "'search'"),
    (SETTINGS, in_json(colour=3), "'colour'"),
    *((SETTINGS, in_settings(name, "new"), f"`{name}`") for name in ("network", "dtype")),
    *((SETTINGS, in_settings("width", value), "`width`") for value in ([4], True, math.nan)),
    (SETTINGS, lambda text: text.replace('"width"', '"depth"'), "'depth' twice"),
]


@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_damaged_files_are_named_with_the_place(runs, number):
    name, change, place = DAMAGED[number]
    path = runs[1] / name
    path.write_text(change(path.read_text()))
    before = {file: file.read_bytes() for file in runs[0].parent.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=rf"^{path.name} is damaged: .*{place}") as raised:
        compare(runs)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith(f"Received: path={str(path)!r}")
    assert "emove" not in str(raised.value)
    assert before == {f: f.read_bytes() for f in runs[0].parent.rglob("*") if f.is_file()}


@pytest.mark.parametrize("name", [LOG, READOUT, RECORD, SETTINGS])
@pytest.mark.parametrize("kind", ["a pipe", "a link to nothing"])
def test_what_is_no_file_is_neither_waited_for_nor_overlooked(runs, name, kind):
    path = runs[1] / name
    path.unlink()
    os.mkfifo(path) if kind == "a pipe" else path.symlink_to("nothing")
    with pytest.raises((OSError, ValueError), match=path.name):
        compare(runs)


def test_settings_with_names_that_are_not_utf_8(runs):
    path = runs[1] / SETTINGS
    path.write_text(in_settings("data_dir", "data\udc80")(path.read_text()))
    assert "data\\udc80" in text_of(compare(runs))


UNRECORDED = {"a block less": rows(1, 2, 3), "a block twice": rows(1, 2, 3, 4, 2)}


@pytest.mark.parametrize(
    "name", ["a block twice", pytest.param("a block less", marks=pytest.mark.nightly)]
)
def test_frames_without_a_record_have_the_blocks_of_the_network(runs, name):
    (runs[1] / "probes/probes.json").unlink()
    path = runs[1] / READOUT
    text = path.read_text()
    path.write_text(UNRECORDED[name](text))
    with pytest.raises(ValueError, match=r"readout.csv is damaged: .*row [35]"):
        compare(runs)
    # Neither what a spreadsheet adds nor what another system ends lines with is damage.
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert "Reading out early" in text_of(compare(runs))


@pytest.mark.parametrize("counts", [(3, 3, 2), (2, 3, 3)])
def test_frames_without_a_record_have_every_stage_as_often(tmp_path, counts):
    """Cut at the end, or without a row of its middle."""
    frame = pd.DataFrame(
        {"stage": stage, "repetition": repetition, "error": 0.5, "distance": 1.0}
        for stage, count in enumerate(counts, start=1)
        for repetition in range(count)
    )
    frame.to_csv(tmp_path / "repeat_last_block.csv", index=False)
    with pytest.raises(ValueError, match=rf"stage {1 + counts.index(2)}, or more of others"):
        read_frame(tmp_path / "repeat_last_block.csv")


NAMES = {
    "letters that nothing prints": ("a\nb", "\x1b[31m"),
    "mathematics and hidden": ("$x$", "_hidden"),
    "columns of tables": ("position", "stage"),
    "markup": ("[b]", "<b>&amp;"),
    "no UTF-8": (os.fsdecode(b"\xff"), "\\udcff"),
    "long": ("x" * 200, "x" * 199 + "y"),
}


@pytest.mark.parametrize("name", sample({n: n for n in NAMES}, 4, pytest.mark.nightly))
def test_runs_of_any_name(runs, name):
    named = [
        folder.rename(folder.with_name(to)) for folder, to in zip(runs, NAMES[name], strict=True)
    ]
    page = compare(named)
    text = text_of(page)
    assert page.name.isprintable()
    if name == "long":
        assert "xxx\N{HORIZONTAL ELLIPSIS}xxx" in text and len(page.name) < 200
    elif name == "no UTF-8":
        assert "\\udcff and \\udcff (2) compared" in text
    else:
        shown = [printable(to) for to in NAMES[name]]
        assert " ".join(f"{shown[0]} and {shown[1]} compared".split()) in text


@pytest.mark.nightly
def test_many_runs_have_a_page_of_a_short_name(runs, tmp_path):
    many = [shutil.copytree(runs[0], tmp_path / f"a-long-name-{seed}") for seed in range(15)]
    for folder in many:
        shutil.rmtree(folder / "probes")
    pages = {compare(some).name for some in (many, many[1:])}
    assert len(pages) == 2
    assert all(re.fullmatch(r"compare-a-long-name-\d+-and-1\d-more-\w{8}.html", p) for p in pages)


def test_frames_are_read_as_they_were_written(tmp_path):
    frame = pd.DataFrame({"stage": [1, 2, "all"], "blocks": [3, 2, 5], "distance": [1.5, 2.5, 4.0]})
    frame.to_csv(tmp_path / "computational_distance.csv", index=False)
    frame.iloc[:2].to_csv(tmp_path / "other.csv", index=False)
    found = read_frames(tmp_path)
    assert list(found) == ["computational_distance", "other"]
    assert found["computational_distance"][0]["stage"].tolist() == [1, 2, "all"]
    assert found["other"][0]["stage"].tolist() == [1, 2]
    assert {record for _, record in found.values()} == {None}
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match=r"empty.csv is damaged: .*Received: path="):
        read_frame(tmp_path / "empty.csv")


@pytest.mark.parametrize("held_out", [2000, 5000])
def test_validation_images_of_the_training_set_depend_on_how_many_are_held_out(held_out):
    frame = pd.DataFrame({"epoch": [0], "stage": [1], "block": [0], "l2_ratio": [0.5]})
    record = {"data": "cifar10", "images": {"validation": 512}, "pixels": "standardized"}
    settings = Settings(data="cifar10", validation=held_out)
    text = f"512 validation images of CIFAR-10, the first of {held_out:,} held out"
    assert comparison._measured(frame, record, settings).on == text
