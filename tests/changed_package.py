"""Copies of the package, for tests that add to it what a page says."""

import os
import pathlib
import shutil
import subprocess
import sys

import tfresidual as tfr

ROOT = pathlib.Path(__file__).parents[1]


def copied(folder):
    """A folder that Python finds the copy in."""
    site = folder / "site"
    shutil.copytree(pathlib.Path(tfr.__file__).parent, site / "tfresidual", symlinks=False)
    shutil.copy(ROOT / "tfresidual_cli.py", site)
    return site


def output_of(program, arguments, site):
    """What a program prints that imports the copy, run beside it."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=site.parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
