"""What callbacks see before an epoch is lost: their data, the network, and the other callbacks.

Not covered here: what a generator yields after its first batch, and whether it ends, which cannot
be known.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.random_network import random_batch, random_network
from reference.unchanged import unchanged
from refusals import refused

from tfresidual import callbacks

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


def dataset(*batch):
    return tf.data.Dataset.from_tensor_slices(batch).batch(4)


@pytest.fixture(scope="module")
def net():
    net = random_network(blocks=2, widths=(4,))
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


class Batches(keras.callbacks.Callback):
    """Counts the batches that were trained."""

    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def fit(net, *chosen, epochs=1, **kwargs):
    return net.fit(
        *random_batch(net, images=8), batch_size=4, epochs=epochs, verbose=0,
        callbacks=list(chosen), **kwargs
    )  # fmt: skip


def is_refused(net, callback):
    """A training that does not begin, by an error of this package or of Keras."""
    count = Batches()
    with unchanged(net), pytest.raises((ValueError, tf.errors.OpError)):
        fit(net, callback, count)
    assert count.count == 0


# Data that is refused when the callback is made, and when a training begins; routing/test_data.py
# has what else probes refuse.


def empty():
    return tf.data.Dataset.from_generator(
        lambda: iter(()), output_signature=dataset(IMAGES, LABELS).element_spec
    )


NO_DATA = {
    "a Python generator of batches": (batch for batch in ()),
    "nothing": {},
    "endless": dataset(IMAGES, LABELS).repeat(),
    "a bad split": {"a": (IMAGES, LABELS), "b": dataset(IMAGES, LABELS).repeat()},
}
MISFITS = {
    "empty": dataset(IMAGES, LABELS).take(0),
    "an empty generator": empty(),
    "empty arrays": (IMAGES[:0], LABELS[:0]),
    "channels": (IMAGES[..., :1], LABELS),
    "channels of a dataset": dataset(IMAGES[..., :1], LABELS),
    "a split": {"a": (IMAGES, LABELS), "b": (IMAGES[..., :1], LABELS)},
}
MISFIT_LABELS = {
    "too high": LABELS + 1,
    "negative": LABELS - 1,
    "rows": np.eye(6)[LABELS],
    "NaN": np.where(LABELS == 2, np.nan, LABELS),
}


@all_kinds
def test_data_that_is_none(kind):
    for name, data in NO_DATA.items():
        with refused("data") as caught:
            kind(data)
        assert ("split 'b'" in str(caught.value)) == (name == "a bad split")


@pytest.mark.sampled(4)
@all_kinds
def test_data_that_does_not_fit_the_network(net, kind):
    for data in MISFITS.values():
        is_refused(net, kind(data))
    for labels in MISFIT_LABELS.values():
        if kind is callbacks.Perturbation:
            # Which does not read them.
            fit(net, kind((IMAGES, labels)))
            continue
        is_refused(net, kind((IMAGES, labels)))
        is_refused(net, kind(dataset(IMAGES, labels)))


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
    assert only.startswith("CSVLogger comes before BlockMetrics")
    # Between two that publish it misses what the second one does.
    (only,) = warned(net, probe(data), log, callbacks.Readout(data))
    assert only.startswith("CSVLogger comes before Readout")
    assert warned(net, probe(data), callbacks.Readout(data), log) == []
