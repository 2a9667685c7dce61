"""Ways to apply a block several times, against one normalization layer per application.

A block is h + normalization(dense(h)). Of every way, two training steps are compared with those of
a model in which each application has a `keras.layers.BatchNormalization` of its own. As a program
it compares all of them, on the backend of Keras that is set.
"""

import contextlib
import functools

import keras
import numpy as np
from keras import ops

from tfresidual.layers import Repeated, UnsharedBatchNormalization, forward_pass

APPLICATIONS, FEATURES, IMAGES = 3, 5, 16
# One more than the layer has of its own, where that is allowed.
MORE = APPLICATIONS + 1


def data():
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(IMAGES, FEATURES)).astype("float32") for _ in range(2))


@keras.saving.register_keras_serializable(package="repeated_ways")
class Block(keras.layers.Layer):
    """Adds the normalized map of the state to the state."""

    def __init__(self, dense, normalization, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.normalization = dense, normalization

    def build(self, shape):
        for layer in (self.dense, self.normalization):
            if not layer.built:
                layer.build(shape)

    def get_config(self):
        layers = {"dense": self.dense, "normalization": self.normalization}
        serialized = {
            name: keras.saving.serialize_keras_object(layer) for name, layer in layers.items()
        }
        return super().get_config() | serialized

    @classmethod
    def from_config(cls, config):
        layers = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("dense", "normalization")
        }
        return cls(**config | layers)

    def call(self, state, **which):
        return state + self.normalization(self.dense(state), **which)

    def compute_output_shape(self, shape):
        return shape


class Cell(Block):
    """A cell of a recurrent layer: its state is that of the block; its inputs are not read."""

    state_size = FEATURES

    def call(self, inputs, states):
        (state,) = states
        state = super().call(state)
        return state, [state]

    def compute_output_shape(self, shape):
        return (shape[0], FEATURES)


class Subclassed(keras.Model):
    """A model that applies a block in its `call`."""

    def __init__(self, block, apply):
        super().__init__()
        self.block, self.apply = block, apply

    def call(self, state, training=None):
        # On JAX, nothing else tells the layers of a subclassed model.
        return self.apply(functools.partial(self.block, training=training), state)


def functional(apply):
    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, apply(inputs))


def once(block, state):
    return block(state)


def counted(block, state):
    with forward_pass():
        for _ in range(MORE):
            state = block(state)
    return state


def told(block, state):
    for index in range(MORE):
        state = block(state, application=index)
    return state


def in_loop(block, state):
    def body(index, state):
        return index + 1, block(state, application=index)

    return ops.while_loop(lambda index, state: index < MORE, body, (0, state))[1]


def recurrent(cell, is_counted=True):
    """The last state of a recurrent layer with `APPLICATIONS` steps that begins at the inputs."""

    def apply(inputs, training):
        steps = ops.zeros((IMAGES, APPLICATIONS, 1))
        recurrent = keras.layers.RNN(cell, unroll=True)
        return recurrent(steps, initial_state=[inputs], training=training)

    class Recurrent(keras.Model):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def call(self, inputs, training=None):
            with forward_pass() if is_counted else contextlib.nullcontext():
                return apply(inputs, training)

    return Recurrent()


def _by_two(block, state):
    return Repeated(block, 2, first=2)(Repeated(block, 2)(state))


def _model_of_block(dense, normalization):
    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, inputs + normalization(dense(inputs)))


def _direct(dense, normalization):
    def apply(state):
        for index in range(MORE):
            state = state + normalization(dense(state), application=index)
        return state

    return functional(apply)


def _branch_as_sequential(dense, normalization):
    branch = keras.Sequential([keras.Input((FEATURES,)), dense, normalization])

    def apply(state):
        for index in range(MORE):
            state = state + Repeated(branch, 1, first=index)(state)
        return state

    return functional(apply)


# From the two layers to a model, and how often it applies them.
WAYS = {
    "functional, the layers themselves": (_direct, MORE),
    "functional, a Sequential": (_branch_as_sequential, MORE),
    "functional, told": (lambda *both: functional(functools.partial(told, Block(*both))), MORE),
    "functional, Repeated": (
        lambda *both: functional(Repeated(_model_of_block(*both), MORE)),
        MORE,
    ),
    "functional, two Repeated": (
        lambda *both: functional(functools.partial(_by_two, Block(*both))),
        MORE,
    ),
    "Repeated in Repeated": (
        lambda *both: functional(Repeated(Repeated(Block(*both), 2), 2)),
        MORE,
    ),
    "subclassed, told": (lambda *both: Subclassed(Block(*both), told), MORE),
    "subclassed, counted": (lambda *both: Subclassed(_model_of_block(*both), counted), MORE),
    "subclassed, Repeated": (lambda *both: Subclassed(Repeated(Block(*both), MORE), once), MORE),
    "RNN, unrolled": (lambda *both: recurrent(Cell(*both)), APPLICATIONS),
    "while_loop": (lambda *both: Subclassed(Block(*both), in_loop), MORE),
}
# JAX cannot differentiate it.
NOT_TRAINED_ON_JAX = ("while_loop",)


class Separate(keras.Model):
    """A normalization layer for each application."""

    def __init__(self, dense, normalizations, times):
        super().__init__()
        self.dense, self.normalizations, self.times = dense, normalizations, times

    def call(self, state, training=None):
        for index in range(self.times):
            normalization = self.normalizations[min(index, len(self.normalizations) - 1)]
            state = state + normalization(self.dense(state), training=training)
        return state


def build(dense, normalizations):
    """Gives layers weights that differ from application to application."""
    rng = np.random.default_rng(1)
    for layer in (dense, *normalizations):
        if not layer.built:
            layer.build((None, FEATURES))
        layer.set_weights([rng.uniform(0.2, 1.2, weight.shape) for weight in layer.weights])


def trained(model, dense, normalizations):
    """Predictions, two training steps, and what they make of predictions and weights."""
    inputs, targets = data()
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    found = [model.predict_on_batch(inputs)]
    found += [model.train_on_batch(inputs, targets) for _ in range(2)]
    learned = [weight for one in (dense, *normalizations) for weight in one.trainable_weights]
    found += [keras.ops.convert_to_numpy(weight) for weight in learned]
    found += [model.predict_on_batch(inputs)]
    found += [weight for one in normalizations for weight in one.get_weights()]
    return [np.asarray(one) for one in found]


def of_way(name, **kwargs):
    """The numbers of a way, see `trained`."""
    make, _ = WAYS[name]
    dense = keras.layers.Dense(FEATURES)
    layer = UnsharedBatchNormalization(APPLICATIONS, **kwargs)
    layer.build((None, FEATURES))
    build(dense, layer.normalizations)
    return trained(make(dense, layer), dense, layer.normalizations)


def of_separate_layers(times):
    """The same of separate layers."""
    dense = keras.layers.Dense(FEATURES)
    normalizations = [keras.layers.BatchNormalization() for _ in range(APPLICATIONS)]
    build(dense, normalizations)
    return trained(Separate(dense, normalizations, times), dense, normalizations)


def assert_equal(name):
    """Raises an `AssertionError` if the numbers of a way are not those of separate layers."""
    _, times = WAYS[name]
    expected = of_separate_layers(times)
    for ours, theirs in zip(of_way(name), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    for way in WAYS:
        if keras.config.backend() != "jax" or way not in NOT_TRAINED_ON_JAX:
            assert_equal(way)
            print(way)
