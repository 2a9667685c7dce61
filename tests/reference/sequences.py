"""Small networks of tokens, as chains by hand of Keras layers and in plain NumPy and float64.

Blocks are attention, MLP, attention; positions with the token 0 are padding. The NumPy version
computes each sequence by itself, without padding, and takes gradients as differences.

    chain, weights = sequence_chain("decoder")
    tokens, labels = padded(SEQUENCES), padded(LABELS, -1)
    lengths = [one.logits(weights, "decoder", sequence) for sequence in SEQUENCES]
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tfresidual.routing import Block, Chain, Stage
from tfresidual.routing.losses import CROSS_ENTROPY, loss_from
from tfresidual.routing.positions import VALID_POSITIONS

TOKENS, FEATURES, CLASSES = 6, 3, 4
# A decoder classifies every token, an encoder every sequence.
KINDS = ("decoder", "encoder")
SEQUENCES = [[1, 4, 2, 5], [3], [5, 2, 2], [4, 1]]
LABELS = {"decoder": [[0, 3, 1, 1], [2], [3, 0, 2], [1, 1]], "encoder": [1, 0, 3, 1]}
BLOCKS = ("attention", "mlp", "attention")


def padded(rows, fill=0, length=5):
    """Rows of different lengths as one array, filled up."""
    return np.array([row + [fill] * (length - len(row)) for row in rows])


def batch(kind, length=5, fill=-1, empty=0):
    """Tokens and labels of a kind, as arrays, with so many empty sequences at the end.

    These are all padding; a decoder has no labels for them, and an encoder the label 0.
    """
    sequences, labels = SEQUENCES + [[]] * empty, LABELS[kind]
    if kind == "decoder":
        labels = padded(labels + [[]] * empty, fill, length)
    else:
        labels = labels + [0] * empty
    return padded(sequences, 0, length).astype("int32"), np.array(labels)


def random_weights(seed=0):
    """Weights by name, in float64."""
    rng = np.random.default_rng(seed)
    weights = {"embedding": rng.normal(size=(TOKENS, FEATURES))}
    for index, kind in enumerate(BLOCKS):
        for part in ("q", "k", "v", "o") if kind == "attention" else ("in", "out"):
            weights[f"{index}/{part}"] = rng.normal(size=(FEATURES, FEATURES)) * 0.6
    return weights | {"head": rng.normal(size=(FEATURES, CLASSES))}


def dense(weights, name):
    kernel = weights[name].astype("float32")
    layer = layers.Dense(kernel.shape[1], use_bias=False)
    layer.build((None, None, kernel.shape[0]))
    layer.set_weights([kernel])
    return layer


def branch_of(weights, index, kind):
    if kind == "mlp":
        first, second = dense(weights, f"{index}/in"), dense(weights, f"{index}/out")
        return lambda state, context: second(keras.ops.tanh(first(state)))
    q, k, v, o = (dense(weights, f"{index}/{part}") for part in "qkvo")

    def attend(state, context):
        scores = tf.matmul(q(state), k(state), transpose_b=True)
        scores = tf.where(context["attention"], scores, -1e9)
        return o(tf.matmul(tf.nn.softmax(scores), v(state)))

    return attend


def sequence_chain(kind, weights=None, **settings):
    """The chain of a network of tokens."""
    weights = random_weights() if weights is None else weights

    def block(index):
        branch = branch_of(weights, index, BLOCKS[index])
        return Block(
            1,
            index,
            True,
            apply=lambda state, context: state + branch(state, context),
            branch=branch,
            join=lambda base, branch, context: base + branch,
            shortcut="identity",
        )

    def context(tokens):
        valid = tokens > 0
        seen = valid[:, None, :]
        if kind == "decoder":
            steps = tf.range(tf.shape(tokens)[1])
            seen &= steps[:, None] >= steps[None, :]
        return {VALID_POSITIONS: valid, "attention": seen}

    classify = dense(weights, "head")

    def head(state, context):
        if kind == "decoder":
            return classify(state)
        kept = tf.cast(context[VALID_POSITIONS], state.dtype)[..., None]
        return classify(tf.reduce_sum(state * kept, axis=1) / tf.reduce_sum(kept, axis=1))

    embedding = layers.Embedding(TOKENS, FEATURES)
    embedding.build(None)
    embedding.set_weights([weights["embedding"].astype("float32")])
    settings = {
        "name": kind,
        "stem": lambda tokens: embedding(tokens),
        "stages": (Stage(1, tuple(map(block, range(len(BLOCKS))))),),
        "head": head,
        "loss": loss_from({"loss": CROSS_ENTROPY, "config": {"from_logits": True}}),
        "input_shape": (None,),
        "input_dtype": "int32",
        "context": context,
    } | settings
    return Chain(**settings)


# The same in NumPy.


def softmax(rows):
    rows = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return rows / rows.sum(axis=-1, keepdims=True)


def branch(weights, kind, index, state):
    """What a block adds to the state `(positions, features)` of one sequence without padding."""
    if BLOCKS[index] == "mlp":
        return np.tanh(state @ weights[f"{index}/in"]) @ weights[f"{index}/out"]
    q, k, v, o = (weights[f"{index}/{part}"] for part in "qkvo")
    rows = []
    for place in range(len(state)):
        seen = state[: place + 1] if kind == "decoder" else state
        share = softmax((state[place] @ q) @ (seen @ k).T)
        rows.append(share @ (seen @ v) @ o)
    return np.array(rows)


def walk(weights, kind, state, applied=((0, 1.0), (1, 1.0), (2, 1.0))):
    """The states of one sequence along a route of (block, scale)."""
    states = [state]
    for index, scale, *_ in applied:
        states.append(states[-1] + scale * branch(weights, kind, index, states[-1]))
    return states


def logits(weights, kind, state):
    """The outputs of one sequence, a row per position or one row."""
    return (state if kind == "decoder" else state.mean(axis=0)) @ weights["head"]


def loss(weights, kind, state, label):
    """The mean cross-entropy of one sequence, given its last state."""
    p = softmax(np.atleast_2d(logits(weights, kind, state)))
    return -np.mean(np.log([row[one] for row, one in zip(p, np.atleast_1d(label), strict=True)]))


def gradient(function, state, step=1e-6):
    """The gradient of a number with respect to a state, by differences."""
    result = np.zeros_like(state)
    for place in np.ndindex(state.shape):
        ends = []
        for sign in (1, -1):
            moved = state.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def cosine(left, right):
    return (left * right).sum(axis=-1) / np.sqrt((left**2).sum(axis=-1) * (right**2).sum(axis=-1))


def block_metrics(weights, kind, sequence, label, per_position=False):
    """Metrics of one sequence by name, `(rows, blocks)`: a row per position, or one."""
    states = walk(weights, kind, weights["embedding"][np.array(sequence)])
    columns = {name: [] for name in ("cosine_loss", "readout_cosine_loss", "l2_ratio")}
    columns |= {"gradient_norm": [], "perturbation": []}
    for index in range(len(BLOCKS)):
        rest = [(later, 1.0) for later in range(index, len(BLOCKS))]
        g = gradient(
            lambda h, rest=rest: loss(weights, kind, walk(weights, kind, h, rest)[-1], label),
            states[index],
        )
        of_head = gradient(lambda h: loss(weights, kind, h, label), states[index])
        rows = [states[index + 1] - states[index], g, of_head, states[index]]
        if not per_position:
            rows = [row.reshape(1, -1) for row in rows]
        change, g, of_head, before = rows
        columns["cosine_loss"].append(cosine(change, g))
        columns["readout_cosine_loss"].append(cosine(change, of_head))
        columns["l2_ratio"].append(
            np.linalg.norm(change, axis=-1) / np.linalg.norm(before, axis=-1)
        )
        columns["gradient_norm"].append(np.linalg.norm(g, axis=-1))
        columns["perturbation"].append(np.linalg.norm(change, axis=-1))
    return {name: np.stack(values, axis=1) for name, values in columns.items()}
