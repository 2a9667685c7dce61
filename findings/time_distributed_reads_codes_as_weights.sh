#!/usr/bin/env bash
# After `quantize("int8")`, `TimeDistributed(Dense)` multiplies with the integer codes of its kernel.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: outputs as before, but for rounding, as those of the same `Dense` without the wrapper,
#           which computes the same; or a warning, as for layers that cannot be quantized.
# Seen:     the kernel is int8, and the outputs are over 100 times as large, without a warning. The
#           wrapper calls `layer.call`, while only `layer.__call__` goes to the quantized computation.
# Why it matters: a network that is quantized as a whole answers at random, and nothing says so; the
#           layer around has to be compared before and after.
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
from keras import layers

values = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


def change(layer):
    """Returns the largest output before, and the largest change by quantization."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 8))
    model = keras.Model(inputs, layer(inputs))
    before = np.asarray(model(values))
    model.quantize("int8")
    return np.abs(before).max(), np.abs(np.asarray(model(values)) - before).max()


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    bare, wrapped = change(layers.Dense(8)), change(layers.TimeDistributed(layers.Dense(8)))
said = {str(one.message) for one in caught if "quantize" in str(one.message)}
print(f"Dense: outputs up to {bare[0]:.3f}, changed by up to {bare[1]:.3f}")
print(f"TimeDistributed(Dense): outputs up to {wrapped[0]:.3f}, changed by up to {wrapped[1]:.3f}")
print(said)
assert bare[1] < 0.05 * bare[0]
assert wrapped[1] > 100 * wrapped[0], "the wrapper goes to the quantized computation now"
PYTHON
