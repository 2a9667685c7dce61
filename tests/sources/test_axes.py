"""Which label slots are positions of the states, by the graph: sizes that agree are no proof."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from reference.sequences import softmax
from refusals import refused

import tfresidual as tfr
from tfresidual import probes, routes
from tfresidual.routing.routes import follow

pytestmark = pytest.mark.eager

# As many positions as features and classes.
SIZE = 5
RNG = np.random.default_rng(0)
VALID = (np.arange(SIZE) < np.array([5, 3, 2, 4])[:, None]).astype("int32")
INPUTS = {
    "ids": RNG.integers(0, 9, (4, SIZE)).astype("int32"),
    "padding_mask": VALID,
    "places": RNG.integers(0, SIZE, (4, SIZE)).astype("int32"),
}
LABELS = RNG.integers(0, SIZE, (4, SIZE))


@keras.saving.register_keras_serializable("test_axes")
class Reversed(layers.Layer):
    def call(self, inputs):
        return inputs[:, ::-1]


@keras.saving.register_keras_serializable("test_axes")
class Scaled(layers.Layer):
    def call(self, inputs):
        return 2 * inputs


def gathered(state, places):
    return ops.take_along_axis(state, places[..., None], axis=1)


def attended(query, state):
    return layers.MultiHeadAttention(1, SIZE)(query, state)


# By the state and the places to gather from: what the last layer reads.
KEPT = {
    "nothing": lambda state, places: state,
    "plain layers": lambda state, places: layers.LayerNormalization()(layers.Dropout(0.5)(state)),
    "convolution": lambda state, places: layers.Conv1D(SIZE, 3, padding="same")(state),
    "recurrence": lambda state, places: layers.LSTM(SIZE, return_sequences=True)(state),
    "attention": lambda state, places: attended(state, state),
    "transposed twice": lambda state, places: layers.Permute((2, 1))(
        ops.transpose(state, (0, 2, 1))
    ),
    "reshaped": lambda state, places: layers.Reshape((SIZE, SIZE))(
        layers.Reshape((SIZE, 1, SIZE))(state)
    ),
    "two heads": lambda state, places: ops.sum(ops.reshape(state, (-1, SIZE, 1, SIZE)), axis=2),
    "sliced whole": lambda state, places: state[:, :SIZE, ::-1],
    "with another": lambda state, places: state + layers.Embedding(SIZE, SIZE)(places),
    "with constants": lambda state, places: state * np.ones((1, SIZE, SIZE), "float32"),
    "pairs of positions": lambda state, places: ops.matmul(state, ops.transpose(state, (0, 2, 1))),
    "a layer": lambda state, places: Scaled()(state),
}
OTHERS = {
    "gathered": gathered,
    "taken": lambda state, places: ops.take(state, np.arange(SIZE)[::-1], axis=1),
    "query of another": lambda state, places: attended(layers.Embedding(SIZE, SIZE)(places), state),
    "pooled": lambda state, places: layers.AveragePooling1D(2)(layers.UpSampling1D(2)(state)),
    "strided": lambda state, places: layers.Conv1D(SIZE, 2, 2)(layers.UpSampling1D(2)(state)),
    "transposed": lambda state, places: layers.Permute((2, 1))(state),
    "reversed": lambda state, places: state[:, ::-1],
    "rolled": lambda state, places: ops.roll(state, 1, axis=1),
    "flipped": lambda state, places: ops.flip(state, axis=1),
    "backwards": lambda state, places: layers.GRU(SIZE, go_backwards=True, return_sequences=True)(
        state
    ),
    "sorted": lambda state, places: ops.sort(state, axis=1),
    "classes by classes": lambda state, places: layers.Reshape((SIZE, SIZE))(
        layers.Dense(SIZE * SIZE)(ops.mean(state, axis=1))
    ),
    "all to all": lambda state, places: layers.Reshape((SIZE, SIZE))(
        layers.Dense(SIZE * SIZE)(layers.Flatten()(state))
    ),
    "a layer": lambda state, places: Reversed()(state),
    "a function": lambda state, places: layers.Lambda(lambda x: x[:, ::-1])(state),
}
CASES = [(name, True) for name in KEPT] + [(name, False) for name in OTHERS]


def network(head, between=lambda state, places: state, last=SIZE):
    keras.utils.set_random_seed(0)
    ids, mask, places = (keras.Input((SIZE,), dtype="int32", name=name) for name in INPUTS)
    state = layers.Embedding(9, SIZE)(ids)
    allowed = ops.expand_dims(ops.cast(mask, "bool"), 1)
    for number in range(2):
        if number:
            state = between(state, places)
        branch = layers.MultiHeadAttention(1, SIZE)(state, state, attention_mask=allowed)
        state = layers.Add()([state, branch])
    outputs = head(state, places)
    outputs = layers.Dense(last)(outputs)
    return keras.Model({"ids": ids, "padding_mask": mask, "places": places}, outputs)


MEASURED = ("attention", "gathered", "transposed")


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "is_kept"), CASES)
def test_padding_leaves_out_labels_of_positions_alone(name, is_kept):
    model = network((KEPT if is_kept else OTHERS)[name])
    chain = tfr.chain(model)
    assert chain.outputs_at_positions == is_kept
    if name not in MEASURED:
        return
    frame = probes.lens(chain, (INPUTS, LABELS), per_image=True)
    p = softmax(model.predict(INPUTS, verbose=0).astype(float))
    losses = -np.log(np.take_along_axis(p, LABELS[..., None], axis=2)[..., 0])
    weights = VALID if is_kept else np.ones_like(VALID)
    expected = (losses * weights).sum(axis=1) / weights.sum(axis=1)
    found = frame.loc[frame["block"] == frame["block"].max(), "cross_entropy"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.system
@pytest.mark.nightly
def test_slots_that_are_no_positions_in_every_probe(tmp_path):
    """Also of a SavedModel: as many numbers as Keras has, and one distance per image."""
    model = network(gathered)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    chain = tfr.chain(model)
    tfr.export(chain, tmp_path / "net")
    dropped = routes.drop(chain, (1, 0))
    states = [chain.with_context(INPUTS), follow(chain, dropped).with_context(INPUTS)]
    last, moved = (one.walk(one.stem(INPUTS))[1].numpy() for one in states)
    distances = np.linalg.norm((moved - last) * VALID[..., None], axis=(1, 2))
    for one in (chain, tfr.chain(tmp_path / "net")):
        values = probes.evaluate_routes(one, (INPUTS, LABELS), [routes.unperturbed(one)])
        loss = model.evaluate(INPUTS, LABELS, verbose=0)
        assert values["cross_entropy"].item() == pytest.approx(loss, rel=1e-5)
        frame = probes.evaluate_routes(one, (INPUTS, LABELS), [dropped], per_image=True)
        found = frame["stage1_distance"].to_numpy().reshape(4, SIZE)
        np.testing.assert_allclose(found, np.repeat(distances[:, None], SIZE, axis=1), rtol=1e-4)
        # A sequence that is all padding is not there, whatever its slots are.
        empty = INPUTS | {"padding_mask": VALID * (np.arange(4) != 2)[:, None]}
        frame = probes.lens(one, (empty, LABELS), per_position=True)
        assert frame["image"].unique().tolist() == [0, 1, 3]


@pytest.mark.parametrize("name", ["transposed", pytest.param("pooled", marks=pytest.mark.nightly)])
def test_states_with_as_many_other_positions(name):
    model = network(KEPT["nothing"], between=OTHERS[name])
    chain = tfr.chain(model)
    (note,) = [note for note in chain.notes if note.startswith("padding")]
    assert note.endswith("as the first one, but not the same ones")
    frame = probes.perturbation(chain, (INPUTS, LABELS))
    whole = probes.perturbation(tfr.chain(model, padding=False), (INPUTS, LABELS))
    np.testing.assert_allclose(frame["perturbation"], whole["perturbation"], rtol=1e-5)
    with refused("padding"):
        tfr.chain(model, padding="padding_mask")
