"""Smaller networks: blocks out, statistics measured again, trained further. TensorFlow only."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
import pandas as pd

from tfresidual.definitions.arguments import ArgumentError, check_choice, check_number
from tfresidual.definitions.averages import STANDARD_ERRORS
from tfresidual.definitions.warning import warn
from tfresidual.routing import evaluate, routes
from tfresidual.routing.data import batches_of
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.surgery.distillation import from_outputs, from_states
from tfresidual.surgery.models import chain_of, pairs_of, without_blocks
from tfresidual.surgery.planning import check_read_again, halves, outcome, plan
from tfresidual.surgery.statistics import UPDATES, update_statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Frame, Images
    from tfresidual.routing import Chain

# What a row of the frame of `prune` is about.
WHOLE, REMOVED, STATISTICS, TUNED = "network", "removed", "statistics", "fine-tuned"
# What a smaller network can learn from the whole one.
OUTPUTS, STATES = "outputs", "states"


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
    distil: Literal["outputs", "states"] | None = None,
    distil_weight: float = 1.0,
    places: Mapping[tuple[int, int], tuple[int, int]] | None = None,
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
        distil: what this training learns from `model`, beside the labels: the loss is the one that
            `model` was compiled with + distil_weight * distance. For `"outputs"`, which must be one
            row of classes per image, the distance is the cross-entropy with the predictions of
            `model`. For `"states"`, it is the mean over places of |s - h|^2 / |h|^2, where s is a
            state of the smaller network and h one of `model`, both at inference and without
            padding, summed over a batch: 0 if they are equal, 1 for s = 0. All images count alike.
            A step takes another pass through the smaller network, and one forward through `model`.
        distil_weight: float, 0 or more.
        places: which states correspond, for `distil="states"`: a dict from blocks that stay to
            blocks, both pairs (stage, block) of `model`, after which the states are taken; these
            must have one shape. By default, every block that stays, and the last block of its stage
            before the next that stays: so it learns what the blocks taken out after it did.
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
        Hinton et al. 2015, https://arxiv.org/abs/1503.02531, section 2, for outputs; Romero et al.
        2015, https://arxiv.org/abs/1412.6550, equation 3, for states (there, of one layer and
        through a regressor); Jiao et al. 2020, https://arxiv.org/abs/1909.10351, equation 8, for
        those of several layers.
    """
    if distil is not None:
        check_choice("distil", distil, (OUTPUTS, STATES))
    check_number("distil_weight", distil_weight, at_least=0)
    if places is not None and distil != STATES:
        raise ArgumentError("places", "not be given without `distil='states'`", places)
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
    images, *_ = next(batches_of(data, chain, with_labels=False))
    made = without_blocks(chain, frame, inputs=images)
    distance = from_outputs(chain) if distil == OUTPUTS else None
    if distil == STATES:
        distance = from_states(chain, made, pairs_of(frame), places, images)
    frame = planned(made, frame, data, judge, statistics)
    if epochs:
        options = {"epochs": epochs, "callbacks": list(callbacks)}
        options["verbose"] = "auto" if progress else 0
        # Its metrics are not those of the whole network, unless these cannot be made anew.
        compiled = made if made.compiled else model
        made.compile(**compiled._compile_config.config | {"optimizer": optimizer})
        _train(made, data, test, distil_weight, distance, options)
        remeasured(made, data, judge.chain, statistics)
        frame = judge.added(frame, made, TUNED)
    return Pruned(made, frame)


def planned(made, plan, data, judge, statistics):
    """Returns the frame of `prune` until there is the model that a plan leaves.

    Args:
        made: that model.
        plan: the frame of the plan.
        data: images for the statistics of batch normalization.
        judge: a `Judge`.
        statistics: whether they are measured again, if there are some.
    """
    frame = plan.copy()
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
    return frame


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
    if distil == OUTPUTS and [len(tensor.shape) for tensor in model.outputs] != [2]:
        what = "not be 'outputs' unless the network has one row of classes per image"
        raise ArgumentError("distil", what, distil)
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


def _train(made, data, test, weight, distance, options):
    """Trains a smaller model further, with a distance, or `None`, added to its loss."""
    if distance is not None:
        # An attribute of the object takes the place of the method of its class.
        vars(made)["compute_loss"] = _with_distance(made.compute_loss, weight, distance)
    are_arrays = isinstance(data, (tuple, list))
    parts = tuple(data) if are_arrays else (data,)
    given = dict(zip(("x", "y", "sample_weight"), parts, strict=False))
    test = tuple(test) if isinstance(test, list) else test
    # Data in batches does its own shuffling.
    made.fit(**given, validation_data=test, shuffle=are_arrays, **options)
    if vars(made).pop("compute_loss", None):
        made.make_train_function(force=True)


def _with_distance(own, weight, distance):
    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = own(x, y, y_pred, sample_weight, training=training)
        return loss + weight * distance(x, y_pred, sample_weight) if training else loss

    return compute_loss
