"""What blocks read beside the state: masks, other inputs, positions, in models of all kinds.

Every model is written down once, as a function of its layers, which is also run by hand: with
something added to the state before a block, or without the branch of a block.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import evaluate
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.positions import VALID_POSITIONS
from tfresidual.routing.routes import drop, unperturbed

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

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
        self.project, self.pooling = layers.Dense(WIDTH), layers.GlobalAveragePooling1D()
        self.last = layers.Dense(CLASSES)

    def parts(self, inputs):
        """Returns the first state and what the blocks read beside the state, by name."""
        return self.embedding(inputs), {}

    def attend(self, number, state, beside):
        return self.attention[number](state, state, attention_mask=beside.get("pairs"))

    def pool(self, state, beside):
        return ops.mean(state, axis=1)

    def __call__(self, inputs, added=None, without=None):
        """Returns the outputs, with tensors added before blocks, or without a branch."""
        state, beside = self.parts(inputs)
        for number in range(BLOCKS):
            if added is not None:
                state = with_mask(state + added[number], state)
            branch = self.norms[number](state)
            if number % 2:
                branch = self.dense[number // 2](branch)
            else:
                branch = self.attend(number // 2, branch, beside)
            if number == without:
                branch = with_mask(branch * 0, branch)
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


def with_mask(state, other):
    state._keras_mask = getattr(other, "_keras_mask", None)
    return state


class Masked(Network):
    """A mask that Keras attaches to tensors."""

    is_masked = True

    def pool(self, state, beside):
        return self.pooling(state)


class MaskArgument(Network):
    """A mask computed from the indices, which attention takes as an argument."""

    def parts(self, inputs):
        mask = ops.not_equal(inputs, 0)
        return self.embedding(inputs), {"mask": mask, "pairs": ops.expand_dims(mask, 1)}

    def pool(self, state, beside):
        weights = ops.expand_dims(ops.cast(beside["mask"], "float32"), -1)
        return ops.sum(weights * state, axis=1) / ops.sum(weights, axis=1)


class TwoInputs(Network):
    """Indices, a padding mask and a vector that every branch is shifted by."""

    def parts(self, inputs):
        shift = ops.expand_dims(self.project(inputs["other"]), 1)
        pairs = ops.expand_dims(inputs["padding_mask"], 1)
        return self.embedding(inputs["ids"]), {"shift": shift, "pairs": pairs}

    def attend(self, number, state, beside):
        return super().attend(number, state + beside["shift"], beside)

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
    chain = tfr.chain(model, inputs=given if kind is Subclassed else None)
    assert [block.shortcut for block in chain.blocks] == ["identity"] * BLOCKS
    return network, model, keras.tree.map_structure(tf.constant, given), chain


@pytest.mark.compiled
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.nightly] * (k not in (Masked, Subclassed))) for k in KINDS],
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


@pytest.mark.sampled(3)
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
    known = chain.with_context(given).known
    assert (VALID_POSITIONS in known) == (kind in (Masked, TwoInputs))
    if VALID_POSITIONS in known:
        np.testing.assert_array_equal(known[VALID_POSITIONS], IDS != 0)


# Models of ids and of rows, compared with `predict` where parts of the chain are compiled


class OwnAttention(layers.Layer):
    """A layer of one's own that calls one which reads masks."""

    def __init__(self):
        super().__init__()
        self.inner, self.supports_masking = layers.MultiHeadAttention(2, 4), True

    def build(self, shape):
        self.inner.build(shape, shape)

    def call(self, inputs):
        return self.inner(inputs, inputs)


class Positions(layers.Layer):
    """Returns what belongs to positions, of which it knows few; with the state added, or not."""

    def __init__(self, is_added=False):
        super().__init__()
        self.is_added = is_added

    def build(self, shape):
        self.table = self.add_weight(shape=(9, shape[-1]), name="table")

    def call(self, inputs):
        if self.is_added:
            return inputs + self.table[: ops.shape(inputs)[1]]
        rows = ops.broadcast_to(self.table[: inputs.shape[1]], inputs.shape[1:])
        return ops.zeros_like(inputs) + rows

    def compute_output_spec(self, inputs):
        if inputs.shape[1] is not None and inputs.shape[1] > 9:
            raise ValueError("There are 9 positions.")
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def attend(state):
    return layers.MultiHeadAttention(2, 4)(state, state)


def dense(state):
    return layers.Dense(WIDTH, "relu")(state)


def blocks(state, branch):
    for _ in range(2):
        state = layers.Add()([state, branch(state)])
    return state


def added_by_an_operator(ids):
    state = embedded()(ids)
    for _ in range(2):
        state = state + attend(state)
    return state


