"""Models without blocks, against models made by hand and the routes of their chains."""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from reference.random_network import random_network, randomise
from refusals import refused

import tfresidual as tfr
from tfresidual import networks, routes, surgery

pytestmark = pytest.mark.eager

RNG = np.random.default_rng(0)


def by_hand(skip=(), order=range(4), inputs=1, **kwargs):
    """A functional model of four blocks, some of them left out, with weights that names decide."""
    given = [keras.Input((8, 8, 3), name=f"images{i}") for i in range(inputs)]
    state = layers.Conv2D(4, 3, padding="same", name="stem", **kwargs)(given[0])
    for index in order:
        if index in skip:
            continue
        branch = layers.BatchNormalization(name=f"norm{index}", **kwargs)(state)
        branch = layers.Conv2D(4, 3, padding="same", name=f"conv{index}", **kwargs)(branch)
        if inputs > 1:
            gate = layers.GlobalAveragePooling2D(keepdims=True, name=f"mean{index}")(given[1])
            branch = layers.Multiply(name=f"gate{index}")(
                [branch, layers.Dense(4, name=f"dense{index}")(gate)]
            )
        state = layers.Add(name=f"add{index}", **kwargs)([state, branch])
    state = layers.GlobalAveragePooling2D(name="pooling", **kwargs)(state)
    outputs = layers.Dense(5, activation="softmax", dtype="float32", name="classifier")(state)
    model = keras.Model(given[0] if inputs == 1 else given, outputs, name="by_hand")
    for layer in model.layers:
        rng = np.random.default_rng(sum(map(ord, layer.name)))
        layer.set_weights([rng.uniform(0.1, 0.9, w.shape) for w in layer.get_weights()])
    return model


def images_of(model, count=3):
    return [
        RNG.normal(size=(count, *tensor.shape[1:])).astype("float32") for tensor in model.inputs
    ]


