"""Gradient coupling: its kernels by hand, its training against NumPy, real fits and files.

Not covered: several replicas, accelerators, and other Keras backends than TensorFlow.
"""

import contextlib
import json
import re
from fractions import Fraction

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.random_network import sample

from tfresidual import training
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
options = pytest.mark.parametrize("kwargs", OPTIONS, ids=lambda kwargs: next(iter(kwargs)))


# The kernels.


def slow_kernel(blocks, coupling, kernel):
    """The paper's kernels in fractions, entry by entry."""
    coupling, count = Fraction(coupling), len(blocks)
    rows = []
    for t in blocks:
        row = []
        for s in blocks:
            if kernel == "uniform":
                row.append((1 - coupling if s == t else 0) + coupling / count)
            elif coupling == 0:
                row.append(Fraction(s == t))
            elif coupling >= Fraction(1, 2):
                row.append(max(Fraction(0), 1 - 2 * (1 - coupling) * abs(s - t) / count))
            else:
                row.append(max(Fraction(0), 1 - abs(s - t) / (2 * coupling * count)))
        rows.append([entry / sum(row) for entry in row] if kernel == "triangular" else row)
    return np.array(rows, dtype=np.float64)


@pytest.mark.parametrize(
    ("blocks", "coupling", "kernel", "expected"),
    [
        ((0, 1), 0.5, "uniform", [[0.75, 0.25], [0.25, 0.75]]),
        ((3, 8), 0.5, "uniform", [[0.75, 0.25], [0.25, 0.75]]),
        ((0, 1, 2), 0.6, "uniform", [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]),
        ((0, 1), 0.5, "triangular_printed", [[1, 0.5], [0.5, 1]]),
        ((0, 1), 0.25, "triangular_printed", [[1, 0], [0, 1]]),
        ((0, 1), 0.75, "triangular_printed", [[1, 0.75], [0.75, 1]]),
        ((0, 2), 0.75, "triangular_printed", [[1, 0.5], [0.5, 1]]),
        ((0, 1), 0.5, "triangular", [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]),
        (
            (0, 1, 2),
            0.75,
            "triangular_printed",
            [[1, 5 / 6, 2 / 3], [5 / 6, 1, 5 / 6], [2 / 3, 5 / 6, 1]],
        ),
        (
            (0, 1, 2),
            0.75,
            "triangular",
            [[2 / 5, 1 / 3, 4 / 15], [5 / 16, 3 / 8, 5 / 16], [4 / 15, 1 / 3, 2 / 5]],
        ),
        ((0, 1, 2), 0.25, "triangular_printed", [[1, 1 / 3, 0], [1 / 3, 1, 1 / 3], [0, 1 / 3, 1]]),
        (
            (0, 1, 2),
            0.25,
            "triangular",
            [[3 / 4, 1 / 4, 0], [1 / 5, 3 / 5, 1 / 5], [0, 0.25, 0.75]],
        ),
        ((4,), 0.3, "uniform", [[1]]),
        ((4,), 0.3, "triangular", [[1]]),
    ],
)
def test_kernels_by_hand(blocks, coupling, kernel, expected):
    found = coupling_kernel(blocks, coupling, kernel)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-16)


block_indices = st.sets(st.integers(0, 40), min_size=1, max_size=12).map(sorted)
couplings = st.sampled_from([0, 0.5, 1, 0.1, 0.9, 5e-324]) | st.floats(0, 1)


