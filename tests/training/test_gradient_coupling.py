"""Gradient coupling: its kernels by hand, its training against NumPy, real fits and files.

Not covered: several replicas, accelerators, and other Keras backends than TensorFlow.
"""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.random_network import sample
from refusals import refused
from training.numpy_momentum import NumpyMomentum, momentum_sgd, slow_kernel

from tfresidual.networks import ResidualNetwork
from tfresidual.training import GradientCoupling, coupling_kernel

pytestmark = pytest.mark.eager

KERNELS = ("uniform", "triangular", "triangular_printed")
OPTIMIZERS = {
    "momentum": lambda **kwargs: keras.optimizers.SGD(0.05, momentum=0.9, **kwargs),
    "nesterov": lambda **kwargs: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **kwargs),
    "adam": lambda **kwargs: keras.optimizers.Adam(0.01, **kwargs),
    "adamw": lambda **kwargs: keras.optimizers.AdamW(0.01, weight_decay=0.01, **kwargs),
    "rmsprop": lambda **kwargs: keras.optimizers.RMSprop(0.01, momentum=0.5, **kwargs),
    "lion": lambda **kwargs: keras.optimizers.Lion(0.003, **kwargs),
    "adafactor": lambda **kwargs: keras.optimizers.Adafactor(0.01, **kwargs),
    "muon": lambda **kwargs: keras.optimizers.Muon(0.01, **kwargs),
}
optimizers = pytest.mark.parametrize(
    "name", sample({name: name for name in OPTIMIZERS}, every=3, others=pytest.mark.nightly)
)
OPTIONS = [
    {"gradient_accumulation_steps": 2},
    {"clipnorm": 0.1},
    {"global_clipnorm": 0.1},
    {"clipvalue": 0.01},
    {"weight_decay": 0.01},
    {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3},
    {"loss_scale_factor": 64.0},
]


# The kernels.


@pytest.mark.parametrize(
    ("blocks", "coupling", "kernel", "expected"),
    [
        ((3, 8), 0.5, "uniform", [[0.75, 0.25], [0.25, 0.75]]),
        ((0, 1, 2), 0.6, "uniform", [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]),
        ((0, 1), 0.5, "triangular_printed", [[1, 0.5], [0.5, 1]]),
        ((0, 1), 0.25, "triangular_printed", [[1, 0], [0, 1]]),
        ((0, 2), 0.75, "triangular_printed", [[1, 0.5], [0.5, 1]]),
        ((0, 1), 0.5, "triangular", [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]),
        (
            (0, 1, 2),
            0.75,
            "triangular",
            [[2 / 5, 1 / 3, 4 / 15], [5 / 16, 3 / 8, 5 / 16], [4 / 15, 1 / 3, 2 / 5]],
        ),
        ((0, 1, 2), 0.25, "triangular_printed", [[1, 1 / 3, 0], [1 / 3, 1, 1 / 3], [0, 1 / 3, 1]]),
        ((4,), 0.3, "triangular", [[1]]),
    ],
)
def test_kernels_by_hand(blocks, coupling, kernel, expected):
    found = coupling_kernel(blocks, coupling, kernel=kernel)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-16)


@settings(max_examples=150, deadline=None)
@given(
    st.sets(st.integers(0, 40), min_size=1, max_size=12).map(sorted),
    st.sampled_from([0, 0.5, 1, 0.1, 0.9, 5e-324]) | st.floats(0, 1),
    st.sampled_from(KERNELS),
)
def test_kernels_against_fractions(blocks, coupling, kernel):
    found = coupling_kernel(blocks, coupling, kernel=kernel)
    np.testing.assert_allclose(found, slow_kernel(blocks, coupling, kernel), rtol=1e-9, atol=1e-12)


# Real networks. Stage 1 couples the blocks 0 to 2; stage 2 begins with a projection: 1 and 2.

COUPLED = {1: (0, 1, 2), 2: (1, 2)}
ROLES = [f"normalization{i}/{name}" for i in (1, 2) for name in ("gamma", "beta")]
ROLES += [f"convolution{i}/{name}" for i in (1, 2) for name in ("kernel", "bias")]


def network(blocks=3, widths=(4, 8), **kwargs):
    return ResidualNetwork((8, 8, 3), 4, blocks=blocks, widths=widths, **kwargs)


def batches(images=16, batch=8, dtype="float32"):
    rng = np.random.default_rng(3)
    data = rng.normal(size=(images, 8, 8, 3)).astype(dtype), rng.integers(0, 4, images)
    return tf.data.Dataset.from_tensor_slices(data).batch(batch)


def fit(net, data, epochs=1, **kwargs):
    return net.fit(data, epochs=epochs, verbose=0, shuffle=False, **kwargs)


