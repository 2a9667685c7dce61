"""The network: against the NumPy version, its configuration, files, dtypes, summary and errors."""

import json

import keras
import numpy as np
import pytest
from reference import numpy_network as reference
from reference.random_network import (
    CASES,
    CONSTRAINED_CASES,
    case_id,
    of_every_kind,
    random_batch,
    random_network,
    states_of,
)

from tfresidual.layers import LayerScale, ScaledShortcut
from tfresidual.networks import ResidualNetwork

pytestmark = pytest.mark.eager

SMALL = {"input_shape": (8, 8, 3), "classes": 4, "blocks": 1, "widths": (4, 8)}


def assert_close(actual, expected, tolerance=1e-4):
    """Relative to the largest value."""
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


VARIANTS = [
    {"pooling": 2},
    {"classifier_activation": "sigmoid"},
    {"classifier_activation": None},
    {"input_shape": (12, 8, 2), "pooling": 1},
    {"input_shape": (28, 28, 1), "blocks": 1},
    {"input_shape": (32, 32, 3), "blocks": 1},
    {"input_shape": (64, 48, 2), "blocks": 1},
    {"input_shape": (None, None, 3), "blocks": 1},
    {"stem_width": 6},
    {"blocks": (1, 3), "widths": (8, 4)},
    {"blocks": 2, "widths": (4,)},
    {"shortcut": ScaledShortcut(0.75, 0.25)},
    {"gamma_initializer": "zeros"},
    {"transition": "max_pooling"},
    {"transition": "max_pooling", "layout": "original", "widths": (4, 4)},
    {"normalization": None, "stochastic_depth": 0.5},
    {"normalization": None, "input_shape": (8, 4, 3), "lipschitz": 0.9, "layout": "original"},
    {"normalization": "fixup", "bottleneck": True, "share_from": 0},
    {"normalization": "fixup", "layout": "original", "transition": "downsampling_block"},
    {"normalization": None, "multiplier": "rezero", "transition": "convolution"},
    {"multiplier": "rezero", "layout": "relu_before_addition", "bottleneck": True},
    {"multiplier": "layer_scale", "share_from": 0, "batch_norm": "unshared"},
    {"multiplier": LayerScale(0.5, axis=1), "layout": "original", "anchor": "input"},
]


def marks_of(index):
    """A fifth of the constrained cases in every run, with every layout and kind of sharing."""
    place = index + index // 6
    if place % 5:
        return [pytest.mark.nightly]
    return [pytest.mark.system] if place % 2 else []


# In the second stage blocks are shared.
CONSTRAINED = [
    pytest.param(case | {"blocks": (1, 3)}, marks=marks_of(i), id=case_id(case))
    for i, case in enumerate(CONSTRAINED_CASES)
]
FREE = of_every_kind(others=pytest.mark.nightly)


@pytest.mark.parametrize("case", FREE + VARIANTS + CONSTRAINED, ids=case_id)
def test_states_and_outputs_are_those_of_the_numpy_version(case):
    net = random_network(seed=2, **{"blocks": (1, 2)} | case)
    images, labels = random_batch(net)
    run = reference.analyse(net.get_config(), reference.weights_of(net), images, labels)
    states, last_states, outputs = states_of(net, images)
    for ours, theirs in zip(states, run.states, strict=True):
        for our, their in zip(ours, theirs, strict=True):
            assert_close(our, their)
    for our, their in zip(last_states, run.last_states, strict=True):
        assert_close(our, their)
    assert_close(outputs, run.outputs)
    np.testing.assert_allclose(net(images), outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [CASES[3], CASES[10], *VARIANTS[8:]], ids=case_id)
