"""Publishes what every block does in the training steps themselves."""

from __future__ import annotations

import copy
import pathlib
import types
from typing import TYPE_CHECKING

import keras
import numpy as np
import pandas as pd

from tfresidual.callbacks.failures import GoesOn
from tfresidual.callbacks.order import warn_of_earlier
from tfresidual.callbacks.probe_callback import (
    ProbeCallback,
    chain_in_training,
    options_in_training,
)
from tfresidual.callbacks.step_files import StepEvents, StepTable
from tfresidual.callbacks.training_step import (
    METRICS,
    REDUCTIONS,
    ROWS,
    MeasuredStep,
    reduction_of,
)
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.warning import warn
from tfresidual.machine.files import check_folder
from tfresidual.machine.first_step import changed_method
from tfresidual.probes.block_metrics import metrics_of
from tfresidual.probes.logs import log_key
from tfresidual.routing.devices import is_elsewhere
from tfresidual.routing.gradients import is_float8
from tfresidual.routing.losses import single
from tfresidual.sources.places import places_of

if TYPE_CHECKING:
    from typing import Any

    from tfresidual.definitions.types import OnError, StrPath

# What comes first in the keys, where those of probes have the name of a split.
STEP = "step"
_CALL = keras.losses.Loss.__call__


class StepMetrics(GoesOn, keras.callbacks.Callback):
    """Measures the blocks in the training steps, which compute all states and gradients anyway.

    Publishes `"step/stage1/block0/cosine_loss"`, `".../l2_ratio"`, `".../gradient_norm"` and
    `".../perturbation"` of `tfresidual.probes.block_metrics`, as training sees them, for every
    block: means over the first images of every batch of the epoch. A block that changes the shape
    of the state has the gradient norm alone. The training stays the same, bit for bit; where
    blocks take an anchor, whose gradients are added in another order, to rounding.
    docs/howto/step_metrics.md says how weights of images, added losses, resumed trainings and
    frozen layers count, and which models cannot be measured.

    Example:

    >>> steps = StepMetrics(images=16, csv="steps.csv")
    >>> history = net.fit(train, callbacks=[steps], verbose=0)
    >>> "step/stage1/block0/cosine_loss" in history.history
    True

    Args:
        images: int, how many images of every batch are measured, the first ones; with several
            replicas, of the part of the batch that each of them has.
        every: int, one step in so many is measured, counted over the whole training.
        csv: path of a file for the single steps, or `None`. Its columns are `epoch` (from 0),
            `step` (from 0, over the whole training), `stage` (from 1), `block` (from 0) and the
            metrics, means over the images of the step. Rows are added at the end of every epoch,
            all or none; a training that begins at a later epoch keeps those of earlier epochs
            alone. If `every` is more than 1, a second file, such as `steps.epochs.csv`, holds the
            number of steps up to the end of each epoch.
        tensorboard: path of a folder for the single steps as scalars of TensorBoard, or `None`.
        on_error: what happens if a file cannot be written at the end of an epoch: `"warn"`, a
            warning for each cause, and training continues; or `"raise"`, an error.

    Raises:
        ValueError: if an argument is invalid; when training begins, if the model cannot be
            measured.
        OSError: when training begins, if `csv` or `tensorboard` cannot be written to.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4.1; Hauser 2019, "On
        residual networks learning a perturbation from identity", eq. 2 and 3.
    """

    def __init__(
        self,
        *,
        images: int = 8,
        every: int = 1,
        csv: StrPath | None = None,
        tensorboard: StrPath | None = None,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__()
        self.set_on_error(on_error)
        self.images: int = images
        self.every: int = every
        self.csv: pathlib.Path | None = None if csv is None else pathlib.Path(csv)
        self.tensorboard: pathlib.Path | None = (
            None if tensorboard is None else pathlib.Path(tensorboard)
        )
        self._forget()

    def _forget(self):
        """Sets everything that belongs to one training."""
        self._chain = self._step = self._files = self._table = self._function = None
        self._read, self._read_at = [], 0
        # The number of steps before this epoch, the batch that began last, and another training
        # function with which nothing can be measured.
        self._first, self._batch, self._seen = 0, -1, None
        self._is_checked, self._check_at, self._has_missed = False, 1, False
        self.warned_of = set()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._forget()
        at_compile = getattr(self.model, "_compiled_trainable_state", {})
        others = [one.name for one, was in at_compile.items() if one.trainable != was]
        if others:
            raise ArgumentError(
                "model",
                "be compiled again after layers were frozen or unfrozen: Keras trains what was "
                "trainable at `compile`, which `StepMetrics` would change",
                received=f"model={self.model.name}, where `trainable` changed in {others}",
            )
        if self.csv is not None:
            check_folder("csv", self.csv.parent)
        if self.tensorboard is not None:
            check_folder("tensorboard", self.tensorboard)
        self._measure()
        warn_of_earlier(self, (ProbeCallback, StepMetrics), self.keys())

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._files is None:
            # Only now is the first epoch known, and have callbacks restored what they keep.
            self._table = StepTable(self.csv, epoch, self.every) if self.csv else None
            self._files = [
                *([self._table] if self._table else []),
                *([StepEvents(self.tensorboard)] if self.tensorboard else []),
            ]
            done = self._steps_before(epoch)
            self._step.begin(done)
            # After the first step that is measured.
            self._check_at = -done % self.every + 1
        self._read, self._read_at = [], 0
        self._first, self._batch = self._step.done, -1
        self._measure_again(0)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # Reading waits for the device, so it is done seldom. (A callback that defines
        # `on_train_batch_end` makes Keras wait for the end of every batch.)
        self._batch = batch
        self._measure_again(batch)
        is_first = batch >= self._check_at and not self._is_checked
        if is_first or batch + self.model.steps_per_execution - self._read_at > ROWS * self.every:
            self._read += self._step.read()
            self._read_at = batch
            self._check_measured()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._read += self._step.read()
        self._check_measured()
        self._count_last()
        steps = np.array([step for step, _ in self._read], int)
        values = np.array([value for _, value in self._read], np.float32)
        values = values.reshape(len(steps), len(self._chain.blocks), len(METRICS) + 1)
        self._read, self._read_at = [], 0
        _kept(self.model).done[epoch] = self._step.done
        logs = {} if logs is None else logs
        logs.update(dict(zip(self.keys(), self._means(values), strict=True)))
        frame = self._frame(epoch, steps, values)
        for file in self._files or []:
            with self.going_on("the steps of this epoch in a file"):
                file.add(epoch, frame, self._step.done)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._function.undo()
        for file in self._files or []:
            if isinstance(file, StepEvents):
                with self.going_on("the last steps in a file"):
                    file.close()
        self._forget()

    def keys(self) -> list[str]:
        """Returns all keys that are published during training."""
        return [
            log_key(name, block.stage, block.index, STEP)
            for block in self._chain.blocks
            for name in _metrics_of(self._chain, block)
        ]

    def _measure(self):
        """Makes the model train with a step that measures its blocks as they are now."""
        _check(self.model)
        chain = chain_in_training(self.model)
        placed = places_of(self.model, chain, **options_in_training(self.model))
        if all(one.before is None for one in placed):
            raise ArgumentError(
                "model",
                "have a weight that is trained before its last block: the training step computes "
                "no gradient before it",
                received=f"model={self.model.name}",
            )
        if self._chain is not None and _places(chain) != _places(self._chain):
            raise ArgumentError(
                "model",
                "keep its blocks during training",
                received=f"model={self.model.name}, which began with {len(self._chain.blocks)} "
                "blocks and "
                f"has {len(chain.blocks)} others now",
            )
        fits = [] if self._function is None else self._function.fits
        self._step, self._function = _measuring(
            self.model, fits, chain, placed, self.images, self.every
        )
        self._chain = chain
        # Blocks of which a step measures something.
        self._is_measured = np.array([one.before is not None for one in placed])

    def _measure_again(self, batch):
        """Measures on if the training function was made anew, as when layers are frozen."""
        function = self.model.train_function
        if function is self._function or function is self._seen:
            return
        self._seen = function
        # A function around that of this callback still measures.
        if _code(function) is None or _code(function) != _code(self._function.function):
            return
        self._read += self._step.read()
        self._check_measured()
        self._read_at, done = batch, self._first + batch
        missed = done - self._step.done
        self._is_checked = True
        with self.going_on("the metrics of further steps"):
            self._measure()
            self._step.begin(done)
            self._seen = None
        if self._seen is not None:
            self._has_missed = True
        elif missed > 0:
            self._warn_of_missed(missed)

    def _count_last(self):
        """Counts the last steps of an epoch if another training function did them."""
        done, last = self._step.done, self._first + self._batch
        if self.model.train_function is self._function or self._batch < 0 or done > last:
            return
        steps = (self.params or {}).get("steps")
        count = self.model.steps_per_execution
        last += count if steps is None else min(count, steps - self._batch)
        self._step.begin(last)
        self._warn_of_missed(last - done)

    def _warn_of_missed(self, missed):
        if not self._has_missed:
            self._has_missed = True
            warn(
                f"{self.model.name} did training steps that are not measured, {missed} so far: its "
                "training function was replaced after `StepMetrics` looked. Place the callback "
                "that does this, such as with `make_train_function`, before `StepMetrics`."
            )

    def _steps_before(self, epoch):
        """Returns the number of steps of the training before the first epoch of this `fit`."""
        kept = _kept(self.model)
        kept.done = {one: steps for one, steps in kept.done.items() if one < epoch}
        if not epoch:
            return 0
        known = None if self._table is None else self._table.steps
        if known is None:
            known = kept.done.get(epoch - 1)
        steps = (self.params or {}).get("steps")
        if known is None and steps and steps % self.model.steps_per_execution == 0:
            known = epoch * steps
        if known is None:
            known = int(self.model.optimizer.iterations)
            if self._files or self.every > 1:
                warn(
                    f"It is not known how many steps the training had before epoch {epoch}, since "
                    "the number of batches is unknown and no `csv` of earlier epochs is continued. "
                    f"Steps are counted from {known}, the iterations of the optimizer."
                )
        return known

    def _check_measured(self):
        if self._is_checked or not self._read:
            return
        self._is_checked = True
        counts = np.array([value for _, value in self._read])[:, self._is_measured, -1]
        if np.isnan(counts).any():
            raise ArgumentError(
                "model",
                "have a gradient of the loss at every state",
                received=f"model={self.model.name}, where the training step computed none at some",
            )

    def _means(self, values):
        """Returns the means over all images, in the order of the keys."""
        numbers, counts = values[..., :-1].astype(float), values[..., -1:].astype(float)
        is_counted = counts != 0
        if isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer):
            is_counted = is_counted & np.isfinite(numbers)
        counts = np.where(is_counted, counts, 0) * np.ones_like(numbers)
        with np.errstate(invalid="ignore"):
            means = np.where(is_counted, numbers * counts, 0).sum(axis=0) / counts.sum(axis=0)
        return [
            float(row[METRICS.index(name)])
            for block, row in zip(self._chain.blocks, means, strict=True)
            for name in _metrics_of(self._chain, block)
        ]

    def _frame(self, epoch, steps, values):
        blocks = self._chain.blocks
        places = {
            "epoch": epoch,
            "step": np.repeat(steps, len(blocks)),
            "stage": np.tile([block.stage for block in blocks], len(steps)),
            "block": np.tile([block.index for block in blocks], len(steps)),
        }
        numbers = values.reshape(-1, len(METRICS) + 1)
        return pd.DataFrame(places | {name: numbers[:, i] for i, name in enumerate(METRICS)})

    def __deepcopy__(self, memo: dict[int, Any]) -> StepMetrics:
        """Returns a copy without a model."""
        new = copy.copy(self)
        memo[id(self)] = new
        new._model = None
        new._forget()
        return new


