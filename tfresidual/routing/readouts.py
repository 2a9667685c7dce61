"""Trained read-outs applied to a chain, and leaving it at the first that is sure. TensorFlow only.

Chains are without a context here, see `Chain.with_context`, unless said otherwise.
"""

from __future__ import annotations

import functools

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.compiled import concrete
from tfresidual.networks.readouts import AFFINE, Readouts
from tfresidual.routing.positions import has_them, known_positions
from tfresidual.routing.scores import LOGITS, OUTPUTS, with_logits

# The block index of the state before the first block of a stage.
FIRST = -1
# What a network that can be left early returns beside its outputs.
STAGE, BLOCK = "stage", "block"


def places_of(chain):
    """Returns the places (stage, block) of all states: the first of every stage, after blocks."""
    return [
        (block.stage, index)
        for block in chain.blocks
        for index in ((FIRST, 0) if block.index == 0 else (block.index,))
    ]


def states_of(chain, images):
    """Returns the states of images by place, see `places_of`, and the last state."""
    pairs, last = chain.walk(chain.stem(images))
    states = []
    for block, (before, after) in zip(chain.blocks, pairs, strict=True):
        states += [before, after] if block.index == 0 else [after]
    return dict(zip(places_of(chain), states, strict=True)), last


def check_readouts(name, readouts, chain):
    """Raises a `ValueError` unless an argument holds read-outs for the blocks of a chain."""
    depths = tuple(len(stage.blocks) for stage in chain.stages)
    if not isinstance(readouts, Readouts) or readouts.depths != depths:
        received = f"{name}={readouts!r}"
        if isinstance(readouts, Readouts):
            received = f"read-outs of a network with {readouts.depths} blocks"
        raise ArgumentError(
            name,
            "be read-outs that `tfresidual.training.fit_readouts` trained for this network, whose "
            f"stages have {depths} blocks",
            received=received,
        )


def of_control(name):
    """Returns the name of a metric of what the controls of read-outs read."""
    return f"control_{name}"


def check_one_row(name, shape):
    """Raises a `ValueError` unless outputs, whose shape for one image is given, are one row."""
    if len(shape) != 1:
        raise ArgumentError(
            name,
            "return one row of outputs per image, to be left early",
            received=f"outputs of shape {tuple(shape)} per image",
        )


def read(chain, readouts, place, state, final, control=False):
    """Returns outputs like `final`, those of the network, from the state at one of the places."""
    valid = known_positions(chain)
    valid = valid if valid is None or has_them(state, valid) else None
    found = readouts.read(place, state, valid, control=control)
    if readouts.kind == AFFINE:
        return chain.head(found)
    if found.shape[1:] != final.shape[1:]:
        raise ArgumentError(
            "readouts",
            f"be trained for outputs of shape {tuple(final.shape)[1:]}",
            received=f"read-outs with outputs of shape {tuple(found.shape)[1:]}",
        )
    if chain.outputs.endswith("logits"):
        return tf.cast(found, final.dtype)
    activation = "sigmoid" if chain.outputs.startswith("label") else "softmax"
    outputs = tf.cast(getattr(keras.activations, activation)(found), final.dtype)
    return with_logits({OUTPUTS: outputs, LOGITS: found})


def confidence(kind, outputs):
    """Returns the probability of the prediction of each image, `(images,)`, in float32.

    Of several labels, yes or no each, it is the product of theirs.
    """
    p = tf.cast(outputs, tf.float32)
    if kind.startswith("label"):
        p = tf.sigmoid(p) if kind.endswith("logits") else p
        return tf.reduce_prod(tf.maximum(p, 1 - p), axis=-1)
    p = tf.nn.softmax(p) if kind.endswith("logits") else p
    return tf.reduce_max(p, axis=-1)


def exits_of(chain, readouts):
    """Returns the places where a chain can be left: after blocks with a read-out, and the last."""
    last = chain.blocks[-1]
    return [place for place in readouts.places if place[1] != FIRST] + [(last.stage, last.index)]


def leave_early(chain, readouts, specs):
    """Returns a function that leaves a chain at the first place whose prediction is sure enough.

    The blocks up to the next exit are skipped when all images of the batch have left, each at its
    own place.

    Args:
        chain: a chain, which may have a context.
        readouts: `Readouts`.
        specs: the `tf.TensorSpec`s of images, in any number.

    Returns:
        `function(images, thresholds)` for such images, and one threshold
        per place of `exits_of` but the last, float32. It is to be traced, and returns a dict of
        `outputs`, and of the `stage` and `block` that every image left at, int32, `(images,)`.
    """
    places = exits_of(chain, readouts)
    numbers = {place: number for number, place in enumerate(places)}
    last = places[-1]

    def states_and_outputs(images):
        own = chain.with_context(images)
        states, state = states_of(own, images)
        return list(states.values()), own.head(state)

    of_states, of_head = concrete(states_and_outputs, [specs]).structured_outputs
    after = dict(zip(places_of(chain), of_states, strict=True))

    def applied(own, part, carried, thresholds):
        """Applies blocks, the last of them an exit, and reads the images that are still there."""
        state, anchor, left, number, outputs = carried
        for block in part:
            transition = own.stages[block.stage - 1].transition
            if block.index == 0:
                state = anchor = state if transition is None else transition(state)
            state = block(state, anchor)
            anchor = anchor if block.keeps_shape else state
        place = block.stage, block.index
        found = own.head(state) if place == last else read(own, readouts, place, state, of_head)
        if outputs is not None:
            found = tf.where(left[:, tf.newaxis], outputs, found)
        number = tf.where(left, number, numbers[place])
        if place != last:
            left |= confidence(chain.outputs, found) >= thresholds[numbers[place]]
        return state, anchor, left, number, found

    def skipped(part, carried):
        """Returns states without images, which nothing reads."""
        spec = after[part[-1].stage, part[-1].index]
        none = tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
        return none, none, *carried[2:]

    def run(images, thresholds):
        own = chain.with_context(images)
        state = own.stem(images)
        count = tf.shape(state)[0]
        carried = state, state, tf.zeros([count], tf.bool), tf.zeros([count], tf.int32), None
        part = []
        for block in own.blocks:
            part.append(block)
            if (block.stage, block.index) not in numbers:
                continue
            go_on = functools.partial(applied, own, part, carried, thresholds)
            if carried[-1] is None:
                carried = go_on()
            else:
                skip = functools.partial(skipped, part, carried)
                carried = tf.cond(tf.reduce_all(carried[2]), skip, go_on)
            part = []
        stages, blocks = (tf.gather(list(part), carried[3]) for part in zip(*places, strict=True))
        return {OUTPUTS: carried[-1], STAGE: stages, BLOCK: blocks}

    return run
