"""SavedModels of chains with a context, with several inputs, ids, and outputs per position.

What their signatures and chains compute is in `test_writer.py` and `test_reader.py`.
"""

import dataclasses
import json

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.chains_with_context import chain_per_position, data_per_position
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import Block, Chain, Stage
from tfresidual.routing.losses import loss_of
from tfresidual.sources.saved_model.format import LAYOUT_FILE


class OwnLoss(keras.losses.Loss):
    """One loss per position, which ignores a class as losses of Keras do."""

    ignore_class = 1

    def call(self, labels, outputs):
        classes = tf.one_hot(tf.cast(labels, tf.int32), outputs.shape[-1])
        return tf.reduce_sum(tf.square(classes - outputs) * tf.range(1.0, 4.0), axis=-1)


@pytest.mark.system
def test_a_loss_per_position_is_written(tmp_path):
    model = keras.Sequential([keras.layers.Input((None, 3))])
    model.compile(loss=OwnLoss())
    chain = dataclasses.replace(chain_per_position(), loss=loss_of(model))
    tfr.export(chain, tmp_path / "net")
    layout = json.loads((tmp_path / "net" / LAYOUT_FILE).read_text())
    assert layout["loss"] is None
    assert "loss/positions" in layout["pieces"]
    opened, (images, labels) = tfr.chain(tmp_path / "net"), data_per_position()
    for probe in (probes.block_metrics, probes.readout):
        frames = [probe(of, (images, labels)) for of in (opened, chain)]
        pd.testing.assert_frame_equal(*frames, rtol=1e-5)
    left_out = probes.readout(opened, (images, np.where(labels == 1, -1, labels)))
    assert left_out.equals(frames[0])
    outputs, labels = opened(tensors(images)), tf.constant(labels)
    losses = [opened.loss(given, outputs) for given in (labels, labels[..., None])]
    np.testing.assert_array_equal(*losses)
    np.testing.assert_allclose(losses[0], chain.loss(labels, outputs), rtol=1e-5)


def tensors(images):
    return keras.tree.map_structure(tf.constant, images)


# A model of Keras as the network itself


def masked_model():
    """A model with attention, which reads the padding mask."""
    keras.utils.set_random_seed(1)
    ids, mask = (keras.Input((None,), dtype="int32", name=n) for n in ("ids", "padding_mask"))
    state, allowed = keras.layers.Embedding(7, 8)(ids), keras.ops.cast(mask, "bool")[:, None, :]
    for _ in range(2):
        normal = keras.layers.LayerNormalization()(state)
        attend = keras.layers.MultiHeadAttention(2, 4)
        state = state + attend(normal, normal, attention_mask=allowed)
    return keras.Model({"ids": ids, "padding_mask": mask}, keras.layers.Dense(3)(state[:, 0]))


MASKED = {
    "ids": np.arange(12, dtype="int32").reshape(2, 6) % 7,
    "padding_mask": np.array([[1] * 6, [1, 1, 1, 0, 0, 0]]),
}


@pytest.mark.system
def test_serving_is_predict_masks_included(tmp_path):
    model = masked_model()
    with refused("inputs"):
        tfr.export(model, tmp_path / "net")
    tfr.export(model, tmp_path / "net", inputs=MASKED)
    serve = tf.saved_model.load(str(tmp_path / "net")).signatures["serving_default"]
    rng = np.random.default_rng(0)
    for positions in (4, 9):
        lengths = rng.integers(1, positions + 1, 5)
        images = {
            "ids": rng.integers(0, 7, (5, positions), "int32"),
            "padding_mask": (np.arange(positions) < lengths[:, None]).astype("int32"),
        }
        outputs = serve(**tensors(images))["outputs"]
        expected = model.predict(images, verbose=0)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    # The masks matter.
    everything = images | {"padding_mask": np.ones_like(images["padding_mask"])}
    assert np.abs(outputs - model.predict(everything, verbose=0)).max() > 1e-3


def test_a_chain_that_loses_the_mask_is_refused(tmp_path):
    chain = tfr.chain(masked_model())

    def without(images):
        context = chain.context(images)
        return context | {name: tf.ones_like(value) for name, value in context.items()}

    lost = dataclasses.replace(chain, context=without, compiled={})
    with refused("chain"):
        tfr.export(lost, tmp_path / "net", probing=False, inputs=MASKED)
    assert not list(tmp_path.iterdir())


# Inputs by name


def small_chain(input_shape, input_dtype, **settings):
    """A chain that adds up all its inputs."""

    def stem(images):
        parts = keras.tree.flatten(images)
        sums = [tf.reduce_sum(tf.cast(part, tf.float32), range(1, part.ndim)) for part in parts]
        return tf.stack(sums, axis=1)

    return Chain(
        name="sum",
        stem=stem,
        stages=(Stage(1, (Block(1, 0, True, lambda state: 2 * state),)),),
        head=tf.identity,
        loss=lambda labels, outputs: tf.reduce_sum(tf.square(outputs - labels), -1),
        input_shape=input_shape,
        input_dtype=input_dtype,
        outputs="values",
        **settings,
    )


# The names of inputs, and the format


@pytest.mark.parametrize("key", ["labels", "times", "two words", "0", "größe", ""])
def test_inputs_whose_name_no_argument_can_have(tmp_path, key):
    chain = small_chain({key: (2,), "b": (2,)}, {key: "float32", "b": "float32"})
    with refused("net"):
        tfr.export(chain, tmp_path / "net")
    if key in ("labels", "times"):
        tfr.export(chain, tmp_path / "net", probing=False)
    assert (tmp_path / "net").exists() == (key in ("labels", "times"))