def test_config_round_trip(case):
    net = ResidualNetwork(**SMALL | case)
    config = net.get_config()
    assert ResidualNetwork.from_config(config).get_config() == config
    text = json.dumps(config)
    revived = ResidualNetwork.from_config(json.loads(text))
    assert json.dumps(revived.get_config()) == text
    assert [w.shape for w in revived.weights] == [w.shape for w in net.weights]
    serialized = json.dumps(keras.saving.serialize_keras_object(net))
    assert json.loads(serialized)["registered_name"] == "tfresidual>ResidualNetwork"
    revived = keras.saving.deserialize_keras_object(json.loads(serialized))
    assert type(revived) is ResidualNetwork
    assert json.dumps(revived.get_config()) == text


def test_arguments_are_attributes():
    net = ResidualNetwork(**SMALL, shortcut="scaled", layout="original", pooling=4)
    assert (net.classes, net.blocks, net.widths, net.stem_width) == (4, (1, 1), (4, 8), 4)
    assert (net.shortcut, net.layout, net.pooling) == ("scaled", "original", 4)
    assert (net.transition, net.bottleneck) == ("projection", False)


@pytest.mark.parametrize("case", [CASES[2], CASES[11], CASES[16]], ids=case_id)
def test_files(case, tmp_path):
    net = random_network(seed=1, blocks=1, widths=(4, 8), **case)
    images, _ = random_batch(net)
    expected = np.asarray(net(images))
    net.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert type(loaded) is ResidualNetwork
    assert loaded.get_config() == net.get_config()
    np.testing.assert_array_equal(loaded(images), expected)
    net.save_weights(tmp_path / "net.weights.h5")
    fresh = ResidualNetwork.from_config(net.get_config())
    assert np.any(np.asarray(fresh(images)) != expected)
    fresh.load_weights(tmp_path / "net.weights.h5")
    np.testing.assert_array_equal(fresh(images), expected)


def test_frozen_network_stays_frozen():
    net = ResidualNetwork(**SMALL)
    net.trainable = False
    revived = ResidualNetwork.from_config(net.get_config())
    assert not revived.trainable
    assert revived.trainable_weights == []


def test_sections_hold_every_layer_once_in_order():
    net = random_network(transition="convolution", layout="original", pooling=2)
    stem, stages, head = net.sections()
    assert [layer.name for layer in stem] == ["stem", "stem_normalization", "stem_relu"]
    assert [layer.name for layer in head] == ["head_pooling", "head_flatten", "classifier"]
    names = [
        [transition and transition.name, *(unit.name for unit in units)]
        for transition, units in stages
    ]
    assert names == [
        [None, "stage1_block0", "stage1_block1"],
        ["stage2_transition", "stage2_block0", "stage2_block1"],
    ]
    found = {*stem, *head}.union(*(set(units) for _, units in stages))
    found |= {transition for transition, _ in stages if transition is not None}
    assert found == set(net.layers) - {net.layers[0]}
    _, _, head = random_network(blocks=1).sections()
    names = ["head_normalization", "head_relu", "head_pooling", "classifier"]
    assert [layer.name for layer in head] == names


def test_any_size_of_image_with_global_pooling():
    net = random_network(input_shape=(None, None, 1), blocks=1)
    for size in ((8, 8), (28, 28), (9, 13)):
        assert net(np.ones((2, *size, 1), "float32")).shape == (2, 5)
    assert net.output_shape == (None, 5)


@pytest.mark.parametrize("transition", ["projection", "convolution", "downsampling_block"])
@pytest.mark.parametrize("layout", ["original", "full_preactivation"])
def test_channels_first_has_the_shapes_of_channels_last(layout, transition):
    kwargs = {"classes": 3, "blocks": 1, "widths": (4, 8), "layout": layout, "pooling": 2}
    kwargs["transition"] = transition
    first = ResidualNetwork((3, 8, 12), data_format="channels_first", **kwargs)
    last = ResidualNetwork((8, 12, 3), data_format="channels_last", **kwargs)
    assert [(w.path, w.shape) for w in first.weights] == [(w.path, w.shape) for w in last.weights]
    assert first.get_layer("stage2_block0").output.shape == (None, 8, 4, 6)
    revived = ResidualNetwork.from_config(first.get_config())
    assert revived.input_shape == (None, 3, 8, 12)
    assert revived.data_format == "channels_first"


