"""Every layer in a SavedModel of TensorFlow's own, which finds variables by attributes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfresidual import layers


def block(width):
    state = keras.Input((8, 8, width))
    branch = layers.UnsharedBatchNormalization(2, share=("beta",))(state)
    branch = layers.SpectralNormalization(keras.layers.Conv2D(width, 3, padding="same"))(branch)
    return keras.Model(state, state + branch)


@pytest.mark.system
def test_saved_and_served(tmp_path):
    state = inputs = keras.Input((8, 8, 4))
    bounded = [layers.BatchNormalization(), keras.layers.Conv2D(4, 3, padding="same")]
    for layer in (
        layers.Repeated(block(4), times=3),
        layers.Bounded(bounded, 0.5),
        layers.StochasticDepth(0.5),
        layers.LayerScale(0.5),
        layers.ReZero(0.5),
        layers.ScalarBias(),
        layers.PointwiseConvolution(4),
        layers.Subsampling(8, 2),
        layers.ResidualUnit(8, multiplier="rezero", stochastic_depth=0.5),
        layers.ResidualUnit(8, lipschitz=0.5),
        layers.ResidualUnit(8, shortcut="exclusive_gate"),
    ):
        state = layer(state)
    model = keras.Model(inputs, state)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    images = rng.normal(size=(2, 8, 8, 4)).astype("f4")
    expected = model(images)
    tf.saved_model.save(model, tmp_path / "model")
    serve = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    (outputs,) = serve(tf.constant(images)).values()
    np.testing.assert_allclose(outputs, expected, atol=1e-5 * np.abs(expected).max())
