"""The exact match of several labels, against a version that sorts."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refused

from tfresidual import training

CLASSES = 6


def slow(labels, scores):
    """Share of rows whose first n classes, best first, are all labels."""
    right = []
    for is_label, score in zip(labels, scores, strict=True):
        # Of equal scores the class that is no label stands first.
        order = sorted(range(len(score)), key=lambda c: (-score[c], is_label[c]))
        right.append(all(is_label[c] for c in order[: int(sum(is_label))]))
    return sum(right) / len(right)


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([1, 1, 0], [0.9, 0.8, 0.1], 1),
        ([1, 1, 0], [0.9, 0.1, 0.8], 0),  # one of two
        ([1, 0, 0], [-5.0, -6.0, -7.0], 1),  # logits of any range
        ([1, 0, 0], [0.5, 0.5, 0.1], 0),  # a tie between a label and another
        ([1, 1, 0], [0.5, 0.5, 0.1], 1),  # a tie between labels
        ([1, 1, 1], [0.1, 0.2, 0.3], 1),  # nothing else to choose
        ([1, 0, 0], [np.nan, np.nan, np.nan], 0),
        ([1, 0, 0], [0.9, np.nan, 0.1], 0),
        ([1, 0, 0], [1.0, 1 - 1e-7, 0.0], 1),
    ],
)
def test_by_hand(labels, scores, expected):
    metric = training.ExactMatch()
    metric.update_state([labels], [scores])
    assert float(metric.result()) == expected


@pytest.mark.parametrize("labels", [[0, 1, 2], [[0], [1], [2]], [[1, 0]] * 3])
def test_labels_that_are_no_rows(labels):
    with refused("labels"):
        training.ExactMatch().update_state(labels, np.eye(3))


@settings(max_examples=100, deadline=None)
@given(
    labels=hnp.arrays(np.uint8, (5, CLASSES), elements=st.integers(0, 1)),
    scores=hnp.arrays(np.int64, (5, CLASSES), elements=st.integers(-3, 3)),
)
def test_against_sorting(labels, scores):
    metric = training.ExactMatch()
    labels, scores = labels.astype("float32"), scores.astype("float32") / 4
    # Batches of unequal size.
    metric.update_state(labels[:1], scores[:1])
    metric.update_state(labels[1:], scores[1:])
    assert float(metric.result()) == pytest.approx(slow(labels, scores), abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_compiled_model_keeps_it_on_disk(tmp_path, dtype):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(CLASSES, activation="sigmoid", dtype=dtype)(inputs)
    model = keras.Model(inputs, outputs)
    training.compile_network(model, "digitclutter", epochs=1, steps_per_epoch=1, multi_label=True)
    rng = np.random.default_rng(1)
    images = rng.normal(size=(64, 4)).astype("float32")
    outputs = model.predict(images, verbose=0)
    labels = (outputs > np.sort(outputs, axis=1)[:, [-3]]).astype("float32")  # two labels
    labels[::3] = np.roll(labels[::3], 1, axis=1)
    expected = slow(labels, outputs)
    assert 0.2 < expected < 0.8
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(10)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, again):
        values = one.evaluate(data, return_dict=True, verbose=0)
        assert values["exact_match"] == pytest.approx(expected, abs=1e-6)


def test_callbacks_know_that_higher_is_better():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, activation="sigmoid")(inputs))
    training.compile_network(model, "digitclutter", epochs=2, steps_per_epoch=1, multi_label=True)
    data = tf.data.Dataset.from_tensors((np.zeros((8, 4)), np.eye(CLASSES)[[0] * 8]))
    stopping = keras.callbacks.EarlyStopping("val_exact_match", patience=5)
    model.fit(data, validation_data=data, epochs=2, verbose=0, shuffle=False, callbacks=[stopping])
    assert stopping.monitor_op(1, 0)
    assert not stopping.monitor_op(0, 1)
