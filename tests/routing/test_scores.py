"""Scores of single predictions, against NumPy in float64 and by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfresidual.definitions.metrics import exact_match
from tfresidual.routing.scores import label_sets, prediction_scores

pytestmark = pytest.mark.eager

KINDS = ("probabilities", "logits", "label_probabilities", "label_logits")
ACTIVATIONS = {
    "probabilities": keras.activations.softmax,
    "label_probabilities": keras.activations.sigmoid,
}
RNG = np.random.default_rng(3)


def as_numpy(scores):
    return {name: np.asarray(values) for name, values in scores.items()}


def by_numpy(kind, rows, logits):
    """The scores from their definitions, of k-hot rows and logits of the same shape."""
    is_label = rows > 0.5
    if kind.startswith("label"):
        p = 1 / (1 + np.exp(-logits))
        parts = p, 1 - p
        cross_entropy = -np.log(np.where(is_label, *parts)).sum(axis=-1)
    else:
        p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        parts = (p,)
        cross_entropy = -np.log(p[is_label]).reshape(rows.shape[:-1])
    if rows.shape[-1] == 1:
        predicted = p > 0.5
        margin = np.where(is_label, 2 * p - 1, 1 - 2 * p)[..., 0]
    else:
        ranks = (-logits).argsort(axis=-1).argsort(axis=-1)
        predicted = ranks < is_label.sum(axis=-1, keepdims=True)
        lowest = np.where(is_label, p, np.inf).min(axis=-1)
        margin = np.clip(lowest - np.where(is_label, -np.inf, p).max(axis=-1), -1, 1)
    return {
        "wrong": (predicted != is_label).any(axis=-1),
        "cross_entropy": cross_entropy,
        "entropy": -sum((part * np.log(part)).sum(axis=-1) for part in parts),
        "margin": margin,
        "predicted": predicted,
        "is_finite": np.ones(rows.shape[:-1], bool),
    }


def forms_of(kind, rows):
    """Labels that mean the same rows."""
    yield from (rows, rows.astype("float32"), rows.astype(bool))
    if kind.startswith("label"):
        # Signs, and smoothed.
        yield from (2 * rows - 1, 0.8 * rows + 0.15)
    else:
        indices = rows.argmax(axis=-1)
        yield from (indices, indices[..., None], indices.astype("uint8"), indices.astype("float32"))
    if rows.shape[-1] == 1:
        yield rows[..., 0]


# Of images, of positions, and with one output for two classes.
SHAPES = ((20, 4), (5, 6, 3), (9, 1))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (kind, shape)
        for kind in KINDS
        for shape in SHAPES
        if shape[-1] > 1 or kind.startswith("label")
    ],
)
def test_scores_equal_numpy(kind, shape):
    logits = RNG.normal(size=shape) * 2
    if kind.startswith("label"):
        # Among them, images with none or all of the labels.
        rows = RNG.random(shape) < np.linspace(0, 1, shape[0]).reshape(-1, *[1] * len(shape[1:]))
    else:
        rows = np.eye(shape[-1])[RNG.integers(0, shape[-1], shape[:-1])]
    rows = rows.astype(int)
    expected = by_numpy(kind, rows, logits)
    assert 0 < expected["wrong"].mean() < 1
    outputs = ACTIVATIONS.get(kind, lambda x: x)(tf.constant(logits, tf.float32))
    for given in (outputs, np.array(outputs)):
        for labels in forms_of(kind, rows):
            found = as_numpy(prediction_scores(kind, labels, given))
            assert found.keys() == expected.keys()
            is_smoothed = ((labels > 0) & (labels < 1)).any()
            for name, values in expected.items():
                assert found[name].shape == values.shape, name
                if not (is_smoothed and name == "cross_entropy"):
                    np.testing.assert_allclose(
                        found[name], values, rtol=2e-4, atol=1e-6, err_msg=name
                    )
            if len(shape) == 2:
                np.testing.assert_array_equal(label_sets(kind, labels, shape[-1]), rows == 1)
    # In every precision, the scores are float32.
    for dtype in ("bfloat16", "float64"):
        found = prediction_scores(kind, rows, tf.cast(np.array(outputs), dtype))
        for name in ("wrong", "cross_entropy", "entropy", "margin"):
            assert found[name].dtype == tf.float32
        np.testing.assert_allclose(found["entropy"], expected["entropy"], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_sure_network(kind):
    # Logits of 200 and 0: in float32 the probabilities are 1 and 0, but not the logits behind.
    logits = tf.constant([[200.0, 0.0], [200.0, 0.0]])
    if kind.startswith("label"):
        # Of the second label nothing is known: log(2).
        labels, cross_entropy = [[1, 0], [0, 1]], [np.log(2), 200 + np.log(2)]
        entropy = [np.log(2)] * 2
    else:
        labels, cross_entropy, entropy = [0, 1], [0, 200], [0, 0]
    outputs = ACTIVATIONS.get(kind, lambda x: x)(logits)
    scores = as_numpy(prediction_scores(kind, np.array(labels), outputs))
    np.testing.assert_allclose(scores["cross_entropy"], cross_entropy, rtol=1e-6)
    np.testing.assert_allclose(scores["entropy"], entropy, atol=1e-6)
    np.testing.assert_array_equal(scores["wrong"], [0, 1])
    np.testing.assert_array_equal(scores["predicted"], [[1, 0], [1, 0]])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_probabilities_of_zero_and_one_without_their_logits(kind):
    labels = np.array([[1, 0], [0, 1]])
    scores = as_numpy(prediction_scores(kind, labels, np.array([[1, 0], [1, 0]], "float32")))
    # 1e-37 in place of 0; with several labels, both of them are wrong.
    expected = -np.log(1e-37) * (2 if kind.startswith("label") else 1)
    np.testing.assert_allclose(scores["cross_entropy"], [0, expected], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores["entropy"], [0, 0], atol=1e-6)
    np.testing.assert_array_equal(scores["wrong"], [0, 1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_outputs_that_are_not_finite_name_nothing(value):
    for kind in KINDS:
        outputs = np.tile(np.float32([0.6, 0.3, 0.1]), (3, 1))
        outputs[1, 0] = outputs[2, 2] = value
        labels = np.eye(3)[[0, 0, 0]] if kind.startswith("label") else np.zeros(3, int)
        scores = as_numpy(prediction_scores(kind, labels, outputs))
        np.testing.assert_array_equal(scores["wrong"], [0, 1, 1])
        np.testing.assert_array_equal(scores["predicted"], [[1, 0, 0], [0, 0, 0], [0, 0, 0]])
        np.testing.assert_array_equal(scores["is_finite"], [True, False, False])
    scores = prediction_scores("label_logits", np.array([0, 1]), np.float32([[value], [value]]))
    np.testing.assert_array_equal(scores["wrong"], [1, 1])
    np.testing.assert_array_equal(scores["predicted"], [[False], [False]])
    # The sigmoid of infinity is 1, finite again; so is a softmax next to minus infinity.
    for kind, activation in ACTIVATIONS.items():
        outputs = activation(tf.constant([[value, 0.0, 1.0]]))
        scores = prediction_scores(kind, np.eye(3)[:1], outputs)
        np.testing.assert_array_equal(scores["wrong"], [1])
        np.testing.assert_array_equal(scores["predicted"], [[0, 0, 0]])


def test_exact_match_by_hand():
    labels = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]])
    outputs = np.array(
        [[0.9, 0.8, 0.7, 0.1], [0.9, 0.6, 0.7, 0.1], [0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.3, 0.1]]
    )
    np.testing.assert_array_equal(exact_match(labels, outputs), [1, 0, 1, 0])
