"""Branches of any layers under a bound: against products of the singular values of matrices.

The matrix of each layer is made of what it does to unit vectors in float64, and batch normalization
is put between them as a diagonal. Not covered here: branches of residual units, which are in
test_bounded_unit.py, and norms of single layers, which are in test_spectral_normalization.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.matrices import matrix_of, norm_of
from reference.random_network import sample

from tfresidual.layers import BatchNormalization, Bounded, slopes

NIGHTLY = pytest.mark.nightly
layers = keras.layers


def conv(filters=4, size=3, **kwargs):
    return layers.Conv2D(filters, size, **{"padding": "same"} | kwargs)


# Branch, shape of its input, and the products whose norms are the factors: layers by place, and
# places of normalizations, whose slopes are put before or after. Last, what else is a factor.
BRANCHES = {
    "preactivation": (
        lambda: [BatchNormalization(), layers.ReLU(), conv(), layers.BatchNormalization(),
                 layers.ReLU(), conv(3)],
        (5, 4, 3), [[0, 2, 3], [5]], 1,
    ),
    "activations in layers": (
        lambda: [conv(5, activation="gelu"), BatchNormalization(),
                 layers.LeakyReLU(negative_slope=2.0), conv(3, 2, strides=2)],
        (5, 6, 2), [[0, 1], [3]], 2 * 1.13,
    ),
    "depthwise": (
        lambda: [BatchNormalization(), layers.DepthwiseConv2D(3, depth_multiplier=2),
                 layers.BatchNormalization(), conv(3, 2, strides=2, activation="sigmoid")],
        (5, 5, 2), [[0, 1, 2], [3]], 0.25,
    ),
    "pooling, then dense": (
        lambda: [conv(2), layers.MaxPooling2D(3, 2), BatchNormalization(), layers.Flatten(),
                 BatchNormalization(), layers.Dense(4), layers.Dropout(0.5), layers.Dense(3)],
        (7, 7, 2), [[0, 2], [4, 5], [7]], 2,
    ),
    "normalizations alone": (
        lambda: [conv(2), layers.Flatten(), BatchNormalization(), layers.Reshape((4, 6)),
                 layers.Dense(5), BatchNormalization(axis=1)],
        (4, 3, 1), [[0], [2], [4], [5]], 1,
    ),
}  # fmt: skip


def with_random_weights(branch, seed=0):
    rng = np.random.default_rng(seed)
    for layer in branch:
        for weight in layer.weights:
            values = rng.normal(size=weight.shape)
            if "vector" not in weight.name and "known" not in weight.name:
                weight.assign(np.abs(values) + 0.2 if "variance" in weight.name else values)


def linear(layer):
    """A copy without activation."""
    config = layer.get_config() | ({"activation": None} if hasattr(layer, "activation") else {})
    copy = type(layer).from_config(config)
    copy.build(layer.shape)
    copy.set_weights(layer.get_weights())
    return copy


def expected_product(layer, factors, constant):
    """The product of the norms of explicit matrices."""
    shape, branch = (1, *layer.shape_of_inputs[1:]), layer.branch
    for one in branch:
        one.shape = shape
        shape = tuple(one.compute_output_shape(shape))
    for places in factors:
        (place,) = [p for p in places if not isinstance(branch[p], layers.BatchNormalization)] or [
            None
        ]
        shapes = [branch[p].shape for p in places]
        if place is not None:
            # Normalizations are put next to the layer, whatever is in between.
            inner = linear(branch[place])
            grid = branch[place].shape
            after = inner.compute_output_shape(grid)
            shapes = [grid if p < place else after for p in places]
            shapes[places.index(place)] = grid
        matrix = np.eye(int(np.prod(shapes[0])))
        for p, own in zip(places, shapes, strict=True):
            if p == place:
                one = inner
            else:
                one = type(branch[p]).from_config(branch[p].get_config())
                one.build(own)
                one.set_weights(branch[p].get_weights())
            matrix = matrix_of(one, own[1:]) @ matrix
        constant *= np.linalg.norm(matrix, 2)
    return constant


@pytest.fixture(autouse=True)
def double():
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")


def built(name, bound=0.95, seed=0):
    make, shape, factors, constant = BRANCHES[name]
    layer = Bounded(make(), bound)
    layer.build((None, *shape))
    with_random_weights(layer.branch, seed)
    return layer, shape, expected_product(layer, factors, constant)


@pytest.mark.parametrize("name", sample({name: name for name in BRANCHES}, 4, NIGHTLY))
def test_the_constant_is_the_product_of_norms(name):
    layer, shape, product = built(name)
    report = layer.lipschitz_bound()
    assert report["estimate"] == pytest.approx(product, rel=1e-4)
    assert product * (1 - 1e-9) <= report["certified"] < 2 * product
    x = np.random.default_rng(1).normal(size=(3, *shape))
    free = x
    for one in layer.branch:
        free = one(free)
    outputs = layer(x)
    assert outputs.shape == (3, *layer.compute_output_shape((3, *shape))[1:])
    np.testing.assert_allclose(outputs, free / max(product / 0.95, 1), rtol=1e-4)
    # Whichever way the weights change.
    layer.branch[-1].set_weights([0.5 * weight for weight in layer.branch[-1].get_weights()])
    assert np.isfinite(layer(x)).all()
    loose = Bounded(layer.branch, 1e6)
    loose.build((None, *shape))
    for one in layer.branch:
        x = one(x)
    np.testing.assert_array_equal(loose(np.random.default_rng(1).normal(size=(3, *shape))), x)


@pytest.mark.system
def test_a_residual_block_under_a_bound_of_1_is_invertible():
    branch = [BatchNormalization(), layers.ReLU(), conv(), layers.Conv2D(3, 1)]
    layer = Bounded(branch, 0.8)
    layer.build((None, 5, 4, 3))
    with_random_weights(branch)
    x = 5 * np.random.default_rng(2).normal(size=(4, 5, 4, 3))
    target = x + np.asarray(layer(x))
    state = target
    for step in range(100):
        state = target - np.asarray(layer(state))
        if step == 0:
            first = np.abs(state - x).max()
    assert first > 0.1
    np.testing.assert_allclose(state, x, atol=1e-8)


@pytest.mark.system
@pytest.mark.parametrize("training", [False, True])
def test_gradients_go_through_the_norms(training):
    """Against finite differences; in training, the batch's statistics are in the norms."""
    layer, shape, _ = built("preactivation")
    x, probe = (np.random.default_rng(s).normal(size=(6, *shape[:2], 3)) for s in (1, 2))
    moving = [w for one in layer.branch for w in one.weights if "moving" in w.name]
    kept = [w.numpy() for w in moving]
    outputs = tf.function(lambda: layer(tf.constant(x), training=training))

    def value():
        total = tf.reduce_sum(probe * outputs())
        for weight, values in zip(moving, kept, strict=True):
            weight.assign(values)
        return total

    # The vectors of training converge for the statistics of this batch.
    for _ in range(100 if training else 1):
        value()
    with tf.GradientTape() as tape:
        total = value()
    gradients = tape.gradient(total, layer.trainable_variables)
    rng = np.random.default_rng(3)
    for variable, gradient in zip(layer.trainable_variables, gradients, strict=True):
        direction, old, ends = rng.normal(size=variable.shape), variable.numpy(), []
        for shift in (1e-4, -1e-4):
            variable.assign(old + shift * direction)
            ends.append(float(value()))
        variable.assign(old)
        expected = (ends[0] - ends[1]) / 2e-4
        assert np.sum(gradient * direction) == pytest.approx(expected, rel=0.02, abs=0.02)


