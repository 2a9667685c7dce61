#!/usr/bin/env bash
# A keras-hub model in int8 can be saved, and opened, and then not saved again.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1, keras-hub 0.32.0 (Linux, CPU).
# Expected: a model that was opened from a file can be saved, as it can without `quantize`.
# Seen:     `ValueError: Invalid dtype: object`; the model computes what it should.
# Why it matters: such a file cannot be gone on with: copied, renamed inside or stored in another
#           format. What was quantized has to be made again from the whole network.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1 keras-hub==0.32.0
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import keras
import keras_hub
import numpy as np

words = {
    "token_ids": np.ones((2, 6), int),
    "segment_ids": np.zeros((2, 6), int),
    "padding_mask": np.ones((2, 6), int),
}


def is_saved_again(is_quantized):
    model = keras_hub.models.BertBackbone(
        vocabulary_size=20,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=6,
    )
    if is_quantized:
        model.quantize("int8")
    model.save("model.keras")
    again = keras.saving.load_model("model.keras")
    for name, value in model(words).items():
        np.testing.assert_allclose(again(words)[name], value, rtol=1e-5, atol=1e-6)
    try:
        again.save("again.keras")
    except ValueError as error:
        print(type(error).__name__, error)
        return False
    return True


seen = [is_saved_again(False), is_saved_again(True)]
print(dict(zip(("float32", "int8"), seen)))
assert seen == [True, False], "what was opened can be saved again now"
PYTHON
