"""The rows of the benchmarks, and the page that is made of them. No benchmark is run."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"
HERE, THERE = "a processor", "another processor"


@pytest.fixture(scope="module")
def results():
    """The module `results` of the benchmarks, which are no package."""
    sys.path.insert(0, str(FOLDER))
    try:
        specification = importlib.util.spec_from_file_location("results", FOLDER / "results.py")
        module = importlib.util.module_from_spec(specification)
        sys.modules["results"] = module
        specification.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("chart", "results", "timing"):
            sys.modules.pop(name, None)


def pair(row, machine=HERE, commit="abc"):
    added = {"machine": machine, "command": "python benchmarks/x.py", "commit": commit}
    return row, added | {"date": commit and "2026-01-31"}


def test_the_page_is_what_its_rows_and_docstrings_give(results):
    assert results.PAGE.read_text() == results.page(), "run `python benchmarks/run.py --page`"


def test_every_script_is_on_the_page(results):
    helpers = {"chart", "results", "run", "timing"}
    scripts = {path.stem for path in FOLDER.glob("*.py")} - helpers
    assert scripts <= set(results.NAMES)
    kept = {path.stem for path in results.RESULTS.iterdir()}
    assert kept <= scripts
    for name in scripts:
        text = (FOLDER / f"{name}.py").read_text()
        assert f"\n    python benchmarks/{name}.py" in results.docstring(FOLDER / f"{name}.py")
        assert "run(measure, add_arguments)" in text
        assert f"\n## {name}\n" in results.page()


def test_rows_survive_a_file(results, tmp_path):
    rows = [
        pair(results.Row("a / b", "9 blocks, float32", 1.25, 1.0, 1.5, 0.5, 0.4)),
        pair(results.Row("a", speed=1200.0, note='a, "quoted"'), THERE, ""),
        pair(results.Row("c", note=results.NO_BFLOAT16)),
    ]
    path = tmp_path / "new" / "rows.csv"
    results.write(path, rows)
    assert results.read(path) == rows
    assert results.read(tmp_path / "none.csv") == []
    path.write_text("what,ratio\na,1\n")
    with pytest.raises(ValueError, match=r"must have the columns .* Received: \['what', 'ratio'\]"):
        results.read(path)


def test_rows_of_lists_of_seconds(results):
    # Round by round: 2, 3 and 1; the medians alone would give 2.5.
    row = results.compared("a / b", "small", [4.0, 6.0, 5.0], [2.0, 2.0, 5.0])
    assert (row.ratio, row.lowest, row.highest) == (2.0, 1.0, 3.0)
    assert (row.seconds, row.compared) == (5.0, 2.0)
    assert results.line_of(row) == "small: a / b, 2.00x (1.00 to 3.00), 5 / 2 s"
    row = results.timed("a", "", [0.2, 0.1, 0.4], images=64)
    assert (row.seconds, row.speed) == (0.2, 320.0)
    assert results.line_of(row) == "a, 0.2 s, 320 images/s"


def test_what_replaces_what(results):
    def kept(*pairs):
        return [(row.ratio, added["machine"], added["commit"]) for row, added in pairs]

    def row(ratio=None, what="a"):
        note = "" if ratio else results.NO_BFLOAT16
        return results.Row(what, ratio=ratio, note=note)

    merged = results.merged
    # Measured again on the same machine; on another one; the figures from before there were files.
    new = [pair(row(2.0), HERE, "def")]
    assert kept(*merged([pair(row(1.0))], new)) == [(2.0, HERE, "def")]
    assert kept(*merged([pair(row(1.0), THERE)], new)) == [(1.0, THERE, "abc"), (2.0, HERE, "def")]
    assert kept(*merged([pair(row(1.0), THERE, "")], new)) == [(2.0, HERE, "def")]
    # Something else stays.
    assert len(merged([pair(row(1.0, "b"), HERE)], new)) == 2
    # What this machine cannot measure.
    nothing = [pair(row(), HERE, "def")]
    assert kept(*merged([], nothing)) == [(None, HERE, "def")]
    for commit in ("abc", ""):
        assert kept(*merged([pair(row(1.0), THERE, commit)], nothing)) == [(1.0, THERE, commit)]
    assert kept(*merged([pair(row(), THERE)], new)) == [(2.0, HERE, "def")]


def test_the_page_says_on_which_machine_a_row_was_measured(results, tmp_path):
    rows = [
        pair(results.Row("a / b", ratio=1.5)),
        pair(results.Row("a / b", ratio=1.6, lowest=1.5, highest=1.7), THERE),
        pair(results.Row("a / c", seconds=1234.5), commit=""),
    ]
    results.write(tmp_path / "startup.csv", rows)
    page = results.page(tmp_path)
    assert "## Machines\n\n1. a processor\n2. another processor\n" in page
    command = "`python benchmarks/x.py` on machine"
    assert (
        f"{command} 1, commit abc, 2026-01-31:\n\n| what | ratio |\n| --- | --- |\n| a / b | 1.5x |"
        in page
    )
    assert f"{command} 2, commit abc, 2026-01-31:" in page
    assert "| a / b | 1.60x (1.50 to 1.70) |" in page
    assert f"{command} 1, measured before, on older code:" in page
    assert "| a / c | 1,234 |" in page


INFO = """processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Some processor
flags\t\t: fpu avx2 avx512f {flag}
"""


@pytest.mark.parametrize("flag", ["amx_bf16", "avx512_bf16", "avx512_fp16"])
def test_bfloat16_is_measured_where_the_processor_has_it(results, flag, tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    path.write_text(INFO.format(flag=flag))
    found = results._processor(path)
    assert found == ("Some processor (family 6, model 143)", {"fpu", "avx2", "avx512f", flag})
    monkeypatch.setattr(results, "_processor", lambda: found)
    has = flag != "avx512_fp16"
    assert results.without_bfloat16("mixed_bfloat16") == (None if has else results.NO_BFLOAT16)
    assert results.without_bfloat16("float32") is None
    named = {"amx_bf16": " AMX", "avx512_bf16": " AVX512_BF16", "avx512_fp16": ""}[flag]
    description = results.machine()
    assert f"AVX2 AVX-512{named}, " in description
    assert re.search(r"\d+ cores, .* Python 3\.\d+\.\d+, TensorFlow 2\.", description)


def test_the_page_is_written_without_running_anything(results):
    before = results.PAGE.read_text()
    command = [sys.executable, FOLDER / "run.py", "--page"]
    subprocess.run(command, check=True, timeout=60)
    assert results.PAGE.read_text() == before
    wrong = [sys.executable, FOLDER / "run.py", "nothing"]
    refused = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "Received: nothing" in refused.stderr
