"""What is imported when, what is in the wheel, and which part of the package may use which."""

import ast
import dataclasses
import importlib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata, resources

import pytest
from bare_package import BARE

ROOT = pathlib.Path(__file__).parents[1]
# Each part may import those before it.
ORDER = (
    "definitions",
    "machine",
    "layers",
    "networks",
    "routing",
    "sources",
    "probes",
    "surgery",
    "datasets",
    "training",
    "tuning",
    "plots",
    "report",
    "callbacks",
    "jobs",
)


def python(code, *arguments):
    """What a program prints, run in a process of its own."""
    result = subprocess.run(
        # -P: the installed package, not the files in the folder this runs in.
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


IMPORTED = """
import json, sys
import keras
before = set(sys.modules)
import tfresidual
loaded = set(sys.modules) - before
result = {"first": sorted(loaded), "dir": dir(tfresidual), "kinds": {}}
for name in tfresidual.__all__:
    result["kinds"][name] = type(getattr(tfresidual, name)).__name__
try:
    tfresidual.nothing
except AttributeError as error:
    result["error"] = str(error)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def imported():
    return json.loads(python(IMPORTED))


@pytest.mark.system
def test_import_loads_little(imported):
    # Keras itself loads what of pandas, matplotlib and Pillow it finds, and the most of rich.
    light = {"tfresidual", "rich", "filelock", "psutil"}
    assert {name.split(".")[0] for name in imported["first"]} <= light
    parts = ("callbacks", "datasets.loading", "jobs", "plots", "probes", "report", "routing")
    lazy = {f"tfresidual.{name}" for name in parts}
    assert lazy & set(imported["first"]) == set()
    assert {"tfresidual.layers", "tfresidual.networks"} <= set(imported["first"])


@pytest.mark.sampled(1)
@pytest.mark.system
@pytest.mark.parametrize("level", [None, "0"])
def test_import_says_nothing(level):
    """Unless the environment says how much TensorFlow logs."""
    kept = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    code = "import sys, tfresidual; sys.stderr.write('done'); assert not sys.stdout.write('')"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=kept | ({} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == ""
    assert (result.stderr == "done") == (level is None)


FAILING = """
import os, sys
from tfresidual.machine.quiet import quietly
with quietly():
    os.write(2, b"I0000 00:00:1.2  3 port.cc:153] oneDNN custom operations are on.\\nmine\\n")
    raise ValueError("also mine")
"""


def test_what_else_is_said_while_tensorflow_is_loaded_is_kept():
    environment = {key: os.environ[key] for key in os.environ if key != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(
        [sys.executable, "-c", BARE + FAILING], env=environment, capture_output=True, text=True
    )
    first, *_, last = result.stderr.splitlines()
    assert (first, last) == ("mine", "ValueError: also mine")


@pytest.mark.system
def test_all_names_are_there(imported):
    kinds = imported["kinds"]
    assert {kinds.pop(name) for name in ("chain", "export")} == {"function"}
    assert set(kinds.values()) == {"module"}
    parts = {"callbacks", "datasets", "jobs", "layers", "networks", "plots", "probes", "report"}
    assert set(kinds) == parts | {"routes", "routing", "sources", "surgery", "training", "tuning"}
    assert set(imported["dir"]) >= {*kinds, "chain", "export", "__version__"}
    assert imported["error"] == "module 'tfresidual' has no attribute 'nothing'"


def test_every_name_that_a_part_exports_is_there():
    for folder in sorted((ROOT / "tfresidual").iterdir()):
        if (folder / "__init__.py").exists():
            module = importlib.import_module(f"tfresidual.{folder.name}")
            names = getattr(module, "__all__", [])
            for name in names:
                assert getattr(module, name) is not None
            assert sorted(set(names)) == sorted(names)


SAVE = """
import sys, keras, numpy as np
from tfresidual import networks, training
keras.utils.set_random_seed(1)
network = networks.ResidualNetwork(
    (8, 8, 1), 3, blocks=1, widths=(2, 4), shortcut="exclusive_gate",
    classifier_activation="sigmoid",
)
# Loss and metric are of this package too.
training.compile_network(network, "digitclutter", epochs=2, steps_per_epoch=10, multi_label=True)
network.save(sys.argv[1])
np.save(sys.argv[2], network(np.ones((1, 8, 8, 1), "float32")).numpy())
"""
OPEN = """
import sys
import tfresidual
import keras, numpy as np
network = keras.saving.load_model(sys.argv[1])
assert type(network) is tfresidual.networks.ResidualNetwork
outputs = network(np.ones((1, 8, 8, 1), "float32")).numpy()
np.testing.assert_array_equal(outputs, np.load(sys.argv[2]))
assert type(network.loss).__name__ == "MultiLabelCrossentropy"
assert "tfresidual.jobs.study" not in sys.modules
print("opened")
"""


@pytest.mark.system
def test_a_saved_network_opens_after_a_bare_import(tmp_path):
    paths = tmp_path / "model.keras", tmp_path / "outputs.npy"
    python(SAVE, *paths)
    assert python(OPEN, *paths) == "opened\n"


def test_version():
    import tfresidual

    assert tfresidual.__version__ == metadata.version("tfresidual")


def test_typing_marker_and_template_are_installed():
    assert resources.files("tfresidual").joinpath("py.typed").is_file()
    assert resources.files("tfresidual.report").joinpath("report.html.jinja").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tree; what is in it by name."""
    copy = tmp_path_factory.mktemp("copy") / "tree"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "runs")
    )
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "out"]
    result = subprocess.run(
        list(map(str, command)), cwd=copy, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = (copy / "out").iterdir()
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.system
def test_every_module_is_in_the_wheel(wheel):
    modules = {f"tfresidual/{path}" for path in python_files(ROOT / "tfresidual")}
    modules |= {f"tfresidual/callbacks/{path}" for path in python_files(ROOT / "callbacks")}
    assert {name for name in wheel if name.endswith(".py")} == modules | {"tfresidual_cli.py"}
    assert "tfresidual/callbacks/block_probes.py" in wheel


def python_files(folder):
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]


