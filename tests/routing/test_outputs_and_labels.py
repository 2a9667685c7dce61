"""What a network's outputs are taken for, and what labels it takes: live and as a SavedModel.

Scores are compared with plain NumPy in float64.
"""

import dataclasses
import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops
from reference.batches import Batches
from reference.random_network import sample

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.routing import evaluate
from tfresidual.routing.routes import drop, unperturbed
from tfresidual.routing.scores import prediction_scores

pytestmark = pytest.mark.eager

CLASSES = 5
IMAGES = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype("float32")
INDICES = np.array([0, 1, 4, 2, 3, 1])
BINARY = np.array([0, 1, 1, 0, 1, 1])
SPARSE = "sparse_categorical_crossentropy"
OF_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(head, loss=None, blocks=1):
    """Some blocks, and a head, which is a function of what is pooled."""
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    for _ in range(blocks):
        state = state + layers.Conv2D(3, 3, padding="same", activation="relu")(state)
    model = keras.Model(inputs, head(layers.GlobalAveragePooling2D()(state)))
    if loss is not None:
        model.compile("sgd", loss)
    return model


def dense(activation=None, outputs=CLASSES):
    """The function that puts a new layer after a state, whose outputs are far from each other."""

    def head(state):
        wide = keras.initializers.Orthogonal(2.0)
        return layers.Dense(outputs, activation, kernel_initializer=wide)(state)

    return head


def softmax(state):
    return dense("softmax")(state)


# What the outputs are


SOFTMAXES = {
    "tf.nn": dense(tf.nn.softmax),
    "keras.ops": dense(ops.softmax),
    "a lambda": dense(lambda x: tf.nn.softmax(x)),
    "a layer": dense(layers.Softmax()),
    "with a temperature": dense(lambda x: ops.softmax(x / 3)),
    "an operation": lambda state: ops.softmax(dense()(state)),
    "a Lambda": lambda state: layers.Lambda(lambda x: tf.nn.softmax(x))(dense()(state)),
    "wrapped": lambda state: layers.SpectralNormalization(layers.Dense(5, "softmax"))(state),
    "cast": lambda state: ops.cast(softmax(state), "float32"),
    "cast to bfloat16": lambda state: ops.cast(softmax(state), "bfloat16"),
    "times one": lambda state: softmax(state) * 1.0,
    "clipped": lambda state: ops.clip(softmax(state), 1e-7, 1 - 1e-7),
    "reshaped": lambda state: ops.reshape(softmax(state), (-1, CLASSES)),
    "dropout": lambda state: layers.Dropout(0.5)(softmax(state)),
    "a Lambda that casts": lambda state: layers.Lambda(lambda x: tf.cast(x, "float32"))(
        softmax(state)
    ),
    "a Lambda that clips": lambda state: layers.Lambda(lambda x: tf.clip_by_value(x, 1e-7, 1.0))(
        softmax(state)
    ),
}


def log_probabilities(outputs, labels):
    return -np.log(np.float64(outputs)[np.arange(len(labels)), labels])


@pytest.mark.parametrize("name", sample({name: name for name in SOFTMAXES}, every=2))
def test_a_softmax_however_it_is_written(name):
    model = network(SOFTMAXES[name])
    chain = tfr.chain(model)
    assert chain.outputs == "probabilities"
    values = evaluate(chain, (IMAGES, INDICES), [unperturbed(chain)])
    outputs = ops.convert_to_numpy(ops.cast(model(IMAGES), "float32"))
    # The logits say more than what was rounded to bfloat16.
    allowed = 0.03 if name == "cast to bfloat16" else 1e-5
    expected = log_probabilities(outputs, INDICES)
    np.testing.assert_allclose(values.cross_entropy[0], expected, rtol=allowed)
    entropy = -np.sum(outputs * np.log(np.float64(outputs)), axis=-1)
    np.testing.assert_allclose(values.entropy[0], entropy, rtol=allowed)
    losses = ops.convert_to_numpy(chain.loss(INDICES, model(IMAGES)))
    np.testing.assert_allclose(losses, expected, rtol=allowed)


@pytest.mark.parametrize(
    "head",
    [
        dense(tf.nn.sigmoid),
        dense(lambda x: ops.sigmoid(x)),
        lambda state: ops.sigmoid(dense()(state)),
        lambda state: ops.clip(dense("sigmoid")(state), 1e-7, 1 - 1e-7),
    ],
    ids=["tf.nn", "lambda", "operation", "clipped"],
)
def test_a_sigmoid_however_it_is_written(head):
    chain = tfr.chain(network(head))
    assert chain.outputs == "label_probabilities"
    rows = np.eye(CLASSES)[INDICES]
    outputs = np.float64(chain(IMAGES))
    said = np.where(rows == 1, outputs, 1 - outputs)
    values = evaluate(chain, (IMAGES, rows), [unperturbed(chain)])
    np.testing.assert_allclose(values.cross_entropy[0], -np.log(said).sum(axis=1), rtol=1e-4)


