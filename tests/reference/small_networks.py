"""Small networks and images, to be saved."""

import keras
import numpy as np
from keras import layers

BFLOAT16 = "mixed_bfloat16"


def functional_network(dtype="float32"):
    """A model by hand, with a layer that nobody else knows."""

    class Gate(layers.Layer):
        def build(self, shape):
            self.gate = self.add_weight(shape=shape[-1:], initializer="random_normal", name="gate")

        def call(self, inputs):
            return inputs * keras.ops.sigmoid(self.gate)

    def convolution(channels, size, strides=1):
        return layers.Conv2D(channels, size, strides, padding="same", dtype=dtype)

    inputs = keras.Input((8, 8, 3))
    state = convolution(3, 3)(inputs)
    for channels, strides in ((3, 1), (4, 2), (4, 1)):
        branch = layers.BatchNormalization(dtype=dtype)(state)
        branch = layers.Activation("relu", dtype=dtype)(branch)
        shortcut = state if strides == 1 else convolution(channels, 1, strides)(branch)
        branch = Gate(dtype=dtype)(convolution(channels, 3, strides)(branch))
        state = branch + shortcut
    state = layers.GlobalAveragePooling2D(dtype=dtype)(state)
    outputs = layers.Dense(5, activation="softmax", dtype="float32")(state)
    return keras.Model(inputs, outputs, name="functional")


def small_network(activation="softmax", classes=3, loss=None, scale=1.0):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(2, 3, padding="same")(inputs)
    state = state + layers.Conv2D(2, 3, padding="same", activation="relu")(state)
    state = layers.GlobalAveragePooling2D()(state)
    model = keras.Model(inputs, layers.Dense(classes, activation=activation)(state), name="small")
    model.layers[-1].kernel.assign(scale * model.layers[-1].kernel)
    if loss is not None:
        model.compile("sgd", loss)
    return model


def small_images(images=4):
    return np.random.default_rng(0).normal(size=(images, 4, 4, 1)).astype("float32")
