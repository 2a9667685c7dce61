"""What every declared probe does, whatever it measures."""

import contextlib
import inspect
import io
import re

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.jobs.frames import read_frame
from tfresidual.probes import running
from tfresidual.probes.running import PROBES, ProbeOptions, possible

OPTIONS = ProbeOptions(times=2, at_chance="nan", epsilon=0.1, seed=0)


@pytest.fixture(scope="module")
def nets():
    """A network in the middle of a training, one with bounded branches, and one with attention."""
    plain = random_network(blocks=(2, 1), widths=(2, 3), seed=5, shortcut="dropout")
    plain.compile("adam", "sparse_categorical_crossentropy")
    plain.optimizer.build(plain.trainable_variables)
    plain.layers[2].trainable = False
    bounded = random_network(blocks=2, widths=(4,), seed=5, lipschitz=0.9)
    inputs = keras.Input((4, 2, 3))
    state = keras.layers.Dense(4)(keras.layers.Reshape((8, 3))(inputs))
    state = keras.layers.add([state, keras.layers.MultiHeadAttention(2, 2)(state, state)])
    with_heads = keras.Model(inputs, keras.layers.Dense(5, "softmax")(state[:, 0]))
    with_heads.classes, with_heads.classifier_activation = 5, "softmax"
    return plain, bounded, with_heads


@pytest.fixture
def net(nets, name):
    """The first of the networks that the probe can be run on."""
    return next(net for net in nets if name in possible(tfr.chain(net)))


FITTED = [name for name, probe in PROBES.items() if probe.fits]
# A few, and all in nightly tests.
FEW = ("block_metrics", "readout", "effective_parameters")
every_probe = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FEW else [pytest.mark.nightly]) for name in PROBES],
)


def run(name, source, data, progress=False):
    if PROBES[name].fits and not isinstance(data, dict):
        data = {"train": data, "test": data}
    return running.run(name, tfr.chain(source), data, OPTIONS, progress)


def assert_equal(measured, expected, rtol):
    assert list(measured) == list(expected)
    for frame_name, frame in measured.items():
        pd.testing.assert_frame_equal(frame, expected[frame_name], rtol=rtol, atol=1e-5)


@every_probe
def test_compiled_it_measures_what_it_does_operation_by_operation(name, net):
    """And it is traced once, however large the batches are."""
    data, chain = random_batch(net, images=5), tfr.chain(net)
    compiled = run(name, chain, data)
    run(name, chain, random_batch(net, images=6))
    for made in chain.compiled.values():
        assert getattr(made, "experimental_get_tracing_count", lambda: 1)() == 1
    tf.config.run_functions_eagerly(True)
    try:
        eager = run(name, net, data)
    finally:
        tf.config.run_functions_eagerly(False)
    assert all(len(frame) for frame in compiled.values())
    assert_equal(compiled, eager, rtol=1e-4)
    for frame_name, frame in compiled.items():
        check_documented(name, frame_name, frame)


def check_documented(name, frame_name, frame):
    """Docstrings name every column, and what is declared of a column holds."""
    function = getattr(probes, frame_name, None)
    if function is not None:
        named = {*re.findall(r'`"?(\w+)"?`', inspect.getdoc(function)), "depth_asked_for"}
        assert {column.removesuffix("_se") for column in frame} <= named
    for column in set(PROBES[name].columns) & set(frame):
        declared, values = PROBES[name].columns[column], frame[column].dropna().astype(float)
        assert declared.at_least is None or (values > declared.at_least - 1e-6).all(), column
        assert declared.at_most is None or (values < declared.at_most + 1e-6).all(), column


@pytest.mark.eager
@every_probe
def test_splits_are_measured_one_by_one_and_the_network_is_left_as_it_was(name, net, tmp_path):
    """Nothing is printed unless progress is asked for, which changes no number; files keep all."""
    variables = [*net.variables, *getattr(getattr(net, "optimizer", None), "variables", ())]
    before = [variable.numpy() for variable in variables]
    layers = [(len(layer._inbound_nodes), layer.trainable) for layer in net.layers]
    parts = {"train": random_batch(net, images=5), "test": random_batch(net, images=7, seed=9)}
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        together = run(name, net, parts)
    assert said.getvalue() == ""
    for split, data in parts.items():
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            alone = run(name, net, data, progress=True)
        assert list(alone) == list(together)
        if name in FITTED:  # to the images of another split
            continue
        for frame_name, frame in together.items():
            if "split" in frame:  # reads images
                assert frame.columns.tolist() == ["split", *alone[frame_name].columns]
                assert frame["split"].unique().tolist() == list(parts)
                frame = frame[frame["split"] == split].drop(columns="split")
            pd.testing.assert_frame_equal(
                frame.reset_index(drop=True), alone[frame_name], rtol=1e-5, atol=1e-5
            )
    if name not in FITTED and name != "patching":  # whose sources are of the same batch
        batches = tf.data.Dataset.from_tensor_slices(data).batch(3)
        assert_equal(run(name, net, batches), alone, rtol=1e-4)
    for frame_name, frame in together.items():
        path = tmp_path / f"{frame_name}.csv"
        frame.to_csv(path, index=False)
        gaps = {column: float for column in frame if frame[column].dtype == "Int64"}
        expected = frame.astype(gaps)
        pd.testing.assert_frame_equal(read_frame(path), expected, check_dtype=False, rtol=0, atol=0)
    assert [(len(layer._inbound_nodes), layer.trainable) for layer in net.layers] == layers
    for variable, value in zip(variables, before, strict=True):
        if variable.path.split("/")[-1].startswith(("vector_of_", "known_weights")):
            continue  # of the power iteration, which a look may bring on
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.eager
@pytest.mark.parametrize("name", PROBES)
def test_data_that_never_ends_is_refused(name, net):
    if name in ("effective_parameters", "lipschitz"):
        pytest.skip("reads no images")
    endless = tf.data.Dataset.from_tensors(random_batch(net)).repeat()
    with refused("data"):
        run(name, net, endless)
