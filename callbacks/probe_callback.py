"""What all callbacks that run a probe share: when it runs, on what, and how the logs get it."""

import copy
import math
import weakref

import keras

from tfresidual.arguments import check_int
from tfresidual.chains import chain as chain_of
from tfresidual.chains.batches import splits_of
from tfresidual.chains.evaluator import check_scored

# Chains of models in training, shared by their callbacks: a chain holds compiled functions. With
# each the loss it was made for, which `compile` may have replaced since.
_CHAINS = weakref.WeakKeyDictionary()


def chain_in_training(model):
    """The chain of a model, the same one for all callbacks of its training."""
    loss, chain = _CHAINS.get(model, (None, None))
    if chain is None or loss is not model.loss:
        chain = chain_of(model)
        _CHAINS[model] = model.loss, chain
    return chain


class ProbeCallback(keras.callbacks.Callback):
    """Runs a probe at the end of epochs of `fit` and publishes its numbers in `logs`.

    Every key is there from the first epoch on, NaN where nothing was measured, so that
    `keras.callbacks.CSVLogger` sees all of them. Callbacks that read the logs (`CSVLogger`,
    `TensorBoard`, `EarlyStopping`) must stand behind this one in the list.

    The network is probed at inference and left as it was. The callback can be deep-copied and
    used for several trainings; what it builds for a model is built when a training begins.

    Args:
        data: what the probe reads: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by the name of the split, which then begins every key.
        every: int, the probe runs after every so many epochs.

    Raises:
        ValueError: if `every` is not a positive int.
    """

    # Whether the probe asks for predictions that are right or wrong.
    counts_errors = False

    def __init__(self, data, every=1):
        super().__init__()
        self.every = check_int("every", every, at_least=1)
        self.data = data
        self._chain = None

    def probe(self, chain):
        """Runs the probe: a dict of floats by log key."""
        raise NotImplementedError

    def keys(self, chain):
        """All keys that `probe` returns for a chain."""
        raise NotImplementedError

    def splits(self):
        """The names of the data's splits, `[None]` where it has none."""
        return list(splits_of(self.data))

    def on_train_begin(self, logs=None):
        self._chain = chain_in_training(self.model)
        if self.counts_errors:
            check_scored(self._chain)

    def on_epoch_end(self, epoch, logs=None):
        logs = {} if logs is None else logs
        logs.update(dict.fromkeys(self.keys(self._chain), math.nan))
        if (epoch + 1) % self.every == 0:
            logs.update(self.probe(self._chain))

    def __deepcopy__(self, memo):
        """A copy without a model. It shares the data, which is only read."""
        new = copy.copy(self)
        memo[id(self)] = new
        new._model = new._chain = None
        return new
