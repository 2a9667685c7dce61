"""Batch normalization on the fused kernel against Keras' own, by hand, and with shared weights."""

import gc
import weakref

import h5py
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

from tfresidual.layers import BatchNormalization

SHAPE = (4, 5, 6, 3)
Stock = keras.layers.BatchNormalization


def data(shape=SHAPE, seed=0, dtype="float32"):
    """Features of different means and scales per channel."""
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.cast(values * np.arange(1, shape[-1] + 1) + 2, dtype)


def pair(shape=SHAPE, **kwargs):
    """Our layer and the stock one, built, with the same random weights."""
    layers = [layer_class(**kwargs) for layer_class in (BatchNormalization, Stock)]
    for layer in layers:
        layer.build(shape)
    rng = np.random.default_rng(1)
    values = [rng.uniform(0.5, 1.5, weight.shape) for weight in layers[1].weights]
    for layer in layers:
        layer.set_weights(values)
    return layers


def step(layer, inputs, **kwargs):
    """Outputs of one training step, and the gradients of a weighted sum of their squares."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True, **kwargs)
        weights = tf.cast(data(outputs.shape, seed=7), outputs.dtype)
        loss = tf.reduce_sum(weights * outputs**2)
    # reduce_sum over nothing: a layer without gamma and beta has no trainable weights
    return outputs, tape.gradient(loss, [inputs, *layer.trainable_weights])


def assert_equal(ours, theirs, tolerance=1e-5):
    """Relative to the largest value of each array."""
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == their.dtype
        our, their = (np.asarray(tf.cast(array, "float64")) for array in (our, their))
        assert our.shape == their.shape
        assert np.abs(our - their).max() <= tolerance * max(np.abs(their).max(), 1e-3)


def assert_same_layer(ours, theirs, inputs, tolerance=1e-5, **kwargs):
    """Outputs, gradients and statistics of two training steps, and inference before and after."""
    assert_equal([ours(inputs, **kwargs)], [theirs(inputs, **kwargs)], tolerance)
    for _ in range(2):
        our_outputs, our_gradients = step(ours, inputs, **kwargs)
        their_outputs, their_gradients = step(theirs, inputs, **kwargs)
        assert_equal([our_outputs], [their_outputs], tolerance)
        # An input's gradient is a difference of terms as large as this.
        assert_equal(our_gradients, their_gradients, 20 * tolerance)
        assert_equal(ours.weights, theirs.weights, tolerance)
    assert_equal([ours(inputs, **kwargs)], [theirs(inputs, **kwargs)], tolerance)


def uses_fused_kernel(layer, inputs, training, **kwargs):
    graph = tf.function(lambda x: layer(x, training=training, **kwargs)).get_concrete_function(
        inputs
    )
    definition = graph.graph.as_graph_def()
    functions = definition.library.function
    nodes = [*definition.node, *(node for function in functions for node in function.node_def)]
    return any("FusedBatchNorm" in node.op for node in nodes)


# Arguments, shape, and whether the fused kernel is used.
CASES = {
    "default": ({}, SHAPE, True),
    "axis 3": ({"axis": 3}, SHAPE, True),
    "without gamma": ({"scale": False}, SHAPE, True),
    "without beta": ({"center": False}, SHAPE, True),
    "without both": ({"scale": False, "center": False}, SHAPE, True),
    "momentum and epsilon": ({"momentum": 0.7, "epsilon": 0.1}, SHAPE, True),
    "synchronized over one replica": ({"synchronized": True}, SHAPE, True),
    "bfloat16": ({"dtype": "mixed_bfloat16"}, SHAPE, True),
    "float16": ({"dtype": "mixed_float16"}, SHAPE, True),
    # Bessel's correction divides by zero at one pixel.
    "one pixel": ({}, (1, 1, 1, 3), True),
    "two pixels": ({}, (2, 1, 1, 3), True),
    "one channel": ({}, (1, 2, 2, 1), True),
    "rank 2": ({}, (6, 3), False),
    "rank 3": ({}, (4, 5, 3), False),
    "rank 5": ({}, (4, 2, 3, 2, 3), False),
    "axis 1": ({"axis": 1}, SHAPE, False),
    "axis 2": ({"axis": 2}, SHAPE, False),
    "float64": ({"dtype": "float64"}, SHAPE, False),
    "weights in bfloat16": ({"dtype": "bfloat16"}, SHAPE, False),
    "renorm": ({"renorm": True}, SHAPE, False),
    "small epsilon": ({"epsilon": 1e-6}, SHAPE, False),
}
# Keras computes in float32 and rounds at the end, the kernel too: outputs are a last place apart.
TOLERANCES = {"bfloat16": 2**-7, "float16": 2**-10}


@pytest.mark.parametrize("case", CASES)
def test_is_the_stock_layer(case):
    kwargs, shape, is_fused = CASES[case]
    ours, theirs = pair(shape, **kwargs)
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    names = {"name": ours.name}
    assert ours.get_config() == theirs.get_config() | names
    inputs = data(shape, dtype=ours.compute_dtype)
    tolerance = TOLERANCES.get(case, 1e-5) if is_fused else 1e-6
    assert_same_layer(ours, theirs, inputs, tolerance)
    assert np.isfinite(np.asarray(ours.moving_variance, "f4")).all()
    for training in (True, False):
        assert uses_fused_kernel(ours, inputs, training=training) == is_fused
    assert not uses_fused_kernel(theirs, inputs, training=True)


def test_by_hand():
    x = np.asarray(data())
    layer = BatchNormalization(momentum=0.9)
    layer.build(SHAPE)
    layer.gamma.assign([1.0, 2.0, 3.0])
    layer.beta.assign([0.0, 1.0, -1.0])
    outputs = np.asarray(layer(x, training=True))
    pixels = x.astype("float64").reshape(-1, 3)
    mean = np.array([sum(channel) / len(channel) for channel in pixels.T])
    # Divided by the number of pixels, without Bessel's correction.
    variance = np.array(
        [np.dot(c - m, c - m) / len(c) for c, m in zip(pixels.T, mean, strict=True)]
    )
    expected = (x - mean) / np.sqrt(variance + 1e-3) * [1, 2, 3] + [0, 1, -1]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, 0.9 + 0.1 * variance, rtol=1e-5)
    expected = (x - 0.1 * mean) / np.sqrt(0.901 + 0.1 * variance) * [1, 2, 3] + [0, 1, -1]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


def penalty(layer, inputs, training):
    """The weighted squares of the gradient of a loss, in one number."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=training)
        loss = tf.reduce_sum(tf.sin(outputs) * data(seed=3, dtype=inputs.dtype))
    (gradient,) = tape.gradient(loss, [inputs])
    return tf.reduce_sum(gradient**2 * data(seed=4, dtype=inputs.dtype))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_second_order_gradients_are_those_of_finite_differences(training, scale):
    """Not compared with the stock layer: in training its own are wrong.

    Keras' moments go through `tf.nn.moments`, which stops the gradient at the mean: right to
    first order only.
    """
    ours, _ = pair(scale=scale, momentum=1.0)
    _, exact = pair(scale=scale, momentum=1.0, dtype="float64")
    x = data()
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = penalty(ours, x, training)
    gradient = np.asarray(tape.gradient(value, x), "float64")
    assert uses_fused_kernel(ours, x, training=training)
    x = tf.cast(x, "float64")
    for seed in range(5):
        direction = np.random.default_rng(seed).normal(size=SHAPE)
        ahead, behind = (penalty(exact, x + s * direction, training) for s in (1e-5, -1e-5))
        expected = float(ahead - behind) / 2e-5
        assert np.sum(gradient * direction) == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_frozen_layer_uses_and_keeps_the_moving_statistics():
    ours, theirs = pair()
    before, x = ours.get_weights(), data()
    ours.trainable = theirs.trainable = False
    outputs = ours(x, training=True)
    for training in (False, None):
        np.testing.assert_array_equal(outputs, ours(x, training=training))
    assert_equal([outputs], [theirs(x, training=True)])
    with keras.StatelessScope():
        ours.trainable = True
        ours(x, training=True)
    for new, old in zip(ours.get_weights(), before, strict=True):
        np.testing.assert_array_equal(new, old)
    theirs.trainable = True
    assert_same_layer(ours, theirs, x)


