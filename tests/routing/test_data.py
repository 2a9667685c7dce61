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


EMPTY = IMAGES[:0], INDICES[:0]
REFUSED = {
    "endless": sliced(2, IMAGES, INDICES).repeat(),
    "too few": Batches((IMAGES, INDICES[:4])),
    "empty": EMPTY,
    "an empty batch": Batches(EMPTY),
    "no weights": (IMAGES, INDICES, 0 * WEIGHTS),
    "negative weights": (IMAGES, INDICES, WEIGHTS - 1),
    "NaN as weight": (IMAGES, INDICES, WEIGHTS * np.nan),
    "few weights": (IMAGES, INDICES, WEIGHTS[:3]),
    "two weights": (IMAGES, INDICES, [WEIGHTS, WEIGHTS]),
    "labels of two outputs": (IMAGES, {"a": INDICES, "b": INDICES}),
    "weights of pixels": (IMAGES, INDICES, np.ones((6, 4, 4))),
}
REFUSED_LABELS = {
    "strings": (IMAGES, INDICES.astype(str)),
    "half": (IMAGES, INDICES / 2),
    "infinite": (IMAGES, np.where(ROWS == 1, np.inf, 0)),
    "NaN": (IMAGES, np.where(INDICES == 2, np.nan, INDICES)),
    "too high": (IMAGES, INDICES + 1),
    "negative rows": (IMAGES, -ROWS),
    "other rows": (IMAGES, np.ones((6, 3))),
    "later": sliced(2, IMAGES, np.append(INDICES[:5], 5)),
    "none": (IMAGES, None),
    "none in a dataset": sliced(2, IMAGES),
}


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_LABELS])
def test_data_that_is_refused(name, chain):
    data = (REFUSED | REFUSED_LABELS)[name]
    # Some labels are refused by Keras or TensorFlow.
    is_raw = name in ("strings", "NaN", "too high", "other rows")
    for probe in (
        lambda data: evaluate(chain, data, [unperturbed(chain)]),
        lambda data: probes.block_metrics(chain, data),
    ):
        with pytest.raises((ValueError, tf.errors.OpError)) if is_raw else refused("data"):
            probe(data)
    if name in REFUSED_LABELS:
        assert len(probes.perturbation(chain, data)) == 1


def test_splits_that_are_none(chain):
    with refused("data"):
        probes.block_metrics(chain, {})


def test_a_loss_by_hand_says_itself_what_it_takes():
    def ignoring(labels, outputs):
        kept = ops.cast(labels >= 0, "float32")
        return kept * ops.sparse_categorical_crossentropy(ops.maximum(labels, 0), outputs)

    labels = np.where(INDICES == 1, -1, INDICES)
    frame = probes.block_metrics(network(ignoring), (IMAGES, labels), per_image=True)
    np.testing.assert_array_equal(frame["gradient_norm"] == 0, INDICES == 1)


A, B, C = np.random.default_rng(0).normal(size=(3, 6, 4)).astype("float32")
TWO = np.arange(6) % 2
# Structures of the inputs of a model, by the two that they may hold.
STRUCTURES = {
    "tensor": lambda a, b: a,
    "list of one": lambda a, b: [a],
    "tuple of one": lambda a, b: (a,),
    "dict of one": lambda a, b: {"a": a},
    "list": lambda a, b: [a, b],
    "list in another order": lambda a, b: [b, a],
    "dict": lambda a, b: {"a": a, "b": b},
    "dict that is not sorted": lambda a, b: {"b": b, "a": a},
    "dict with other names": lambda a, b: {"p": a, "q": b},
    "nested": lambda a, b: {"x": [a, b]},
}
GIVEN = [
    A,
    [A],
    (A,),
    {"a": A},
    {"a": A, "z": C},
    {"z": A},
    [A, B],
    (A, B),
    {"a": A, "b": B},
    {"b": B, "a": A},
    {"a": A, "b": B, "z": C},
    {"p": A, "q": B},
    [A, B, C],
    {"x": [A, B]},
    [[A, B]],
]


def model_of(structure):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    inputs = structure(a, b)
    state = a + 2 * b if len(keras.tree.flatten(inputs)) == 2 else a
    state = layers.Add()([state, layers.Dense(4, activation="tanh")(state)])
    return keras.Model(inputs, layers.Dense(2)(state))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
@pytest.mark.parametrize("name", STRUCTURES)
def test_inputs_are_those_of_predict(name):
    """What is taken has the outputs of Keras; what it refuses raises its error."""
    model = model_of(STRUCTURES[name])
    chain, taken = tfr.chain(model), 0
    for data in GIVEN:
        try:
            found = chain(data)
        except (ValueError, KeyError, IndexError):
            continue
        taken += 1
        expected = model.predict_on_batch(data)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        frame = probes.readout(chain, (data, TWO))
        error = np.mean(expected.argmax(axis=1) != TWO)
        assert frame["error"].iloc[-1] == pytest.approx(error), data
    assert taken


@pytest.mark.parametrize("is_list", [True, False])
def test_labels_of_one_output(is_list, tmp_path):
    inputs = keras.Input((4,), name="a")
    state = layers.Add()([inputs, layers.Dense(4)(inputs)])
    outputs = layers.Dense(2, name="head")(state)
    model = keras.Model([inputs], [outputs]) if is_list else keras.Model(inputs, outputs)
    chain = tfr.chain(model)
    expected = probes.block_metrics(chain, (A, TWO))
    tfr.export(chain, tmp_path / "saved")
    for source in (chain, tfr.chain(tmp_path / "saved")):
        for labels in (TWO, [TWO], {"head": TWO}):
            for data in ((A, labels), ({"a": A}, labels)):
                found = probes.block_metrics(source, data)["gradient_norm"]
                np.testing.assert_allclose(found, expected["gradient_norm"], rtol=1e-4)