def test_slopes_of_activations():
    """No slope of a fine grid exceeds the constant, and most constants are attained."""
    x = np.linspace(-20, 20, 400_001)
    attained = 0
    for activation, constant in slopes.SLOPES.items():
        y = np.asarray(activation(x))
        largest = np.abs(np.diff(y) / np.diff(x)).max()
        assert largest <= constant * (1 + 1e-6), activation
        attained += largest > 0.99 * constant
    approximate = keras.activations.gelu(x, approximate=True)
    assert np.abs(np.diff(approximate) / np.diff(x)).max() <= 1.13
    assert attained == len(slopes.SLOPES)


POOLINGS = {
    "mean": (layers.AveragePooling2D(2), (5, 6, 2)),
    "mean, overlapping": (layers.AveragePooling1D(3, 1, padding="same"), (7, 2)),
    "mean, same": (layers.AveragePooling2D(3, 2, padding="same"), (5, 6, 1)),
    "global mean": (layers.GlobalAveragePooling2D(), (3, 4, 2)),
    "padding": (layers.ZeroPadding2D(2), (3, 3, 1)),
    "cropping": (layers.Cropping1D(1), (5, 2)),
    "upsampling": (layers.UpSampling2D((2, 3)), (3, 2, 2)),
    "flatten": (layers.Flatten(), (3, 2, 2)),
    "permute": (layers.Permute((2, 1)), (3, 2)),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_constants_of_linear_layers_without_kernels(name):
    layer, shape = POOLINGS[name]
    layer = type(layer).from_config(layer.get_config() | {"dtype": "float64"})
    norm = norm_of(layer, shape)
    constant = slopes.known(layer, (None, *shape)).constant
    assert norm * (1 - 1e-9) <= constant < 1.4 * norm


@pytest.mark.system
@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed_bfloat16", marks=NIGHTLY)])
def test_trained_saved_and_cloned(dtype, tmp_path):
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    inner = keras.Sequential([layers.ReLU(), conv(3)])
    first = [BatchNormalization(), layers.ReLU(), conv(), layers.BatchNormalization()]
    branch = keras.Sequential([*first, inner])
    inputs = keras.Input((5, 4, 3))
    layer = Bounded(branch, 0.5)
    model = keras.Model(inputs, inputs + layer(inputs))
    model.compile(keras.optimizers.SGD(0.3), "mse", jit_compile=False)
    x, y = (np.random.default_rng(s).normal(size=(16, 5, 4, 3)).astype("f4") for s in (0, 1))
    losses = model.fit(x, y, epochs=5, batch_size=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    outputs = model.predict(x, verbose=0)
    report = layer.lipschitz_bound()
    assert report["divisor"] > 1
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), outputs)
    (other,) = [one for one in loaded.layers if isinstance(one, Bounded)]
    assert [type(one) for one in other.branch] == [type(one) for one in layer.branch]
    assert other.bound == 0.5 and type(layer).from_config(layer.get_config()).bound == 0.5
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone.predict(x, verbose=0), outputs)
    model.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(served.serve(x), outputs, rtol=1e-5, atol=1e-5)


def test_frozen_branches_have_the_norms_of_inference():
    layer, shape, _ = built("preactivation")
    x = np.random.default_rng(0).normal(size=(3, *shape))
    expected = layer(x)
    layer.trainable = False
    for _ in range(2):
        np.testing.assert_array_equal(layer(x, training=True), expected)
