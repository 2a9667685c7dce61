"""Networks that are trained with JAX, where there is no TensorFlow, and measured here."""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import catalogue
import keras
import numpy as np
import on_jax
import papers
import pytest

from tfresidual.jobs import data, training

PROGRAM = pathlib.Path(on_jax.__file__)
# As if it was not installed.
WITHOUT_TENSORFLOW = """
import runpy, sys
sys.modules["tensorflow"] = sys.modules["tensorflow_datasets"] = None
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_weights_come_back_and_are_watched(tmp_path):
    papers.load()
    entry = catalogue.ENTRIES["II-9"]
    network = catalogue.with_dtype(entry.networks("smoke")[0], "mixed_bfloat16")
    settings = dataclasses.replace(network.settings, data_dir=str(tmp_path / "data"))
    file = tmp_path / "images.npz"
    data.write_file(settings, file)
    one = {"size": "smoke", "key": ("II", network.name), "every_epoch": True}
    asked = json.dumps([one | {"settings": dataclasses.asdict(settings)}])
    (tmp_path / "networks.json").write_text(asked)
    there = tmp_path / "there"
    options = ["train", tmp_path / "networks.json", "--data-file", file, "--folder", there]
    program = [sys.executable, "-c", WITHOUT_TENSORFLOW, PROGRAM.parent, PROGRAM, *options]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    subprocess.run([*map(str, program)], env=environment, check=True, timeout=500)
    out = tmp_path / "here"
    on_jax.take(
        argparse.Namespace(names=[str(there)], out=out, data_dir=settings.data_dir, size="smoke")
    )
    folder = papers.folder_of(out, "smoke", ("II", network.name))
    kept = training.TrainingFolder(folder, "val_exact_match")
    epoch, path = kept.newest()
    (weights,) = there.glob(f"*/{on_jax.WEIGHTS}/{epoch:04d}.npz")
    model = keras.saving.load_model(path)
    for variable, expected in zip(model.get_weights(), on_jax.read_weights(weights), strict=True):
        np.testing.assert_array_equal(variable, expected)
    # Nothing is left to train, and every epoch was watched.
    trained = catalogue.on_disk(network, settings.data_dir).train(folder)
    frame = entry.measures[1](trained)
    assert sorted(frame["epoch"].unique()) == list(range(settings.epochs))
    assert trained.log["seconds"].isna().all()
    errors = model.evaluate(trained.images({"validation": None})["validation"], verbose=0)
    assert errors[0] == pytest.approx(trained.log["val_loss"].iloc[-1], rel=0.05)
