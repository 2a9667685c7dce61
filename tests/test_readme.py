"""The README's Python, run as it is written, in a folder and a home of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 9
    program = tmp_path / "quickstart.py"
    program.write_text("\n".join(blocks))
    environment = os.environ | {"HOME": str(tmp_path), "TFDS_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert len(rows) == 2
    for key in ("stage1/block0/cosine_loss", "stage1/block0/l2_ratio", "stage1/depth"):
        assert key in header.split(",")
    assert (tmp_path / "cosine_loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs" / "arrays" / "model.keras").exists()
    assert (tmp_path / "runs" / "depth" / "oracle.json").exists()
    assert "mean scaled perturbation of 0.5" in done.stdout
    assert "resnet50v2: 16 blocks in 4 stages" in done.stdout
    assert (tmp_path / "saved" / "net" / "saved_model.pb").exists()
