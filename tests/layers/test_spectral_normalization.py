"""The wrapper of Keras' layers: against the explicit matrix of every layer and its SVD.

The matrix is made of what the layer itself does to unit vectors in float64. Not covered here:
power iterations by themselves, which are in test_spectral.py, and GPUs.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from reference.matrices import matrix_of, norm_of

from tfresidual.layers import SpectralNormalization, fixed_norms

NIGHTLY = pytest.mark.nightly
layers = keras.layers


def sizes(draw, low, high, count):
    return tuple(draw(st.integers(low, high)) for _ in range(count))


@st.composite
def convolution(draw, layer_class, axes):
    """A layer of a class and the shape of an input without the batch."""
    name, size = layer_class.__name__, sizes(draw, 1, 3, axes)
    is_depthwise = "Depthwise" in name
    paddings = ["same", "valid"] + (["causal"] if layer_class is layers.Conv1D else [])
    arguments = {"kernel_size": size, "padding": draw(st.sampled_from(paddings))}
    arguments["use_bias"] = draw(st.booleans())
    # Keras takes strides or dilation. On CPUs, TensorFlow has depthwise convolutions of one stride,
    # and neither dilates three axes nor has groups of them.
    step, dilation = draw(st.integers(1, 3)), 1
    if axes == 3 or draw(st.booleans()):
        arguments["strides"] = step if is_depthwise else sizes(draw, 1, 3, axes)
    else:
        arguments["dilation_rate"] = dilation = step
    channels, groups = draw(st.integers(1, 4)), 1
    if is_depthwise:
        arguments["depth_multiplier"] = draw(st.integers(1, 3))
    else:
        groups = draw(st.sampled_from([1, 1, 2])) if axes < 3 else 1
        arguments |= {"groups": groups, "filters": groups * draw(st.integers(1, 4))}
    lower = [(taps - 1) * dilation + 1 if arguments["padding"] == "valid" else 1 for taps in size]
    most = {1: 8, 2: 6, 3: 4}[axes]
    grid = tuple(draw(st.integers(low, max(low, most))) for low in lower)
    return layer_class, arguments, (*grid, channels * groups)


@st.composite
def dense(draw):
    return (
        layers.Dense,
        {"units": draw(st.integers(1, 6))},
        sizes(draw, 1, 5, draw(st.integers(1, 2))),
    )


CONVOLUTIONS = [
    *(layers.Conv1D, layers.Conv2D, layers.Conv3D),
    *(layers.DepthwiseConv1D, layers.DepthwiseConv2D),
]
KINDS = {
    one.__name__: convolution(one, next(int(c) for c in one.__name__ if c.isdigit()))
    for one in CONVOLUTIONS
} | {"Dense": dense()}


def random_weights(layer, seed):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))


def excess(case, seed, bound):
    """By how much the norm of a wrapped layer exceeds what it is to be, in float64."""
    layer_class, arguments, shape = case
    layer = layer_class(**arguments, dtype="float64")
    layer.build((None, *shape))
    random_weights(layer, seed)
    matrix = matrix_of(layer, shape)
    wrapped = SpectralNormalization(layer, bound)
    wrapped.build((None, *shape))
    found = matrix_of(wrapped, shape)
    norm = np.linalg.norm(matrix, 2)
    expected = matrix if norm == 0 else matrix / (norm if bound is None else max(norm / bound, 1))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    report = wrapped.lipschitz_bound()
    assert report["certified"] >= norm * (1 - 1e-9)
    assert report["estimate"] <= norm * (1 + 1e-5)
    return np.linalg.norm(found, 2) / np.linalg.norm(expected, 2) - 1 if norm else 0.0


# Without graphs, of which thousands would be kept.
@pytest.mark.sampled(4)
@pytest.mark.eager
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, pytest.param(200, marks=NIGHTLY)])
def test_the_norm_is_that_of_the_matrix(kind, count):
    found = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind], st.integers(0, 10**6), st.sampled_from([0.5, 0.95, 3.0, None]))
    def run(case, seed, bound):
        found.append(excess(case, seed, bound))

    run()
    # Iterations approach the norm from below.
    assert max(found) < 1e-3


def conv(filters=4, **kwargs):
    return layers.Conv2D(filters, 3, **{"padding": "same"} | kwargs)


def built(layer, shape, bound=0.95, seed=0):
    wrapped = SpectralNormalization(layer, bound)
    wrapped.build((None, *shape))
    random_weights(layer, seed)
    wrapped.converge(training=True)
    return wrapped


def images(shape, count=3, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype("f4")


@pytest.mark.parametrize("bound", [0.5, None])
def test_bias_and_activation_are_those_of_the_layer(bound):
    layer = conv(activation="gelu", activity_regularizer=keras.regularizers.L2(0.1))
    wrapped, x = built(layer, (5, 4, 3), bound), images((5, 4, 3))
    divisor = wrapped.lipschitz_bound()["divisor"]
    before = [weight.numpy() for weight in layer.weights]
    linear = keras.ops.conv(x, layer.kernel, padding="same") / divisor
    expected = keras.activations.gelu(linear + layer.bias)
    for training in (False, True):
        outputs = wrapped(x, training=training)
        np.testing.assert_allclose(outputs, expected, rtol=2e-3, atol=2e-3)
        (loss,) = wrapped.losses
        regularized = layers.ActivityRegularization(l2=0.1)
        regularized(outputs)
        assert float(loss) == pytest.approx(float(*regularized.losses), rel=1e-6)
    for weight, old in zip(layer.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_a_bound_that_is_set_later():
    x = images((5, 4, 3))
    wrapped = built(conv(use_bias=False), (5, 4, 3), 0.5)
    outputs = np.asarray(wrapped(x))
    wrapped.bound = 0.25
    np.testing.assert_allclose(wrapped(x), outputs / 2, rtol=1e-6)
    assert wrapped.lipschitz_bound()["lipschitz"] == 0.25


def test_small_norms_are_left_and_zeros_stay_zeros():
    for bound, scale in ((0.95, 1e-3), (None, 0.0)):
        layer, x = conv(), images((5, 4, 3))
        wrapped = built(layer, (5, 4, 3), bound)
        layer.kernel.assign(scale * layer.kernel)
        with tf.GradientTape() as tape:
            outputs = wrapped(x)
            total = tf.reduce_sum(outputs**2)
        np.testing.assert_array_equal(outputs, layer(x))
        assert all(np.isfinite(g).all() for g in tape.gradient(total, layer.trainable_variables))


CHANGES = {
    "assign": lambda w: w.layer.kernel.assign(2 * w.layer.kernel),
    "one entry": lambda w: w.layer.kernel[1, 1, 0, 0].assign(30.0),
    "pruned": lambda w: w.layer.kernel.assign(w.layer.kernel * (abs(w.layer.kernel) > 1)),
    "weights of a file": lambda w: random_weights(w.layer, 7),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("compiled", [False, True])
def test_inference_follows_the_weights(name, compiled):
    layer, x = conv(use_bias=False), images((5, 4, 3))
    wrapped = built(layer, (5, 4, 3))
    run = tf.function(wrapped) if compiled else wrapped
    run(x)
    CHANGES[name](wrapped)
    norm = norm_of(lambda units: layer(units.astype("f4")), (5, 4, 3))
    for _ in range(2):
        np.testing.assert_allclose(run(x), layer(x) * 0.95 / norm, rtol=1e-4, atol=1e-5)
    estimate = wrapped.lipschitz_bound()["estimate"]
    assert estimate == pytest.approx(norm, rel=1e-5)


def test_frozen_and_applied_twice():
    layer, x = conv(filters=3), images((5, 4, 3))
    wrapped = built(layer, (5, 4, 3))
    expected = np.asarray(wrapped(wrapped(x)))
    np.testing.assert_allclose(tf.function(lambda x: wrapped(wrapped(x)))(x), expected, atol=1e-6)
    for moves in (True, False):
        once = [v.numpy() for v in wrapped.variables]
        wrapped.trainable = moves
        wrapped(x, training=True)
        for variable, old in zip(wrapped.variables, once, strict=True):
            is_own = moves and variable.name.startswith("training_")
            assert np.any(variable.numpy() != old) == is_own, variable.path
    np.testing.assert_allclose(wrapped(wrapped(x, training=True), training=True), expected)


@pytest.mark.system
@pytest.mark.parametrize(
    "dtype",
    ["float32", *(pytest.param(f"mixed_{one}", marks=NIGHTLY) for one in ("bfloat16", "float16"))],
)
def test_trained_saved_cloned_and_exported(dtype, tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            SpectralNormalization(conv(activation="relu", dtype=dtype), 0.5),
            SpectralNormalization(layers.DepthwiseConv2D(3, strides=2, dtype=dtype), None),
            layers.Flatten(dtype=dtype),
            SpectralNormalization(layers.Dense(3, dtype=dtype), 0.5, name="last"),
            layers.Activation("linear", dtype="float32"),
        ]
    )
    x, y = images((6, 6, 3), 16), images((3,), 16, seed=1)
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    losses = model.fit(x, y, epochs=4, batch_size=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    outputs = model.predict(x, verbose=0)
    for layer in model.layers[:2]:
        assert layer.compute_dtype == layer.layer.compute_dtype == dtype.removeprefix("mixed_")
        assert {v.dtype for v in layer.variables} == {"float32"}
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), outputs, atol=1e-6)
    layer = loaded.get_layer("last")
    assert layer.bound == layer.from_config(layer.get_config()).bound == 0.5
    clone = keras.models.clone_model(model)
    for one, other in zip(clone.layers, model.layers, strict=True):
        # The weights of the layers alone: the norms are sought anew.
        if isinstance(one, SpectralNormalization):
            one.layer.set_weights(other.layer.get_weights())
    np.testing.assert_allclose(clone.predict(x, verbose=0), outputs, atol=2e-3)
    model.save_weights(tmp_path / "model.weights.h5")
    clone.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(clone.predict(x, verbose=0), outputs, atol=1e-6)
    model.export(tmp_path / "saved", verbose=False)
    with fixed_norms():
        model.export(tmp_path / "fixed", verbose=False)
    for name in ("saved", "fixed"):
        served = tf.saved_model.load(str(tmp_path / name))
        np.testing.assert_allclose(served.serve(x), outputs, atol=1e-2 if "16" in dtype else 1e-5)
