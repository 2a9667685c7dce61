"""Gradient coupling in models of plain Keras layers: groups as lists of layers and by a chain.

Not covered: several replicas. JAX and PyTorch are in `tests/backends`.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.encoder import Encoder
from reference.random_network import sample
from refusals import refused
from training.numpy_momentum import NumpyMomentum, momentum_sgd

import tfresidual as tfr
from tfresidual.networks import ResidualNetwork
from tfresidual.training import GradientCoupling

pytestmark = pytest.mark.eager

STAGES = {1: 3, 2: 2}
OF_BLOCK = ("depthwise", "normalize", "expand", "contract")


def block(state, name, dtype):
    """A block of a ConvNeXt, of four layers with weights."""
    width = state.shape[-1]
    layers = [
        keras.layers.DepthwiseConv2D(3, padding="same", name=f"{name}_depthwise", dtype=dtype),
        keras.layers.LayerNormalization(name=f"{name}_normalize", dtype=dtype),
        keras.layers.Dense(2 * width, "gelu", name=f"{name}_expand", dtype=dtype),
        keras.layers.Dense(width, name=f"{name}_contract", dtype=dtype),
    ]
    branch = state
    for layer in layers:
        branch = layer(branch)
    return keras.layers.Add(name=f"{name}_add", dtype=dtype)([state, branch])


def convnext(dtype="float32", equal=False):
    """A model of functional blocks in two stages; `equal`: the blocks of a stage start equal."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3), dtype=dtype)
    state = keras.layers.Conv2D(4, 1, name="stem", dtype=dtype)(inputs)
    for stage, depth in STAGES.items():
        if stage > 1:
            state = keras.layers.Conv2D(6, 2, 2, name="transition", dtype=dtype)(state)
        for index in range(depth):
            state = block(state, f"s{stage}b{index}", dtype)
    state = keras.layers.GlobalAveragePooling2D(dtype=dtype)(state)
    model = keras.Model(
        inputs, keras.layers.Dense(4, "softmax", name="classes", dtype=dtype)(state)
    )
    for first, *others in lists_of(model) if equal else ():
        for other in others:
            for layer, its in zip(other, first, strict=True):
                layer.set_weights(its.get_weights())
    return model


def lists_of(model):
    return [
        [
            [model.get_layer(f"s{stage}b{index}_{part}") for part in OF_BLOCK]
            for index in range(depth)
        ]
        for stage, depth in STAGES.items()
    ]


GIVEN = {"lists": lists_of, "chain": tfr.chain}
given = pytest.mark.parametrize("groups_of", GIVEN.values(), ids=GIVEN)


def data(images=16, dtype="float32"):
    rng = np.random.default_rng(3)
    return rng.normal(size=(images, 8, 8, 3)).astype(dtype), rng.integers(0, 4, images)


def fit(model, optimizer, epochs=1):
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.fit(*data(), batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def assert_same_weights(model, other):
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"coupling": 0.3},
        {"coupling": 0.8, "kernel": "triangular"},
        {"coupling": 0.9, "first_block": 1},
    ],
    ids=["uniform", "triangular", "first_block"],
)
@given
def test_steps_are_those_of_numpy(groups_of, kwargs):
    """The groups are known here by the names that were given to the layers."""
    model = convnext("float64")
    optimizer = GradientCoupling(momentum_sgd(), groups=groups_of(model), **kwargs)
    first = kwargs.get("first_block", 0)
    paths = [v.path for v in model.trainable_variables]
    groups = [
        [(index, path.replace("b0_", f"b{index}_")) for index in range(first, STAGES[int(path[1])])]
        for path in paths
        if path[2:5] == "b0_"
    ]
    expected = NumpyMomentum(model, groups, kwargs["coupling"], kwargs.get("kernel", "uniform"))
    images, labels = data(dtype="float64")
    for step in range(2):
        places = slice(8 * step, 8 * step + 8)
        with tf.GradientTape() as tape:
            outputs = model(images[places], training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels[places], outputs)
        gradients = tape.gradient(losses, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        expected.step({p: g.numpy() for p, g in zip(paths, gradients, strict=True)})
    for variable in model.trainable_variables:
        found, value = variable.numpy(), expected.values[variable.path]
        np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-12)
        assert np.abs(expected.velocities[variable.path]).max() > 1e-8