def test_mixed_precision(global_policy, tmp_path):
    net = ResidualNetwork(**SMALL, dtype="mixed_bfloat16", shortcut="exclusive_gate")
    images, _ = random_batch(net)
    outputs = net(images)
    assert outputs.dtype == "float32"
    assert net.get_layer("classifier").compute_dtype == "float32"
    for layer in net._flatten_layers(include_self=False):
        if layer.name not in ("classifier", "images"):
            assert layer.compute_dtype == "bfloat16", layer.path
            assert layer.variable_dtype == "float32", layer.path
    assert net.get_layer("stage2_block0").output.dtype == "bfloat16"
    exact = ResidualNetwork(**SMALL, shortcut="exclusive_gate")
    exact.set_weights(net.get_weights())
    np.testing.assert_allclose(outputs, exact(images), atol=0.03)

    net.save(tmp_path / "net.keras")
    global_policy("mixed_float16")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert loaded.dtype_policy.name == "mixed_bfloat16"
    assert loaded.get_layer("stage2_block0").output.dtype == "bfloat16"
    assert loaded.get_layer("stage1_block0").convolution1.compute_dtype == "bfloat16"
    np.testing.assert_array_equal(loaded(images), outputs)
    revived = ResidualNetwork.from_config(exact.get_config())
    assert revived.get_layer("stage1_block0").compute_dtype == "float32"


def test_global_policy_is_the_default(global_policy):
    global_policy("mixed_bfloat16")
    net = ResidualNetwork(**SMALL)
    assert net.get_layer("stage1_block0").compute_dtype == "bfloat16"
    assert net.get_config()["dtype"]["config"]["name"] == "mixed_bfloat16"


def test_float64():
    net = ResidualNetwork(**SMALL, dtype="float64")
    assert net.get_layer("stage2_block0").output.dtype == "float64"
    assert net.get_layer("stem").kernel.dtype == "float64"


@pytest.mark.system
@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.nightly), "mixed_bfloat16"]
)
def test_training_lowers_the_loss(dtype):
    net = ResidualNetwork((8, 8, 1), 2, blocks=1, widths=(8,), dtype=dtype)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 64)
    images = rng.normal(size=(64, 8, 8, 1)).astype("float32")
    images[:, :4] += 2 * labels[:, None, None, None]
    net.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,
    )
    history = net.fit(images, labels, batch_size=16, epochs=6, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > 0.9
    statistics = net.get_layer("head_normalization").moving_mean
    assert np.abs(statistics).max() > 0.01


def test_dropout_shortcut_works_in_training_only():
    net = random_network(shortcut="dropout", blocks=1)
    images, _ = random_batch(net)
    np.testing.assert_array_equal(net(images), net(images))
    first, second = (np.asarray(net(images, training=True)) for _ in range(2))
    assert np.any(first != second)


def test_gamma_initializer_reaches_the_units():
    net = ResidualNetwork(**SMALL, gamma_initializer=keras.initializers.Constant(0.1))
    for name in ("stage1_block0", "stage2_block0"):
        np.testing.assert_allclose(net.get_layer(name).normalization2.gamma, 0.1, rtol=1e-6)
    np.testing.assert_array_equal(net.get_layer("head_normalization").gamma, np.ones(8))
    config = json.loads(json.dumps(net.get_config()))
    revived = ResidualNetwork.from_config(config)
    np.testing.assert_allclose(revived.get_layer(name).normalization1.gamma, 0.1, rtol=1e-6)


def test_initial_values():
    net = ResidualNetwork((8, 8, 16), 200, blocks=1, widths=(64,))
    stem, classifier = (np.asarray(net.get_layer(n).kernel) for n in ("stem", "classifier"))
    # He normal: variance 2 over the number of inputs.
    assert stem.std() == pytest.approx(np.sqrt(2 / (9 * 16)), rel=0.03)
    assert classifier.std() == pytest.approx(np.sqrt(2 / 64), rel=0.03)
    for weight in net.weights:
        if weight.name in ("bias", "beta"):
            assert not np.any(weight)


def test_summary_stage_by_stage(capsys):
    net = ResidualNetwork((32, 32, 3), 10, blocks=(3, 2, 1), transition="projection", name="tiny")
    net.summary()
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]

    def line_of(start):
        (line,) = [line for line in lines if start in line]
        return line

    assert lines[0].startswith("tiny: 6 blocks in 3 stages, images 32x32x3")
    assert "32x32x16" in line_of("stem")
    assert "448" in line_of("stem")
    # Two convolutions of 16 to 16 and two batch norms: 2 * (2320 + 64) each.
    assert "3 x full_preactivation" in line_of("stage 1, blocks 0 to 2")
    assert f"{3 * 4768:,}" in line_of("stage 1, blocks 0 to 2")
    assert "projection shortcut" in line_of("stage 2, block 0")
    assert "16x16x32" in line_of("stage 2, block 0")
    assert "full_preactivation" in line_of("stage 2, block 1")
    assert "8x8x64" in line_of("stage 3, block 0")
    assert "BatchNormalization, ReLU" in line_of("head")
    assert "906" in line_of("head")
    trainable = sum(int(np.prod(w.shape)) for w in net.trainable_weights)
    assert f"{net.count_params():,} parameters, {trainable:,} of them trainable" in text


