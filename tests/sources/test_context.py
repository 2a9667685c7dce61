"""What blocks read beside the state: masks, other inputs, positions, in models of all kinds.

Every model is written down once, as a function of its layers, which is also run by hand: with
something added to the state before a block, or without the branch of a block.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfresidual as tfr
from tfresidual.routing import evaluate
from tfresidual.routing.chain import VALID_POSITIONS
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.routes import drop, unperturbed

pytestmark = [
    pytest.mark.eager,
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask"),
]

WIDTH, CLASSES, BLOCKS = 8, 3, 4
RNG = np.random.default_rng(0)
# The last indices of some rows are 0, which masks hide.
IDS = RNG.integers(1, 20, (6, 7)).astype("int32")
IDS[1::2, 5:] = 0
OTHER = RNG.normal(size=(6, 5)).astype("float32")
LABELS = RNG.integers(0, CLASSES, 6)


class Network:
    """Two blocks of attention and two of dense layers, in turn."""

    is_masked = False

    def __init__(self):
        keras.utils.set_random_seed(0)
        self.embedding = layers.Embedding(20, WIDTH, mask_zero=self.is_masked)
        self.norms = [layers.LayerNormalization() for _ in range(BLOCKS)]
        self.attention = [layers.MultiHeadAttention(2, 4) for _ in range(BLOCKS // 2)]
        self.dense = [layers.Dense(WIDTH, "tanh") for _ in range(BLOCKS // 2)]
        self.add = [layers.Add() for _ in range(BLOCKS)]
        self.last = layers.Dense(CLASSES)

    def parts(self, inputs):
        """Returns the first state and what the blocks read beside the state, by name."""
        return self.embedding(inputs), {}

    def attend(self, number, state, beside):
        del beside
        return self.attention[number](state, state)

    def pool(self, state, beside):
        del beside
        return ops.mean(state, axis=1)

    def __call__(self, inputs, added=None, without=None):
        """Returns the outputs, with tensors added before blocks, or without a branch."""
        state, beside = self.parts(inputs)
        for number in range(BLOCKS):
            if added is not None:
                mask = getattr(state, "_keras_mask", None)
                state = state + added[number]
                state._keras_mask = mask
            branch = self.norms[number](state)
            if number % 2:
                branch = self.dense[number // 2](branch)
            else:
                branch = self.attend(number // 2, branch, beside)
            if number == without:
                mask = getattr(branch, "_keras_mask", None)
                branch = branch * 0
                branch._keras_mask = mask
            state = self.add[number]([state, branch])
        return self.last(self.pool(state, beside))

    @property
    def inputs(self):
        return keras.Input((None,), dtype="int32")

    def given(self):
        return IDS

    def model(self):
        inputs = self.inputs
        return keras.Model(inputs, self(inputs))


class Masked(Network):
    """A mask that Keras attaches to tensors."""

    is_masked = True

    def __init__(self):
        super().__init__()
        self.pooling = layers.GlobalAveragePooling1D()

    def pool(self, state, beside):
        return self.pooling(state)


class MaskArgument(Network):
    """A mask computed from the indices, which attention takes as an argument."""

    def parts(self, inputs):
        mask = ops.not_equal(inputs, 0)
        return self.embedding(inputs), {"mask": mask, "pairs": ops.expand_dims(mask, 1)}

    def attend(self, number, state, beside):
        return self.attention[number](state, state, attention_mask=beside["pairs"])

    def pool(self, state, beside):
        weights = ops.expand_dims(ops.cast(beside["mask"], "float32"), -1)
        return ops.sum(weights * state, axis=1) / ops.sum(weights, axis=1)


class TwoInputs(Network):
    """Indices, a padding mask and a vector that every branch is shifted by."""

    def __init__(self):
        super().__init__()
        self.project = layers.Dense(WIDTH)

    def parts(self, inputs):
        shift = ops.expand_dims(self.project(inputs["other"]), 1)
        pairs = ops.expand_dims(inputs["padding_mask"], 1)
        return self.embedding(inputs["ids"]), {"shift": shift, "pairs": pairs}

    def attend(self, number, state, beside):
        state = state + beside["shift"]
        return self.attention[number](state, state, attention_mask=beside["pairs"])

    @property
    def inputs(self):
        return {
            "ids": keras.Input((None,), dtype="int32", name="ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
            "other": keras.Input((5,), name="other"),
        }

    def given(self):
        return {"ids": IDS, "padding_mask": IDS != 0, "other": OTHER}


class Pair(TwoInputs):
    """The same inputs, as a list."""

    def parts(self, inputs):
        ids, other = inputs
        return super().parts({"ids": ids, "other": other, "padding_mask": ops.not_equal(ids, 0)})

    @property
    def inputs(self):
        return [keras.Input((None,), dtype="int32"), keras.Input((5,))]

    def given(self):
        return [IDS, OTHER]


class Subclassed(Network):
    """A model without a graph."""

    def model(self):
        network = self

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.parts = [*vars(network).values()]

            def call(self, inputs):
                return network(inputs)

        return Model()


KINDS = [Network, Masked, MaskArgument, TwoInputs, Pair, Subclassed]


def chain_and(kind):
    network = kind()
    model = network.model()
    given = network.given()
    inputs = given if kind is Subclassed else None
    chain = tfr.chain(model, inputs=inputs)
    assert [block.shortcut for block in chain.blocks] == ["identity"] * BLOCKS
    return network, model, keras.tree.map_structure(tf.constant, given), chain


@pytest.mark.compiled
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=[] if kind in (Masked, Subclassed) else [pytest.mark.nightly],
        )
        for kind in KINDS
    ],
)
def test_routes_are_those_of_the_model(kind):
    network, model, given, chain = chain_and(kind)
    routes = [unperturbed(chain), *(drop(chain, (1, number)) for number in range(BLOCKS))]
    values = evaluate(chain, (given, LABELS), routes, with_outputs=True)
    expected = model.predict(given, verbose=0)
    np.testing.assert_allclose(values.outputs[0], expected, rtol=1e-5, atol=1e-6)
    for number in range(BLOCKS):
        patched = network(given, without=number)
        np.testing.assert_allclose(values.outputs[1 + number], patched, rtol=1e-4, atol=1e-5)
    # The number of positions and that of images are free.
    if kind is not Subclassed:
        fewer = keras.tree.map_structure(lambda array: array[:2, :5], given)
        np.testing.assert_allclose(chain(fewer), network(fewer), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_rest_of_the_model(kind):
    network, _, given, chain = chain_and(kind)
    walk = walk_with_gradients(chain, given, tf.constant(LABELS))
    added = [tf.zeros((*IDS.shape, WIDTH)) for _ in range(BLOCKS)]
    with tf.GradientTape() as tape:
        tape.watch(added)
        total = tf.reduce_sum(chain.loss(tf.constant(LABELS), network(given, added)))
    for gradient, expected in zip(walk.gradients, tape.gradient(total, added), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_positions_that_are_not_padding():
    for kind, is_known in ((Network, False), (Masked, True), (TwoInputs, True), (Pair, False)):
        _, _, given, chain = chain_and(kind)
        known = chain.given(given).known
        assert (VALID_POSITIONS in known) == is_known, kind
        if is_known:
            np.testing.assert_array_equal(known[VALID_POSITIONS], IDS != 0)


def test_copies_of_images_have_copies_of_the_context():
    _, _, given, chain = chain_and(TwoInputs)
    within = chain.given(given)
    _, last = within.walk(within.stem(given))
    both = within.times(2).head(tf.concat([last, last], axis=0))
    np.testing.assert_allclose(both, np.tile(within.head(last), (2, 1)), rtol=1e-6)


def test_of_several_trunks_the_last_is_taken_and_the_others_are_noted():
    ids = keras.Input((None,), dtype="int32")
    ends = []
    for side in "ab":
        state = layers.Embedding(20, WIDTH)(ids)
        for number in range(2):
            branch = layers.Dense(WIDTH, name=f"{side}{number}")(state)
            state = layers.Add(name=f"add_{side}{number}")([state, branch])
        ends.append(state)
    model = keras.Model(ids, layers.Concatenate()(ends))
    chain = tfr.chain(model)
    assert [block.name for block in chain.blocks] == ["add_b0", "add_b1"]
    assert any("add_a0" in note for note in chain.notes), chain.notes
    np.testing.assert_allclose(chain(IDS), model.predict(IDS, verbose=0), rtol=1e-5, atol=1e-6)


def test_positions_added_to_an_embedding_are_no_block():
    class Positions(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(9, shape[-1]), name="table")

        def call(self, inputs):
            rows = ops.broadcast_to(self.table[: inputs.shape[1]], inputs.shape[1:])
            return ops.zeros_like(inputs) + rows

    ids = keras.Input((7,), dtype="int32")
    state = layers.Embedding(20, WIDTH)(ids)
    state = state + Positions()(state)
    for _ in range(2):
        state = state + layers.Dense(WIDTH, name=f"dense{_}")(state)
    model = keras.Model(ids, layers.Dense(3)(state))
    chain = tfr.chain(model)
    assert len(chain.blocks) == 2
    np.testing.assert_allclose(chain(IDS), model.predict(IDS, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"open": 3}, r"Argument `open` must be a class of layers.*Received: open=3"),
        ({"blocks": []}, r"Argument `blocks` must be a class of layers.*Received: blocks=\[\]"),
        ({"inputs": {"ids": IDS}}, r"Argument `inputs` must be .*in the structure.*Received: "),
        (
            {"inputs": TwoInputs().given() | {"other": np.zeros((6, 4))}},
            r"`inputs` must be inputs that functional\w* accepts.*Received: .*'other': \(6, 4\)",
        ),
    ],
)
def test_arguments_that_cannot_be_used(kwargs, message):
    with pytest.raises(ValueError, match=message):
        tfr.chain(TwoInputs().model(), **kwargs)


@pytest.mark.parametrize("kind", [Network, Subclassed])
@pytest.mark.parametrize(
    ("inputs", "received"),
    [
        (5, "5 of type int$"),
        (tf.data.Dataset.from_tensors((IDS, LABELS)), r"<.*> of type \w*Dataset$"),
        ((2, 8), "2 of type int in inputs of type tuple$"),
        ([[0.5] * 7] * 2, "0.5 of type float in inputs of type list$"),
        ([], r"\[\] of type list$"),
        (np.float32(3), r"an array of shape \(\) and dtype float32$"),
        (np.array([["a"] * 7]), r"an array of shape \(1, 7\) and dtype <U1$"),
        (np.array([[None] * 7]), r"an array of shape \(1, 7\) and dtype object$"),
    ],
)
def test_inputs_that_are_no_batch(kind, inputs, received):
    with pytest.raises(ValueError, match=f"`inputs` must be a batch .*Received: {received}"):
        tfr.chain(kind().model(), inputs=inputs)


def test_inputs_that_a_subclassed_model_does_not_take():
    inputs = (IDS, LABELS)
    with pytest.raises(ValueError, match=r"`inputs` must be inputs that .* accepts.*Received: inp"):
        tfr.chain(Subclassed().model(), inputs=inputs)


def test_other_sources_take_no_arguments():
    net = tfr.networks.resnet(8)
    for source in (net, tfr.chain(net)):
        with pytest.raises(ValueError, match=r"must be left out.*Received: blocks for source="):
            tfr.chain(source, blocks=layers.Dense)


def read_by_blocks(function):
    """A model of two inputs whose blocks read a function of the second one."""
    one, other = keras.Input((5, 4), name="one"), keras.Input((5, 5), name="other")
    read, state = function(other), layers.Dense(4)(one)
    for _ in range(2):
        state = layers.Add()([state, ops.matmul(read, layers.Dense(4)(state))])
    outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(state))
    return keras.Model({"one": one, "other": other}, outputs)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((5, 5), id="without an axis of images", marks=pytest.mark.nightly),
        pytest.param((1, 5, 5), id="one for all images"),
    ],
)
def test_what_all_images_share_is_carried(shape):
    """Such as a bias by the distance of two positions."""
    bias = np.reshape(np.arange(25, dtype="float32"), shape) / 25
    model = read_by_blocks(lambda other: ops.zeros_like(other)[0] + bias)
    chain = tfr.chain(model)
    images = {"one": RNG.normal(size=(3, 5, 4)), "other": RNG.normal(size=(3, 5, 5))}
    images = {name: value.astype("float32") for name, value in images.items()}
    np.testing.assert_allclose(chain(images), model(images), rtol=1e-6)
    labels = np.array([0, 1, 2])
    frame = tfr.probes.block_metrics(chain, (images, labels))
    by_image = [
        tfr.probes.block_metrics(
            chain, ({k: v[i : i + 1] for k, v in images.items()}, labels[i:][:1])
        )
        for i in range(3)
    ]
    expected = np.mean([one["cosine_loss"] for one in by_image], axis=0)
    np.testing.assert_allclose(frame["cosine_loss"], expected, rtol=1e-4)
    dropped = tfr.probes.drop_blocks(chain, (images, labels))
    assert np.isfinite(dropped["cross_entropy"]).all()


def test_what_mixes_images_is_refused():
    with pytest.raises(ValueError, match=r"do not depend on the other images.*tensor that all"):
        tfr.chain(read_by_blocks(lambda other: ops.mean(other, axis=0)))


@keras.saving.register_keras_serializable("test_context")
class _WithoutItsSecond(layers.Layer):
    """Has two outputs by its shape, and None in place of one that nobody asked for."""

    def call(self, inputs):
        return 2 * inputs, None

    def compute_output_shape(self, shape):
        return shape, shape


def test_a_layer_that_returns_none_in_place_of_an_output():
    inputs = keras.Input((4,))
    first, _ = _WithoutItsSecond()(inputs)
    model = keras.Model(inputs, layers.Dense(2)(first + layers.Dense(4)(first)))
    data = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    np.testing.assert_allclose(tfr.chain(model)(data), model.predict(data, verbose=0), rtol=1e-5)
