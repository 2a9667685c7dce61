"""The signatures of a SavedModel: the network, its states and its routes."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow as tf

from tfresidual.routing.agreement import check_agreement, inputs_to_compare
from tfresidual.routing.block_values import BLOCK_METRICS, block_values
from tfresidual.routing.data import shape_of_outputs
from tfresidual.routing.positions import are_per_position, labels_within
from tfresidual.routing.readouts import check_one_row, check_readouts, exits_of, leave_early
from tfresidual.routing.scores import OUTPUTS
from tfresidual.sources.saved_model.format import SERVE, STEM, WHOLE
from tfresidual.sources.saved_model.inputs import flat, of_tensors, packed
from tfresidual.sources.saved_model.pieces import compile_function, images_of, result_of

# The arguments of signatures beside the images.
ARGUMENTS = ("labels", "applications", "stage", "block", "times", "scale")


def signatures_of(chain, labels_taken):
    """Returns the signatures of a chain that is made of compiled functions, by name."""
    images = images_of(chain)
    number = {name: tf.TensorSpec([], tf.int32, name=name) for name in ("stage", "block", "times")}
    scale = tf.TensorSpec([], tf.float32, name="scale")
    every = tf.TensorSpec([len(chain.blocks)], tf.int32, name="applications")
    run = _Routes(chain)

    def compiled(function, *specs):
        return compile_function(of_tensors(function, chain.input_shape), *images, *specs)

    signatures = {
        SERVE: compiled(lambda images: {OUTPUTS: chain(images)}),
        "states": compiled(lambda images: _states(chain, images)),
        "route": compiled(run.route, every),
        "readout": compiled(run.readout, number["stage"], number["block"]),
        "repeat_last_block": compiled(
            run.repeat_last_block, number["stage"], number["times"], scale
        ),
    }
    labels = next(iter(labels_taken.values()), None)
    outputs = result_of(signatures[SERVE])[OUTPUTS].shape[1:]
    if chain.outputs != "values" and labels is not None:
        # If the loss has no gradient, this signature is left out.
        with contextlib.suppress(ValueError, LookupError):
            signatures["block_metrics"] = compiled(
                lambda images, labels: _block_metrics(chain, images, labels, outputs), labels
            )
    return signatures


def early_signatures(chain, exits, threshold, inputs=None):
    """Returns the signatures of a network that can be left early, by name; see `export`.

    Args:
        chain: a chain.
        exits: `Readouts`.
        threshold: the probability from which on a prediction is sure.
        inputs: a batch of inputs, or `None`, on which that without any exit is compared.
    """
    check_readouts("exits", exits, chain)
    images, shapes = inputs_to_compare(chain, inputs), chain.input_shape
    check_one_row("net", shape_of_outputs(chain, images))
    taken, count = images_of(chain), len(exits_of(chain, exits)) - 1
    run = of_tensors(leave_early(chain, exits, packed(iter(taken), shapes)), shapes)
    early = compile_function(run, *taken, tf.TensorSpec([count], tf.float32))
    never = early(*flat(images, shapes), np.full(count, np.inf, np.float32))
    check_agreement(chain, images, {OUTPUTS: never[OUTPUTS]})
    thresholds = np.full(count, threshold, np.float32)
    whole = of_tensors(lambda images: {OUTPUTS: chain(images)}, shapes)
    return {
        SERVE: compile_function(lambda *given: early(*given, thresholds), *taken),
        WHOLE: compile_function(whole, *taken),
    }


def _states(chain, images):
    chain = chain.with_context(images)
    state = chain.stem(images)
    pairs, _ = chain.walk(state)
    after = {
        f"stage{block.stage}/block{block.index}": after
        for block, (_, after) in zip(chain.blocks, pairs, strict=True)
    }
    return {STEM: state} | after


def _block_metrics(chain, images, labels, shape):
    """Returns the metrics of blocks, for labels that may be those of positions."""
    if are_per_position(labels, shape):
        labels = labels_within(chain.with_context(images), labels, shape[-1])
    values = block_values(chain, images, labels)
    return {name: values[name] for name in BLOCK_METRICS}


class _Routes:
    """Routes through a chain, all computed by one graph whose inputs determine the route."""

    def __init__(self, chain):
        self.chain = chain
        blocks = chain.blocks
        self.stages = np.array([block.stage for block in blocks], np.int32)
        self.indices = np.array([block.index for block in blocks], np.int32)
        self.keeps_shape = np.array([block.keeps_shape for block in blocks])
        exits = {(stage.index, block) for stage in chain.stages for block in stage.exits}
        self.is_exit = np.array([(block.stage, block.index) in exits for block in blocks])
        self.can_repeat = np.array([stage.can_repeat for stage in chain.stages])
        counts = tf.TensorSpec([len(blocks)], tf.int32)
        repeats = tf.TensorSpec([len(chain.stages)], tf.int32)
        run = of_tensors(self._run, chain.input_shape)
        scale = tf.TensorSpec([], tf.float32)
        self.run = compile_function(run, *images_of(chain), counts, repeats, scale)

    def route(self, images, applications):
        message = (
            f"`applications` must hold {len(self.stages)} numbers, 0 or more for each block, and 1 "
            "for blocks that change the shape of the state"
        )
        # TensorFlow takes numbers of any length. It reads their shape from the signature, but
        # counts those that a comparison selects.
        count = tf.shape(tf.where(applications >= tf.int32.min))[0]
        with tf.control_dependencies([_check(count == len(self.stages), message, applications)]):
            applications = tf.identity(applications)
        is_possible = (applications >= 0) & (self.keeps_shape | (applications == 1))
        _check(tf.reduce_all(is_possible), message, applications)
        return self._outputs(images, applications)

    def readout(self, images, stage, block):
        is_place = (self.stages == stage) & (self.indices == block) & self.is_exit
        _check(
            tf.reduce_any(is_place),
            "`stage` (from 1) and `block` (from 0) must name a block after which the stage can be "
            "left",
            tf.stack([stage, block]),
        )
        is_left = (self.stages == stage) & (self.indices > block)
        return self._outputs(images, 1 - tf.cast(is_left, tf.int32))

    def repeat_last_block(self, images, stage, times, scale):
        is_stage = np.arange(1, 1 + len(self.can_repeat), dtype=np.int32) == stage
        _check(
            tf.reduce_any(is_stage & self.can_repeat) & (times >= 0),
            "`stage` (from 1) must be one whose last block keeps the shape of the state, and "
            "`times` 0 or more",
            tf.stack([stage, times]),
        )
        applications = tf.ones([len(self.stages)], tf.int32)
        return self._outputs(images, applications, tf.where(is_stage, times, 0), scale)

    def _outputs(self, images, applications, repeats=None, scale=1.0):
        if repeats is None:
            repeats = tf.zeros([len(self.can_repeat)], tf.int32)
        images = flat(images, self.chain.input_shape)
        return {OUTPUTS: self.run(*images, applications, repeats, tf.convert_to_tensor(scale))}

    def _run(self, images, applications, repeats, scale):
        chain = self.chain.with_context(images)
        counts = iter(tf.unstack(applications))
        state = chain.stem(images)
        for stage, extra in zip(chain.stages, tf.unstack(repeats), strict=True):
            state = anchor = state if stage.transition is None else stage.transition(state)
            for block in stage.blocks:
                count = next(counts)
                if block.keeps_shape:
                    state = _repeated(block, state, anchor, count)
                else:
                    state = anchor = block(state, anchor)
            if stage.can_repeat:
                state = _repeated(stage.blocks[-1], state, anchor, extra, scale)
        return chain.head(state)


def _repeated(block, state, anchor, count, scale=None):
    """Applies a block `count` times; a loop that is not entered costs nothing."""

    def once(place, state):
        return place + 1, block(state, anchor, scale)

    _, state = tf.while_loop(lambda place, _: place < count, once, (0, state))
    return state


def _check(is_right, message, value):
    parts = [f"Arguments must be valid: {message}. Received:", value]
    return tf.debugging.Assert(is_right, parts, summarize=-1)
