"""Data in every form that probes take, and in some that they refuse.

What probes make of the same arrays is the truth; `test_losses.py` and `test_scores.py` have what
labels of other forms mean.
"""

import itertools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops
from reference.batches import Batches
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import evaluate
from tfresidual.routing.routes import unperturbed

pytestmark = pytest.mark.eager

CLASSES = 5
IMAGES = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype("float32")
INDICES = np.array([0, 1, 4, 2, 3, 1])
ROWS = np.eye(CLASSES)[INDICES]
# Images of weight 0 have labels of no class.
WEIGHTS = np.array([1, 0, 2, 0, 1, 0.5], "float32")
UNKNOWN = np.where(WEIGHTS == 0, 99, INDICES)
SMALL = IMAGES[:2], INDICES[:2]


def network(loss="sparse_categorical_crossentropy"):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(3, 3, padding="same")(inputs)
    state = state + layers.Conv2D(3, 3, padding="same", activation="relu")(state)
    state = layers.GlobalAveragePooling2D()(state)
    wide = keras.initializers.Orthogonal(2.0)
    model = keras.Model(inputs, layers.Dense(CLASSES, "softmax", kernel_initializer=wide)(state))
    model.compile("sgd", loss)
    return model


@pytest.fixture(scope="module")
def chain():
    return tfr.chain(network())


