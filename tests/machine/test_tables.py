"""Tables in CSV files: what is read as it was written, and which row is named where one is not."""

import math

import pandas as pd
import pytest

from tfresidual.machine.tables import NUMBER, TEXT, between, read_table, whole

KINDS = {"stage": whole(1, "all"), "name": TEXT, "share": between(0, 1), "loss": NUMBER}
TABLE = "stage,name,share,loss\n1,first,0.5,1e-3\n2,,,inf\nall,last,1.0000001,-7\n"


def read(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, lambda texts: {name: KINDS.get(name, NUMBER) for name in texts}, "Help")


@pytest.mark.parametrize(
    "content",
    [TABLE, "\ufeff" + TABLE, TABLE.replace("\n", "\r\n"), TABLE.replace("first", '"first"')],
)
def test_what_is_whole(tmp_path, content):
    expected = {
        "stage": [1, 2, "all"],
        "name": ["first", None, "last"],
        "share": [0.5, math.nan, 1.0000001],
        "loss": [1e-3, math.inf, -7],
    }
    found = read(tmp_path / "a.csv", content)
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected))


def test_numbers_keep_their_last_digit(tmp_path):
    found = read(
        tmp_path / "a.csv", "loss,count\n0.30000000000000004,3\n2.2250738585072014e-308,4\n"
    )
    assert found["loss"].tolist() == [0.30000000000000004, 2.2250738585072014e-308]
    assert found["count"].dtype == "int64"


DAMAGED = {
    "empty": ("", "it is empty"),
    "binary": (bytes(range(256)), "row 2 "),
    "not UTF-8": (TABLE.encode().replace(b"last", b"l\xe9st"), "row 4 "),
    "no end": (TABLE[:-1], "row 4 "),
    "a cell less": (TABLE.replace(",,inf", ",inf"), "row 3 has 3 cells"),
    "an empty row": (TABLE.replace("2,", "\n2,", 1), "row 3 has 0 cells"),
    "a column twice": (TABLE.replace("share", "stage"), "row 1 .*'stage'"),
    "a column without a name": (TABLE.replace("share", ""), "row 1 .*''"),
    "an open quote": (TABLE.replace("first", '"first'), "row "),
    "a row within a cell": (TABLE.replace("first", '"fi\nrst"'), "row 3 .*'name'"),
    "a text for a number": (TABLE.replace("-7", "good"), "row 4 .*'loss', not 'good'"),
    "a number of other letters": (TABLE.replace("-7", "1_0"), "row 4 .*'loss'"),
    "digits of another script": (TABLE.replace("-7", "\u0667"), "row 4 .*'loss'"),
    "a share above 1": (TABLE.replace("0.5", "1.5"), "row 2 .*'share'"),
    "a fraction of a stage": (TABLE.replace("\n2,", "\n2.5,"), "row 3 .*'stage'"),
    "no stage": (TABLE.replace("\n2,", "\n,"), "row 3 .*'stage'"),
    "a stage before the first": (TABLE.replace("\n2,", "\n0,"), "row 3 .*'stage'"),
    "a null character": (TABLE.replace("last", "la\0st"), "row 4 .*'name'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged(tmp_path, name):
    content, reason = DAMAGED[name]
    path = tmp_path / "a.csv"
    with pytest.raises(
        ValueError, match=f"^a.csv is damaged: {reason}.*Help. Received: "
    ) as raised:
        read(path, content)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith(f"path={str(path)!r}")
