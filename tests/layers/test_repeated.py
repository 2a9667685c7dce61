"""A block that is repeated, against its applications one by one.

The numbers with `UnsharedBatchNormalization` are in test_unshared_batch_normalization.py.
"""

import json

import keras
import numpy as np
import pytest

from tfresidual.layers import Repeated, ResidualUnit, UnsharedBatchNormalization

SHAPE = (4, 8, 8, 4)


@keras.saving.register_keras_serializable(package="test_repeated")
class Branching(keras.layers.Layer):
    """A layer without a `build` of its own."""

    def __init__(self, normalization=None, **kwargs):
        super().__init__(**kwargs)
        self.convolution = keras.layers.Conv2D(4, 3, padding="same", dtype=self.dtype_policy)
        self.normalization = normalization or UnsharedBatchNormalization(3, dtype=self.dtype_policy)

    def call(self, state):
        return state + self.normalization(self.convolution(state))


def model_block():
    inputs = keras.Input(SHAPE[1:])
    branch = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    branch = UnsharedBatchNormalization(3)(branch)
    return keras.Model(inputs, keras.layers.Add()([inputs, branch]))


BLOCKS = {
    "model": model_block,
    "layer without build": Branching,
    "unit": lambda: ResidualUnit(4),
    "layer": lambda: keras.layers.Dense(4),
    "Sequential": lambda: keras.Sequential([Branching(), keras.layers.ReLU()]),
}


def images(seed=0):
    return np.random.default_rng(seed).normal(size=SHAPE).astype("float32")


def randomise(layer):
    rng = np.random.default_rng(1)
    for variable in layer.weights:
        variable.assign(0.5 * rng.uniform(0.1, 1, variable.shape))


# Keras says so of every saved layer without a `build`.
@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_is_the_block_again_and_again(make, tmp_path):
    inputs = keras.Input(SHAPE[1:])
    layer = Repeated(make(), 3)
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, *SHAPE[1:])
    assert len(layer.variables) == len(layer.block.variables) > 0
    randomise(layer)
    expected = model(images())
    state = images()
    for index in range(3):
        # The first application alone, of this number.
        state = Repeated(layer.block, 1, first=index)(state)
    np.testing.assert_allclose(expected, state, rtol=1e-5)
    text = json.dumps(layer.get_config())
    assert json.dumps(Repeated.from_config(json.loads(text)).get_config()) == text
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        keras.models.load_model(tmp_path / "model.keras")(images()), expected
    )
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(images()), expected)


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
def test_two_share_a_block(tmp_path):
    block, inputs = Branching(), keras.Input(SHAPE[1:])
    state = keras.layers.ReLU()(Repeated(block, 2, name="early")(inputs))
    model = keras.Model(inputs, Repeated(block, 1, first=2, name="late")(state))
    randomise(block)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    blocks = {id(loaded.get_layer(name).block) for name in ("early", "late")}
    assert len(blocks) == 1
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_array_equal(loaded(images()), model(images()))
    # Both count from where they are said to begin.
    normalizations = block.normalization.normalizations
    for index, one in enumerate(normalizations):
        before = [np.asarray(other.moving_mean) for other in normalizations]
        name, times = ("early", 2) if index < 2 else ("late", 1)
        model.get_layer(name)(images(), training=True)
        changed = [np.any(b != o.moving_mean) for b, o in zip(before, normalizations, strict=True)]
        assert changed == ([True, True, False] if times == 2 else [False, False, True])
        assert one.moving_mean.shape == (4,)