def embedded(mask_zero=True):
    return layers.Embedding(20, WIDTH, mask_zero=mask_zero)


def nested(ids):
    inner = keras.Input((7,), dtype="int32")
    return blocks(keras.Model(inner, embedded()(inner))(ids), attend)


def two_trunks(ids):
    """The second one is taken."""
    ends = []
    for side in "ab":
        state = embedded(False)(ids)
        for number in range(2):
            branch = layers.Dense(WIDTH, name=f"{side}{number}")(state)
            state = layers.Add(name=f"add_{side}{number}")([state, branch])
        ends.append(state)
    return layers.Concatenate()(ends)


def with_positions(ids):
    state = embedded(False)(ids)
    return blocks(layers.Add()([state, Positions()(state)]), dense)


def of_any_number(ids):
    return blocks(Positions(is_added=True)(embedded(False)(ids)), dense)


def masked_in_the_branch(ids):
    return blocks(embedded(False)(ids), lambda state: attend(layers.Masking(0.5)(state)))


def pooled_first(ids):
    return blocks(layers.GlobalAveragePooling1D()(attend(embedded()(ids))), dense)


# By name: the states of the ids (or of rows), and whether the mask of Keras is known.
MODELS = {
    "attention": (lambda ids: blocks(embedded()(ids), attend), True),
    "added by an operator": (added_by_an_operator, True),
    "own layer": (lambda ids: blocks(embedded()(ids), lambda h: OwnAttention()(h)), True),
    "in the head": (lambda ids: layers.LSTM(4)(blocks(embedded()(ids), dense)), True),
    "a nested model": (nested, True),
    "the values of the inputs": (lambda rows: blocks(layers.Masking()(rows), attend), True),
    "read by nothing": (lambda ids: blocks(embedded()(ids), dense), True),
    "ends in the stem": (pooled_first, False),
    "ends in the branch": (masked_in_the_branch, False),
    "two trunks": (two_trunks, False),
    "positions that are no block": (with_positions, False),
    "positions of any number": (of_any_number, False),
}
NIGHTLY = ("attention", "read by nothing")


@pytest.mark.sampled(5)
@pytest.mark.compiled
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in NIGHTLY)) for n in MODELS]
)
def test_masks_and_positions(name):
    keras.utils.set_random_seed(0)
    function, is_known = MODELS[name]
    given = IDS
    inputs = keras.Input((None if "any number" in name else 7,), dtype="int32")
    if name == "the values of the inputs":
        inputs = keras.Input((7, WIDTH))
        given = RNG.normal(size=(6, 7, WIDTH)).astype("float32") * (IDS != 0)[..., None]
    state = function(inputs)
    if len(state.shape) == 3:
        # Keras warns that the latter drops a mask.
        is_open = "any number" in name
        state = ops.mean(state, axis=1) if is_open else layers.Flatten()(state)
    model = keras.Model(inputs, layers.Dense(4)(state))
    chain = tfr.chain(model)
    assert [block.shortcut for block in chain.blocks] == ["identity"] * 2
    if function is two_trunks:
        assert [block.name for block in chain.blocks] == ["add_b0", "add_b1"]
        assert any("add_a0" in note for note in chain.notes)
    values = evaluate(chain, (given, LABELS), [unperturbed(chain)], with_outputs=True)
    expected = model.predict(given, verbose=0)
    np.testing.assert_allclose(values.outputs[0], expected, rtol=1e-4, atol=1e-5)
    found = {} if chain.context is None else chain.context(given)
    assert (VALID_POSITIONS in found) == is_known
    if is_known:
        np.testing.assert_array_equal(found[VALID_POSITIONS], IDS != 0)


# What all images share


def read_by_blocks(function):
    """A model of two inputs whose blocks read a function of the second one."""
    one, other = keras.Input((5, 4), name="one"), keras.Input((5, 5), name="other")
    read, state = function(other), layers.Dense(4)(one)
    for _ in range(2):
        state = layers.Add()([state, ops.matmul(read, layers.Dense(4)(state))])
    outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(state))
    return keras.Model({"one": one, "other": other}, outputs)


