"""Chains of functional models written by hand, against the models themselves.

Every model is cut in two before every block with `keras.Model(state, output)`.

Not covered here: published architectures, which are in test_applications.
"""

import contextlib
import functools
from functools import partial

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops
from reference.random_network import random_batch, random_network, randomise, sample

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.routing import evaluate
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.routes import drop, repeat_last_block

pytestmark = pytest.mark.eager

IDENTITY, PROJECTION, RESAMPLING = "identity", "projection", "resampling"


def convolution(filters, name, strides=1, size=3, **kwargs):
    return layers.Conv2D(filters, size, strides, padding="same", name=name, **kwargs)


def branch_of(state, filters, name, strides=1):
    """convolution, normalization, relu, convolution, normalization."""
    branch = convolution(filters, f"{name}_conv1", strides)(state)
    branch = layers.ReLU(name=f"{name}_relu1")(
        layers.BatchNormalization(name=f"{name}_bn1")(branch)
    )
    branch = convolution(filters, f"{name}_conv2")(branch)
    return layers.BatchNormalization(name=f"{name}_bn2")(branch)


def model_of(inputs, state, **kwargs):
    state = layers.GlobalAveragePooling2D(name="pooling", **kwargs)(state)
    outputs = layers.Dense(5, activation="softmax", dtype="float32", name="classifier")(state)
    return keras.Model(inputs, outputs, name="small")


def images_input(shape=(8, 8, 3)):
    return keras.Input(shape, name="images")


class Between:
    """A part of a network that is no block."""

    def __init__(self, apply):
        self.apply = apply


def built(parts, stem=None, end=None, shape=(8, 8, 3), **kwargs):
    """A model, and the states before its blocks.

    Parts are the blocks, functions of a state and a name, and what is between them.
    """
    inputs = images_input(shape)
    state, states = (stem or convolution(4, "stem"))(inputs), []
    for part in parts:
        if isinstance(part, Between):
            state = part.apply(state)
            continue
        states.append(state)
        state = part(state, f"block{len(states) - 1}")
    return model_of(inputs, end(state) if end else state, **kwargs), states


def post_activation(shape=(8, 8, 3)):
    def block(filters, strides, state, name):
        branch, shortcut = branch_of(state, filters, name, strides), state
        if strides > 1:
            shortcut = convolution(filters, f"{name}_projection", strides, 1)(state)
            shortcut = layers.BatchNormalization(name=f"{name}_projection_bn")(shortcut)
        state = layers.Add(name=f"{name}_add")([shortcut, branch])
        return layers.Activation("relu", name=f"{name}_relu2")(state)

    parts = [partial(block, *sizes) for sizes in ((4, 1), (4, 1), (8, 2), (8, 1))]
    return built(parts, convolution(4, "stem", activation="relu"), shape=shape)


def pre_activation():
    """With a pre-activation that projection and branch share, and one before the head."""

    def activated(state, name):
        state = layers.BatchNormalization(name=f"{name}_bn0")(state)
        return layers.Activation("relu", name=f"{name}_relu0")(state)

    def block(filters, strides, state, name):
        before = activated(state, name)
        if strides > 1:
            state = convolution(filters, f"{name}_projection", strides, 1)(before)
        branch = convolution(filters, f"{name}_conv1", strides, use_bias=False)(before)
        branch = layers.ReLU(name=f"{name}_relu1")(branch)
        return ops.add(convolution(filters, f"{name}_conv2")(branch), state)

    parts = [partial(block, *sizes) for sizes in ((4, 1), (4, 1), (8, 2), (8, 1), (8, 1))]
    return built(parts, end=lambda state: activated(state, "head"))


