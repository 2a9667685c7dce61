"""What callbacks see before an epoch is lost: their data, the network, and the other callbacks.

Not covered here: what a generator yields after its first batch, and whether it ends, which cannot
be known.
"""

import copy
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from reference.random_network import random_batch, random_network

from tfresidual import callbacks
from tfresidual.callbacks.order import callbacks_before

pytestmark = pytest.mark.eager

KINDS = (
    callbacks.BlockMetrics,
    callbacks.Borderline,
    callbacks.ConvergenceIndices,
    callbacks.DropBlocks,
    callbacks.Perturbation,
    callbacks.Readout,
    callbacks.SignalPropagation,
)
all_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
IMAGES, LABELS = np.zeros((6, 8, 8, 3), "float32"), np.array([4, 0, 1, 2, 3, 4])


def pairs(names):
    """Every kind with one in five of the names; the other pairs are nightly tests."""
    return pytest.mark.parametrize(
        ("name", "kind"),
        [
            pytest.param(
                name,
                kind,
                id=f"{name}-{kind.__name__}",
                marks=[pytest.mark.nightly] if (i + j) % 5 else [],
            )
            for i, name in enumerate(names)
            for j, kind in enumerate(KINDS)
        ],
    )


def dataset(*batch):
    return tf.data.Dataset.from_tensor_slices(batch).batch(4)


class Sequence(keras.utils.PyDataset):
    """Batches by their place."""

    def __init__(self, batches, count):
        super().__init__()
        self.batches, self.count = batches, count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return self.batches[index]


@pytest.fixture(scope="module")
def net():
    net = random_network(blocks=2, widths=(4,))
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


