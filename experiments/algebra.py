"""One step of gradient descent on a linear layer against a step of its output: II, appendix A.1."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from catalogue import Network, Trained
from keras import ops

# Learning rate of the step; the layer is linear, so that the comparison holds for any.
RATE = 0.1
CLASSES, SIDE, CHANNELS = 10, 8, 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings of the comparison.

    Attributes:
        layer: `"dense"` or `"convolution"`, of 2 x 2 patches.
        seed: determines weights and the image.
    """

    layer: str
    seed: int


class Algebra(Network):
    """A linear layer with a linear head, as built; nothing is trained."""

    def train(self, folder, console=None):
        return Trained(self, folder)

    def untrained(self):
        return self

    def operations(self):
        return 0


def moves(trained):
    """How the output of the layer moves by a step on its weights, against the paper's equation 8.

    The output h = Wx + b should move by -rate (|x|^2 + 1) dL/dh, where x is what the layer sees of
    the image at one place.
    """
    setting = trained.network.settings
    layer, x = _layer_of(setting)
    head = keras.layers.Dense(CLASSES, dtype="float64")
    head.build((1, int(np.prod(layer(x).shape[1:]))))
    before = ops.convert_to_numpy(layer(x))
    of_output, of_weights = _gradients(layer, head, x)
    for variable, gradient in zip(layer.trainable_variables, of_weights, strict=True):
        variable.assign_sub(RATE * gradient)
    moved = ops.convert_to_numpy(layer(x)) - before
    expected = -RATE * (_squared_norms(setting, x) + 1) * of_output
    cosine = (moved * expected).sum() / np.linalg.norm(moved) / np.linalg.norm(expected)
    deviation = np.linalg.norm(moved - expected) / np.linalg.norm(expected)
    return pd.DataFrame({"deviation": [deviation], "cosine": [cosine]})


def _layer_of(setting):
    keras.utils.set_random_seed(setting.seed)
    image = np.random.default_rng(setting.seed).standard_normal((1, SIDE, SIDE, CHANNELS))
    if setting.layer == "dense":
        layer, x = keras.layers.Dense(16, dtype="float64"), image.reshape(1, -1)
    else:
        layer, x = keras.layers.Conv2D(16, 2, dtype="float64"), image
    layer.build(x.shape)
    return layer, x


def _squared_norms(setting, x):
    """Returns |x|^2 of what the layer sees at every place of its output."""
    if setting.layer == "dense":
        return (x**2).sum()
    ones = np.ones((2, 2, CHANNELS, 1))
    return ops.convert_to_numpy(ops.conv(x**2, ones, padding="valid"))


def _gradients(layer, head, x):
    """Returns the gradients of the loss with respect to the layer's output and its weights."""
    with tf.GradientTape() as tape:
        output = layer(x)
        tape.watch(output)
        logits = head(ops.reshape(output, (1, -1)))
        loss = keras.losses.sparse_categorical_crossentropy(np.zeros(1), logits, from_logits=True)
    of_output, of_weights = tape.gradient(loss, [output, layer.trainable_variables])
    return of_output.numpy(), of_weights