def inverted():
    """Inverted residuals with squeeze-excitation and dropout; those with strides add nothing."""

    def branch_of(filters, strides, state, name):
        width = 2 * state.shape[-1]
        branch = convolution(width, f"{name}_expansion", size=1, use_bias=False)(state)
        branch = layers.BatchNormalization(name=f"{name}_bn1")(branch)
        branch = layers.ReLU(6.0, name=f"{name}_relu")(branch)
        depthwise = layers.DepthwiseConv2D(3, strides, padding="same", name=f"{name}_depthwise")
        branch = depthwise(branch)
        squeezed = layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}_pooling")(branch)
        squeezed = convolution(2, f"{name}_squeeze", size=1, activation="relu")(squeezed)
        squeezed = convolution(width, f"{name}_excite", size=1, activation="sigmoid")(squeezed)
        branch = layers.Multiply(name=f"{name}_scaling")([branch, squeezed])
        branch = convolution(filters, f"{name}_contraction", size=1)(branch)
        return layers.BatchNormalization(name=f"{name}_bn2")(branch)

    def block(filters, state, name):
        branch = branch_of(filters, 1, state, name)
        return state + layers.Dropout(0.5, name=f"{name}_dropout")(branch)

    between = Between(lambda state: branch_of(6, 2, state, "between"))
    return built([partial(block, 4), between, partial(block, 6), partial(block, 6)])


def pooled_shortcut():
    """A stage whose first block halves the states; then a pooling between two stages."""

    def block(strides, state, name):
        branch = branch_of(state, 4, name, strides)
        if strides > 1:
            state = layers.MaxPooling2D(1, 2, name="maximum")(state)
        return layers.Add(name=f"{name}_add")([branch, state])

    between = Between(layers.AveragePooling2D(2, name="pooling_between"))
    return built([*(partial(block, n) for n in (1, 2, 1)), between, partial(block, 1)])


def shared_layers():
    first, second = convolution(4, "conv1", activation="relu"), convolution(4, "conv2")

    def block(state, name):
        branch = layers.BatchNormalization(name=f"{name}_bn")(second(first(state)))
        return layers.Add(name=f"{name}_add")([branch, state])

    return built([block] * 3)


def inner_block(name):
    inputs = keras.Input((8, 8, 4), name=f"{name}_inputs")
    branch = branch_of(inputs, 4, name)
    return keras.Model(inputs, layers.Add(name=f"{name}_add")([inputs, branch]), name=name)


def in_a_row(parts):
    return lambda state: functools.reduce(lambda h, part: part(h), parts, state)


def nested_shared():
    """The same nested model twice, one more inside of a further one, and a nested branch."""
    twice, once = inner_block("twice"), inner_block("once")
    around = keras.Sequential([keras.Input((8, 8, 4)), once], name="around")
    branch = keras.Sequential(
        [keras.Input((8, 8, 4)), convolution(4, "branch_conv"), layers.ReLU(name="branch_relu")],
        name="branch",
    )
    parts = [twice, around, twice, lambda h: layers.Add(name="add")([branch(h), h])]
    model, _ = built([lambda h, _, part=part: part(h) for part in parts])
    parts += model.layers[-2:]
    return model, [in_a_row(parts[number:]) for number in range(4)]


def sequential():
    parts = [inner_block(f"block{number}") for number in range(3)]
    model = keras.Sequential(
        [
            images_input(),
            convolution(4, "stem"),
            *parts,
            layers.GlobalAveragePooling2D(name="pooling"),
            keras.Sequential([layers.Dense(5, name="classifier"), layers.Softmax()], name="ending"),
        ],
        name="small",
    )
    return model, [in_a_row(model.layers[number:]) for number in (1, 2, 3)]


def two_branches():
    def block(strides, state, name):
        paths = [convolution(4, f"{name}{side}", strides)(state) for side in "ab"]
        return layers.Add(name=f"{name}_add")(
            [layers.BatchNormalization(name=f"{name}_bn{i}")(path) for i, path in enumerate(paths)]
        )

    return built([partial(block, strides) for strides in (1, 2, 1)])


def noisy():
    """Layers that would be random in training, one of them told to train."""

    def block(state, name):
        branch = layers.GaussianNoise(0.5, name=f"{name}_noise")(state, training=True)
        branch = convolution(4, f"{name}_conv", activation="relu")(branch)
        branch = layers.SpatialDropout2D(0.5, name=f"{name}_dropout")(branch, training=True)
        branch = layers.BatchNormalization(name=f"{name}_bn")(branch, training=True)
        # A layer that does nothing is no shortcut of its own.
        shortcut = layers.Identity(name=f"{name}_identity")(state) if name == "block1" else state
        return ops.add(shortcut, branch)

    return built([block] * 2)