def _kept(model):
    """Returns what is kept of a model from one `fit` to the next: step counts and a traced step."""
    kept = types.SimpleNamespace(done={}, key=None, step=None, function=None)
    # Not as an attribute that Keras would track.
    return vars(model).setdefault("_tfresidual_steps", kept)


def _measuring(model, fits, chain, placed, images, every):
    """Makes a model train with a `MeasuredStep`; returns that and the `_Replaced`."""
    # Perhaps the step of another `fit`, during which a callback began this one.
    is_taken = isinstance(model.train_function, _Replaced)
    replaced, kept = _Replaced(model, fits), _kept(model)
    key = (
        replaced.before,
        # Made again when anything of the model has changed but this:
        chain,
        [layer.trainable for layer in model._flatten_layers()],
        images,
        every,
        model.steps_per_execution,
        model.run_eagerly,
    )
    if is_taken or kept.key != key:
        kept.key = kept.step = kept.function = None
        kept.step = MeasuredStep(model, chain.loss, placed, images, every)
        kept.function = replaced.made(kept.step)
        kept.key = key
    replaced.begin(kept.function)
    kept.step.begin(0)
    return kept.step, replaced


class _Replaced:
    """Makes a model train with another function, from `begin` until `undo`.

    An interrupted `fit` does not call `on_train_end`; the next one is recognized by its history,
    which is none of `fits`, those of this `fit` and of those that callbacks called.
    """

    def __init__(self, model, fits):
        self.model, self.function = model, None
        self.before, self.fits = model.train_function, [*fits, getattr(model, "history", None)]
        if isinstance(self.before, _Replaced):
            if self.before.is_within():
                raise ArgumentError(
                    "callbacks", "hold one `StepMetrics` at most", received="several"
                )
            self.before = self.before.before

    def made(self, step):
        """Returns the training function that does a step."""
        # Keras takes the method of the model when it makes the function.
        vars(self.model)["train_step"] = step
        try:
            self.model.make_train_function(force=True)
            return self.model.train_function
        finally:
            del vars(self.model)["train_step"]
            self.model.train_function = self.before

    def begin(self, function):
        self.function, self.model.train_function = function, self

    def __call__(self, iterator):
        if not self.is_within():
            self.undo()
            return self.before(iterator)
        return self.function(iterator)

    def is_within(self):
        """Returns whether the model is still in the `fit` that it began with."""
        history = getattr(self.model, "history", None)
        return any(history is one for one in self.fits)

    def undo(self):
        # Somebody may hold a function around this one.
        self.function = self.before
        if self.model.train_function is self:
            self.model.train_function = self.before


