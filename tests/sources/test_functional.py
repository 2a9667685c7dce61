"""Chains of functional models written by hand, against the models themselves.

Every model is built a second time without a block, with the weights of the whole one, and cut in
two before every block with `keras.Model(state, output)`.

Not covered here: published architectures, which are in test_applications.
"""

import dataclasses
import functools
import gc
import re
import weakref

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops
from reference.random_network import random_batch, random_network, randomise, sample, states_of

import tfresidual as tfr
from tfresidual import callbacks, networks, probes
from tfresidual.routing import evaluate
from tfresidual.routing.chain import VALID_POSITIONS
from tfresidual.routing.gradients import walk_with_gradients
from tfresidual.routing.routes import drop, follow, repeat_last_block, unperturbed
from tfresidual.sources.keras_models import chain_of_model

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


# Every builder leaves out the blocks whose numbers are in `skip`, and returns the model and, for
# every block, the state before it, or, where nested models hide that, the rest of the model.


def post_activation(skip=(), shape=(8, 8, 3)):
    inputs = images_input(shape)
    state, states = layers.ReLU(name="stem_relu")(convolution(4, "stem")(inputs)), []
    for number, (filters, strides) in enumerate([(4, 1), (4, 1), (8, 2), (8, 1)]):
        states.append(state)
        if number in skip:
            continue
        name = f"block{number}"
        branch, shortcut = branch_of(state, filters, name, strides), state
        if strides > 1:
            shortcut = convolution(filters, f"{name}_projection", strides, 1)(state)
            shortcut = layers.BatchNormalization(name=f"{name}_projection_bn")(shortcut)
        state = layers.Add(name=f"{name}_add")([shortcut, branch])
        state = layers.Activation("relu", name=f"{name}_relu2")(state)
    return model_of(inputs, state), states


def pre_activation(skip=()):
    """With a pre-activation that projection and branch share, and one before the head."""
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number, (filters, strides) in enumerate([(4, 1), (4, 1), (8, 2), (8, 1), (8, 1)]):
        states.append(state)
        if number in skip:
            continue
        name = f"block{number}"
        activated = layers.BatchNormalization(name=f"{name}_bn0")(state)
        activated = layers.Activation("relu", name=f"{name}_relu0")(activated)
        if strides > 1:
            state = convolution(filters, f"{name}_projection", strides, 1)(activated)
        branch = convolution(filters, f"{name}_conv1", strides, use_bias=False)(activated)
        branch = layers.ReLU(name=f"{name}_relu1")(branch)
        state = ops.add(convolution(filters, f"{name}_conv2")(branch), state)
    state = layers.BatchNormalization(name="head_bn")(state)
    return model_of(inputs, layers.Activation("relu", name="head_relu")(state)), states


def inverted(skip=()):
    """Inverted residuals with squeeze-excitation and dropout; those with strides add nothing."""
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number, (filters, strides) in enumerate([(4, 1), (6, 2), (6, 1), (6, 1)]):
        if number in skip:
            continue
        name, width = f"part{number}", 2 * state.shape[-1]
        branch = convolution(width, f"{name}_expansion", size=1, use_bias=False)(state)
        branch = layers.ReLU(6.0, name=f"{name}_relu")(
            layers.BatchNormalization(name=f"{name}_bn1")(branch)
        )
        branch = layers.DepthwiseConv2D(3, strides, padding="same", name=f"{name}_depthwise")(
            branch
        )
        squeezed = layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}_pooling")(branch)
        squeezed = convolution(2, f"{name}_squeeze", size=1, activation="relu")(squeezed)
        squeezed = convolution(width, f"{name}_excite", size=1, activation="sigmoid")(squeezed)
        branch = layers.Multiply(name=f"{name}_scaling")([branch, squeezed])
        branch = convolution(filters, f"{name}_contraction", size=1)(branch)
        branch = layers.BatchNormalization(name=f"{name}_bn2")(branch)
        if strides == 1:
            states.append(state)
            branch = layers.Dropout(0.5, name=f"{name}_dropout")(branch)
            state = state + branch
        else:
            state = branch
    return model_of(inputs, state), states


def pooled_shortcut(skip=()):
    """A stage whose first block halves the states; then a pooling between two stages."""
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number, kind in enumerate([IDENTITY, RESAMPLING, IDENTITY, IDENTITY]):
        if number == 3:
            state = layers.AveragePooling2D(2, name="pooling_between")(state)
        states.append(state)
        if number in skip:
            continue
        strides = 2 if kind == RESAMPLING else 1
        branch = branch_of(state, 4, f"block{number}", strides)
        if kind == RESAMPLING:
            state = layers.MaxPooling2D(1, 2, name="maximum")(state)
        state = layers.Add(name=f"block{number}_add")([branch, state])
    return model_of(inputs, state), states


def shared_layers(skip=()):
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    first, second = convolution(4, "conv1", activation="relu"), convolution(4, "conv2")
    for number in range(3):
        states.append(state)
        if number in skip:
            continue
        branch = layers.BatchNormalization(name=f"bn{number}")(second(first(state)))
        state = layers.Add(name=f"add{number}")([branch, state])
    return model_of(inputs, state), states


def inner_block(name):
    inputs = keras.Input((8, 8, 4), name=f"{name}_inputs")
    branch = branch_of(inputs, 4, name)
    return keras.Model(inputs, layers.Add(name=f"{name}_add")([inputs, branch]), name=name)


