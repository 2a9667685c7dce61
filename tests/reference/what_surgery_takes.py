"""What surgery does with kinds of layers and models.

    PYTHONPATH=tests python -m reference.what_surgery_takes

measures every cell and writes docs/what_surgery_takes.md. The truth is a network of the very same
layers, called one by one without the block; nothing of the package takes part in it.
"""

import os
import pathlib
import warnings
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import tfresidual as tfr
from tfresidual import surgery

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "what_surgery_takes.md"
BLOCKS, IMAGES, WIDTH = 3, 8, 4
RNG = np.random.default_rng(0)
ROWS = RNG.normal(2, 3, (IMAGES, WIDTH)).astype("float32")
SEQUENCES = RNG.normal(2, 3, (IMAGES, 6, WIDTH)).astype("float32")
PIXELS = RNG.normal(2, 3, (IMAGES, 6, 6, WIDTH)).astype("float32")
IDS = RNG.integers(1, 9, (IMAGES, 6)).astype("int32")
IDS[0, 2:] = 0
TEXT = np.array(["a b", "b c"] * (IMAGES // 2), dtype=object)
LABELS = np.arange(IMAGES) % 3


class Case(NamedTuple):
    """A model, inputs, names of a block, and the function of such names that makes the truth."""

    model: keras.Model
    inputs: object
    names: set
    truth: object


# Networks


def network(branch, inputs=ROWS, stem=(), head=(), change=None):
    """Three blocks, each of batch normalization and what a function of its number returns."""
    branches = [[layers.BatchNormalization(name=f"norm{i}"), *branch(i)] for i in range(BLOCKS)]
    poolings = {3: [layers.GlobalAveragePooling1D()], 4: [layers.GlobalAveragePooling2D()]}
    last = layers.Dense(3, "softmax", dtype="float32")

    def make(skip=()):
        dtype = "string" if inputs is TEXT else inputs.dtype.name
        given = keras.Input(inputs.shape[1:], dtype=dtype)
        state = follow(stem, given)
        for i, own in enumerate(branches):
            if f"add{i}" not in skip:
                state = layers.Add(name=f"add{i}")([state, follow(own, state)])
        state = follow(head, state)
        return keras.Model(given, last(follow(poolings.get(len(state.shape), ()), state)))

    model = make()
    if change is not None:
        change(model)
    return Case(model, inputs, {"add1"}, make)


def follow(parts, state):
    for one in parts:
        state = one(state)
    return state


def dense(**options):
    return lambda i: [layers.Dense(WIDTH, name=f"dense{i}", **options)]


def attending():
    """Attention of masked sequences, and a model around one, at the end of which the mask goes."""

    def attention(name):
        one = layers.MultiHeadAttention(2, 4, name=name)
        return lambda state: one(state, state)

    state = keras.Input((6, WIDTH))
    around = keras.Model(state, attention("last")(state))
    stem = [layers.Embedding(9, WIDTH, mask_zero=True)]
    return network(lambda i: [attention(f"attention{i}")], IDS, stem, [around])


def several_inputs():
    gates = [layers.Dense(WIDTH) for _ in range(BLOCKS)]
    last = layers.Dense(3, "softmax")

    def make(skip=()):
        first, second = keras.Input((WIDTH,), name="a"), keras.Input((WIDTH,), name="b")
        state = first
        for i, gate in enumerate(gates):
            if f"add{i}" not in skip:
                state = layers.Add(name=f"add{i}")([state, gate(second * state)])
        return keras.Model({"a": first, "b": second}, last(state))

    return Case(make(), {"a": ROWS, "b": ROWS[::-1]}, {"add1"}, make)


def adapted(layer, inputs, *more):
    layer.adapt(inputs)
    return network(dense(), inputs, [layer, *more])


def sharing():
    one = layers.Dense(WIDTH)
    return network(lambda i: [one])


def each_dense(change):
    return lambda model: [change(one) for one in model.layers if one.name.startswith("dense")]


def adapt_by_lora(layer):
    layer.enable_lora(2, lora_alpha=7)
    layer.lora_kernel_b.assign(RNG.normal(size=layer.lora_kernel_b.shape))


def freeze(model):
    for name in ("dense0", "norm2"):
        model.get_layer(name).trainable = False


@keras.saving.register_keras_serializable("tests")
class OfOnesOwn(layers.Layer):
    """A layer with parts, of which one can be frozen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.second = layers.Dense(3, "relu"), layers.Dense(WIDTH)

    def build(self, shape):
        self.first.build(shape)
        self.second.build((*shape[:-1], 3))
        self.built = True

    def call(self, inputs):
        return self.second(self.first(inputs))


class WithoutConfig(layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.last = layers.Dense(WIDTH), layers.Dense(3, "softmax")

    def call(self, inputs):
        return self.last(inputs + self.dense(inputs))


def subclassed():
    model = Subclassed()
    model(ROWS)
    return Case(model, ROWS, {"add1"}, None)


def hub(name, change=None, **options):
    """A classifier with a model of keras-hub inside, of which layers return what they take."""
    from sources import zoo

    backbone = zoo.made(name, num_layers=3, **options)
    given = keras.tree.map_structure(
        lambda one: keras.Input(one.shape[1:], dtype=one.dtype, name=one.name), backbone.input
    )
    pooling, last = layers.GlobalAveragePooling1D(), layers.Dense(3, "softmax")
    model = keras.Model(given, last(pooling(backbone(given))))
    if change is not None:
        change(backbone)

    def make(skip=()):
        def call(layer, *args, **kwargs):
            return args[0] if layer.name in skip else layer(*args, **kwargs)

        inner = keras.models.clone_model(backbone, None, lambda layer: layer, call)
        return keras.Model(given, last(pooling(inner(given))))

    inputs = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}
    (name,) = [layer.name for layer in backbone.layers if layer.name.endswith("_1")]
    return Case(model, inputs, {name}, make)


CASES = {
    "convolutions": lambda: network(lambda i: [layers.Conv2D(WIDTH, 3, padding="same")], PIXELS),
    "dropout and noise": lambda: network(
        lambda i: [layers.Dropout(0.5, seed=3), layers.GaussianNoise(1.0), *dense()(i)]
    ),
    "regularizers and constraints": lambda: network(
        dense(kernel_regularizer="l2", bias_constraint="non_neg")
    ),
    "recurrent layers": lambda: network(
        lambda i: [layers.LSTM(WIDTH, return_sequences=True)], SEQUENCES
    ),
    "`TimeDistributed`": lambda: network(
        lambda i: [layers.TimeDistributed(layers.Dense(WIDTH))], SEQUENCES
    ),
    "`Lambda`": lambda: network(lambda i: [layers.Lambda(lambda state: 2 * state), *dense()(i)]),
    "attention with masks, in models inside": attending,
    "several inputs": several_inputs,
    "dtype policies of single layers": lambda: network(
        lambda i: dense(dtype="mixed_bfloat16" if i else "float32")(i)
    ),
    "some layers frozen": lambda: network(dense(), change=freeze),
    "a layer of one's own, half of it frozen": lambda: network(
        lambda i: [OfOnesOwn(name=f"own{i}")],
        change=lambda model: setattr(model.get_layer("own0").first, "trainable", False),
    ),
    "int4": lambda: network(dense(), change=each_dense(lambda one: one.quantize("int4"))),
    "int8": lambda: network(dense(), change=each_dense(lambda one: one.quantize("int8"))),
    "LoRA": lambda: network(dense(), change=each_dense(adapt_by_lora)),
    "float8": lambda: network(dense(), change=each_dense(lambda one: one.quantize("float8"))),
    "`SpectralNormalization` of Keras": lambda: network(
        lambda i: [layers.SpectralNormalization(layers.Dense(WIDTH))]
    ),
    "adapted `Normalization`": lambda: adapted(layers.Normalization(), ROWS),
    "adapted `Discretization`": lambda: adapted(layers.Discretization(num_bins=4), ROWS),
    "adapted `IntegerLookup`": lambda: adapted(
        layers.IntegerLookup(), IDS, layers.Embedding(12, WIDTH)
    ),
    "keras-hub, layers alike": lambda: hub("RobertaBackbone"),
    "keras-hub, frozen": lambda: hub(
        "RobertaBackbone", lambda backbone: setattr(backbone, "trainable", False)
    ),
    "keras-hub, LoRA": lambda: hub("GPT2Backbone", lambda backbone: backbone.enable_lora(2)),
    "keras-hub, int8": lambda: hub("RobertaBackbone", lambda backbone: backbone.quantize("int8")),
    "keras-hub, windows by place": lambda: hub(
        "GemmaBackbone", use_sliding_window_attention=True, sliding_window_size=2
    ),
    "blocks that share weights": sharing,
    "text vectorization: cut the model after it": lambda: adapted(
        layers.TextVectorization(output_sequence_length=6), TEXT, layers.Embedding(12, WIDTH)
    ),
    'layers without a configuration: `weights="share"`': lambda: network(
        lambda i: [WithoutConfig(layers.Dense(WIDTH))]
    ),
    "subclassed: build it as a functional model": subclassed,
}


# Cells


def without_blocks(case):
    found = surgery.without_blocks(case.model, sorted(case.names), inputs=case.inputs)
    return is_truth(found, case, case.names)


def prune(case):
    case.model.compile("sgd", "sparse_categorical_crossentropy")
    data = case.inputs, LABELS
    options = {"blocks": 1, "by": "l2_ratio", "batch_sizes": (), "statistics": False}
    found, frame = surgery.prune(case.model, data, test=data, **options)
    *_, (stage, first, count) = frame[["stage", "block", "blocks"]].to_numpy()
    gone = [
        block
        for block in tfr.chain(case.model).blocks
        if block.stage == stage and first <= block.index < first + count
    ]
    names = {layer.name for block in gone for layer in block.inside}
    return is_truth(found, case, names or {gone[0].name})


def update_statistics(case):
    """Of the first normalization, whose inputs no other one changes; and of nothing else."""
    norms = [
        one
        for one in case.model.layers
        if isinstance(one, layers.BatchNormalization) and one.trainable
    ]
    own = {id(one) for norm in norms for one in (norm.moving_mean, norm.moving_variance)}
    others = [one for one in case.model.variables if id(one) not in own]
    before = [one.numpy() for one in others]
    if surgery.update_statistics(case.model, [case.inputs]) == 0:
        return "nothing to do"
    taken = keras.Model(case.model.input, norms[0].input)(case.inputs)
    taken, *mask = [np.asarray(one) for one in keras.tree.flatten(taken)]
    taken = taken[tuple(mask)]
    axes = tuple(range(taken.ndim - 1))
    pairs = [(norms[0].moving_mean, taken.mean(axes)), (norms[0].moving_variance, taken.var(axes))]
    pairs += zip(others, before, strict=True)
    return all(np.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in pairs)


def is_truth(found, case, names):
    """Whether a model has the outputs, trained weights and penalties of the truth."""
    one, other = (
        [
            np.asarray(model(case.inputs), "float32"),
            np.asarray([float(loss) for loss in model.losses]),
            sorted(str(tuple(variable.shape)) for variable in model.trainable_variables),
        ]
        for model in (found, case.truth(names))
    )
    return one.pop() == other.pop() and all(
        np.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in zip(one, other, strict=True)
    )


COLUMNS = (without_blocks, prune, update_statistics)


def line_of(name):
    """Returns the line of a case in the table."""
    cells = [name]
    for measured in COLUMNS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = measured(CASES[name]())
        except ValueError:
            found = "refused"
        cells.append(found if isinstance(found, str) else "works" if found else "**wrong**")
    return f"| {' | '.join(cells)} |"


HEAD = f"""# What surgery takes

Kinds of layers and models, and what `tfresidual.surgery` does with them. *Works* means that the
smaller network has the outputs, the trained weights and the penalties of a functional network of
the same layers, called by hand without the block, and that statistics are those of the inputs of
the normalization, while nothing else changes. *Refused*: an error says why. The networks are in
`tests/reference/what_surgery_takes.py`, and a test compares this page with them.

| | {" | ".join(f"`{one.__name__}`" for one in COLUMNS)} |
|---|---|---|---|
"""


if __name__ == "__main__":
    PAGE.write_text(HEAD + "".join(f"{line_of(name)}\n" for name in CASES), encoding="utf-8")