def _code(function):
    """Returns the code of a training function; all that Keras makes have the same."""
    return getattr(getattr(function, "python_function", function), "__code__", None)


def _places(chain):
    return [(block.stage, block.index, block.keeps_shape) for block in chain.blocks]


def _metrics_of(chain, block):
    return [name for name in metrics_of(chain, block) if name in METRICS]


def _check(model):
    """Raises a `ValueError` if the step of a model does not have the gradients of the probe."""
    loss, own = single(model.loss), changed_method(model)
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    strategy = model.distribute_strategy
    if not model.built:
        what, received = "a defined input, such as a `keras.Input`", "a model that is not built"
    elif own:
        what, received = "the training step of Keras", f"a model with its own `{own}`"
    elif isinstance(loss, keras.losses.Loss) and type(loss).__call__ is not _CALL:
        what, received = "a loss that Keras reduces", f"loss={loss!r}, with its own `__call__`"
    elif loss is None or isinstance(loss, (list, tuple, dict)) or weights is not None:
        what = "one loss without a weight"
        received = f"loss={model.loss!r}, loss_weights={weights!r}"
    elif reduction_of(model) not in REDUCTIONS or getattr(loss, "ignore_class", None) is not None:
        what = f"a loss with the reduction {' or '.join(REDUCTIONS)} that ignores no class"
        received = f"loss={loss!r} with the reduction {reduction_of(model)!r}"
    elif model.jit_compile:
        what = "`compile(jit_compile=False)`: XLA would round otherwise with and without metrics"
        received = f"jit_compile={model.jit_compile!r}"
    elif any(map(is_float8, model.weights)):
        what, received = "layers that are not in float8", "a model with float8 layers"
    elif is_elsewhere(strategy):
        what = "one replica, or a `tf.distribute.MirroredStrategy`"
        received = f"a {type(strategy).__name__}"
    else:
        return
    raise ArgumentError(
        "model",
        f"be trained with {what}, to be measured by `StepMetrics`",
        received=f"model={model.name}, {received}",
    )