def nested_shared(skip=()):
    """The same nested model twice, one more inside of a further one, and a nested branch."""
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    twice, once = inner_block("twice"), inner_block("once")
    around = keras.Sequential([keras.Input((8, 8, 4)), once], name="around")
    branch = keras.Sequential(
        [keras.Input((8, 8, 4)), convolution(4, "branch_conv"), layers.ReLU(name="branch_relu")],
        name="branch",
    )
    parts = [twice, around, twice, lambda h: layers.Add(name="add")([branch(h), h])]
    for number, part in enumerate(parts):
        state = state if number in skip else part(state)
    model = model_of(inputs, state)
    parts += model.layers[-2:]
    return model, [in_a_row(parts[number:]) for number in range(4)]


def in_a_row(parts):
    return lambda state: functools.reduce(lambda h, part: part(h), parts, state)


def sequential(skip=()):
    parts = [inner_block(f"block{number}") for number in range(3)]
    model = keras.Sequential(
        [
            images_input(),
            convolution(4, "stem"),
            *(part for number, part in enumerate(parts) if number not in skip),
            layers.GlobalAveragePooling2D(name="pooling"),
            keras.Sequential([layers.Dense(5, name="classifier"), layers.Softmax()], name="ending"),
        ],
        name="small",
    )
    return model, [in_a_row(model.layers[number:]) for number in (1, 2, 3)]


def two_branches(skip=()):
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number, strides in enumerate([1, 2, 1]):
        states.append(state)
        if number in skip:
            continue
        paths = [
            layers.BatchNormalization(name=f"bn{number}{side}")(
                convolution(4, f"conv{number}{side}", strides)(state)
            )
            for side in "ab"
        ]
        state = layers.Add(name=f"add{number}")(paths)
    return model_of(inputs, state), states


def noisy(skip=()):
    """Layers that would be random in training, one of them told to train."""
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number in range(2):
        states.append(state)
        if number in skip:
            continue
        branch = layers.GaussianNoise(0.5, name=f"noise{number}")(state, training=True)
        branch = convolution(4, f"conv{number}", activation="relu")(branch)
        branch = layers.SpatialDropout2D(0.5, name=f"dropout{number}")(branch, training=True)
        branch = layers.BatchNormalization(name=f"bn{number}")(branch, training=True)
        # A layer that does nothing is no shortcut of its own.
        shortcut = layers.Identity(name=f"identity{number}")(state) if number else state
        state = ops.add(shortcut, branch)
    return model_of(inputs, state), states


def other_additions(skip=()):
    """Additions that are no blocks: of a broadcast tensor, of three tensors, of one to itself."""
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    average = layers.GlobalAveragePooling2D(keepdims=True, name="average")(state)
    state = layers.Add(name="broadcast")([state, average])
    state = state + state + 1.0
    state = layers.Add(name="three")([convolution(4, f"part{i}")(state) for i in range(3)])
    states = [state]
    if 0 not in skip:
        state = layers.Add(name="block")([state, convolution(4, "conv")(state)])
    return model_of(inputs, state), states


def long_skip(skip=()):
    """A shortcut around two blocks, which are then parts of its branch; a block after it."""
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number in range(2):
        states.append(state)
        if number in skip:
            continue
        inner = state
        for index in range(2 - number):
            inner = layers.Add()([inner, branch_of(inner, 4, f"inner{number}{index}")])
        state = layers.Add()([state, inner]) if number == 0 else inner
    return model_of(inputs, state), states


def narrow(skip=()):
    """A branch with fewer parameters than the projection next to it, and a weightless shortcut."""
    inputs = images_input()
    state, states = convolution(8, "stem")(inputs), []
    for number in range(2):
        states.append(state)
        if number in skip:
            continue
        branch = convolution(1, f"reduce{number}", size=1, activation="relu")(state)
        branch = convolution(8, f"expand{number}", size=1)(branch)
        shortcut = convolution(8, "projection", size=1)(state) if number == 0 else 0.5 * state
        state = layers.Add(name=f"add{number}")([branch, shortcut])
    return model_of(inputs, state), states


def side_by_side(skip=()):
    """Two branches added to the state: in sums of two, of three, and one that is dropped out."""
    inputs = images_input()
    state, states = convolution(4, "stem")(inputs), []
    for number in range(4):
        states.append(state)
        if number in skip:
            continue
        one, other = (branch_of(state, 4, f"block{number}{side}") for side in "ab")
        if number == 0:
            state = (state + one) + other
        elif number == 1:
            state = layers.Add(name="three")([one, state, other])
        elif number == 2:
            state = one + (other + layers.Dropout(0.5, name="dropped")(state))
        else:
            # The sum of the branches has a second use: it is a branch of its own.
            total = one + other
            total = total + convolution(4, "again", size=1)(total)
            state = state + layers.ReLU(name="last")(total)
    return model_of(inputs, state), states


def mixed_dtypes(skip=()):
    """States of two dtypes, one after the other, and a stage that begins with the narrower."""
    inputs = images_input()
    state, states = convolution(4, "stem", dtype="mixed_float16")(inputs), []
    for number, dtype in enumerate(["mixed_float16", "float32", "mixed_float16", "float32"]):
        strides = 2 if number == 2 else 1
        states.append(state)
        if number in skip:
            continue
        branch = convolution(4, f"conv{number}", strides, dtype="mixed_float16")(state)
        shortcut = state
        if strides > 1:
            shortcut = convolution(4, "projection", 2, 1, dtype="mixed_float16")(state)
        state = layers.Add(name=f"add{number}", dtype=dtype)([branch, shortcut])
        state = layers.LayerNormalization(name=f"norm{number}", dtype=dtype)(state)
    return model_of(inputs, state, dtype="float32"), states