@settings(max_examples=150, deadline=None)
@given(block_indices, couplings, st.sampled_from(KERNELS))
def test_kernels_against_fractions(blocks, coupling, kernel):
    found = coupling_kernel(blocks, coupling, kernel)
    np.testing.assert_allclose(found, slow_kernel(blocks, coupling, kernel), rtol=1e-9, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(block_indices, couplings)
def test_rows_sum_to_one_except_as_printed(blocks, coupling):
    for kernel in ("uniform", "triangular"):
        rows = coupling_kernel(blocks, coupling, kernel)
        np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
        assert rows.min() >= 0
    printed = coupling_kernel(blocks, coupling, "triangular_printed")
    np.testing.assert_array_equal(np.diag(printed), 1)
    np.testing.assert_array_equal(printed, printed.T)
    assert (printed.sum(axis=1) >= 1).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("blocks", [(0, 1), (1, 2, 5), tuple(range(17))])
def test_the_ends_of_the_kernels_are_exact(kernel, blocks):
    np.testing.assert_array_equal(coupling_kernel(blocks, 0, kernel), np.eye(len(blocks)))
    rows = coupling_kernel(blocks, 1.0, kernel)
    assert len(np.unique(rows)) == 1
    # As printed: T times the mean.
    whole = len(blocks) if kernel == "triangular_printed" else 1
    np.testing.assert_allclose(rows, whole / len(blocks), rtol=1e-15)


# Real networks. Stage 1 couples the blocks 0 to 2; stage 2 begins with a projection: 1 and 2.

COUPLED = {1: (0, 1, 2), 2: (1, 2)}
ROLES = [f"normalization{i}/{name}" for i in (1, 2) for name in ("gamma", "beta")]
ROLES += [f"convolution{i}/{name}" for i in (1, 2) for name in ("kernel", "bias")]


def network(blocks=3, widths=(4, 8), **kwargs):
    return ResidualNetwork((8, 8, 3), 4, blocks=blocks, widths=widths, **kwargs)


def recurrent_network(widths=(4,), **kwargs):
    """A network whose blocks start equal."""
    return network(widths=widths, recurrent_initialization=True, **kwargs)


def batches(images=16, batch=8, dtype="float32"):
    rng = np.random.default_rng(3)
    data = rng.normal(size=(images, 8, 8, 3)).astype(dtype), rng.integers(0, 4, images)
    return tf.data.Dataset.from_tensor_slices(data).batch(batch)


def compiled(net, optimizer):
    net.compile(optimizer, "sparse_categorical_crossentropy")
    return net


def fit(net, data, epochs=1, **kwargs):
    return net.fit(data, epochs=epochs, verbose=0, shuffle=False, **kwargs)


def fitted(optimizer, epochs=2, seed=0, data=None, callbacks=None, **kwargs):
    keras.utils.set_random_seed(seed)
    net = recurrent_network(**kwargs)
    assert spread(net) == 0
    compiled(net, optimizer)
    fit(net, data or batches(), epochs, callbacks=callbacks)
    return net


def weights_of(net):
    return [v.numpy() for v in net.variables]


def assert_same_weights(net, other):
    for ours, theirs in zip(weights_of(net), weights_of(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def units_of(net, stage):
    return [net.get_layer(f"stage{stage}_block{block}") for block in COUPLED[stage]]


def spread(net, stages=(1,), weights="trainable_weights"):
    """The largest difference of a weight between the coupled blocks of a stage."""
    largest = 0.0
    for stage in stages:
        for role in zip(*(getattr(unit, weights) for unit in units_of(net, stage)), strict=True):
            values = np.stack([v.numpy() for v in role])
            largest = max(largest, np.abs(values - values[0]).max())
    return largest


# Against NumPy: SGD with momentum in float64. Rate and momentum are the same in every type.

RATE, MOMENTUM = 0.0625, 0.875


class NumpyMomentum:
    """SGD with momentum and gradient coupling, weight by weight."""

    def __init__(self, net, coupling, kernel, first_block):
        self.values = {v.path: v.numpy() for v in net.trainable_variables}
        self.velocities = {path: np.zeros_like(value) for path, value in self.values.items()}
        self.settings = coupling, kernel, first_block

    def step(self, gradients):
        coupling, kernel, first_block = self.settings
        updates = dict(gradients)
        for stage, blocks in COUPLED.items():
            blocks = [block for block in blocks if block >= first_block]
            weights = slow_kernel(blocks, coupling, kernel)
            for role in ROLES:
                for t, block in enumerate(blocks):
                    updates[f"stage{stage}_block{block}/{role}"] = sum(
                        weights[t, s] * gradients[f"stage{stage}_block{other}/{role}"]
                        for s, other in enumerate(blocks)
                    )
        for path, update in updates.items():
            self.velocities[path] = MOMENTUM * self.velocities[path] - RATE * update
            self.values[path] = self.values[path] + self.velocities[path]


def gradients_of(net):
    """A function of a batch that returns the gradients of the network's weights."""

    @tf.function
    def gradients(images, labels):
        with tf.GradientTape() as tape:
            outputs = net(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, [v.value for v in net.trainable_variables])

    return gradients


def momentum_sgd():
    return keras.optimizers.SGD(RATE, momentum=MOMENTUM)


@pytest.fixture(scope="module")
def double_network():
    """A network in float64, its gradients, and the weights with which it begins."""
    keras.utils.set_random_seed(1)
    net = network(dtype="float64")
    return net, gradients_of(net), net.get_weights()


@pytest.mark.parametrize(
    ("coupling", "kernel", "first_block"),
    [
        (0.3, "uniform", 0),
        pytest.param(1.0, "uniform", 0, marks=pytest.mark.nightly),
        pytest.param(0.7, "triangular", 0, marks=pytest.mark.nightly),
        (0.4, "triangular", 0),
        (0.8, "triangular_printed", 0),
        (0.9, "uniform", 1),
    ],
)
def test_steps_are_those_of_numpy(double_network, coupling, kernel, first_block):
    net, gradients_at, start = double_network
    # No recurrent start: the gradients of the blocks are far apart.
    net.set_weights(start)
    optimizer = GradientCoupling(momentum_sgd(), coupling, kernel, first_block)
    expected = NumpyMomentum(net, coupling, kernel, first_block)
    for images, labels in batches(16, dtype="float64"):
        gradients = gradients_at(images, labels)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        paths = [v.path for v in net.trainable_variables]
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


@pytest.mark.system
@pytest.mark.compiled
def test_a_fit_is_that_of_numpy():
    nets = [network() for _ in range(3)]
    for net in nets[1:]:
        net.set_weights(nets[0].get_weights())
    net, other, uncoupled = nets
    fit(compiled(net, GradientCoupling(momentum_sgd(), 0.6)), batches(32))
    # A few steps take less time than compiling them.
    gradients_at = gradients_of(other).python_function
    expected = NumpyMomentum(other, 0.6, "uniform", 0)
    for images, labels in batches(32):
        gradients = gradients_at(images, labels)
        expected.step(
            {v.path: g.numpy() for v, g in zip(other.trainable_variables, gradients, strict=True)}
        )
        for variable in other.trainable_variables:
            variable.assign(expected.values[variable.path])
    for ours, theirs in zip(weights_of(net), weights_of(other), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    # Which would be seen: without coupling the network becomes another one.
    compiled(uncoupled, momentum_sgd()).run_eagerly = True
    fit(uncoupled, batches(32))
    kernels = [n.get_layer("stage1_block0").convolution1.kernel.numpy() for n in nets[1:]]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-2


# The two ends, bit for bit.


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("momentum", marks=pytest.mark.nightly),
        pytest.param("adam", marks=pytest.mark.system),
    ],
)
def test_coupling_zero_is_the_inner_optimizer_in_a_fit(name):
    plain = fitted(OPTIMIZERS[name]())
    coupled = fitted(GradientCoupling(OPTIMIZERS[name](), 0.0, "triangular"))
    assert_same_weights(coupled, plain)
    assert spread(plain) > 0
    ours, theirs = coupled.optimizer.inner.variables, plain.optimizer.variables
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our.numpy(), their.numpy())


FITS = [
    {"gradient_accumulation_steps": 2, "global_clipnorm": 0.1},
    {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3, "weight_decay": 0.01},
]


@pytest.mark.system
@pytest.mark.parametrize("kwargs", sample(FITS, every=2, others=pytest.mark.nightly))
def test_both_ends_in_a_fit_with_options_of_the_inner_optimizer(kwargs):
    make = OPTIMIZERS["momentum"]
    plain = fitted(make(**kwargs))
    assert_same_weights(fitted(GradientCoupling(make(**kwargs), 0)), plain)
    assert spread(plain) > 0
    assert spread(fitted(GradientCoupling(make(**kwargs), 1))) == 0


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("kernel", "epochs"),
    [
        pytest.param("uniform", 75, marks=pytest.mark.system),
        # The same rows at this coupling, see `test_the_ends_of_the_kernels_are_exact`.
        pytest.param("triangular", 15, marks=pytest.mark.nightly),
        pytest.param("triangular_printed", 15, marks=pytest.mark.system),
    ],
)
def test_weights_that_start_equal_stay_equal_for_hundreds_of_steps(kernel, epochs):
    inner = keras.optimizers.SGD(0.02 if kernel == "triangular_printed" else 0.05, momentum=0.9)
    net = fitted(GradientCoupling(inner, 1.0, kernel), epochs, data=batches(32), widths=(4, 8))
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
    start = recurrent_network()
    for ours, theirs in zip(weights_of(net), weights_of(start), strict=True):
        assert np.abs(ours - theirs).max() > 0