def model_of(layer_class):
    layers = [layer_class(), keras.layers.Conv2D(2, 1), layer_class(scale=False)]
    return keras.Sequential([keras.Input(SHAPE[1:]), *layers])


@pytest.mark.parametrize(
    "source, target", [(BatchNormalization, Stock), (Stock, BatchNormalization)]
)
def test_weight_files_are_exchanged_with_the_stock_layer(source, target, tmp_path):
    saved, loaded = model_of(source), model_of(target)
    rng = np.random.default_rng(0)
    saved.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in saved.weights])
    saved.save_weights(tmp_path / "model.weights.h5")
    loaded.load_weights(tmp_path / "model.weights.h5")
    for one, other in zip(saved.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert_equal([loaded(data())], [saved(data())])


# Weights of another layer


SHARED = [
    ((), set()),
    (("statistics",), {"moving_mean", "moving_variance"}),
    (("beta",), {"beta"}),
    (("gamma", "beta"), {"gamma", "beta"}),
    (("gamma", "beta", "statistics"), {"gamma", "beta", "moving_mean", "moving_variance"}),
]


def sharing(other, parts):
    """A layer that holds weights of another one, and draws its own again."""
    layer = BatchNormalization(name="sharing")
    layer.share(other, parts)
    layer.build(SHAPE)
    rng = np.random.default_rng(2)
    for weight in layer.weights:
        if all(weight is not theirs for theirs in other.weights):
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
    return layer


@pytest.mark.parametrize(("parts", "expected"), SHARED, ids=lambda v: "-".join(sorted(v)))
def test_shares_the_weights_asked_for(parts, expected, tmp_path):
    other, _ = pair()
    before = {weight.name: weight.numpy() for weight in other.weights}
    layer = sharing(other, parts)
    names = ("gamma", "beta", "moving_mean", "moving_variance")
    assert [weight.name for weight in layer.weights] == list(names)
    assert {name for name in names if getattr(layer, name) is getattr(other, name)} == expected
    assert len(layer.trainable_weights) == len(layer.non_trainable_weights) == 2
    # The other layer is none of its parts, and as it was.
    assert list(layer._flatten_layers(include_self=False)) == []
    for weight in other.weights:
        np.testing.assert_array_equal(weight, before[weight.name])
    # It computes with what it holds, as a stock layer with these values does.
    stock = Stock()
    stock.build(SHAPE)
    stock.set_weights(layer.get_weights())
    assert_same_layer(layer, stock, data())
    for weight in other.weights:
        is_moved = np.any(weight.numpy() != before[weight.name])
        assert is_moved == (weight.name in expected and weight.name.startswith("moving"))


@pytest.mark.parametrize(("parts", "expected"), SHARED, ids=lambda v: "-".join(sorted(v)))
def test_files_hold_shared_weights_once(parts, expected, tmp_path):
    def model_of_two():
        inputs = keras.Input(SHAPE[1:])
        first = BatchNormalization(name="first")
        features = first(inputs)
        second = BatchNormalization(name="second")
        second.share(first, parts)
        return keras.Model(inputs, second(features))

    saved, loaded = model_of_two(), model_of_two()
    rng = np.random.default_rng(0)
    for weight in saved.weights:
        weight.assign(rng.uniform(0.5, 1.5, weight.shape))
    assert len(saved.weights) == 8 - len(expected)
    saved.save_weights(tmp_path / "model.weights.h5")
    loaded.load_weights(tmp_path / "model.weights.h5")
    for one, other in zip(saved.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)
    with h5py.File(tmp_path / "model.weights.h5") as file:
        arrays = []
        file.visititems(lambda name, item: arrays.append(name) if hasattr(item, "size") else None)
    assert len(arrays) == len(saved.weights)


# What each channel is multiplied by


SLOPES = {
    "default": ({}, SHAPE),
    "without gamma": ({"scale": False}, SHAPE),
    "without beta": ({"center": False}, SHAPE),
    "epsilon": ({"epsilon": 0.1}, SHAPE),
    "rank 2": ({}, (6, 3)),
    "axis 1": ({"axis": 1}, SHAPE),
    "small epsilon": ({"epsilon": 1e-6}, SHAPE),
    "float64": ({"dtype": "float64"}, SHAPE),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", SLOPES)
def test_slope_and_its_gradient(case, training):
    """Against the definition, in float64 and by TensorFlow's plainest operations."""
    kwargs, shape = SLOPES[case]
    layer, twin = pair(shape, **kwargs)
    x = data(shape, dtype=layer.compute_dtype)
    axis = layer.axis % len(shape)
    axes = [i for i in range(len(shape)) if i != axis]
    side = [size if i == axis else 1 for i, size in enumerate(shape)]
    exact = {weight.name: tf.cast(weight, "float64") for weight in layer.weights}
    exact |= {"x": tf.cast(x, "float64")}

    def loss(outputs, slope):
        outputs, slope = tf.cast(outputs, "float64"), tf.cast(slope, "float64")
        weights = data(shape, seed=7, dtype="float64")
        return tf.reduce_sum(weights * outputs**2) + 50 * tf.reduce_sum(tf.sin(3 * slope))

    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs, slope = layer.call_with_slope(x, training=training)
        value = loss(outputs, slope)
    gradients = tape.gradient(value, [x, *layer.trainable_weights])

    with tf.GradientTape() as tape:
        tape.watch(exact)
        mean, variance = exact["moving_mean"], exact["moving_variance"]
        if training:
            mean = tf.reduce_mean(exact["x"], axes)
            variance = tf.reduce_mean((exact["x"] - tf.reshape(mean, side)) ** 2, axes)
        expected_slope = exact.get("gamma", 1) / tf.sqrt(variance + layer.epsilon)
        centred = exact["x"] - tf.reshape(mean, side)
        expected = centred * tf.reshape(expected_slope, side)
        if "beta" in exact:
            expected += tf.reshape(exact["beta"], side)
        value = loss(expected, expected_slope)
    sources = [exact[name] for name in ["x", *(w.name for w in layer.trainable_weights)]]
    expected_gradients = tape.gradient(value, sources)

    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        size = np.abs(other).max()
        np.testing.assert_allclose(gradient, other, atol=1e-4 * size)
    # Statistics are those of a call.
    twin(x, training=training)
    assert_equal(layer.weights, twin.weights)


# Logical devices have to be there before TensorFlow starts, so this runs in a process of its own.
MIRRORED = """
import keras, numpy as np, tensorflow as tf
from tfresidual.layers import BatchNormalization

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x = np.random.default_rng(0).normal(size=(32, 4, 4, 3)).astype("float32") * 2 + 1
x[::2] += 1
for synchronized in (False, True):
    results = []
    for layer_class in (BatchNormalization, keras.layers.BatchNormalization):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([
                keras.Input((4, 4, 3)),
                layer_class(momentum=0.5, synchronized=synchronized),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ])
            model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        model.fit(x, x.mean((1, 2, 3)), batch_size=16, epochs=2, verbose=0, shuffle=False)
        results.append([np.asarray(w) for w in model.weights])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    print("agreed", synchronized, results[0][3])
"""


@pytest.mark.parametrize("training", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_graph_of_a_function_ends_with_the_function(training):
    # TensorFlow registers each custom gradient for good, and with it the graph it stands in.
    layer = BatchNormalization()
    layer.build(SHAPE)

    @tf.function
    def gradient(features):
        with tf.GradientTape() as tape:
            tape.watch(features)
            outputs, slope = layer.call_with_slope(features, training=training)
            loss = tf.reduce_sum(outputs**2) + tf.reduce_sum(slope)
        return tape.gradient(loss, features)

    gradient(data())
    graph = weakref.ref(gradient.get_concrete_function(data()).graph)
    assert graph() is not None
    del gradient
    # One collection was not enough for Python 3.13.
    for _ in range(3):
        gc.collect()
    assert graph() is None


@pytest.mark.system
@pytest.mark.nightly
def test_under_a_mirrored_strategy_with_two_devices():
    done = processes.run(MIRRORED)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("agreed") == 2
