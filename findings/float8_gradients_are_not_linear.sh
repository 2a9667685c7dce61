#!/usr/bin/env bash
# Gradients of a float8 layer do not double when the loss doubles.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: the gradient of 1,000 times the loss is 1,000 times the gradient of the loss, up to
#           rounding (float8 in e5m2 rounds by up to 12 %).
# Seen:     after training, the scale of the gradients is that of the training steps, and larger
#           gradients are cut off: that of 1,000 times the loss is 0.012 of what it should be.
# Why it matters: gradients per image from the sum of the losses, instead of their mean as in training,
#           are cut off by the batch size; so are scaled losses. Cosines with such gradients are
#           wrong without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow
"$folder/venv/bin/python" - <<'PYTHON'
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
inputs = keras.Input((16,))
state = keras.layers.Dense(16, name="first", activation="tanh")(inputs)
outputs = keras.layers.Dense(1, name="last")(state)
model = keras.Model(inputs, outputs)
model.get_layer("first").quantize("float8")
images = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
labels = images[:, :1] * 2
model.compile("sgd", "mse")
model.fit(images, labels, epochs=3, verbose=0)


@tf.function(autograph=False)
def gradient(images, labels, factor):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        loss = factor * tf.reduce_mean((model(images, training=False) - labels) ** 2)
    return tape.gradient(loss, images)


images, labels = tf.constant(images), tf.constant(labels)
once, often = (np.linalg.norm(gradient(images, labels, f)) for f in (1.0, 1000.0))
ratio = float(often / once / 1000)
print(f"norm of the gradient of 1,000 times the loss, over 1,000 times that of the loss: {ratio:.3f}")
assert ratio < 0.8, "float8 gradients are not cut off now"
PYTHON