def gradients(model, images):
    """Outputs and gradients of all weights by name, in training."""
    with tf.GradientTape() as tape:
        outputs = model(images, training=True)
        loss = tf.reduce_sum(outputs**2)
    found = tape.gradient(loss, model.trainable_variables)
    named = zip(model.trainable_variables, found, strict=True)
    return outputs, {variable.path: gradient.numpy() for variable, gradient in named}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("skip", [(1,), (0, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("weights", ["copy", "share"])
def test_a_model_equals_one_made_by_hand(inputs, skip, weights):
    """Outputs, gradients and moving statistics after a step, bit for bit; so does its file."""
    model = by_hand(inputs=inputs)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    before = [weight.numpy() for weight in model.weights]
    if inputs == 2 and len(skip) == 4:
        skip = (1, 2)
    found = surgery.without_blocks(model, [(1, index) for index in skip], weights=weights)
    hand = by_hand(skip, inputs=inputs)
    assert [layer.name for layer in found.layers] == [layer.name for layer in hand.layers]
    images = images_of(model)
    images = images[0] if inputs == 1 else images
    np.testing.assert_array_equal(found(images), hand(images))
    for one, other in zip(gradients(found, images), gradients(hand, images), strict=True):
        keras.tree.map_structure(np.testing.assert_array_equal, one, other)
    assert found.compiled and found.optimizer is not model.optimizer
    assert [metric.name for metric in found.metrics] == [metric.name for metric in model.metrics]
    is_shared = any(weight is own for weight in found.weights for own in model.weights)
    assert is_shared == (weights == "share")
    if weights == "copy":
        for weight, value in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(weight, value)


def test_one_output_of_several():
    """It alone is there, compiled with its loss."""
    model, pooling = by_hand(), layers.GlobalAveragePooling2D()
    middle = layers.Dense(3, activation="softmax")(pooling(model.get_layer("add1").output))
    both = keras.Model(model.input, {"deep": model.output, "middle": middle})
    both.compile("adam", {"deep": "sparse_categorical_crossentropy", "middle": "mse"})
    images = images_of(model)[0]
    for source, output in ((both, "deep"), (tfr.chain(both, output="deep"), None)):
        found = surgery.without_blocks(source, "stage1/block3", output=output)
        np.testing.assert_array_equal(found(images), by_hand((3,))(images))
        assert isinstance(found.optimizer, keras.optimizers.Adam)
        assert found.loss == "sparse_categorical_crossentropy"
    with refused("output"):
        surgery.without_blocks(both, [(1, 3)])
    with refused("output"):
        surgery.plan(both, (images, [0, 1, 2]), blocks=1)


def test_routes_that_repeat_and_reorder():
    model, images = by_hand(), images_of(by_hand())[0]
    order = [3, 0, 2, 1]
    found = surgery.reordered(model, 1, order)
    np.testing.assert_array_equal(found(images), by_hand(order=order)(images))
    found = surgery.repeated(model, 1, 2)
    chain = tfr.chain(model)
    expected = routes.follow(chain, routes.repeat_last_block(chain, 1, 2))(images)
    np.testing.assert_allclose(found(images), expected, rtol=1e-6)
    # One block with one set of weights, called three times.
    assert found.count_params() == model.count_params()


NETWORKS = {
    "plain": {},
    "original": {"layout": "original"},
    "bounded": {"lipschitz": 0.9},
    "at its anchor": {"lipschitz": 0.9, "anchor": "input"},
    "shared": {"share_from": 3, "batch_norm": "unshared"},
    "with a transition": {"transition": "average_pooling"},
    "downsampling": {"transition": "downsampling_block"},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_residual_networks(options):
    """One of fewer blocks, with its configuration, which computes what the route does."""
    net = random_network(blocks=4, widths=(4, 8), **options)
    net.compile("sgd", "sparse_categorical_crossentropy")
    chain = tfr.chain(net)
    first = next(block for block in chain.stages[1].blocks if block.keeps_shape)
    blocks = [(1, 1), (2, first.index + 1)]
    found = surgery.without_blocks(net, blocks)
    assert type(found) is networks.ResidualNetwork and found.blocks == (3, 3)
    images = RNG.normal(size=(3, *net.input_shape[1:])).astype("float32")
    expected = routes.follow(chain, routes.drop(chain, *blocks))(images)
    np.testing.assert_allclose(found(images), expected, rtol=1e-5, atol=1e-6)
    assert found.compiled
    labels = np.arange(3) % net.classes
    assert np.isfinite(found.fit(images, labels, verbose=0).history["loss"][0])
    if "share_from" in options:
        # `share_from` is the same for all stages.
        with refused("blocks"):
            surgery.without_blocks(net, blocks[:1])
    with refused("stage"):
        surgery.without_blocks(net, [(3, 0)])


SMALL = {"weights": None, "classes": 5, "input_shape": (32, 32, 3)}
APPLICATIONS = {
    "ResNet50V2": {},
    "MobileNetV2": {"alpha": 0.35},
    "EfficientNetV2B0": {"include_preprocessing": False},
    "ConvNeXtTiny": {"include_preprocessing": False},
}


@functools.cache
def application(name):
    model = getattr(keras.applications, name)(**SMALL, **APPLICATIONS[name])
    randomise(model)
    return model


@pytest.mark.parametrize("name", ["MobileNetV2", *(n for n in APPLICATIONS if n != "MobileNetV2")])
@pytest.mark.nightly
def test_published_architectures_and_their_files(name, tmp_path):
    """The file opens and trains in a process without this package."""
    model = application(name)
    model.compile("sgd", "sparse_categorical_crossentropy")
    chain = tfr.chain(model)
    blocks = [(b.stage, b.index) for b in chain.blocks if b.keeps_shape][1::2]
    found = surgery.without_blocks(model, blocks)
    assert found.count_params() < model.count_params()
    images = RNG.normal(size=(2, 32, 32, 3)).astype("float32")
    expected = routes.follow(chain, routes.drop(chain, *blocks))(images)
    np.testing.assert_allclose(found(images, training=False), expected, rtol=1e-5, atol=1e-5)
    opened_elsewhere(found, images, tmp_path, "model.fit(given, np.array([0, 1]), verbose=0)")


def opened_elsewhere(model, given, folder, then, imports=""):
    """Saves a model, which a process without this package opens and calls."""
    model.save(folder / "smaller.keras")
    np.savez(folder / "inputs.npz", *keras.tree.flatten(given))
    given = keras.tree.pack_sequence_as(model.input, keras.tree.flatten(given))
    outputs = keras.tree.flatten(model(given, training=False))
    np.savez(folder / "outputs.npz", *map(np.asarray, outputs))
    script = folder / "opens.py"
    script.write_text(
        f"import sys, keras, numpy as np{imports}\n"
        "model = keras.saving.load_model('smaller.keras')\n"
        "given = keras.tree.pack_sequence_as(model.input, list(np.load('inputs.npz').values()))\n"
        "found = keras.tree.flatten(model(given, training=False))\n"
        "for one, other in zip(found, np.load('outputs.npz').values(), strict=True):\n"
        "    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)\n"
        f"{then}\n"
        "assert not any(name.startswith('tfresidual') for name in sys.modules)\n"
    )
    # Not `processes.run`, whose processes have imported this package.
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def language_model():
    """A model of keras-hub that generates text, with a vocabulary that is in no configuration."""
    import keras_hub

    tokens = {word: place for place, word in enumerate(["<|endoftext|>", "ab", *"abcdefgh"])}
    tokenizer = keras_hub.models.GPT2Tokenizer(tokens, merges=["a b"])
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(tokens),
        num_layers=3,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=16,
    )
    return keras_hub.models.GPT2CausalLM(
        backbone, keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    )


def test_a_smaller_language_model_generates(tmp_path):
    """With the vocabulary, frozen layers, loss and sampler of the whole one; so does its file."""
    model = language_model()
    model.backbone.get_layer("transformer_layer_0").trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=[], sampler="greedy")
    found = surgery.without_blocks(model, ["transformer_layer_1"])
    assert type(found) is type(model) and found.loss == model.loss
    gone = model.backbone.get_layer("transformer_layer_1").trainable_variables
    assert len(found.trainable_variables) == len(model.trainable_variables) - len(gone)
    text = found.generate("abc", max_length=8)
    found.save(tmp_path / "smaller.keras")
    opened = keras.saving.load_model(tmp_path / "smaller.keras", compile=False)
    opened.compile(sampler="greedy")
    assert opened.generate("abc", max_length=8) == text


def test_layers_keep_the_window_of_their_place():
    """Where inputs are longer than it; called one by one by hand."""
    from sources import zoo

    windows = {"use_sliding_window_attention": True, "sliding_window_size": 250}
    model = zoo.made("GemmaBackbone", num_layers=4, **windows)
    ids = RNG.integers(0, 24, (2, 320))
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    with refused("inputs"):
        surgery.without_blocks(model, ["decoder_block_1"])
    found = surgery.without_blocks(model, ["decoder_block_1"], inputs=inputs)
    state = model.token_embedding(ids) * 8**0.5
    for index in (0, 2, 3):
        state = model.get_layer(f"decoder_block_{index}")(state, padding_mask=tf.ones_like(ids))
    expected = model.get_layer("final_normalization")(state)
    np.testing.assert_allclose(found(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["ViTBackbone", pytest.param("DINOV3Backbone", marks=pytest.mark.nightly)]
)
def test_layers_go_from_an_encoder_that_counts_them(name):
    from sources import zoo

    model = zoo.made(name, num_layers=3)
    chain, images = tfr.chain(model), RNG.normal(size=(2, *model.input_shape[1:]))
    found = surgery.without_blocks(chain, [(1, 2), (1, 3)])
    expected = routes.follow(chain, routes.drop(chain, (1, 2), (1, 3)))(images)
    np.testing.assert_allclose(found(images), expected, rtol=1e-4, atol=1e-5)
    assert type(found).from_config(found.get_config()).count_params() == found.count_params()


def test_numbers_are_those_of_the_chain():
    """Numbers of a model whose layers may be opened or not say nothing without its chain."""
    from sources import zoo

    model = zoo.made("GPT2Backbone", num_layers=3)
    inputs = {"token_ids": np.ones((2, 6)), "padding_mask": np.ones((2, 6))}
    opened = tfr.chain(model, inputs=inputs)
    whole = tfr.chain(model)
    assert len(opened.blocks) == 6 and len(whole.blocks) == 3
    wanted = surgery.without_blocks(model, ["transformer_layer_1"])
    for chain, blocks in ((opened, [(1, 2), (1, 3)]), (whole, [(1, 1)])):
        found = surgery.without_blocks(chain, blocks)
        np.testing.assert_array_equal(found(inputs), wanted(inputs))
    for blocks in ([(1, 1)], ["stage1/block1"], routes.drop(whole, (1, 1))):
        with refused("blocks"):
            surgery.without_blocks(model, blocks)
    with refused("blocks"):
        surgery.without_blocks(opened, [(1, 2)])


class Inner(keras.Model):
    """A model as a branch, with a seed and a weight of its own."""

    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(5)
        self.factor = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs):
        return inputs * self.factor


class Tied(layers.Layer):
    """Uses the kernel of another layer, which its configuration holds."""

    def __init__(self, of, **kwargs):
        super().__init__(**kwargs)
        self.of = of

    def call(self, inputs):
        return inputs @ self.of.kernel

    def get_config(self):
        return super().get_config() | {"of": keras.saving.serialize_keras_object(self.of)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("of")), **config)


def test_state_that_outputs_do_not_show():
    """Seeds, what is frozen, settings changed later, the policy of the model, tied weights."""
    inputs, inner = keras.Input((4,)), Inner(name="inner")
    state = layers.Add()([inputs, inner(inputs)])
    for index in range(2):
        branch = layers.BatchNormalization(name=f"norm{index}")(state)
        state = layers.Add(name=f"add{index}")([state, layers.Dense(4)(branch)])
    model = keras.Model(inputs, state)
    inner.factor.trainable, model.get_layer("norm0").momentum = False, 0.5
    inner.seeds.state.assign([9, 9])
    model.dtype_policy = "mixed_float16"
    smaller = surgery.without_blocks(model, ["add1"])
    made = smaller.get_layer("inner")
    assert np.all(np.asarray(made.seeds.state) == 9) and not made.factor.trainable
    assert smaller.get_layer("norm0").momentum == 0.5
    assert smaller.dtype_policy.name == "mixed_float16"
    net = random_network(blocks=4, widths=(4,))
    net.get_layer("stage1_block0").normalization1.momentum = 0.5
    smaller = surgery.without_blocks(net, [(1, 2)])
    assert smaller.get_layer("stage1_block0").normalization1.momentum == 0.5

    first = layers.Dense(4, name="first")
    state = layers.Add()([inputs, first(inputs)])
    state = layers.Add()([state, Tied(first)(state)])
    state = layers.Add(name="last")([state, layers.Dense(4)(state)])
    with refused("model"):
        surgery.without_blocks(keras.Model(inputs, state), ["last"])


def test_what_surrounds_blocks_stays_as_it_is():
    """An input that is optional, and loss and metrics that are functions of one's own."""
    first, second = (keras.Input((4,), name=name, optional=name == "b") for name in "ab")
    state = first
    for index in range(2):
        state = layers.Add(name=f"add{index}")([state, layers.Dense(4)(state)])
    model = keras.Model({"a": first, "b": second}, state)

    def penalty(labels, outputs):
        return tf.reduce_mean(tf.square(labels - outputs))

    model.compile(keras.optimizers.Adam(0.3), penalty, metrics=[penalty])
    found = surgery.without_blocks(model, ["add1"])
    assert found.inputs[1]._keras_history.operation.optional
    assert found.loss is penalty and float(found.optimizer.learning_rate) == np.float32(0.3)


def test_a_model_made_of_parts_of_a_chain_can_be_loaded(tmp_path):
    chain = tfr.chain(by_hand())
    images = keras.Input((8, 8, 3))
    state = chain.stem(images)
    for block in chain.blocks[1:]:
        state = block(state)
    made = keras.Model(images, chain.head(state))
    made.save(tmp_path / "parts.keras")
    given = images_of(made)[0]
    loaded = keras.saving.load_model(tmp_path / "parts.keras")
    np.testing.assert_array_equal(loaded(given), made(given))


class Code(keras.Model):
    """A subclassed model, whose `call` is code."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(4), layers.Dense(4)

    def call(self, inputs):
        return self.second(inputs + self.first(inputs))


def subclassed():
    return tfr.chain(Code(), inputs=np.zeros((1, 4), "float32"))


ROUTE = routes.Route("all", (tuple(routes.Application(index) for index in range(4)),))


@pytest.mark.parametrize(
    ("model", "blocks", "names"),
    [
        (by_hand, [], ["blocks"]),
        (by_hand, [(1, 9)], ["blocks"]),
        (by_hand, [(2, 0)], ["stage"]),
        (by_hand, [(1, 0), (1, 0)], ["blocks"]),
        (by_hand, ["add9"], ["blocks"]),
        (by_hand, 3, ["blocks"]),
        (by_hand, [(1,)], ["blocks"]),
        (by_hand, [None], ["blocks"]),
        (lambda: None, [(1, 0)], ["source"]),
        (lambda: routes.follow(tfr.chain(by_hand()), ROUTE), [(1, 0)], ["model"]),
        (subclassed, [(1, 0)], ["model"]),
        (Code, [(1, 0)], ["inputs"]),
        (lambda: random_network(blocks=3, widths=(4, 8)), [(2, 0)], ["blocks"]),
        (lambda: random_network(blocks=3, widths=(4,), share_from=1), [(1, 1)], ["blocks"]),
        (
            lambda: random_network(blocks=4, widths=(4, 8), share_from=3),
            [(1, 1)],
            ["blocks"],
        ),
    ],
)
def test_refusals(model, blocks, names):
    with refused(*names):
        surgery.without_blocks(model(), blocks)