def sliced(size, *arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def uneven():
    """Batches of one, two and three images, of unknown number."""

    def batches():
        begin = 0
        for size in itertools.count(1):
            if begin >= len(IMAGES):
                return
            yield IMAGES[begin : begin + size], INDICES[begin : begin + size]
            begin += size

    specs = (tf.TensorSpec([None, 4, 4, 1], tf.float32), tf.TensorSpec([None], tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def unknown_shapes(*arrays):
    specs = tf.TensorSpec(None, "float32")
    return tf.data.Dataset.from_generator(lambda: iter(arrays), output_signature=specs)


FORMS = {
    "lists": lambda: [IMAGES.tolist(), INDICES.tolist()],
    "tensors": lambda: (tf.constant(IMAGES), tf.constant(INDICES)),
    "equal weights": lambda: (IMAGES, INDICES, np.full(6, 3.0)),
    "column": lambda: (IMAGES, INDICES[:, None]),
    "bytes": lambda: (IMAGES, INDICES.astype("uint8")),
    "floats": lambda: (IMAGES, INDICES / 1),
    "rows": lambda: (IMAGES, ROWS),
    "rows of bools": lambda: (IMAGES, ROWS == 1),
    "doubles": lambda: (IMAGES.astype("float64"), INDICES),
    "batches of 1": lambda: sliced(1, IMAGES, INDICES),
    "batches of 4": lambda: sliced(4, IMAGES, INDICES),
    "one batch": lambda: sliced(100, IMAGES, INDICES),
    "uneven batches": uneven,
    "PyDataset": lambda: Batches((IMAGES[:4], INDICES[:4]), (IMAGES[4:], INDICES[4:])),
    "empty batches": lambda: Batches((IMAGES[:0], INDICES[:0]), (IMAGES, INDICES)),
    "generator": lambda: iter([(IMAGES[:4], INDICES[:4]), (IMAGES[4:], INDICES[4:])]),
}
WEIGHTED = {
    "weights": lambda: (IMAGES, UNKNOWN, WEIGHTS),
    "weights in lists": lambda: (IMAGES, [UNKNOWN], [WEIGHTS]),
    "weights with axes": lambda: (IMAGES, UNKNOWN, WEIGHTS[:, None, None]),
    "weights of a dataset": lambda: sliced(2, IMAGES, UNKNOWN, WEIGHTS),
    "weights in tuples": lambda: sliced(2, IMAGES, UNKNOWN, (WEIGHTS,)),
}
UNLABELLED = {
    "array": lambda: IMAGES,
    "tuple": lambda: (IMAGES,),
    "dataset": lambda: sliced(4, IMAGES).map(lambda images: images),
    "dataset of tuples": lambda: sliced(4, IMAGES),
    "generator": lambda: iter([IMAGES[:4], IMAGES[4:]]),
    "generator of pairs": lambda: iter([(IMAGES[:4], None), (IMAGES[4:], None)]),
    "unknown shapes": lambda: unknown_shapes(IMAGES[:4], IMAGES[4:]),
    "labels of no class": lambda: (IMAGES, INDICES - 99),
}


def assert_equal(found, expected):
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", [*FORMS, *WEIGHTED])
def test_labelled_data(name, chain):
    data = (FORMS | WEIGHTED)[name]
    plain = IMAGES, INDICES
    if name in WEIGHTED:
        plain = [np.repeat(part, (2 * WEIGHTS).astype(int), axis=0) for part in plain]
    for probe in (probes.drop_blocks, probes.block_metrics):
        found, expected = probe(chain, data()), probe(chain, plain)
        # An image of weight 2 says as much as two, but less surely.
        names = [name for name in expected if not name.endswith("_se")]
        assert_equal(found[names], expected[names])


@pytest.mark.parametrize("name", UNLABELLED)
def test_data_whose_labels_are_not_read(name, chain):
    found = probes.perturbation(chain, UNLABELLED[name]())
    assert_equal(found, probes.perturbation(chain, (IMAGES, INDICES)))


@pytest.mark.parametrize("dtype", ["uint8", "float64", "float16"])
def test_images_of_other_types(dtype, chain):
    images = np.round(IMAGES * 9 + 40)
    found = probes.block_metrics(chain, (images.astype(dtype), INDICES))
    expected = probes.block_metrics(chain, (images, INDICES))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-5)


# Data, a word of the reason, and whether it is one without reading labels.
EMPTY = IMAGES[:0], INDICES[:0]
REFUSED = {
    "a number": (3, "Dataset"),
    "nothing": (None, "Dataset"),
    "a path": ("test.csv", "Dataset"),
    "four parts": (Batches((IMAGES, INDICES, WEIGHTS, WEIGHTS)), "4 parts"),
    "endless": (sliced(2, IMAGES, INDICES).repeat(), "finite"),
    "two datasets": ((sliced(2, IMAGES), sliced(2, INDICES)), "pair of arrays"),
    "ragged": ((IMAGES, tf.ragged.constant([[1]] * 5 + [[1, 2]])), "to_tensor"),
    "sparse": ((IMAGES, tf.sparse.from_dense(ROWS)), "to_dense"),
    "ragged images": (
        tf.data.Dataset.from_tensors((tf.RaggedTensor.from_tensor(IMAGES), INDICES)),
        "to_tensor",
    ),
    "objects": ((IMAGES, np.array([[1]] * 5 + [[1, 2]], object)), "labels of numbers"),
    "one for all": (Batches((IMAGES, 3)), "labels of numbers"),
    "a dict": (Batches((IMAGES, {"a": INDICES})), "labels of numbers"),
    "images as strings": ((IMAGES.astype(str), INDICES), "images of numbers"),
    "complex images": ((IMAGES.astype(complex), INDICES), "images of numbers"),
    "few labels": ((IMAGES, INDICES[:3]), "as many labels as images"),
    "too few": (Batches((IMAGES, INDICES[:4])), "as many labels as images"),
    "too many": (Batches((IMAGES[:4], INDICES)), "as many labels as images"),
    "one image": ((IMAGES[0], np.zeros(4)), "of shape"),
    "another shape": ((IMAGES[:, :3], INDICES), "of shape"),
    "other size": (Batches(SMALL, (IMAGES[:, :3], INDICES)), "of shape"),
    "column then": (Batches(SMALL, (IMAGES, INDICES[:, None])), "the same dtypes"),
    "rows then": (Batches(SMALL, (IMAGES, ROWS)), "the same dtypes"),
    "floats then": (Batches(SMALL, (IMAGES, INDICES / 1)), "the same dtypes"),
    "double images": (Batches(SMALL, (np.float64(IMAGES), INDICES)), "the same dtypes"),
    "empty": (EMPTY, "at least one batch"),
    "empty dataset": (sliced(2, *EMPTY), "at least one batch"),
    "an empty batch": (Batches(EMPTY), "at least one batch"),
    "no weights": ((IMAGES, INDICES, 0 * WEIGHTS), "weight 0: at least one batch"),
    "negative weights": ((IMAGES, INDICES, WEIGHTS - 1), "0 or more"),
    "NaN as weight": ((IMAGES, INDICES, WEIGHTS * np.nan), "0 or more"),
    "few weights": ((IMAGES, INDICES, WEIGHTS[:3]), "3 weights for 6 images"),
    "named weights": ((IMAGES, INDICES, {"a": WEIGHTS}), "labels of one output"),
    "two weights": ((IMAGES, INDICES, [WEIGHTS, WEIGHTS]), "labels of one output"),
    "weights of pixels": ((IMAGES, INDICES, np.ones((6, 4, 4))), "per image"),
}
REFUSED_LABELS = {
    "strings": ((IMAGES, INDICES.astype(str)), "numbers"),
    "complex": ((IMAGES, INDICES.astype(complex)), "numbers"),
    "half": ((IMAGES, INDICES / 2), "labels from 0 to 4, or a row of 5"),
    "infinite": ((IMAGES, np.where(ROWS == 1, np.inf, 0)), "labels from 0 to 4"),
    "NaN": ((IMAGES, np.where(INDICES == 2, np.nan, INDICES)), "labels from 0 to 4"),
    "too high": ((IMAGES, INDICES + 1), "labels from 0 to 4"),
    "negative": ((IMAGES, INDICES - 1), "labels from 0 to 4"),
    "negative rows": ((IMAGES, -ROWS), "labels from 0 to 4"),
    "other rows": ((IMAGES, np.ones((6, 3))), "labels from 0 to 4"),
    "later": (sliced(2, IMAGES, np.append(INDICES[:5], 5)), "labels from 0 to 4"),
    "none": ((IMAGES, None), "hold labels"),
    "none in a dataset": (sliced(2, IMAGES), "hold labels"),
}


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_LABELS])
def test_data_that_is_refused(name, chain):
    data, words = (REFUSED | REFUSED_LABELS)[name]
    for probe in (
        lambda data: evaluate(chain, data, [unperturbed(chain)]),
        lambda data: probes.block_metrics(chain, data),
    ):
        with refused("data") as caught:
            probe(data)
        assert words in str(caught.value) and len(str(caught.value)) < 500
    if name in REFUSED_LABELS:
        assert len(probes.perturbation(chain, data)) == 1


