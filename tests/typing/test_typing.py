"""A type checker finds each mistake in fails.py; `make style` checks that it accepts passes.py.

mypy runs in this folder, so that it reads the installed package and not the files of the checkout.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import typing

import pytest

from tfresidual import datasets
from tfresidual.definitions import types
from tfresidual.layers import layer_scale, residual_unit, shortcuts
from tfresidual.networks import specification
from tfresidual.probes.borderline import GROUPINGS
from tfresidual.probes.convergence_indices import CHANCES, READINGS
from tfresidual.routing import chain
from tfresidual.training import gradient_coupling

HERE = pathlib.Path(__file__).parent
CONFIGURATION = HERE.parents[1] / "pyproject.toml"


def checked(name, cache):
    """The exit code of mypy on a file, and what it prints."""
    (package,) = importlib.util.find_spec("tfresidual").submodule_search_locations
    site = pathlib.Path(package).parent
    environment = dict(os.environ)
    if "site-packages" not in site.parts:
        environment["MYPYPATH"] = str(site)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent"),
            *("--config-file", CONFIGURATION, "--cache-dir", cache, name),
        ],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.system
def test_each_mistake_is_found_and_nothing_else(tmp_path):
    code, output = checked("fails.py", tmp_path)
    assert code == 1, output
    lines = (HERE / "fails.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("  # error")}
    found = {int(number) for number in re.findall(r"^fails\.py:(\d+): error: ", output, re.M)}
    assert found == marked, output
    assert len(marked) > 40


@pytest.mark.parametrize(
    ("literal", "names"),
    [
        (types.Layout, residual_unit.LAYOUTS),
        (types.Resize, residual_unit.RESIZES),
        (types.BatchNorm, residual_unit.BATCH_NORMS),
        (types.ShortcutName, shortcuts.SHORTCUTS),
        (types.MultiplierName, layer_scale.MULTIPLIERS),
        (typing.get_args(types.Normalization)[0], residual_unit.NORMALIZATIONS),
        (types.Transition, specification.TRANSITIONS),
        (types.Anchor, specification.ANCHORS),
        (types.CouplingKernel, gradient_coupling.KERNELS),
        (types.Pixels, datasets.PIXELS),
        (types.OutputKind, chain.OUTPUT_KINDS),
        (typing.get_args(types.Chance)[1], CHANCES),
        (types.Reading, READINGS),
        (types.BorderlineGroups, GROUPINGS),
    ],
)
def test_literals_are_the_names_that_the_functions_take(literal, names):
    assert set(typing.get_args(literal)) == set(names)
