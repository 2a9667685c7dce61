"""The description of docs/howto/add_data.md, added to a copy of the package."""

import re

import numpy as np
import pytest
import tensorflow_datasets as tfds
from changed_package import ROOT, copied, output_of

SIZES = ["--train-size", "40", "--validation", "20", "--test-size", "10"]
PROGRAM = """
import sys
import tfresidual_cli
tfresidual_cli.main(["data", "fashion_mnist", "--data-dir", ".", "--to", "a.npz", *sys.argv[1:]])
tfresidual_cli.main(
    ["train", "--data-file", "a.npz", "--recipe", "fashion_mnist", "--depth", "8", "--epochs", "1"]
)
import numpy as np
from tfresidual import datasets, training
described = datasets.describe("fashion_mnist")
print(described.title, described.chance_error, training.recipe("fashion_mnist").epochs)
images = datasets.load_file("a.npz", pixels="0-255", shuffle=False)[1].images
print(images[:, 0, 0, 0].tolist())
"""


@pytest.mark.system
def test_a_data_set_is_one_description(tmp_path):
    site = copied(tmp_path)
    page = (ROOT / "docs" / "howto" / "add_data.md").read_text()
    (description,) = re.findall(r"```py\n(.*?)```", page, re.S)
    path = site / "tfresidual" / "definitions" / "data_sets.py"
    whole = path.read_text()
    path.write_text(whole.replace("_DATA_SETS = (\n", f"_DATA_SETS = (\n{description},", 1))
    assert path.read_text() != whole
    # Image i of 60 has the grey level i.
    builder = tfds.builder("fashion_mnist", data_dir=tmp_path)
    builder.data_path.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, 100)
    writer.initialize_splits(["train", "test"])
    for split in ("train", "test"):
        pixels = (np.full((28, 28, 1), level, np.uint8) for level in range(60))
        writer.add_examples({split: [{"image": one, "label": 3} for one in pixels]})
    writer.close_all()

    printed = output_of(PROGRAM, SIZES, site)
    assert "classes: 10, chance error 90.0%\n" in printed
    assert (tmp_path / "runs" / "resnet-fashion_mnist" / "model.keras").exists()
    *_, described, images = printed.splitlines()
    assert described == "Fashion-MNIST 0.9 400"
    # Those held out are the last.
    assert images == str(list(range(40, 60)))