def other_additions():
    """Additions that are no blocks: of a broadcast tensor, of three tensors, of one to itself."""

    def stem(inputs):
        state = convolution(4, "stem")(inputs)
        average = layers.GlobalAveragePooling2D(keepdims=True, name="average")(state)
        state = layers.Add(name="broadcast")([state, average])
        state = state + state + 1.0
        return layers.Add(name="three")([convolution(4, f"part{i}")(state) for i in range(3)])

    def block(state, name):
        return layers.Add(name=f"{name}_add")([state, convolution(4, "conv")(state)])

    return built([block], stem)


def long_skip():
    """A shortcut around two blocks, which are then parts of its branch; a block after it."""

    def inner(state, name):
        return layers.Add(name=f"{name}_add")([state, branch_of(state, 4, name)])

    def long(state, name):
        within = inner(inner(state, f"{name}a"), f"{name}b")
        return layers.Add(name="long")([state, within])

    return built([long, inner])


def narrow():
    """A branch with fewer parameters than the projection next to it, and a weightless shortcut."""

    def block(state, name):
        branch = convolution(1, f"{name}_reduce", size=1, activation="relu")(state)
        branch = convolution(8, f"{name}_expand", size=1)(branch)
        is_first = name == "block0"
        shortcut = convolution(8, "projection", size=1)(state) if is_first else 0.5 * state
        return layers.Add(name=f"{name}_add")([branch, shortcut])

    return built([block] * 2, convolution(8, "stem"))


def side_by_side():
    """Two branches added to the state: in sums of two, of three, and one that is dropped out."""

    def together(one, other, state):
        # The sum of the branches has a second use: it is a branch of its own.
        total = one + other
        total = total + convolution(4, "again", size=1)(total)
        return state + layers.ReLU(name="last")(total)

    sums = [
        lambda one, other, state: (state + one) + other,
        lambda one, other, state: layers.Add(name="three")([one, state, other]),
        lambda one, other, state: one + (other + layers.Dropout(0.5, name="dropped")(state)),
        together,
    ]

    def block(total, state, name):
        return total(*(branch_of(state, 4, f"{name}{side}") for side in "ab"), state)

    return built([partial(block, total) for total in sums])


ONE, TWO = (1, IDENTITY, True), (2, IDENTITY, True)
# For every builder its blocks: stage, shortcut, and whether they keep the shape; and the stages
# that a transition leads into.
MODELS = {
    post_activation: ([ONE, ONE, (2, PROJECTION, False), TWO], []),
    pre_activation: ([ONE, ONE, (2, PROJECTION, False), TWO, TWO], []),
    inverted: ([ONE, TWO, TWO], [2]),
    pooled_shortcut: ([ONE, (2, RESAMPLING, False), TWO, (3, IDENTITY, True)], [3]),
    shared_layers: ([ONE] * 3, []),
    nested_shared: ([ONE] * 4, []),
    sequential: ([ONE] * 3, []),
    two_branches: (
        [(s, "two branches", keeps) for s, keeps in ((1, True), (2, False), (2, True))],
        [],
    ),
    noisy: ([ONE] * 2, []),
    other_additions: ([ONE], []),
    long_skip: ([ONE] * 2, []),
    narrow: ([(1, PROJECTION, True), (1, "weightless", True)], []),
    side_by_side: ([ONE] * 4, []),
}


def batch_of(model, images=3, size=8):
    rng = np.random.default_rng(1)
    shape = [size if n is None else n for n in model.input_shape[1:]]
    return rng.normal(size=(images, *shape)).astype("float32"), rng.integers(0, 5, images)


def chain_of(builder, *args, **kwargs):
    model, states = builder(*args, **kwargs)
    randomise(model)
    return model, states, tfr.chain(model)


# What `make test` leaves out: relatives of those that it tries.
IN_SYSTEM_TESTS = (pooled_shortcut, sequential, long_skip, side_by_side)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(builder, marks=[pytest.mark.nightly] if builder in IN_SYSTEM_TESTS else [])
        for builder in MODELS
    ],
    ids=lambda builder: builder.__name__,
)
def case(request):
    """A builder, its model with random weights and statistics, the states, and the chain."""
    keras.utils.set_random_seed(0)
    return request.param, *chain_of(request.param)


