"""Which positions are padding: by an argument, a mask of Keras or a name; and the notes on it."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.routing.chain import VALID_POSITIONS

pytestmark = [
    pytest.mark.eager,
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask"),
]

WIDTH = 8
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 20, (6, 7)).astype("int32")
IDS[1::2, 5:] = 0
VALID = IDS != 0
UNKNOWN = (
    "padding is not known, so all positions count: `padding` can name an input that is nonzero "
    "where a position is valid"
)


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


def transformer(names, is_hidden=False, mask_of=None, mask_zero=False):
    """A network with an input of ids, and masks as further inputs.

    Args:
        names: the names of the masks.
        is_hidden: whether the additions are inside layers.
        mask_of: function of the ids and a list of the masks to what attention takes; by default,
            the last mask or, without masks, where ids are not 0.
        mask_zero: whether the embedding makes a mask of Keras, too.
    """
    keras.utils.set_random_seed(0)
    ids = keras.Input((7,), dtype="int32", name="ids")
    masks = [keras.Input((7,), dtype="bool", name=name) for name in names]
    mask = mask_of(ids, masks) if mask_of else [ops.not_equal(ids, 0), *masks][-1]
    mask = ops.expand_dims(mask, 1)
    state = layers.Embedding(20, WIDTH, mask_zero=mask_zero)(ids)
    for number in range(2):
        if is_hidden:
            state = Encoder(name=f"layer{number}")(state, mask)
        else:
            branch = layers.MultiHeadAttention(2, 4)(state, state, attention_mask=mask)
            state = layers.Add()([state, branch])
    inputs = {"ids": ids} | dict(zip(names, masks, strict=True)) if names else ids
    return keras.Model(inputs, layers.Dense(3)(ops.mean(state, axis=1)), name="net")


class Subclassed(keras.Model):
    def __init__(self, take=lambda inputs: (inputs["ids"], inputs["valid"])):
        super().__init__(name="net")
        self.take = take
        self.embedding = layers.Embedding(20, WIDTH)
        self.encoder = Encoder(name="layer0")
        self.last = layers.Dense(3)

    def call(self, inputs):
        ids, mask = self.take(inputs)
        mask = ops.cast(mask, "bool")[:, None, :]
        return self.last(ops.mean(self.encoder(self.embedding(ids), mask), axis=1))


def valid_of(chain, inputs):
    """Which positions are not padding, as the chain knows it; `None` if it does not."""
    found = chain.given(inputs).known.get(VALID_POSITIONS)
    return None if found is None else np.asarray(found)


def notes_of(chain):
    return [note for note in chain.notes if note.startswith("padding")]


@pytest.mark.parametrize("name", ["padding_mask", "attention_mask", "mask", "my_padding_mask"])
def test_inputs_are_known_by_their_whole_name(name):
    chain = tfr.chain(transformer([name]))
    valid = valid_of(chain, {"ids": IDS, name: VALID})
    if name in ("padding_mask", "attention_mask"):
        np.testing.assert_array_equal(valid, VALID)
        assert notes_of(chain) == [f"padding: input '{name}', where it is 0"]
    else:
        assert valid is None
        assert notes_of(chain) == [UNKNOWN]


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
    seen = ops.cast(mask, "bool")[:, None, :]
    for _ in range(2):
        if is_hidden:
            state = Encoder()(state, seen)
        else:
            branch = layers.MultiHeadAttention(2, 4)(state, state, attention_mask=seen)
            state = layers.Add()([state, branch])
    inputs = {"ids": ids, "padding_mask": mask}
    chain = tfr.chain(keras.Model(inputs, layers.Dense(3)(state)))
    np.testing.assert_array_equal(valid_of(chain, {"ids": IDS, "padding_mask": VALID}), VALID)
    assert chain.outputs_at_positions


class Decoder(layers.Layer):
    """Attention of one sequence to another."""

    def build(self, inputs_shape, other_shape):
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.attention.build(inputs_shape, other_shape)

    def call(self, inputs, other):
        return inputs + self.attention(inputs, other)


def test_a_layer_that_reads_the_state_has_other_positions():
    names = ("ids", "padding_mask", "decoder_ids")
    ids, mask, target = (keras.Input((7,), dtype="int32", name=name) for name in names)
    state = layers.Embedding(20, WIDTH)(ids)
    for _ in range(2):
        state = Encoder()(state, ops.cast(mask, "bool")[:, None, :])
    state = Decoder()(layers.Embedding(20, WIDTH)(target), state)
    inputs = {"ids": ids, "padding_mask": mask, "decoder_ids": target}
    model = keras.Model(inputs, layers.Dense(3)(state))
    chain = tfr.chain(model, blocks=(Encoder, Decoder))
    assert len(chain.blocks) == 3
    assert not chain.outputs_at_positions
    assert valid_of(chain, {"ids": IDS, "padding_mask": VALID, "decoder_ids": IDS}) is None


def test_a_mask_of_padding_is_not_taken_for_its_opposite():
    model = transformer(["key_padding_mask"], mask_of=lambda _, masks: ~masks[0])
    chain = tfr.chain(model)
    assert valid_of(chain, {"ids": IDS, "key_padding_mask": ~VALID}) is None
    assert notes_of(chain) == [UNKNOWN]


def test_a_mask_that_the_model_computes_is_not_known():
    model = transformer([])
    chain = tfr.chain(model)
    assert valid_of(chain, IDS) is None
    assert notes_of(chain) == [UNKNOWN]
    # The ids themselves say it.
    chain = tfr.chain(model, padding="ids")
    np.testing.assert_array_equal(valid_of(chain, IDS), VALID)
    assert notes_of(chain) == ["padding: input 'ids', where it is 0"]


def test_padding_that_is_named_does_not_count():
    chain = tfr.chain(transformer([]), padding="ids")
    frame = probes.perturbation(chain, (IDS, np.zeros(6, int)))
    given = chain.given(IDS)
    pairs, _ = given.walk(given.stem(IDS))
    changes = [np.where(VALID[..., None], after - before, 0) for before, after in pairs]
    norms = [np.mean(np.sqrt((change**2).sum(axis=(1, 2)))) for change in changes]
    np.testing.assert_allclose(frame["perturbation"], norms, rtol=1e-5)


def test_an_argument_names_the_mask():
    model = transformer(["padding_mask", "valid"])
    inputs = {"ids": IDS, "padding_mask": np.ones_like(VALID), "valid": VALID}
    for padding, expected, note in (
        (None, inputs["padding_mask"], "padding: input 'padding_mask', where it is 0"),
        ("valid", VALID, "padding: input 'valid', where it is 0"),
        (False, None, "padding: none, all positions count"),
    ):
        chain = tfr.chain(model, padding=padding)
        assert notes_of(chain) == [note]
        found = valid_of(chain, inputs)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(chain(inputs), model(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kwargs", "blocks"), [({}, 4), ({"blocks": Encoder}, 2)])
def test_an_argument_and_hidden_additions(kwargs, blocks):
    model = transformer(["valid"], is_hidden=True)
    chain = tfr.chain(model, padding="valid", **kwargs)
    assert len(chain.blocks) == blocks
    np.testing.assert_array_equal(valid_of(chain, {"ids": IDS, "valid": VALID}), VALID)


@pytest.mark.parametrize(
    ("take", "given", "padding"),
    [
        (lambda x: (x["ids"], x["valid"]), {"ids": IDS, "valid": VALID}, "valid"),
        (lambda x: (x["a"]["ids"], x["b"]), {"a": {"ids": IDS}, "b": VALID}, "b"),
        (lambda x: (x["b"], x["a"]["m"]), {"a": {"m": VALID}, "b": IDS}, "a/m"),
        (lambda x: x, (IDS, VALID), "1"),
        (lambda x: (x, ops.not_equal(x, 0)), IDS, "images"),
    ],
)
def test_inputs_of_a_subclassed_model_have_paths(take, given, padding):
    model = Subclassed(take)
    chain = tfr.chain(model, inputs=given, blocks=Encoder)
    assert (valid_of(chain, given), notes_of(chain)) == (None, [UNKNOWN])
    chain = tfr.chain(model, inputs=given, blocks=Encoder, padding=padding)
    np.testing.assert_array_equal(valid_of(chain, given), VALID)
    assert notes_of(chain) == [f"padding: input '{padding}', where it is 0"]


def test_keys_of_a_subclassed_model_are_names():
    given = {"ids": IDS, "padding_mask": VALID}
    model = Subclassed(lambda x: (x["ids"], x["padding_mask"]))
    chain = tfr.chain(model, inputs=given, blocks=Encoder)
    np.testing.assert_array_equal(valid_of(chain, given), VALID)


def test_a_mask_of_keras_comes_before_names():
    model = transformer(["padding_mask"], mask_zero=True)
    given = {"ids": IDS, "padding_mask": np.ones_like(VALID)}
    chain = tfr.chain(model)
    np.testing.assert_array_equal(valid_of(chain, given), VALID)
    (note,) = notes_of(chain)
    assert note == "padding: where the mask that Keras attaches to the states is False"
    assert valid_of(tfr.chain(model, padding="padding_mask"), given).all()


def test_the_padding_of_an_encoder_is_not_that_of_its_decoder():
    names = ("encoder_ids", "encoder_padding_mask", "decoder_ids")
    source, mask, target = (keras.Input((7,), dtype="int32", name=name) for name in names)
    other = layers.Embedding(20, WIDTH)(source)
    state = layers.Embedding(20, WIDTH)(target)
    seen = ops.cast(mask, "bool")[:, None, :]
    for _ in range(2):
        branch = layers.MultiHeadAttention(2, 4)(state, other, attention_mask=seen)
        state = layers.Add()([state, branch])
    inputs = dict(zip(names, (source, mask, target), strict=True))
    chain = tfr.chain(keras.Model(inputs, layers.Dense(3)(state)))
    assert valid_of(chain, dict.fromkeys(names, IDS)) is None
    assert notes_of(chain) == [UNKNOWN]


def test_states_without_positions_have_no_padding():
    images = keras.Input((6,))
    state = layers.Dense(4)(images)
    early = state = layers.Add()([state, layers.Dense(4)(state)])
    for _ in range(2):
        state = layers.Add()([state, layers.Dense(4)(layers.Concatenate()([state, early]))])
    model = keras.Model(images, layers.Dense(2)(state))
    for padding in (None, False):
        assert notes_of(tfr.chain(model, padding=padding)) == []


def test_an_input_with_the_name_of_the_valid_positions_is_not_one():
    """The context holds the input under another name."""
    model = transformer([VALID_POSITIONS], mask_of=lambda _, masks: ~masks[0])
    inputs = {"ids": IDS, VALID_POSITIONS: ~VALID}
    chain = tfr.chain(model, open=False)
    assert valid_of(chain, inputs) is None
    chain = tfr.chain(model, padding="ids")
    np.testing.assert_array_equal(valid_of(chain, inputs), VALID)
    np.testing.assert_allclose(chain(inputs), model(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        (True, r"`padding` must be the name of an input .*Received: padding=True"),
        (3, r"`padding` must be the name of an input .*Received: padding=3"),
        ("ids ", r"one of 'ids', 'valid', or False. Received: padding='ids '"),
        ("other", r"one of 'ids', 'other', 'valid', or False. Received: padding='x'"),
    ],
)
def test_padding_that_is_no_input(padding, message):
    names = ["valid"] if padding != "other" else ["other", "valid"]
    padding = "x" if padding == "other" else padding
    with pytest.raises(ValueError, match=message):
        tfr.chain(transformer(names), padding=padding)


def test_padding_of_another_shape():
    given = {"ids": IDS, "valid": VALID, "one": np.zeros((6, 3), "float32")}
    model = Subclassed()
    with pytest.raises(ValueError, match=r"with the positions of .*\('images', 3\) for states of"):
        tfr.chain(model, inputs=given, blocks=Encoder, padding="one")


def test_callbacks_are_told():
    model = transformer([])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = IDS, np.zeros(6, int)
    callbacks.use_blocks(model, padding="ids")
    logs = model.fit(*data, verbose=0, callbacks=[callbacks.Perturbation(data)]).history
    frame = probes.perturbation(tfr.chain(model, padding="ids"), data)
    logged = logs["stage1/block0/perturbation"][0]
    assert logged == pytest.approx(frame["perturbation"][0], rel=1e-5)
    callbacks.use_blocks(model, padding=False)
    assert notes_of(callbacks.probe_callback.chain_in_training(model)) == [
        "padding: none, all positions count"
    ]


@pytest.mark.compiled
def test_saved_models_keep_what_is_known(tmp_path):
    chain = tfr.chain(transformer([]), padding="ids")
    tfr.export(chain, tmp_path / "net")
    loaded = tfr.chain(tmp_path / "net")
    assert loaded.notes == chain.notes
    np.testing.assert_array_equal(valid_of(loaded, IDS), VALID)
    with pytest.raises(ValueError, match=r"must be left out.*Received: padding for source="):
        tfr.chain(tmp_path / "net", padding=False)
