"""The figures of probes as TensorBoard reads them, and that nothing else changes.

Not covered: TensorBoard itself, which need not be installed.
"""

import io

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image
from reference.random_network import random_batch, random_network
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


@pytest.mark.system
def test_a_training_that_diverged_goes_on(tmp_path):
    net = network(rate=1e30)
    probe = callbacks.SignalPropagation(random_batch(net, images=4))
    history = fit(net, [probe, callbacks.Figures(probe, tmp_path)], epochs=2)
    assert not np.isfinite(history["loss"][-1])
    assert (1, "signal_propagation/signal_propagation") not in read(tmp_path)


def test_a_figure_that_cannot_be_drawn_is_left_out_with_a_warning(tmp_path):
    class Placeless(callbacks.ProbeCallback):
        """Measures a ratio of no block."""

        def probe(self, chain):
            self.keep(block_metrics=pd.DataFrame({"stage": [1], "l2_ratio": [0.5]}))
            return {}

        def keys(self, chain):
            return []

    net = network()
    probe = Placeless(random_batch(net, images=4))
    with pytest.warns(UserWarning, match="without figures of Placeless.*block"):
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
