"""Smaller networks: blocks out, statistics measured again, trained further. TensorFlow only."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, check_number
from tfresidual.definitions.averages import STANDARD_ERRORS
from tfresidual.definitions.warning import warn
from tfresidual.routing import evaluate, routes
from tfresidual.routing.data import batches_of
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.surgery.models import chain_of, without_blocks
from tfresidual.surgery.planning import check_read_again, halves, outcome, plan
from tfresidual.surgery.statistics import UPDATES, update_statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Frame, Images
    from tfresidual.routing import Chain

# What a row of the frame of `prune` is about.
WHOLE, REMOVED, STATISTICS, TUNED = "network", "removed", "statistics", "fine-tuned"


class Pruned(NamedTuple):
    """What `prune` returns: the smaller model and the frame."""

    model: keras.Model
    frame: Frame


def prune(
    model: Chain | ChainSource,
    data: Images,
    *,
    blocks: int | None = None,
    speed: float | None = None,
    most_error: float | None = None,
    by: Literal["loss", "influence", "angular", "first_order", "l2_ratio"] = "loss",
    exact: bool = False,
    stages: Iterable[int] | None = None,
    test: Images | None = None,
    selection: Images | None = None,
    statistics: bool = True,
    epochs: int = 0,
    optimizer: str | keras.Optimizer | None = None,
    distil: float = 0.0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    batch_sizes: Iterable[int] = (1, 256),
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Pruned:
    """Takes blocks out of a network and makes up for it, as far as is asked for.

    First `plan` says which blocks go. Then batch normalization gets the statistics that its images
    have now, without labels (`update_statistics`), and the smaller network is trained further, if
    asked for. `model` stays as it is.

    Example:

    >>> smaller, frame = prune(net, train, blocks=2, test=test, by="l2_ratio", batch_sizes=())
    >>> frame["what"].tolist()
    ['network', 'removed', 'removed', 'statistics']

    Args:
        model: see `plan`.
        data: images and labels, to train on, to choose blocks on, and for the statistics.
        blocks: see `plan`.
        speed: see `plan`.
        most_error: see `plan`, for the network before its statistics are measured again.
        by: see `plan`.
        exact: see `plan`.
        stages: see `plan`.
        test: images and labels to judge on; by default, every second image of `data`, which is then
            used for nothing else.
        selection: images and labels to choose blocks on, the same ones whenever it is read, if not
            all of `data`: a few thousand will do, without augmentation.
        statistics: whether the statistics of batch normalization are measured again, on 60 batches
            of `data`, if there is some; also after the training, which may be too short for moving
            averages.
        epochs: int, 0 or more, of training after it.
        optimizer: for this training, one that has trained nothing yet; by default a new one with
            the configuration of that of `model`: with the learning rate it has now, or its schedule
            from the first step on.
        distil: float from 0 to 1, the share of the predictions of `model` in the labels of this
            training. The loss is then the cross-entropy with (1 - distil) label + distil prediction
            whatever `model` was compiled with; for outputs that are one row of classes per image.
        callbacks: `keras.callbacks.Callback`s of this training.
        batch_sizes: see `plan`.
        memory_limit: see `plan`.
        progress: whether to show progress bars, those of Keras too.

    Returns:
        A pair `(model, frame)`. The model is compiled as `model` is, with a new optimizer. The
        frame is that of `plan` with a first column `what`: `"network"`, `"removed"` for each step,
        and, if they were asked for, `"statistics"` and `"fine-tuned"`, with the numbers of the
        network then, judged on `test`.

    Raises:
        ValueError: if an argument cannot be used; nothing is trained then.

    Reference:
        Hinton et al. 2015, https://arxiv.org/abs/1503.02531, on distillation.
    """
    check_number("distil", distil, at_least=0, at_most=1)
    chain = chain_of(model)
    model = chain.source.model
    optimizer = _checked_training(model, epochs, optimizer, distil, callbacks)
    if test is None:
        data, test = halves(data)
    try:
        frame = plan(
            chain,
            data if selection is None else selection,
            blocks=blocks,
            speed=speed,
            most_error=most_error,
            by=by,
            exact=exact,
            stages=stages,
            test=test,
            batch_sizes=batch_sizes,
            memory_limit=memory_limit,
            progress=progress,
        )
    except ArgumentError as error:
        if selection is None or error.names != ("data",):
            raise
        raise ArgumentError("selection", error.must, received=error.received) from error
    judge = Judge(chain, test, memory_limit)
    made, frame = planned(frame, data, judge, statistics)
    if epochs:
        _train(made, chain, data, test, epochs, optimizer, distil, callbacks, progress)
        remeasured(made, data, judge.chain, statistics)
        frame = judge.added(frame, made, TUNED)
    return Pruned(made, frame)


def planned(plan, data, judge, statistics):
    """Returns the model that a plan leaves, and the frame of `prune` until then.

    Args:
        plan: the frame of the plan.
        data: images for the statistics of batch normalization.
        judge: a `Judge`.
        statistics: whether they are measured again, if there are some.
    """
    images, *_ = next(batches_of(data, judge.chain, with_labels=False))
    made, frame = without_blocks(judge.chain, plan, inputs=images), plan.copy()
    frame.insert(0, "what", [WHOLE, *[REMOVED] * (len(frame) - 1)])
    if remeasured(made, data, judge.chain, statistics):
        frame = judge.added(frame, made, STATISTICS)
        row = frame.iloc[-1]
        if row["error_rise"] + STANDARD_ERRORS * row["error_rise_se"] < 0:
            warn(
                "With its statistics measured again, the smaller network errs less than the whole "
                "one: those of the whole network have not settled either. Give them to it before, "
                "with `tfresidual.surgery.update_statistics`, and both are compared alike."
            )
    return made, frame


def remeasured(model, data, chain, statistics):
    """Measures the statistics of batch normalization, if that is asked for and there are some.

    They are those of the first batches of the data, again and again; `chain` is that of a network
    with the same inputs. Returns whether it did. Moving averages take up to thousands of steps to
    follow the weights.
    """

    def batches():
        while True:
            yield from (images for images, *_ in batches_of(data, chain, with_labels=False))

    return statistics and update_statistics(model, itertools.islice(batches(), UPDATES)) > 0


class Judge:
    """Compares networks with the one that they were made of, on the same images.

    Args:
        chain: the chain of the whole network.
        test: images and labels.
        memory_limit: see `plan`.
    """

    def __init__(self, chain, test, memory_limit=MEMORY_LIMIT):
        self.chain, self.test, self.memory_limit = chain, test, memory_limit
        self.values = self._values(chain)

    def added(self, frame, model, what):
        """Returns the frame of a plan with a row of what a network does now."""
        again = self._values(self.chain)
        check_read_again("test", self.chain, self.values, again, in_order=True)
        numbers = outcome(self._values(self._whole(model)), self.values.wrong[0])
        last = frame.iloc[[-1]].assign(
            what=what, stage=0, block=0, blocks=0, value=np.nan, error_selection=np.nan, **numbers
        )
        return pd.concat([frame, last], ignore_index=True)

    def _whole(self, model):
        """Returns a chain of a model as a whole, with all that is declared of the network."""

        def whole(images, *_):
            return model(images, training=False)

        return dataclasses.replace(
            self.chain,
            stem=whole,
            stages=(),
            head=lambda outputs, *_: outputs,
            reference=whole,
            variables=tuple(model.variables),
            weights=tuple(model.trainable_variables),
        )

    def _values(self, chain):
        route = routes.unperturbed(chain)
        return evaluate(chain, self.test, [route], memory_limit=self.memory_limit)


def _checked_training(model, epochs, optimizer, distil, callbacks):
    """Returns what `compile` is given for a training; raises the errors of its arguments."""
    if not epochs:
        for name, value in (("optimizer", optimizer), ("distil", distil), ("callbacks", callbacks)):
            if value:
                raise ArgumentError(name, "not be given without `epochs`", value)
        return None
    compiled = getattr(model, "_compile_config", None)
    if compiled is None:
        raise ArgumentError("model", "be compiled, to be trained", received=f"{model.name}")
    if distil and [len(tensor.shape) for tensor in model.outputs] != [2]:
        raise ArgumentError(
            "distil", "be 0 unless the network has one row of classes per image", distil
        )
    own = compiled.config["optimizer"]
    try:
        new = keras.optimizers.get(optimizer) or type(own).from_config(own.get_config())
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "optimizer",
            f"be one of Keras, or its name, and given if that of {model.name} cannot be made anew",
            optimizer,
        ) from error
    if new.built or new.get_config().get("learning_rate") == 0:
        raise ArgumentError(
            "optimizer",
            "be given, with a learning rate over 0, and have trained no other network",
            received=f"{new.name}, built={new.built}",
        )
    return new


def _train(made, chain, data, test, epochs, optimizer, distil, callbacks, progress):
    """Trains a smaller model further, on labels that hold a share of the predictions of another."""
    fit = {"epochs": epochs, "callbacks": list(callbacks), "verbose": "auto" if progress else 0}
    # Its metrics are not those of the whole network, unless these cannot be made anew.
    compiled = made if made.compiled else chain.source.model
    options = compiled._compile_config.config | {"optimizer": optimizer}
    made.compile(**options)
    if not distil:
        are_arrays = isinstance(data, (tuple, list))
        parts = tuple(data) if are_arrays else (data,)
        test = tuple(test) if isinstance(test, list) else test
        # Data in batches does its own shuffling.
        fit |= {"validation_data": test, "shuffle": are_arrays}
        made.fit(**dict(zip(("x", "y", "sample_weight"), parts, strict=False)), **fit)
        return
    is_label = chain.outputs.startswith("label") or made.outputs[0].shape[-1] == 1
    kind = keras.losses.BinaryCrossentropy if is_label else keras.losses.CategoricalCrossentropy
    loss = kind(from_logits=chain.outputs.endswith("logits"))
    made.compile(optimizer, loss, metrics=["accuracy"])
    softened = _Softened(chain, data, distil, is_label)
    made.fit(softened.batches(), steps_per_epoch=softened.count(), shuffle=False, **fit)
    made.compile(**options)


class _Softened:
    """Batches of data whose labels are, to a share, what a network predicts."""

    def __init__(self, chain, data, share, is_label):
        self.chain, self.data, self.share, self.is_label = chain, data, share, is_label
        self.predict = tf.function(chain.__call__, reduce_retracing=True)

    def count(self):
        """Returns the number of batches."""
        return sum(1 for _ in batches_of(self.data, self.chain))

    def batches(self):
        """Yields batches `(images, labels, weights)` without end."""
        while True:
            for images, labels, weights in batches_of(self.data, self.chain):
                yield images, self._soft(images, labels), weights

    def _soft(self, images, labels):
        outputs = self.predict(images)
        if self.chain.outputs.endswith("logits"):
            outputs = tf.sigmoid(outputs) if self.is_label else tf.nn.softmax(outputs)
        outputs = tf.cast(outputs, tf.float32)
        if labels.shape != outputs.shape:
            if self.is_label:
                labels = tf.reshape(labels, tf.shape(outputs))
            else:
                flat = tf.reshape(labels, [-1])
                labels = tf.one_hot(tf.cast(flat, tf.int32), outputs.shape[-1])
        return (1 - self.share) * tf.cast(labels, tf.float32) + self.share * outputs
