"""Base class of all callbacks that run a probe and publish its numbers in the logs."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import re
import types
import warnings
from typing import TYPE_CHECKING

import keras

from tfresidual import probes, sources
from tfresidual.callbacks.failures import GoesOn
from tfresidual.callbacks.order import warn_of_earlier
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.chance import AT_CHANCE
from tfresidual.definitions.probes import PROBES
from tfresidual.definitions.warning import warn
from tfresidual.probes.logs import block_logs, log_key, published_places
from tfresidual.routing.data import (
    batches_of,
    check_data,
    first_batch,
    sliced,
    splits_of,
)
from tfresidual.routing.evaluator import check_scored
from tfresidual.sources.keras_models import OPENS_WITH_INPUTS

if TYPE_CHECKING:
    from typing import Any, Literal

    from tfresidual.definitions.types import Data, Frame, OnError, OutputKind
    from tfresidual.routing import Chain
    from tfresidual.sources.graph import Layers

# The number of images on which a probe is tried when training begins.
TRIED = 8
# Where a model keeps its chain. A dictionary of models would keep subclassed ones forever,
# since their chains refer to them.
_KEPT = "_tfresidual_probed"


def _probed(model):
    """Returns what is kept of a model in training: the chain that its callbacks share."""
    made = types.SimpleNamespace(chain=None, state=None, options={})
    # Not as an attribute that Keras would track.
    return vars(model).setdefault(_KEPT, made)


def use_blocks(
    model: keras.Model,
    *,
    blocks: Layers | None = None,
    expand_nested: bool | Layers | None = None,
    inputs: Any = None,
    padding: str | Literal[False] | None = None,
    positions: bool | None = None,
    output: str | int | None = None,
    outputs: OutputKind | None = None,
) -> None:
    """Sets how callbacks find the blocks of a model in training.

    By default, they probe `tfresidual.chain(model)`; after this call, every callback of this
    package in `model.fit` probes `tfresidual.chain` of the model with these arguments.

    Example:

    >>> model = keras.Model(net.inputs, net.outputs)
    >>> use_blocks(model, inputs=next(iter(test))[0])

    Args:
        model: the `keras.Model` that is trained.
        blocks: see `tfresidual.chain`, as for `expand_nested`, `inputs`, `padding`, `positions`,
            `output` and `outputs`.

    Raises:
        ValueError: if `model` is not a `keras.Model`. Other arguments are checked when training
            begins.
    """
    if not isinstance(model, keras.Model):
        raise ArgumentError(
            "model",
            "be a `keras.Model`",
            received=f"model={model!r} of type {type(model).__name__}",
        )
    options = {
        "blocks": blocks,
        "expand_nested": expand_nested,
        "inputs": inputs,
        "padding": padding,
    }
    options |= {"positions": positions, "output": output, "outputs": outputs}
    probed = _probed(model)
    probed.options = {name: value for name, value in options.items() if value is not None}
    probed.chain = None


def chain_in_training(model):
    """Returns the chain of a model, the same one for all callbacks of its training.

    It is made again when the model was compiled again, or its configuration, its variables or its
    dtype policies are others.
    """
    probed, state = _probed(model), _state_of(model)
    if probed.chain is None or probed.state != state:
        probed.chain, probed.state = sources.chain(model, **probed.options), state
        if _has_averages(model.optimizer):
            warn(
                f"With `use_ema`, the weights of {model.name} become their moving averages when "
                "`fit` ends: callbacks measure those before, unless they come after "
                "`keras.callbacks.SwapEMAWeights(swap_on_epoch=True)`."
            )
        if any(OPENS_WITH_INPUTS in note for note in probed.chain.notes):
            warn(
                f"Callbacks take whole layers of {model.name} as blocks, since they do not see the "
                "size of its inputs: `callbacks.use_blocks(model, inputs=batch)` before `fit` "
                "shows them the blocks inside; `callbacks.use_blocks(model, expand_nested=False)` "
                "says that whole layers are meant."
            )
    return probed.chain


def _has_averages(optimizer):
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return any(getattr(one, "use_ema", False) for one in getattr(inner, "optimizers", [inner]))


def _state_of(model):
    """Returns what is equal as long as the chain of a model is the same."""
    flat = list(model._flatten_layers())
    configs = []
    with warnings.catch_warnings():
        # Keras warns that a lambda cannot be loaded safely.
        warnings.simplefilter("ignore")
        for layer in flat:
            # A layer of one's own need not have a configuration.
            with contextlib.suppress(NotImplementedError):
                configs.append(re.sub(" at 0x[0-9a-f]+", "", repr(layer.get_config())))
    return (
        # Keras makes it in every `compile`.
        getattr(model, "_loss_tracker", None),
        hashlib.sha256("".join(configs).encode()).hexdigest(),
        [(id(one), tuple(one.shape), one.trainable) for one in model.weights],
        [layer.dtype_policy.name for layer in flat],
    )


def options_in_training(model):
    """Returns the arguments of `tfresidual.chain` with which that chain was made."""
    return _probed(model).options


class ProbeCallback(GoesOn, keras.callbacks.Callback):
    """Runs a probe at the end of some epochs of `fit` and publishes its numbers in `logs`.

    Every key exists from the first epoch on, with NaN where nothing was measured. Callbacks that
    read the logs (`CSVLogger`, `TensorBoard`, `EarlyStopping`) must come after this one; otherwise
    a warning is issued when training begins.

    When training begins (or after the first batch, if that builds the network), the first batch of
    every split is read and must fit the network, and the probe runs on its first images. What fails
    then is an error. What fails later, because of a full disk or data that changed, is a warning:
    the keys are NaN, and training continues.

    Reading the first batch counts as an iteration over the data. This changes the order of a
    dataset that is reshuffled in every iteration, such as the training data of
    `tfresidual.datasets.load`; to probe that, use `tfresidual.datasets.plain(train)`. If a dataset
    made from a generator is infinite, the first probe never ends.

    The network is probed in inference mode and is not changed, except by layers that assign to
    variables of their own in `predict`, too. The callback can be deep-copied and reused.

    Blocks are those of `tfresidual.chain(model)`; `use_blocks` chooses others, such as the
    attention and feed-forward layers inside of the layers of a transformer.

    A class for a probe of one's own has two methods: `probe`, which runs it, and `keys`, which
    names what that returns.

    Args:
        data: images and labels: a `tf.data.Dataset` in batches, or a tuple `(images, labels)` or
            `(images, labels, weights)` of arrays, or a dict of these by split name, which every key
            then starts with; see `tfresidual.definitions.types.Data`.
        every: int, the probe runs once every `every` epochs.
        on_error: what happens if the probe fails after training has begun: `"warn"`, a warning for
            each cause and NaN for the keys, or `"raise"`, the error, which ends the training.

    Attributes:
        frames: the frames of the last epoch by name; empty if the probe did not run then.

    Raises:
        ValueError: if an argument cannot be used, or `data` is known to be infinite or is an
            iterator; when training begins, if the data is empty or does not fit the network, or if
            the probe fails.
    """

    # The probe, whose declared columns are published unless a class has a `probe` and `keys` of its
    # own, and the arguments of the constructor that it is given.
    runs = ""
    takes: tuple[str, ...] = ()
    # Whether it reads any data, computes the loss from the labels, counts wrong predictions.
    reads_data, reads_labels, counts_errors = True, False, False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.runs:
            declared = PROBES[cls.runs]
            cls.reads_data = bool(declared.reads)
            cls.reads_labels = declared.reads == "labels"
            cls.counts_errors = "classes" in declared.needs

    def __init__(self, data: Data | None, *, every: int = 1, on_error: OnError = "warn") -> None:
        super().__init__()
        self.set_on_error(on_error)
        self.every: int = every
        if self.reads_data:
            for split, part in splits_of(data).items():
                with _in_split(split):
                    check_data(part, again=True)
        self.data: Data | None = data
        self.frames: dict[str, Frame] = {}
        # The last chain, and the keys that all epochs have, once the network is known.
        self._chain: Chain | None = None
        self._keys: list[str] = []
        self._first: dict[str | None, Any] | None = None
        self._is_tried, self._has_begun, self._has_ended = True, False, False

    def probe(self, chain: Chain) -> dict[str, float]:
        """Runs the probe and returns a dict of floats by log key."""
        declared, data = self._declared, (self.data,) if self.reads_data else ()
        given = {name: getattr(self, name) for name in self.takes}
        frame = getattr(probes, self.runs)(chain, *data, **given)
        self.keep(**{self.runs: frame})
        logs = block_logs(frame, declared.published, prefix=declared.prefix)
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        """Returns all keys that `probe` returns for a chain."""
        declared = self._declared
        places = published_places(declared, chain)
        return [
            log_key(declared.prefix + name, block.stage, block.index, split)
            for split in self.splits()
            for block in chain.blocks
            for name, published in places.items()
            if (block.stage, block.index) in published
        ]

    @property
    def _declared(self):
        """What is declared of the probe that it runs."""
        if self.runs:
            return PROBES[self.runs]
        raise ArgumentError(
            "callbacks",
            "hold probe callbacks with the methods `probe(chain)`, which returns a dict of numbers "
            "by key, and `keys(chain)`, which returns the keys as a list",
            received=f"{type(self).__name__}, which lacks one of them",
        )

    def check(self, chain: Chain) -> None:
        """Raises a `ValueError` if it is known that the probe cannot be run on a chain."""
        if self.counts_errors:
            check_scored(chain)

    def keep(self, **frames: Frame) -> None:
        """Keeps frames that the probe returned, by name; the report has them."""
        self.frames |= frames

    def splits(self) -> list[str | None]:
        """Returns the names of the splits of the data, `[None]` if it has no splits."""
        return list(splits_of(self.data)) if self.reads_data else [None]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._chain, self.frames, self.warned_of = None, {}, set()
        self._has_ended = False
        epochs = (self.params or {}).get("epochs")
        self._has_begun = False
        self._is_tried = not epochs or epochs >= self.every
        self._first = {}
        for split, part in splits_of(self.data).items() if self.reads_data else ():
            with _in_split(split):
                self._first[split] = first_batch(part)
        if self.model.built:
            self._begin()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        # Only now is the first epoch of this training run known.
        epochs = (self.params or {}).get("epochs")
        if epochs and epochs // self.every == epoch // self.every:
            warn(
                f"{type(self).__name__} runs every {self.every} epochs, but the training has only "
                f"{epoch_numbers(epoch, epochs)}: it will never run."
            )

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # This is not done at the end of the first batch, since a callback that defines
        # `on_train_batch_end` makes Keras wait for the end of every batch.
        if self._chain is None and self.model.built:
            self._begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._has_ended:
            raise ArgumentError(
                "callbacks",
                "not hold a callback with which another `fit` is called during the training: it "
                "would probe the model of that",
                received=f"{type(self).__name__}, which was last given to {self.model.name}",
            )
        if self._chain is None:
            self._begin()
        logs, self.frames = {} if logs is None else logs, {}
        logs.update(dict.fromkeys(self._keys, math.nan))
        if (epoch + 1) % self.every == 0:
            with self.going_on("its numbers of this epoch"):
                self._chain = chain_in_training(self.model)
                logs.update(self._quietly(self._chain))

    def _quietly(self, chain):
        """Runs the probe; at the start of a training, every network is at chance."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", AT_CHANCE)
            return self.probe(chain)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._has_ended = True

    def _begin(self):
        """Checks the network, once it is built, and whether data and probe fit it."""
        chain = chain_in_training(self.model)
        self.check(chain)
        few = {}
        for split, batch in self._first.items():
            with _in_split(split):
                has_labels = batch[1] is not None
                *part, _ = next(batches_of(batch, chain, with_labels=has_labels))
                few[split] = sliced(tuple(part if has_labels else part[:1]), slice(TRIED))
        warn_of_earlier(self, ProbeCallback, self.keys(chain))
        if few and self._is_tried:
            self._try(chain, few)
        self._chain, self._keys, self._first = chain, self.keys(chain), None

    def _try(self, chain, few):
        """Runs the probe on a few images, or on all where it cannot be run on so few."""
        data = self.data
        try:
            self.data = few.get(None, few)
            self._quietly(chain)
        except ValueError:
            self.data = data
            self._quietly(chain)
        finally:
            self.data, self.frames = data, {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is pickled: not the model, nor what was built for it."""
        return vars(self) | dict.fromkeys(("_model", "_chain", "_first"))

    def __deepcopy__(self, memo: dict[int, Any]) -> ProbeCallback:
        """Returns a copy without a model, which shares the data, since data is only read."""
        new = copy.copy(self)
        memo[id(self)] = new
        new._model = new._chain = new._first = None
        new.frames = {}
        return new


def epoch_numbers(first, last):
    """Returns which epochs a training has, after `first` and until `last`, as text."""
    return f"epochs {first + 1} to {last}" if first else f"{last}"


@contextlib.contextmanager
def _in_split(split):
    """Adds the name of a split to errors about its data."""
    try:
        yield
    except ValueError as error:
        if split is None:
            raise
        if isinstance(error, ArgumentError) and error.names:
            received = f"{error.received}, in split {split!r}"
            raise ArgumentError(error.names, error.must, received=received) from error
        raise ValueError(f"{error}, in split {split!r}") from error