@pytest.mark.sampled(5)
def test_blocks_weights_and_outputs(case):
    builder, model, _, chain = case
    blocks, transitions = MODELS[builder]
    assert [(b.stage, b.shortcut, b.keeps_shape) for b in chain.blocks] == blocks
    assert [s.index for s in chain.stages if s.transition is not None] == transitions
    assert not any(block.takes_anchor for block in chain.blocks)
    assert (chain.notes != ()) == (builder in (other_additions, long_skip, side_by_side))
    images, _ = batch_of(model)
    expected = model.predict(images, batch_size=len(images), verbose=0)
    np.testing.assert_array_equal(tf.function(chain)(tf.constant(images)), expected)
    np.testing.assert_allclose(chain(images), expected, rtol=1e-5, atol=1e-7)
    assert {id(w) for w in chain.weights} == {id(w) for w in model.trainable_weights}
    assert len(chain.weights) == len(model.trainable_weights)
    alike = {}
    for block in chain.blocks:
        assert {id(w) for w in block.weights.values()} <= {id(w) for w in chain.weights}
        assert len({id(w) for w in block.weights.values()}) == len(block.weights) > 0
        alike.setdefault((block.stage, block.shortcut), set()).add(tuple(block.weights))
    # In `nested_shared` and `long_skip` the branches of blocks differ.
    assert all(len(roles) == 1 for roles in alike.values()) or len(alike) == 1


@pytest.mark.sampled(5)
def test_gradients_are_those_of_the_tail(case):
    _, model, states, chain = case
    images, labels = batch_of(model)
    walk = walk_with_gradients(chain, images, labels)
    for (before, _), gradient, state in zip(walk.pairs, walk.gradients, states, strict=True):
        tail = state
        if isinstance(state, keras.KerasTensor):
            head = keras.Model(model.inputs[0], state)(images, training=False)
            np.testing.assert_allclose(before, head, rtol=1e-5, atol=1e-6)
            tail = functools.partial(keras.Model(state, model.outputs[0]), training=False)
        with tf.GradientTape() as tape:
            tape.watch(before)
            outputs = tail(before)
            losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
        expected = tape.gradient(losses, before)
        np.testing.assert_allclose(outputs, chain(images), rtol=1e-5, atol=1e-6)
        assert float(tf.norm(expected)) > 1e-4
        limit = 1e-5 * float(tf.reduce_max(tf.abs(expected)))
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=limit)


def test_branch_and_join_are_the_block(case):
    builder, model, _, chain = case
    images, _ = batch_of(model)
    pairs, _ = chain.walk(chain.stem(images))
    for block, (before, after) in zip(chain.blocks, pairs, strict=True):
        if block.shortcut == "two branches":
            # What is branch and what is shortcut cannot be told.
            assert block.branch is None and block.join is None
            continue
        np.testing.assert_allclose(block(before, scale=1.0), after, rtol=1e-5, atol=1e-6)
        # What follows the addition is not that of half a branch.
        if block.shortcut == IDENTITY and builder is not post_activation:
            np.testing.assert_allclose(block(before, scale=0.0), before, rtol=1e-6)
            half = np.asarray(before) + (np.asarray(after) - np.asarray(before)) / 2
            np.testing.assert_allclose(block(before, scale=0.5), half, rtol=1e-4, atol=1e-5)


# What single models show