# For every builder its blocks: stage, shortcut, and whether they keep the shape; and the stages
# that a transition leads into.
MODELS = {
    post_activation: (
        [(1, IDENTITY, True), (1, IDENTITY, True), (2, PROJECTION, False), (2, IDENTITY, True)],
        [],
    ),
    pre_activation: (
        [(1, IDENTITY, True)] * 2 + [(2, PROJECTION, False)] + [(2, IDENTITY, True)] * 2,
        [],
    ),
    inverted: ([(1, IDENTITY, True)] + [(2, IDENTITY, True)] * 2, [2]),
    pooled_shortcut: (
        [(1, IDENTITY, True), (2, RESAMPLING, False), (2, IDENTITY, True), (3, IDENTITY, True)],
        [3],
    ),
    shared_layers: ([(1, IDENTITY, True)] * 3, []),
    nested_shared: ([(1, IDENTITY, True)] * 4, []),
    sequential: ([(1, IDENTITY, True)] * 3, []),
    two_branches: (
        [(1, "two branches", True), (2, "two branches", False), (2, "two branches", True)],
        [],
    ),
    noisy: ([(1, IDENTITY, True)] * 2, []),
    other_additions: ([(1, IDENTITY, True)], []),
    long_skip: ([(1, IDENTITY, True)] * 2, []),
    narrow: ([(1, PROJECTION, True), (1, "weightless", True)], []),
    side_by_side: ([(1, IDENTITY, True)] * 4, []),
}


def copied(model, other):
    """A model with the weights of another one, by their paths."""
    values = {weight.path: weight for weight in other.weights}
    for weight in model.weights:
        weight.assign(values[weight.path])
    return model


def batch_of(model, images=3, size=8):
    rng = np.random.default_rng(1)
    shape = [size if n is None else n for n in model.input_shape[1:]]
    return rng.normal(size=(images, *shape)).astype("float32"), rng.integers(0, 5, images)


# What `make test` leaves out: relatives of those that it tries.
IN_SYSTEM_TESTS = (pooled_shortcut, sequential, long_skip, side_by_side)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(builder, marks=[pytest.mark.system] if builder in IN_SYSTEM_TESTS else [])
        for builder in MODELS
    ],
    ids=lambda builder: builder.__name__,
)
def case(request):
    """A builder, its model with random weights and statistics, the states, and the chain."""
    keras.utils.set_random_seed(0)
    model, states = request.param()
    randomise(model)
    return request.param, model, states, tfr.chain(model)


def test_blocks_and_stages(case):
    builder, _, _, chain = case
    blocks, transitions = MODELS[builder]
    assert [(b.stage, b.shortcut, b.keeps_shape) for b in chain.blocks] == blocks
    assert [s.index for s in chain.stages if s.transition is not None] == transitions
    assert not any(block.takes_anchor for block in chain.blocks)
    if builder in (post_activation, pre_activation, inverted, sequential, noisy):
        assert chain.notes == ()


def test_unperturbed_is_predict(case):
    _, model, _, chain = case
    images, _ = batch_of(model)
    expected = model.predict(images, batch_size=len(images), verbose=0)
    np.testing.assert_array_equal(tf.function(chain)(tf.constant(images)), expected)
    np.testing.assert_allclose(chain(images), expected, rtol=1e-5, atol=1e-7)


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


def test_dropping_a_block_is_building_without_it(case):
    builder, model, _, chain = case
    # That the chain is the model is shown above.
    chain, batch = dataclasses.replace(chain, reference=None), batch_of(model)
    # In `inverted`, the second part adds nothing: it is the transition.
    numbers = [0, 2, 3] if builder is inverted else range(len(chain.blocks))
    places = [
        (number, (block.stage, block.index))
        for number, block in zip(numbers, chain.blocks, strict=True)
        if block.keeps_shape
    ]
    routes = [drop(chain, place) for _, place in places]
    outputs = evaluate(chain, batch, routes, with_outputs=True).outputs
    whole = model(batch[0], training=False)
    for (number, _), measured in zip(places, outputs, strict=True):
        without = copied(builder(skip=(number,))[0], model)(batch[0], training=False)
        np.testing.assert_allclose(measured, without, rtol=1e-4, atol=1e-6)
        assert np.abs(measured - whole).max() > 1e-4


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


def test_weights_are_the_models(case):
    _, model, _, chain = case
    assert {id(w) for w in chain.weights} == {id(w) for w in model.trainable_weights}
    assert len(chain.weights) == len(model.trainable_weights)
    for block in chain.blocks:
        assert {id(w) for w in block.weights.values()} <= {id(w) for w in chain.weights}
        assert len({id(w) for w in block.weights.values()}) == len(block.weights) > 0
    alike = {}
    for block in chain.blocks:
        alike.setdefault((block.stage, block.shortcut), set()).add(tuple(block.weights))
    # In `nested_shared` and `long_skip` the branches of blocks differ.
    assert all(len(roles) == 1 for roles in alike.values()) or len(alike) == 1


# What single models show


def test_branch_scaled_behind_the_stages_activation():
    model, states = post_activation()
    randomise(model)
    chain = tfr.chain(model)
    images, _ = batch_of(model)
    pairs, _ = chain.walk(chain.stem(images))
    parts = keras.Model(states[3], [model.get_layer("block3_bn2").output])
    before, _ = pairs[3]
    branch = parts(before)
    np.testing.assert_allclose(chain.blocks[3].branch(before), branch, rtol=1e-6)
    for scale in (0.3, -1.0):
        expected = tf.nn.relu(before + scale * branch)
        np.testing.assert_allclose(chain.blocks[3](before, scale=scale), expected, atol=1e-6)
    assert list(chain.blocks[3].weights) == [
        f"{number}/{name}"
        for number, name in enumerate(["Conv2D", "BatchNormalization"] * 2)
        for name in ([f"{name}/kernel", f"{name}/bias"] if name == "Conv2D" else
                     [f"{name}/gamma", f"{name}/beta"])
    ]  # fmt: skip


