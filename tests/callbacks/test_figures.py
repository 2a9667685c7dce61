"""The figures of probes as TensorBoard reads them, and that nothing else changes.

Not covered: TensorBoard itself, which need not be installed.
"""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from reference.random_network import random_batch, random_network

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
