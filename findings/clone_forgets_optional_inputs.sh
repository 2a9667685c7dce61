#!/usr/bin/env bash
# `keras.models.clone_model` makes an optional input a required one.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: the clone of a model with `keras.Input(..., optional=True)` takes `None` for it, as
#           the model does, and as `Model.from_config(model.get_config())` does.
# Seen:     the input of the clone is not optional; calling the clone with `None` raises an error.
# Why it matters: copies made to probe, prune or quantize a network with an optional mask or embedding
#           can no longer be called as the network is.
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


@keras.saving.register_keras_serializable()
class AddIfThere(keras.layers.Layer):
    def call(self, state, other=None):
        return state if other is None else state + other


state = keras.Input((3,), name="state")
other = keras.Input((3,), name="other", optional=True)
model = keras.Model([state, other], AddIfThere()(state, other))


def takes_none(model):
    try:
        model([np.ones((1, 3)), None])
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
        return False
    return True


rebuilt = keras.Model.from_config(model.get_config())
cloned = keras.models.clone_model(model)
seen = [takes_none(one) for one in (model, rebuilt, cloned)]
print(dict(zip(("model", "from_config", "clone_model"), seen)))
assert seen == [True, True, False], "clones keep optional inputs now"
PYTHON