def test_with_anything_less_than_full_coupling_they_part():
    assert spread(fitted(GradientCoupling(OPTIMIZERS["momentum"](), 0.999))) > 0


def test_the_first_blocks_are_on_their_own():
    net = fitted(GradientCoupling(OPTIMIZERS["momentum"](), 1.0, first_block=1), blocks=4)
    units = [net.get_layer(f"stage1_block{block}") for block in range(4)]
    kernels = [unit.convolution1.kernel.numpy() for unit in units]
    np.testing.assert_array_equal(kernels[1], kernels[2])
    np.testing.assert_array_equal(kernels[1], kernels[3])
    assert np.abs(kernels[0] - kernels[1]).max() > 0


# Between the ends, every optimizer: the inner one gets the mixed gradients. No network is needed.


def named_variable(path, value):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, name=name)


BLOCKS = (0, 1, 2, 3)


def drawn_variables(dtype="float32"):
    rng = np.random.default_rng(5)
    shapes = {"convolution1/kernel": (4, 3), "normalization1/gamma": (3,)}
    paths = {f"stage1_block{block}/{role}": shapes[role] for block in BLOCKS for role in shapes}
    paths |= {"classifier/kernel": (4, 3)}
    return [
        named_variable(path, rng.normal(size=shape).astype(dtype)) for path, shape in paths.items()
    ]