def test_an_activation_with_weights_parts_no_blocks():
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    for _ in range(3):
        state = layers.PReLU()(layers.Add()([state, convolution(4, None)(state)]))
    chain = tfr.chain(model_of(inputs, state))
    assert [(block.stage, block.shortcut) for block in chain.blocks] == [(1, IDENTITY)] * 3
    assert all(list(block.weights)[-1] == "1/PReLU/alpha" for block in chain.blocks)


def test_a_shared_pre_activation_is_the_blocks():
    model, states = pre_activation()
    randomise(model)
    chain = tfr.chain(model)
    images, _ = batch_of(model)
    # The state is that of the addition before, with its own normalization in the block.
    (before, _) = chain.walk(chain.stem(images))[0][2]
    np.testing.assert_allclose(before, keras.Model(model.inputs[0], states[2])(images), rtol=1e-5)
    assert "0/BatchNormalization/gamma" in chain.blocks[2].weights
    bn = model.get_layer("block2_bn0")
    assert chain.blocks[2].weights["0/BatchNormalization/gamma"] is bn.gamma
    # The last one is the head's.
    assert len(chain.blocks[4].weights) == 2 + 1 + 2


def test_weights_shared_by_blocks_are_one():
    chain = tfr.chain(shared_layers()[0])
    first, second = chain.blocks[0].weights, chain.blocks[2].weights
    assert first.keys() == second.keys()
    one = [role for role in first if first[role] is second[role]]
    assert one == ["0/Conv2D/kernel", "0/Conv2D/bias", "1/Conv2D/kernel", "1/Conv2D/bias"]


def test_frozen_parameters_are_parameters():
    model, _ = pre_activation()
    expected = [weight.path for weight in tfr.chain(model).weights]
    for frozen in (
        [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)],
        [model],
    ):
        for layer in frozen:
            layer.trainable = False
        assert [weight.path for weight in tfr.chain(model).weights] == expected
    model.trainable = True
    model.get_layer("stem").kernel.trainable = False
    assert [weight.path for weight in tfr.chain(model).weights] == expected