@pytest.mark.system
def test_what_else_is_in_the_wheel(wheel):
    others = {name for name in wheel if not name.endswith(".py") and ".dist-info/" not in name}
    assert others == {"tfresidual/py.typed", "tfresidual/report/report.html.jinja"}
    information = {name.split(".dist-info/")[1]: name for name in wheel if ".dist-info/" in name}
    assert "licenses/LICENSE" in information
    assert b"Apache License" in wheel[information["licenses/LICENSE"]]
    entry_points = wheel[information["entry_points.txt"]].decode()
    assert "tfresidual = tfresidual_cli:main" in entry_points
    assert wheel[information["top_level.txt"]].decode().split() == ["tfresidual", "tfresidual_cli"]
    # In either of the two ways in which setuptools has written it.
    assert re.search(rb"^License(-Expression)?: Apache-2.0$", wheel[information["METADATA"]], re.M)


@pytest.mark.system
def test_links_of_the_description_work_on_a_package_index(wheel):
    (metadata,) = (wheel[name].decode() for name in wheel if name.endswith("/METADATA"))
    source = re.search(r"^Project-URL: Source, (https://\S+)$", metadata, re.MULTILINE)[1]
    assert f"]({source}/raw/main/docs/images/report.png)" in metadata
    assert f"]({source}/blob/main/CONTRIBUTING.md)" in metadata
    assert not re.findall(r"\]\((?!https://)", metadata)
    for file in ("mkdocs.yml", "setup.cfg"):
        assert source in (ROOT / file).read_text(encoding="utf-8")


def part_of(module):
    """The part that a module belongs to, or None outside of the package."""
    names = module.split(".")
    return names[1] if names[0] == "tfresidual" and len(names) > 1 else None


def rank(part):
    assert part in ORDER, f"{part} is not in ORDER"
    return ORDER.index(part)


def imports_of(path):
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "tfresidual":
                yield from (f"tfresidual.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = {
    f"{folder.name}/{name}": folder / name
    for folder in (ROOT / "tfresidual", ROOT / "callbacks")
    for name in python_files(folder)
    if (folder.name, name) != ("tfresidual", "__init__.py")
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_imports_point_one_way(name):
    part = name.removeprefix("tfresidual/").split("/")[0].removesuffix(".py")
    imported = {part_of(module) for module in imports_of(FILES[name])} - {None, part}
    assert "tfresidual" not in set(imports_of(FILES[name])), "import its parts"
    for other in imported:
        assert rank(other) < rank(part), f"{part} must not import {other}"


def test_every_part_has_its_place():
    parts = {path.stem for path in (ROOT / "tfresidual").glob("[a-z]*") if path.stem != "py"}
    for part in parts | {"callbacks"}:
        rank(part)


# Second data or a place, which may come by position, too; and what has the order of Keras.
BY_POSITION = {
    "patching",
    "linear_probe",
    "similarity",
    "repetition_metrics",
    "log_key",
    "depth_for",
}
BY_POSITION |= {"ExactMatch", "MultiLabelCrossentropy"}
PARTS = ("callbacks", "plots", "probes", "surgery", "training", "tuning")


@pytest.mark.parametrize("part", PARTS)
def test_what_can_be_left_out_is_a_keyword(part):
    module = importlib.import_module(f"tfresidual.{part}")
    public = {name: getattr(module, name) for name in module.__all__}
    for name, value in public.items():
        is_plain = isinstance(value, type) and issubclass(value, Exception)
        is_plain = is_plain or dataclasses.is_dataclass(value) or name in BY_POSITION
        if callable(value) and not is_plain:
            parameters = inspect.signature(value).parameters.values()
            given = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
            assert len(given) <= 4 and all(one.default is one.empty for one in given), name
