"""The NumPy version against finite differences, explicit loops, hand-made cases and TensorFlow.

Not covered here: the agreement of all layouts with the package, which is in tests/networks.
"""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from reference import numpy_network as reference
from reference.random_network import (
    CASES,
    CONSTRAINED_CASES,
    LAYOUTS,
    random_batch,
    random_network,
    randomise,
    sample,
    states_of,
)
from tfresidual.layers import ScaledShortcut


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def slow_convolution(x, kernel, bias, stride, top, left, rows, columns):
    """The sum over kernel rows, columns and channels, one output at a time; zeros outside."""
    y = np.zeros((len(x), rows, columns, kernel.shape[3]))
    for n, i, j, o in np.ndindex(y.shape):
        y[n, i, j, o] = bias[o]
        for a, b, c in np.ndindex(kernel.shape[:3]):
            r, s = i * stride + a - top, j * stride + b - left
            if 0 <= r < x.shape[1] and 0 <= s < x.shape[2]:
                y[n, i, j, o] += x[n, r, s, c] * kernel[a, b, c, o]
    return y


# (height, width), stride, kernel size: rows above and columns left that "same" padding adds.
PADDINGS = [
    ((5, 4), 1, 3, (1, 1)),
    ((6, 4), 2, 3, (0, 0)),
    ((5, 7), 2, 3, (1, 1)),
    ((6, 5), 2, 3, (0, 1)),
    ((5, 4), 1, 1, (0, 0)),
    ((5, 4), 2, 1, (0, 0)),
]