class Scale(layers.Layer):
    """A layer of one's own, with a parameter and a count."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.seen = self.add_weight(shape=(), dtype="int32", trainable=False, name="seen")

    def call(self, inputs):
        return self.scale * inputs


def own_layers():
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    state = layers.Add()([state, Scale(name="scale")(convolution(4, "conv")(state))])
    return model_of(inputs, state)


def test_layers_of_ones_own_are_named():
    chain = tfr.chain(own_layers())
    assert list(chain.blocks[0].weights)[2:] == ["1/Scale/scale"]
    (note,) = chain.notes
    assert note == "the inside of these layers cannot be seen: Scale (1: scale)"
    assert str(chain).splitlines()[-1] == f"  note: {note}"


def test_what_is_no_block_is_noted():
    (note,) = tfr.chain(other_additions()[0]).notes
    assert "of other shapes, or of the same tensor (2: broadcast, add" in note
    assert "of several tensors, none of them the state (1: three)" in note
    (note,) = tfr.chain(long_skip()[0]).notes
    assert re.search(r"off the trunk \(1: add\w*\);", note)


def test_the_overview():
    assert str(tfr.chain(pooled_shortcut()[0])).splitlines() == [
        "small: 4 blocks in 3 stages",
        "  stage 1: 1 block",
        "    block 0 (identity, block0_add): drop, read out after, repeat block 0",
        "  stage 2: 2 blocks",
        "    block 0 (resampling, block1_add): changes the shape, read out after",
        "    block 1 (identity, block2_add): drop, read out after, repeat block 1",
        "  stage 3: 1 block, entered by a transition",
        "    block 0 (identity, block3_add): drop, read out after, repeat block 0",
    ]


def test_a_branch_of_two_can_be_scaled():
    model, _ = side_by_side()
    chain = tfr.chain(model)
    assert chain.notes[0].startswith("additions that are not blocks themselves: off the trunk (")
    state = chain.stem(batch_of(model)[0])
    for block in chain.blocks:
        np.testing.assert_array_equal(block(state, None, 0.0), state)
        half, whole = block(state, None, 0.5), block(state)
        np.testing.assert_allclose(2 * (half - state), whole - state, rtol=1e-4, atol=1e-5)


@pytest.mark.system
def test_states_of_several_dtypes(tmp_path):
    model, _ = mixed_dtypes()
    randomise(model)
    chain, data = tfr.chain(model), batch_of(model)
    assert {block.shortcut for block in chain.blocks} == {IDENTITY, PROJECTION}
    assert [block.keeps_shape for block in chain.blocks] == [True, True, False, True]
    pairs, _ = chain.walk(chain.stem(data[0]))
    assert {state.dtype for pair in pairs for state in pair} == {tf.float32}
    np.testing.assert_array_equal(tf.function(chain)(data[0]), model.predict(data[0], verbose=0))
    frame = probes.block_metrics(chain, data)
    assert np.isfinite(frame["l2_ratio"]).tolist() == [True, True, False, True]
    assert len(probes.repeat_last_block(chain, data, times=2)) == 6
    assert len(probes.fixed_point(chain, data, times=2))
    tfr.export(chain, tmp_path / "net")
    loaded = probes.drop_blocks(tfr.chain(tmp_path / "net"), data)
    pd.testing.assert_frame_equal(loaded, probes.drop_blocks(chain, data))


def sound(channels=4):
    """Takes sounds of any length that can be halved ten times."""
    inputs = keras.Input((None, 1), name="sound")
    state = inputs
    for number in range(5):
        state = layers.Conv1D(channels, 4, 4, name=f"stem{number}")(state)
    state = state + layers.Conv1D(channels, 3, padding="same", name="conv")(state)
    outputs = layers.Dense(5, name="classifier")(layers.GlobalAveragePooling1D()(state))
    return keras.Model(inputs, outputs, name="sound")


class Positions(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(64, shape[-1]), name="table")

    def call(self, states):
        return states + self.table[: ops.shape(states)[1]]

    def compute_output_spec(self, states):
        if states.shape[1] is not None and states.shape[1] > 64:
            raise ValueError("There are 64 positions.")
        return keras.KerasTensor(states.shape, states.dtype)


def tokens(mask_zero=False):
    inputs = keras.Input((None,), dtype="int32", name="tokens")
    state = layers.Embedding(20, 4, mask_zero=mask_zero, name="embedding")(inputs)
    state = state if mask_zero else Positions(name="positions")(state)
    for number in range(2):
        branch = layers.Dense(4, activation="relu", name=f"dense{number}")(state)
        state = layers.Add(name=f"add{number}")([state, branch])
    state = layers.GlobalAveragePooling1D(name="pooling")(state)
    return keras.Model(inputs, layers.Dense(5, name="classifier")(state), name="tokens")


def test_lengths_that_the_usual_size_does_not_fit():
    rng = np.random.default_rng(0)
    for model, given in (
        (sound(), rng.normal(size=(2, 4096, 1)).astype("float32")),
        (tokens(), rng.integers(0, 20, (2, 10))),
    ):
        chain = tfr.chain(model)
        np.testing.assert_allclose(chain(given), model.predict(given, verbose=0), rtol=1e-5)


@pytest.mark.parametrize("detached", [ops.stop_gradient, ops.round])
def test_a_branch_that_has_no_gradient_is_a_block(detached):
    inputs = keras.Input((4,))
    state = layers.Dense(4)(inputs)
    for _ in range(2):
        state = layers.Add()([state, layers.Dense(4)(detached(state))])
    assert len(tfr.chain(keras.Model(inputs, layers.Dense(3)(state))).blocks) == 2


def test_a_mask_that_leads_past_the_blocks_is_context():
    model = tokens(mask_zero=True)
    chain = tfr.chain(model)
    assert len(chain.blocks) == len(tfr.chain(tokens(mask_zero=False)).blocks)
    ids = np.random.default_rng(0).integers(0, 3, (5, 6))
    assert chain.context(ids)[VALID_POSITIONS].shape == ids.shape
    np.testing.assert_allclose(chain(ids), model.predict(ids, verbose=0), rtol=1e-5, atol=1e-6)


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
            branch = layers.Dense(6, "tanh", kernel_initializer=normal_of(number))(state)
            state = layers.Add()([state, branch if number == 0 else Shift()(branch)])
        outputs = layers.Dense(3, kernel_initializer=normal_of(2))(layers.Flatten()(state))
        data = np.random.default_rng(0).normal(size=(5, 4, 6, 1)), np.arange(5) % 3
        chain = tfr.chain(keras.Model(images, outputs))
        for probe in (probes.readout, probes.drop_blocks, probes.lens, probes.block_metrics):
            frame = probe(chain, data)
            if probe in frames:
                pd.testing.assert_frame_equal(frame, frames[probe], rtol=1e-5, atol=1e-6)
            frames[probe] = frame


def normal_of(seed):
    return keras.initializers.RandomNormal(stddev=0.5, seed=seed)


@pytest.mark.nightly
@pytest.mark.compiled
def test_a_network_with_bounds_is_not_kept_by_its_callbacks():
    net = random_network(blocks=1, widths=(2,), lipschitz=0.9)
    net.compile("sgd", "sparse_categorical_crossentropy")
    data = random_batch(net, images=4)
    net.fit(*data, verbose=0, callbacks=[callbacks.BlockMetrics(data)])
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None


def test_a_network_of_one_width_is_parted_where_its_grid_changes():
    net = networks.ResidualNetwork((8, 8, 3), 5, blocks=2, widths=(4, 4, 4))
    chain = tfr.chain(keras.Model(net.inputs, net.outputs))
    assert [len(stage.blocks) for stage in chain.stages] == [2, 2, 2]
    assert [stage.exits for stage in chain.stages] == [s.exits for s in tfr.chain(net).stages]


def test_images_of_any_size():
    model, _ = post_activation(shape=(None, None, 3))
    randomise(model)
    chain = tfr.chain(model)
    assert chain.input_shape == (None, None, 3)
    assert [block.keeps_shape for block in chain.blocks] == [True, True, False, True]
    for size in (8, 12):
        images, _ = batch_of(model, size=size)
        np.testing.assert_allclose(chain(images), model.predict(images, verbose=0), rtol=1e-5)


def has_channels_first():
    """Whether TensorFlow has convolutions of channels first here: on a processor, with oneDNN."""
    try:
        tf.nn.conv2d(tf.ones((1, 1, 2, 2)), tf.ones((1, 1, 1, 1)), 1, "SAME", "NCHW")
    except tf.errors.UnimplementedError:
        return False
    return True


@pytest.mark.skipif("not has_channels_first()", reason="no convolutions of channels first here")
def test_channels_first():
    inputs = keras.Input((3, 8, 8))
    state = convolution(4, "stem", data_format="channels_first")(inputs)
    for filters in (4, 6, 6):
        shortcut = state
        if state.shape[1] != filters:
            shortcut = convolution(filters, None, 2, 1, data_format="channels_first")(state)
        strides = 1 if shortcut is state else 2
        branch = convolution(filters, None, strides, data_format="channels_first")(state)
        branch = layers.ReLU()(layers.BatchNormalization(axis=1)(branch))
        branch = convolution(filters, None, data_format="channels_first")(branch)
        state = layers.Add()([shortcut, branch])
    model = model_of(inputs, state, data_format="channels_first")
    chain = tfr.chain(model)
    images, _ = batch_of(model)
    expected = model.predict(images, batch_size=len(images), verbose=0)
    np.testing.assert_array_equal(tf.function(chain)(tf.constant(images)), expected)
    assert [(b.stage, b.shortcut) for b in chain.blocks] == [
        (1, IDENTITY),
        (2, PROJECTION),
        (2, IDENTITY),
    ]


@pytest.mark.parametrize(
    "builder",
    [
        post_activation,
        pytest.param(nested_shared, marks=pytest.mark.system),
        pytest.param(inverted, marks=pytest.mark.nightly),
        pytest.param(sequential, marks=pytest.mark.nightly),
    ],
)
def test_mixed_precision(global_policy, builder):
    global_policy("mixed_bfloat16")
    model, _ = builder()
    randomise(model)
    chain = tfr.chain(model)
    assert [(b.stage, b.shortcut, b.keeps_shape) for b in chain.blocks] == MODELS[builder][0]
    images, labels = batch_of(model)
    states = [before for before, _ in chain.walk(chain.stem(images))[0]]
    assert states[-1].dtype == "bfloat16"
    expected = model.predict(images, batch_size=len(images), verbose=0)
    np.testing.assert_allclose(
        tf.function(chain)(tf.constant(images)), expected, rtol=2e-2, atol=2e-3
    )
    np.testing.assert_array_equal(chain(images), model(images))
    assert np.isfinite(probes.block_metrics(chain, (images, labels))["gradient_norm"]).all()


@pytest.mark.parametrize("kind", [keras.Sequential, keras.Model])
def test_nested_models_of_another_dtype(kind):
    """A nested model takes its inputs to its own dtype; a `Sequential` first to its policy's."""
    inner = [keras.Input((8, 8, 4), dtype="float32"), convolution(4, "conv", dtype="float32")]
    if kind is keras.Model:
        nested = keras.Model(inner[0], inner[1](inner[0]))
    else:
        nested = keras.Sequential(inner)
        nested.dtype_policy = keras.DTypePolicy("bfloat16")
    inputs = images_input()
    state = convolution(4, "stem", dtype="float64")(inputs)
    state = ops.add(nested(state), ops.cast(state, "float32"))
    state = layers.Add()([state, convolution(4, "last")(state)])
    model = model_of(inputs, state)
    images, _ = batch_of(model)
    np.testing.assert_array_equal(tfr.chain(model)(images), model(images))