def drawn_gradients(variables, seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=variable.shape).astype(dtype) for variable in variables]


def mixed_by_numpy(variables, gradients, coupling, kernel="uniform"):
    """The gradients mixed one by one; a missing one counts as zero, unless all are missing."""
    paths = [variable.path for variable in variables]
    weights = slow_kernel(BLOCKS, coupling, kernel)
    mixed = list(gradients)
    for role in ("convolution1/kernel", "normalization1/gamma"):
        places = [paths.index(f"stage1_block{block}/{role}") for block in BLOCKS]
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


def assert_mixing(make, coupling, kernel, steps=4, rtol=1e-4):
    ours, theirs = drawn_variables(), drawn_variables()
    optimizer, plain = GradientCoupling(make(), coupling, kernel), make()
    for seed in range(steps):
        gradients = drawn_gradients(ours, seed)
        optimizer.apply(constants(gradients), ours)
        plain.apply(constants(mixed_by_numpy(theirs, gradients, coupling, kernel)), theirs)
    for our, their, start in zip(ours, theirs, drawn_variables(), strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol=rtol, atol=1e-5)
        assert np.abs(our.numpy() - start.numpy()).max() > 1e-3


@optimizers
@pytest.mark.parametrize("kernel", ["uniform", "triangular"])
def test_the_inner_optimizer_gets_mixed_gradients(name, kernel):
    assert_mixing(OPTIMIZERS[name], 0.6, kernel)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        *(
            pytest.param(name, {}, marks=[pytest.mark.nightly] if i % 3 else [])
            for i, name in enumerate(OPTIMIZERS)
        ),
        *(("momentum", kwargs) for kwargs in OPTIONS),
    ],
)
def test_coupling_zero_is_the_inner_optimizer(name, kwargs):
    finals = []
    for optimizer in (
        GradientCoupling(OPTIMIZERS[name](**kwargs), 0),
        OPTIMIZERS[name](**kwargs),
        GradientCoupling(OPTIMIZERS[name](**kwargs), 0.5),
    ):
        variables = drawn_variables()
        for seed in range(4):
            optimizer.apply(constants(drawn_gradients(variables, seed)), variables)
        optimizer.finalize_variable_values(variables)
        finals.append([v.numpy() for v in variables])
    for coupled, plain in zip(*finals[:2], strict=True):
        np.testing.assert_array_equal(coupled, plain)
    # Coupling makes a difference to every weight of a block.
    different = [np.any(plain != other) for plain, other in zip(*finals[1:], strict=True)]
    assert different[:-1] == [True] * 8


