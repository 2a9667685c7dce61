#!/usr/bin/env bash
# A model with `MultiHeadAttention` that `quantize` made smaller is saved to a file that does not open.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: `keras.saving.load_model` opens what `model.save` wrote, as it does for a quantized model
#           of `Dense` layers.
# Seen:     a `ValueError`: query, key, value and output projections expect 2 variables and receive 0.
#           The file says of each layer of the model what its dtype policy is, and nothing of the
#           layers inside of one, which are built as if they had not been quantized.
# Why it matters: the file is found to be of no use when the trained network is gone. A
#           `DTypePolicyMap` as `dtype_policy` of the attention layer, before it is saved, is kept.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import keras
import numpy as np
from keras import layers

values = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


def opens(branch, mode, with_map=False):
    """Returns whether the file of a quantized model opens, to a model that computes the same."""
    inputs = keras.Input((6, 8))
    model = keras.Model(inputs, layers.Dense(3)(branch(inputs)))
    model.quantize(mode)
    if with_map:
        layer = model.layers[1]
        parts = [one for one in layer._flatten_layers(include_self=False) if one.weights]
        policies = {one.path: one.dtype_policy for one in parts}
        layer.dtype_policy = keras.dtype_policies.DTypePolicyMap(layer.dtype_policy, policies)
    model.save("model.keras")
    try:
        again = keras.saving.load_model("model.keras")
    except ValueError as error:
        print(mode, type(error).__name__, str(error).splitlines()[2])
        return False
    np.testing.assert_allclose(again(values), model(values), rtol=1e-5, atol=1e-6)
    return True


def attention(state):
    return layers.MultiHeadAttention(2, 4)(state, state)


for mode in ("int8", "int4"):
    seen = [opens(layers.Dense(8), mode), opens(attention, mode), opens(attention, mode, True)]
    print(mode, dict(zip(("Dense", "MultiHeadAttention", "with a map"), seen)))
    assert seen == [True, False, True], "files of quantized attention open now"
PYTHON
