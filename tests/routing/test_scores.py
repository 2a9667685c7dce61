"""Losses and matches of single images, by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import random_network

import tfresidual as tfr
from tfresidual.metrics import exact_match
from tfresidual.routing.losses import loss_of, softmax_cross_entropy
from tfresidual.routing.scores import prediction_scores
from tfresidual.sources.outputs import kind_of, outputs_of

pytestmark = pytest.mark.eager

OUTPUTS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], "float32")
SPARSE = -np.log([0.7, 0.1])


def small_network(**settings):
    return random_network.random_network(blocks=1, widths=(4,), **settings)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", None])
def test_sparse_cross_entropy(loss):
    net = small_network(classes=3)
    if loss:
        net.compile("sgd", loss)
    for labels in (np.array([0, 2]), np.array([[0], [2]])):
        np.testing.assert_allclose(loss_of(net, kind_of(net))(labels, OUTPUTS), SPARSE, rtol=1e-5)


def test_loss_object_function_and_single_lists():
    net = small_network(classes=3)
    labels = np.eye(3, dtype="float32")[[0, 2]]
    for loss in (
        keras.losses.CategoricalCrossentropy(),
        keras.losses.categorical_crossentropy,
        ["categorical_crossentropy"],
    ):
        net.compile("sgd", loss)
        np.testing.assert_allclose(loss_of(net, kind_of(net))(labels, OUTPUTS), SPARSE, rtol=1e-5)


def test_sigmoid_without_compile():
    net = small_network(classes=3, classifier_activation="sigmoid")
    labels = np.array([[1, 0, 0], [0, 1, 1]], "float32")
    p = np.where(labels == 1, OUTPUTS, 1 - OUTPUTS)
    np.testing.assert_allclose(
        loss_of(net, kind_of(net))(labels, OUTPUTS), -np.log(p).mean(axis=1), rtol=1e-5
    )


def test_logits_without_compile():
    net = small_network(classes=3, classifier_activation=None)
    logits = np.log(OUTPUTS) + 3
    np.testing.assert_allclose(
        loss_of(net, kind_of(net))(np.array([0, 2]), logits), SPARSE, rtol=1e-5
    )


def test_one_loss_an_image_even_of_a_loss_over_pixels():
    net = small_network(classes=3)
    net.compile("sgd", lambda labels, outputs: (labels - outputs) ** 2)
    expected = ((1 - OUTPUTS) ** 2).mean(axis=1)
    np.testing.assert_allclose(
        loss_of(net, kind_of(net))(np.ones((2, 3), "f"), OUTPUTS), expected, rtol=1e-5
    )


def test_several_losses():
    net = small_network()
    net.compile("sgd", {"a": "mse", "b": "mse"})
    with pytest.raises(ValueError, match=r"must have one loss.*Received: loss="):
        loss_of(net, kind_of(net))


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


@pytest.mark.parametrize(
    ("expected", "sums_to_one"),
    # TensorFlow's kernel takes it for granted that labels sum to one, and is wrong where they
    # do not.
    [(keras_cross_entropy, True), (plain_cross_entropy, True), (plain_cross_entropy, False)],
)
def test_gradient_where_nothing_cancels(expected, sums_to_one):
    rng = np.random.default_rng(0)
    logits = tf.Variable(rng.normal(size=(50, 7)).astype("float32"))
    rows = rng.dirichlet(np.ones(7), 50) if sums_to_one else rng.integers(0, 2, (50, 7))
    upstream = rng.normal(size=50).astype("float32")
    gradients = []
    for loss in (softmax_cross_entropy, expected):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(loss(rows.astype("float32"), logits) * upstream)
        gradients.append(tape.gradient(total, logits))
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.compiled
def test_shapes_stay_known_whatever_was_computed_before():
    # All networks share one compiled function, which forgets sizes that were not always the same.
    rng = np.random.default_rng(0)
    for shape in ((4, 3), (2, 5, 3), (6, 2), (2, 2, 2, 4), (1, 3), (5, 3)):
        logits = tf.constant(rng.normal(size=shape), tf.float32)
        rows = tf.constant(rng.dirichlet(np.ones(shape[-1]), shape[:-1]), tf.float32)

        @tf.function
        def gradients(loss, rows=rows, logits=logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                losses = loss(rows, logits)
            gradient = tape.gradient(losses, logits)
            assert losses.shape.rank == len(logits.shape) - 1
            assert gradient.shape.rank == len(logits.shape)
            return losses, gradient

        for ours, theirs in zip(
            gradients(softmax_cross_entropy), gradients(keras_cross_entropy), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_chain_sees_the_logits():
    net = small_network()
    images, _ = random_network.random_batch(net)
    net.get_layer("classifier").bias.assign([60.0, 0, 0, 0, 0])
    chain = tfr.chain(net)
    state = tf.Variable(chain.walk(chain.stem(images))[1])
    for label in (0, 1):
        with tf.GradientTape() as tape:
            loss = chain.loss(np.full(len(images), label), chain.head(state))
        gradient = tape.gradient(loss, state).numpy()
        assert (np.abs(gradient).max(axis=(1, 2, 3)) > 0).all(), label


def test_exact_match_by_hand():
    labels = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]])
    outputs = np.array(
        [[0.9, 0.8, 0.7, 0.1], [0.9, 0.6, 0.7, 0.1], [0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.3, 0.1]]
    )
    np.testing.assert_array_equal(exact_match(labels, outputs), [1, 0, 1, 0])


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("sigmoid", "label_probabilities"), ("softmax", "probabilities"), (None, "logits")],
)
def test_what_the_outputs_are(activation, expected):
    net = small_network(classifier_activation=activation)
    assert outputs_of(net) == expected
    assert tfr.chain(net).outputs == expected
    # The activation says more than the loss does.
    if activation is not None:
        net.compile("sgd", "binary_crossentropy")
        assert outputs_of(net) == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("binary_crossentropy", "label_logits"),
        (keras.losses.binary_crossentropy, "label_logits"),
        (keras.losses.BinaryCrossentropy(from_logits=True), "label_logits"),
        ([keras.losses.BinaryCrossentropy(from_logits=True)], "label_logits"),
        ("sparse_categorical_crossentropy", "logits"),
        (keras.losses.CategoricalCrossentropy(from_logits=True), "logits"),
        (lambda labels, outputs: outputs[:, 0], "logits"),
        (None, "logits"),
    ],
    ids=["string", "function", "object", "list", "sparse", "categorical", "own", "none"],
)
def test_the_loss_tells_what_logits_are_of(loss, expected):
    net = small_network(classifier_activation=None)
    net.compile("sgd", loss)
    assert outputs_of(net) == expected


LOGITS = np.log(OUTPUTS) + 3
# A sigmoid of these is OUTPUTS.
LABEL_LOGITS = np.log(OUTPUTS / (1 - OUTPUTS))
KINDS = {
    "probabilities": OUTPUTS,
    "logits": LOGITS,
    "label_probabilities": OUTPUTS,
    "label_logits": LABEL_LOGITS,
}


def as_numpy(scores):
    return {name: np.asarray(values) for name, values in scores.items()}


def entropy_of(p):
    return -np.sum(p * np.log(p), axis=-1)


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
@pytest.mark.parametrize(
    "labels",
    [np.array([0, 2]), np.array([[0], [2]]), np.eye(3)[[0, 2]], np.array([0.0, 2.0])],
    ids=["indices", "column", "one-hot", "floats"],
)
def test_scores_of_one_label_by_hand(kind, labels):
    scores = as_numpy(prediction_scores(kind, labels, KINDS[kind]))
    np.testing.assert_array_equal(scores["wrong"], [0, 1])
    np.testing.assert_allclose(scores["cross_entropy"], SPARSE, rtol=1e-5)
    np.testing.assert_allclose(scores["entropy"], entropy_of(OUTPUTS), rtol=1e-5)
    np.testing.assert_allclose(scores["margin"], [0.5, -0.7], rtol=1e-5)
    np.testing.assert_array_equal(scores["predicted"], [[1, 0, 0], [0, 1, 0]])
    assert scores["predicted"].dtype == bool


@pytest.mark.parametrize("kind", ["label_probabilities", "label_logits"])
def test_scores_of_several_labels_by_hand(kind):
    labels = np.array([[1, 1, 0], [1, 0, 0]])
    scores = as_numpy(prediction_scores(kind, labels, KINDS[kind]))
    # The two highest of the first are its two labels; the highest of the second is not its one.
    np.testing.assert_array_equal(scores["wrong"], [0, 1])
    np.testing.assert_array_equal(scores["predicted"], [[1, 1, 0], [0, 1, 0]])
    said = np.where(labels == 1, OUTPUTS, 1 - OUTPUTS)
    np.testing.assert_allclose(scores["cross_entropy"], -np.log(said).sum(axis=1), rtol=1e-5)
    expected = entropy_of(OUTPUTS) + entropy_of(1 - OUTPUTS)
    np.testing.assert_allclose(scores["entropy"], expected, rtol=1e-5)
    np.testing.assert_allclose(scores["margin"], [0.1, -0.7], rtol=1e-5)


@pytest.mark.parametrize("kind", ["label_probabilities", "label_logits"])
def test_images_with_none_or_all_of_the_labels(kind):
    labels = np.array([[0, 0, 0], [1, 1, 1]])
    scores = as_numpy(prediction_scores(kind, labels, KINDS[kind]))
    # No or all outputs are named: that can only be right.
    np.testing.assert_array_equal(scores["wrong"], [0, 0])
    np.testing.assert_array_equal(scores["predicted"], labels == 1)
    said = np.where(labels == 1, OUTPUTS, 1 - OUTPUTS)
    np.testing.assert_allclose(scores["cross_entropy"], -np.log(said).sum(axis=1), rtol=1e-5)


def test_margins_stay_within_their_bounds():
    labels = np.array([[0, 0, 0], [1, 1, 1]])
    margin = prediction_scores("label_probabilities", labels, OUTPUTS)["margin"]
    assert (np.abs(margin) <= 1).all()


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_entropy_is_highest_where_nothing_is_known(kind, classes):
    value = {"probabilities": 1 / classes, "label_probabilities": 0.5}.get(kind, 0.0)
    outputs = np.full((1, classes), value, "float32")
    labels = np.eye(classes)[:1] if kind.startswith("label") else np.zeros(1, int)
    entropy = prediction_scores(kind, labels, outputs)["entropy"]
    highest = classes * np.log(2) if kind.startswith("label") else np.log(classes)
    np.testing.assert_allclose(entropy, [highest], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_sure_network(kind):
    # Logits of 200 and 0: in float32 the probabilities are 1 and 0, but not the logits behind.
    logits = tf.constant([[200.0, 0.0], [200.0, 0.0]])
    activation = {
        "probabilities": keras.activations.softmax,
        "label_probabilities": keras.activations.sigmoid,
    }.get(kind, lambda x: x)
    if kind.startswith("label"):
        # Of the second label nothing is known: log(2).
        labels, cross_entropy = [[1, 0], [0, 1]], [np.log(2), 200 + np.log(2)]
        entropy = [np.log(2)] * 2
    else:
        labels, cross_entropy, entropy = [0, 1], [0, 200], [0, 0]
    scores = as_numpy(prediction_scores(kind, np.array(labels), activation(logits)))
    np.testing.assert_allclose(scores["cross_entropy"], cross_entropy, rtol=1e-6)
    np.testing.assert_allclose(scores["entropy"], entropy, atol=1e-6)
    np.testing.assert_array_equal(scores["wrong"], [0, 1])
    np.testing.assert_array_equal(scores["predicted"], [[1, 0], [1, 0]])


def test_labels_that_are_all_sure_are_told_apart_by_their_logits():
    # Above 17 the sigmoid is 1 in float32, and the order of the outputs is lost in it.
    logits = tf.constant([[20.0, 30.0, -1.0], [30.0, 20.0, -1.0]])
    labels = np.array([[0, 1, 0], [0, 1, 0]])
    scores = as_numpy(
        prediction_scores("label_probabilities", labels, keras.activations.sigmoid(logits))
    )
    np.testing.assert_array_equal(scores["predicted"], [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(scores["wrong"], [0, 1])


@pytest.mark.parametrize("kind", ["probabilities", "label_probabilities"])
def test_probabilities_of_zero_and_one_without_their_logits(kind):
    labels = np.array([[1, 0], [0, 1]])
    scores = as_numpy(prediction_scores(kind, labels, np.array([[1, 0], [1, 0]], "float32")))
    # 1e-37 in place of 0; with several labels, both of them are wrong.
    expected = -np.log(1e-37) * (2 if kind.startswith("label") else 1)
    np.testing.assert_allclose(scores["cross_entropy"], [0, expected], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores["entropy"], [0, 0], atol=1e-6)
    np.testing.assert_array_equal(scores["wrong"], [0, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_outputs_that_are_not_finite_name_nothing(kind, value):
    outputs = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.6, 0.3, 0.1]], "float32")
    outputs[1, 0] = outputs[2, 2] = value
    labels = np.eye(3)[[0, 0, 0]] if kind.startswith("label") else np.zeros(3, int)
    scores = as_numpy(prediction_scores(kind, labels, outputs))
    np.testing.assert_array_equal(scores["wrong"], [0, 1, 1])
    np.testing.assert_array_equal(scores["predicted"], [[1, 0, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("activation", "kind"), [("sigmoid", "label_probabilities"), ("softmax", "probabilities")]
)
@pytest.mark.parametrize("logit", [np.inf, -np.inf], ids=str)
def test_a_network_whose_logits_overflow_names_nothing(activation, kind, logit):
    # The sigmoid of infinity is 1, finite again; so is a softmax next to minus infinity.
    outputs = keras.activations.get(activation)(tf.constant([[logit, 0.0, 1.0]]))
    labels = np.array([[1, 0, 0]]) if kind.startswith("label") else np.zeros(1, int)
    scores = as_numpy(prediction_scores(kind, labels, outputs))
    np.testing.assert_array_equal(scores["wrong"], [1])
    np.testing.assert_array_equal(scores["predicted"], [[0, 0, 0]])


@pytest.mark.compiled
@pytest.mark.parametrize("kind", KINDS)
def test_scores_inside_of_a_graph(kind):
    labels = np.array([[1, 0, 0], [0, 0, 1]], "float32")
    expected = as_numpy(prediction_scores(kind, labels, KINDS[kind]))
    function = tf.function(lambda y, x: prediction_scores(kind, y, x))
    measured = as_numpy(function(tf.constant(labels), tf.constant(KINDS[kind])))
    for name, values in expected.items():
        np.testing.assert_allclose(measured[name], values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_float32_whatever_the_outputs_are(kind):
    labels = np.array([[1, 0, 0], [0, 0, 1]])
    expected = as_numpy(prediction_scores(kind, labels, KINDS[kind]))
    for dtype in ("bfloat16", "float64"):
        scores = prediction_scores(kind, labels, tf.cast(KINDS[kind], dtype))
        for name in ("wrong", "cross_entropy", "entropy", "margin"):
            assert scores[name].dtype == tf.float32
            np.testing.assert_allclose(scores[name], expected[name], rtol=0.02, err_msg=name)


def test_smoothed_labels_are_those_over_a_half():
    rows = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], "float32")
    outputs = np.random.default_rng(3).normal(size=(4, 4)).astype("float32")
    expected = prediction_scores("label_logits", rows, outputs)
    found = prediction_scores("label_logits", rows * 0.8 + 0.15, outputs)
    for name in ("wrong", "predicted", "margin"):
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_array_equal(np.sum(found["predicted"], axis=1), [2, 1, 0, 4])


def test_a_class_of_less_than_a_half_is_still_the_label():
    rows = np.array([[0.4, 0.35, 0.25], [0.2, 0.3, 0.5]], "float32")
    outputs = np.random.default_rng(3).normal(size=(2, 3)).astype("float32")
    expected = prediction_scores("logits", np.array([0, 2]), outputs)
    found = prediction_scores("logits", rows, outputs)
    for name in ("wrong", "predicted", "margin"):
        np.testing.assert_array_equal(found[name], expected[name])
