#!/usr/bin/env bash
# On TensorFlow, `keras.ops.map` and recurrent layers call their function once more than there are elements.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: one call per element or step, as `tf.map_fn` and `unroll=True` make.
# Seen:     4 calls for 3 rows and for 3 steps; the additional one is on the first element.
# Why it matters: statistics, counters and seeds inside of a mapped or recurrent block move once more
#           than they should, and differ from those of the unrolled block.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow
"$folder/venv/bin/python" - <<'PYTHON'
import keras
import tensorflow as tf

calls = keras.Variable(0.0, trainable=False)


def double(row):
    calls.assign_add(1.0)
    return 2 * row


class Cell(keras.layers.Layer):
    state_size = output_size = 2

    def call(self, inputs, states):
        calls.assign_add(1.0)
        return states[0], [states[0] + inputs]


def counted(function, shape):
    calls.assign(0.0)
    tf.function(function, autograph=False)(tf.ones(shape))
    return float(calls)


seen = {
    "keras.ops.map": counted(lambda x: keras.ops.map(double, x), (3, 2)),
    "tf.map_fn": counted(lambda x: tf.map_fn(double, x), (3, 2)),
    "RNN": counted(keras.layers.RNN(Cell()), (1, 3, 2)),
    "RNN, unrolled": counted(keras.layers.RNN(Cell(), unroll=True), (1, 3, 2)),
}
print(seen)
assert list(seen.values()) == [4, 3, 4, 3], "calls are counted otherwise now"
PYTHON
