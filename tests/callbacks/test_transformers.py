"""Callbacks in a fit of a model whose blocks are hidden in layers of the user's own."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfresidual as tfr
from tfresidual import callbacks, probes

CLASSES, POSITIONS = 5, 6
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 12, (16, POSITIONS)).astype("int32")
LABELS = RNG.integers(0, CLASSES, (16, POSITIONS))


class Causal(layers.Layer):
    """Attention and a dense layer, whose mask needs to know the number of positions."""

    def build(self, shape):
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.attention.build(shape, shape)
        self.dense = layers.Dense(shape[-1], "tanh", name="dense")
        self.dense.build(shape)

    def call(self, inputs):
        number = ops.shape(inputs)[1]
        rows, columns = ops.arange(number)[:, None], ops.arange(number)[None]
        state = inputs + self.attention(inputs, inputs, attention_mask=(rows >= columns)[None])
        return state + self.dense(state)


def decoder():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None,), dtype="int32")
    state = layers.Embedding(12, 8)(inputs)
    for number in range(2):
        state = Causal(name=f"layer{number}")(state)
    model = keras.Model(inputs, layers.Dense(CLASSES)(state))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.system
@pytest.mark.nightly
def test_callbacks_find_blocks_as_they_are_told():
    model = decoder()
    assert [block.name for block in tfr.chain(model).blocks] == ["layer0", "layer1"]
    callbacks.use_blocks(model, inputs=IDS)
    history = model.fit(
        IDS, LABELS, verbose=0, callbacks=[callbacks.DropBlocks((IDS, LABELS))]
    ).history
    chain = tfr.chain(model, inputs=IDS)
    names = [block.name for block in chain.blocks]
    assert names == [f"layer{n}/{kind}" for n in range(2) for kind in ("attention", "mlp")]
    frame = probes.drop_blocks(chain, (IDS, LABELS))
    logged = [history[f"stage1/block{block}/drop_error"][0] for block in range(4)]
    np.testing.assert_allclose(logged, frame["error"], rtol=1e-6)