def fitted(optimizer, epochs=2, data=None, callbacks=None, widths=(4,), **kwargs):
    """A network whose blocks start equal, trained."""
    keras.utils.set_random_seed(0)
    net = network(widths=widths, recurrent_initialization=True, **kwargs)
    assert spread(net) == 0
    net.compile(optimizer, "sparse_categorical_crossentropy")
    fit(net, data or batches(), epochs, callbacks=callbacks)
    return net


def assert_same(variables, others):
    for ours, theirs in zip(variables, others, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def spread(net, stages=(1,), weights="trainable_weights"):
    """The largest difference of a weight between the coupled blocks of a stage."""
    largest = 0.0
    for stage in stages:
        units = [net.get_layer(f"stage{stage}_block{block}") for block in COUPLED[stage]]
        for role in zip(*(getattr(unit, weights) for unit in units), strict=True):
            values = np.stack([v.numpy() for v in role])
            largest = max(largest, np.abs(values - values[0]).max())
    return largest


@pytest.fixture(scope="module")
def double_network():
    """A network in float64, and the weights with which it begins."""
    keras.utils.set_random_seed(1)
    net = network(dtype="float64")
    return net, net.get_weights()


@pytest.mark.parametrize(
    ("coupling", "kernel", "first_block"),
    [
        (0.3, "uniform", 0),
        pytest.param(1.0, "uniform", 0, marks=pytest.mark.nightly),
        (0.4, "triangular", 0),
        (0.8, "triangular_printed", 0),
        (0.9, "uniform", 1),
    ],
)
def test_steps_are_those_of_numpy(double_network, coupling, kernel, first_block):
    net, start = double_network
    # No recurrent start: the gradients of the blocks are far apart.
    net.set_weights(start)
    optimizer = GradientCoupling(momentum_sgd(), coupling, kernel=kernel, first_block=first_block)
    groups = [
        [(b, f"stage{stage}_block{b}/{role}") for b in blocks if b >= first_block]
        for stage, blocks in COUPLED.items()
        for role in ROLES
    ]
    expected = NumpyMomentum(net, groups, coupling, kernel)
    paths = [v.path for v in net.trainable_variables]
    for images, labels in batches(16, dtype="float64"):
        with tf.GradientTape() as tape:
            outputs = net(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, [v.value for v in net.trainable_variables])
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        expected.step({p: g.numpy() for p, g in zip(paths, gradients, strict=True)})
    for variable in net.trainable_variables:
        # The classifier computes in float32.
        tolerance = 1e-5 if variable.path.startswith("classifier") else 1e-12
        np.testing.assert_allclose(
            variable.numpy(), expected.values[variable.path], rtol=tolerance, atol=tolerance
        )
        # Batch normalization takes away what the biases of convolutions add.
        if variable.path.endswith(("kernel", "gamma")):
            assert np.abs(expected.velocities[variable.path]).max() > 1e-6
    assert int(optimizer.iterations) == 2


# The two ends, bit for bit.


@pytest.mark.sampled(1)
@pytest.mark.system
@pytest.mark.compiled
@pytest.mark.parametrize(("kernel", "epochs"), [("uniform", 75), ("triangular_printed", 15)])
def test_weights_that_start_equal_stay_equal_for_hundreds_of_steps(kernel, epochs):
    inner = keras.optimizers.SGD(0.02 if kernel == "triangular_printed" else 0.05, momentum=0.9)
    net = fitted(
        GradientCoupling(inner, 1.0, kernel=kernel), epochs, data=batches(32), widths=(4, 8)
    )
    assert int(net.optimizer.iterations) == 4 * epochs
    assert spread(net, (1, 2)) == 0
    # Each block keeps statistics of its own, and the network has learnt.
    assert spread(net, (1, 2), "non_trainable_weights") > 0
    losses = net.history.history["loss"]
    assert losses[-1] < (0.1 if epochs == 75 else 0.8) * losses[0]


@optimizers
def test_weights_stay_equal_with_every_optimizer(name):
    net = fitted(GradientCoupling(OPTIMIZERS[name](), 1), epochs=1)
    assert spread(net) == 0
    keras.utils.set_random_seed(0)
    start = network(widths=(4,), recurrent_initialization=True)
    for ours, theirs in zip(net.variables, start.variables, strict=True):
        assert np.abs(ours.numpy() - theirs.numpy()).max() > 0


# Between the ends, every optimizer: the inner one gets the mixed gradients. No network is needed.


def named_variable(path, value):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, name=name)


