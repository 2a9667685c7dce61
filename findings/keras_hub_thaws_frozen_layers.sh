#!/usr/bin/env bash
# A keras-hub model that is saved and loaded forgets which of its layers were frozen.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1, keras-hub 0.32.0 (Linux, CPU).
# Expected: `keras.saving.load_model` of a `.keras` file gives as many trainable weights as were
#           saved: a functional Keras model keeps `trainable=False` of its layers.
# Seen:     a BERT backbone with its first layer frozen has 23 trainable weights of 39 before, and
#           39 after; a plain functional model keeps the frozen layer.
# Why it matters: fine-tuning that is resumed from a file, or from a copy by configuration, trains
#           layers that were frozen, without a word; numbers of probes over training then mean
#           something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1 keras-hub==0.32.0
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow
"$folder/venv/bin/python" - <<'PYTHON'
import keras
import keras_hub

backbone = keras_hub.models.BertBackbone(
    vocabulary_size=50,
    num_layers=2,
    num_heads=2,
    hidden_dim=8,
    intermediate_dim=16,
    max_sequence_length=16,
)
backbone.get_layer("transformer_layer_0").trainable = False

inputs = keras.Input((4,))
state = keras.layers.Dense(4, name="frozen")(inputs)
plain = keras.Model(inputs, keras.layers.Dense(2)(state))
plain.get_layer("frozen").trainable = False


def counts(model):
    model.save("model.keras")
    loaded = keras.saving.load_model("model.keras")
    return len(model.trainable_weights), len(loaded.trainable_weights), len(model.weights)


print("functional: before, after, of", counts(plain))
print("keras-hub:  before, after, of", counts(backbone))
assert counts(plain) == (2, 2, 4)
before, after, whole = counts(backbone)
assert before < after == whole, "frozen layers stay frozen now"
PYTHON
