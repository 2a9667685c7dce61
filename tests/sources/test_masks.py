"""Implicit masks of Keras: refused where they lead from one part of a chain to another."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import tfresidual as tfr
from tfresidual.routing import evaluate
from tfresidual.routing.routes import unperturbed

pytestmark = pytest.mark.eager

RNG = np.random.default_rng(0)
# Many zeros, which `mask_zero` hides.
IDS, LABELS = RNG.integers(0, 3, (6, 8)), RNG.integers(0, 4, 6)


class Attention(layers.Layer):
    """A layer of one's own that calls one which reads masks."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.MultiHeadAttention(2, 8)
        self.supports_masking = True

    def build(self, shape):
        self.inner.build(shape, shape)

    def call(self, inputs):
        return self.inner(inputs, inputs)


def attend(state):
    normal = layers.LayerNormalization()(state)
    return layers.MultiHeadAttention(2, 8, name=f"read{next(COUNT)}")(normal, normal)


def hide_and_attend(state):
    """The mask begins and ends in the branch."""
    return attend(layers.Masking(0.5)(state))


def dense(state):
    return layers.Dense(16, "relu")(state)


def in_place(state):
    return state


def pool_attended(state):
    return layers.GlobalAveragePooling1D()(attend(state))


def transformer(branch, mask_zero=True, add="layer", before=in_place, head=None, blocks=2):
    """Some blocks on the embeddings of indices."""
    global COUNT
    COUNT = iter(range(9))
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    state = before(layers.Embedding(50, 16, mask_zero=mask_zero, name="ids")(inputs))
    for _ in range(blocks):
        change = branch(state)
        state = layers.Add()([state, change]) if add == "layer" else state + change
    if head is not None:
        state = head(state)
    elif len(state.shape) == 3:
        state = layers.Flatten()(state)
    return keras.Model(inputs, layers.Dense(4)(state), name="tokens")


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
@pytest.mark.parametrize(
    ("settings", "reader"),
    [
        ({"branch": attend}, r"read0 \(MultiHeadAttention\)"),
        ({"branch": attend, "add": "operator"}, r"read0 \(MultiHeadAttention\)"),
        ({"branch": lambda state: Attention()(state)}, r"attention\w* \(Attention\)"),
        (
            {"branch": attend, "head": layers.GlobalAveragePooling1D()},
            r"read0 \(MultiHeadAttention\)",
        ),
        ({"branch": dense, "head": layers.LSTM(4, name="pool")}, r"pool \(LSTM\)"),
    ],
    ids=["attention", "added by an operator", "a layer of one's own", "pooled", "in the head"],
)
def test_a_mask_that_leads_into_a_block_is_refused(settings, reader):
    with pytest.raises(
        ValueError,
        match=r"`source` must be .* mask .*cannot be probed yet.*mask_zero=False.*"
        rf"Received: source=tokens, where ids \(Embedding\) makes a mask and {reader} reads it",
    ):
        tfr.chain(transformer(**settings))


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_a_mask_of_a_nested_model_or_of_masking_is_refused():
    ids = keras.Input((8,))
    inner = keras.Model(ids, layers.Embedding(50, 16, mask_zero=True, name="ids")(ids))
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 16))
    state = layers.Masking(name="hide")(inputs)
    for _ in range(2):
        state = state + layers.MultiHeadAttention(2, 8)(state, state)
    model = keras.Model(inputs, layers.Flatten()(state))
    with pytest.raises(ValueError, match=r"where hide \(Masking\) makes a mask"):
        tfr.chain(model)
    outer = keras.Input((8,))
    embedded = inner(outer)
    state = embedded + layers.MultiHeadAttention(2, 8, name="takes")(embedded, embedded)
    with pytest.raises(ValueError, match=r"where ids \(Embedding\) makes .* takes "):
        tfr.chain(keras.Model(outer, layers.Flatten()(state)))


WITHOUT_LOSS = {
    "nothing reads it": {"branch": dense},
    "ends in the stem": {"branch": dense, "before": pool_attended},
    "begins and ends in the branch": {"branch": hide_and_attend, "mask_zero": False},
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", WITHOUT_LOSS)
def test_masks_that_cross_nothing_are_kept(name, tmp_path):
    with warnings.catch_warnings():
        # Keras says where a mask ends.
        warnings.simplefilter("ignore")
        model = transformer(**WITHOUT_LOSS[name], blocks=1)
        expected = model.predict(IDS, verbose=0)
        chains = [tfr.chain(model)]
        if "branch" in name:
            tfr.export(model, tmp_path / "net")
            chains.append(tfr.chain(tmp_path / "net"))
        for chain in chains:
            assert len(chain.blocks) == 1
            values = evaluate(chain, (IDS, LABELS), [unperturbed(chain)], with_outputs=True)
            np.testing.assert_allclose(values.outputs[0], expected, rtol=1e-4, atol=1e-5)