def rows(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def with_prelu():
    """An activation with weights parts no blocks."""
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    for _ in range(3):
        state = layers.PReLU()(layers.Add()([state, convolution(4, None)(state)]))
    return model_of(inputs, state), [(1, IDENTITY)] * 3


def sounds():
    """Of any length that can be halved ten times: the usual size does not fit."""
    inputs = state = keras.Input((None, 1), name="sound")
    for number in range(5):
        state = layers.Conv1D(4, 4, 4, name=f"stem{number}")(state)
    state = state + layers.Conv1D(4, 3, padding="same", name="conv")(state)
    outputs = layers.Dense(5)(layers.GlobalAveragePooling1D()(state))
    return keras.Model(inputs, outputs), [(1, IDENTITY)]


def of_one_width():
    """Stages are parted where the grid changes."""
    net = networks.ResidualNetwork((8, 8, 3), 5, blocks=2, widths=(4, 4, 4))
    blocks = [(stage, shortcut) for stage in (2, 3) for shortcut in (PROJECTION, IDENTITY)]
    return keras.Model(net.inputs, net.outputs), [(1, IDENTITY)] * 2 + blocks


def of_any_size():
    blocks = [(stage, shortcut) for stage, shortcut, _ in MODELS[post_activation][0]]
    return post_activation(shape=(None, None, 3))[0], blocks


def channels_first():
    first = {"data_format": "channels_first"}
    inputs = keras.Input((3, 8, 8))
    state = convolution(4, "stem", **first)(inputs)
    for filters in (4, 6, 6):
        strides = 1 if state.shape[1] == filters else 2
        shortcut = state if strides == 1 else convolution(filters, None, 2, 1, **first)(state)
        branch = convolution(filters, None, strides, **first)(state)
        branch = layers.ReLU()(layers.BatchNormalization(axis=1)(branch))
        state = layers.Add()([shortcut, convolution(filters, None, **first)(branch)])
    return model_of(inputs, state, **first), [(1, IDENTITY), (2, PROJECTION), (2, IDENTITY)]


def nested_of_another_dtype(kind=keras.Model):
    """A nested model takes its inputs to its own dtype; a `Sequential` first to its policy's."""
    inner = [keras.Input((8, 8, 4), dtype="float32"), convolution(4, "conv", dtype="float32")]
    nested = keras.Model(inner[0], inner[1](inner[0])) if kind is keras.Model else kind(inner)
    if kind is keras.Sequential:
        nested.dtype_policy = keras.DTypePolicy("bfloat16")
    inputs = images_input()
    state = convolution(4, "stem", dtype="float64")(inputs)
    state = ops.add(nested(state), ops.cast(state, "float32"))
    state = layers.Add()([state, convolution(4, "last")(state)])
    return model_of(inputs, state), [(1, "weightless"), (1, IDENTITY)]


def whole_numbers():
    inputs = keras.Input((2, 2, 3), dtype="uint8")
    state = layers.Rescaling(1 / 255)(inputs)
    return keras.Model(inputs, state + layers.Dense(3)(state)), [(1, IDENTITY)]


def without_gradient(detached=ops.stop_gradient):
    inputs = keras.Input((4,))
    state = layers.Dense(4)(inputs)
    for _ in range(2):
        state = layers.Add()([state, layers.Dense(4)(detached(state))])
    return keras.Model(inputs, layers.Dense(3)(state)), [(1, IDENTITY)] * 2


def has_channels_first():
    """Whether TensorFlow has convolutions of channels first here: on a processor, with oneDNN."""
    try:
        tf.nn.conv2d(tf.ones((1, 1, 2, 2)), tf.ones((1, 1, 1, 1)), 1, "SAME", "NCHW")
    except tf.errors.UnimplementedError:
        return False
    return True


NEEDS_ONEDNN = pytest.mark.skipif("not has_channels_first()", reason="not here")
# The builder, and the size that is open in its images.
SINGLE = {
    "an activation with weights": (with_prelu, 8),
    "sounds": (sounds, 4096),
    "one width": (of_one_width, 8),
    "any size": (of_any_size, 8),
    "another size": (of_any_size, 12),
    "channels first": (channels_first, 8),
    "a nested model of another dtype": (nested_of_another_dtype, 8),
    "a nested Sequential of another dtype": (partial(nested_of_another_dtype, keras.Sequential), 8),
    "whole numbers": (whole_numbers, 8),
    "no gradient": (without_gradient, 8),
    "rounded": (partial(without_gradient, ops.round), 8),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[NEEDS_ONEDNN] if n == "channels first" else []) for n in SINGLE],
)
def test_blocks_and_outputs_of_single_models(name):
    build, size = SINGLE[name]
    model, blocks = build()
    chain = tfr.chain(model)
    assert [(block.stage, block.shortcut) for block in chain.blocks] == blocks
    assert tuple(keras.tree.flatten(chain.input_shape)) == model.inputs[0].shape[1:]
    shape = [size if n is None else n for n in model.inputs[0].shape[1:]]
    images = rows(3, *shape)
    if model.inputs[0].dtype == "uint8":
        images = (100 * np.abs(images)).astype("uint8")
    expected = model.predict(images, batch_size=len(images), verbose=0)
    allowed = {"channels first": 0, "whole numbers": 1e-6}.get(name, 1e-5)
    for given in (images, images.astype("float32")):
        np.testing.assert_allclose(tf.function(chain)(given), expected, rtol=allowed)