BLOCKS = (0, 1, 2, 3)
SHAPES = {"convolution1/kernel": (4, 3), "normalization1/gamma": (3,)}
PATHS = [f"stage1_block{block}/{role}" for block in BLOCKS for role in SHAPES]


def drawn_variables(dtype="float32"):
    rng = np.random.default_rng(5)
    shapes = {path: SHAPES[path.partition("/")[2]] for path in PATHS}
    shapes["classifier/kernel"] = (4, 3)
    return [
        named_variable(path, rng.normal(size=shape).astype(dtype)) for path, shape in shapes.items()
    ]


def drawn_gradients(variables, seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=variable.shape).astype(dtype) for variable in variables]


def mixed_by_numpy(gradients, coupling, kernel="uniform"):
    """The gradients mixed one by one; a missing one counts as zero, unless all are missing."""
    weights = slow_kernel(BLOCKS, coupling, kernel)
    mixed = list(gradients)
    for role in SHAPES:
        places = [PATHS.index(f"stage1_block{block}/{role}") for block in BLOCKS]
        if any(gradients[place] is not None for place in places):
            for t, place in enumerate(places):
                mixed[place] = sum(
                    weights[t, s] * gradients[other].astype("float64")
                    for s, other in enumerate(places)
                    if gradients[other] is not None
                )
    return mixed


def constants(gradients, dtype="float32"):
    return [None if g is None else tf.constant(g, dtype) for g in gradients]


cases = pytest.mark.parametrize(
    ("name", "kwargs", "kernel"),
    [
        *(
            pytest.param(name, {}, "uniform", marks=[pytest.mark.nightly] if i % 3 else [])
            for i, name in enumerate(OPTIMIZERS)
        ),
        *(("momentum", kwargs, "triangular") for kwargs in OPTIONS),
    ],
)


@pytest.mark.sampled(5)
@cases
def test_the_inner_optimizer_gets_mixed_gradients(name, kwargs, kernel):
    def make():
        return OPTIMIZERS[name](**kwargs)

    ours, theirs = drawn_variables(), drawn_variables()
    optimizer, plain = GradientCoupling(make(), 0.6, kernel=kernel), make()
    for seed in range(4):
        gradients = drawn_gradients(ours, seed)
        optimizer.apply(constants(gradients), ours)
        plain.apply(constants(mixed_by_numpy(gradients, 0.6, kernel)), theirs)
    for our, their, start in zip(ours, theirs, drawn_variables(), strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol=1e-4, atol=1e-5)
        assert np.abs(our.numpy() - start.numpy()).max() > 1e-3


@cases
def test_coupling_zero_is_the_inner_optimizer(name, kwargs, kernel):
    def steps(optimizer):
        variables = drawn_variables()
        for seed in range(4):
            optimizer.apply(constants(drawn_gradients(variables, seed)), variables)
        optimizer.finalize_variable_values(variables)
        return variables

    plain = steps(OPTIMIZERS[name](**kwargs))
    assert_same(steps(GradientCoupling(OPTIMIZERS[name](**kwargs), 0, kernel=kernel)), plain)


GAMMAS = [place for place, path in enumerate(PATHS) if path.endswith("gamma")]


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize(
    ("missing", "is_left_out"),
    [([5], False), (GAMMAS, False), ([2], True)],
    ids=["one has no gradient", "none has", "frozen after building"],
)
def test_gradients_that_are_missing_count_as_zero(missing, is_left_out):
    variables = drawn_variables()
    gradients = drawn_gradients(variables, 0)
    for place in missing:
        gradients[place] = None
    start = [v.numpy() for v in variables]
    expected = mixed_by_numpy(gradients, 0.5)
    optimizer = GradientCoupling(keras.optimizers.SGD(1.0), 0.5)
    optimizer.build(variables)
    pairs = zip(constants(gradients), variables, strict=True)
    if is_left_out:
        expected[missing[0]] = None
        pairs = [pair for place, pair in enumerate(pairs) if place not in missing]
    optimizer.apply(*zip(*pairs, strict=True))
    for variable, before, update in zip(variables, start, expected, strict=True):
        value = before if update is None else before - update
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-6)


def test_variables_that_their_gradients_overwrite_are_not_mixed():
    variables = drawn_variables()
    for place in GAMMAS:
        variables[place].overwrite_with_gradient = True
    gradients = drawn_gradients(variables, 0)
    GradientCoupling(keras.optimizers.SGD(1.0), 1.0).apply(constants(gradients), variables)
    for place in GAMMAS:
        np.testing.assert_array_equal(variables[place].numpy(), gradients[place])


# Types, schedules, files.


