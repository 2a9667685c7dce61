"""Files that an earlier version wrote are opened, and its interrupted work is resumed."""

import io
import pathlib
import shutil
import tarfile
from contextlib import nullcontext

import keras
import numpy as np
import pandas as pd
import pytest

import tfresidual as tfr
import tfresidual_cli
from old_files import make
from tfresidual import probes

# Another processor rounds otherwise.
RTOL = 1e-4


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(pathlib.Path(__file__).with_name("written.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*make.OPTIONS, "layers"])
def test_models(old, name):
    if name == "layers" and keras.__version__.startswith("3.14."):
        pytest.skip("Keras wrote layers of its own with options that earlier versions do not have")
    model = keras.models.load_model(old / f"{name}.keras")
    predicted = model.predict(make.images(), verbose=0)
    np.testing.assert_allclose(predicted, np.load(old / f"{name}.npy"), rtol=RTOL, atol=1e-6)
    # It can be trained further.
    model.fit(make.images(), np.array([0, 1, 2]), verbose=0)


def test_exports(old):
    frame = probes.drop_blocks(
        tfr.chain(str(old / "exported")), (make.images(), np.array([0, 1, 2]))
    )
    before = pd.read_csv(old / "exported.csv")
    # There are more columns now.
    pd.testing.assert_frame_equal(frame[[*before]], before, check_dtype=False, rtol=RTOL)


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "command", "table"),
    [
        pytest.param("run", make.TRAIN, "log.csv", marks=pytest.mark.nightly),
        ("search", make.TUNE, "frames/trace.csv"),
    ],
)
def test_runs_and_searches(old, tmp_path, name, command, table):
    """One that is complete stays as it is; one that was interrupted ends like it."""
    whole, begun = tmp_path / name, tmp_path / f"interrupted_{name}"
    before = (old / name / table).read_bytes()
    for folder in (whole, begun):
        shutil.copytree(old / folder.name, folder)
        given = [*command, "--data-dir", str(tmp_path / "data"), "--out", str(folder)]
        # No depth meets the rule of the search.
        failing = pytest.raises(SystemExit, match="1") if name == "search" else nullcontext()
        with failing:
            tfresidual_cli.main(given)
    assert (whole / table).read_bytes() == before
    resumed, expected = (pd.read_csv(path) for path in (begun / table, io.BytesIO(before)))
    # The change by training is measured otherwise now, and there are more columns.
    others = ("seconds", "moved", "change_error")
    expected = expected[[name for name in expected if not name.endswith(others)]]
    pd.testing.assert_frame_equal(resumed[[*expected]], expected, check_exact=False, rtol=0.01)
