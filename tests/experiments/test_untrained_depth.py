"""The experiment on networks that are not trained, at its smallest size."""

import pandas as pd
import pytest
import untrained_depth

pytestmark = pytest.mark.system


def test_the_mean_as_built_is_predicted(tmp_path, capsys):
    untrained_depth.main("smoke", tmp_path)
    table = pd.read_csv(tmp_path / "smoke" / "as_built.csv")
    assert (tmp_path / "smoke" / "as_built.png").read_bytes().startswith(b"\x89PNG")
    assert table["blocks"].tolist() == [2, 4]
    # Few channels and images.
    assert table["mean"].tolist() == pytest.approx(table["law"].tolist(), rel=0.2)
    assert "epsilon 0.5: met untrained by" in capsys.readouterr().out
