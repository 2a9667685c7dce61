"""A small causal language model, as a chain by hand and in plain NumPy and float64.

    model = Decoder()
    model.chain()                                     # its context: the padding mask
    states, logits = model.run(ids, mask)             # NumPy: the first state, and after each block
    model.logits(state)                               # the head at any state

Blocks alternate as in a transformer: even ones mix a position with those before it that are no
padding, odd ones read each position by itself. The head normalizes a position and multiplies it by
the embedding.
"""

import keras
import numpy as np
import tensorflow as tf

from tfresidual.routing import Block, Chain, Stage
from tfresidual.routing.positions import VALID_POSITIONS


class Decoder:
    def __init__(self, blocks=4, width=6, vocabulary=9, seed=0):
        rng = np.random.default_rng(seed)
        self.embedding = rng.normal(size=(vocabulary, width))
        self.kernels = [rng.normal(size=(width, width)) / 2 for _ in range(blocks)]
        self.scale, self.bias = rng.normal(1, 0.2, width), rng.normal(0, 0.2, width)
        self.shift = rng.normal(0, 0.5, vocabulary)

    def run(self, ids, mask, since=0, state=None):
        """The states from a block on, and the logits of the last one."""
        states = [self.embedding[ids] if state is None else state]
        for index, kernel in list(enumerate(self.kernels))[since:]:
            states.append(states[-1] + np.tanh(self.read(index, states[-1], mask) @ kernel))
        return states, self.logits(states[-1])

    def read(self, index, state, mask):
        """What a branch reads: its state, or the mean of all states up to the position."""
        if index % 2:
            return state
        read = np.zeros_like(state)
        for image, own in enumerate(state):
            for position in range(len(own)):
                chosen = [own[p] for p in range(position + 1) if mask[image, p]]
                read[image, position] = np.mean(chosen, axis=0) if chosen else 0
        return read

    def logits(self, state):
        centred = state - state.mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return (normal * self.scale + self.bias) @ self.embedding.T + self.shift

    def head(self, state):
        centred = state - tf.reduce_mean(state, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centred**2, axis=-1, keepdims=True)
        normal = centred / tf.sqrt(variance + 1e-5)
        normal = normal * tf.constant(self.scale, tf.float32) + tf.constant(self.bias, tf.float32)
        embedding = tf.constant(self.embedding.T, tf.float32)
        return tf.einsum("...d,dv->...v", normal, embedding) + tf.constant(self.shift, tf.float32)

    def chain(self, head=None, **changes):
        """The chain; `head(state, context)` replaces its head, and `changes` its other fields."""

        def branch(index, state, context):
            if index % 2 == 0:
                count = tf.shape(state)[1]
                weights = tf.linalg.band_part(tf.ones((count, count)), -1, 0)
                weights *= tf.cast(context[VALID_POSITIONS], tf.float32)[:, None, :]
                total = tf.reduce_sum(weights, axis=-1, keepdims=True)
                state = tf.matmul(tf.math.divide_no_nan(weights, total), state)
            kernel = tf.constant(self.kernels[index], tf.float32)
            return tf.tanh(tf.einsum("...d,de->...e", state, kernel))

        def block(index):
            return Block(
                1,
                index,
                True,
                lambda state, context: state + branch(index, state, context),
                shortcut="identity",
            )

        settings = {
            "name": "decoder",
            "stem": lambda inputs: tf.gather(self.embedding.astype("float32"), inputs["ids"]),
            "stages": (Stage(1, tuple(map(block, range(len(self.kernels))))),),
            "head": head or (lambda state, context: self.head(state)),
            "loss": lambda labels, outputs: tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(
                    tf.maximum(labels, 0), outputs, from_logits=True
                ),
                axis=-1,
            ),
            "input_shape": {"ids": (None,), "mask": (None,)},
            "input_dtype": {"ids": "int32", "mask": "bool"},
            "context": lambda inputs: {VALID_POSITIONS: inputs["mask"]},
        }
        return Chain(**settings | changes)

    def batch(self, images=5, positions=7, seed=1):
        """Inputs of several lengths and labels: the next token, -1 where there is none."""
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, len(self.embedding), (images, positions + 1))
        lengths = rng.integers(2, positions + 1, images)
        mask = np.arange(positions) < lengths[:, None]
        return {"ids": ids[:, :-1], "mask": mask}, np.where(mask, ids[:, 1:], -1)