@options
def test_the_options_of_the_inner_optimizer_see_mixed_gradients(kwargs):
    assert_mixing(lambda: OPTIMIZERS["momentum"](**kwargs), 0.6, "triangular")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_gradients_of_other_types(dtype):
    variables = drawn_variables(dtype)
    gradients = drawn_gradients(variables, 0, "float64")
    start = [v.value.numpy().astype("float64") for v in variables]
    optimizer = GradientCoupling(keras.optimizers.SGD(1.0), 0.5, "triangular")
    optimizer.apply(constants(gradients, dtype), variables)
    tolerance = {"float64": 1e-12, "bfloat16": 0.06, "float16": 0.01}[dtype]
    expected = mixed_by_numpy(variables, gradients, 0.5, "triangular")
    for variable, before, update in zip(variables, start, expected, strict=True):
        assert variable.dtype == dtype
        after = variable.value.numpy().astype("float64")
        np.testing.assert_allclose(after, before - update, atol=tolerance)


def test_missing_gradients_count_as_zero():
    variables = drawn_variables()
    gradients = drawn_gradients(variables, 0)
    missing = [v.path for v in variables].index("stage1_block2/normalization1/gamma")
    gradients[missing] = None
    optimizer = GradientCoupling(keras.optimizers.SGD(1.0), 0.5)
    expected = [
        before.numpy() - update
        for before, update in zip(variables, mixed_by_numpy(variables, gradients, 0.5), strict=True)
    ]
    start = variables[missing].numpy()
    optimizer.apply(constants(gradients), variables)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-6)
    assert np.abs(variables[missing].numpy() - start).min() > 0


def test_weights_of_which_none_has_a_gradient_are_left():
    variables = drawn_variables()
    gradients = drawn_gradients(variables, 0)
    gammas = [i for i, v in enumerate(variables) if v.path.endswith("gamma")]
    for place in gammas:
        gradients[place] = None
    start = [v.numpy() for v in variables]
    optimizer = GradientCoupling(keras.optimizers.SGD(1.0), 0.5)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply(constants(gradients), variables)
    for place, (variable, before) in enumerate(zip(variables, start, strict=True)):
        assert np.any(variable.numpy() != before) == (place not in gammas)


def test_a_weight_frozen_after_building_stays():
    variables = drawn_variables()
    gradients = drawn_gradients(variables, 0)
    optimizer = GradientCoupling(keras.optimizers.SGD(1.0), 0.5)
    optimizer.build(variables)
    start = [v.numpy() for v in variables]
    frozen = 2
    optimizer.apply(
        constants(gradients[:frozen] + gradients[frozen + 1 :]),
        variables[:frozen] + variables[frozen + 1 :],
    )
    np.testing.assert_array_equal(variables[frozen].numpy(), start[frozen])
    gradients[frozen] = np.zeros_like(gradients[frozen])
    expected = mixed_by_numpy(variables, gradients, 0.5)
    for place in set(range(len(variables))) - {frozen}:
        value = start[place] - expected[place]
        np.testing.assert_allclose(variables[place].numpy(), value, rtol=1e-4, atol=1e-6)


def test_variables_that_their_gradients_overwrite_are_not_mixed():
    variables = drawn_variables()
    for variable in variables:
        if variable.path.endswith("gamma"):
            variable.overwrite_with_gradient = True
    gradients = drawn_gradients(variables, 0)
    GradientCoupling(keras.optimizers.SGD(1.0), 1.0).apply(constants(gradients), variables)
    for variable, gradient in zip(variables, gradients, strict=True):
        if variable.path.endswith("gamma"):
            np.testing.assert_array_equal(variable.numpy(), gradient)


def test_one_product_for_every_group():
    variables = drawn_variables()
    gradients = constants(drawn_gradients(variables, 0))
    # How many different rows the kernel has: at coupling 1 all blocks get one and the same tensor,
    # so that no order of summation can part them.
    for coupling, rows in ((0, []), (0.5, [4, 4]), (1, [1, 1])):
        optimizer = GradientCoupling(keras.optimizers.SGD(1.0, momentum=0.9), coupling)
        optimizer.build(variables)
        graph = tf.function(lambda o=optimizer: o.apply(gradients, variables))
        operations = graph.get_concrete_function().graph.get_operations()
        products = [operation for operation in operations if operation.type == "MatMul"]
        assert [product.outputs[0].shape[0] for product in products] == rows
        assert sum(operation.type == "Unpack" for operation in operations) == len(rows)