# Networks of this package inside of other models


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
    last = len(own.stages[0].blocks) - 1
    if net.transition == "downsampling_block":
        # Seen from outside, it is a block of the stage that it begins.
        assert chain.stages[1].blocks[0].shortcut == RESAMPLING
        assert [block.keeps_shape for block in chain.stages[1].blocks] == [False] + [True] * 2
        routes = [drop(chain, (1, last)), drop(chain, (2, 2)), repeat_last_block(chain, 2, 2)]
        of_net = [drop(own, (1, last)), drop(own, (2, 1)), repeat_last_block(own, 2, 2)]
    else:
        for name in ("stage", "index", "keeps_shape", "takes_anchor", "shortcut"):
            values = [[getattr(block, name) for block in c.blocks] for c in (chain, own)]
            assert values[0] == values[1]
        for block, other in zip(chain.blocks, own.blocks, strict=True):
            assert block.weights.items() == other.weights.items()
            assert (block.lipschitz is None) == (other.lipschitz is None)
        routes = [drop(chain, (1, last)), drop(chain, (2, 1)), repeat_last_block(chain, 2, 2, 0.5)]
        of_net = [drop(own, (1, last)), drop(own, (2, 1)), repeat_last_block(own, 2, 2, 0.5)]
    values = evaluate(chain, (2 * images, labels), routes, with_outputs=True).outputs
    expected = evaluate(own, (images, labels), of_net, with_outputs=True).outputs
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.compiled
def test_bounds_follow_the_weights_of_a_nested_network():
    net = random_network(blocks=1, widths=(4,), lipschitz=0.9)
    model = keras.Model(net.inputs[0], layers.Activation("linear")(net.outputs[0]))
    chain = tfr.chain(model)
    images, labels = random_batch(net)
    randomise(net, 7)
    measured = evaluate(chain, (images, labels), [unperturbed(chain)], with_outputs=True).outputs
    np.testing.assert_allclose(measured[0], net.predict(images, verbose=0), rtol=1e-5)


def test_an_anchor_from_elsewhere_is_refused():
    inputs = images_input((8, 8, 4))
    units = [tfr.layers.ResidualUnit(4, name=f"unit{i}") for i in range(3)]
    first = units[0](inputs)
    second = units[1](first)
    model = model_of(inputs, units[2](second, first))
    with pytest.raises(ValueError, match=r"anchor is the state.*Received: unit2"):
        tfr.chain(model)
    # Nor is one next to the trunk.
    model = model_of(inputs, units[0](inputs) + units[1](inputs, inputs))
    with pytest.raises(ValueError, match=r"are on the trunk.*Received: unit1"):
        tfr.chain(model)


