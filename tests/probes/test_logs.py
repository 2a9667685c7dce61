"""Log keys there and back."""

import numpy as np
import pandas as pd

from tfresidual.probes.logs import from_logs, log_key


def test_key():
    assert log_key("cosine_loss", 1, 0) == "stage1/block0/cosine_loss"
    assert log_key("depth", 2) == "stage2/depth"
    assert log_key("l2_ratio", 3, 17, "train") == "train/stage3/block17/l2_ratio"


def test_key_without_a_stage():
    assert log_key("recurrence_index") == "recurrence_index"
    assert log_key("recurrence_index", split="test") == "test/recurrence_index"
    assert log_key("recurrence_index", 0, 0) == "stage0/block0/recurrence_index"


def test_frame_from_a_history():
    history = {
        "loss": [2.0, 1.0],
        "stage1/block0/cosine_loss": [-0.1, -0.2],
        "stage1/block0/l2_ratio": [0.5, 0.6],
        "stage2/block11/cosine_loss": [np.nan, -0.3],
        "stage2/depth": [4, 5],
    }
    frame = from_logs(history)
    assert frame.columns.tolist() == ["epoch", "stage", "block", "cosine_loss", "l2_ratio"]
    assert frame[["epoch", "stage", "block"]].to_numpy().tolist() == [
        [0, 1, 0],
        [1, 1, 0],
        [1, 2, 11],
    ]
    assert frame["cosine_loss"].tolist() == [-0.1, -0.2, -0.3]


def test_frame_from_a_csv_file_with_splits(tmp_path):
    table = pd.DataFrame(
        {"epoch": [4], "a/stage1/block0/l2_ratio": [1.0], "b/stage1/block0/l2_ratio": [2.0]}
    )
    table.to_csv(tmp_path / "log.csv", index=False)
    frame = from_logs(tmp_path / "log.csv")
    assert frame["split"].tolist() == ["a", "b"]
    assert frame["epoch"].tolist() == [4, 4]