@pytest.mark.parametrize("shape", [(1, 5, 5), pytest.param((5, 5), marks=pytest.mark.nightly)])
def test_what_all_images_share_is_carried(shape):
    """Such as a bias by the distance of two positions."""
    bias = np.reshape(np.arange(25, dtype="float32"), shape) / 25
    model = read_by_blocks(lambda other: ops.zeros_like(other)[0] + bias)
    chain, labels = tfr.chain(model), np.array([0, 1, 2])
    images = {"one": RNG.normal(size=(3, 5, 4)), "other": RNG.normal(size=(3, 5, 5))}
    images = {name: value.astype("float32") for name, value in images.items()}
    np.testing.assert_allclose(chain(images), model(images), rtol=1e-6)

    def cosine_losses(rows):
        given = {name: value[rows] for name, value in images.items()}
        return tfr.probes.block_metrics(chain, (given, labels[rows]))["cosine_loss"]

    expected = np.mean([cosine_losses(slice(i, i + 1)) for i in range(3)], axis=0)
    np.testing.assert_allclose(cosine_losses(slice(None)), expected, rtol=1e-4)
    dropped = tfr.probes.drop_blocks(chain, (images, labels))
    assert np.isfinite(dropped["cross_entropy"]).all()


# What is refused


@pytest.mark.parametrize("kind", [Network, Subclassed])
@pytest.mark.parametrize("inputs", [5, [], np.float32(3)])
def test_inputs_that_are_no_batch(kind, inputs):
    with refused("inputs"):
        tfr.chain(kind().model(), inputs=inputs)


def with_other_shortcuts(where):
    """Blocks with and without weights in their shortcuts; what else the network reads, or masks."""
    keras.utils.set_random_seed(0)
    other = keras.Input((3,))
    inputs = keras.Input((7,), dtype="int32") if where == "mask" else keras.Input((7, 5))
    state = embedded(where == "mask")(inputs) if where == "mask" else layers.Dense(5)(inputs)
    for number, width in enumerate((5, 5, 5, 8, 8, 4)):
        branch = layers.Dense(width, "tanh")(layers.Dense(width)(state))
        if where == "block":
            branch = layers.Multiply()([branch, layers.Dense(width)(other)[:, None]])
        is_same = width == state.shape[-1] and number != 2
        state = layers.Add()([state if is_same else layers.Dense(width)(state), branch])
    state = layers.GlobalAveragePooling1D()(state)
    if where == "head":
        state = layers.Concatenate()([state, other])
    is_two = where in ("block", "head")
    return keras.Model([inputs, other] if is_two else inputs, layers.Dense(2)(state))


def test_other_inputs_and_masks_leave_the_blocks_as_they_are():
    found = {
        where: [
            (block.stage, block.index, block.shortcut, block.keeps_shape)
            for block in tfr.chain(with_other_shortcuts(where)).blocks
        ]
        for where in (None, "head", "block", "mask")
    }
    assert len(found[None]) == 6
    assert found["head"] == found["block"] == found[None]
    # The embedding is wider than the state of the others.
    assert [kind for *_, kind, _ in found["mask"]][1:] == [kind for *_, kind, _ in found[None]][1:]


class Whole(layers.Layer):
    """A block that adds with a layer, which makes a mask of the masks of both."""

    def __init__(self, parts):
        super().__init__()
        self.parts, self.add = parts, layers.Add()
        self.supports_masking = True

    def call(self, state):
        return self.add([state, self.parts[1](self.parts[0](state))])


def as_model(parts, state):
    inner = keras.Input(state.shape[1:])
    added = layers.Add()([inner, parts[1](parts[0](inner))])
    return keras.Model(inner, added)(state)


# How a block of a network with a mask may be written, and options of `tfr.chain`.
WRITTEN = {
    "in the network": (lambda p, s: layers.Add()([s, p[1](p[0](s))]), {}),
    "a model": (as_model, {}),
    "a branch that is a model": (
        lambda p, s: layers.Add()([s, keras.Sequential(list(p))(s)]), {},
    ),
    "an opened layer": (lambda p, s: Whole(p)(s), {}),
    "a whole layer": (lambda p, s: Whole(p)(s), {"blocks": Whole}),
}  # fmt: skip


def test_a_mask_reaches_all_however_blocks_are_written():
    """The read-out after a block has the mask, too, that the network has at its end."""
    data, found = (IDS, np.arange(len(IDS)) % 4), []
    parts = [(layers.LayerNormalization(), layers.Dense(WIDTH, "tanh")) for _ in range(3)]
    embedding, head = embedded(), layers.Dense(4, "softmax")
    for write, options in WRITTEN.values():
        inputs = keras.Input((7,), dtype="int32")
        state = embedding(inputs)
        for pair in parts:
            state = write(pair, state)
        model = keras.Model(inputs, head(layers.GlobalAveragePooling1D()(state)))
        model.compile("sgd", "sparse_categorical_crossentropy")
        chain = tfr.chain(model, **options)
        measures = (probes.lens, probes.drop_blocks, probes.block_metrics)
        frames = [measure(chain, data) for measure in measures]
        frames.append(probes.patching(chain, data, target=0, what="addition"))
        found.append([frame.to_numpy(float) for frame in frames])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
