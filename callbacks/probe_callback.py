"""What all callbacks that run a probe share: when it runs, on what, and how the logs get it."""

import contextlib
import copy
import math
import warnings
import weakref

import keras
import numpy as np
from tfresidual.callbacks.order import warn_of_earlier

from tfresidual import sources
from tfresidual.arguments import check_int
from tfresidual.probes.measure import takes_any_labels
from tfresidual.routing.batches import check_data, check_images, first_batch, splits_of
from tfresidual.routing.evaluator import check_scored
from tfresidual.routing.losses import takes_signs
from tfresidual.routing.outputs import check_labels

# Chains of models in training, shared by their callbacks: a chain holds compiled functions. With
# each the loss it was made for, which `compile` may have replaced since.
_CHAINS = weakref.WeakKeyDictionary()


def chain_in_training(model):
    """The chain of a model, the same one for all callbacks of its training."""
    loss, chain = _CHAINS.get(model, (None, None))
    if chain is None or loss is not model.loss:
        chain = sources.chain(model)
        _CHAINS[model] = model.loss, chain
    return chain


class ProbeCallback(keras.callbacks.Callback):
    """Runs a probe at the end of epochs of `fit` and publishes its numbers in `logs`.

    Every key is there from the first epoch on, NaN where nothing was measured, so that
    `keras.callbacks.CSVLogger` sees all of them. Callbacks that read the logs (`CSVLogger`,
    `TensorBoard`, `EarlyStopping`) must stand after this one in the list; one that stands before
    it is warned about as the training begins.

    The data is looked at as the training begins, too: the first batch of every split is read
    once, and must fit the network. (A network that its first batch builds is compared with the
    data after that batch.) It counts as an iteration of the data, which data that is shuffled
    anew in every iteration, or counts its iterations as that of `tfresidual.datasets.load` does,
    will notice: of training data, probe `tfresidual.datasets.plain(train)`. Whether a dataset made
    from a generator ends cannot be told: if it does not, neither does the first probe.

    The network is probed at inference and left as it was. The callback can be deep-copied and
    used for several trainings; what it builds for a model is built when a training begins.

    Args:
        data: what the probe reads: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by the name of the split, which then begins every key.
        every: int, the probe runs after every so many epochs.

    Raises:
        ValueError: if `every` is not a positive int, or `data` is none of these or never ends; as
            a training begins, if the data is empty or does not fit the network.
    """

    # Whether the probe has data at all.
    reads_data = True
    # Whether it takes the loss of the labels.
    reads_labels = False
    # Whether it asks for predictions that are right or wrong.
    counts_errors = False

    def __init__(self, data, *, every=1):
        super().__init__()
        self.every = check_int("every", every, at_least=1)
        if self.reads_data:
            for split, part in splits_of(data).items():
                with _in_split(split):
                    check_data(part)
        self.data = data
        self._chain = self._first = None

    def probe(self, chain):
        """Runs the probe: a dict of floats by log key."""
        raise NotImplementedError

    def keys(self, chain):
        """All keys that `probe` returns for a chain."""
        raise NotImplementedError

    def check(self, chain):
        """Raises a `ValueError` unless the probe can be run on a chain, as far as is known."""
        if self.counts_errors:
            check_scored(chain)

    def splits(self):
        """The names of the data's splits, `[None]` where it has none."""
        return list(splits_of(self.data))

    def on_train_begin(self, logs=None):
        self._chain = None
        epochs = (self.params or {}).get("epochs")
        if epochs and epochs < self.every:
            warnings.warn(
                f"{type(self).__name__} runs after every {self.every} epochs of a training that "
                f"has {epochs}: it will not run at all.",
                stacklevel=2,
            )
        self._first = self._first_batches()
        if self.model.built:
            self._begin()

    def on_train_batch_begin(self, batch, logs=None):
        # Not at the end of the first batch: Keras would then wait for the end of every batch.
        if self._chain is None and self.model.built:
            self._begin()

    def on_epoch_end(self, epoch, logs=None):
        if self._chain is None:
            self._begin()
        logs = {} if logs is None else logs
        logs.update(dict.fromkeys(self.keys(self._chain), math.nan))
        if (epoch + 1) % self.every == 0:
            logs.update(self.probe(self._chain))

    def _first_batches(self):
        """The first images of every split, and their labels."""
        batches = {}
        if self.reads_data:
            for split, part in splits_of(self.data).items():
                with _in_split(split):
                    batches[split] = first_batch(part)
        return batches

    def _begin(self):
        """Looks at the network, as soon as it is built, and at whether the data fits it."""
        chain = chain_in_training(self.model)
        self.check(chain)
        is_read = self.counts_errors or (self.reads_labels and takes_any_labels(chain))
        for split, (images, labels) in self._first.items():
            with _in_split(split):
                check_images(chain, images)
                if is_read:
                    self._check_labels(chain, labels)
        warn_of_earlier(self, ProbeCallback, self.keys(chain))
        self._chain, self._first = chain, None

    def _check_labels(self, chain, labels):
        labels = np.asarray(labels)
        if labels.dtype.kind not in "biuf":
            raise ValueError(
                "Argument `data` must hold labels that are numbers. "
                f"Received: labels of dtype {labels.dtype}"
            )
        shape = self.model.output_shape
        if len(shape) == 2:
            check_labels(chain.outputs, labels, shape[-1], takes_signs(chain.loss))

    def __deepcopy__(self, memo):
        """A copy without a model. It shares the data, which is only read."""
        new = copy.copy(self)
        memo[id(self)] = new
        new._model = new._chain = new._first = None
        return new


@contextlib.contextmanager
def _in_split(split):
    """Adds the name of a split to errors about its data."""
    try:
        yield
    except ValueError as error:
        if split is None:
            raise
        raise ValueError(f"{error}, in split {split!r}") from error