def test_a_branch_before_the_activation_of_its_block():
    model, states, chain = chain_of(post_activation)
    images, _ = batch_of(model)
    before, _ = chain.walk(chain.stem(images))[0][3]
    branch = keras.Model(states[3], model.get_layer("block3_bn2").output)(before)
    np.testing.assert_allclose(chain.blocks[3].branch(before), branch, rtol=1e-6)
    for scale in (0.3, -1.0):
        expected = tf.nn.relu(before + scale * branch)
        np.testing.assert_allclose(chain.blocks[3](before, scale=scale), expected, atol=1e-6)


def test_weights_by_role():
    parts = ["Conv2D/kernel", "Conv2D/bias", "BatchNormalization/gamma", "BatchNormalization/beta"]
    roles = [f"{number // 2}/{role}" for number, role in enumerate(parts)]
    after = [f"{number // 2 + 2}/{role}" for number, role in enumerate(parts)]
    chain = tfr.chain(post_activation()[0])
    assert list(chain.blocks[3].weights) == roles + after
    chain = tfr.chain(with_prelu()[0])
    assert all(list(block.weights)[-1] == "1/PReLU/alpha" for block in chain.blocks)
    # Weights that blocks share are one.
    first, _, last = (block.weights for block in tfr.chain(shared_layers()[0]).blocks)
    assert first.keys() == last.keys()
    shared = ["0/Conv2D/kernel", "0/Conv2D/bias", "1/Conv2D/kernel", "1/Conv2D/bias"]
    assert [role for role in first if first[role] is last[role]] == shared
    # A pre-activation that projection and branch share is the block's; the last one the head's.
    model, _, chain = chain_of(pre_activation)
    bn = model.get_layer("block2_bn0")
    assert chain.blocks[2].weights["0/BatchNormalization/gamma"] is bn.gamma
    assert len(chain.blocks[4].weights) == 2 + 1 + 2