@pytest.mark.system
@pytest.mark.parametrize(
    "kwargs",
    sample(
        [
            {"widths": (2, 4), "blocks": 3},
            {"widths": (2,), "blocks": 4, "share_from": 1, "batch_norm": "unshared"},
        ],
        every=2,
        others=pytest.mark.nightly,
    ),
)
def test_the_chain_of_a_network_of_this_package_couples_as_its_names_do(kwargs):
    nets = []
    for by_chain in (False, True):
        keras.utils.set_random_seed(0)
        net = ResidualNetwork((8, 8, 3), 4, **kwargs)
        groups = tfr.chain(net) if by_chain else None
        fit(net, GradientCoupling(momentum_sgd(), 0.7, kernel="triangular", groups=groups))
        nets.append(net)
    assert_same_weights(*nets)


# What a chain knows of its blocks.


def transformer(layers=3):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5, 4))
    state = inputs
    for place in range(layers):
        state = Encoder(name=f"layer{place}")(state)
    outputs = keras.layers.Dense(4, "softmax")(keras.layers.GlobalAveragePooling1D()(state))
    return keras.Model(inputs, outputs)


def layers_of(model):
    return [[layer for layer in model.layers if isinstance(layer, Encoder)]]


def coupled_paths(optimizer):
    return [group["paths"] for group in optimizer.get_config()["groups"]["weights"]]


@pytest.mark.system
def test_attention_and_mlp_alternate_in_a_chain():
    model = transformer()
    by_lists, by_chain, whole = (
        GradientCoupling("sgd", 0.5, groups=groups)
        for groups in (layers_of(model), tfr.chain(model), tfr.chain(model, blocks=Encoder))
    )
    assert len(coupled_paths(by_lists)) == len(model.get_layer("layer0").weights) == 16
    for optimizer in (by_chain, whole):
        assert sorted(coupled_paths(optimizer)) == sorted(coupled_paths(by_lists))
    blocks = [group["blocks"] for group in by_chain.get_config()["groups"]["weights"]]
    assert blocks == [[0, 1, 2]] * 16


def test_a_weight_that_blocks_share_counts_once():
    shared = keras.layers.Dense(4)
    own = [keras.layers.Dense(4) for _ in range(3)]
    state = inputs = keras.Input((4,))
    for layer in own:
        state = keras.layers.Add()([state, layer(shared(state))])
    model = keras.Model(inputs, keras.layers.Dense(2)(state))
    for groups in (tfr.chain(model), [[[shared, layer] for layer in own]]):
        assert coupled_paths(GradientCoupling("sgd", 0.5, groups=groups)) == [
            [layer.kernel.path for layer in own],
            [layer.bias.path for layer in own],
        ]


def test_frozen_blocks_and_low_rank_adapters():
    model = convnext(equal=True)
    frozen, *others = (model.get_layer(f"s1b{index}_expand") for index in range(3))
    frozen.trainable = False
    start = frozen.get_weights()
    optimizer = GradientCoupling(momentum_sgd(), 1.0, groups=lists_of(model))
    # Made before the adapters, which count all the same.
    adapted = [model.get_layer(f"s2b{index}_expand") for index in range(2)]
    for layer in adapted:
        layer.enable_lora(1)
        layer.lora_kernel_a.assign(np.ones((6, 1)))
    fit(model, optimizer)
    assert_same_weights(*others)
    for weight, other, before in zip(
        frozen.get_weights(), others[0].get_weights(), start, strict=True
    ):
        np.testing.assert_array_equal(weight, before)
        assert np.abs(other - before).max() > 0
    np.testing.assert_array_equal(adapted[0].lora_kernel_b, adapted[1].lora_kernel_b)
    assert np.abs(np.asarray(adapted[0].lora_kernel_b)).max() > 0
    others[0].enable_lora(1)
    with pytest.raises(ValueError, match="groups"):
        GradientCoupling("sgd", 0.5, groups=lists_of(model))


# Files.


def own_network():
    keras.utils.set_random_seed(0)
    return ResidualNetwork((8, 8, 3), 4, blocks=3, widths=(4,), dtype="mixed_float16")


FILES = {
    "functional, lists": (convnext, lists_of, True),
    "functional, chain": (convnext, tfr.chain, False),
    "custom layers, lists": (transformer, layers_of, True),
    "custom layers, chain": (transformer, tfr.chain, True),
    "a network of this package": (own_network, lambda model: None, True),
}