@pytest.mark.parametrize("size, stride, kernel_size, before", PADDINGS)
def test_convolution_is_the_sum_over_the_kernel(size, stride, kernel_size, before):
    x, bias = random(2, *size, 3), random(4, seed=2)
    kernel = random(kernel_size, kernel_size, 3, 4, seed=1)
    rows, columns = (-(-n // stride) for n in size)
    expected = slow_convolution(x, kernel, bias, stride, *before, rows, columns)
    y, _ = reference.convolution(kernel, bias, stride)(x)
    np.testing.assert_allclose(y, expected, atol=1e-12)
    y = tf.nn.conv2d(x, kernel, stride, "SAME") + bias
    np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize("size, stride, kernel_size, before", PADDINGS)
def test_the_matrix_of_a_convolution(size, stride, kernel_size, before):
    x, kernel = random(2, *size, 3), random(kernel_size, kernel_size, 3, 4, seed=1)
    rows, columns = (-(-n // stride) for n in size)
    expected = slow_convolution(x, kernel, np.zeros(4), stride, *before, rows, columns)
    matrix = reference.convolution_matrix(kernel, size, stride)
    assert matrix.shape == (rows * columns * 4, size[0] * size[1] * 3)
    np.testing.assert_allclose(x.reshape(2, -1) @ matrix.T, expected.reshape(2, -1), atol=1e-12)


WEIGHTS = {
    "unit/convolution1/kernel": random(3, 3, 4, 4, seed=1) / 4,
    "unit/convolution1/bias": random(4, seed=2),
    "unit/convolution2/kernel": random(3, 3, 4, 4, seed=3) / 4,
    "unit/convolution2/bias": random(4, seed=4),
    "unit/shortcut/gate/kernel": random(1, 1, 4, 4, seed=5),
    "unit/shortcut/gate/bias": random(4, seed=6),
    "unit/shortcut/convolution/kernel": random(1, 1, 4, 4, seed=7),
    "unit/shortcut/convolution/bias": random(4, seed=8),
} | {
    f"unit/normalization{i}/{name}": values
    for i in (1, 2)
    for name, values in {
        "gamma": 1 + random(4, seed=9 + i) / 3,
        "beta": random(4, seed=11 + i),
        "moving_mean": random(4, seed=13 + i),
        "moving_variance": np.exp(random(4, seed=15 + i)),
    }.items()
}


def unit(layout="full_preactivation", shortcut="identity"):
    config = {"layout": layout, "bottleneck": False, "shortcut": shortcut}
    return reference.residual_unit(config, reference.Weights(WEIGHTS, "unit"), 4)


PIECES = {
    "convolution": reference.convolution(random(3, 3, 4, 5), random(5)),
    "convolution, stride 2": reference.convolution(random(3, 3, 4, 5), random(5), 2),
    "convolution 1x1, stride 2": reference.convolution(random(1, 1, 4, 5), random(5), 2),
    "relu": reference.relu,
    "batch normalization": reference.batch_normalization(
        random(4), random(4), random(4), np.exp(random(4))
    ),
    "average pooling": reference.average_pooling(2),
    "average pooling with a rest": reference.average_pooling(3),
    "maximum pooling": reference.max_pooling(2),
    "maximum pooling with a rest": reference.max_pooling(3),
    "global average": reference.global_average,
    "flatten, dense": reference.chain(
        reference.flatten, reference.dense(random(6 * 5 * 4, 3), random(3))
    ),
    "subsampling": reference.subsample(6, 2),
}
PIECES |= {f"unit, {layout}": unit(layout) for layout in LAYOUTS}
PIECES |= {
    f"unit, {shortcut}": unit(shortcut=shortcut)
    for shortcut in ("scaled", "exclusive_gate", "shortcut_only_gate", "conv1x1", "dropout")
}
PIECES["unit, branch times 0.3"] = functools.partial(unit("original"), scale=0.3)


@pytest.mark.parametrize("name", PIECES)
def test_backward_pass_of_a_piece_is_that_of_finite_differences(name):
    piece = PIECES[name]
    x = random(2, 6, 5, 4, seed=20)
    y, pull = piece(x)
    weights = random(*y.shape, seed=21)
    gradient = pull(weights)
    assert gradient.shape == x.shape
    for i in range(5):
        direction = random(*x.shape, seed=30 + i)
        step = 1e-6
        change = np.sum(weights * (piece(x + step * direction)[0] - piece(x - step * direction)[0]))
        np.testing.assert_allclose(
            np.sum(gradient * direction), change / (2 * step), rtol=1e-6, atol=1e-7
        )


# Bounds


def scaling_weights(first, second, slopes):
    """A unit whose convolutions multiply by a number, and whose normalizations by `slopes`."""
    variance = 0.7
    weights = dict(WEIGHTS)
    for i, factor in ((1, first), (2, second)):
        kernel = np.zeros((3, 3, 4, 4))
        kernel[1, 1] = factor * np.eye(4)
        weights[f"unit/convolution{i}/kernel"] = kernel
        weights[f"unit/normalization{i}/moving_variance"] = np.full(4, variance)
        gamma = np.array(slopes[i - 1]) * np.sqrt(variance + reference.EPSILON)
        weights[f"unit/normalization{i}/gamma"] = gamma
    return reference.Weights(weights, "unit")


@pytest.mark.parametrize(
    ("layout", "bound"),
    [
        # Both slopes stand around the first convolution, whose channels keep to themselves: 4 * 3,
        # 3 * 2, 2 * 2 and 1 * 5.
        ("full_preactivation", (2 * 12) * 3),
        # One slope after each: at most 4 and 5.
        ("original", (2 * 4) * (3 * 5)),
        ("relu_before_addition", (2 * 4) * (3 * 5)),
        ("relu_only_preactivation", (2 * 4) * (3 * 5)),
        # The second one comes after the addition.
        ("bn_after_addition", (2 * 4) * 3),
    ],
)
def test_bounds_by_hand(layout, bound):
    weights = scaling_weights(2, -3, ([4, 3, 2, 1], [3, -2, 2, 5]))
    config = {"layout": layout, "bottleneck": False, "shortcut": "identity"}
    assert reference.lipschitz_bound(config, weights, (5, 4)) == pytest.approx(bound)
    # A unit divides its branch by the bound over the constant, and never by less than 1.
    free, whole, half, tenfold = (
        reference.residual_unit(config | {"lipschitz": lipschitz}, weights, 4)
        for lipschitz in (None, bound, bound / 2, bound * 10)
    )
    x = random(2, 5, 4, 4, seed=20)
    for unit, scale in ((whole, 1), (half, 0.5), (tenfold, 1)):
        np.testing.assert_allclose(unit(x)[0], free(x, scale=scale)[0], atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_pair_is_further_apart_behind_a_branch_than_the_bound(layout):
    config = {"layout": layout, "bottleneck": False, "shortcut": "scaled"}
    weights = reference.Weights(WEIGHTS, "unit")
    bound = reference.lipschitz_bound(config, weights, (6, 5))
    operations, _ = reference.ORDERS[layout, False].split("+")
    branch = reference.chain(
        *(
            reference.relu
            if operation == "R"
            else weights.normalization(f"normalization{operation[1]}")
            if operation[0] == "B"
            else weights.convolution(f"convolution{operation[1]}")
            for operation in operations.split()
        )
    )
    x = random(1, 6, 5, 4, seed=20)
    _, pull = branch(x)
    # The longest that the branch's derivative at x makes a vector.
    gradients = np.stack([pull(row.reshape(x.shape))[0].ravel() for row in np.eye(x.size)])
    slope = np.linalg.svd(gradients, compute_uv=False)[0]
    assert 0.05 * bound < slope <= bound


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shortcut", ["identity", "exclusive_gate"])
def test_backward_pass_to_the_anchor_is_that_of_finite_differences(layout, shortcut):
    piece, x, anchor = unit(layout, shortcut), random(2, 6, 5, 4), random(2, 6, 5, 4, seed=1)
    y, pull = piece(x, 0.3, anchor)
    weights = random(*y.shape, seed=21)
    gradients = pull(weights)
    np.testing.assert_array_equal(piece(x, 0.3, x)[0], piece(x, 0.3)[0])
    np.testing.assert_allclose(sum(piece(x, 0.3, x)[1](weights)), piece(x, 0.3)[1](weights))
    for i, j in itertools.product(range(2), range(3)):
        direction = random(*x.shape, seed=30 + j) * 1e-6
        moved = [(x + s * direction, anchor) if i == 0 else (x, anchor + s * direction)
                 for s in (1, -1)]  # fmt: skip
        ahead, behind = (piece(a, 0.3, b)[0] for a, b in moved)
        np.testing.assert_allclose(
            np.sum(gradients[i] * direction), np.sum(weights * (ahead - behind)) / 2, rtol=1e-5
        )


def test_shared_blocks_read_the_weights_of_the_first_and_their_own():
    weights = {f"{unit}/normalization1/{name}": unit for unit in ("a", "b") for name in
               ("gamma", "beta", "moving_mean", "moving_variance")}  # fmt: skip
    weights["a/convolution1/kernel"] = "a"
    found = {
        switch: [
            reference.Weights(weights, "b", "a", own).get(name)
            for name in (
                "convolution1/kernel",
                "normalization1/moving_mean",
                "normalization1/moving_variance",
                "normalization1/gamma",
                "normalization1/beta",
            )
        ]
        for switch, own in reference.OWN.items()
    }
    assert found == {
        "shared": [*"aaaaa"],
        "unshared_statistics": [*"abbaa"],
        "unshared_scale": [*"aaabb"],
        "unshared": [*"abbbb"],
    }


@pytest.mark.parametrize("labels", [np.array([2, 0]), np.array([[1, 0, 1], [0, 0, 0]])])
def test_gradient_of_the_losses_is_that_of_finite_differences(labels):
    logits = random(2, 3) * 3
    _, gradient = reference.loss_of_logits(logits, labels)
    for i, j in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[i, j] = 1e-6
        change = (
            reference.loss_of_logits(logits + step, labels)[0]
            - reference.loss_of_logits(logits - step, labels)[0]
        )
        assert gradient[i, j] == pytest.approx(change[i] / 2e-6, abs=1e-8)
        assert change[1 - i] == 0


def test_losses_by_hand():
    logits = np.log([[1.0, 2.0, 5.0]])
    assert reference.loss_of_logits(logits, [1])[0] == pytest.approx(np.log(4))
    # sigmoid(log a) = a / (1 + a)
    binary = -(np.log(1 / 2) + np.log(1 / 3) + np.log(5 / 6)) / 3
    assert reference.loss_of_logits(logits, [[1, 0, 1]])[0] == pytest.approx(binary)
    assert np.isfinite(reference.loss_of_logits(np.array([[900.0, -900.0]]), [[0, 1]])[0]).all()
    assert np.isfinite(reference.loss_of_logits(np.array([[900.0, -900.0]]), [1])[0]).all()


def test_gradients_of_a_whole_network_are_those_of_finite_differences():
    net = random_network(
        seed=3, blocks=(1, 2), widths=(4, 8), shortcut="exclusive_gate", input_shape=(8, 8, 1)
    )
    config, weights = net.get_config(), reference.weights_of(net)
    images, labels = random_batch(net)
    run = reference.analyse(config, weights, images, labels)
    pieces = reference.NumpyNetwork(config, weights)
    blocks = [
        [pieces.transitions[0], *pieces.units[0]],
        [pieces.transitions[1], *pieces.units[1]],
    ]
    for s, t in ((0, 0), (1, 0), (1, 1)):
        rest = [*blocks[s][t + 1 :], *(blocks[1] if s == 0 else []), pieces.head]
        for i in range(3):
            direction = random(*run.states[s][t].shape, seed=i)
            losses = [
                reference.loss_of_logits(
                    reference.chain(*rest)(run.states[s][t] + step * direction)[0], labels
                )[0]
                for step in (1e-6, -1e-6)
            ]
            slope = np.sum(run.gradients[s][t] * direction, axis=(1, 2, 3))
            np.testing.assert_allclose(slope, (losses[0] - losses[1]) / 2e-6, rtol=1e-5, atol=1e-8)
    for i in range(3):
        direction = random(*run.states[1][1].shape, seed=i)
        losses = [
            reference.loss_of_logits(pieces.head(run.states[1][1] + step * direction)[0], labels)[0]
            for step in (1e-6, -1e-6)
        ]
        slope = np.sum(run.readout_gradients[1] * direction, axis=(1, 2, 3))
        np.testing.assert_allclose(slope, (losses[0] - losses[1]) / 2e-6, rtol=1e-5, atol=1e-8)
    assert run.readout_gradients[0] is None


def tensorflow_gradients(net, images, labels):
    """Gradients with respect to all states, and those of the head's loss at the last stage's."""

    def loss(outputs):
        if net.classifier_activation == "sigmoid":
            return tf.reduce_sum(tf.keras.losses.binary_crossentropy(labels, outputs))
        return tf.reduce_sum(
            tf.keras.losses.sparse_categorical_crossentropy(
                labels, outputs, from_logits=net.classifier_activation is None
            )
        )

    with tf.GradientTape() as tape:
        images = tf.constant(images)
        tape.watch(images)
        states, last_states, outputs = states_of(net, images)
        total = loss(outputs)
    gradients = tape.gradient(total, [states, last_states])
    readouts = []
    for state in states[-1]:
        if state.shape != last_states[-1].shape:
            readouts.append(None)
            continue
        with tf.GradientTape() as tape:
            tape.watch(state)
            output = state
            for layer in net.sections()[2]:
                output = layer(output)
            total = loss(output)
        readouts.append(tape.gradient(total, state))
    return (*gradients, readouts)


def assert_close(actual, expected, tolerance):
    """Relative to the largest value: single entries may come out of cancellation."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


# Every layout, shortcut, transition, pooling, last activation and kind of block at least once.
GRADIENT_CASES = [
    CASES[0],
    CASES[8],
    CASES[16] | {"classifier_activation": "sigmoid"},
    CASES[21] | {"classifier_activation": None},
    CASES[25] | {"pooling": 2},
    CASES[29] | {"pooling": 1, "input_shape": (12, 8, 2)},
    # Blocks joined to their stage's input: with and without bounds, after every transition.
    *(CONSTRAINED_CASES[i] | {"blocks": (1, 3)} for i in (5, 17, 18, 26)),
]


@pytest.mark.parametrize("case", sample(GRADIENT_CASES, 2, pytest.mark.nightly))
def test_gradients_are_those_of_tensorflow(case):
    net = random_network(seed=4, **{"blocks": (1, 2)} | case)
    images, labels = random_batch(net)
    run = reference.analyse(net.get_config(), reference.weights_of(net), images, labels)
    gradients, last_gradients, readouts = tensorflow_gradients(net, images, labels)
    for ours, theirs in zip(run.gradients, gradients, strict=True):
        for our, their in zip(ours, theirs, strict=True):
            assert_close(our, their.numpy(), 1e-4)
    for our, their in zip(run.last_gradients, last_gradients, strict=True):
        assert_close(our, their.numpy(), 1e-4)
    for our, their in zip(run.readout_gradients, readouts, strict=True):
        assert (our is None) == (their is None)
        if our is not None:
            assert_close(our, their.numpy(), 1e-4)


def run_by_hand():
    """Two stages of two images: one pixel, two channels; the second stage begins by a change."""

    def both(*features):
        return np.tile(np.array(features, float), (2, 1, 1, 1))

    first = both(3, 4)  # norm 5
    second = first + np.array([[0, 5], [0, 0]]).reshape(2, 1, 1, 2)  # F = (0, 5) and (0, 0)
    third = second + both(12, 0)
    wide, last = both(1, 1, 1), both(1, 1, 3)
    return reference.Run(
        states=[[first, second], [third, wide]],
        last_states=[third, last],
        logits=np.zeros((2, 2)),
        outputs=np.zeros((2, 2)),
        losses=np.zeros(2),
        gradients=[[both(3, 4), both(-1, 0)], [both(0, 1), both(0, 0, 0)]],
        last_gradients=[first, wide],
        readout_gradients=[None, both(0, 3, -3)],
    )


def test_metrics_by_hand():
    run, nan = run_by_hand(), np.nan
    equal = np.testing.assert_allclose
    equal(reference.perturbation(run)[0], [[5, 0], [12, 12]])
    equal(reference.perturbation(run)[1], [[nan, nan], [2, 2]])
    for metric in (reference.l2_ratio, reference.scaled_perturbation):
        equal(metric(run)[0], [[1, 0], [12 / np.sqrt(90), 12 / 5]])
        equal(metric(run)[1], [[nan, nan], [2 / np.sqrt(3)] * 2])
    equal(reference.cosine_loss(run)[0], [[0.8, 0], [-1, -1]])
    equal(reference.cosine_loss(run)[1], [[nan, nan], [0, 0]])
    equal(reference.readout_cosine_loss(run)[0], [[nan, nan], [nan, nan]])
    equal(reference.readout_cosine_loss(run)[1], [[nan, nan], [-np.sqrt(0.5)] * 2])
    equal(reference.gradient_norm(run)[0], [[5, 5], [1, 1]])
    equal(reference.gradient_norm(run)[1], [[1, 1], [0, 0]])


def test_computational_distance_by_hand():
    distance = reference.computational_distance(run_by_hand())
    absolute, scaled = distance["absolute"], distance["scaled"]
    assert absolute["stages"] == pytest.approx([(17 + 12) / 2, 2])
    assert absolute["total"] == pytest.approx((19 + 14) / 2)
    assert absolute["stage_means"] == pytest.approx([(17 + 12) / 4, 2])
    assert absolute["mean"] == pytest.approx((19 + 14) / 6)
    first = (1 + 12 / np.sqrt(90) + 12 / 5) / 2
    assert scaled["stages"] == pytest.approx([first, 2 / np.sqrt(3)])
    assert scaled["total"] == pytest.approx(first + 2 / np.sqrt(3))
    assert scaled["stage_means"] == pytest.approx([first / 2, 2 / np.sqrt(3)])
    assert scaled["mean"] == pytest.approx((first + 2 / np.sqrt(3)) / 3)


def test_a_network_of_one_image_gives_what_it_gives_in_a_batch():
    net = random_network(seed=5)
    config, weights = net.get_config(), reference.weights_of(net)
    images, labels = random_batch(net)
    whole = reference.analyse(config, weights, images, labels)
    single = reference.analyse(config, weights, images[1:2], labels[1:2])
    for metric in (reference.cosine_loss, reference.gradient_norm, reference.l2_ratio):
        for stage, of_one in zip(metric(whole), metric(single), strict=True):
            np.testing.assert_allclose(stage[:, 1:2], of_one, rtol=1e-10)


def test_shortcut_layers_are_read_from_the_config():
    shortcut = ScaledShortcut(scale=0.25, branch_scale=2.0)
    net = random_network(blocks=1, widths=(4,), shortcut=shortcut)
    images, labels = random_batch(net)
    config, weights = net.get_config(), reference.weights_of(net)
    run = reference.analyse(config, weights, images, labels)
    identity = reference.analyse(config | {"shortcut": "identity"}, weights, images, labels)
    h = run.states[0][0]
    np.testing.assert_allclose(
        run.last_states[0], 0.25 * h + 2 * (identity.last_states[0] - h), atol=1e-12
    )


def test_random_network_draws_every_weight_again_from_the_seed():
    first, second, other = (random_network(seed=seed, blocks=1) for seed in (1, 1, 2))
    for a, b, c in zip(first.weights, second.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.any(np.asarray(a) == np.asarray(c))
    randomise(second, 2)
    for b, c in zip(second.weights, other.weights, strict=True):
        np.testing.assert_array_equal(b, c)


def test_constrained_cases_hold_every_pair_of_settings():
    settings = {
        "layout": lambda case: case["layout"],
        "sharing": lambda case: (case.get("share_from"), case.get("batch_norm")),
        "transition": lambda case: case["transition"],
        "shortcut": lambda case: case["shortcut"],
        "anchor": lambda case: case["anchor"],
        "lipschitz": lambda case: case["lipschitz"],
        "bottleneck": lambda case: case["bottleneck"],
    }
    values = {name: {of(case) for case in CONSTRAINED_CASES} for name, of in settings.items()}
    sizes = {name: len(found) for name, found in values.items()}
    assert list(sizes.values()) == [5, 6, 4, 6, 2, 3, 2]
    for one, other in itertools.combinations(settings, 2):
        if (one, other) in (("sharing", "shortcut"), ("transition", "shortcut")):
            continue
        pairs = {(settings[one](case), settings[other](case)) for case in CONSTRAINED_CASES}
        assert len(pairs) == sizes[one] * sizes[other], (one, other)
