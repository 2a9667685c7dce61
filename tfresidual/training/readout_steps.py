"""The steps of the training of read-outs. TensorFlow only."""

import functools

import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, checked_places
from tfresidual.machine.compiled import compiled
from tfresidual.networks.readouts import AFFINE, HEAD, Readouts
from tfresidual.probes.predictions import divergence, label_check, labels_of, logits_of
from tfresidual.routing.data import key_of, spec_of
from tfresidual.routing.positions import known_positions, valid_images
from tfresidual.routing.readouts import read, states_of


class Trainer:
    """Read-outs in training.

    Args:
        chain: a `tfresidual.routing.Chain`, which may have a context.
        kind: `"affine"` or `"head"`.
        blocks: places of states, or `None` for all that can be read.
        optimizer: a `keras.Optimizer` that has trained nothing yet.
        images: the first images, as tensors.
    """

    def __init__(self, chain, kind, blocks, optimizer, images):
        self.chain, self.optimizer, self.steps = chain, optimizer, {}
        self.check = label_check(chain) if kind == HEAD else None
        self.readouts = _untrained(chain, kind, blocks, images)
        optimizer.build(self.readouts.trainable_variables)

    def step(self, images, labels, weights):
        """Trains all read-outs on a batch."""
        if self.check is not None:
            self.check(images, labels)
        key = key_of([images, labels])
        if key not in self.steps:
            signature = [spec_of(part) for part in (images, labels, weights)]
            self.steps[key] = compiled(self._step, signature)
        self.steps[key](images, labels, weights)

    def _step(self, images, labels, weights):
        chain = self.chain.with_context(images)
        states, last = states_of(chain, images)
        final = chain.head(last)
        losses_of, is_counted = _losses(chain, self.readouts.kind, final, labels)
        weights = tf.reshape(weights, [-1, *[1] * (len(is_counted.shape) - 1)])
        shares = tf.cast(is_counted, weights.dtype) * weights
        shares = tf.cast(tf.math.divide_no_nan(shares, tf.reduce_sum(shares)), tf.float32)
        variables, gradients = self.readouts.trainable_variables, []
        for place, layer in zip(self.readouts.places, self.readouts.readouts, strict=True):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([variable.value for variable in layer.trainable_variables])
                loss = 0.0
                for is_control, loss_of in enumerate(losses_of):
                    state = states[place]
                    outputs = read(chain, self.readouts, place, state, final, bool(is_control))
                    losses = loss_of(logits_of(chain.outputs, outputs)[0])
                    losses = tf.where(is_counted, tf.cast(losses, tf.float32), 0.0)
                    loss += tf.reduce_sum(losses * shares)
            gradients += tape.gradient(loss, [one.value for one in layer.trainable_variables])
        self.optimizer.apply(gradients, variables)


def _untrained(chain, kind, blocks, images):
    """Returns read-outs before their training, for a chain and some images."""
    own = chain.with_context(images)
    states, last = states_of(own, images)
    shape = tuple(own.head(last).shape)[1:]
    places = [
        place
        for place, state in states.items()
        if state is not last and (kind == HEAD or state.shape[1:] == last.shape[1:])
    ]
    places = checked_places("blocks", blocks, places)
    if kind == HEAD and len(shape) == 2 and not chain.outputs_at_positions:
        raise ArgumentError(
            "kind",
            "be 'affine' unless outputs per position are those of the positions of the states",
            kind,
        )
    readouts = Readouts(
        kind,
        [len(stage.blocks) for stage in chain.stages],
        places,
        [states[place].shape[-1] for place in places],
        classes=shape[-1] if kind == HEAD else None,
        per_position=kind == HEAD and len(shape) == 2,
    )
    readouts.standardize([states[place] for place in places])
    return readouts


def _losses(chain, kind, final, labels):
    """Returns functions `logits -> losses` of examples, and which of them count.

    One is for the read-outs and, if these are heads, one for their controls.
    """
    logits, has_several = logits_of(chain.outputs, final)
    if kind == AFFINE:
        of_network = functools.partial(divergence, logits, has_several=has_several)
        has_positions = len(final.shape) == 3
        if has_positions and not chain.outputs_at_positions:
            return [of_network], tf.ones(tf.shape(logits)[:-1], bool)
        valid = known_positions(chain) if has_positions else valid_images(chain)
        return [of_network], tf.ones(tf.shape(logits)[:-1], bool) if valid is None else valid
    found = labels_of(chain, labels, final, logits, has_several)

    def cross_entropy(rows, logits):
        if has_several:
            each = rows * tf.nn.softplus(-logits) + (1 - rows) * tf.nn.softplus(logits)
        else:
            each = -rows * tf.nn.log_softmax(logits)
        return tf.reduce_sum(each, axis=-1)

    both = found.rows, _of_others(found.rows, found.counted)
    return [functools.partial(cross_entropy, rows) for rows in both], found.counted


def _of_others(rows, counted):
    """Gives every example that counts the label of the one half a batch away; 0 without others.

    A random permutation would leave some examples their own, which is enough to learn from.
    """
    examples = tf.boolean_mask(rows, counted)
    count = tf.shape(examples)[0]
    moved = tf.roll(examples, count // 2, axis=0) * tf.cast(count > 1, rows.dtype)
    return tf.tensor_scatter_nd_update(rows, tf.where(counted), moved)
