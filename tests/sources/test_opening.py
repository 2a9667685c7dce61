"""Additions inside layers written by others: layers of the kinds that are met in the field."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfresidual as tfr
from tfresidual.sources.graph import graph_of
from tfresidual.sources.reasons import said

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


class EncoderWithAttention(layers.Layer):
    """Two additions, or one of two branches side by side."""

    def __init__(self, is_parallel=False, **kwargs):
        super().__init__(**kwargs)
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

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(4)

    def build(self, inputs_shape, other_shape):
        self.dense.build(other_shape)

    def call(self, inputs, other):
        return inputs + self.dense(inputs * ops.mean(other, axis=1, keepdims=True))


class Shaped(layers.Layer):
    """Has a method for its output that takes fewer arguments than its call."""

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs, training=None):
        return 2 * inputs


def chain_of(outputs, *inputs, **kwargs):
    """The chain of a model, compared with the model."""
    model = keras.Model(inputs[0] if len(inputs) == 1 else list(inputs), outputs)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    given = STATES if len(inputs) == 1 else [STATES] * len(inputs)
    chain = tfr.chain(model, inputs=given, **kwargs)
    expected = model.predict(given, verbose=0)
    np.testing.assert_allclose(chain(given), expected, rtol=1e-4, atol=1e-5)
    return chain


def names_of(chain):
    return [block.name for block in chain.blocks]


def test_names_are_those_of_what_is_inside():
    """The names of the layers around a branch do not count."""
    inputs = keras.Input((6, 4))
    chain = chain_of(EncoderWithAttention(name="layer")(inputs), inputs)
    assert names_of(chain) == ["layer/attention", "layer/mlp"]


def test_a_shared_layer_has_numbers():
    inputs = keras.Input((6, 4))
    layer = EncoderWithAttention(name="layer")
    chain = chain_of(layer(layer(inputs)), inputs)
    assert names_of(chain) == [
        "layer/attention",
        "layer/mlp",
        "layer/attention 2",
        "layer/mlp 2",
    ]


def test_branches_side_by_side():
    inputs = keras.Input((6, 4))
    chain = chain_of(EncoderWithAttention(is_parallel=True, name="layer")(inputs), inputs)
    assert names_of(chain) == ["layer/attention+mlp"]


def test_additions_without_layers():
    """Their names do not depend on what else was built in the process."""
    inputs = keras.Input((6, 4))
    state, _ = Mixing(name="one")(inputs)
    state, _ = Mixing(name="two")(state)
    assert names_of(chain_of(state, inputs)) == ["one/addition", "two/addition"]


def test_what_reads_only_shapes_goes_round_no_block():
    inputs = keras.Input((6, 4))
    positions = Positions(name="positions")(inputs)
    state = EncoderWithAttention(name="one")(inputs)
    state = EncoderWithAttention(name="two")(state)
    chain = chain_of(layers.Concatenate()([state, positions]), inputs)
    assert names_of(chain) == ["one/attention", "one/mlp", "two/attention", "two/mlp"]


def encoder_and_decoder():
    source, target = keras.Input((6, 4)), keras.Input((6, 4))
    encoder = [EncoderWithAttention(name=f"encoder_{index}") for index in range(2)]
    other = source
    for layer in encoder:
        other = layer(other)
    state = target
    for index in range(2):
        state = EncoderWithAttention(name=f"decoder_{index}")(state)
        state = Reader(name=f"reader_{index}")(state, other)
    return encoder, state, source, target


def test_an_encoder_is_context_of_the_decoder():
    _, *parts = encoder_and_decoder()
    chain = chain_of(*parts)
    kinds = [
        f"{kind}_{index}/{part}"
        for index in range(2)
        for kind, part in (("decoder", "attention"), ("decoder", "mlp"), ("reader", "mlp"))
    ]
    assert names_of(chain) == kinds
    (note,) = [note for note in chain.notes if "never perturbed" in note]
    assert note == (
        "computed from the inputs beside the blocks, and never perturbed: EncoderWithAttention "
        "(2: encoder_0, encoder_1); other blocks can be chosen with `blocks` or `open`"
    )


def test_other_blocks_can_be_chosen():
    encoder, *parts = encoder_and_decoder()
    chain = chain_of(*parts, open=[layer.name for layer in encoder])
    assert [name.partition("/")[0] for name in names_of(chain)] == ["encoder_0"] * 2 + [
        "encoder_1"
    ] * 2


def test_of_two_trunks_of_one_length_the_last_one():
    _, state, source, target = encoder_and_decoder()
    del state
    ends = [
        EncoderWithAttention(name=name)(tensor) for name, tensor in (("a", source), ("b", target))
    ]
    chain = chain_of(layers.Concatenate()(ends), source, target)
    assert names_of(chain) == ["b/attention", "b/mlp"]
    assert any("never perturbed: EncoderWithAttention (1: a)" in note for note in chain.notes)


def test_what_goes_round_the_first_blocks_leaves_the_others():
    inputs = keras.Input((6, 4))
    state = layers.Dense(4)(inputs)
    state = early = layers.Add(name="add_0")([state, layers.Dense(4)(state)])
    for index in range(1, 4):
        state = layers.Add(name=f"add_{index}")([state, layers.Dense(4)(state)])
    chain = chain_of(layers.Concatenate()([state, early]), inputs)
    assert names_of(chain) == ["add_2", "add_3"]


class Pooling(layers.Layer):
    """Computes its query from weights alone, and adds to it."""

    def build(self, shape):
        self.query = self.add_weight(shape=(1, 1, shape[-1]), name="query")

    def call(self, inputs):
        query = ops.tile(self.query, (ops.shape(inputs)[0], 1, 1))
        scores = ops.softmax(ops.matmul(inputs, ops.transpose(query, (0, 2, 1))), axis=1)
        found = ops.sum(scores * inputs, axis=1, keepdims=True)
        return found + ops.tanh(found)


def test_what_cannot_be_opened_leaves_the_others_open():
    inputs = keras.Input((6, 4))
    state = EncoderWithAttention(name="one")(inputs)
    chain = chain_of(Pooling(name="pooling")(state), inputs)
    assert names_of(chain) == ["one/attention", "one/mlp"]
    (note,) = [note for note in chain.notes if "opened layers" in note]
    assert "others are not opened: they compute numbers from weights alone" in note


def test_graphs_of_layers_and_models_that_are_called_in_other_ways():
    inputs = keras.Input((None, 4))
    inner = keras.Model(inputs, Shaped(name="shaped")(inputs))
    outer = keras.Input((None, 4), name="outer")
    model = keras.Model(outer, layers.Dense(2, name="end")(inner(inputs=outer)))
    given = keras.KerasTensor((None, 5, 4))
    graph = graph_of(model, given)
    kinds = [node.operation.name for node in graph.nodes if "entry" not in node.operation.name]
    assert kinds == ["shaped", "end"]
    assert graph.output.shape == (None, 5, 2)
    with pytest.raises(ValueError, match=r"`inputs` must be inputs that .* accepts.*Received: inp"):
        graph_of(model, keras.KerasTensor((None, 5, 3)))


def plain():
    """A model with two visible additions, and none that is hidden."""
    inputs = keras.Input((6,))
    state = layers.Dense(6, name="stem")(inputs)
    for number in range(2):
        state = layers.Add(name=f"add{number}")([state, layers.Dense(6, name=f"d{number}")(state)])
    return keras.Model(inputs, layers.Dense(2, name="out")(state), name="plain")


def hidden():
    inputs = keras.Input((6, 4))
    state = EncoderWithAttention(name="one")(inputs)
    return keras.Model(inputs, layers.Dense(2)(Positions(name="two")(state)), name="hidden")


def test_without_layers_to_open_the_visible_additions_are_blocks():
    for kwargs in ({}, {"open": True}, {"open": False}):
        chain = tfr.chain(plain(), **kwargs)
        assert (names_of(chain), chain.notes) == (["add0", "add1"], ())
    # Opened, a layer without an addition changes nothing.
    chain = tfr.chain(plain(), open="d0")
    assert names_of(chain) == ["add0", "add1"]
    assert chain.notes == ("no layers are opened: no block was found in them",)


@pytest.mark.parametrize(
    ("build", "kwargs", "message"),
    [
        (
            plain,
            {"blocks": ["stem", "typo"]},
            r"`blocks` must choose layers of plain, which are Add \(2: add0, add1\), Dense \(4: "
            r"stem, d0, d1, \.\.\.\)\. Received: blocks=\['stem', 'typo'\], where no layer is "
            r"called 'typo'$",
        ),
        (plain, {"blocks": layers.Conv2D}, r"must choose layers.*Received: blocks=<class"),
        (
            plain,
            {"blocks": "stem", "open": "d0"},
            r"`blocks` and `open` must not both be given.*Received: blocks='stem', open='d0'",
        ),
        (
            plain,
            {"open": "typo"},
            r"`open` must choose layers of plain, of which these may hide additions: none\. "
            r"Received: open='typo', where no layer is called 'typo'$",
        ),
        (
            hidden,
            {"open": ["one", "typo"]},
            r"additions: EncoderWithAttention \(1: one\), Positions \(1: two\)\. "
            r"Received: open=\['one', 'typo'\], where no layer is called 'typo'$",
        ),
        (
            hidden,
            {"open": layers.Conv2D},
            r"EncoderWithAttention \(1: one\), Positions \(1: two\)\. Received: open=<class",
        ),
        (plain, {"open": 3}, r"`open` must be .*or True or False\. Received: open=3"),
    ],
)
def test_layers_that_cannot_be_chosen(build, kwargs, message):
    with pytest.raises(ValueError, match=message):
        tfr.chain(build(), **kwargs)


def test_names_of_inner_layers_can_be_chosen():
    chain = tfr.chain(hidden(), open=["one", "own_attention"])
    assert names_of(chain) == ["one/attention", "one/mlp"]


def test_chosen_layers_that_are_no_blocks_are_noted():
    chain = tfr.chain(plain(), blocks=["stem", "d0", "out"])
    assert names_of(chain) == ["stem"]
    additions, chosen = chain.notes
    # They are on the trunk.
    assert additions.startswith("additions that are not blocks themselves: on the trunk (2: add0,")
    assert chosen == (
        "chosen layers that are no blocks: Dense (2: d0, out); they change the shape or are off "
        "the trunk"
    )
    assert len(tfr.chain(plain(), blocks="stem").notes) == 1


def test_errors_of_keras_are_told_in_one_line():
    text = "Exception encountered when calling A.call().\n\n\x1b[1mwrong\x1b[0m\n\nArguments: B"
    assert said(ValueError(text)) == "wrong"
    assert said(ValueError()) == "ValueError"
    # The reason comes after a colon.
    text = "Could not infer it. Error encountered:\n\n\x1b[1mwrong\x1b[0m\n\nArguments: B"
    assert said(ValueError(text)) == "wrong"
    assert said(ValueError("Shapes differ:\n\n(2,), (3,)\nmore")) == "Shapes differ: (2,), (3,)"
    assert said(ValueError("Nothing follows:")) == "Nothing follows:"


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
    assert names_of(chain) == ["gated0", "gated1"]
    assert "layers are whole blocks, not opened: they compute numbers from weights" in str(chain)


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