@pytest.mark.system
def test_mixed_float16():
    net = fitted(GradientCoupling(OPTIMIZERS["momentum"](), 1.0), 5, dtype="mixed_float16")
    scaler = net.optimizer
    assert isinstance(scaler, keras.optimizers.LossScaleOptimizer)
    assert isinstance(scaler.inner_optimizer, GradientCoupling)
    assert spread(net) == 0
    assert np.isfinite(net.get_layer("stage1_block0").normalization1.gamma.numpy()).all()
    steps = int(scaler.iterations)
    assert 0 < steps <= 10
    # A step whose gradients overflow is left out.
    scaler.dynamic_scale.assign(1e38)
    before = [v.numpy() for v in net.variables[:4]]
    net.train_on_batch(*next(iter(batches())))
    assert int(scaler.iterations) == steps
    for ours, theirs in zip(net.variables[:4], before, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_loss_scale_of_the_inner_optimizer():
    finals = []
    # A power of two, which rounds nothing.
    for scale in (None, 64.0):
        inner = OPTIMIZERS["momentum"](loss_scale_factor=scale)
        optimizer = GradientCoupling(inner, 0.5)
        assert optimizer.loss_scale_factor == scale
        assert optimizer.scale_loss(2.0) == 2 * (scale or 1)
        variables = drawn_variables()
        gradients = [optimizer.scale_loss(g) for g in drawn_gradients(variables, 0)]
        optimizer.apply(constants(gradients), variables)
        finals.append(variables)
    assert_same(*finals)


def test_learning_rate():
    optimizer = GradientCoupling(OPTIMIZERS["momentum"](), 0.5)
    optimizer.learning_rate = 0.25
    assert float(optimizer.inner.learning_rate) == 0.25
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.125])
    optimizer = GradientCoupling(keras.optimizers.SGD(schedule), 0.5)
    variables = drawn_variables()
    rates = []
    for seed in range(3):
        rates.append(float(optimizer.learning_rate))
        optimizer.apply(constants(drawn_gradients(variables, seed)), variables)
    assert rates == [0.5, 0.5, 0.125]
    assert int(optimizer.iterations) == 3
    with pytest.raises(TypeError, match="not settable"):
        optimizer.learning_rate = 0.1


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("nesterov", {"coupling": 0.9}),
        (
            "muon",
            {"coupling": 1, "kernel": "triangular_printed", "first_block": 5, "name": "coupled"},
        ),
    ],
)
def test_config_round_trip(name, kwargs):
    optimizer = GradientCoupling(OPTIMIZERS[name](clipnorm=0.5), **kwargs)
    for argument, value in kwargs.items():
        assert getattr(optimizer, argument) == value
    config = optimizer.get_config()
    text = json.dumps(config)
    again = GradientCoupling.from_config(config)
    assert json.dumps(config) == text
    assert json.dumps(again.get_config()) == text
    serialized = json.dumps(keras.optimizers.serialize(optimizer))
    assert json.loads(serialized)["registered_name"] == "tfresidual>GradientCoupling"
    again = keras.optimizers.deserialize(json.loads(serialized))
    assert type(again) is GradientCoupling
    assert type(again.inner) is type(optimizer.inner)
    assert again.inner.clipnorm == 0.5
    assert json.dumps(keras.optimizers.serialize(again)) == serialized


def test_a_coupling_that_is_set_later():
    layers = [keras.layers.Dense(2, use_bias=False) for _ in range(2)]
    for layer in layers:
        layer.build((None, 2))
    optimizer = GradientCoupling(keras.optimizers.SGD(1.0), 1.0, groups=[layers])
    weights = [layer.kernel for layer in layers]
    gradients = [np.full((2, 2), 1.0, "f4"), np.full((2, 2), 3.0, "f4")]
    for coupling, moves in ((1.0, (2.0, 2.0)), (0.5, (1.5, 2.5)), (0.0, (1.0, 3.0))):
        optimizer.coupling = coupling
        before = [weight.numpy() for weight in weights]
        optimizer.apply(gradients, weights)
        for old, weight, move in zip(before, weights, moves, strict=True):
            np.testing.assert_allclose(old - weight, move, rtol=1e-5)


# Errors.

REFUSED = [
    *(({"coupling": value}, "coupling") for value in (-0.01, float("nan"), "0.5")),
    ({"kernel": "Uniform"}, "kernel"),
    ({"first_block": -1}, "first_block"),
    ({"inner": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())}, "inner"),
]


@pytest.mark.parametrize(("changes", "name"), REFUSED)
def test_refused(changes, name):
    if name not in ("first_block", "inner"):
        with refused(name):
            coupling_kernel(**{"blocks": (0, 1), "coupling": 0.5} | changes)
    with refused(name):
        GradientCoupling(**{"inner": "sgd", "coupling": 0.5} | changes)