def normalized(state):
    return layers.Lambda(lambda x: x / tf.reduce_sum(x, -1, keepdims=True))(
        dense("softplus")(state)
    )


@pytest.mark.parametrize(
    ("head", "loss", "expected"),
    [
        # The activation tells nothing: the loss does.
        (normalized, SPARSE, "probabilities"),
        (normalized, keras.losses.CategoricalCrossentropy(), "probabilities"),
        (normalized, "kl_divergence", "probabilities"),
        (normalized, OF_LOGITS, "logits"),
        (normalized, "binary_crossentropy", "label_probabilities"),
        (normalized, keras.losses.BinaryCrossentropy(from_logits=True), "label_logits"),
        (normalized, lambda labels, outputs: outputs[:, 0], "logits"),
        (normalized, None, "logits"),
        # No activation: outputs of any sign are no probabilities.
        (dense(), SPARSE, "logits"),
        (dense(), OF_LOGITS, "logits"),
        (dense("linear"), "binary_crossentropy", "label_logits"),
        (dense("log_softmax"), SPARSE, "logits"),
        (lambda state: ops.cast(dense()(state), "float32"), SPARSE, "logits"),
        (dense(), "hinge", "label_logits"),
        (dense(), "categorical_hinge", "logits"),
        # Regression, unless the activation says that it is none.
        (dense(), "mse", "values"),
        (dense("relu"), "mae", "values"),
        (dense(), keras.losses.Huber(), "values"),
        (dense(), "mape", "values"),
        (dense(), "msle", "values"),
        (dense(), "log_cosh", "values"),
        (dense(), "cosine_similarity", "values"),
        (dense("exponential"), "poisson", "values"),
        (dense(tf.nn.softmax), "mse", "probabilities"),
        (dense("sigmoid"), "mse", "label_probabilities"),
    ],
)
def test_the_activation_tells_and_then_the_loss(head, loss, expected):
    assert tfr.chain(network(head, loss)).outputs == expected


def test_an_activation_that_fails_on_other_sizes_tells_nothing():
    weights = np.ones(CLASSES, "float32")
    model = network(dense(lambda x: tf.nn.softmax(x * weights)), SPARSE)
    assert tfr.chain(model).outputs == "probabilities"


# Values that are no classes


