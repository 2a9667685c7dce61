"""A training step that also measures the blocks, from its own states and gradients.

At the beginning and at the end of every block, the state passes a function that returns it
unchanged. The first of them, whose gradient function receives the gradient of the loss with respect
to the state, needs the state at the other end too, which does not exist yet when it is called. It
therefore returns the states of the first images a second time; the function at the other end takes
them, and returns its own states as their "gradient". So everything arrives where the gradient does,
in the order of the backward pass, and nothing is computed twice.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfresidual.metrics import wide
from tfresidual.routing.block_values import values_of_block
from tfresidual.routing.losses import single

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tfresidual.sources.places import PlacedBlock
    from tfresidual.types import Tensor

METRICS = ("cosine_loss", "l2_ratio", "gradient_norm", "perturbation")
# Measured steps that the variable with their metrics takes before it is read.
ROWS = 1024
# How the losses of the images become the loss of a step.
REDUCTIONS = ("sum_over_batch_size", "mean", "sum")


class MeasuredStep:
    """The training step of a model, with metrics of its blocks.

    Args:
        model: the compiled `keras.Model`.
        loss: its loss per image, see `tfresidual.routing.Chain`.
        blocks: its blocks, as `tfresidual.sources.places.places_of` returns them.
        images: int, how many images of every batch are measured, the first ones.
        every: int, every so many steps are measured.
        done: int, the number of steps of the training before this one.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Callable[[Tensor, Tensor], Tensor],
        blocks: Sequence[PlacedBlock],
        images: int,
        every: int,
        done: int = 0,
    ) -> None:
        self.model, self.images, self.every = model, images, every
        # Until the loss is checked, which needs labels.
        self._loss = loss
        self.blocks = [placed.block for placed in blocks]
        # Several steps may be run before there is an opportunity to read.
        self.rows: int = ROWS + -(-model.steps_per_execution // every)
        shape = (self.rows, len(blocks), len(METRICS) + 1)
        self._empty = np.full(shape, np.nan, np.float32)
        self._values = tf.Variable(self._empty, trainable=False)
        self._steps = tf.Variable(done, dtype=tf.int64, trainable=False)
        self._read = done
        self._is_sum = reduction_of(model) == "sum"
        # What begins and ends at every place, by operation.
        self._places: dict[int, Any] = {}
        for index, placed in enumerate(blocks):
            if placed.before is None:
                continue
            self._at(placed.before)["begins"] = index
            if placed.block.keeps_shape:
                self._at(placed.after)["ends"] = index

    def _at(self, place):
        _, places = self._places.setdefault(id(place.operation), (place.operation, {}))
        return places.setdefault((place.call, place.output), {})

    def __call__(self, data):
        """Does a step, as `keras.Model.train_step` does."""
        if self._loss is not None:
            _check_loss(self._loss, keras.utils.unpack_x_y_sample_weight(data)[1], self.model)
            self._loss = None
        step = self._steps.assign_add(1) - 1
        row = tf.cast(step // self.every % self.rows, tf.int32)
        if self.every > 1:
            row = tf.where(step % self.every == 0, row, -1)
        optimizer, one = self.model.optimizer, tf.ones([])
        scale = one if optimizer is None else tf.cast(optimizer.scale_loss(one), tf.float32)
        with self._watched(row, 1 / scale):
            return type(self.model).train_step(self.model, data)

    @contextlib.contextmanager
    def _watched(self, row, scale):
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
                    row,
                    tf.constant(begins),
                    scale,
                    images=self.images,
                    keeps_shape=self.blocks[begins].keeps_shape,
                    is_sum=self._is_sum,
                    is_always=self.every == 1,
                )
            return state

        kept = []
        for operation, places in self._places.values():
            kept.append((vars(operation), vars(operation).get("call")))
            # An attribute of the object takes the place of the method of its class.
            vars(operation)["call"] = _with_places(operation.call, places, passed)
        try:
            yield
        finally:
            for attributes, call in kept:
                del attributes["call"]
                if call is not None:
                    attributes["call"] = call
        expected = sum(len(places) for _, places in self._places.values())
        if len(seen) < expected:
            raise ValueError(
                "Argument `model` must compute its states in its own graph in every training "
                f"step. Received: model={self.model.name}, where {expected - len(seen)} of "
                f"{expected} states did not pass"
            )

    def read(self) -> list[tuple[int, np.ndarray]]:
        """Returns the steps measured since the last reading, and forgets them.

        Returns:
            A list of `(step, values)`: `step` is the number of steps of the training before this
            one, `values` is an array `(blocks, metrics + 1)` of the means over the images and,
            last, of the number of images. It is NaN where nothing was measured.
        """
        values, steps = self._values.numpy(), int(self._steps.numpy())
        since, self._read = self._read, steps
        self._values.assign(self._empty)
        first = -(-since // self.every) * self.every
        return [
            (step, values[step // self.every % self.rows])
            for step in range(first, steps, self.every)
        ]


def _check_loss(loss, labels, model):
    """Raises a `ValueError` if a loss does not return one number per image."""
    (outputs,) = model.outputs
    specs = [
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        for tensor in (keras.tree.flatten(labels)[0], outputs)
    ]
    tf.function(loss, autograph=False).get_concrete_function(*specs)


def _with_places(function, places, passed):
    """Returns a function whose results pass `passed`.

    Args:
        function: the method `call` of an operation.
        places: dict from `(call, output)` to the keyword arguments of `passed`.
        passed: function of a state, of the number of the call, and of these arguments.
    """
    calls, thread = [], threading.get_ident()

    def call(*args, **kwargs):
        # Other threads may call the model meanwhile.
        if threading.get_ident() != thread:
            return function(*args, **kwargs)
        results = keras.tree.flatten(result := function(*args, **kwargs))
        for output, state in enumerate(results):
            place = len(calls), output
            if place in places:
                results[output] = passed(state, (id(function), *place), **places[place])
        calls.append(None)
        return keras.tree.pack_sequence_as(result, results)

    return call


def reduction_of(model):
    """Returns how the losses of the images become the loss of a step, see `REDUCTIONS`."""
    return getattr(keras.losses.get(single(model.loss)), "reduction", "sum_over_batch_size")


# Both functions are compiled on their own, and take all variables as arguments: TensorFlow
# registers a custom gradient forever, together with the graph it was traced in. That way it is
# this small graph, and not that of a whole training step.


@functools.partial(tf.function, autograph=False, reduce_retracing=True)
def _begin_block(state, values, row, index, scale, images, keeps_shape, is_sum, is_always):
    """Returns a state, and the part of it that is measured, for `_end_block`.

    Args:
        state: `(batch, ...)`.
        values: the handle of the variable that takes the metrics.
        row: the row of the variable, or -1 if the step is not measured.
        index: the column.
        scale: by which the gradient is multiplied.
        images: int, the number of images that are measured.
        keeps_shape: whether the block keeps the shape of the state.
        is_sum: whether the loss is the sum over the images, and not the mean.
        is_always: whether `row` is never -1.
    """

    @tf.custom_gradient
    def passed(state):
        before = wide(state[:images])

        def gradient(of_state, after):
            def measure():
                found = values_of_block(keeps_shape, before, after, wide(of_state[:images]))
                # The cosine does not depend on the size of the gradient.
                size = found["gradient_norm"]
                size *= tf.cast(scale, size.dtype)
                found["gradient_norm"] = size if is_sum else size * _count(state, size.dtype)
                means = [tf.reduce_mean(found[name]) for name in METRICS]
                means.append(_count(before, means[0].dtype))
                update = tf.cast(tf.stack(means)[None], tf.float32)
                return tf.raw_ops.ResourceScatterNdUpdate(
                    ref=values, indices=tf.stack([row, index])[None], updates=update
                )

            done = measure() if is_always else tf.cond(row >= 0, measure, tf.no_op)
            with tf.control_dependencies([done]):
                return tf.identity(of_state)

        return (tf.identity(state), before), gradient

    return passed(state)


@functools.partial(tf.function, autograph=False, reduce_retracing=True)
def _end_block(state, before):
    """Returns a state.

    Args:
        state: `(batch, ...)`, after the block.
        before: what `_begin_block` returned.
    """

    @tf.custom_gradient
    def passed(state, before):
        after = wide(state[: tf.shape(before)[0]])
        return tf.identity(state), lambda of_state: (of_state, after)

    return passed(state, before)


def _count(states, dtype):
    return tf.cast(tf.shape(states)[0], dtype)
