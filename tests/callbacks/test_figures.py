"""The figures of probes as TensorBoard reads them, and that nothing else changes.

Not covered: TensorBoard itself, which need not be installed.
"""

import copy
import io

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image
from reference.random_network import random_batch, random_network
from reference.unchanged import assert_same
from refusals import refused

from tfresidual import callbacks

pytestmark = pytest.mark.eager


def network(rate=0.01):
    keras.utils.set_random_seed(3)
    net = random_network(blocks=2, widths=(4,))
    net.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    return net


def fit(net, chosen, epochs=1):
    data = random_batch(net, images=8)
    return net.fit(*data, batch_size=4, epochs=epochs, verbose=0, callbacks=chosen).history


def read(folder):
    """The images in the events of a folder, by step and tag."""
    found = {}
    for path in folder.iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "images"
                width, height, content = tf.make_ndarray(value.tensor).tolist()
                image = Image.open(io.BytesIO(content))
                assert (int(width), int(height)) == image.size
                found[event.step, value.tag] = np.asarray(image.convert("RGB"))
    return found


def chosen(data):
    return [callbacks.BlockMetrics(data), callbacks.Readout(data, every=2)]


@pytest.mark.system
def test_images_have_the_epoch_and_the_name_of_the_probe(tmp_path):
    net = network()
    probes = chosen(random_batch(net, images=4, seed=1))
    fit(net, [*probes, callbacks.Figures(probes, tmp_path)], epochs=3)
    found = read(tmp_path)
    names = {"cosine_loss", "l2_ratio", "gradient_norm"}
    expected = {(step, f"block_metrics/{name}") for step in range(3) for name in names}
    assert set(found) == expected | {(1, "readout/readout")}
    first, last = found[0, "block_metrics/cosine_loss"], found[2, "block_metrics/cosine_loss"]
    assert (first != 255).mean() > 0.02
    assert (first != last).any()


@pytest.mark.system
def test_training_logs_and_frames_are_as_without_figures(tmp_path):
    results = []
    for is_drawn in (False, True):
        net = network()
        probes = chosen(random_batch(net, images=4, seed=1))
        figures = [callbacks.Figures(probes, tmp_path)] if is_drawn else []
        history = fit(net, [*probes, *figures], epochs=2)
        weights = [variable.numpy() for variable in (*net.variables, *net.optimizer.variables)]
        frames = [frame for probe in probes for frame in probe.frames.values()]
        results.append((history, frames, weights))
    (history, frames, weights), (drawn_history, drawn_frames, drawn_weights) = results
    assert history == drawn_history and len(frames) == 2
    for one, other in zip(frames, drawn_frames, strict=True):
        pd.testing.assert_frame_equal(one, other)
    assert_same(weights, drawn_weights)


def test_every_and_a_single_probe(tmp_path):
    net = network()
    probe = callbacks.Perturbation(random_batch(net, images=4), epsilon=0.3)
    fit(net, [probe, callbacks.Figures(probe, str(tmp_path / "new"), every=2)], epochs=3)
    found = read(tmp_path / "new")
    assert {step for step, _ in found} == {1}
    assert {tag for _, tag in found} >= {
        "block_metrics/perturbation",
        "block_metrics/scaled_perturbation",
        "block_metrics/computational_distance",
    }


OTHERS = {
    callbacks.Attribution: {"attribution/attribution"},
    callbacks.Borderline: {"borderline/borderline"},
    callbacks.ConvergenceIndices: {
        "convergence_indices/convergence_curves",
        "convergence_indices/route_errors",
        "drop_blocks/drop_blocks",
        "readout/readout",
    },
    callbacks.DropBlocks: {"drop_blocks/drop_blocks"},
    callbacks.Lens: {"lens/lens"},
    callbacks.SignalPropagation: {"signal_propagation/signal_propagation"},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly if i % 2 else pytest.mark.system)
        for i, kind in enumerate(OTHERS)
    ],
    ids=lambda kind: kind.__name__,
)
def test_the_figures_of_every_probe(kind, tmp_path):
    net = network()
    probe = kind(random_batch(net, images=16, seed=1))
    fit(net, [probe, callbacks.Figures(probe, tmp_path)])
    tags = {tag for _, tag in read(tmp_path)}
    # The indices themselves are undefined while the error is at chance.
    assert tags - {"convergence_indices/convergence_indices"} == OTHERS[kind]


@pytest.mark.system
@pytest.mark.compiled
def test_bounds(tmp_path):
    net = random_network(blocks=2, widths=(4,), lipschitz=0.9)
    net.compile("sgd", "sparse_categorical_crossentropy")
    probe = callbacks.Lipschitz()
    fit(net, [probe, callbacks.Figures(probe, tmp_path)])
    assert {tag for _, tag in read(tmp_path)} == {"lipschitz/lipschitz_bounds"}


def test_a_copy_draws_what_the_copied_probe_measured(tmp_path):
    net = network()
    probe = callbacks.Readout(random_batch(net, images=4))
    copies = copy.deepcopy([probe, callbacks.Figures(probe, tmp_path)])
    fit(net, copies)
    assert probe.frames == {}
    assert set(read(tmp_path)) == {(0, "readout/readout")}


@pytest.mark.system
def test_a_training_that_diverged_goes_on(tmp_path):
    net = network(rate=1e30)
    probe = callbacks.SignalPropagation(random_batch(net, images=4))
    history = fit(net, [probe, callbacks.Figures(probe, tmp_path)], epochs=2)
    assert not np.isfinite(history["loss"][-1])
    assert (1, "signal_propagation/signal_propagation") not in read(tmp_path)


def test_a_figure_that_cannot_be_drawn_is_left_out_with_a_warning(tmp_path):
    class Infinite(callbacks.ProbeCallback):
        """Measures what no figure can show."""

        def probe(self, chain):
            self.keep(block_metrics=pd.DataFrame({"stage": [1], "block": [0], "l2_ratio": np.inf}))
            return {}

        def keys(self, chain):
            return []

    net = network()
    probe = Infinite(random_batch(net, images=4))
    with pytest.warns(UserWarning, match=r"without figures of Infinite.*finite number"):
        fit(net, [probe, callbacks.Figures(probe, tmp_path)])
    assert read(tmp_path) == {}


def test_what_is_refused(tmp_path):
    probe = callbacks.Readout((np.zeros((2, 8, 8, 3)), np.zeros(2, int)))
    for probes in (None, [], 3, [keras.callbacks.History()], "readout"):
        with refused("probes"):
            callbacks.Figures(probes, tmp_path)
    with refused("log_dir"):
        callbacks.Figures(probe, 3)
    net = network()
    probe = callbacks.Readout(random_batch(net, images=4))
    figures = callbacks.Figures(probe, tmp_path / "new")
    # Probes must come first.
    for chosen in ([figures, probe], [figures]):
        with refused("probes"):
            fit(net, chosen)
    assert not (tmp_path / "new").exists()