@pytest.mark.parametrize("outputs", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_routes_are_not_scored_on_values(outputs, tmp_path):
    targets = np.random.default_rng(1).normal(size=(6, outputs))
    model = network(dense(outputs=outputs), "mse", blocks=2)
    tfr.export(model, tmp_path / "net")
    for chain in (tfr.chain(model), tfr.chain(tmp_path / "net")):
        for probe in (
            lambda chain, data: evaluate(chain, data, [unperturbed(chain)]),
            probes.drop_blocks,
            probes.readout,
            probes.repeat_last_block,
            probes.shuffle_blocks,
            probes.borderline,
            probes.convergence_indices,
        ):
            with pytest.raises(ValueError, match=r"`chain` must return classes.*Received: .*value"):
                probe(chain, (IMAGES, targets))
        assert probes.perturbation(chain, (IMAGES, targets))["perturbation"].gt(0).all()
    frames = [probes.block_metrics(of, (IMAGES, targets)) for of in (model, tmp_path / "net")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-5)
    assert frames[0]["gradient_norm"].gt(0).all()


# Two classes with one output


def binary_scores(logits, labels):
    """In float64, from the definitions."""
    p = 1 / (1 + np.exp(-logits))
    right = np.where(labels == 1, p, 1 - p)
    return {
        "wrong": (p > 0.5) != (labels == 1),
        "cross_entropy": -np.log(right),
        "entropy": -p * np.log(p) - (1 - p) * np.log(1 - p),
        "margin": right - (1 - right),
    }


@pytest.mark.parametrize("kind", ["label_probabilities", "label_logits"])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
def test_scores_of_two_classes_by_hand(kind, labels):
    logits = np.array([-2.0, -0.1, 0.1, 3.0])
    outputs = logits if kind == "label_logits" else 1 / (1 + np.exp(-logits))
    outputs, labels = outputs[:, None].astype("float32"), np.array(labels)
    expected = binary_scores(logits, labels)
    for form in (labels, labels[:, None], labels.astype("float32"), labels.astype(bool)):
        scores = prediction_scores(kind, form, outputs)
        for name, values in expected.items():
            assert scores[name].shape == (4,)
            np.testing.assert_allclose(scores[name], values, rtol=1e-4, err_msg=name)
        np.testing.assert_array_equal(scores["predicted"], logits[:, None] > 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_one_output_that_is_not_finite_names_nothing(value):
    scores = prediction_scores("label_logits", np.array([0, 1]), np.float32([[value], [value]]))
    np.testing.assert_array_equal(scores["wrong"], [1, 1])
    np.testing.assert_array_equal(scores["predicted"], [[False], [False]])


def binary_by_hand(labels, outputs):
    return ops.mean(ops.square(labels - outputs), axis=-1)


BINARY_NETWORKS = {
    "sigmoid": (dense("sigmoid", 1), "binary_crossentropy"),
    "not compiled": (dense("sigmoid", 1), None),
    "logits": (dense(None, 1), keras.losses.BinaryCrossentropy(from_logits=True)),
    "tf.nn": (dense(tf.nn.sigmoid, 1), keras.losses.BinaryFocalCrossentropy()),
    "by hand": (dense("sigmoid", 1), binary_by_hand),
}


@pytest.mark.parametrize("case", sample(BINARY_NETWORKS, every=6, others=pytest.mark.nightly))
def test_frames_of_two_classes(case, tmp_path):
    model = network(*case)
    tfr.export(model, tmp_path / "net")
    found = [
        (
            probes.drop_blocks(chain, (IMAGES, labels)),
            probes.block_metrics(chain, (IMAGES, labels)),
            probes.signal_propagation(chain, (IMAGES, labels)),
        )
        for chain in (tfr.chain(model), tfr.chain(tmp_path / "net"))
        for labels in (BINARY, BINARY[:, None], BINARY.astype("float32"))
    ]
    for frames in found[1:]:
        for frame, expected in zip(frames, found[0], strict=True):
            pd.testing.assert_frame_equal(frame, expected, rtol=1e-4, atol=1e-6)
    outputs = np.float64(model.predict(IMAGES, verbose=0))[:, 0]
    is_logit = tfr.chain(model).outputs == "label_logits"
    error = np.mean((outputs > (0 if is_logit else 0.5)) != BINARY)
    np.testing.assert_allclose(found[0][0]["unperturbed_error"], error)
    assert found[0][1]["gradient_norm"].gt(0).all()
    signature = tf.saved_model.load(str(tmp_path / "net")).signatures["block_metrics"]
    labels = signature.structured_input_signature[1]["labels"]
    assert (labels.dtype, labels.shape.as_list()) == (tf.float32, [None, 1])
    values = signature(images=IMAGES, labels=np.float32(BINARY)[:, None])["gradient_norm"]
    expected = found[0][1]["gradient_norm"]
    np.testing.assert_allclose(np.mean(values, axis=0), expected, rtol=1e-4)


def test_the_error_is_that_of_keras_even_where_all_labels_are_zero():
    model = network(dense("sigmoid", 1))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    for labels in (np.zeros(6, int), BINARY):
        loss, accuracy = model.evaluate(IMAGES, labels, verbose=0)
        chain = tfr.chain(model)
        values = evaluate(chain, (IMAGES, labels), [unperturbed(chain)])
        np.testing.assert_allclose(values.wrong.mean(), 1 - accuracy, rtol=1e-6)
        np.testing.assert_allclose(values.cross_entropy.mean(), loss, rtol=1e-5)
    assert 0 < accuracy < 1


def test_values_of_routes_through_a_network_of_two_classes():
    model = network(dense("sigmoid", 1), blocks=2)
    p = np.float64(model.predict(IMAGES, verbose=0))
    model.layers[-1].bias.assign([-np.median(np.log(p / (1 - p)))])
    chain = tfr.chain(model)
    routes = [unperturbed(chain), drop(chain, (1, 0)), drop(chain, (1, 0), (1, 1))]
    values = evaluate(chain, (IMAGES, BINARY), routes, with_outputs=True)
    p = np.float64(values.outputs[..., 0])
    for name, expected in binary_scores(np.log(p / (1 - p)), BINARY).items():
        np.testing.assert_allclose(getattr(values, name), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(values.agreement, (p > 0.5) == (p[0] > 0.5))
    assert 0 < values.agreement.mean() < 1
    assert values.classes == 2


@pytest.mark.parametrize(
    "form",
    [
        lambda labels: labels,
        pytest.param(lambda labels: labels[:, None], marks=pytest.mark.nightly),
    ],
)
def test_chance_of_two_classes(form):
    model = network(dense("sigmoid", 1), "binary_crossentropy")
    labels = (model.predict(IMAGES, verbose=0)[:, 0] > 0.5).astype(int)
    labels[0] = 1 - labels[0]
    data = IMAGES, form(labels)
    frame = probes.convergence_indices(model, data, times=2)
    np.testing.assert_allclose(frame["chance"], 0.5)
    np.testing.assert_allclose(frame["error"][frame["basis"] == "labels"], 1 / 6)
    largest = probes.convergence_frames(
        model, data, times=2, chance="largest class", at_chance="nan"
    )[1]
    np.testing.assert_allclose(largest["chance"], min(labels.mean(), 1 - labels.mean()))


# Labels that cannot be used


BAD_LABELS = {
    "too high": (SPARSE, softmax, INDICES + 7, "from 0 to 4, or a row of 5"),
    "negative": (SPARSE, softmax, INDICES - 1, "from 0 to 4, or a row of 5"),
    "no loss": (None, softmax, INDICES[:, None] + 1, "from 0 to 4, or a row of 5"),
    "other rows": (SPARSE, softmax, np.ones((6, 3)), "from 0 to 4, or a row of 5"),
    "negative rows": (None, softmax, -np.eye(5)[INDICES], "from 0 to 4, or a row of 5"),
    "two classes": ("binary_crossentropy", dense("sigmoid", 1), 2 * BINARY, "from 0 to 1. "),
    "signs": ("binary_crossentropy", dense("sigmoid", 1), 2 * BINARY - 1, "from 0 to 1. "),
    "NaN": ("binary_crossentropy", dense("sigmoid", 1), BINARY * np.nan, "from 0 to 1. "),
}


@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_out_of_range(name):
    loss, head, labels, words = BAD_LABELS[name]
    chain = tfr.chain(network(head, loss))
    for probe in (probes.drop_blocks, probes.block_metrics, probes.signal_propagation):
        with pytest.raises(ValueError, match=r"`data` must hold labels.*Received: ") as raised:
            probe(chain, (IMAGES, labels))
        assert words in str(raised.value)
    # Of which no labels are read.
    assert len(probes.perturbation(chain, (IMAGES, labels))) == 1


def test_a_later_batch_is_checked_too():
    labels = INDICES.copy()
    labels[-1] = CLASSES
    data = tf.data.Dataset.from_tensor_slices((IMAGES, labels)).batch(2)
    with pytest.raises(ValueError, match=r"must hold labels from 0 to 4.*from 3 to 5"):
        probes.block_metrics(network(softmax, SPARSE), data)


def test_a_loss_by_hand_says_itself_what_it_takes():
    def ignoring(labels, outputs):
        kept = ops.cast(labels >= 0, "float32")
        return kept * ops.sparse_categorical_crossentropy(ops.maximum(labels, 0), outputs)

    frame = probes.block_metrics(
        network(softmax, ignoring, blocks=2),
        (IMAGES, np.where(INDICES == 1, -1, INDICES)),
        per_image=True,
    )
    is_ignored = np.tile(INDICES == 1, 2)
    np.testing.assert_array_equal(frame["gradient_norm"] == 0, is_ignored)


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


@pytest.mark.parametrize(
    "loss",
    [
        *(on_rows, on_gathered, pytest.param(on_both, marks=pytest.mark.system)),
        *(pytest.param(loss, marks=pytest.mark.nightly) for loss in (on_indices, on_flattened)),
    ],
)
def test_labels_of_a_loss_by_hand(loss, tmp_path):
    model = network(softmax, loss)
    tfr.export(model, tmp_path / "net")
    signature = tf.saved_model.load(str(tmp_path / "net")).signatures["block_metrics"]
    given = signature.structured_input_signature[1]["labels"]
    labels = INDICES
    if loss is on_rows:
        # Whole numbers, as Keras takes them.
        labels = np.eye(CLASSES, dtype=int)[INDICES]
        assert (given.dtype, given.shape.as_list()) == (tf.float32, [None, CLASSES])
    else:
        assert (given.dtype, given.shape.as_list()) == (tf.int64, [None])
    expected = probes.block_metrics(model, (IMAGES, labels))
    loaded = tfr.chain(tmp_path / "net")
    frame = probes.block_metrics(loaded, (IMAGES, labels))
    pd.testing.assert_frame_equal(frame, expected, rtol=1e-5)
    values = signature(images=IMAGES, labels=tf.cast(labels, given.dtype))["gradient_norm"]
    np.testing.assert_allclose(np.mean(values, axis=0), expected["gradient_norm"], rtol=1e-5)
    if loss is on_both:
        rows = np.eye(CLASSES, dtype="float32")[INDICES]
        frame = probes.block_metrics(loaded, (IMAGES, rows))
        pd.testing.assert_frame_equal(frame, expected, rtol=1e-5)


@pytest.mark.system
def test_real_targets_of_a_loss_by_hand_stay_real(tmp_path):
    def squares(labels, outputs):
        return ops.square(ops.reshape(labels, (-1, 1)) - outputs)

    model = network(dense(None, 1), squares)
    tfr.export(model, tmp_path / "net")
    data = IMAGES, np.random.default_rng(1).normal(size=6)
    frames = [probes.block_metrics(of, data) for of in (model, tmp_path / "net")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-5)
    # |dL/dp| is 2 |p - y|, and the norm is proportional to it.
    per_image = probes.block_metrics(model, data, per_image=True)["gradient_norm"][-6:]
    ones = network(dense(None, 1), lambda labels, outputs: outputs)
    unit = probes.block_metrics(ones, data, per_image=True)["gradient_norm"][-6:]
    p = np.float64(model.predict(IMAGES, verbose=0)[:, 0])
    np.testing.assert_allclose(per_image, unit * 2 * np.abs(p - data[1]), rtol=1e-4)


class OfTheBatch(keras.losses.Loss):
    def call(self, labels, outputs):
        return of_the_batch(labels, outputs)


def of_the_batch(labels, outputs):
    return ops.mean(on_indices(labels, outputs))


@pytest.mark.parametrize(
    "loss",
    [of_the_batch, pytest.param(OfTheBatch(), marks=pytest.mark.nightly)],
    ids=["function", "class"],
)
def test_a_loss_of_the_whole_batch(loss, tmp_path):
    model = network(softmax, loss)
    name = "OfTheBatch" if isinstance(loss, OfTheBatch) else "of_the_batch"
    for probe in (probes.block_metrics, probes.signal_propagation):
        with pytest.raises(
            ValueError, match=f"`loss` .*one number per image.*Received: loss={name}"
        ):
            probe(model, (IMAGES, INDICES))
    tfr.export(model, tmp_path / "net")
    signatures = tf.saved_model.load(str(tmp_path / "net")).signatures
    assert "block_metrics" not in signatures
    assert "route" in signatures


# No gradient


def test_a_head_without_a_gradient(tmp_path):
    model = network(lambda state: ops.stop_gradient(softmax(state)))
    tfr.export(model, tmp_path / "net")
    signatures = tf.saved_model.load(str(tmp_path / "net")).signatures
    assert "block_metrics" not in signatures
    for source in (model, tmp_path / "net"):
        chain = tfr.chain(source)
        for probe in (probes.block_metrics, probes.signal_propagation, probes.repeat_last_block):
            with pytest.raises(
                ValueError, match=r"`chain` must have a loss with a gradient.*Recei"
            ):
                probe(chain, (IMAGES, INDICES))
        assert len(probes.drop_blocks(chain, (IMAGES, INDICES))) == 1
    outputs = signatures["route"](images=IMAGES, applications=[1])["outputs"]
    np.testing.assert_allclose(outputs, model.predict(IMAGES, verbose=0), rtol=1e-5)


def test_a_head_outside_of_tensorflow_has_no_gradient():
    def doubled(values):
        return tf.ensure_shape(tf.numpy_function(lambda x: 2 * x, [values], "float32"), (None, 3))

    model = network(
        lambda state: softmax(layers.Lambda(doubled, output_shape=(3,), name="numpy")(state))
    )
    with pytest.raises(ValueError, match=r"`chain` must have a loss with a gradient.*Received: "):
        probes.block_metrics(model, (IMAGES, INDICES))
    assert len(probes.drop_blocks(model, (IMAGES, INDICES))) == 1


def test_states_of_several_dtypes():
    """The head reads those of the last stage as one batch."""

    def head(state):
        return ops.cast(ops.mean(state, axis=(1, 2)), "float32")

    block = tfr.routing.Block
    chain = tfr.routing.Chain(
        name="widening",
        stem=lambda images: ops.cast(images, "float16"),
        stages=(
            tfr.routing.Stage(
                1,
                (
                    block(1, 0, True, lambda state: ops.cast(state, "float32") * 1.5),
                    block(1, 1, True, lambda state: state * 2),
                ),
            ),
        ),
        head=head,
        loss=lambda labels, outputs: ops.sum(ops.square(outputs), axis=-1),
        input_shape=(4, 4, 1),
    )
    frame = probes.block_metrics(chain, (IMAGES, INDICES))
    mean = np.float64(IMAGES).mean(axis=(1, 2, 3))
    # dL/dh is 2 * 3 * 3 * mean / 16 for each of 16 pixels.
    np.testing.assert_allclose(
        frame["gradient_norm"][0], np.mean(18 * np.abs(mean) / 16 * 4), rtol=2e-3
    )
    assert frame["readout_cosine_loss"].notna().all()


def head_of(function):
    return lambda pooled: function(layers.Dense(CLASSES)(pooled))


class Counting(layers.Layer):
    """A layer that remembers its calls with numbers; those that trace its shapes are others."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, inputs):
        self.calls += tf.executing_eagerly()
        return inputs


def test_layers_of_the_model_are_not_run_to_see_what_they_do():
    activation = layers.PReLU()
    net = network(lambda pooled: layers.Dense(CLASSES, activation=activation)(pooled))
    assert tfr.chain(net).outputs == "logits"
    assert net.predict(IMAGES, verbose=0).shape == (len(IMAGES), CLASSES)
    counting = Counting()
    net = network(head_of(counting))
    calls = counting.calls
    tfr.chain(net)
    assert counting.calls == calls


def test_sizes_that_are_not_known():
    flat = layers.Lambda(lambda x: tf.reshape(x, [tf.shape(x)[0], -1]))
    net = network(head_of(lambda x: layers.ReLU()(flat(x))))
    assert tfr.chain(net).outputs == "logits"


def test_a_softmax_over_another_axis_is_none_of_classes():
    maps = layers.Reshape((CLASSES, 1))
    net = network(head_of(lambda x: layers.Flatten()(layers.Softmax(axis=1)(maps(x)))))
    assert tfr.chain(net).outputs == "logits"


def test_a_mean_of_probabilities_is_one():
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    state = state + layers.Conv2D(3, 3, padding="same")(state)
    state = layers.GlobalAveragePooling2D()(layers.Softmax()(state))
    assert tfr.chain(keras.Model(inputs, state)).outputs == "probabilities"


def test_a_class_that_the_loss_ignores():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    net = network(layers.Dense(CLASSES, activation="softmax"), loss)
    labels = np.array([0, 1, -1, 2, 3, 1])
    assert np.isfinite(probes.block_metrics(net, (IMAGES, labels))["l2_ratio"]).all()


def test_labels_of_a_hinge():
    net = network(layers.Dense(CLASSES), "hinge")
    rows = np.eye(CLASSES, dtype="float32")[INDICES]
    expected = probes.drop_blocks(net, (IMAGES, rows))
    pd.testing.assert_frame_equal(probes.drop_blocks(net, (IMAGES, 2 * rows - 1)), expected)


def test_labels_that_are_not_read_are_not_checked():
    net = network(layers.Dense(CLASSES, activation="softmax"))
    assert len(probes.line_element(net, (IMAGES, -np.ones(len(IMAGES), int))))


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.DropBlocks,
        callbacks.Readout,
        callbacks.Borderline,
        callbacks.ConvergenceIndices,
    ],
)
def test_nothing_is_trained_where_errors_cannot_be_counted(callback):
    net = network(layers.Dense(CLASSES), "mse")
    rows = np.eye(CLASSES, dtype="float32")[INDICES]
    before = [weight.numpy() for weight in net.weights]
    with pytest.raises(ValueError, match=r"must return classes or labels.*Received: "):
        net.fit(IMAGES, rows, verbose=0, callbacks=[callback((IMAGES, rows))])
    for weight, value in zip(net.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.system
def test_a_loss_with_a_table_and_outputs_that_are_maps(tmp_path):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([0]), tf.constant([2.0])), 0.0
    )
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    state = state + layers.Conv2D(3, 3, padding="same")(state)
    net = keras.Model(inputs, state)
    net.compile(
        "sgd", lambda a, b: table.lookup(tf.constant(0)) * ops.mean((a - b) ** 2, (1, 2, 3))
    )
    tfr.export(net, tmp_path / "net")
    labels = np.zeros((len(IMAGES), 4, 4, 3), "float32")
    live, loaded = (
        probes.block_metrics(source, (IMAGES, labels)) for source in (net, tmp_path / "net")
    )
    pd.testing.assert_frame_equal(live, loaded, rtol=1e-5)


def test_outputs_with_small_axes_and_a_loss_by_hand(tmp_path):
    inputs = keras.Input((2, 3, 1))
    state = layers.Conv2D(4, 3, padding="same")(inputs)
    state = state + layers.Conv2D(4, 3, padding="same")(state)
    net = keras.Model(inputs, state)
    net.compile("sgd", lambda a, b: ops.mean((a - b) ** 2, (1, 2, 3)))
    tfr.export(net, tmp_path / "net")
    assert len(tfr.chain(tmp_path / "net").blocks) == 1


class Softmax(layers.Layer):
    """Called like that of Keras, and another layer."""

    def call(self, inputs):
        return 2 * inputs


def test_a_layer_that_is_called_like_one_of_keras_is_not_taken_for_it():
    assert tfr.chain(network(head_of(Softmax()))).outputs == "logits"


# Losses that do not say all they are


def loss_changed_later():
    loss = keras.losses.CategoricalCrossentropy()
    # Says so, and does not do it.
    loss.label_smoothing = 0.3
    return loss


LOSSES = {
    "Huber": (lambda: keras.losses.Huber(0.1), False),
    "Huber as it is": (keras.losses.Huber, True),
    "changed later": (loss_changed_later, False),
    "an array": (lambda: keras.losses.CategoricalFocalCrossentropy(np.ones(5) / 9), False),
    "a number": (lambda: keras.losses.CategoricalFocalCrossentropy(0.1, 3.0), True),
    "smoothing": (lambda: keras.losses.CategoricalCrossentropy(label_smoothing=0.2), True),
    "Tversky": (lambda: keras.losses.Tversky(0.3, 0.9, axis=-1), True),
    "cross-entropy": (lambda: keras.losses.CategoricalCrossentropy(), True),
    "partial": (lambda: functools.partial(keras.losses.huber, delta=0.1), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_one_of_compile(name):
    make, is_described = LOSSES[name]
    model, loss = network(softmax), make()
    model.compile("sgd", loss)
    outputs = model(IMAGES)
    rows = np.eye(CLASSES, dtype="float32")[INDICES]
    used = tfr.chain(model).loss
    expected = (loss.call if isinstance(loss, keras.losses.Loss) else loss)(rows, outputs)
    np.testing.assert_allclose(used(rows, outputs).numpy().mean(), np.mean(expected), rtol=1e-5)
    assert hasattr(used, "description") == is_described


def test_a_loss_over_the_images_is_refused():
    model = network(softmax, keras.losses.CosineSimilarity(axis=0))
    with pytest.raises(ValueError, match="one number per image, not one for all"):
        probes.block_metrics(model, (IMAGES, np.eye(CLASSES)[INDICES]))


def test_a_delta_reaches_gradients_and_a_saved_model(tmp_path):
    targets = 3 * np.random.default_rng(1).normal(size=(6, 2)).astype("float32")
    frames = []
    for loss in (keras.losses.Huber(0.1), lambda a, b: keras.losses.huber(a, b, delta=0.1)):
        model = network(dense(outputs=2), loss)
        frames.append(probes.block_metrics(model, (IMAGES, targets)))
    model.compile("sgd", keras.losses.Huber(0.1))
    tfr.export(model, tmp_path / "net")
    frames.append(probes.block_metrics(tmp_path / "net", (IMAGES, targets)))
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0], rtol=1e-4, atol=1e-6)
    model.compile("sgd", keras.losses.Huber())
    other = probes.block_metrics(model, (IMAGES, targets))
    assert (other["gradient_norm"] > 2 * frames[0]["gradient_norm"]).all()


# Outputs and labels of other shapes


def of_tokens(state):
    return layers.Dense(CLASSES, "softmax")(state)


SHAPES = {
    "of positions": (lambda inputs: of_tokens(inputs), r"shape \(None, 4, 4, 5\)"),
    "a number": (
        lambda inputs: ops.squeeze(dense("sigmoid", 1)(layers.Flatten()(inputs)), -1),
        r"shape \(None,\)",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_routes_are_not_scored_on_outputs_of_other_shapes(name):
    head, words = SHAPES[name]
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    state = state + layers.Conv2D(3, 3, padding="same")(state)
    chain = tfr.chain(keras.Model(inputs, head(state)))
    routes = [unperturbed(chain)]
    with pytest.raises(ValueError, match="If each image's row of outputs stands for"):
        evaluate(chain, (IMAGES, INDICES), routes)
    # What the message says, though there is no row.
    for outputs in ("logits", "label_probabilities"):
        said = dataclasses.replace(chain, outputs=outputs)
        with pytest.raises(ValueError, match=rf"must return one row of outputs .*{words}"):
            evaluate(said, (IMAGES, BINARY), routes)
    assert probes.perturbation(chain, (IMAGES, INDICES))["perturbation"].gt(0).all()


@pytest.mark.compiled
def test_one_index_for_many_positions():
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    state = state + layers.Conv2D(3, 3, padding="same")(state)
    net = keras.Model(inputs, of_tokens(state))
    net.compile("sgd", SPARSE)
    with pytest.raises(ValueError, match=r"as the loss .* takes them.*labels of shape \(None,\)"):
        probes.block_metrics(net, (IMAGES, INDICES))
    assert len(probes.block_metrics(net, (IMAGES, np.ones((6, 4, 4), int)))) == 1


ROWS = np.eye(CLASSES)[INDICES]
SMALL = IMAGES[:2], INDICES[:2]
WRONG_DATA = {
    "strings": ((IMAGES, INDICES.astype(str)), "labels that are numbers"),
    "complex": ((IMAGES, INDICES.astype(complex)), "labels that are numbers"),
    "half": ((IMAGES, INDICES / 2), "labels from 0 to 4"),
    "infinite": ((IMAGES, np.where(ROWS == 1, np.inf, 0)), "labels from 0 to 4"),
    "ragged": (
        (IMAGES, tf.ragged.constant([[1]] * 5 + [[1, 2]])),
        r"be a pair of arrays.*\.to_tensor",
    ),
    "sparse": ((IMAGES, tf.sparse.from_dense(ROWS)), r"be a pair of arrays.*to_dense"),
    "objects": ((IMAGES, np.array([[1]] * 5 + [[1, 2]], object)), "labels of numbers"),
    "no labels": ((IMAGES, None), "hold labels"),
    "one for all": (Batches((IMAGES, 3)), "labels of numbers"),
    "a dict": (Batches((IMAGES, {"a": INDICES})), "labels of numbers"),
    "images as strings": ((IMAGES.astype(str), INDICES), "images of numbers"),
    "complex images": ((IMAGES.astype(complex), INDICES), "images of numbers"),
    "too few": (Batches((IMAGES, INDICES[:4])), "as many labels as images"),
    "too many": (Batches((IMAGES[:4], INDICES)), "as many labels as images"),
    "other shape": (Batches(SMALL, (IMAGES, INDICES[:, None])), "the same dtypes"),
    "rows then": (Batches(SMALL, (IMAGES, ROWS)), "the same dtypes"),
    "floats then": (Batches(SMALL, (IMAGES, INDICES / 1)), "the same dtypes"),
    "double images": (Batches(SMALL, (np.float64(IMAGES), INDICES)), "the same dtypes"),
    "other size": (Batches(SMALL, (IMAGES[:, :3], INDICES)), "of shape"),
    "nothing": (Batches((IMAGES[:0], INDICES[:0])), "at least one batch"),
    "no weights": (
        (IMAGES, INDICES, np.zeros(len(IMAGES))),
        r"weight 0: at least one batch with images\. (?=.{,200}$)",
    ),
}


@pytest.fixture(scope="module")
def classifier():
    return tfr.chain(network(softmax, SPARSE))


@pytest.mark.parametrize("name", WRONG_DATA)
def test_data_that_cannot_be_used(name, classifier):
    data, words = WRONG_DATA[name]
    routes = [unperturbed(classifier)]
    for probe in (
        lambda data: evaluate(classifier, data, routes),
        lambda data: probes.block_metrics(classifier, data),
    ):
        with pytest.raises(ValueError, match=rf"Argument `data` must .*{words}.*Received: "):
            probe(data)


RIGHT_DATA = {
    "empty batches": Batches((IMAGES[:0], INDICES[:0]), (IMAGES, INDICES), SMALL),
    "a column": (np.concatenate([IMAGES, IMAGES[:2]]), [[0], [1], [4], [2], [3], [1], [0], [1]]),
    "rows of bools": Batches((IMAGES, ROWS == 1), (IMAGES[:2], ROWS[:2] == 1)),
    "floats": Batches((IMAGES, INDICES / 1), (IMAGES[:2], INDICES[:2] / 1)),
}


@pytest.mark.parametrize("name", RIGHT_DATA)
def test_data_in_any_form(name, classifier):
    plain = np.concatenate([IMAGES, IMAGES[:2]]), np.concatenate([INDICES, INDICES[:2]])
    for probe in (probes.drop_blocks, probes.block_metrics):
        expected = probe(classifier, plain)
        pd.testing.assert_frame_equal(probe(classifier, RIGHT_DATA[name]), expected, rtol=1e-4)