class Scale(layers.Layer):
    """A layer of one's own, with a parameter and a count."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.seen = self.add_weight(shape=(), dtype="int32", trainable=False, name="seen")

    def call(self, inputs):
        return self.scale * inputs


def test_what_the_chain_does_not_show_is_noted():
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    state = layers.Add()([state, Scale(name="scale")(convolution(4, "conv")(state))])
    chain = tfr.chain(model_of(inputs, state))
    assert list(chain.blocks[0].weights)[2:] == ["1/Scale/scale"]
    assert chain.notes == ("the inside of these layers cannot be seen: Scale (1: scale)",)
    (note,) = tfr.chain(long_skip()[0]).notes
    assert "block0a_add" in note


class Patches(layers.Layer):
    """Patches of images as positions, of a number that TensorFlow cannot tell."""

    def call(self, images):
        return ops.reshape(images, (ops.shape(images)[0], -1, 6))

    def compute_output_shape(self, shape):
        return shape[0], 4, 6


class Shift(layers.Layer):
    """Adds a number to every position, by which TensorFlow can tell their number."""

    def call(self, state):
        return state + ops.reshape(ops.arange(4, dtype=state.dtype), (1, 4, 1))


@pytest.mark.compiled
def test_sizes_that_tensorflow_cannot_tell():
    frames = {}
    for first in (Patches(), layers.Reshape((4, 6))):
        images = keras.Input((4, 6, 1))
        state = first(images)
        for number in range(2):
            branch = layers.Dense(6, "tanh")(state)
            state = layers.Add()([state, branch if number == 0 else Shift()(branch)])
        model = keras.Model(images, layers.Dense(3)(layers.Flatten()(state)))
        randomise(model)
        chain, data = tfr.chain(model), (rows(5, 4, 6, 1), np.arange(5) % 3)
        for probe in (probes.readout, probes.drop_blocks, probes.lens, probes.block_metrics):
            frame = probe(chain, data)
            if probe in frames:
                pd.testing.assert_frame_equal(frame, frames[probe], rtol=1e-5, atol=1e-6)
            frames[probe] = frame


# Networks and units of this package inside of other models


NESTED = [
    {},
    {"layout": "original", "shortcut": "scaled", "bottleneck": True, "blocks": 2},
    {"transition": "convolution", "anchor": "input", "lipschitz": 0.9},
    {"transition": "average_pooling", "share_from": 0, "batch_norm": "unshared"},
    {"transition": "downsampling_block", "anchor": "input", "layout": "bn_after_addition"},
]


@pytest.mark.parametrize("changes", sample(NESTED, every=4, others=pytest.mark.nightly))
def test_a_nested_residual_network_is_its_own_chain(changes):
    net = random_network(**{"blocks": (1, 2)} | changes)
    inputs = images_input()
    model = keras.Model(inputs, net(layers.Rescaling(0.5)(inputs)), name="around")
    chain, own = tfr.chain(model), tfr.chain(net)
    images, labels = random_batch(net)
    np.testing.assert_array_equal(chain(2 * images), own(images))
    assert {id(w) for w in chain.weights} == {id(w) for w in own.weights}
    assert (chain.prepare is None) == (own.prepare is None)
    last, second = len(own.stages[0].blocks) - 1, 1
    if net.transition == "downsampling_block":
        # Seen from outside, it is a block of the stage that it begins.
        assert chain.stages[1].blocks[0].shortcut == RESAMPLING
        assert [block.keeps_shape for block in chain.stages[1].blocks] == [False] + [True] * 2
        second = 2
    else:
        for block, other in zip(chain.blocks, own.blocks, strict=True):
            for name in ("stage", "index", "keeps_shape", "takes_anchor", "shortcut"):
                assert getattr(block, name) == getattr(other, name)
            assert block.weights.items() == other.weights.items()
            assert (block.lipschitz is None) == (other.lipschitz is None)
    found = []
    for one, scale, index in ((chain, 2, second), (own, 1, 1)):
        chosen = [drop(one, (1, last)), drop(one, (2, index))]
        chosen += [repeat_last_block(one, 2, 2, *scales) for scales in ((), (0.5,))]
        batch = (scale * images, labels)
        found.append(evaluate(one, batch, chosen, with_outputs=True).outputs)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


# The model is left as it was


def test_files_and_training_go_on(tmp_path):
    model, _ = pre_activation()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    count, config = len(model.layers), model.get_config()
    images, labels = batch_of(model, 8)
    chain = tfr.chain(model)
    model.fit(images, labels, verbose=0)
    tfr.chain(model)
    assert len(model.layers) == count and model.get_config() == config
    model.save(tmp_path / "model.keras")
    loaded = tfr.chain(tmp_path / "model.keras")
    expected = model.predict(images, verbose=0)
    for one in (chain, loaded):
        np.testing.assert_array_equal(tf.function(one)(tf.constant(images)), expected)
    assert [block.shortcut for block in loaded.blocks] == [b.shortcut for b in chain.blocks]


# Losses and outputs


# The last activation and the loss of a model, and the kind of its outputs.
OF_CLASSES = keras.losses.SparseCategoricalCrossentropy
AT_ODDS = {
    "sigmoids of classes": ("sigmoid", "sparse_categorical_crossentropy", "probabilities"),
    "no softmax": (None, "sparse_categorical_crossentropy", "logits"),
    "no sigmoid": (None, "binary_crossentropy", "label_logits"),
    "a softmax and from_logits": ("softmax", OF_CLASSES(from_logits=True), "probabilities"),
}


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`")
@pytest.mark.parametrize("name", AT_ODDS)
def test_outputs_that_the_loss_takes_for_something_else(name):
    """The loss is that of `fit`; where scores are of something else, it warns."""
    activation, loss, kind = AT_ODDS[name]
    inputs = keras.Input((4,))
    state = layers.Add()([inputs, layers.Dense(4, "tanh")(inputs)])
    model = keras.Model(inputs, layers.Dense(3, activation)(state))
    model.compile("sgd", loss)
    images = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    labels = np.arange(8) % 3
    labels = np.eye(3)[labels] if kind == "label_logits" else labels
    chain, expected = tfr.chain(model), model.evaluate(images, labels, verbose=0)
    assert chain.outputs == kind
    is_odd = "logits" in kind
    assert len(chain.notes) == is_odd
    warned = pytest.warns(UserWarning, match="logits") if is_odd else contextlib.nullcontext()
    with warned as caught:
        measured = chain.loss(labels, chain(images))
    # The line is that of the user.
    assert not is_odd or caught[0].filename == __file__
    np.testing.assert_allclose(np.mean(measured), expected, rtol=1e-5)
    last = probes.readout(chain, (images, labels))["cross_entropy"].iloc[-1]
    assert np.isclose(last, expected, rtol=1e-5) != is_odd


class HalfMerge(layers.Add):
    def _merge_function(self, inputs):
        return inputs[0] + 0.5 * inputs[1]


class TwiceUnit(tfr.layers.ResidualUnit):
    def call(self, inputs, *args, **kwargs):
        return 2 * super().call(inputs, *args, **kwargs)


class UnitOfTwice(tfr.layers.ResidualUnit):
    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(2 * inputs, *args, **kwargs)


@pytest.mark.parametrize("kind", [HalfMerge, TwiceUnit, UnitOfTwice])
def test_what_a_subclass_computes_is_the_block(kind):
    """An addition or a residual unit whose class computes something else is whole."""
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    for index in range(2):
        if kind is HalfMerge:
            state = kind(name=f"end{index}")([state, convolution(4, f"conv{index}")(state)])
        else:
            state = kind(4, name=f"end{index}")(state)
    model = model_of(inputs, state)
    images = rows(3, 8, 8, 3)
    given = tfr.chain(model).with_context(images)
    assert len(given.blocks) == 2
    state = given.stem(images)
    for block in given.blocks:
        changed, state = block.changed(state, None, lambda branch: branch), block.apply(state)
        np.testing.assert_allclose(changed, state, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given.head(state), model(images), rtol=1e-5, atol=1e-5)


# Operations, and nested models that are called in many ways


class TrainingInside(layers.Layer):
    """Passes the argument `training` on, without taking it."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5)

    def build(self, input_shape):
        pass

    def call(self, inputs):
        return self.dropout(inputs)


