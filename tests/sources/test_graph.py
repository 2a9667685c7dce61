"""Graphs of functional models: flattened, in order, and replayed.

Not covered here: what is found in them, which is in test_functional.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfresidual.sources.graph import graph_of, has_graph, replayed

pytestmark = pytest.mark.eager


def kinds_of(graph):
    return [type(node.operation).__name__ for node in graph.nodes]


def nested():
    """A model of operations, a shared layer, a nested model used twice, and one inside another."""
    inner_input = keras.Input((4,), name="inner_input")
    inner = keras.Model(inner_input, 2.0 * layers.Dense(4, name="inner_dense")(inner_input))
    around = keras.Sequential([keras.Input((4,)), inner, layers.ReLU()])
    inputs = keras.Input((4,), name="features")
    dense = layers.Dense(4, name="dense")
    state = ops.add(dense(inputs), inputs)
    state = layers.Concatenate()([inner(state), around(state), dense(state)])
    # Not on the way to the output.
    inner(around(inputs))
    return keras.Model(inputs, ops.split(state, 3, axis=-1)[1] + state[:, :4])


def test_nodes_stand_behind_those_they_need():
    graph = graph_of(nested())
    known = {id(graph.input)}
    for node in graph.nodes:
        assert {id(tensor) for tensor in node.inputs} <= known
        known |= {id(tensor) for tensor in node.outputs}
    assert id(graph.output) in known
    assert not any(isinstance(node.operation, keras.Model) for node in graph.nodes)


def test_nested_models_are_flattened():
    kinds = kinds_of(graph_of(nested()))
    assert kinds[0] == "Entry"
    assert kinds[-1] == "Add"
    # Of the model, twice of the inner one, and of the one around that.
    assert kinds.count("Entry") == 4
    assert kinds.count("Dense") == 4
    operations = [node.operation for node in graph_of(nested()).nodes]
    dense = [one for one in operations if isinstance(one, layers.Dense)]
    assert len({id(one) for one in dense}) == 2


def test_replay_is_predict():
    model = nested()
    graph = graph_of(model)
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    function = replayed(graph.nodes, graph.input, graph.output)
    expected = model.predict(rows, batch_size=5, verbose=0)
    np.testing.assert_array_equal(tf.function(function)(tf.constant(rows)), expected)
    np.testing.assert_allclose(function(rows), expected, rtol=1e-6)


def test_replaying_a_part():
    model = nested()
    graph = graph_of(model)
    values = np.ones((2, 4), "float32")
    (first,) = graph.nodes[0].outputs
    part = replayed(graph.nodes[:2], graph.input, graph.nodes[1].outputs[0])
    np.testing.assert_allclose(part(values), model.get_layer("dense")(values), rtol=1e-6)
    np.testing.assert_array_equal(replayed((), first, first)(values), values)


def test_an_unused_output_of_a_layer_and_arguments_that_are_no_tensors():
    inputs = keras.Input((6, 4))
    sequence, last = layers.GRU(3, return_sequences=True, return_state=True)(inputs)
    picked = ops.take(sequence, indices=[0, 2], axis=1)
    model = keras.Model(inputs, ops.sum(picked, axis=1) * last)
    graph = graph_of(model)
    rows = np.random.default_rng(0).normal(size=(5, 6, 4)).astype("float32")
    function = replayed(graph.nodes, graph.input, graph.output)
    np.testing.assert_allclose(function(rows), model(rows), rtol=1e-6)


def test_masks_go_along():
    inputs = keras.Input((5,), dtype="int32")
    inner = keras.Sequential([keras.Input((5,)), layers.Embedding(7, 3, mask_zero=True)])
    model = keras.Model(inputs, layers.LSTM(4)(layers.Dropout(0.1)(inner(inputs))))
    graph = graph_of(model)
    assert "Embedding" in kinds_of(graph)
    rows = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]])
    function = replayed(graph.nodes, graph.input, graph.output)
    np.testing.assert_allclose(function(rows), model(rows), rtol=1e-5)
    other = np.array([[1, 2, 3, 5, 5], [4, 5, 5, 5, 5]])
    assert np.abs(function(rows) - function(other)).max() > 1e-4


def test_training_is_overridden():
    inputs = keras.Input((4,))
    noisy = layers.Dropout(0.5)(layers.GaussianNoise(1.0)(inputs, training=True), training=True)
    model = keras.Model(inputs, noisy)
    graph = graph_of(model)
    values = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(replayed(graph.nodes, graph.input, graph.output)(values), values)
    np.testing.assert_array_equal(model.predict(values, verbose=0), values)


def test_layers_that_take_training_only_inside():
    class Outer(layers.Layer):
        def __init__(self):
            super().__init__()
            self.dropout = layers.Dropout(0.5)

        def build(self, input_shape):
            pass

        def call(self, inputs):
            return self.dropout(inputs)

    inputs = keras.Input((4,))
    graph = graph_of(keras.Model(inputs, Outer()(inputs, training=True)))
    values = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(replayed(graph.nodes, graph.input, graph.output)(values), values)


@pytest.mark.parametrize("size", [None, 12])
def test_shapes(size):
    inputs = keras.Input((size, size, 3))
    inner = keras.Sequential([keras.Input((None, None, 3)), layers.MaxPooling2D(2)])
    graph = graph_of(keras.Model(inputs, layers.Conv2D(5, 3)(inner(inputs))))
    full = size or 224
    assert graph.input.shape == (None, full, full, 3)
    assert graph.output.shape == (None, full // 2 - 2, full // 2 - 2, 5)


def test_images_of_whole_numbers():
    inputs = keras.Input((2, 2, 3), dtype="uint8")
    model = keras.Model(inputs, layers.Rescaling(1 / 255)(inputs))
    graph = graph_of(model)
    images = np.arange(12).reshape(1, 2, 2, 3)
    function = replayed(graph.nodes, graph.input, graph.output)
    for dtype in ("uint8", "float32"):
        np.testing.assert_allclose(function(images.astype(dtype)), images / 255, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Sequential", "Model"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_take_their_inputs_to_their_dtype(global_policy, kind, dtype):
    global_policy("mixed_bfloat16")
    images, layer = keras.Input((1,), dtype=dtype), layers.Identity(dtype="float32")
    inner = keras.Sequential([images, layer]) if kind == "Sequential" else None
    inner = inner or keras.Model(images, layer(images))
    inputs = keras.Input((1,), dtype="float32")
    graph = graph_of(keras.Model(inputs, inner(inputs)))
    assert [node.operation.dtype for node in graph.nodes[:2]] == ["float32", dtype]
    values = np.array([[1.001]], "float32")
    entered = replayed(graph.nodes, graph.input, graph.output)(values)
    assert entered.dtype == "float32"
    np.testing.assert_array_equal(entered, inner(values))
    np.testing.assert_array_equal(entered, [[1.0]] if dtype == "bfloat16" else values)


def test_layers_are_not_called():
    model = nested()
    config, outputs = model.get_config(), [layer.output for layer in model.layers]
    graph_of(model)
    assert model.get_config() == config
    assert all(layer.output is own for layer, own in zip(model.layers, outputs, strict=True))
    state = keras.Input((4,))
    # The next name that Keras gives is not used up.
    name = layers.Dense(1).name
    graph_of(model)
    number = int(name.rpartition("_")[2]) if "_" in name else 0
    assert layers.Dense(1).name == f"dense_{number + 1}"
    assert has_graph(keras.Model(state, layers.ReLU()(state)))


@pytest.mark.parametrize("name", ["call", "__call__"])
def test_models_that_keep_a_nested_one_whole(name):
    """What cannot be flattened is one operation of the graph."""

    class Doubled(keras.Model):
        pass

    def doubled(self, inputs, **kwargs):
        return 2 * getattr(super(Doubled, self), name)(inputs, **kwargs)

    setattr(Doubled, name, doubled)
    inner_input = keras.Input((4,))
    inner = Doubled(inner_input, layers.Dense(4)(inner_input))
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    named = keras.Model([first, second], layers.Subtract()([first, second]))
    inputs = keras.Input((4,))
    model = keras.Model(inputs, named({"a": inner(inputs), "b": inputs}))
    assert not has_graph(inner)
    graph = graph_of(model)
    kinds = [kind for kind in kinds_of(graph) if kind != "Multiply"]
    assert kinds == ["Entry", "Doubled", "Functional"]
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    function = replayed(graph.nodes, graph.input, graph.output)
    np.testing.assert_allclose(function(rows), model(rows), rtol=1e-6)


def test_nested_models_of_several_tensors():
    first, second = keras.Input((4,)), keras.Input((4,))
    pair = keras.Model([first, second], [layers.Subtract()([first, second]), 3.0 * second])
    inputs = keras.Input((4,))
    left, right = pair([layers.Dense(4)(inputs), inputs])
    model = keras.Model(inputs, pair([right, left])[0])
    graph = graph_of(model)
    assert kinds_of(graph).count("Subtract") == 2
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    function = replayed(graph.nodes, graph.input, graph.output)
    np.testing.assert_allclose(function(rows), model(rows), rtol=1e-6)
