#!/usr/bin/env bash
# TensorFlow's profiler counts the body of a loop once, however often it runs.
#
# Versions: tensorflow 2.21.0, Keras 3.15.1 (Linux, CPU).
# Expected: an LSTM over 20 steps has twice the float operations of one over 10 steps.
# Seen:     the same number for 5, 10 and 20 steps (468 for an LSTM of 4 units on 4 features),
#           without a warning that a loop is in the graph.
# Why it matters: FLOPs of networks with recurrent layers, `keras.ops.while_loop` or `map_fn` are too
#           small by the number of steps, so that what taking out a block saves is too small as
#           well.
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
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2_as_graph,
)


def flops(steps):
    inputs = keras.Input((steps, 4), batch_size=1)
    model = keras.Model(inputs, keras.layers.LSTM(4)(inputs))
    compiled = tf.function(lambda x: model(x, training=False), autograph=False)
    concrete = compiled.get_concrete_function(tf.TensorSpec((1, steps, 4)))
    _, definition = convert_variables_to_constants_v2_as_graph(concrete)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        return tf.compat.v1.profiler.profile(graph, options=options).total_float_ops


counts = {steps: flops(steps) for steps in (5, 10, 20)}
print(counts)
assert counts[5] > 0 and len(set(counts.values())) == 1, "loops are counted otherwise now"
PYTHON
