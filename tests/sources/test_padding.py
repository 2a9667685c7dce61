"""Which positions are padding: by an argument, a mask of Keras or a name; and the notes on it."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing.positions import VALID_POSITIONS

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

WIDTH = 8
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 20, (6, 7)).astype("int32")
IDS[1::2, 5:] = 0
VALID = IDS != 0
ALL = np.ones_like(VALID)
UNKNOWN = (
    "padding is not known, so all positions count: `padding` can name an input that is nonzero "
    "where a position is valid"
)
NONE = "padding: none, all positions count"
OF_KERAS = "padding: where the mask that Keras attaches to the states is False"


class Encoder(layers.Layer):
    """Attention and a dense layer, whose additions are hidden."""

    def build(self, inputs_shape, allowed_shape):
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.attention.build(inputs_shape, inputs_shape)
        self.dense = layers.Dense(inputs_shape[-1], "tanh", name="dense")
        self.dense.build(inputs_shape)

    def call(self, inputs, allowed):
        state = inputs + self.attention(inputs, inputs, attention_mask=allowed)
        return state + self.dense(state)


class Decoder(layers.Layer):
    """Attention of one sequence to another."""

    def build(self, inputs_shape, other_shape):
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.attention.build(inputs_shape, other_shape)

    def call(self, inputs, other):
        return inputs + self.attention(inputs, other)


def attended(state, mask, is_hidden=False):
    """Two blocks, or layers with two blocks each."""
    mask = ops.expand_dims(mask, 1)
    for number in range(2):
        if is_hidden:
            state = Encoder(name=f"layer{number}")(state, mask)
        else:
            branch = layers.MultiHeadAttention(2, 4)(state, state, attention_mask=mask)
            state = layers.Add()([state, branch])
    return state


def transformer(*names, is_hidden=False, mask_of=None, mask_zero=False):
    """A network of ids, with masks as further inputs, the last of which attention takes.

    Without masks, that is where ids are not 0. `mask_zero` makes a mask of Keras, too.
    """
    keras.utils.set_random_seed(0)
    ids = keras.Input((7,), dtype="int32", name="ids")
    masks = [keras.Input((7,), dtype="bool", name=name) for name in names]
    mask = [ops.not_equal(ids, 0), *masks][-1]
    state = layers.Embedding(20, WIDTH, mask_zero=mask_zero)(ids)
    state = attended(state, mask_of(mask) if mask_of else mask, is_hidden)
    inputs = {"ids": ids} | dict(zip(names, masks, strict=True)) if names else ids
    return keras.Model(inputs, layers.Dense(3)(ops.mean(state, axis=1)), name="net")


def of_two_sequences(*names):
    """An encoder as context of its decoder, or both as blocks."""
    inputs = {name: keras.Input((7,), dtype="int32", name=name) for name in names}
    source, mask, target = inputs.values()
    state, other = (layers.Embedding(20, WIDTH)(ids) for ids in (target, source))
    mask = ops.cast(mask, "bool")
    if names[0] == "ids":
        state = Decoder()(state, attended(other, mask, is_hidden=True))
    else:
        for _ in range(2):
            seen = ops.expand_dims(mask, 1)
            branch = layers.MultiHeadAttention(2, 4)(state, other, attention_mask=seen)
            state = layers.Add()([state, branch])
    return keras.Model(inputs, layers.Dense(3)(state))


class Subclassed(keras.Model):
    def __init__(self, take):
        super().__init__(name="net")
        self.take = take
        self.embedding = layers.Embedding(20, WIDTH)
        self.encoder = Encoder(name="layer0")
        self.last = layers.Dense(3)

    def call(self, inputs):
        ids, mask = self.take(inputs)
        mask = ops.cast(mask, "bool")[:, None, :]
        return self.last(ops.mean(self.encoder(self.embedding(ids), mask), axis=1))


def named(name):
    return f"padding: input {name!r}, where it is 0"


def opposite(mask):
    return ops.logical_not(mask)


def at(inputs, path):
    for key in path:
        inputs = inputs[key]
    return inputs


def taking(ids, mask):
    """A subclassed model of inputs in a structure."""
    return Subclassed(lambda inputs: (at(inputs, ids), ops.not_equal(at(inputs, mask), 0)))


BOTH, WHOLE = {"ids": IDS, "valid": VALID}, {"blocks": Encoder}
TWO = {"ids": IDS, "padding_mask": ALL, "valid": VALID}
# By name: the model, its inputs, options of `tfr.chain`, which positions are valid, and the note.
KNOWN = {
    "padding_mask": (
        lambda: transformer("padding_mask"), {"ids": IDS, "padding_mask": VALID}, {}, VALID,
        named("padding_mask"),
    ),
    "attention_mask": (
        lambda: transformer("attention_mask"), {"ids": IDS, "attention_mask": VALID}, {}, VALID,
        named("attention_mask"),
    ),
    "mask": (lambda: transformer("mask"), {"ids": IDS, "mask": VALID}, {}, None, UNKNOWN),
    "a part of a name": (
        lambda: transformer("my_padding_mask"), {"ids": IDS, "my_padding_mask": VALID}, {}, None,
        UNKNOWN,
    ),
    "the opposite of a mask": (
        lambda: transformer("key_padding_mask", mask_of=opposite),
        {"ids": IDS, "key_padding_mask": ~VALID}, {}, None, UNKNOWN,
    ),
    "a mask that the model computes": (transformer, IDS, {}, None, UNKNOWN),
    "the ids themselves": (transformer, IDS, {"padding": "ids"}, VALID, named("ids")),
    "two, by default": (
        lambda: transformer("padding_mask", "valid"), TWO, {}, ALL, named("padding_mask"),
    ),
    "two, by name": (
        lambda: transformer("padding_mask", "valid"), TWO, {"padding": "valid"}, VALID,
        named("valid"),
    ),
    "two, none": (
        lambda: transformer("padding_mask", "valid"), TWO, {"padding": False}, None, NONE,
    ),
    "hidden additions": (
        lambda: transformer("valid", is_hidden=True), BOTH, {"padding": "valid"}, VALID,
        named("valid"),
    ),
    "whole layers": (
        lambda: transformer("valid", is_hidden=True), BOTH, WHOLE | {"padding": "valid"}, VALID,
        named("valid"),
    ),
    "a mask of Keras comes before names": (
        lambda: transformer("padding_mask", mask_zero=True), {"ids": IDS, "padding_mask": ALL},
        {}, VALID, OF_KERAS,
    ),
    "a name before the mask of Keras": (
        lambda: transformer("padding_mask", mask_zero=True), {"ids": IDS, "padding_mask": ALL},
        {"padding": "padding_mask"}, ALL, named("padding_mask"),
    ),
    # Its context holds the input under another name.
    "an input with the name of valid positions": (
        lambda: transformer(VALID_POSITIONS, mask_of=opposite),
        {"ids": IDS, VALID_POSITIONS: ~VALID}, {"padding": "ids"}, VALID, named("ids"),
    ),
    "the encoder of a decoder": (
        lambda: of_two_sequences("encoder_ids", "encoder_padding_mask", "decoder_ids"),
        dict.fromkeys(("encoder_ids", "encoder_padding_mask", "decoder_ids"), IDS), {}, None,
        UNKNOWN,
    ),
    "keys of a subclassed model": (
        lambda: taking(["ids"], ["padding_mask"]), {"ids": IDS, "padding_mask": VALID}, WHOLE,
        VALID, named("padding_mask"),
    ),
    "a key": (
        lambda: taking(["ids"], ["valid"]), BOTH, WHOLE | {"padding": "valid"}, VALID,
        named("valid"),
    ),
    "an unknown key": (lambda: taking(["ids"], ["valid"]), BOTH, WHOLE, None, UNKNOWN),
    "a key in a structure": (
        lambda: taking(["a", "ids"], ["b"]), {"a": {"ids": IDS}, "b": VALID},
        WHOLE | {"padding": "b"}, VALID, named("b"),
    ),
    "keys": (
        lambda: taking(["b"], ["a", "m"]), {"a": {"m": VALID}, "b": IDS},
        WHOLE | {"padding": "a/m"}, VALID, named("a/m"),
    ),
    "a place": (
        lambda: taking([0], [1]), (IDS, VALID), WHOLE | {"padding": "1"}, VALID, named("1"),
    ),
    "a single input": (
        lambda: taking([], ()), IDS, WHOLE | {"padding": "images"}, VALID, named("images"),
    ),
}  # fmt: skip


def valid_of(chain, inputs):
    """Which positions are not padding, as the chain knows it; `None` if it does not."""
    found = chain.with_context(inputs).known.get(VALID_POSITIONS)
    return None if found is None else np.asarray(found)


def notes_of(chain):
    return [note for note in chain.notes if note.startswith("padding")]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_padding(name):
    build, inputs, kwargs, valid, note = KNOWN[name]
    model = build()
    chain = tfr.chain(model, inputs=inputs if isinstance(model, Subclassed) else None, **kwargs)
    np.testing.assert_array_equal(valid_of(chain, inputs), valid)
    assert notes_of(chain) == [note]
    np.testing.assert_allclose(chain(inputs), model(inputs), rtol=1e-4, atol=1e-5)
    count = {"hidden additions": 4, "keys of a subclassed model": 1}.get(name)
    assert count in (None, len(chain.blocks))


class Positions(layers.Layer):
    """Adds what belongs to a position, of which it knows few."""

    def build(self, shape):
        self.table = self.add_weight(shape=(9, shape[-1]), name="table")

    def call(self, state):
        return state + self.table[: ops.shape(state)[1]]

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize("is_hidden", [False, True])
def test_inputs_of_any_length_are_known_before_a_layer_that_takes_few_positions(is_hidden):
    ids, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("ids", "padding_mask"))
    state = Positions()(layers.Embedding(20, WIDTH)(ids))
    state = attended(state, ops.cast(mask, "bool"), is_hidden)
    chain = tfr.chain(keras.Model({"ids": ids, "padding_mask": mask}, layers.Dense(3)(state)))
    np.testing.assert_array_equal(valid_of(chain, {"ids": IDS, "padding_mask": VALID}), VALID)
    assert chain.outputs_at_positions


def test_outputs_at_other_positions():
    """Padding leaves out labels if there are as many outputs as positions, or as declared."""
    ids = keras.Input((7,), dtype="int32")
    state = layers.Embedding(20, WIDTH, mask_zero=True)(ids)
    state = layers.Add()([state, layers.Dense(WIDTH)(state)])
    for head, is_kept in ((layers.Dense(3), True), (layers.Conv1D(3, 2), False)):
        model = keras.Model(ids, head(state))
        assert tfr.chain(model).outputs_at_positions == is_kept
        for positions in (True, False):
            chain = tfr.chain(model, positions=positions)
            assert chain.outputs_at_positions == positions


NO_INPUT = [
    (True, "Received: padding=True"),
    (3, "Received: padding=3"),
    ("ids ", "one of 'ids', 'valid', or False. Received: padding='ids '"),
    ("one", "'one' of shape ('images', 3) for states of shape ('images', 7, 8)"),
]


@pytest.mark.parametrize(("padding", "message"), NO_INPUT)
def test_padding_that_is_no_input(padding, message):
    model, kwargs = transformer("valid"), {"padding": padding}
    if padding == "one":
        model = taking(["ids"], ["valid"])
        kwargs |= {"inputs": BOTH | {"one": np.zeros((6, 3), "float32")}, "blocks": Encoder}
    with refused("padding") as caught:
        tfr.chain(model, **kwargs)
    assert message in str(caught.value)


def attending(state):
    return layers.MultiHeadAttention(2, 4)(state, state)


MASKED = {
    "the mask reaches the outputs": lambda state: attending(layers.LayerNormalization()(state)),
    # What it attends to loses its mask.
    "the attention takes the mask away": attending,
    "a function takes the mask away": lambda state: layers.Dense(WIDTH)(ops.tanh(state)),
}


@pytest.mark.parametrize("name", MASKED)
def test_labels_under_a_mask_count_as_in_fit(name):
    """The loss of Keras counts what is predicted there if the mask does not reach the outputs."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((7,), dtype="int32")
    state = layers.Embedding(20, WIDTH, mask_zero=True)(ids)
    for _ in range(2):
        state = layers.Add()([state, MASKED[name](state)])
    net = keras.Model(ids, layers.Dense(3)(state))
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # In Keras, every position counts alike; here, every image does: all are of one length.
    data = IDS[1::2], np.random.default_rng(0).integers(0, 3, IDS[1::2].shape)
    measured = probes.lens(net, data)["cross_entropy"].iloc[-1]
    np.testing.assert_allclose(measured, net.evaluate(*data, verbose=0), rtol=1e-5)