def test_summary_counts_add_up_and_goes_where_it_is_told():
    net = random_network(transition="downsampling_block", bottleneck=True)
    texts = []
    assert net.summary(print_fn=texts.append) is None
    (text,) = texts
    assert "to stage 2" in text
    assert "bottleneck" in text
    cells = [line.split("│")[-2].strip() for line in text.splitlines() if line.endswith("│")]
    assert sum(int(cell.replace(",", "")) for cell in cells if cell) == net.count_params()


def test_summary_with_other_arguments_is_that_of_keras(capsys):
    random_network(blocks=1).summary(line_length=90)
    text = capsys.readouterr().out
    assert "Trainable params" in text
    assert "stage1_block0" in text


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"blocks": (1, 2, 3)}, r"same number of stages. Received: blocks=\(1, 2, 3\), widths="),
        ({"blocks": 0}, r"`blocks` must be an int, 1 or more. Received: blocks=0"),
        ({"widths": ()}, r"`widths` must hold ints, 1 or more. Received: widths=\(\)"),
        ({"widths": (4, 8.0)}, r"`widths` must hold ints, 1 or more. Received: widths=\(4, 8.0\)"),
        ({"classes": 0}, r"`classes` must be an int, 1 or more. Received: classes=0"),
        ({"transition": "pool"}, "'downsampling_block'. Received: transition='pool'"),
        ({"layout": "post"}, "'full_preactivation'. Received: layout='post'"),
        ({"shortcut": "gate"}, "Received: shortcut='gate'"),
        ({"input_shape": (8, 8)}, r"height, width and channels.*Received: input_shape=\(8, 8\)"),
        ({"input_shape": 8}, "height, width and channels.*Received: input_shape=8"),
        ({"input_shape": (8, 9, 3)}, r"divisible by 2.*Received: input_shape=\(8, 9, 3\)"),
        ({"input_shape": (0, 8, 3)}, r"divisible by 2.*Received: input_shape=\(0, 8, 3\)"),
        ({"pooling": "max"}, "\"global\" or an int, 1 or more. Received: pooling='max'"),
        ({"pooling": 3}, r"must divide.*Received: pooling=3, input_shape=\(8, 8, 3\)"),
        ({"pooling": 2, "input_shape": (None, 8, 3)}, "must divide.*Received: pooling=2, input_sh"),
        ({"bottleneck": True, "widths": (8, 6)}, "multiple of 4.*Received: filters=6"),
        (
            {"transition": "downsampling_block", "widths": (8, 4)},
            "only appended. Received: filters=4, input_shape=",
        ),
    ],
)
def test_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ResidualNetwork(**SMALL | kwargs)
