"""Rows of the benchmarks: printed, kept in CSV files, and put together to benchmarks/README.md.

A script yields a `Row` for everything that it has measured, and ends in `run`. Its rows are kept in
results/NAME.csv together with the machine, the command and the commit. A row that is measured again
on the same machine replaces the old one; rows of other machines stay. Rows without a commit were
measured before there were such files; a row that is measured again on any machine replaces them.
"""

import argparse
import ast
import csv
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys

from timing import ratio

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results"
# What counts as code, seen from here.
CODE = ("../tfresidual", "../callbacks", "*.py")
PAGE = HERE / "README.md"
# In the order of the page. Scripts that do not exist are left out.
NAMES = (
    "training_step",
    "by_hand",
    "kernels",
    "first_step",
    "metrics_pass",
    "step_metrics",
    "gradient_coupling",
    "residual_branches",
    "spectral_normalization",
    "routes",
    "memory",
    "states",
    "saved_model",
    "surgery",
    "end_of_pass",
    "startup",
    "processes",
    "backends",
    "transformers",
    "depth_search",
)
# What is said of the processor, by the flag that Linux gives it.
FLAGS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512_BF16",
    "amx_bf16": "AMX",
}
NOT_MEASURED = "not measured"
NO_BFLOAT16 = f"{NOT_MEASURED}: no AMX or AVX512_BF16"
VERSIONS = {"tensorflow": "TensorFlow", "keras": "Keras", "torch": "PyTorch", "jax": "JAX"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that was measured.

    Attributes:
        what: what was measured, or the two things that are compared, as "slow / fast".
        setting: sizes, precision and the like.
        ratio: median of the ratios of all rounds.
        lowest: the lowest of them.
        highest: the highest of them.
        seconds: median of the seconds of the first thing.
        compared: median of the seconds of the second.
        speed: images per second of the first thing.
        note: anything else, or why it was not measured.
    """

    what: str
    setting: str = ""
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    seconds: float | None = None
    compared: float | None = None
    speed: float | None = None
    note: str = ""


# What is added to every row.
ADDED = ("machine", "command", "commit", "date")
COLUMNS = (*(field.name for field in dataclasses.fields(Row)), *ADDED)


def compared(what, setting, slow, fast, note=""):
    """Returns the row of two lists of seconds, measured in turn."""
    return Row(
        what,
        setting,
        *ratio(slow, fast),
        seconds=statistics.median(slow),
        compared=statistics.median(fast),
        note=note,
    )


def timed(what, setting, seconds, images=None, note=""):
    """Returns the row of one list of seconds; with images per step, also of their speed."""
    middle = statistics.median(seconds)
    speed = None if images is None else images / middle
    return Row(what, setting, seconds=middle, speed=speed, note=note)


def without_bfloat16(dtype):
    """Returns why a precision is not measured on this processor, or `None`."""
    flags = _processor()[1]
    fast = {"avx512_bf16", "amx_bf16"} & flags
    return None if dtype != "mixed_bfloat16" or fast else NO_BFLOAT16


def without_torch(name):
    """Returns why "PyTorch" or "torch.compile" is not measured here, or `None`."""
    if name not in ("PyTorch", "torch.compile"):
        return None
    if importlib.util.find_spec("torch") is None:
        return f"{NOT_MEASURED}: PyTorch is not installed"
    if name == "torch.compile" and not (shutil.which("g++") or shutil.which("clang++")):
        return f"{NOT_MEASURED}: there is no compiler of C++"
    return None


def machine():
    """Returns a description of this machine and of the versions, in one line."""
    model, flags = _processor()
    names = [name for flag, name in FLAGS.items() if flag in flags]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [model, f"{cores} cores", " ".join(names) or "no AVX2"]
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{size / 2**30:.0f} GB of memory")
    except (ValueError, OSError, AttributeError):
        pass
    parts.append(f"Python {platform.python_version()}")
    for package, name in VERSIONS.items():
        try:
            parts.append(f"{name} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"no {name}")
    return ", ".join(parts)


def _processor(path="/proc/cpuinfo"):
    """Returns the name of the processor and the set of its flags."""
    try:
        text = pathlib.Path(path).read_text()
    except OSError:
        return platform.processor() or platform.machine(), set()

    def value(key):
        found = re.search(rf"^{key}\s*: *(.*)$", text, re.M)
        return found.group(1) if found else ""

    name = value("model name") or platform.machine()
    family, model = value("cpu family"), value("model")
    numbers = f" (family {family}, model {model})" if family and model else ""
    return name + numbers, set(value("flags").split())


def _commit():
    """Returns the commit of the code that runs, with a plus if code was changed since."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "--", *CODE)
    except OSError:
        return "unknown"
    return (commit or "unknown") + "+" * bool(changed)


def line_of(row):
    """Returns a row as it is printed."""
    parts = [f"{row.setting}: {row.what}" if row.setting else row.what]
    parts += [part for part in (_ratio(row), _seconds(row), _speed(row), row.note) if part]
    return ", ".join(parts)


def _ratio(row):
    if row.ratio is None:
        return ""
    if row.lowest is None:
        return f"{row.ratio:.3g}x"
    return f"{row.ratio:.2f}x ({row.lowest:.2f} to {row.highest:.2f})"


def _number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(row):
    values = [value for value in (row.seconds, row.compared) if value is not None]
    return f"{' / '.join(map(_number, values))} s" if values else ""


def _speed(row):
    return "" if row.speed is None else f"{_number(row.speed)} images/s"


def read(path):
    """Returns the rows of a CSV file, each with what is added to it as a dict."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [(_row_of(record), {name: record[name] for name in ADDED}) for record in _of(file)]


def _of(file):
    records = csv.DictReader(file)
    if tuple(records.fieldnames or ()) != COLUMNS:
        raise ValueError(
            f"{file.name} must have the columns {COLUMNS}. Received: {records.fieldnames}"
        )
    return records


def _row_of(record):
    texts = ("what", "setting", "note")
    values = {
        field.name: record[field.name]
        if field.name in texts
        else float(record[field.name])
        if record[field.name]
        else None
        for field in dataclasses.fields(Row)
    }
    return Row(**values)


def write(path, rows):
    """Writes rows, each with what is added to it, to a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row, added in rows:
            values = dataclasses.asdict(row)
            cells = [_cell(values[name]) for name in values]
            writer.writerow([*cells, *(added[name] for name in ADDED)])


def _cell(value):
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else value


def merged(old, new):
    """Returns old rows without those that new ones replace, and the new ones.

    What a machine cannot measure replaces nothing that another one has measured.
    """
    known = {_key(row) for row, _ in old if _is_measured(row)}
    new = [pair for pair in new if _is_measured(pair[0]) or _key(pair[0]) not in known]
    places = {_key(row): added["machine"] for row, added in new}

    def stays(row, added):
        place = places.get(_key(row))
        is_other = place != added["machine"] and added["commit"] and _is_measured(row)
        return place is None or is_other

    return [pair for pair in old if stays(*pair)] + new


def _is_measured(row):
    return not row.note.startswith(NOT_MEASURED)


def _key(row):
    return row.what, row.setting


def run(measure, add_arguments=None):
    """Runs a benchmark from the command line: prints its rows, keeps them and writes the page.

    Args:
        measure: function from the parsed arguments to an iterable of `Row`.
        add_arguments: function that adds arguments to an `argparse.ArgumentParser`, or `None`.
    """
    path = pathlib.Path(inspect.getfile(measure)).resolve()
    parser = argparse.ArgumentParser(description=docstring(path).partition("\n")[0])
    if add_arguments is not None:
        add_arguments(parser)
    parser.add_argument("--alone", action="store_true", help="drop the rows of earlier runs")
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=RESULTS,
        help="folder for the rows; README.md is written for the default one",
    )
    arguments = parser.parse_args()
    added = {
        "machine": machine(),
        "command": _command(path),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
    }
    rows = []
    target = arguments.results / f"{path.stem}.csv"
    try:
        for row in measure(arguments):
            print(f"  {line_of(row)}", flush=True)
            rows.append((row, added))
    finally:
        # What was measured before an error, too.
        if rows:
            write(target, merged([] if arguments.alone else read(target), rows))
            if arguments.results == RESULTS:
                write_page()