class Shaped(layers.Layer):
    """Has a method for its output that takes fewer arguments than its call."""

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs, training=None):
        return 2 * inputs


class Scaling(layers.Layer):
    """Has a weight, and no method for its output."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], name="scale")

    def call(self, inputs, training=None):
        return self.scale * inputs


class Doubled(keras.Model):
    """Computes something else than its graph."""

    def call(self, inputs, **kwargs):
        return 2 * super().call(inputs, **kwargs)


def own_call(rows):
    inner = keras.Input((4,))
    return Doubled(inner, layers.Dense(4)(inner))(rows)


def recurrent(rows):
    sequence, last = layers.GRU(3, return_sequences=True, return_state=True)(rows[:, None] + 1)
    return layers.Dense(4)(ops.sum(ops.take(sequence, indices=[0, 0], axis=1), axis=1) * last)


def pair(rows):
    first, second = keras.Input((4,)), keras.Input((4,))
    both = keras.Model([first, second], [layers.Subtract()([first, second]), 3.0 * second])
    left, right = both([layers.Dense(4)(rows), rows])
    return both([right, left])[0]


def by_names(rows):
    inner = [keras.Input((4,), name=name) for name in "ab"]
    named = keras.Model(inner, layers.Subtract()(inner))
    return named({"a": layers.Dense(4)(rows), "b": rows})


def shared_and_unused(rows):
    inner = keras.Input((4,))
    model = keras.Model(inner, 2.0 * layers.Dense(4)(inner))
    around = keras.Sequential([keras.Input((4,)), model, layers.ReLU()])
    # Not on the way to the output.
    model(around(rows))
    return ops.split(layers.Concatenate()([model(rows), around(rows)]), 2, axis=-1)[1]


def called_by_name(rows):
    inner = keras.Input((4,))
    return keras.Model(inner, Shaped()(layers.Dense(4)(inner)))(inputs=rows)


BRANCHES = {
    "training is overridden": lambda rows: layers.Dense(4)(
        layers.Dropout(0.5)(layers.GaussianNoise(1.0)(rows, training=True), training=True)
    ),
    "training only inside": lambda rows: layers.Dense(4)(TrainingInside()(rows, training=True)),
    "a call of its own": own_call,
    "mixed precision": lambda rows: Scaling(dtype="mixed_float16")(rows),
} | {one.__name__: one for one in (recurrent, pair, by_names, shared_and_unused, called_by_name)}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_of_operations_and_nested_models(name):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Add(name="add")([inputs, BRANCHES[name](inputs)]))
    chain, given = tfr.chain(model), rows(5, 4)
    expected = model.predict(given, batch_size=5, verbose=0)
    np.testing.assert_array_equal(tf.function(chain)(given), expected)
    assert [block.name for block in chain.blocks] == ["add"]
    branch = chain.blocks[0].branch(given)
    np.testing.assert_allclose(given + branch, expected, rtol=1e-5, atol=1e-6)