@pytest.mark.system
# Keras tells of an optimizer that was not built, of any kind.
@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Skipping variable loading:UserWarning")
@pytest.mark.parametrize("name", sample({n: n for n in FILES}, every=2, others=pytest.mark.nightly))
def test_a_compiled_model_trains_on_from_its_file(name, tmp_path):
    make, groups_of, is_built = FILES[name]
    model = make()
    rng = np.random.default_rng(0)
    images = rng.normal(size=(16, *model.input_shape[1:])).astype("float32")
    labels = rng.integers(0, 4, 16)
    optimizer = GradientCoupling("adam", 0.6, kernel="triangular", groups=groups_of(model))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    if is_built:
        model.train_on_batch(images, labels)
    model.save(tmp_path / "half.keras")
    again = keras.saving.load_model(tmp_path / "half.keras")
    for one in (model, again):
        for _ in range(2):
            one.train_on_batch(images, labels)
    assert_same_weights(again, model)
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again.save(tmp_path / "whole.keras")
    assert_same_weights(keras.saving.load_model(tmp_path / "whole.keras"), model)


def test_config_round_trip():
    model = convnext()
    optimizer = GradientCoupling("sgd", 0.5, first_block=1, groups=lists_of(model))
    kernel = optimizer.get_config()["groups"]["weights"][0]
    # Those of `first_block` are left out; the others keep their distances.
    assert kernel["blocks"] == [1, 2]
    for _ in range(2):
        config = optimizer.get_config()
        text = json.dumps(config)
        again = GradientCoupling.from_config(json.loads(text))
        assert json.dumps(again.get_config()) == text
        again.build(model.trainable_variables)
        assert coupled_paths(again) == coupled_paths(optimizer)
        optimizer.build(model.trainable_variables)


def test_names_that_change_need_a_built_optimizer():
    model = transformer()
    optimizer = GradientCoupling("sgd", 0.5, groups=layers_of(model))
    # In another process, or here for another model, layers without names have other ones.
    other = transformer()
    again = GradientCoupling.from_config(optimizer.get_config())
    with pytest.raises(ValueError, match=r"build the optimizer before .* Received: 'layer0/"):
        again.build(other.trainable_variables)
    optimizer.build(model.trainable_variables)
    again = GradientCoupling.from_config(optimizer.get_config())
    again.build(other.trainable_variables)
    assert [len(paths) for paths in coupled_paths(again)] == [3] * 16
    # With other weights trainable, places say nothing; the paths of the same model do.
    model.layers[-1].trainable = False
    again = GradientCoupling.from_config(optimizer.get_config())
    again.build(model.trainable_variables)
    assert coupled_paths(again) == coupled_paths(optimizer)


# Errors, when the optimizer is made or compiled, not in `fit`.


def dense(*widths, **kwargs):
    """Layers of 3 inputs."""
    layers = [keras.layers.Dense(width, **kwargs) for width in widths]
    for layer in layers:
        layer.build((None, 3))
    return layers


NO_GROUPS = {
    "a list of layers": lambda: dense(3, 3),
    "one block": lambda: [dense(3)],
    "names": lambda: [["a", "b"]],
    "not built": lambda: [[dense(3)[0], keras.layers.Dense(3)]],
    "shapes": lambda: [dense(2, 2), dense(3, 3, 4)],
    "numbers": lambda: [[*dense(3), *dense(3, use_bias=False)]],
    "the same block": lambda: [dense(3) * 2],
    "a chain of one block": lambda: tfr.chain(transformer(1), blocks=Encoder),
}


@pytest.mark.parametrize("name", NO_GROUPS)
def test_groups_that_cannot_be_coupled(name):
    with refused("groups"):
        GradientCoupling("sgd", 0.5, groups=NO_GROUPS[name]())


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_network_of_this_package_is_checked_by_compile(policy):
    net = ResidualNetwork((8, 8, 3), 4, blocks=1, widths=(2,), dtype=policy)
    with pytest.raises(ValueError, match="found no two weights"):
        net.compile(GradientCoupling("sgd", 0.5), "mse")
    deeper = ResidualNetwork((8, 8, 3), 4, blocks=2, widths=(2,), dtype=policy)
    deeper.compile(GradientCoupling("sgd", 0.5), "mse")
    deeper.trainable = False
    with pytest.raises(ValueError, match="found no two weights"):
        deeper.compile(GradientCoupling("sgd", 0.5), "mse")
