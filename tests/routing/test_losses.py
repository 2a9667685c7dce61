"""The gradients of a loss per image, against those of Keras' own loss of each image alone.

That is what `fit` minimizes, in its own mode: in a graph.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing.agreement import check_losses

CLASSES = 3
IMAGES = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
INDICES = np.array([0, 2, 1, 1, 0, 2])
ROWS = np.eye(CLASSES, dtype="float32")[INDICES]
BINARY = (INDICES > 0).astype("float32")
SPARSE = keras.losses.SparseCategoricalCrossentropy
DENSE = keras.losses.CategoricalCrossentropy


def network(loss, head, shape=(4,), **settings):
    """Two blocks on vectors or maps; the head is a function of the last state."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input(shape)
    state = layers.Dense(5, name="first")(inputs)
    for _ in range(2):
        state = layers.Add()([state, layers.Dense(5, "tanh")(state)])
    model = keras.Model(inputs, head(state))
    model.compile("sgd", loss, **settings)
    return model


def dense(activation=None, outputs=CLASSES):
    """The head that is a layer whose outputs are far from each other."""
    wide = keras.initializers.Orthogonal(3.0)
    return lambda state: layers.Dense(outputs, activation, kernel_initializer=wide)(state)


def after(activation, outputs=CLASSES):
    """The head that is a layer and another layer or operation."""
    return lambda state: activation(dense(None, outputs)(state))


def norms_by_keras(model, images, labels):
    """The norm of the gradient of the compiled loss of each image alone, at the first state."""
    states = model.get_layer("first").output
    first, rest = keras.Model(model.input, states), keras.Model(states, model.output)

    @tf.function
    def gradient(images, labels):
        state = first(images)
        with tf.GradientTape() as tape:
            tape.watch(state)
            loss = model.compute_loss(images, labels, rest(state))
        return tape.gradient(loss, state)

    pairs = tf.data.Dataset.from_tensor_slices((images, labels)).batch(1)
    return [np.linalg.norm(np.float64(gradient(*pair))) for pair in pairs]


def first_norms(source, data):
    frame = probes.block_metrics(source, data, per_image=True)
    return frame.query("block == 0")["gradient_norm"]


# Keras takes the logits of a softmax or a sigmoid whatever `from_logits` says, if it finds them.
FROM_LOGITS = {
    "activation": (dense("softmax"), SPARSE(from_logits=True), INDICES),
    "rows": (dense("softmax"), DENSE(from_logits=True), ROWS),
    "layer": (after(layers.Softmax()), SPARSE(from_logits=True), INDICES),
    "operation": (dense(tf.nn.softmax), DENSE(from_logits=True, label_smoothing=0.1), ROWS),
    "sigmoid": (dense(tf.nn.sigmoid, 1), keras.losses.BinaryCrossentropy(from_logits=True), BINARY),
    "lost": (
        lambda state: layers.Reshape((CLASSES,))(dense("softmax")(state)),
        SPARSE(from_logits=True),
        INDICES,
    ),
    "kept in probabilities": (dense(tf.nn.softmax), DENSE(label_smoothing=0.1), ROWS),
}


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`:UserWarning")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", FROM_LOGITS)
def test_logits_are_found_where_keras_finds_them(policy, name, tmp_path, global_policy):
    global_policy(policy)
    # In half precision, an image that is given its label for certain may have no gradient.
    keras.utils.set_random_seed(0)
    head, loss, labels = FROM_LOGITS[name]
    model = network(loss, head)
    expected = norms_by_keras(model, IMAGES, labels)
    tfr.export(model, tmp_path / "net")
    for source in (model, tmp_path / "net"):
        found = first_norms(source, (IMAGES, labels))
        np.testing.assert_allclose(found, expected, rtol=1e-4 if policy == "float32" else 0.1)


SHAPES = {"maps": (3, 3), "a column": (9, 1), "volumes": (2, 2, 2), "positions": (9,)}


@pytest.mark.system
@pytest.mark.parametrize("name", SHAPES)
def test_positions_of_an_ignored_class_are_not_in_the_mean(name):
    shape = SHAPES[name]
    rng = np.random.default_rng(2)
    images = rng.normal(size=(5, *shape, 4)).astype("float32")
    labels = rng.integers(0, CLASSES, (5, *shape))
    model = network(SPARSE(ignore_class=2), dense("softmax"), (*shape, 4))
    expected = norms_by_keras(model, images, labels)
    for given in (labels, labels[..., None]):
        np.testing.assert_allclose(first_norms(model, (images, given)), expected, rtol=1e-4)
    # An image without any other class is not there.
    labels[1] = 2
    expected[1] = np.nan
    np.testing.assert_allclose(first_norms(model, (images, labels)), expected, rtol=1e-4)


class Larger(keras.losses.MeanSquaredError):
    def __call__(self, *args, **kwargs):
        return 10 * super().__call__(*args, **kwargs)


class Whole(keras.losses.Loss):
    def __call__(self, labels, outputs, sample_weight=None):
        return ops.mean(ops.square(outputs - ops.cast(labels, outputs.dtype)))


@pytest.mark.parametrize("loss", [Larger(), Whole()], ids=["one more", "alone"])
def test_a_loss_with_its_own_call_is_refused_where_it_is_used(loss):
    model = network(loss, dense())
    kind = type(loss).__name__
    with pytest.raises(ValueError, match=f"`loss` .*method `call`.*Received: loss={kind}$"):
        probes.block_metrics(model, (IMAGES, ROWS))
    assert len(probes.line_element(model, (IMAGES, ROWS))) == 2


def contrastive(labels, outputs):
    rows = ops.normalize(outputs, axis=-1)
    products = ops.log_softmax(5 * ops.matmul(rows, ops.transpose(rows)), axis=-1)
    are_same = ops.equal(ops.reshape(labels, (-1, 1)), ops.reshape(labels, (1, -1)))
    return -ops.mean(ops.cast(are_same, products.dtype) * products, axis=-1)


def divided(labels, outputs):
    return ops.mean(ops.square(outputs), axis=-1) / ops.cast(ops.shape(outputs)[0], "float32")


@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize(
    "loss", [contrastive, divided, keras.losses.Circle()], ids=["pairs", "share", "Circle"]
)
def test_a_loss_that_depends_on_other_images_is_refused(loss, size):
    model = network(loss, dense())
    data = tf.data.Dataset.from_tensor_slices((IMAGES, INDICES)).batch(size)
    for probe in (probes.block_metrics, probes.first_order):
        with pytest.raises(ValueError, match=r"`loss` .*on the other images.*Received: "):
            probe(model, data)
    assert len(probes.line_element(model, data)) == 2


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, np.nan, np.inf])
@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("poisson", np.exp(ROWS)),
        ("log_cosh", ROWS),
        (DENSE(from_logits=True), ROWS),
        (keras.losses.MeanSquaredError(dtype="float16"), ROWS),
        (SPARSE(ignore_class=1), INDICES),
    ],
    ids=["poisson", "log cosh", "cross-entropy", "half", "ignored"],
)
def test_rounding_is_no_dependence(loss, labels, scale):
    model = network(loss, dense())
    kernel, _ = model.layers[-1].weights
    kernel.assign(kernel * scale)
    check_losses(tfr.chain(model), labels[:4], {"outputs": model(IMAGES[:4])})
