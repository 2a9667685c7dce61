"""The loss per image, and its gradients, against those of Keras' own loss and float64 values.

Keras computes its own in the mode in which `fit` minimizes it: in a graph, of each image alone.
"""

import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops
from reference import heads, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing.losses import CROSS_ENTROPY, loss_from, loss_of, softmax_cross_entropy
from tfresidual.sources.outputs import kind_of

CLASSES = 3
RNG = np.random.default_rng(1)
IMAGES = RNG.normal(size=(6, 4)).astype("float32")
INDICES = np.array([0, 2, 1, 1, 0, 2])
ROWS = np.eye(CLASSES, dtype="float32")[INDICES]
BINARY = (INDICES > 0).astype("float32")
SPARSE = keras.losses.SparseCategoricalCrossentropy
DENSE = keras.losses.CategoricalCrossentropy


def network(loss, head, shape=(4,)):
    """Two blocks on vectors or maps; the head is a function of the last state."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input(shape)
    state = layers.Dense(5, name="first")(inputs)
    for _ in range(2):
        state = layers.Add()([state, layers.Dense(5, "tanh")(state)])
    model = keras.Model(inputs, head(state))
    if loss is not None:
        model.compile("sgd", loss)
    return model


def dense(activation=None, outputs=CLASSES):
    return heads.dense(activation, outputs)


# Values

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
OF_LABELS = -np.log([0.7, 0.1])
KHOT = np.array([[1, 0, 0], [0, 1, 1]])
OF_KHOT = -np.log(np.where(KHOT == 1, P, 1 - P)).mean(axis=1)


@pytest.mark.eager
@pytest.mark.parametrize(
    ("loss", "activation", "labels", "outputs", "expected"),
    [
        ("sparse_categorical_crossentropy", "softmax", [0, 2], P, OF_LABELS),
        (None, "softmax", [[0], [2]], P, OF_LABELS),
        (None, "softmax", np.eye(3)[[0, 2]], P, OF_LABELS),
        (DENSE(), "softmax", np.eye(3)[[0, 2]], P, OF_LABELS),
        (keras.losses.categorical_crossentropy, "softmax", np.eye(3)[[0, 2]], P, OF_LABELS),
        (["categorical_crossentropy"], "softmax", np.eye(3)[[0, 2]], P, OF_LABELS),
        (None, "sigmoid", KHOT, P, OF_KHOT),
        (None, None, [0, 2], np.log(P) + 3, OF_LABELS),
        # One loss per image even of a loss over pixels.
        (lambda y, x: (y - x) ** 2, "softmax", np.ones((2, 3)), P, ((1 - P) ** 2).mean(axis=1)),
    ],
)
def test_values_by_hand(loss, activation, labels, outputs, expected):
    net = random_network.random_network(
        blocks=1, widths=(4,), classes=3, classifier_activation=activation
    )
    if loss is not None:
        net.compile("sgd", loss)
    found = loss_of(net, kind_of(net.layers[-1]))(np.array(labels), outputs.astype("float32"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# Losses, and whether a saved model can have them: whether their config says all that they are.
LOSSES = {
    "Huber": (lambda: keras.losses.Huber(0.1), False),
    "a number": (lambda: keras.losses.CategoricalFocalCrossentropy(0.1, 3.0), True),
    "smoothing": (lambda: DENSE(label_smoothing=0.2), True),
    "Tversky": (lambda: keras.losses.Tversky(0.3, 0.9, axis=-1), True),
    "cross-entropy": (lambda: DENSE(), True),
    "partial": (lambda: functools.partial(keras.losses.huber, delta=0.1), False),
}


@pytest.mark.eager
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_one_of_compile(name):
    make, is_described = LOSSES[name]
    model, loss = network(None, dense("softmax")), make()
    model.compile("sgd", loss)
    outputs = model(IMAGES)
    used = tfr.chain(model).loss
    expected = (loss.call if isinstance(loss, keras.losses.Loss) else loss)(ROWS, outputs)
    np.testing.assert_allclose(used(ROWS, outputs).numpy().mean(), np.mean(expected), rtol=1e-5)
    assert hasattr(used, "description") == is_described


# Gradients


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
    "layer": (lambda s: layers.Softmax()(dense()(s)), SPARSE(from_logits=True), INDICES),
    "operation": (dense(tf.nn.softmax), DENSE(from_logits=True, label_smoothing=0.1), ROWS),
    "sigmoid": (dense(tf.nn.sigmoid, 1), keras.losses.BinaryCrossentropy(from_logits=True), BINARY),
    "lost": (
        lambda state: layers.Reshape((CLASSES,))(dense("softmax")(state)),
        SPARSE(from_logits=True),
        INDICES,
    ),
    "kept in probabilities": (dense(tf.nn.softmax), DENSE(label_smoothing=0.1), ROWS),
}


@pytest.mark.sampled(4)
@pytest.mark.system
@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`:UserWarning")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", FROM_LOGITS)
def test_logits_are_found_where_keras_finds_them(policy, name, tmp_path, global_policy):
    global_policy(policy)
    head, loss, labels = FROM_LOGITS[name]
    model = network(loss, head)
    expected = norms_by_keras(model, IMAGES, labels)
    tfr.export(model, tmp_path / "net")
    for source in (model, tmp_path / "net"):
        found = first_norms(source, (IMAGES, labels))
        np.testing.assert_allclose(found, expected, rtol=1e-4 if policy == "float32" else 0.1)


SHAPES = {"maps": (3, 3), "a column": (9, 1), "volumes": (2, 2, 2), "positions": (9,)}


@pytest.mark.sampled(2)
@pytest.mark.system
@pytest.mark.parametrize("name", SHAPES)
def test_positions_of_an_ignored_class_are_not_in_the_mean(name):
    shape = SHAPES[name]
    images = RNG.normal(size=(5, *shape, 4)).astype("float32")
    labels = RNG.integers(0, CLASSES, (5, *shape))
    model = network(SPARSE(ignore_class=2), dense("softmax"), (*shape, 4))
    expected = norms_by_keras(model, images, labels)
    for given in (labels, labels[..., None]):
        np.testing.assert_allclose(first_norms(model, (images, given)), expected, rtol=1e-4)
    # An image without any other class is not there.
    labels[1] = 2
    expected[1] = np.nan
    np.testing.assert_allclose(first_norms(model, (images, labels)), expected, rtol=1e-4)


@pytest.mark.eager
@pytest.mark.parametrize("margin", [0.0, 3.0, 20.0, 60.0])
def test_sure_networks_keep_their_gradient(margin):
    # Two outputs, the right one ahead by the margin: the gradient is (-q, q), q = sigmoid(-margin).
    # In float32 p - y is zero from a margin of 17 on.
    logits = tf.Variable([[margin, 0.0]])
    with tf.GradientTape() as tape:
        losses = softmax_cross_entropy(np.array([[1.0, 0.0]], "float32"), logits)
    q = 1 / (1 + np.exp(margin))
    np.testing.assert_allclose(tape.gradient(losses, logits), [[-q, q]], rtol=1e-5)
    np.testing.assert_allclose(losses, [np.log1p(np.exp(-margin))], atol=1e-6)


def keras_cross_entropy(labels, logits):
    return keras.losses.categorical_crossentropy(labels, logits, from_logits=True)


def plain_cross_entropy(labels, logits):
    return -tf.reduce_sum(labels * tf.nn.log_softmax(logits), axis=-1)


@pytest.mark.parametrize("expected", [keras_cross_entropy, plain_cross_entropy])
def test_gradient_where_nothing_cancels(expected):
    # All networks share one compiled function, which forgets sizes that were not always the same.
    for shape in ((50, 7), (4, 3), (2, 5, 3), (6, 2), (2, 2, 2, 4), (1, 3)):
        logits = tf.constant(RNG.normal(size=shape), tf.float32)
        upstream = RNG.normal(size=shape[:-1]).astype("float32")
        # TensorFlow's kernel takes it for granted that labels sum to one.
        rows = [RNG.dirichlet(np.ones(shape[-1]), shape[:-1])]
        rows += [RNG.integers(0, 2, shape)] * (expected is plain_cross_entropy)
        for one in rows:
            one = tf.constant(one, tf.float32)

            @tf.function
            def gradients(loss, one=one, logits=logits, upstream=upstream):
                with tf.GradientTape() as tape:
                    tape.watch(logits)
                    losses = loss(one, logits)
                    total = tf.reduce_sum(losses * upstream)
                gradient = tape.gradient(total, logits)
                assert losses.shape.rank == len(logits.shape) - 1
                assert gradient.shape.rank == len(logits.shape)
                return losses, gradient

            pairs = zip(gradients(softmax_cross_entropy), gradients(expected), strict=True)
            for found, other in pairs:
                np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-6)


@pytest.mark.eager
def test_the_chain_sees_the_logits():
    net = random_network.random_network(blocks=1, widths=(4,))
    images, _ = random_network.random_batch(net)
    net.get_layer("classifier").bias.assign([60.0, 0, 0, 0, 0])
    chain = tfr.chain(net)
    state = tf.Variable(chain.walk(chain.stem(images))[1])
    for label in (0, 1):
        with tf.GradientTape() as tape:
            loss = chain.loss(np.full(len(images), label), chain.head(state))
        gradient = tape.gradient(loss, state).numpy()
        assert (np.abs(gradient).max(axis=(1, 2, 3)) > 0).all(), label


# Losses by hand


def on_indices(labels, outputs):
    rows = ops.one_hot(ops.cast(labels, "int32"), CLASSES)
    return ops.mean(ops.square(rows - outputs), axis=-1)


def on_gathered(labels, outputs):
    return -ops.log(tf.gather(outputs, tf.cast(labels, tf.int32), batch_dims=1))


def on_rows(labels, outputs):
    return ops.mean(ops.square(labels - outputs), axis=-1)


def on_both(labels, outputs):
    return (on_indices if len(labels.shape) == 1 else on_rows)(labels, outputs)


def on_flattened(labels, outputs):
    return on_indices(ops.reshape(labels, (-1,)), outputs)


@pytest.mark.eager
@pytest.mark.parametrize(
    "loss",
    [
        *(on_rows, on_gathered, pytest.param(on_both, marks=pytest.mark.nightly)),
        *(pytest.param(loss, marks=pytest.mark.nightly) for loss in (on_indices, on_flattened)),
    ],
)
def test_labels_of_a_loss_by_hand(loss, tmp_path):
    model = network(loss, dense("softmax"))
    tfr.export(model, tmp_path / "net")
    signature = tf.saved_model.load(str(tmp_path / "net")).signatures["block_metrics"]
    given = signature.structured_input_signature[1]["labels"]
    # Whole numbers, as Keras takes them.
    labels = ROWS.astype(int) if loss is on_rows else INDICES
    shape = (tf.float32, [None, CLASSES]) if loss is on_rows else (tf.int64, [None])
    assert (given.dtype, given.shape.as_list()) == shape
    expected = probes.block_metrics(model, (IMAGES, labels))
    loaded = tfr.chain(tmp_path / "net")
    for one in (labels, ROWS) if loss is on_both else (labels,):
        frame = probes.block_metrics(loaded, (IMAGES, one))
        pd.testing.assert_frame_equal(frame, expected, rtol=1e-5)
    values = signature(images=IMAGES, labels=tf.cast(labels, given.dtype))["gradient_norm"]
    np.testing.assert_allclose(np.mean(values, axis=0), expected["gradient_norm"], rtol=1e-5)


# Losses that are refused where they are used, and only there


class Larger(keras.losses.MeanSquaredError):
    def __call__(self, *args, **kwargs):
        return 10 * super().__call__(*args, **kwargs)


class OfTheBatch(keras.losses.Loss):
    def call(self, labels, outputs):
        return of_the_batch(labels, outputs)


def of_the_batch(labels, outputs):
    return ops.mean(on_rows(labels, outputs))


def contrastive(labels, outputs):
    rows = ops.normalize(outputs, axis=-1)
    products = ops.log_softmax(5 * ops.matmul(rows, ops.transpose(rows)), axis=-1)
    return -ops.mean(ops.matmul(labels, ops.transpose(labels)) * products, axis=-1)


def divided(labels, outputs):
    return ops.mean(ops.square(outputs), axis=-1) / ops.cast(ops.shape(outputs)[0], "float32")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (of_the_batch, "loss"),
        (OfTheBatch(), "loss"),
        (keras.losses.Circle(), "loss"),
        # These differ for an image by itself.
        (Larger(), "chain"),
        (contrastive, "chain"),
        (divided, "chain"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_losses_that_are_none_of_an_image(loss, name):
    model = network(loss, dense())
    labels = INDICES if isinstance(loss, keras.losses.Circle) else ROWS
    for size in (3, 6):
        data = tf.data.Dataset.from_tensor_slices((IMAGES, labels)).batch(size)
        for probe in (probes.block_metrics, probes.signal_propagation):
            with refused(name):
                probe(model, data)
    assert len(probes.line_element(model, (IMAGES, labels))) == 2


# Losses per position

LOGITS = RNG.normal(size=(2, 3, 4)).astype("float32")
OF_POSITIONS = np.array([[0, 3, 1], [2, 2, 0]])
ROWS_OF_POSITIONS = np.eye(4, dtype="float32")[OF_POSITIONS]
COMPILED = {
    "indices": (SPARSE(from_logits=True), OF_POSITIONS, LOGITS),
    "probabilities": ("sparse_categorical_crossentropy", OF_POSITIONS, ops.softmax(LOGITS)),
    "rows": (DENSE(from_logits=True), ROWS_OF_POSITIONS, LOGITS),
    "smoothed": (DENSE(from_logits=True, label_smoothing=0.2), ROWS_OF_POSITIONS, LOGITS),
    "binary": (keras.losses.BinaryCrossentropy(from_logits=True), ROWS_OF_POSITIONS, LOGITS),
    "values": ("mse", ROWS_OF_POSITIONS * 3, LOGITS),
    "one value": (keras.losses.Huber(0.3), OF_POSITIONS / 2, LOGITS[..., :1]),
    "ignored": (SPARSE(from_logits=True, ignore_class=2), OF_POSITIONS, LOGITS),
    "by hand": (lambda y, x: ops.sum((x - y) ** 2, -1), ROWS_OF_POSITIONS, LOGITS),
}


@pytest.mark.eager
@pytest.mark.parametrize("name", COMPILED)
def test_losses_per_position_are_those_of_keras(name):
    loss, labels, outputs = COMPILED[name]
    ours = loss_of(network(loss, dense(outputs=4)), "logits" if name == "indices" else None)
    # The loss as Keras itself computes it, with weights.
    judge = keras.Sequential([keras.Input(outputs.shape[1:]), layers.Identity()])
    judge.compile("sgd", loss)
    for chosen in (np.ones((2, 3)), np.array([[1, 0, 1], [0, 1, 1]])):
        expected = []
        for row in range(2):
            kept = chosen[row : row + 1] == 1
            # Keras divides by the number of all positions; those left out are removed here.
            part = [values[row : row + 1][kept][None] for values in (labels, np.array(outputs))]
            whole = judge.compute_loss(None, *part, sample_weight=np.ones(part[0].shape[:2]))
            expected.append(float(whole))
        is_index = labels.ndim == 2 and outputs.shape[-1] > 1
        left_out = chosen if labels.ndim == 2 else chosen[..., None]
        given = np.where(left_out == 1, labels, -1 if is_index else np.nan)
        np.testing.assert_allclose(ours(given, outputs), expected, rtol=1e-5)
        if getattr(ours, "description", None) is not None:
            again = loss_from(ours.description)
            np.testing.assert_allclose(again(given, outputs), expected, rtol=1e-5)


@pytest.mark.eager
@pytest.mark.parametrize("labels", [OF_POSITIONS, ROWS_OF_POSITIONS], ids=["indices", "rows"])
def test_positions_left_out_have_no_gradient(labels):
    labels, outputs = labels.astype("float32"), LOGITS.copy()
    labels[0, 1] = np.nan if labels.ndim == 3 else -1
    outputs[0, 1] = np.nan
    outputs = tf.constant(outputs)
    loss = loss_from({"loss": CROSS_ENTROPY, "config": {"from_logits": True}})
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        losses = loss(labels, outputs)
    gradient = tape.gradient(losses, outputs).numpy()
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(gradient[0, 1], 0)
    assert (gradient[0, [0, 2]] != 0).all()
    # An image without any position.
    none = np.full(labels.shape, np.nan if labels.ndim == 3 else -1, "float32")
    none[1, 0] = labels[1, 0]
    expected = -np.log(np.exp(LOGITS[1, 0, 2]) / np.exp(LOGITS[1, 0]).sum())
    np.testing.assert_allclose(loss(none, LOGITS), [0, expected], rtol=1e-5)