def test_layers_around_units():
    inputs = images_input((8, 8, 4))
    units = [tfr.layers.ResidualUnit(4, name=f"unit{i}") for i in range(3)]
    state = inputs
    for unit in units:
        state = layers.BatchNormalization()(unit(state))
    model = model_of(inputs, state)
    randomise(model)
    chain = tfr.chain(model)
    images, _ = batch_of(model)
    np.testing.assert_array_equal(chain(images), model(images))
    for block, unit in zip(chain.blocks, units, strict=True):
        added = ["0/BatchNormalization/gamma", "0/BatchNormalization/beta"]
        assert list(block.weights) == [*unit.weights_by_role(), *added]
        state = chain.stem(images)
        np.testing.assert_allclose(block(state, scale=1.0), block(state), rtol=1e-5, atol=1e-6)


def test_a_network_as_a_plain_model():
    net = random_network(blocks=2, layout="full_preactivation")
    chain = chain_of_model(keras.Model(net.inputs[0], net.outputs[0]))
    images, _ = random_batch(net)
    states, _, _ = states_of(net, images)
    pairs, _ = chain.walk(chain.stem(images))
    flat = [state for stage in states for state in stage]
    for (before, _), state in zip(pairs, flat, strict=True):
        np.testing.assert_array_equal(before, state)


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


@pytest.mark.system
@pytest.mark.compiled
def test_nothing_is_left_behind():
    model, _ = nested_shared()
    tfr.chain(model)

    def tensors():
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) is keras.KerasTensor]

    # They are kept, so that none of theirs is the place of a new one; those of other tests may go.
    before = tensors()
    tfr.chain(model)
    assert {id(tensor) for tensor in tensors()} <= {id(tensor) for tensor in before}


@pytest.mark.compiled
def test_a_chain_does_not_hold_its_model():
    # Callbacks keep chains by model, as long as the model lives.
    model, _ = post_activation()
    chain, reference = tfr.chain(model), weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert len(chain.blocks) == 4


def test_training_goes_on_at_inference():
    """Nothing of a chain that is followed inside of a step of training trains."""
    model, _ = noisy()
    chain = tfr.chain(model)
    images, _ = batch_of(model)
    expected = chain(images)
    before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]

    class Training(keras.layers.Layer):
        def call(self, inputs):
            return chain(inputs)

    np.testing.assert_allclose(Training()(images, training=True), expected, rtol=1e-5)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


# Losses and outputs


@pytest.mark.parametrize(
    ("last", "outputs"),
    [
        (layers.Softmax(), "probabilities"),
        (layers.Activation("softmax"), "probabilities"),
        (ops.softmax, "probabilities"),
        (layers.Activation("sigmoid"), "label_probabilities"),
        (ops.sigmoid, "label_probabilities"),
        (keras.Sequential([layers.Dense(5, activation="softmax")]), "probabilities"),
        (layers.Dense(5), "logits"),
        (
            keras.Sequential([layers.Softmax(), layers.Reshape((5,)), layers.Activation("linear")]),
            "probabilities",
        ),
        (lambda state: state[:, :3], "logits"),
    ],
)
def test_what_the_outputs_are(last, outputs):
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    state = layers.Add()([state, convolution(4, "conv")(state)])
    state = layers.Dense(5)(layers.GlobalAveragePooling2D()(state))
    model = keras.Model(inputs, last(state))
    chain = tfr.chain(model)
    assert chain.outputs == outputs
    images, labels = batch_of(model)
    values = model(images)
    labels = np.eye(values.shape[1], dtype="float32")[labels % values.shape[1]]
    if outputs == "logits":
        expected = keras.losses.categorical_crossentropy(labels, values, from_logits=True)
    elif outputs == "probabilities":
        expected = keras.losses.categorical_crossentropy(labels, values)
    else:
        expected = keras.losses.binary_crossentropy(labels, values)
    np.testing.assert_allclose(chain.loss(labels, chain(images)), expected, rtol=1e-4)


def test_outputs_that_are_no_classes():
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    chain = tfr.chain(keras.Model(inputs, state + convolution(4, "conv")(state)))
    assert chain.outputs == "values"
    frame = probes.perturbation(chain, batch_of(keras.Model(inputs, state)))
    assert (frame["perturbation"] > 0).all()


def test_the_compiled_loss():
    model, _ = post_activation()
    model.compile("sgd", keras.losses.CategoricalCrossentropy(label_smoothing=0.2))
    images, labels = batch_of(model)
    rows = np.eye(5, dtype="float32")[labels]
    chain = tfr.chain(model)
    expected = model.evaluate(images, rows, verbose=0)
    np.testing.assert_allclose(np.mean(chain.loss(rows, chain(images))), expected, rtol=1e-5)


# Probes and callbacks