# Types, schedules, files.


@pytest.mark.system
def test_mixed_float16():
    net = fitted(GradientCoupling(OPTIMIZERS["momentum"](), 1.0), 5, dtype="mixed_float16")
    scaler = net.optimizer
    assert isinstance(scaler, keras.optimizers.LossScaleOptimizer)
    assert isinstance(scaler.inner_optimizer, GradientCoupling)
    assert spread(net) == 0
    start = recurrent_network()
    gamma = "stage1_block0"
    values = [n.get_layer(gamma).normalization1.gamma.numpy() for n in (net, start)]
    assert np.isfinite(values).all()
    assert np.abs(values[0] - values[1]).max() > 0
    steps = int(scaler.iterations)
    assert 0 < steps <= 10
    # A step whose gradients overflow is left out.
    scaler.dynamic_scale.assign(1e38)
    before = weights_of(net)[:4]
    net.train_on_batch(*next(iter(batches())))
    assert int(scaler.iterations) == steps
    for ours, theirs in zip(weights_of(net)[:4], before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.system
def test_mixed_float16_takes_over_the_scale_of_the_inner_optimizer():
    nets = [
        fitted(GradientCoupling(OPTIMIZERS["momentum"](**kwargs), 0.5), 1, dtype="mixed_float16")
        for kwargs in ({}, {"loss_scale_factor": 1000.0})
    ]
    assert nets[1].optimizer.inner_optimizer.inner.loss_scale_factor is None
    assert_same_weights(*nets)


def test_mixed_bfloat16():
    net = fitted(GradientCoupling(OPTIMIZERS["momentum"](), 1.0), dtype="mixed_bfloat16")
    assert isinstance(net.optimizer, GradientCoupling)
    assert {v.dtype for v in net.trainable_variables} == {"float32"}
    assert spread(net) == 0
    assert spread(net, weights="non_trainable_weights") > 0


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
        finals.append([v.numpy() for v in variables])
    for plain, scaled in zip(*finals, strict=True):
        np.testing.assert_array_equal(plain, scaled)


def test_learning_rate_of_a_callback():
    weights = []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: [0.05, 0.0][epoch]),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: weights.append(net.get_layer("stem").kernel.numpy())
        ),
    ]
    net = compiled(network(widths=(4,)), GradientCoupling(keras.optimizers.SGD(0.1), 0.5))
    start = net.get_layer("stem").kernel.numpy()
    history = fit(net, batches(), 2, callbacks=callbacks).history
    assert history["learning_rate"] == pytest.approx([0.05, 0])
    assert float(net.optimizer.inner.learning_rate) == 0
    assert np.abs(weights[0] - start).max() > 0
    np.testing.assert_array_equal(weights[0], weights[1])


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


@pytest.mark.system
def test_moving_averages_by_callback():
    nets = []
    for wrap in (lambda inner: inner, lambda inner: GradientCoupling(inner, 0)):
        inner = OPTIMIZERS["momentum"](use_ema=True, ema_momentum=0.5)
        callback = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        nets.append(fitted(wrap(inner), callbacks=[callback]))
    assert_same_weights(*nets)


def test_weights_left_out_of_weight_decay():
    finals = []
    for wrap in (lambda inner: inner, lambda inner: GradientCoupling(inner, 0)):
        optimizer = wrap(keras.optimizers.AdamW(0.01, weight_decay=0.5))
        optimizer.exclude_from_weight_decay(var_names=["gamma"])
        variables = drawn_variables()
        optimizer.apply(constants(drawn_gradients(variables, 0)), variables)
        finals.append([v.numpy() for v in variables])
    for plain, coupled in zip(*finals, strict=True):
        np.testing.assert_array_equal(plain, coupled)


