"""Chains in which something else can take the place of what a block adds. TensorFlow only.

In such a chain, a block whose branch is scaled by `FILLED` returns what it does with the fill. Any
other application is that of the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.compiled import compiled
from tfresidual.probes.patching import are_sources, with_others
from tfresidual.routing.chain import BLOCK_FUNCTIONS
from tfresidual.routing.data import batches_of, key_of, shape_of_outputs, spec_of
from tfresidual.routing.positions import counted_images, has_them, known_positions
from tfresidual.routing.routes import Route, unperturbed
from tfresidual.routing.runs import begun

ZERO, MEAN, RESAMPLE = FILLS = ("zero", "mean", "resample")
# A power of 2, by which a branch is divided again without rounding.
FILLED = 2.0
IMAGES, OTHERS = "images", "others"
OTHER_POSITIONS = "valid positions of the other image"
# For the means, all states of these images are held at once.
IMAGES_AT_ONCE = 64


def route_with_fill(chain, block):
    """Returns the route of a chain of `filled` in which a block is filled."""
    stages = tuple(
        tuple(
            one._replace(scale=FILLED) if (stage, one.block) == (block.stage, block.index) else one
            for one in applications
        )
        for stage, applications in enumerate(unperturbed(chain).stages, start=1)
    )
    return Route(f"{block} filled", stages)


def filled(chain, data, fill, keep_norm, seed):
    """Returns a chain whose blocks can be filled, and the data of one split as it takes them."""
    _check(chain, fill, keep_norm)
    if fill != ZERO and isinstance(data, Iterator):
        raise ArgumentError(
            "data",
            f"be data that can be read twice with fill={fill!r}",
            received=f"data={data!r} of type {type(data).__name__}",
        )
    key = ("filled", fill, keep_norm)
    if key not in chain.compiled:
        chain.compiled[key] = _chain_of(chain, fill, keep_norm)
    made, means = chain.compiled[key]
    if fill == MEAN:
        _measure_means(chain, data, keep_norm, means)
    if fill == RESAMPLE:
        return made, _Pairs(chain, data, seed)
    return made, data


def _check(chain, fill, keep_norm):
    for block in chain.blocks:
        if not block.keeps_shape:
            continue
        if keep_norm and block.join is None:
            raise ArgumentError(
                "keep_norm",
                "be False for a chain with blocks whose branch cannot be told from what follows "
                "it, such as whole layers",
                received=f"keep_norm=True for {block} of {chain.name}",
            )
        if block.takes_anchor and not keep_norm and fill != ZERO:
            raise ArgumentError(
                "keep_norm",
                "be True for properly convergent stages, whose blocks join their branch to the "
                "input of the stage, not to the state",
                received=f"keep_norm=False and fill={fill!r} for {chain.name}",
            )


def _chain_of(chain, fill, keep_norm):
    """Returns the chain whose blocks can be filled, and its means by block, to be set later."""
    means = {}

    def fill_of(block, added, context):
        """What takes the place of a branch that is scaled by `FILLED`."""
        if fill == ZERO:
            return tf.zeros_like(added)
        if fill == MEAN:
            mean = tf.cast(means[block.stage, block.index], added.dtype)
            if len(added.shape) > 2:
                mean = mean[: tf.shape(added)[1]]
            return tf.ensure_shape(tf.broadcast_to(mean, tf.shape(added)), added.shape)
        other = tf.cast(context[_name_of(block)], added.dtype)
        valid = context.get(OTHER_POSITIONS)
        if valid is None or not has_them(added, valid):
            return other
        # What is padding in the other image is not put in.
        mask = valid[(..., *[tf.newaxis] * (len(added.shape) - 2))]
        return tf.where(mask, other, added / FILLED)

    has_context = chain.context is not None
    takes_context = has_context or fill == RESAMPLE

    def of_context(function):
        """A function of the new chain that does what one of the chain does."""
        if function is None or takes_context == has_context:
            return function
        return lambda *arguments: function(*arguments[:-1])

    def changed(block):
        block = dataclasses.replace(
            block, **{name: of_context(getattr(block, name)) for name in BLOCK_FUNCTIONS}
        )
        if not block.keeps_shape:
            return block
        branch, join = block.branch, block.join
        if not keep_norm:

            def branch(state, *context):
                return block.apply(state, *context) - state

            def join(base, added, *context):
                return base + added

        def filled_join(base, added, *context):
            return join(base, fill_of(block, added, *context or ({},)), *context)

        return dataclasses.replace(block, branch=branch, join=filled_join)

    stages = tuple(
        dataclasses.replace(
            stage,
            blocks=tuple(map(changed, stage.blocks)),
            transition=of_context(stage.transition),
        )
        for stage in chain.stages
    )
    made = {"stages": stages, "head": of_context(chain.head)}
    if fill == RESAMPLE:
        reference = chain.reference
        made |= {
            "stem": lambda images: chain.stem(images[IMAGES]),
            "context": lambda images: _context_with_others(chain, images, keep_norm),
            "input_shape": {IMAGES: chain.input_shape, OTHERS: chain.input_shape},
            "input_dtype": {IMAGES: chain.input_dtype, OTHERS: chain.input_dtype},
            "input_names": (),
            "label_place": None,
            "reference": reference and (lambda images: reference(images[IMAGES])),
        }
    return dataclasses.replace(chain, **made), means


def _name_of(block):
    return f"what {block} adds for the other image"


def _added(chain, images, keep_norm):
    """Returns the chain for images, and the branches of blocks, or what they add, by place."""
    given = chain.with_context(images)
    pairs, _ = given.walk(given.stem(images))
    found = {}
    for block, (before, after) in zip(given.blocks, pairs, strict=True):
        if block.keeps_shape:
            added = block.branch(before) if keep_norm else after - before
            found[block.stage, block.index] = added
    return given, found


def _context_with_others(chain, images, keep_norm):
    context = {} if chain.context is None else dict(chain.context(images[IMAGES]))
    given, added = _added(chain, images[OTHERS], keep_norm)
    blocks = {(block.stage, block.index): block for block in chain.blocks}
    context |= {_name_of(blocks[place]): value for place, value in added.items()}
    valid = known_positions(given)
    return context if valid is None else context | {OTHER_POSITIONS: valid}


def _measure_means(chain, data, keep_norm, means):
    """Sets the means over the images that count, without their padding."""
    totals = None
    for images, labels, weights in begun(chain, data, with_losses=False, at_once=IMAGES_AT_ONCE):
        summed = _compiled_sums(chain, keep_norm, images, labels)
        sums = [part.numpy() for part in tf.nest.flatten(summed(images, labels, weights))]
        if totals is not None:
            sums = list(map(_sum_of, totals, sums))
        totals = sums
    places = [(block.stage, block.index) for block in chain.blocks if block.keeps_shape]
    for place, total, count in zip(places, totals[::2], totals[1::2], strict=True):
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        if place in means:
            means[place].assign(mean)
        else:
            means[place] = tf.Variable(mean, shape=tf.TensorShape(None), trainable=False)


def _sum_of(total, other):
    """Returns the sum of arrays, of which one may have fewer positions, its first axis."""
    if total.shape[1:] != other.shape[1:] or (total.ndim < 2 and total.shape != other.shape):
        raise ArgumentError(
            "data",
            "hold images of one size, or sequences, with fill='mean'",
            received=f"states of shape {total.shape} and {other.shape}",
        )
    most = max(len(total), len(other))
    return sum(
        np.pad(one, [(0, most - len(one)), *[(0, 0)] * (one.ndim - 1)]) for one in (total, other)
    )


def _compiled_sums(chain, keep_norm, images, labels):
    key = ("sums of what is added", keep_norm, *key_of([images, labels]))
    if key in chain.compiled:
        return chain.compiled[key]
    shape = shape_of_outputs(chain, images)

    def sums(images, labels, weights):
        given, added = _added(chain, images, keep_norm)
        is_counted = counted_images(given, labels, shape)
        if is_counted is None:
            is_counted = tf.ones(tf.shape(labels)[0], bool)
        valid = known_positions(given)
        found = []
        for value in added.values():
            mask = is_counted[:, None]
            if len(value.shape) > 2:
                mask = tf.broadcast_to(mask, tf.shape(value)[:2])
            if valid is not None and has_them(value, valid):
                mask &= valid
            while len(mask.shape) < len(value.shape):
                mask = mask[..., None]
            shares = tf.cast(mask, tf.float64)
            shares *= tf.reshape(weights, [-1, *[1] * (len(value.shape) - 1)])
            kept = tf.cast(tf.where(mask, value, tf.zeros_like(value)), tf.float64)
            found += [tf.reduce_sum(shares * kept, axis=0), tf.reduce_sum(shares, axis=0)]
        return found

    signature = [spec_of(images), spec_of(labels), tf.TensorSpec([None], tf.float64)]
    chain.compiled[key] = compiled(sums, signature)
    return chain.compiled[key]


class _Pairs(keras.utils.PyDataset):
    """Batches of pairs of images, each one and another one of its batch, read in order."""

    def __init__(self, chain, data, seed):
        super().__init__()
        self.chain, self.data, self.seed = chain, data, seed
        self.count = sum(1 for _ in batches_of(data, chain))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 0:
            batches = batches_of(self.data, self.chain)
            self.pairs = with_others(self.chain, batches, _drawn(self.seed))
        images, labels, others, _, weights = next(self.pairs)
        return {IMAGES: images, OTHERS: others}, labels, weights


def _drawn(seed):
    """Returns a function that draws another image for every image of a batch, as places."""
    rng = np.random.default_rng(seed)

    def places(chain, images, labels):
        found = np.flatnonzero(are_sources(chain, images, labels))
        if len(found) < 2:
            raise ArgumentError(
                "fill",
                "be another one than 'resample' for data with a batch in which fewer than two "
                "images count, since no other one can be drawn",
                received=f"a batch of {len(labels)}, of which {len(found)} count",
            )
        # Each one is followed by the next one in a random order, which is no image itself.
        order = rng.permutation(found)
        chosen = np.full(len(labels), order[0])
        chosen[order] = np.roll(order, -1)
        return chosen

    return places