@pytest.mark.parametrize(
    "builder",
    [
        post_activation,
        pytest.param(pre_activation, marks=pytest.mark.nightly),
        pytest.param(inverted, marks=pytest.mark.system),
    ],
)
def test_probes_run(builder):
    model, _ = builder()
    randomise(model)
    chain = tfr.chain(model)
    data = batch_of(model, 6)
    count = len(chain.blocks)
    keeps = [block.keeps_shape for block in chain.blocks]
    metrics = probes.block_metrics(chain, data)
    assert len(metrics) == count and np.isfinite(metrics["gradient_norm"]).all()
    assert np.isfinite(metrics["cosine_loss"]).tolist() == keeps
    readout = probes.readout(chain, data)
    assert np.isfinite(readout["error"]).all() and len(readout) == count
    error = 1 - np.mean(model.predict(data[0], verbose=0).argmax(axis=1) == data[1])
    np.testing.assert_allclose(readout["error"].iloc[-1], error, rtol=1e-6)
    assert np.isfinite(probes.drop_blocks(chain, data)["error"]).tolist() == keeps
    repeated = probes.repeat_last_block(chain, data, times=2, scale=0.5)
    assert len(repeated) == 3 * len(chain.stages)
    np.testing.assert_allclose(repeated["error"].iloc[0], error, rtol=1e-6)
    counts = probes.effective_parameters(chain).iloc[0]
    trainable = sum(np.prod(weight.shape, dtype=int) for weight in model.trainable_weights)
    assert counts["raw"] == trainable
    assert counts["recurrent"] < counts["raw"] and counts["recurrent"] < counts["effective"]
    signal = probes.signal_propagation(chain, data)
    assert np.isfinite(signal["shortcut_share"]).all()


def test_signal_through_two_branches_is_undefined_where_the_shape_changes():
    model, _ = two_branches()
    signal = probes.signal_propagation(tfr.chain(model), batch_of(model))
    assert np.isfinite(signal["shortcut_share"]).tolist() == [True, False, True]
    assert np.isfinite(signal["state_norm"]).all()


@pytest.mark.system
def test_a_callback_in_a_fit():
    model, _ = post_activation()
    model.compile("sgd", "sparse_categorical_crossentropy")
    data = batch_of(model, 8)
    history = model.fit(*data, epochs=2, verbose=0, callbacks=[callbacks.BlockMetrics(data)])
    logged = history.history["stage2/block1/cosine_loss"]
    assert len(logged) == 2 and np.isfinite(logged).all()
    expected = probes.block_metrics(model, data)["cosine_loss"].iloc[3]
    np.testing.assert_allclose(logged[-1], expected, rtol=1e-4)


def test_following_a_route():
    model, _ = pre_activation()
    chain = tfr.chain(model)
    images, labels = batch_of(model)
    route = repeat_last_block(chain, 2, 2, 0.5)
    outputs = evaluate(chain, (images, labels), [route], with_outputs=True).outputs[0]
    np.testing.assert_allclose(follow(chain, route)(images), outputs, rtol=1e-5)


# What has no chain


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs):
        return inputs + self.dense(inputs)


class OtherCall(keras.Model):
    """A functional model that computes something else than its graph."""

    def call(self, inputs):
        return 2 * super().call(inputs)


class OtherDunderCall(keras.Model):
    """The same for a model whose `call` is the usual one."""

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(2 * inputs, *args, **kwargs)


class OtherNetwork(networks.ResidualNetwork):
    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(2 * inputs, *args, **kwargs)


def with_a_call_of_its_own():
    (model, _) = post_activation()
    model.call = lambda *args, **kwargs: 2 * type(model).call(model, *args, **kwargs)
    return model


def without_additions():
    inputs = images_input()
    return model_of(inputs, convolution(4, "stem")(inputs))


def hidden_addition():
    inputs = images_input()
    state = convolution(4, "stem")(inputs)
    state = layers.Lambda(lambda pair: pair[0] + pair[1])([state, convolution(4, "conv")(state)])
    return model_of(inputs, layers.Add()([state, state]))


def several(inputs, outputs):
    tensors = [keras.Input((8, 8, 4)) for _ in range(inputs)]
    total = tensors[0] + convolution(4, "conv")(sum(tensors))
    return keras.Model(tensors, [total * (i + 1) for i in range(outputs)], name="several")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Subclassed, r"must be a functional `keras.Model`.*Received: .*type Subclassed"),
        (
            lambda: OtherCall(*(lambda m: (m.inputs, m.outputs))(post_activation()[0])),
            r"must be a functional `keras.Model`.*Received: .*type OtherCall",
        ),
        (
            lambda: OtherDunderCall(*(lambda m: (m.inputs, m.outputs))(post_activation()[0])),
            r"must be a functional `keras.Model`.*Received: .*type OtherDunderCall",
        ),
        (
            with_a_call_of_its_own,
            r"must be a functional `keras.Model`.*Received: .*type Functional",
        ),
        (
            lambda: OtherNetwork((8, 8, 3), 3, blocks=1),
            r"must be a functional `keras.Model`.*Received: .*type OtherNetwork",
        ),
        (
            lambda: keras.Sequential([layers.Dense(3)]),
            r"a `keras.Sequential` with a defined input.*Received: .*type Sequential",
        ),
        (lambda: several(1, 3), r"one output tensor.*Received: source=several with 3 outputs"),
        (without_additions, r"residual additions on one trunk.*Received: source=small with no add"),
        (
            hidden_addition,
            r"Received: .* of the same tensor \(1: \w+\); layers that may hide some: "
            r"Lambda \(1: lambda\w*\)",
        ),
    ],
)
def test_models_without_a_chain(make, message):
    with pytest.raises(ValueError, match=f"Argument `source` {'.*'}{message}"):
        tfr.chain(make())


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
    chain = tfr.chain(model)
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    given = chain.given(images)
    state = given.stem(images)
    for block in given.blocks:
        changed = block.changed(state, None, lambda branch: branch)
        state = block.apply(state)
        np.testing.assert_allclose(changed, state, rtol=1e-5, atol=1e-5)
    assert len(given.blocks) == 2
    np.testing.assert_allclose(given.head(state), model(images), rtol=1e-5, atol=1e-5)


def test_residual_networks_have_their_own_chain():
    net = networks.resnet(20)
    assert tfr.chain(net).blocks[0].shortcut == IDENTITY
    assert tfr.chain(net).blocks[3].shortcut == PROJECTION
