"""A training step that also measures the blocks, from its own states and gradients.

At both ends of every block, the state passes a function that returns it unchanged. The gradient
function of the first receives the gradient of the loss at the state, but needs the state at the
other end too, which does not exist yet. The first function therefore returns the states of the
first images once more; the function at the other end takes them, and returns its own states as
their "gradient". So everything arrives in the backward pass, and nothing is computed twice.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.metrics import wide
from tfresidual.definitions.warning import warn
from tfresidual.routing.block_values import values_of_block
from tfresidual.routing.devices import this_replica
from tfresidual.routing.losses import single
from tfresidual.routing.runs import IN_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tfresidual.definitions.types import Tensor
    from tfresidual.sources.places import PlacedBlock

METRICS = ("cosine_loss", "l2_ratio", "gradient_norm", "perturbation")
# Measured steps that the variable with their metrics takes before it is read.
ROWS = 1024
# How the losses of the images become the loss of a step.
REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


class MeasuredStep:
    """The training step of a model, with metrics of its blocks.

    Args:
        model: the compiled `keras.Model`.
        loss: its loss per image, see `tfresidual.routing.Chain`.
        blocks: its blocks, as `tfresidual.sources.places.places_of` returns them.
        images: int, see `StepMetrics`, as for `every`.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Callable[[Tensor, Tensor], Tensor],
        blocks: Sequence[PlacedBlock],
        images: int,
        every: int,
    ) -> None:
        self.model, self.images, self.every = model, images, every
        self._loss = loss
        # Of how many numbers the loss of an image is made; known when there are labels.
        self._numbers: int | None = None
        self._has_warned = False
        self.blocks = [placed.block for placed in blocks]
        # Several steps may be run before there is an opportunity to read.
        self.rows: int = ROWS + -(-model.steps_per_execution // every)
        self.replicas: int = model.distribute_strategy.num_replicas_in_sync
        shape = (self.replicas, self.rows, len(blocks), len(METRICS) + 1)
        self._empty = np.full(shape, np.nan, np.float32)
        self._values = _variable(self._empty)
        # Every replica counts its own steps.
        self._steps = [_variable(np.int64(0)) for _ in range(self.replicas)]
        self._read = 0
        # What begins and ends at every place, by operation.
        self._places: dict[int, Any] = {}
        for index, placed in enumerate(blocks):
            if placed.before is None:
                continue
            self._at(placed.before)["begins"] = index
            if placed.block.keeps_shape:
                self._at(placed.after)["ends"] = index

    @property
    def done(self) -> int:
        """The number of steps of the training so far."""
        return int(self._steps[0].numpy())

    def begin(self, done: int) -> None:
        """Begins a training, or resumes one after this many steps."""
        for steps in self._steps:
            steps.assign(done)
        self._values.assign(self._empty)
        self._read = done

    def _at(self, place):
        _, places = self._places.setdefault(id(place.operation), (place.operation, {}))
        return places.setdefault((place.call, place.output), {})

    def __call__(self, data):
        """Does a step, as `keras.Model.train_step` does."""
        _, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        if self._numbers is None:
            self._numbers = _numbers_per_image(self._loss, labels, self.model)
        parts = tf.nest.flatten(data, expand_composites=True)
        replica = this_replica()
        # At the end of data of unknown length, TensorFlow runs once more what needs no batch.
        with tf.control_dependencies([part for part in parts if part is not None][:1]):
            step = self._steps[replica].assign_add(1) - 1
        row = tf.cast(step // self.every % self.rows, tf.int32)
        if self.every > 1:
            row = tf.where(step % self.every == 0, row, -1)
        size = tf.shape(keras.tree.flatten(labels)[0])[0]
        reduction = reduction_of(self.model)
        shares, weights = _shares(weights, size, reduction, self._numbers)
        # As Keras divides a mean, whose gradients are added over the replicas.
        shares = shares if reduction == "sum" else shares / self.replicas
        optimizer, one = self.model.optimizer, tf.ones([])
        scale = one if optimizer is None else tf.cast(optimizer.scale_loss(one), tf.float32)
        factors = tf.math.reciprocal_no_nan(shares[: self.images] * scale)
        with self._watched(replica, row, weights[: self.images], factors):
            results = type(self.model).train_step(self.model, data)
        self._warn_of_added_losses()
        return results

    def _warn_of_added_losses(self):
        if self._has_warned:
            return
        self._has_warned = True
        with tf.init_scope():
            weights = self.model.trainable_weights
            of_weights = sum(weight.regularizer is not None for weight in weights)
            added = len(self.model.losses) - of_weights
        if added:
            warn(
                f"Layers of {self.model.name} add losses (activity regularizers or `add_loss`). "
                "The gradients of the training step, which `StepMetrics` measures, include theirs; "
                "those of `BlockMetrics` are of the loss of `compile` alone."
            )

    @contextlib.contextmanager
    def _watched(self, replica, row, weights, factors):
        """Lets the states pass through the functions of this file while operations are called."""
        firsts, seen = {}, set()

        def passed(state, index, begins=None, ends=None):
            seen.add(index)
            if ends is not None:
                state = _end_block(state, firsts[ends])
            if begins is not None:
                state, firsts[begins] = _begin_block(
                    state,
                    self._values.handle,
                    tf.stack([replica, row]),
                    tf.constant(begins),
                    weights,
                    factors,
                    images=self.images,
                    keeps_shape=self.blocks[begins].keeps_shape,
                    is_always=self.every == 1,
                )
            return state

        passing, thread = [], threading.get_ident()
        for operation, places in self._places.values():
            # The method that Keras calls in the end.
            is_quantized = getattr(operation, "quantization_mode", None) is not None
            one = _Passing.of(operation, "quantized_call" if is_quantized else "call")
            one.watches[thread] = _watch(one.method, places, passed)
            passing.append(one)
        try:
            yield
        finally:
            for one in passing:
                one.end(thread)
        expected = sum(len(places) for _, places in self._places.values())
        if len(seen) < expected:
            raise ArgumentError(
                "model",
                "compute its states in its own graph in every training step",
                received=f"model={self.model.name}, where {expected - len(seen)} of {expected} "
                "states did "
                "not pass",
            )

    def read(self) -> list[tuple[int, np.ndarray]]:
        """Returns the steps measured since the last reading, and forgets them.

        Returns:
            A list of `(step, values)`: the number of the step, from 0, and an array `(blocks,
            metrics + 1)` of means over the images and, last, what the images weigh; NaN where
            nothing was measured.
        """
        values, steps = _over_replicas(self._values.numpy()), self.done
        since, self._read = self._read, steps
        self._values.assign(self._empty)
        first = -(-since // self.every) * self.every
        return [
            (step, values[step // self.every % self.rows])
            for step in range(first, steps, self.every)
        ]


def _variable(value):
    """Returns a variable that is the same one on all replicas, also within the scope of these."""
    # The scope of a strategy belongs to its thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(tf.Variable, value, trainable=False).result()


def _numbers_per_image(loss, labels, model):
    """Returns of how many numbers Keras makes the loss of an image, such as one per position."""
    (outputs,) = model.outputs
    specs = [
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        for tensor in (keras.tree.flatten(labels)[0], outputs)
    ]
    tf.function(loss, autograph=False).get_concrete_function(*specs)
    if reduction_of(model) not in ("mean_with_sample_weight", "sum"):
        return 1
    own = keras.losses.get(single(model.loss))

    def values_of(labels, outputs):
        return own.call(keras.ops.cast(labels, own.dtype), keras.ops.cast(outputs, own.dtype))

    made = tf.function(values_of, autograph=False).get_concrete_function(*specs)
    shape = made.structured_outputs.shape[1:]
    if None in shape:
        raise ArgumentError(
            "model",
            "be trained with a loss whose reduction is 'sum_over_batch_size' if the number of "
            "its positions varies",
            received=f"model={model.name}, loss={own!r} with the reduction {own.reduction!r}",
        )
    return math.prod(shape)


def _shares(weights, size, reduction, numbers):
    """Returns the factors of the losses of the images in a step, and their weights, `(images,)`."""
    given = [one for one in keras.tree.flatten(weights) if one is not None]
    if len(given) > 1:
        raise ArgumentError(
            "sample_weight",
            "hold one tensor, since the model has one output",
            received=f"{len(given)} tensors",
        )
    rows, total = tf.ones([size, 1]), tf.cast(size * numbers, tf.float32)
    if given:
        (weights,) = (tf.cast(one, tf.float32) for one in given)
        rows = tf.where(weights < 0, math.nan, weights)
        rows = tf.reshape(rows, [tf.shape(rows)[0] if rows.shape.rank else 1, -1])
        rows = tf.broadcast_to(rows, [size, tf.shape(rows)[1]])
        if reduction == "mean_with_sample_weight":
            total = tf.reduce_sum(weights)
    shares = tf.reduce_mean(rows, axis=1) * numbers
    return shares if reduction == "sum" else shares / total, tf.reduce_max(rows, axis=1)


class _Passing:
    """Takes the place of a method of an operation, and watches the results in some threads.

    Every replica traces a step in a thread of its own, and all are within it at once. Other threads
    may call the model meanwhile.
    """

    def __init__(self, operation, name):
        self.watches = {}
        self._attributes, self._name = vars(operation), name
        self._before = self._attributes.get(name)
        self.method = getattr(operation, name)
        # An attribute of the object takes the place of the method of its class.
        self._attributes[name] = self

    @classmethod
    def of(cls, operation, name):
        """Returns what has taken the place of a method, or does so now."""
        found = vars(operation).get(name)
        return found if isinstance(found, cls) else cls(operation, name)

    def __call__(self, *args, **kwargs):
        watch = self.watches.get(threading.get_ident(), self.method)
        return watch(*args, **kwargs)

    def end(self, thread):
        """Ends the watch in a thread; after the last one, the method is what it was."""
        del self.watches[thread]
        if self.watches:
            return
        del self._attributes[self._name]
        if self._before is not None:
            self._attributes[self._name] = self._before


def _watch(method, places, passed):
    """Returns a method whose results pass `passed` at some `(call, output)`."""
    calls = []

    def call(*args, **kwargs):
        results = keras.tree.flatten(result := method(*args, **kwargs))
        for output, state in enumerate(results):
            place = len(calls), output
            if place in places:
                results[output] = passed(state, (id(method), *place), **places[place])
        calls.append(None)
        return keras.tree.pack_sequence_as(result, results)

    return call


def _over_replicas(values):
    """Returns means over all replicas from those of each, the first axis.

    The last of the metrics is what the images weigh; NaN if one replica measured nothing.
    """
    if len(values) == 1:
        return values[0]
    weights = values[..., -1:].astype(float)
    total = weights.sum(axis=0)
    # What weighs nothing need not be finite.
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=weights != 0)
    with np.errstate(invalid="ignore"):
        means = np.where(shares == 0, 0, values[..., :-1] * shares).sum(axis=0)
    return np.concatenate([np.where(total == 0, np.nan, means), total], axis=-1, dtype=np.float32)


def reduction_of(model):
    """Returns how the losses of the images become the loss of a step, see `REDUCTIONS`."""
    return getattr(keras.losses.get(single(model.loss)), "reduction", "sum_over_batch_size")


# Both functions are compiled on their own, and take all variables as arguments: TensorFlow
# registers a custom gradient forever, together with the graph it was traced in. That way it is
# this small graph, and not that of a whole training step.


@functools.partial(tf.function, autograph=False, reduce_retracing=True)
def _begin_block(state, values, place, index, weights, factors, images, keeps_shape, is_always):
    """Returns a state, and the part of it that is measured, for `_end_block`."""

    @tf.custom_gradient
    def passed(state):
        before = wide(state[:images])

        def gradient(of_state, after):
            def measure():
                numbers = _found(keeps_shape, before, after, wide(of_state[:images]), factors)
                weight = tf.reduce_sum(weights)
                # What has the weight 0 does not count, even if it is not finite.
                weighed = tf.math.multiply_no_nan(numbers, tf.cast(weights, numbers.dtype)[:, None])
                means = tf.reduce_sum(weighed, axis=0) / tf.cast(weight, numbers.dtype)
                # NaN would be a step that is not measured.
                last = tf.where(tf.math.is_nan(weight), tf.ones([]), weight)
                update = tf.concat([tf.cast(means, tf.float32), last[None]], axis=0)[None]
                return tf.raw_ops.ResourceScatterNdUpdate(
                    ref=values, indices=tf.concat([place, [index]], axis=0)[None], updates=update
                )

            done = measure() if is_always else tf.cond(place[1] >= 0, measure, tf.no_op)
            with tf.control_dependencies([done]):
                return tf.identity(of_state)

        return (tf.identity(state), before), gradient

    return passed(state)


def _found(keeps_shape, before, after, gradient, factors):
    """Returns the metrics of a block for each image, `(images, metrics)`.

    By plain sums of squares, unless those leave the range.
    """

    def numbers(found):
        # The cosine does not depend on the size of the gradient.
        found["gradient_norm"] *= tf.cast(factors, found["gradient_norm"].dtype)
        return tf.stack([found[name] for name in METRICS], axis=1)

    given = keeps_shape, before, after, gradient
    quick = values_of_block(*given, plain=True)
    is_right, fast = tf.reduce_all(quick[IN_RANGE]), numbers(quick)
    return tf.cond(is_right, lambda: fast, lambda: numbers(values_of_block(*given)))


@functools.partial(tf.function, autograph=False, reduce_retracing=True)
def _end_block(state, before):
    """Returns the state after a block; its part that is measured is the "gradient" of `before`."""

    @tf.custom_gradient
    def passed(state, before):
        after = wide(state[: tf.shape(before)[0]])
        return tf.identity(state), lambda of_state: (of_state, tf.identity(after))

    return passed(state, before)
