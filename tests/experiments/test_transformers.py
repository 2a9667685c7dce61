"""The experiment with transformers, at its smallest size."""

from pathlib import Path

import pandas as pd
import processes
import pytest

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parent.parent.parent / "experiments" / "transformers.py"


@pytest.mark.nightly
def test_networks_are_trained_once_and_probed(tmp_path):
    for _ in range(2):
        done = processes.run(SCRIPT, "--size", "smoke", "--out", tmp_path)
        assert done.returncode == 0, done.stderr
    # Nothing was trained again.
    assert "Epoch" not in done.stdout
    frames = {path.stem: pd.read_csv(path) for path in (tmp_path / "smoke/frames").glob("*.csv")}
    assert set(frames) == {"lens", "drops", "block_metrics"}
    for frame in frames.values():
        assert set(frame["network"]) == {"language model", "vision transformer"}
        assert list(frame["kind"]) == ["attention", "mlp"] * 4
    names = {path.stem for path in (tmp_path / "smoke").glob("*.png")}
    assert names == {"lens", "drops", "cosine", "l2_ratio"}
