#!/usr/bin/env bash
# `SwapEMAWeights` leaves the averages in the model after `predict`.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: `predict(callbacks=[SwapEMAWeights()])` uses the moving averages of the weights and
#           puts the weights back afterwards, as `evaluate` with it does.
# Seen:     after `predict`, the model keeps the averages; within `fit`, training goes on from
#           them. `evaluate` puts the weights back, up to rounding.
# Why it matters: predictions, or states, of the averaged network at the end of an epoch change the
#           training that they look at.
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

images = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), "mse")
changes = {}


class Look(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for name, arguments in (("evaluate", (images, images)), ("predict", (images,))):
            before = self.model.get_weights()[0]
            averages = [keras.callbacks.SwapEMAWeights()]
            getattr(self.model, name)(*arguments, verbose=0, callbacks=averages)
            changes[name] = float(np.abs(self.model.get_weights()[0] - before).max())


model.fit(images, images, epochs=2, verbose=0, callbacks=[Look()])
print("largest change of a weight:", changes)
assert changes["evaluate"] < 1e-6 < changes["predict"], "weights are put back now"
PYTHON
