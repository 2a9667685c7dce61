"""Statistics of batch normalization that are measured again, against plain NumPy."""

import inspect
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from refusals import refused

from tfresidual import surgery


def images_of(*shape):
    return np.random.default_rng(0).normal(3, 2, shape).astype("float32")


def assert_measured(norm, *applications):
    """The means over the applications of a layer, of the mean and variance of each channel."""
    rows = [np.float64(values).reshape(-1, values.shape[-1]) for values in applications]
    mean = np.mean([one.mean(axis=0) for one in rows], axis=0)
    variance = np.mean([one.var(axis=0) for one in rows], axis=0)
    expected = {"moving_mean": mean, "moving_variance": variance}
    if norm.renorm:
        deviation = np.sqrt(variance + norm.epsilon)
        expected |= {"renorm_mean": mean, "moving_stddev": deviation, "renorm_stddev": deviation}
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(norm, name), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("renorm", [False, True])
def test_statistics_are_those_of_the_images(renorm):
    """Whatever they were before, however few batches; frozen ones stay, and all after errors."""
    inputs, dense = keras.Input((4, 4, 3)), layers.Dense(5)
    first, last, frozen = (layers.BatchNormalization(momentum=0.9, renorm=renorm) for _ in range(3))
    frozen.trainable = False
    model = keras.Model(inputs, frozen(last(layers.Dropout(0.5)(dense(first(inputs))))))
    images = images_of(8, 4, 4, 3)
    rows = images.astype(float).reshape(-1, 3)
    normalized = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-3)
    for count, stale in ((1, 0.0), (3, 1e4)):
        first.moving_mean.assign(np.full(3, stale))
        assert surgery.update_statistics(model, itertools.repeat(images, count)) == 2
        assert_measured(first, images)
        assert_measured(last, normalized @ dense.kernel.numpy())
    assert (first.momentum, first.renorm) == (0.9, renorm)
    np.testing.assert_array_equal(frozen.moving_variance, 1)
    before = [weight.numpy() for weight in model.weights]
    labels = np.zeros(len(images))
    for batches in ([], images):
        with refused("batches"):
            surgery.update_statistics(model, batches)
    with_labels = tf.data.Dataset.from_tensors((images, labels))
    for batches in ({"images": images}, (images, labels), with_labels, [images, images[..., :2]]):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            surgery.update_statistics(model, batches)
    np.testing.assert_equal([weight.numpy() for weight in model.weights], before)


def test_a_normalization_that_is_applied_twice():
    inputs, norm = keras.Input((3,)), layers.BatchNormalization()
    unused = layers.BatchNormalization()
    unused.build((None, 3))
    model = keras.Model(inputs, norm(norm(inputs) + 5.0))
    model.unused = unused
    images = images_of(64, 3)
    assert surgery.update_statistics(model, [images] * 4) == 1
    rows = images.astype(float)
    again = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-3) + 5
    assert_measured(norm, rows, again)
    np.testing.assert_array_equal(unused.moving_variance, 1)


# What layers of Keras are made with, and how they are called.
ARGUMENTS = {
    **dict.fromkeys(("units", "filters", "kernel_size", "pool_size", "output_size", "n"), 2),
    **dict.fromkeys(("num_heads", "key_dim", "num_query_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("rate", "stddev", "factor", "height_factor", "dropout"), 0.5),
    **{"head_dim": 4, "height": 4, "width": 4, "input_dim": 9, "output_dim": 3, "groups": 1},
    **{"activation": "relu", "dims": (1,), "target_shape": (-1,), "function": lambda: abs},
    **{"layer": lambda: layers.Dense(3), "cell": lambda: layers.LSTMCell(3)},
}
CALLS = (lambda f, x: f(x), lambda f, x: f([x, x]), lambda f, x: f(x, x))
SHAPES = ((4,), (4, 4), (4, 4, 3), (4, 4, 4, 3))
ALL = {name for name, kind in vars(layers).items() if isinstance(kind, type)}
# Random in training, or with something that a training pass changes.
FEW = {"Dropout", "GaussianNoise", "RandomFlip", "MultiHeadAttention", "SpectralNormalization"}


def normalized(name):
    """Returns a model of a layer of Keras and a normalization, if it is so easy to make."""
    kind = getattr(layers, name)
    given = {
        key: one for key, one in ARGUMENTS.items() if key in inspect.signature(kind).parameters
    }
    for shape, call in itertools.product(SHAPES, CALLS):
        inputs = keras.Input(shape)
        try:
            made = {key: one() if callable(one) else one for key, one in given.items()}
            model = keras.Model(inputs, call(kind(**made), inputs))
            norm = layers.BatchNormalization()
            images = np.random.default_rng(0).uniform(1, 8, (6, *shape)).astype("float32")
            outputs = model(images, training=False).numpy()
            # Some take what they cannot process.
            norm(outputs)
            return keras.Model(inputs, norm(model.output)), norm, images, outputs
        except Exception:  # Of other inputs, and other arguments.
            continue
    return None


@pytest.mark.parametrize(
    ("names", "least"), [(FEW, len(FEW)), pytest.param(ALL - FEW, 110, marks=pytest.mark.nightly)]
)
@pytest.mark.filterwarnings("ignore")
def test_other_layers_compute_as_in_inference_and_stay_as_they_are(names, least):
    made = 0
    for name in sorted(names - {"BatchNormalization"}):
        found = normalized(name)
        if found is None:
            continue
        model, norm, images, outputs = found
        others = [v for v in model.variables if v.name not in ("moving_mean", "moving_variance")]
        before = [variable.numpy() for variable in others]
        assert surgery.update_statistics(model, [images]) == 1, name
        assert_measured(norm, outputs)
        np.testing.assert_equal([variable.numpy() for variable in others], before, name)
        made += 1
    assert made >= least