@pytest.mark.system
def test_a_training_with_loss_scale_goes_on_from_its_file(tmp_path):
    def optimizer():
        return GradientCoupling(OPTIMIZERS["adam"](), 0.5, "triangular")

    whole = fitted(optimizer(), epochs=2, dtype="mixed_float16")
    fitted(optimizer(), epochs=1, dtype="mixed_float16").save(tmp_path / "half.keras")
    again = keras.saving.load_model(tmp_path / "half.keras")
    fit(again, batches())
    assert_same_weights(again, whole)
    for ours, theirs in zip(again.optimizer.variables, whole.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


RESUME = """
import sys
import tfresidual
import keras, numpy as np
network = keras.saving.load_model(sys.argv[1])
optimizer = network.optimizer
assert type(optimizer) is tfresidual.training.GradientCoupling
assert (optimizer.coupling, optimizer.kernel, optimizer.first_block) == (0.5, "triangular", 1)
assert int(optimizer.iterations) == 4
data = np.load(sys.argv[2])
network.fit(
    data["images"], data["labels"], batch_size=8, epochs=2, verbose=0, shuffle=False
)
np.savez(sys.argv[3], *[v.numpy() for v in network.variables])
print("resumed")
"""


@pytest.mark.system
@pytest.mark.compiled
def test_a_training_goes_on_in_a_fresh_process(tmp_path):
    def optimizer():
        return GradientCoupling(OPTIMIZERS["momentum"](), 0.5, "triangular", first_block=1)

    whole = fitted(optimizer(), epochs=4)
    fitted(optimizer(), epochs=2).save(tmp_path / "half.keras")
    images, labels = next(iter(batches(batch=32)))
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    paths = [tmp_path / name for name in ("half.keras", "data.npz", "weights.npz")]
    result = processes.run(RESUME, *paths)
    assert result.stdout == "resumed\n", result.stderr
    with np.load(paths[2]) as file:
        found = list(file.values())
    for ours, theirs in zip(found, weights_of(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_weights_of_the_optimizer():
    first, second = (GradientCoupling(OPTIMIZERS["adam"](), 0.5) for _ in range(2))
    variables = drawn_variables()
    for optimizer in (first, second):
        optimizer.build(variables)
    assert len(first.variables) == len(first.inner.variables) + 2
    first.apply(constants(drawn_gradients(variables, 0)))
    second.set_weights([v.numpy() for v in first.variables])
    for ours, theirs in zip(second.inner.variables, first.inner.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert int(second.iterations) == 1


@pytest.mark.parametrize(
    "kwargs",
    [
        {"coupling": 0.9},
        {"coupling": 1, "kernel": "triangular_printed", "first_block": 5, "name": "coupled"},
    ],
)
@pytest.mark.parametrize("name", ["nesterov", "muon"])
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


@pytest.mark.parametrize(
    "inner",
    ["sgd", {"class_name": "SGD", "config": {"learning_rate": 0.01}}, keras.optimizers.SGD(0.01)],
)
def test_an_inner_optimizer_as_compile_takes_it(inner):
    optimizer = GradientCoupling(inner, 0.5)
    assert type(optimizer.inner) is keras.optimizers.SGD
    assert float(optimizer.learning_rate) == pytest.approx(0.01)


def test_a_built_inner_optimizer_is_gone_on_with():
    variables, others = drawn_variables(), drawn_variables()
    inner, plain = OPTIMIZERS["momentum"](), OPTIMIZERS["momentum"]()
    gradients = constants(drawn_gradients(variables, 0))
    inner.apply(gradients, variables)
    plain.apply(gradients, others)
    GradientCoupling(inner, 0).apply(gradients, variables)
    plain.apply(gradients, others)
    for ours, theirs in zip(variables, others, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


# Errors.


@pytest.mark.parametrize("coupling", [-0.01, 1.01, float("nan"), True, False, "0.5", None, 1j])
def test_coupling_is_a_number_from_0_to_1(coupling):
    for function in (lambda c: GradientCoupling("sgd", c), lambda c: coupling_kernel((0, 1), c)):
        with pytest.raises(ValueError, match="`coupling`") as raised:
            function(coupling)
        assert str(raised.value).endswith(f"Received: coupling={coupling!r}")


def test_numbers_of_numpy_are_numbers():
    assert GradientCoupling("sgd", np.float64(0.5)).get_config()["coupling"] == 0.5
    assert type(GradientCoupling("sgd", np.float32(0.5)).coupling) is float


@pytest.mark.parametrize("kernel", ["Uniform", "", None, 1, ["uniform"]])
def test_kernel_is_one_of_three(kernel):
    for function in (
        lambda k: GradientCoupling("sgd", 0.5, k),
        lambda k: coupling_kernel((0, 1), 0.5, k),
    ):
        with pytest.raises(ValueError, match="'triangular_printed'") as raised:
            function(kernel)
        assert str(raised.value).endswith(f"Received: kernel={kernel!r}")


@pytest.mark.parametrize("first_block", [-1, 1.0, True, None])
def test_first_block_is_an_int(first_block):
    with pytest.raises(ValueError, match="`first_block`") as raised:
        GradientCoupling("sgd", 0.5, first_block=first_block)
    assert str(raised.value).endswith(f"Received: first_block={first_block!r}")


@pytest.mark.parametrize("blocks", [(0, 0), (0.5, 1), 3, ((0, 1), (2, 3)), ("a", "b")])
def test_blocks_are_different_ints(blocks):
    with pytest.raises(ValueError, match="`blocks`") as raised:
        coupling_kernel(blocks, 0.5)
    assert str(raised.value).endswith(f"Received: blocks={blocks!r}")


@pytest.mark.parametrize("inner", [None, 3, keras.optimizers.SGD, keras.losses.Poisson()])
def test_inner_is_an_optimizer(inner):
    with pytest.raises(ValueError, match="`inner`") as raised:
        GradientCoupling(inner, 0.5)
    assert str(raised.value).endswith(f"Received: inner={inner!r}")


def test_inner_is_no_loss_scale_optimizer():
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match=r"LossScaleOptimizer\(GradientCoupling\(\.\.\.\)\)"):
        GradientCoupling(inner, 0.5)


@pytest.mark.parametrize("kwargs", [{"clipnorm": 1.0}, {"learning_rate": 0.1}, {"momentum": 0.9}])
def test_other_arguments_belong_to_the_inner_optimizer(kwargs):
    ((key, value),) = kwargs.items()
    with pytest.raises(ValueError, match="`inner`") as raised:
        GradientCoupling("sgd", 0.5, **kwargs)
    assert str(raised.value).endswith(f"Received: {key}={value!r}")


@pytest.mark.parametrize(
    ("paths", "first_block"),
    [
        (["dense/kernel", "dense/bias", "dense_1/kernel"], 0),
        (["stage1_block0/convolution1/kernel", "stage2_block0/convolution1/kernel"], 0),
        (["stage1_block0/convolution1/kernel", "stage1_block1/convolution1/kernel"], 1),
    ],
)
@pytest.mark.parametrize("coupling", [0, 0.5])
def test_nothing_to_couple_is_an_error(paths, first_block, coupling):
    variables = [named_variable(path, np.zeros((2, 2), "float32")) for path in paths]
    optimizer = GradientCoupling("sgd", coupling, first_block=first_block)
    with pytest.raises(ValueError, match="recurrent_initialization=True") as raised:
        optimizer.build(variables)
    message = str(raised.value)
    assert "stage1_block0/convolution1/kernel" in message.split("Received: ")[0]
    received = rf"Received: first_block={first_block}, {len(paths)} variables.*{paths[-1]}'\]$"
    assert re.search(received, message)
    assert not optimizer.built
    assert not optimizer.inner.built


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


def test_nothing_to_couple_in_fit():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, name="dense")])
    compiled(model, GradientCoupling("sgd", 0.5))
    with pytest.raises(ValueError, match="found no two weights"):
        model.fit(np.zeros((4, 5)), np.zeros(4), verbose=0)


def test_apply_checks_what_it_gets():
    variables = drawn_variables()
    gradients = constants(drawn_gradients(variables, 0))
    optimizer = GradientCoupling("sgd", 0.5)
    with pytest.raises(ValueError, match="built") as raised:
        optimizer.apply(gradients)
    assert str(raised.value).endswith("Received: 9 gradients, trainable_variables=None")
    with pytest.raises(ValueError, match="`grads`") as raised:
        optimizer.apply(gradients[1:], variables)
    assert str(raised.value).endswith("Received: 8 gradients, 9 variables")
    optimizer.build(variables[1:])
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply(gradients, variables)


def test_it_is_a_part_of_the_package():
    assert training.GradientCoupling is GradientCoupling
    assert keras.saving.get_registered_object("tfresidual>GradientCoupling") is GradientCoupling