def test_splits_that_are_none(chain):
    with refused("data"):
        probes.block_metrics(chain, {})


def test_many_shapes_are_warned_of():
    inputs = keras.Input((None, 1))
    state = layers.Dense(3)(inputs)
    state = state + layers.Dense(3)(state)
    chain = tfr.chain(keras.Model(inputs, layers.GlobalMaxPooling1D()(state)))
    images = [np.ones((2, size, 1), "float32") for size in range(1, 6)]
    assert len(probes.perturbation(chain, iter(images[:4]))) == 1
    with pytest.warns(UserWarning, match="5 shapes"):
        probes.perturbation(chain, iter(images))


def test_images_without_a_number_are_warned_of(chain):
    images = IMAGES.copy()
    images[0, 0] = np.nan
    assert len(probes.block_metrics(chain, (images, INDICES)))
    images[0] = np.nan
    with pytest.warns(UserWarning, match="no number is finite"):
        probes.block_metrics(chain, (images, INDICES))


def test_a_loss_by_hand_says_itself_what_it_takes():
    def ignoring(labels, outputs):
        kept = ops.cast(labels >= 0, "float32")
        return kept * ops.sparse_categorical_crossentropy(ops.maximum(labels, 0), outputs)

    labels = np.where(INDICES == 1, -1, INDICES)
    frame = probes.block_metrics(network(ignoring), (IMAGES, labels), per_image=True)
    np.testing.assert_array_equal(frame["gradient_norm"] == 0, INDICES == 1)