def _command(path):
    """Returns the command that runs this benchmark, without where its rows are kept."""
    given = [argument for argument in sys.argv[1:] if argument != "--alone"]
    if "--results" in given:
        place = given.index("--results")
        del given[place : place + 2]
    return shlex.join(["python", f"benchmarks/{path.name}", *given])


def docstring(path):
    """Returns the docstring of a script."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def newest(rows):
    """Returns the rows that were measured last, and what is added to all of them."""
    groups = {}
    for row, added in rows:
        if added["date"]:
            groups.setdefault(tuple(added.items()), []).append(row)
    if not groups:
        return [], {}
    last = max(groups, key=lambda added: dict(added)["date"])
    return groups[last], dict(last)


def write_page():
    """Writes benchmarks/README.md and its chart."""
    import chart

    shown, _ = newest(read(RESULTS / "training_step.csv"))
    if shown:
        chart.draw(shown, [row for row, _ in read(RESULTS / "by_hand.csv")])
    PAGE.write_text(page())


def page(folder=RESULTS):
    """Returns benchmarks/README.md, made of the docstrings of the scripts and of their rows."""
    sections, machines = [], []
    for name in NAMES:
        script = HERE / f"{name}.py"
        if script.exists():
            sections.append(_section(name, script, folder, machines))
    places = "\n".join(f"{index}. {text}" for index, text in enumerate(machines, start=1))
    parts = [docstring(HERE / "run.py"), *_chart(folder, machines), "## Machines", places]
    return "\n\n".join([*parts, *sections]) + "\n"


def _chart(folder, machines):
    """Returns the chart and what it shows, where there are rows for it."""
    _, added = newest(read(folder / "training_step.csv"))
    if not added:
        return []
    number = machines.index(added["machine"]) + 1
    what = "Speed of training step, inference and probes beside stock Keras layers and PyTorch"
    return [
        f"![{what}](../docs/images/benchmarks.png)",
        f"{what}: `{added['command']}` on machine {number}, {added['date']}, and the rows of "
        "by_hand below. A bar is the median over the rounds of the ratio to tfresidual, a line the "
        "range of that ratio.",
    ]


def _section(name, script, folder, machines):
    title, _, text = docstring(script).partition("\n")
    rows = read(folder / f"{name}.csv")
    parts = [f"## {name}", f"{title}\n{text}".strip()]
    for added in dict.fromkeys(tuple(added.items()) for _, added in rows):
        place = dict(added)
        if place["machine"] not in machines:
            machines.append(place["machine"])
        number = machines.index(place["machine"]) + 1
        when = f"commit {place['commit']}" if place["commit"] else "measured before, on older code"
        when += f", {place['date']}" if place["date"] else ""
        parts.append(f"`{place['command']}` on machine {number}, {when}:")
        parts.append(_table([row for row, other in rows if tuple(other.items()) == added]))
    return "\n\n".join(parts)


def _table(rows):
    """Returns rows in Markdown, without columns in which nothing stands."""
    columns = {
        "what": [row.what for row in rows],
        "setting": [row.setting for row in rows],
        "ratio": list(map(_ratio, rows)),
        "seconds": [_seconds(row).removesuffix(" s") for row in rows],
        "images/s": [_speed(row).removesuffix(" images/s") for row in rows],
        "note": [row.note for row in rows],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
