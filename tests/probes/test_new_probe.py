"""The steps of CONTRIBUTING.md, applied to a copy of the package."""

import re

import pandas as pd
import pytest
from changed_package import ROOT, copied, output_of
from reference.random_network import random_network

import tfresidual as tfr

# A data set is added in every run, in the same way.
pytestmark = pytest.mark.nightly

# A path in bold or at its first mention, and the code below it.
STEP = re.compile(r"`((?:tfresidual|callbacks)/[\w/]+\.py)`[^`]*?```python\n(.*?)```", re.S)

PROBED = """
import sys
import tfresidual_cli
tfresidual_cli.main(sys.argv[1:])
import numpy as np
import tfresidual as tfr
from tfresidual import callbacks
from tfresidual.probes import running
from tfresidual.plots.declared import study_figures
from tfresidual.report.study import study_sections

net = tfr.networks.ResidualNetwork((8, 8, 1), 10, blocks=2, widths=(4,))
net.compile("sgd", "sparse_categorical_crossentropy")
data = np.ones((4, 8, 8, 1), "float32"), np.zeros(4, int)
history = net.fit(*data, callbacks=[callbacks.StateRank(data)], verbose=0).history
print(sorted(key for key in history if "rank" in key))
chain = tfr.chain(net)
frames = running.run("state_rank", chain, {"test": data}, None)
(section,) = study_sections(frames, study_figures(frames, 0.1))
print(section.title)
"""


def test_a_probe_is_added_in_a_few_steps(tmp_path):
    site = copied(tmp_path)
    steps = STEP.findall((ROOT / "CONTRIBUTING.md").read_text())
    for name, code in steps:
        path = site / (name if name.startswith("tfresidual/") else f"tfresidual/{name}")
        if path.name == "probes.py":
            path.write_text(f"{path.read_text()}\n\n{code}")
        elif path.name in ("__init__.py", "block_probes.py"):
            add(path, code)
        else:
            assert not path.exists()
            path.write_text(code)
    assert len(steps) == 4
    # Images of Digitclutter have several labels.
    settings = {"classes": 10, "blocks": 1, "classifier_activation": "sigmoid"}
    net = random_network(input_shape=(32, 32, 1), **settings)
    net.save(tmp_path / "net.keras")

    command = ["probe", "net.keras", "--data", "digitclutter", "--probe", "state_rank"]
    command += ["--data-dir", "data", "--test-size", "40", "--images", "40", "--out", "out"]
    printed = output_of(PROBED, command, site)
    frame = pd.read_csv(tmp_path / "out" / "state_rank.csv")
    assert frame["state_rank"].ge(1).all() and len(frame) == len(tfr.chain(net).blocks)
    assert (tmp_path / "out" / "state_rank.png").stat().st_size > 0
    *_, keys, title = printed.splitlines()
    assert keys == "['stage1/block0/state_rank', 'stage1/block1/state_rank']"
    assert title == "How many directions do the states use?"


def add(path, code):
    """Adds an import or a class to a file, and its name to `__all__`."""
    name = re.search(r"(?: import |class )(\w+)", code)[1]
    text = path.read_text().replace("\n\n__all__ = [\n", f'\n\n__all__ = [\n    "{name}",\n', 1)
    if code.startswith("class "):
        text += f"\n\n{code}"
    else:
        text = text.replace("\n\n__all__", f"\n{code}\n__all__", 1)
    assert text.count(name) >= 2
    path.write_text(text)
