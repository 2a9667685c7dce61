"""Chains by hand on sequences: ids with a mask as a dict, or with vectors as a tuple."""

import keras
import numpy as np
import tensorflow as tf

from tfresidual.routing import Block, Chain, Stage
from tfresidual.routing.losses import loss_from

IDS, FEATURES, CLASSES = 7, 4, 3
CROSS_ENTROPY = {"loss": "cross_entropy", "config": {"from_logits": True}}


def weights_of(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [tf.Variable(rng.normal(scale=0.5, size=shape), dtype="float32") for shape in shapes]


def masked_chain():
    """Two stages on a dict of ids and a mask; one output per image, and a loss of its own.

    Blocks, the transition and the head read the mask, and one block also the anchor.
    """
    square = (FEATURES, FEATURES)
    weights = weights_of((IDS, FEATURES), square, square, (FEATURES, 5), (5, 5), (5, CLASSES))
    table, one, other, between, last, out = weights

    def branch_of(weight):
        return lambda state, context: tf.tanh(state @ weight) * context["mask"]

    def join(base, branch, context):
        return base + branch * (1 - 0.5 * context["mask"])

    def block(stage, index, weight, **settings):
        branch = branch_of(weight)
        return Block(
            *(stage, index, True),
            apply=lambda *given: join(given[-2], branch(given[0], given[-1]), given[-1]),
            branch=branch,
            join=join,
            weights={"kernel": weight},
            **settings,
        )

    def head(state, context):
        mask = context["mask"]
        return tf.reduce_sum(state * mask, 1) / tf.reduce_sum(mask, 1) @ out

    return Chain(
        name="masked",
        stem=lambda images: tf.gather(table, images["ids"]),
        stages=(
            Stage(1, (block(1, 0, one), block(1, 1, other, takes_anchor=True))),
            Stage(
                2,
                (block(2, 0, last),),
                lambda state, context: (state * context["mask"]) @ between,
            ),
        ),
        head=head,
        loss=lambda labels, outputs: keras.losses.sparse_categorical_crossentropy(
            labels, outputs, from_logits=True
        ),
        input_shape={"ids": (None,), "mask": (None,)},
        input_dtype={"ids": "int32", "mask": "bool"},
        weights=tuple(weights),
        context=lambda images: {
            "valid_positions": images["mask"],
            "mask": tf.cast(images["mask"], tf.float32)[..., None],
        },
    )


def chain_per_position():
    """One stage on a tuple of ids and a vector per image; one output per position."""
    square = (FEATURES, FEATURES)
    weights = weights_of((IDS, FEATURES), square, square, (2, FEATURES), (FEATURES, CLASSES))
    table, *kernels, of_vector, out = weights

    def block(index):
        def branch(state, context):
            # A position reads all positions before it, and the vector of the image.
            return tf.tanh(tf.cumsum(state, axis=1) @ kernels[index] + context["vector"])

        return Block(
            *(1, index, True),
            apply=lambda state, context: state + branch(state, context),
            branch=branch,
            join=lambda base, branch, context: base + branch,
            weights={"kernel": kernels[index]},
        )

    return Chain(
        name="per position",
        stem=lambda images: tf.gather(table, images[0]),
        stages=(Stage(1, (block(0), block(1))),),
        head=lambda state, context: state @ out,
        loss=loss_from(CROSS_ENTROPY),
        input_shape=((None,), (2,)),
        input_dtype=("int64", "float32"),
        weights=tuple(weights),
        context=lambda images: {
            "valid_positions": images[0] != 0,
            "vector": (images[1] @ of_vector)[:, None],
        },
    )


def masked_data(images=6, positions=5, seed=1):
    """Images and labels for `masked_chain`, with padding at the end of some images."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, positions + 1, images)
    inputs = {
        "ids": rng.integers(0, IDS, (images, positions)),
        "mask": np.arange(positions) < lengths[:, None],
    }
    return inputs, rng.integers(0, CLASSES, images)


def data_per_position(images=6, positions=5, seed=1):
    """Images and labels for `chain_per_position`; padding has the id 0 and the label -1."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, positions + 1, images)
    is_valid = np.arange(positions) < lengths[:, None]
    ids = np.where(is_valid, rng.integers(1, IDS, (images, positions)), 0)
    labels = np.where(is_valid, rng.integers(0, CLASSES, (images, positions)), -1)
    return (ids, rng.normal(size=(images, 2)).astype("float32")), labels
