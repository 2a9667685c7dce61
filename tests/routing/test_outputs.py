"""What a network's outputs are taken for, live and as a SavedModel."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops
from reference import heads
from reference.random_network import sample
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import evaluate
from tfresidual.routing.routes import drop, unperturbed

pytestmark = pytest.mark.eager

CLASSES = 5
IMAGES = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype("float32")
INDICES = np.array([0, 1, 4, 2, 3, 1])
BINARY = np.array([0, 1, 1, 0, 1, 1])
SPARSE = "sparse_categorical_crossentropy"
OF_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(head, loss=None, blocks=1, pool=True):
    """Some blocks, and a head, which is a function of what is pooled, or of the last state."""
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    for _ in range(blocks):
        state = state + layers.Conv2D(3, 3, padding="same", activation="relu")(state)
    model = keras.Model(inputs, head(layers.GlobalAveragePooling2D()(state) if pool else state))
    if loss is not None:
        model.compile("sgd", loss)
    return model


def dense(activation=None, outputs=CLASSES):
    return heads.dense(activation, outputs)


def softmax(state):
    return dense("softmax")(state)


# What the outputs are


SOFTMAXES = {
    "tf.nn": dense(tf.nn.softmax),
    "keras.ops": dense(ops.softmax),
    "a layer": dense(layers.Softmax()),
    "an operation": lambda state: ops.softmax(dense()(state)),
    "wrapped": lambda state: layers.SpectralNormalization(layers.Dense(5, "softmax"))(state),
    "cast": lambda state: ops.cast(softmax(state), "float32"),
    "cast to bfloat16": lambda state: ops.cast(softmax(state), "bfloat16"),
    "clipped": lambda state: ops.clip(softmax(state), 1e-7, 1 - 1e-7),
    "reshaped": lambda state: ops.reshape(softmax(state), (-1, CLASSES)),
    "dropout": lambda state: layers.Dropout(0.5)(softmax(state)),
    "linear": lambda state: layers.Activation("linear", dtype="float32")(softmax(state)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", sample({name: name for name in SOFTMAXES}, every=2))
def test_a_softmax_however_it_is_written(name):
    model = network(SOFTMAXES[name])
    chain = tfr.chain(model)
    assert chain.outputs == "probabilities"
    values = evaluate(chain, (IMAGES, INDICES), [unperturbed(chain)])
    outputs = np.float64(ops.convert_to_numpy(ops.cast(model(IMAGES), "float32")))
    # The logits say more than what was rounded to bfloat16.
    allowed = 0.03 if name == "cast to bfloat16" else 1e-5
    expected = -np.log(outputs[np.arange(6), INDICES])
    np.testing.assert_allclose(values.cross_entropy[0], expected, rtol=allowed)
    entropy = -np.sum(outputs * np.log(outputs), axis=-1)
    np.testing.assert_allclose(values.entropy[0], entropy, rtol=allowed)
    losses = ops.convert_to_numpy(chain.loss(INDICES, model(IMAGES)))
    np.testing.assert_allclose(losses, expected, rtol=allowed)


@pytest.mark.parametrize(
    "head",
    [
        dense(tf.nn.sigmoid),
        lambda state: ops.sigmoid(dense()(state)),
        lambda state: ops.clip(dense("sigmoid")(state), 1e-7, 1 - 1e-7),
    ],
    ids=["tf.nn", "operation", "clipped"],
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


def own(labels, outputs):
    return outputs[:, 0]


class Softmax(layers.Layer):
    """Called like that of Keras, and another layer."""

    def call(self, inputs):
        return 2 * inputs


OF_LABELS = keras.losses.BinaryCrossentropy(from_logits=True)
# The activation tells, and then the loss.
KINDS = [
    ("probabilities", normalized, (SPARSE, keras.losses.CategoricalCrossentropy())),
    ("probabilities", normalized, ("kl_divergence",)),
    ("label_probabilities", normalized, ("binary_crossentropy",)),
    ("label_logits", normalized, (OF_LABELS,)),
    ("logits", normalized, (OF_LOGITS,)),
    # Nothing tells: logits, with a note.
    ("logits", normalized, (own, None)),
    # No activation: outputs of any sign are no probabilities.
    ("logits", dense(), (SPARSE, OF_LOGITS, "categorical_hinge", own, None)),
    ("logits", dense("log_softmax"), (SPARSE,)),
    ("logits", lambda state: ops.cast(dense()(state), "float32"), (SPARSE,)),
    ("label_logits", dense(), ("hinge", OF_LABELS, [OF_LABELS], keras.losses.binary_crossentropy)),
    ("label_logits", dense("linear"), ("binary_crossentropy",)),
    # Regression, unless the activation says that it is none.
    ("values", dense(), ("mse", keras.losses.Huber(), "mape", "msle", "log_cosh")),
    ("values", dense(), ("cosine_similarity",)),
    ("values", dense("relu"), ("mae",)),
    ("values", dense("exponential"), ("poisson",)),
    ("probabilities", dense(tf.nn.softmax), ("mse", "binary_crossentropy")),
    ("label_probabilities", dense("sigmoid"), ("mse", "binary_crossentropy")),
    # Keras takes the softmax of the logits of such sigmoids.
    ("probabilities", dense("sigmoid"), (SPARSE, keras.losses.CategoricalCrossentropy())),
    ("logits", lambda x: Softmax()(dense()(x)), (None,)),
    # Over another axis than that of classes.
    (
        "logits",
        lambda x: layers.Flatten()(
            layers.Softmax(axis=1)(layers.Reshape((CLASSES, 1))(dense()(x)))
        ),
        (None,),
    ),
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("expected", "head", "losses"), KINDS)
def test_the_activation_tells_and_then_the_loss(expected, head, losses):
    for loss in losses:
        assert tfr.chain(network(head, loss)).outputs == expected


def test_a_declared_kind_replaces_a_guess():
    net = network(normalized)
    guessed = tfr.chain(net)
    chain = tfr.chain(net, outputs="probabilities")
    assert chain.outputs == "probabilities" and len(chain.notes) < len(guessed.notes)
    losses = chain.loss(INDICES, net(IMAGES))
    outputs = np.float64(net(IMAGES))
    np.testing.assert_allclose(losses, -np.log(outputs[np.arange(6), INDICES]), rtol=1e-5)
    assert tfr.chain(chain, outputs="label_logits").outputs == "label_logits"
    with refused("outputs"):
        tfr.chain(net, outputs="classes")


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
            with refused("chain"):
                probe(chain, (IMAGES, targets))
        assert probes.perturbation(chain, (IMAGES, targets))["perturbation"].gt(0).all()
    frames = [probes.block_metrics(of, (IMAGES, targets)) for of in (model, tmp_path / "net")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-5)
    assert frames[0]["gradient_norm"].gt(0).all()


OTHER_SHAPES = {
    "of positions": (lambda state: layers.Dense(CLASSES, "softmax")(state), "(None, 4, 4, 5)"),
    "a number": (
        lambda state: ops.squeeze(dense("sigmoid", 1)(layers.Flatten()(state)), -1),
        "(None,)",
    ),
}


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_routes_are_not_scored_on_outputs_of_other_shapes(name):
    head, words = OTHER_SHAPES[name]
    chain = tfr.chain(network(head, pool=False))
    with refused("chain"):
        evaluate(chain, (IMAGES, INDICES), [unperturbed(chain)])
    # What the message says, though there is no row.
    for outputs in ("logits", "label_probabilities"):
        said = tfr.chain(chain, outputs=outputs)
        with refused("chain") as caught:
            evaluate(said, (IMAGES, BINARY), [unperturbed(chain)])
        assert words in str(caught.value)
    assert probes.perturbation(chain, (IMAGES, INDICES))["perturbation"].gt(0).all()


# Two classes with one output, and labels that a loss takes


def by_hand(labels, outputs):
    return ops.mean(ops.square(labels - outputs), axis=-1)


BINARY_NETWORKS = {
    "sigmoid": (dense("sigmoid", 1), "binary_crossentropy"),
    "not compiled": (dense("sigmoid", 1), None),
    "logits": (dense(None, 1), OF_LABELS),
    "tf.nn": (dense(tf.nn.sigmoid, 1), keras.losses.BinaryFocalCrossentropy()),
    "by hand": (dense("sigmoid", 1), by_hand),
}


@pytest.mark.parametrize("case", sample(BINARY_NETWORKS, every=6, others=pytest.mark.nightly))
def test_frames_of_two_classes(case, tmp_path):
    model = network(*case)
    tfr.export(model, tmp_path / "net")
    found = [
        [
            probe(chain, (IMAGES, labels))
            for probe in (probes.drop_blocks, probes.block_metrics, probes.signal_propagation)
        ]
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
    signature = tf.saved_model.load(str(tmp_path / "net")).signatures["block_metrics"]
    labels = signature.structured_input_signature[1]["labels"]
    assert (labels.dtype, labels.shape.as_list()) == (tf.float32, [None, 1])
    values = signature(images=IMAGES, labels=np.float32(BINARY)[:, None])["gradient_norm"]
    expected = found[0][1]["gradient_norm"]
    np.testing.assert_allclose(np.mean(values, axis=0), expected, rtol=1e-4)
    assert expected.gt(0).all()


def test_the_error_is_that_of_keras_even_where_all_labels_are_zero():
    model = network(dense("sigmoid", 1), blocks=2)
    p = np.float64(model.predict(IMAGES, verbose=0))
    model.layers[-1].bias.assign([-np.median(np.log(p / (1 - p)))])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    chain = tfr.chain(model)
    routes = [unperturbed(chain), drop(chain, (1, 0)), drop(chain, (1, 0), (1, 1))]
    for labels in (np.zeros(6, int), BINARY):
        loss, accuracy = model.evaluate(IMAGES, labels, verbose=0)
        values = evaluate(chain, (IMAGES, labels), routes, with_outputs=True)
        np.testing.assert_allclose(values.wrong[0].mean(), 1 - accuracy, rtol=1e-6)
        np.testing.assert_allclose(values.cross_entropy[0].mean(), loss, rtol=1e-5)
        p = values.outputs[..., 0]
        np.testing.assert_array_equal(values.agreement, (p > 0.5) == (p[0] > 0.5))
        np.testing.assert_array_equal(values.label_sets, labels[:, None] == 1)
    assert 0 < accuracy < 1 and 0 < values.agreement.mean() < 1
    assert values.classes == 2


@pytest.mark.parametrize("is_column", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_chance_of_two_classes(is_column):
    model = network(dense("sigmoid", 1), "binary_crossentropy")
    labels = (model.predict(IMAGES, verbose=0)[:, 0] > 0.5).astype(int)
    data = IMAGES, labels[:, None] if is_column else labels
    frame = probes.convergence_indices(model, data, times=2)
    np.testing.assert_allclose(frame["chance"], 0.5)
    assert (frame["error"] == 0).all()
    largest = probes.convergence_frames(
        model, data, times=2, chance="largest class", at_chance="nan"
    )[1]
    np.testing.assert_allclose(largest["chance"], min(labels.mean(), 1 - labels.mean()))