class Batches(keras.callbacks.Callback):
    """Counts the batches that were trained."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def fit(net, *chosen, epochs=1, **kwargs):
    return net.fit(
        *random_batch(net, images=8), batch_size=4, epochs=epochs, verbose=0,
        callbacks=list(chosen), **kwargs
    )  # fmt: skip


def refused(net, callback, message, batches=0):
    """A training that does not get as far as its second batch, and leaves its network alone."""
    count, before = Batches(), net.get_weights()
    with pytest.raises(ValueError, match=message):
        fit(net, callback, count)
    assert count.count == batches
    if not batches:
        for old, new in zip(before, net.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


# When the callback is made


NO_DATA = {
    "None": (None, r"must be a `tf\.data\.Dataset`.*Received: data=None"),
    "a number": (3, r"must be a `tf\.data\.Dataset`.*Received: data=3"),
    "a file": ("test.csv", r"must be a `tf\.data\.Dataset`.*Received: data=\'test"),
    "a generator": ((batch for batch in ()), r"can be read once"),
    "nothing": ({}, r"must not be empty\. Received: data={}"),
    "endless": (dataset(IMAGES, LABELS).repeat(), r"must be finite: .*Received: "),
    "endless by place": (Sequence([], None), r"must be finite: .*Received: .*num_batches=None"),
    "fewer labels": ((IMAGES, LABELS[:3]), r"as many labels as images\. Received: 6 .* and 3"),
    "two datasets": (
        (dataset(IMAGES, LABELS), dataset(IMAGES, LABELS)),
        r"must be a pair of arrays.*Received: ",
    ),
    "a bad split": ({"a": (IMAGES, LABELS), "b": None}, r"data=None .*, in split \'b\'$"),
}


@all_kinds
@pytest.mark.parametrize("name", NO_DATA)
def test_data_that_is_none(kind, name):
    data, message = NO_DATA[name]
    with pytest.raises(ValueError, match=message):
        kind(data)


def test_a_callback_without_data():
    assert callbacks.Lipschitz().data is None


# When a training begins


def empty():
    return tf.data.Dataset.from_generator(
        lambda: iter(()), output_signature=dataset(IMAGES, LABELS).element_spec
    )


MISFITS = {
    "empty": (dataset(IMAGES, LABELS).take(0), r"at least one batch with images\. Received: data="),
    "an empty generator": (empty(), r"at least one batch with images\. Received: data="),
    "empty by place": (Sequence([], 0), r"at least one batch with images\. Received: data="),
    "empty arrays": ((IMAGES[:0], LABELS[:0]), r"at least one batch with images\. Received: data="),
    "channels": ((IMAGES[..., :1], LABELS), r"of shape \(8, 8, 3\)\. Received: .*8, 8, 1\)"),
    "channels of a dataset": (dataset(IMAGES[..., :1], LABELS), r"of shape \(8, 8, 3\)\. Received"),
    "channels by place": (Sequence([(IMAGES[..., :1], LABELS)], 1), r"of shape \(8, 8, 3\)\. Rec"),
    "one image": ((IMAGES[0], LABELS.repeat(2)[:8]), r"of shape \(8, 8, 3\).*Received"),
    "words": ((np.full((6, 8, 8, 3), "x"), LABELS), r"images of numbers.*Received: .*string"),
    "dicts": (
        tf.data.Dataset.from_tensor_slices({"x": IMAGES, "y": LABELS}).batch(2),
        r"of shape \(8, 8, 3\).*Received",
    ),
    "a split": (
        {"a": (IMAGES, LABELS), "b": (IMAGES[..., :1], LABELS)},
        r"8, 8, 1\), in split \'b\'$",
    ),
}


@pairs(MISFITS)
def test_data_that_does_not_fit_the_network(net, kind, name):
    data, message = MISFITS[name]
    refused(net, kind(data), message)


LABELS_OF_NO_CLASS = {
    "too high": (LABELS + 1, r"labels from 0 to 4.*Received: labels of shape .* from 1 to 5"),
    "negative": (LABELS - 1, r"labels from 0 to 4.*Received: labels of shape .* from -1 to 3"),
    "rows": (np.eye(6)[LABELS], r"labels from 0 to 4.*Received: labels of shape \(\d, 6\)"),
    "NaN": (np.where(LABELS == 2, np.nan, LABELS), r"labels from 0 to 4.*Received: .*nan"),
    "words": (np.full(6, "cat"), r"labels that are numbers\. Received: labels of dtype "),
}


@pytest.mark.parametrize("as_dataset", [False, True], ids=["arrays", "dataset"])
@pairs(LABELS_OF_NO_CLASS)
def test_labels_that_do_not_fit_the_network(net, kind, name, as_dataset):
    labels, message = LABELS_OF_NO_CLASS[name]
    if kind is callbacks.Perturbation:
        # Which does not read them.
        kind(data=(IMAGES, labels))
        return
    refused(net, kind(dataset(IMAGES, labels) if as_dataset else (IMAGES, labels)), message)


def test_images_alone_where_labels_are_read(net):
    images = dataset(IMAGES).map(lambda images: images)
    fit(net, callbacks.Perturbation(images))
    for kind in (callbacks.BlockMetrics, callbacks.Readout):
        refused(net, kind(images), r"must hold labels.*Received: images alone")


def test_all_labels_of_arrays_are_looked_at(net):
    images, labels = np.zeros((300, 8, 8, 3), "float32"), np.zeros(300, int)
    labels[-1] = 7
    refused(net, callbacks.Readout((images, labels)), r"Received: labels .* from 0 to 7$")


WEIGHTS = np.array([1, 0, 2, 0, 1, 0.5], "float32")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda images, labels: (images, labels, WEIGHTS), callbacks.BlockMetrics),
        (lambda images, labels: (images, [labels], [WEIGHTS]), callbacks.BlockMetrics),
        (lambda images, labels: (images, labels, WEIGHTS[:, None, None]), callbacks.Readout),
        (lambda images, labels: dataset(images, labels, WEIGHTS), callbacks.Readout),
        (lambda images, labels: dataset(images, labels, (WEIGHTS,)), callbacks.BlockMetrics),
    ],
)
def test_images_of_weight_zero_need_no_label(net, make, kind):
    images, labels = random_batch(net, images=6)
    times = (2 * WEIGHTS).astype(int)
    repeated = images.repeat(times, axis=0), labels.repeat(times)
    data = make(images, np.where(WEIGHTS == 0, -1, labels))
    history = fit(net, kind({"weighted": data, "repeated": repeated})).history
    found = {key: values for key, values in history.items() if key.startswith("weighted/")}
    assert len(found) > 2
    for key, values in found.items():
        expected = history[key.replace("weighted/", "repeated/")]
        assert values == pytest.approx(expected, rel=1e-4)


def test_weights_that_cannot_be_used_are_refused_when_training_begins(net):
    for weights, received in (
        ({"a": WEIGHTS}, r"\{'a': '\*'\} for the labels of one output"),
        ([WEIGHTS, WEIGHTS], r"\['\*', '\*'\] for the labels of one output"),
        (WEIGHTS[:3], "3 weights for 6 images"),
    ):
        data = IMAGES, LABELS, weights
        refused(net, callbacks.BlockMetrics(data), rf"one sample weight .* Received: .*{received}")
    inputs = keras.Input((8, 8, 3))
    state = layers.Conv2D(4, 3, padding="same")(inputs)
    state = state + layers.Conv2D(4, 3, padding="same")(state)
    pixels = keras.Model(inputs, layers.Conv2D(3, 1)(state))
    pixels.compile("sgd", "mse")
    data = IMAGES, IMAGES, np.ones((6, 8, 8))
    for kind in (callbacks.BlockMetrics, callbacks.SignalPropagation):
        before = pixels.get_weights()
        with pytest.raises(ValueError, match=r"one sample weight per image.*\(6, 8, 8\)$"):
            pixels.fit(IMAGES, IMAGES, verbose=0, callbacks=[kind(data)])
        for old, new in zip(before, pixels.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


def test_labels_that_the_probe_does_not_read(net):
    fit(net, callbacks.Perturbation((IMAGES, LABELS + 100)))
    other = random_network(blocks=1, widths=(4,), classifier_activation=None)
    other.compile("sgd", "mse")
    targets = np.linspace(-9, 9, 40).reshape(8, 5)
    images, _ = random_batch(other, images=8)
    callback = callbacks.BlockMetrics((images, targets))
    history = other.fit(images, targets, verbose=0, callbacks=[callback]).history
    assert np.isfinite(history["stage1/block0/cosine_loss"]).all()


def test_a_network_without_a_bound(net):
    refused(net, callbacks.Lipschitz(), r"must have a block whose branch is bounded.*Received: ")


def test_a_network_that_its_first_batch_builds():
    """It is known, and compared with the data, before the second batch."""

    def unbuilt():
        net = random_network(blocks=1, widths=(4,))
        layers = [keras.layers.Rescaling(1.0), net]
        model = keras.Sequential(layers)
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    def train(model, *chosen):
        # More than one batch in the first epoch.
        images, labels = np.repeat(IMAGES, 2, axis=0), np.repeat(LABELS, 2)
        return model.fit(images, labels, batch_size=4, verbose=0, callbacks=list(chosen)).history

    model = unbuilt()
    if not model.built:
        count = Batches()
        with pytest.raises(ValueError, match=r"of shape \(8, 8, 3\)\. Received"):
            train(model, callbacks.BlockMetrics((IMAGES[..., :1], LABELS)), count)
        assert count.count == 1
        # What needs no network is known before.
        count, model = Batches(), unbuilt()
        with pytest.raises(ValueError, match=r"at least one batch with images"):
            train(model, callbacks.BlockMetrics(empty()), count)
        assert count.count == 0
    history = train(unbuilt(), callbacks.BlockMetrics((IMAGES, LABELS)))
    assert any(key.startswith("stage1/block0/") for key in history)


def test_how_much_is_read_of_the_data(net):
    """One batch of each split, before the training; twice, since it comes from a function."""
    read = []

    def batches():
        for start in range(0, 6, 2):
            read.append(start)
            yield IMAGES[start : start + 2], LABELS[start : start + 2]

    spec = dataset(IMAGES, LABELS).element_spec
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    by_batch = []
    see = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda b, logs: by_batch.append(read[:])
    )
    fit(net, callbacks.Readout(data), see, epochs=2)
    # TensorFlow asks for the second batch while the first one is looked at.
    assert all(batches.count(0) == 2 and 4 not in batches for batches in by_batch[:2])
    assert read.count(0) == 4 and read.count(4) == 2


def test_a_training_is_the_same_with_and_without_a_look():
    losses = []
    for with_look in (False, True):
        keras.utils.set_random_seed(3)
        net = random_network(blocks=1, widths=(4,), shortcut="dropout")
        net.compile("sgd", "sparse_categorical_crossentropy")
        images, labels = random_batch(net, images=8)
        shuffled = dataset(images, labels).shuffle(8)
        # Shuffled by itself, not by the dataset that is trained on.
        probed = dataset(images, labels).shuffle(8)
        looks = [callbacks.BlockMetrics(probed)] * with_look
        history = net.fit(shuffled, epochs=2, verbose=0, shuffle=False, callbacks=looks).history
        losses.append(history["loss"])
    assert losses[0] == losses[1]


# Other callbacks


def warned(net, *chosen, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(net, *chosen, **kwargs)
    return [str(one.message) for one in caught if one.category is UserWarning]


@pytest.mark.system
@pytest.mark.compiled
def test_loggers_that_stand_before(net, tmp_path):
    probe, data = callbacks.BlockMetrics, (IMAGES, LABELS)
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    (only,) = warned(net, log, probe(data), callbacks.Readout(data))
    assert only == (
        "CSVLogger comes before BlockMetrics in the list of callbacks, so it records nothing "
        "that BlockMetrics publishes. Move it after the callbacks that run probes."
    )
    # Between two that publish it misses what the second one does.
    (only,) = warned(net, probe(data), log, callbacks.Readout(data))
    assert only.startswith("CSVLogger comes before Readout")
    assert warned(net, probe(data), callbacks.Readout(data), log) == []


@pytest.mark.system
@pytest.mark.compiled
def test_a_tensorboard_that_stands_before(net, tmp_path):
    pytest.importorskip("tensorboard")
    board, probe = keras.callbacks.TensorBoard(tmp_path), callbacks.BlockMetrics((IMAGES, LABELS))
    (only,) = warned(net, board, probe)
    assert only.startswith("TensorBoard comes before BlockMetrics")
    assert warned(net, probe, board) == []


@pytest.mark.compiled
def test_monitors_that_stand_before(net):
    probe = callbacks.BlockMetrics((IMAGES, LABELS))
    own, other = "stage1/block0/l2_ratio", "loss"
    stop = keras.callbacks.EarlyStopping(own, mode="max")
    texts = warned(net, stop, probe)
    assert "EarlyStopping comes before BlockMetrics" in texts[0] and repr(own) in texts[0]
    assert warned(net, probe, stop) == []
    assert warned(net, keras.callbacks.EarlyStopping(other), probe) == []


def test_which_list_a_callback_is_in(net):
    """Also if it is used again, or the list is the user's own, or there is none."""
    seen = []

    class Sees(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append([type(one).__name__ for one in callbacks_before(self)])

    callback = Sees()
    assert callbacks_before(callback) == []
    fit(net, Batches(), callback)
    fit(net, [Batches(), Batches()], callback)
    kept = keras.callbacks.CallbackList([callback, Batches()], model=net, epochs=1, steps=1)
    net.fit(*random_batch(net, images=8), verbose=0, callbacks=kept)
    fit(net, callback)
    assert seen == [["Batches"], ["Batches", "Batches"], [], []]


@pytest.mark.system
@pytest.mark.compiled
def test_every_so_many_epochs_of_a_shorter_training(net):
    data = (IMAGES, LABELS)
    (text,) = warned(net, callbacks.Perturbation(data, every=3), epochs=2)
    assert text == (
        "Perturbation runs every 3 epochs, but the training has only 2: it will never run."
    )
    assert warned(net, callbacks.Perturbation(data, every=2), epochs=2) == []
    # The first epochs were those of an earlier training.
    (text,) = warned(net, callbacks.Perturbation(data, every=4), epochs=7, initial_epoch=4)
    assert text.endswith("has only epochs 5 to 7: it will never run.")
    assert warned(net, callbacks.Perturbation(data, every=4), epochs=4, initial_epoch=3) == []


def test_copies_before_and_during_a_training(net):
    callback = callbacks.BlockMetrics({"a": (IMAGES, LABELS)})
    fit(net, callback)
    copied = copy.deepcopy(callback)
    assert copied._chain is None and copied._first is None
    assert fit(net, copied).history.keys() == fit(net, callback).history.keys()
