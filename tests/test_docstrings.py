"""Every example in a docstring, run in one process: those of the package and of the experiments.

An example may use all that its module knows, the libraries and rooms that the README imports, and
what a reader has at that point: `net`, a small network that was trained, its `chain`, the datasets
`train` and `test`, and `images` and `labels`, one batch as arrays. It writes into a folder of its
own. Examples after `>>>` have the output that they say; those in fences run.
"""

import ast
import doctest
import importlib
import importlib.util
import os
import re
import textwrap
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfresidual
from tfresidual import callbacks, datasets, networks, plots, probes, report, training, tuning
from tfresidual.routing import routes

# What Keras says of every dataset unless told `shuffle=False`.
pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
]

LIBRARIES = {"keras": keras, "np": np, "pd": pd, "tf": tf}
ROOMS = {
    room.__name__.rpartition(".")[2]: room
    for room in (
        *(tfresidual, callbacks, datasets, networks, plots, probes),
        *(report, routes, training, tuning),
    )
} | {"tfr": tfresidual}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# The rest are nightly tests.
EVERY_RUN = (
    "tfresidual.callbacks.block_probes.Readout",
    "tfresidual.layers.spectral",
    "tfresidual.training.multi_label.MultiLabelCrossentropy",
)
PIECES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources():
    """Paths of the files to read, by the name of the module, or `None` for a script."""
    (package,) = importlib.util.find_spec("tfresidual").submodule_search_locations
    # The rooms of a checkout may be links.
    for folder, _, files in os.walk(package, followlinks=True):
        for path in sorted(Path(folder, name) for name in files if name.endswith(".py")):
            parts = ["tfresidual", *path.relative_to(package).with_suffix("").parts]
            yield ".".join(parts).removesuffix(".__init__"), path
    yield "tfresidual_cli", Path(importlib.util.find_spec("tfresidual_cli").origin)
    for path in sorted((Path(__file__).parent.parent / "experiments").glob("*.py")):
        yield None, path


def examples():
    """A `pytest.param` of module, path, line and docstring for each docstring with an example."""
    for module, path in sources():
        for piece in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(piece) if isinstance(piece, PIECES) else None
            if text and (">>>" in text or FENCE.search(text)):
                name = f"{module or path.stem}.{getattr(piece, 'name', '')}".rstrip(".")
                marks = [] if name in EVERY_RUN else [pytest.mark.nightly]
                line = getattr(piece, "lineno", 1)
                yield pytest.param(module, path, line, text, id=name, marks=marks)


EXAMPLES = sorted(examples(), key=lambda example: example.id)


@pytest.fixture(scope="module")
def network():
    """A network of three stages after a few epochs of a task that is easy, and its data."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 3
    images = (rng.normal(size=(48, 8, 8, 1)) + 2 * labels[:, None, None, None]).astype("float32")
    train, test = (
        tf.data.Dataset.from_tensor_slices((images[part], labels[part])).batch(8)
        for part in (slice(32), slice(32, 48))
    )
    net = networks.ResidualNetwork((8, 8, 1), 3, blocks=2, widths=(2, 3, 4))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    net.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    net.fit(train, epochs=40, verbose=0)
    # The indices are those of networks that do better than chance.
    assert net.evaluate(test, verbose=0)[1] > 0.5
    things = {"net": net, "train": train, "test": test}
    return things | {"images": images[:16], "labels": labels[:16]}


@pytest.fixture
def known(network, tmp_path, monkeypatch):
    """What all examples know. The network is as it was, whatever they did to it before."""
    net = network["net"]
    weights = net.get_weights()
    monkeypatch.chdir(tmp_path)
    yield LIBRARIES | ROOMS | network | {"chain": tfresidual.chain(net)}
    net.set_weights(weights)


@pytest.mark.parametrize(("module", "path", "line", "text"), EXAMPLES)
def test_example_runs(module, path, line, text, known):
    names = known | (vars(importlib.import_module(module)) if module else {})
    failures = []
    found = doctest.DocTestParser().get_doctest(text, names, path.stem, str(path), line)
    assert not any(example.options.get(doctest.SKIP) for example in found.examples)
    doctest.DocTestRunner(optionflags=OPTIONS).run(found, out=failures.append, clear_globs=False)
    assert not failures, "".join(failures)
    for _, block in FENCE.findall(text):
        exec(compile(textwrap.dedent(block), path, "exec"), names)
