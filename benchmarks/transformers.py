"""Probes of a transformer of 12 layers against a training step and against what must be done.

    python benchmarks/transformers.py [--layers 12] [--features 384] [--words 1000 8000]

An encoder and a decoder (language model) of keras-hub, whose layers are opened: two blocks per
layer. Batches of 16 sequences of 64 positions. Compared are, on one batch,

- the compiled pass of all block metrics with a training step of the same network (encoder);
- the lens with its floor (decoder): one pass through the network, and the head once per block.

What the lens computes of every row of outputs reads it several times. With many words and few
features, that takes as long as the head itself.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from results import compared, run
from timing import in_turn

import tfresidual as tfr
from tfresidual import probes

SEQUENCES, POSITIONS, CLASSES = 16, 64, 10


def sizes(layers, features, words):
    return {
        "num_layers": layers,
        "vocabulary_size": words,
        "num_heads": 4,
        "hidden_dim": features,
        "intermediate_dim": 4 * features,
        "dropout": 0.0,
        "max_sequence_length": POSITIONS,
    }


def encoder(*size):
    backbone = keras_hub.models.BertBackbone(**sizes(*size))
    state = keras.layers.GlobalAveragePooling1D()(backbone.output["sequence_output"])
    return keras.Model(backbone.input, keras.layers.Dense(CLASSES)(state))


def decoder(*size):
    backbone = keras_hub.models.GPT2Backbone(**sizes(*size))
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


def compiled_of(chain, name):
    """Returns the function that a probe has compiled for a chain."""
    return next(function for key, function in chain.compiled.items() if key[0].startswith(name))


def of_encoder(layers, features, words, rounds, rng):
    model = encoder(layers, features, words)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    ids = tf.constant(rng.integers(0, words, (SEQUENCES, POSITIONS)), tf.int32)
    inputs = {name: tf.ones_like(ids) for name in model.input} | {"token_ids": ids}
    inputs["segment_ids"] = tf.zeros_like(ids)
    labels = tf.constant(rng.integers(0, CLASSES, SEQUENCES), tf.int32)
    chain = tfr.chain(model, inputs=inputs)
    probes.block_metrics(chain, (inputs, labels))
    functions = {
        "training step": lambda: model.train_on_batch(inputs, labels),
        "block metrics": functools.partial(compiled_of(chain, "block metrics"), inputs, labels),
    }
    seconds = in_turn(functions, rounds)
    setting = f"encoder, {len(chain.blocks)} blocks, {features} features"
    what = "block metrics / training step"
    yield compared(what, setting, seconds["block metrics"], seconds["training step"])


def of_decoder(layers, features, words, rounds, rng):
    model = decoder(layers, features, words)
    ids = tf.constant(rng.integers(0, words, (SEQUENCES, POSITIONS)), tf.int32)
    inputs = {"token_ids": ids, "padding_mask": tf.ones_like(ids)}
    chain = tfr.chain(model, inputs=inputs)
    probes.lens(chain, (inputs, ids))
    within = tf.function(lambda images: chain(images), autograph=False)
    head = tf.function(
        lambda state, images: chain.with_context(images).head(state), autograph=False
    )
    state = tf.zeros((SEQUENCES, POSITIONS, features))
    functions = {
        "lens": functools.partial(compiled_of(chain, "lens"), inputs, ids),
        "pass": functools.partial(within, inputs),
        "head": functools.partial(head, state, inputs),
    }
    seconds = in_turn(functions, rounds)
    # The pass holds one head, and the lens reads one state more than there are blocks.
    heads = len(chain.blocks)
    floor = [a + heads * b for a, b in zip(seconds["pass"], seconds["head"], strict=True)]
    setting = f"language model, {words:,} words, {features} features"
    yield compared("lens / floor", setting, seconds["lens"], floor)


def measure(arguments):
    size, rng = (arguments.layers, arguments.features), np.random.default_rng(0)
    yield from of_encoder(*size, arguments.words[0], arguments.rounds, rng)
    for words in arguments.words:
        yield from of_decoder(*size, words, arguments.rounds, rng)


def add_arguments(parser):
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--words", type=int, nargs="+", default=[1000, 8000])
    parser.add_argument("--rounds", type=int, default=5)


if __name__ == "__main__":
    run(measure, add_arguments)
