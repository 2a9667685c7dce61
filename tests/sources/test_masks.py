"""Implicit masks of Keras: carried from one part of a chain to another."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import tfresidual as tfr
from tfresidual.routing import evaluate
from tfresidual.routing.chain import VALID_POSITIONS
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


CARRIED = {
    "attention": {"branch": attend},
    "added by an operator": {"branch": attend, "add": "operator"},
    "a layer of one's own": {"branch": lambda state: Attention()(state)},
    "pooled": {"branch": attend, "head": layers.GlobalAveragePooling1D()},
    "in the head": {"branch": dense, "head": layers.LSTM(4, name="pool")},
}


def masking():
    """A mask that is made of the values of the input, and attention to the state itself."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 16))
    state = layers.Masking(name="hide")(inputs)
    for _ in range(2):
        state = state + layers.MultiHeadAttention(2, 8)(state, state)
    return keras.Model(inputs, layers.Dense(4)(layers.Flatten()(state)))


def nested():
    ids = keras.Input((8,))
    inner = keras.Model(ids, layers.Embedding(50, 16, mask_zero=True, name="ids")(ids))
    keras.utils.set_random_seed(0)
    outer = keras.Input((8,))
    state = inner(outer)
    for _ in range(2):
        state = layers.Add()([state, attend(state)])
    return keras.Model(outer, layers.Dense(4)(layers.Flatten()(state)))


def check_is_predict(chain, model, inputs):
    """Compares the compiled parts of a chain with the model, and a mask with none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = evaluate(chain, (inputs, LABELS), [unperturbed(chain)], with_outputs=True)
        expected = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(values.outputs[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name in ("attention", "pooled") else [])
        for name in CARRIED
    ],
)
def test_a_mask_that_leads_into_a_block_is_carried(name):
    global COUNT
    COUNT = iter(range(9))
    model = transformer(**CARRIED[name])
    chain = tfr.chain(model)
    assert [block.shortcut for block in chain.blocks] == ["identity"] * 2
    check_is_predict(chain, model, IDS)
    np.testing.assert_array_equal(chain.context(IDS)[VALID_POSITIONS], IDS != 0)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_a_mask_of_a_nested_model_or_of_masking_is_carried():
    global COUNT
    COUNT = iter(range(9))
    rows = RNG.normal(size=(6, 8, 16)).astype("float32")
    rows[:, 5:] = 0
    for model, inputs in ((masking(), rows), (nested(), IDS)):
        chain = tfr.chain(model)
        assert len(chain.blocks) == 2
        check_is_predict(chain, model, inputs)


WITHOUT_LOSS = {
    "nothing reads it": {"branch": dense},
    "ends in the stem": {"branch": dense, "before": pool_attended},
    "begins and ends in the branch": {"branch": hide_and_attend, "mask_zero": False},
}


@pytest.mark.compiled
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.system] if "branch" in n else []) for n in WITHOUT_LOSS],
)
def test_masks_that_cross_nothing_are_kept(name, tmp_path):
    with warnings.catch_warnings():
        # Keras says where a mask ends.
        warnings.simplefilter("ignore")
        model = transformer(**WITHOUT_LOSS[name], blocks=1)
        chains = [tfr.chain(model)]
        if "branch" in name:
            tfr.export(model, tmp_path / "net")
            chains.append(tfr.chain(tmp_path / "net"))
        for chain in chains:
            assert len(chain.blocks) == 1
            check_is_predict(chain, model, IDS)
