#!/usr/bin/env bash
# A layer that is frozen between two calls of `fit` is trained by the second one, without a word.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: a warning that the model has to be compiled again, as Keras' source has one for it, or
#           a layer that stays as it is.
# Seen:     the weights change and nothing is said: the line that would warn stands after a
#           `raise` in `_assert_compile_called`.
# Why it matters: training stages of a network one after the other, by freezing, trains all of them
#           unless `compile` is called in between.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import keras
import numpy as np

images = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
layers = [keras.layers.Dense(4, name="frozen"), keras.layers.Dense(3)]
model = keras.Sequential([keras.Input((3,)), *layers])
model.compile("sgd", "mse")
model.fit(images, images, verbose=0)
layers[0].trainable = False


def change_of_a_fit():
    before = layers[0].get_weights()[0]
    model.fit(images, images, verbose=0)
    return np.abs(layers[0].get_weights()[0] - before).max()


with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    without_compile = change_of_a_fit()
said = [str(one.message) for one in said if "trainable" in str(one.message)]
model.compile("sgd", "mse")
with_compile = change_of_a_fit()
print(f"change without compile: {without_compile:.2g}, with it: {with_compile:.2g}; warnings: {said}")
assert without_compile > 0 == with_compile and not said, "Keras says or does otherwise now"
PYTHON
