"""Losses and matches of single images, by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual.chains.scores import exact_match, loss_of, softmax_cross_entropy

OUTPUTS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], "float32")
SPARSE = -np.log([0.7, 0.1])


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", None])
def test_sparse_cross_entropy(loss):
    net = random_network(classes=3)
    if loss:
        net.compile("sgd", loss)
    for labels in (np.array([0, 2]), np.array([[0], [2]])):
        np.testing.assert_allclose(loss_of(net)(labels, OUTPUTS), SPARSE, rtol=1e-5)


def test_loss_object_function_and_single_lists():
    net = random_network(classes=3)
    labels = np.eye(3, dtype="float32")[[0, 2]]
    for loss in (
        keras.losses.CategoricalCrossentropy(),
        keras.losses.categorical_crossentropy,
        ["categorical_crossentropy"],
    ):
        net.compile("sgd", loss)
        np.testing.assert_allclose(loss_of(net)(labels, OUTPUTS), SPARSE, rtol=1e-5)


def test_sigmoid_without_compile():
    net = random_network(classes=3, classifier_activation="sigmoid")
    labels = np.array([[1, 0, 0], [0, 1, 1]], "float32")
    p = np.where(labels == 1, OUTPUTS, 1 - OUTPUTS)
    np.testing.assert_allclose(loss_of(net)(labels, OUTPUTS), -np.log(p).mean(axis=1), rtol=1e-5)


def test_logits_without_compile():
    net = random_network(classes=3, classifier_activation=None)
    logits = np.log(OUTPUTS) + 3
    np.testing.assert_allclose(loss_of(net)(np.array([0, 2]), logits), SPARSE, rtol=1e-5)


def test_one_loss_an_image_even_of_a_loss_over_pixels():
    net = random_network(classes=3)
    net.compile("sgd", lambda labels, outputs: (labels - outputs) ** 2)
    expected = ((1 - OUTPUTS) ** 2).mean(axis=1)
    np.testing.assert_allclose(loss_of(net)(np.ones((2, 3), "f"), OUTPUTS), expected, rtol=1e-5)


def test_several_losses():
    net = random_network()
    net.compile("sgd", {"a": "mse", "b": "mse"})
    with pytest.raises(ValueError, match=r"must have one loss.*Received: loss="):
        loss_of(net)


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


def test_the_chain_sees_the_logits():
    net = random_network()
    images, _ = random_batch(net)
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
