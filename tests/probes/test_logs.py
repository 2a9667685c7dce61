"""Log keys there and back."""

import numpy as np
import pandas as pd
import pytest

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


def test_numbers_of_stages_and_of_the_network_are_left_out():
    history = {
        "a/stage1/block0/drop_error": [0.5],
        "a/stage1/convergence_index": [0.25],
        "a/convergence_index": [0.125],
        "convergence_index": [0.0],
    }
    frame = from_logs(history)
    assert frame.to_dict("records") == [
        {"epoch": 0, "split": "a", "stage": 1, "block": 0, "drop_error": 0.5}
    ]
    with pytest.raises(ValueError, match="`history` must hold keys"):
        from_logs({key: value for key, value in history.items() if "block" not in key})


def test_history_without_blocks():
    with pytest.raises(ValueError, match=r"`history` must hold keys.*Received: "):
        from_logs({"loss": [1.0]})


LOG = "epoch,loss,stage1/block0/l2_ratio\r\n0,2.0,0.5\r\n1,1.0,NA\r\n"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (LOG[:-1], "row 3 "),
        (LOG.replace(",NA", ""), "row 3 has 2 cells"),
        (LOG.replace("NA", "low"), "row 3 .*'stage1/block0/l2_ratio'"),
        (LOG.replace("1,1.0", "0,1.0"), "several rows of epoch 0"),
        (LOG.replace("\r\n1", "\r\n"), "row 3 .*'epoch'"),
    ],
)
def test_a_damaged_log(tmp_path, changed, says):
    path = tmp_path / "log.csv"
    path.write_bytes(LOG.encode())
    assert from_logs(path)["l2_ratio"].tolist() == [0.5]
    path.write_bytes(changed.encode())
    with pytest.raises(ValueError, match=says) as raised:
        from_logs(path)
    assert "Received: " in str(raised.value) and "\n" not in str(raised.value)
