"""What a smaller network learns from the whole one, beside the labels. TensorFlow only."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing import routes
from tfresidual.routing.agreement import COMPARED, allowed_difference, difference
from tfresidual.routing.data import inputs_for, sliced
from tfresidual.routing.positions import without_padding
from tfresidual.routing.scores import OUTPUTS
from tfresidual.sources.calls import gradients_of_weights


def from_outputs(chain):
    """Returns a function of images, outputs and weights of images, or `None`, of a batch.

    It is the cross-entropy of the outputs with the predictions of a network.
    """
    is_label = chain.outputs.startswith("label") or chain.source.model.outputs[0].shape[-1] == 1
    kind = keras.losses.BinaryCrossentropy if is_label else keras.losses.CategoricalCrossentropy
    are_logits = chain.outputs.endswith("logits")
    loss = kind(from_logits=are_logits)

    def distance(images, outputs, weights):
        predictions = chain(inputs_for(chain, images))
        if are_logits:
            predictions = tf.sigmoid(predictions) if is_label else tf.nn.softmax(predictions)
        return loss(tf.stop_gradient(predictions), outputs, weights)

    return distance


def from_states(chain, made, gone, places, images):
    """Returns a function of the images of a batch, and of what `from_outputs` takes.

    It is the mean over places of |s - h|^2 / |h|^2, over all positions that are not padding, of
    states s of the smaller network and h of the whole one.

    Args:
        chain: the chain of the whole network.
        made: the model without some of its blocks, with the weights and statistics that it had.
        gone: these blocks, pairs (stage, block).
        places: dict from blocks that stay to blocks, such pairs; or `None` for `places_after`.
        images: a batch of inputs, on which the states of both are compared.
    """
    pairs = places_after(chain, gone) if places is None else dict(places)
    blocks = [(block.stage, block.index) for block in chain.blocks]
    left = [place for place in blocks if place not in gone]
    if not pairs or not (set(pairs) <= set(left) and set(pairs.values()) <= set(blocks)):
        raise ArgumentError(
            "places", f"be a dict from blocks that stay, of {left}, to blocks of {blocks}", places
        )
    options = chain.source._asdict() | {"output": None}
    del options["model"]
    small = sources.chain(made, **options)
    _check_states(small, routes.follow(chain, routes.drop(chain, *gone)), images)
    pairs = [(left.index(place), blocks.index(other)) for place, other in pairs.items()]

    def distance(images, *_):
        of_whole, clean = _states(chain, inputs_for(chain, images))
        with gradients_of_weights():
            of_small, _ = _states(small, inputs_for(small, images))
        numbers = []
        for place, other in pairs:
            target = tf.cast(clean(tf.stop_gradient(of_whole[other])), tf.float32)
            squares = tf.square(tf.cast(clean(of_small[place]), tf.float32) - target)
            numbers.append(tf.reduce_sum(squares) / tf.reduce_sum(tf.square(target)))
        return tf.reduce_mean(numbers)

    return distance


def places_after(chain, gone):
    """Returns a dict from every block that stays to the last block before the next that stays.

    Both are pairs (stage, block) of one stage.
    """
    found = {}
    for stage in chain.stages:
        kept = None
        for block in stage.blocks:
            place = block.stage, block.index
            kept = kept if place in gone else place
            if kept is not None:
                found[kept] = place
    return found


def _states(chain, images):
    """Returns the states after all blocks, and the function that sets padding to zero."""
    own = chain.with_context(images)
    pairs, _ = own.walk(own.stem(images))
    return [after for _, after in pairs], without_padding(own)


def _check_states(small, route, images):
    """Raises a `ValueError` unless the states of a chain are those of another one."""
    found = []
    for chain in (small, route):
        states, clean = _states(chain, sliced(images, slice(COMPARED)))
        rows = [keras.layers.Flatten()(clean(state)) for state in states]
        found.append({OUTPUTS: tf.concat(rows, axis=1)})
    allowed = allowed_difference(layer.compute_dtype for layer in small.source.model.layers)
    if not difference(*found)[0] <= allowed:
        raise ArgumentError(
            "distil",
            "be None or 'outputs' for a smaller network whose blocks are found elsewhere",
            received=f"distil='states' for {route.name}",
        )
