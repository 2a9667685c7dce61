"""Additions inside layers written by others: layers of the kinds that are met in the field."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from refusals import refused

import tfresidual as tfr

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(3, 6, 4)).astype("float32")


class Attention(layers.Layer):
    """Not an attention, but named like one; returns a cache that is not there."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.EinsumDense("btd,de->bte", (None, 4), name="inner")

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs, cache=None, training=None):
        return self.dense(inputs), cache


class Encoder(layers.Layer):
    """Two additions, or one of two branches side by side."""

    def __init__(self, name, is_parallel=False):
        super().__init__(name=name)
        self.is_parallel = is_parallel
        self.attention = Attention(name="own_attention")
        self.mlp = layers.Dense(4, name="own_mlp")
        self.norm = layers.LayerNormalization(name="norm")

    def build(self, shape):
        for layer in (self.attention, self.mlp, self.norm):
            layer.build(shape)

    def call(self, inputs):
        added, _ = self.attention(inputs)
        if self.is_parallel:
            return self.mlp(self.norm(inputs)) + added + inputs
        state = self.norm(inputs + added)
        return state + self.mlp(state)


class Positions(layers.Layer):
    """Reads nothing but the shape of its argument."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, inputs):
        return ops.broadcast_to(ops.convert_to_tensor(self.table), ops.shape(inputs))


class Mixing(layers.Layer):
    """Adds what no layer computed, and returns a constant beside the state."""

    def call(self, inputs):
        return inputs + ops.flip(inputs, axis=1), ops.zeros((0, 4))


class Reader(layers.Layer):
    """Adds to the state what it reads in another one."""

    def build(self, inputs_shape, other_shape):
        self.dense = layers.Dense(4)
        self.dense.build(other_shape)

    def call(self, inputs, other):
        return inputs + self.dense(inputs * ops.mean(other, axis=1, keepdims=True))


class Pooling(layers.Layer):
    """Computes its query from weights alone, and adds to it."""

    def build(self, shape):
        self.query = self.add_weight(shape=(1, 1, shape[-1]), name="query")

    def call(self, inputs):
        query = ops.tile(self.query, (ops.shape(inputs)[0], 1, 1))
        scores = ops.softmax(ops.matmul(inputs, ops.transpose(query, (0, 2, 1))), axis=1)
        found = ops.sum(scores * inputs, axis=1, keepdims=True)
        return found + ops.tanh(found)


def shared(state):
    layer = Encoder("layer")
    return layer(layer(state))


def encoder_and_decoder(source, state):
    for index in range(2):
        source = Encoder(f"encoder_{index}")(source)
    for index in range(2):
        state = Encoder(f"decoder_{index}")(state)
        state = Reader(name=f"reader_{index}")(state, source)
    return state


def beside_positions(state):
    positions = Positions(name="positions")(state)
    return layers.Concatenate()([Encoder("two")(Encoder("one")(state)), positions])


def early_and_late(state):
    states = [layers.Dense(4)(state)]
    for index in range(4):
        added = layers.Dense(4)(states[-1])
        states.append(layers.Add(name=f"add_{index}")([states[-1], added]))
    return layers.Concatenate()([states[-1], states[1]])


def without_layers(state):
    return Mixing(name="two")(Mixing(name="one")(state)[0])[0]


def two_trunks(one, other):
    return layers.Concatenate()([Encoder("a")(one), Encoder("b")(other)])


def parts_of(*names):
    return [f"{name}/{part}" for name in names for part in ("attention", "mlp")]


BESIDE = (
    "computed from the inputs beside the blocks, and never perturbed: Encoder (2: encoder_0, "
    "encoder_1); other blocks can be chosen with `blocks` or `expand_nested`"
)
OF_DECODER = [
    f"{kind}_{index}/{part}"
    for index in range(2)
    for kind, part in (("decoder", "attention"), ("decoder", "mlp"), ("reader", "mlp"))
]
# What is computed, which layers are opened, the names of the blocks, and a part of a note.
FOUND = {
    # The names of the layers around a branch do not count.
    "a layer": (Encoder("layer"), None, parts_of("layer"), "opened layers: Encoder"),
    "a shared layer": (
        shared, None, [f"layer/{p}{n}" for n in ("", " 2") for p in ("attention", "mlp")], "",
    ),
    "branches side by side": (Encoder("layer", True), None, ["layer/attention+mlp"], ""),
    # Their names do not depend on what else was built in the process.
    "additions without layers": (without_layers, None, ["one/addition", "two/addition"], ""),
    "positions around all blocks": (beside_positions, None, parts_of("one", "two"), ""),
    "an encoder and a decoder": (encoder_and_decoder, None, OF_DECODER, BESIDE),
    "the encoder chosen": (
        encoder_and_decoder, ["encoder_0", "encoder_1"], parts_of("encoder_0", "encoder_1"), "",
    ),
    "of two trunks of one length the last one": (
        two_trunks, None, parts_of("b"), "never perturbed: Encoder (1: a)",
    ),
    "what goes round the first blocks": (early_and_late, None, ["add_2", "add_3"], ""),
    "one that cannot be opened": (
        lambda state: Pooling(name="pooling")(Encoder("one")(state)), None, parts_of("one"),
        "the inside of these layers cannot be seen: Attention (1: own_attention), Pooling (1: pool",
    ),
    "names of inner layers": (
        lambda state: layers.Dense(2)(Encoder("one")(state)), ["one", "own_attention"],
        parts_of("one"), "",
    ),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name):
    function, opened, names, note = FOUND[name]
    count = 2 if function in (encoder_and_decoder, two_trunks) else 1
    inputs = [keras.Input((6, 4)) for _ in range(count)]
    model = keras.Model(inputs if count > 1 else inputs[0], function(*inputs))
    for weight in model.weights:
        weight.assign(RNG.normal(0, 0.3, weight.shape))
    given = [STATES] * count if count > 1 else STATES
    chain = tfr.chain(model, inputs=given, expand_nested=opened)
    expected = model.predict(given, verbose=0)
    np.testing.assert_allclose(chain(given), expected, rtol=1e-4, atol=1e-5)
    assert [block.name for block in chain.blocks] == names
    assert any(note in one for one in ("", *chain.notes))


def plain():
    """A model with two visible additions, and none that is hidden."""
    inputs = keras.Input((6,))
    state = layers.Dense(6, name="stem")(inputs)
    for number in range(2):
        state = layers.Add(name=f"add{number}")([state, layers.Dense(6, name=f"d{number}")(state)])
    return keras.Model(inputs, layers.Dense(2, name="out")(state), name="plain")


def hidden():
    inputs = keras.Input((6, 4))
    state = Positions(name="two")(Encoder("one")(inputs))
    return keras.Model(inputs, layers.Dense(2)(state), name="hidden")


def test_visible_additions_and_chosen_layers():
    def names_and_notes(**kwargs):
        chain = tfr.chain(plain(), **kwargs)
        return [block.name for block in chain.blocks], chain.notes

    both = ["add0", "add1"]
    for kwargs in ({}, {"expand_nested": True}, {"expand_nested": False}):
        assert names_and_notes(**kwargs) == (both, ())
    # Opened, a layer without an addition changes nothing.
    assert names_and_notes(expand_nested="d0") == (both, ())
    for blocks in (layers.Add, [layers.Add], lambda layer: layer.name.startswith("add")):
        assert names_and_notes(blocks=blocks)[0] == both
    names, (additions, chosen) = names_and_notes(blocks=["stem", "d0", "out"])
    assert names == ["stem"]
    assert additions.startswith("additions that are not blocks: Add (2: add0,")
    assert chosen.startswith("chosen layers that are no blocks: Dense (2: d0, out); ")
    assert len(names_and_notes(blocks="stem")[1]) == 1


OPENED = "of which these may hide additions: Encoder (1: one), Positions (1: two)"
REFUSED = [
    (plain, {"blocks": ["stem", "typo"]}, "Dense (4: stem, d0, d1, ...)", "called 'typo'"),
    (plain, {"blocks": layers.Conv2D}, "which are Add (2: add0, add1)", "Received: blocks=<class"),
    (
        plain,
        {"blocks": "stem", "expand_nested": "d0"},
        "not both",
        "expand_nested='d0'",
    ),
    (plain, {"expand_nested": "typo"}, "may hide additions: none", "no layer is called 'typo'"),
    (hidden, {"expand_nested": ["one", "typo"]}, OPENED, "no layer is called 'typo'"),
    (hidden, {"expand_nested": layers.Conv2D}, OPENED, "Received: expand_nested=<class"),
    (plain, {"expand_nested": 3}, "or True or False", "Received: expand_nested=3"),
    (plain, {"blocks": []}, "in a list", "Received: blocks=[]"),
    (plain, {"blocks": "out"}, "return the shape they take", "Received: blocks='out' for plain"),
]


@pytest.mark.parametrize(("build", "kwargs", "must", "received"), REFUSED)
def test_layers_that_cannot_be_chosen(build, kwargs, must, received):
    with refused(*kwargs) as caught:
        tfr.chain(build(), **kwargs)
    assert must in str(caught.value) and received in str(caught.value)


class Sized(layers.Layer):
    """Adds a branch that must know how many positions there are."""

    def call(self, inputs):
        return inputs + ops.tanh(inputs) * ops.ones(inputs.shape[1:])

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def test_layers_that_need_a_size_ask_for_inputs():
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(Sized()(Sized()(inputs))))
    with refused("inputs"):
        tfr.chain(model, expand_nested=True)
    chain = tfr.chain(model, inputs=np.zeros((1, 3, 4), "float32"))
    assert len(chain.blocks) == 2 and chain.notes[-1].startswith("opened layers")


class Gated(layers.Layer):
    """Adds a branch times a gate, as it is or after a function of it."""

    def __init__(self, function=None, **kwargs):
        super().__init__(**kwargs)
        self.function = function
        self.dense = layers.Dense(4, dtype=self.dtype_policy)

    def build(self, shape):
        self.gate = self.add_weight(shape=(4,), initializer="zeros", name="gate")
        self.dense.build(shape)

    def call(self, inputs):
        gate = self.gate if self.function is None else self.function(self.gate)
        return inputs + gate * self.dense(inputs)


def gated(function, dtype):
    inputs = keras.Input((6, 4))
    state = layers.Dense(4, dtype=dtype)(inputs)
    for index in range(2):
        state = Gated(function, dtype=dtype, name=f"gated{index}")(state)
    outputs = layers.Dense(3, dtype="float32")(layers.GlobalAveragePooling1D(dtype=dtype)(state))
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_numbers_from_weights_keep_a_layer_closed(dtype):
    """However small the difference is as long as the gate is near its initial value."""
    chain = tfr.chain(gated(ops.tanh, dtype))
    assert [block.name for block in chain.blocks] == ["gated0", "gated1"]
    assert "layers are whole blocks, not opened" in str(chain)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_an_opened_layer_casts_its_weights_as_before(dtype):
    model = gated(None, dtype)
    chain = tfr.chain(model)
    assert len(chain.blocks) == 2
    assert "opened layers: Gated" in str(chain)
    for weight in model.weights:
        # The weights of a gate are numbers that low precision cannot hold.
        weight.assign(RNG.normal(size=weight.shape))
    np.testing.assert_array_equal(chain(STATES), model(STATES, training=False))
    pairs, _ = chain.walk(chain.stem(STATES))
    assert {state.dtype.name for pair in pairs for state in pair} == {dtype.removeprefix("mixed_")}
