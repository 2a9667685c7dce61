"""Metric, eigenvalues and lengths against explicit Jacobians in float64, and by hand.

The Jacobians come from the NumPy network's backward passes, one row after the other, or, where a
stage has an anchor, from central differences of the Keras layers in float64.

Not covered here: networks on a GPU; chains whose layers TensorFlow cannot differentiate twice.
"""

import numpy as np
import pytest
from keras import ops
from reference import numpy_network
from reference.plane import at, chain_of, plane_chain
from reference.random_network import CASES, case_id, random_batch, random_network, sample

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import Block

pytestmark = pytest.mark.eager

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
SMALL = {"input_shape": (4, 4, 2), "widths": (4, 8)}


def numpy_jacobian(net, images, stage, block):
    """The state before a block, and the Jacobian of the last one there.

    Returns:
        A tuple of `(images, features)` and `(images, features of the last, features)`.
    """
    plain = numpy_network.NumpyNetwork(net.get_config(), numpy_network.weights_of(net))
    pieces = [
        (s, t, piece)
        for s, (transition, units) in enumerate(
            zip(plain.transitions, plain.units, strict=True), start=1
        )
        for t, piece in enumerate([transition, *units], start=-1)
    ]
    before = [piece for s, t, piece in pieces if (s, t) < (stage, block)]
    after = [piece for s, t, piece in pieces if (s, t) >= (stage, block)]
    state, _ = numpy_network.chain(plain.stem, *before)(images.astype("float64"))
    last, pull = numpy_network.chain(*after)(state)
    rows = []
    for index in range(last[0].size):
        cotangent = np.zeros(last.shape)
        cotangent.reshape(len(last), -1)[:, index] = 1
        rows.append(pull(cotangent).reshape(len(last), -1))
    return state.reshape(len(state), -1), np.stack(rows, axis=1)


def anchored(net, images, stage, block):
    """State and anchor before a block of a network of anchored stages, and what leads on."""
    stem, stages, _ = net.sections()
    layers = [
        (s, t, layer)
        for s, (transition, units) in enumerate(stages, start=1)
        for t, layer in enumerate([transition, *units], start=-1)
    ]

    def lead(state, anchor, places):
        for t, layer in places:
            if layer is not None and t >= 0 and layer.resizing is None:
                state = layer(state, anchor, training=False)
            elif layer is not None:
                state = layer(state)
            # The anchor is what the blocks that keep the shape begin with.
            if t < 0 or layer.resizing is not None:
                anchor = state
        return state, anchor

    state = images
    for layer in stem:
        state = layer(state)
    before = [(t, layer) for s, t, layer in layers if (s, t) < (stage, block)]
    after = [(t, layer) for s, t, layer in layers if (s, t) >= (stage, block)]
    state, anchor = (np.asarray(part) for part in lead(state, None, before))
    return state, anchor, lambda state, anchor: np.asarray(lead(state, anchor, after)[0])


def differences(function, state, step=1e-6):
    """The Jacobian of each image by central differences, `(images, outputs, features)`."""
    features = state[0].size
    shifts = step * np.eye(features).reshape(features, 1, *state.shape[1:])
    both = (state + np.stack([shifts, -shifts])).reshape(-1, *state.shape[1:])
    plus, minus = function(both).reshape(2, features, len(state), -1)
    return np.moveaxis((plus - minus) / (2 * step), 0, 2)


ANCHORED = {
    "input_shape": (4, 4, 2),
    "widths": (3, 4),
    "blocks": (2, 3),
    "anchor": "input",
    "dtype": "float64",
}


def anchored_jacobian(net, images, stage, block):
    """As `numpy_jacobian`, of a network of anchored stages, the anchor held fixed."""
    state, anchor, lead_on = anchored(net, images, stage, block)

    def function(states):
        return lead_on(states, np.tile(anchor, (len(states) // len(anchor), 1, 1, 1)))

    return state.reshape(len(state), -1), differences(function, state)


def flat(values):
    return np.asarray(values).reshape(len(values), -1)


def random_vectors(net, images, stage, block):
    state, _ = tfr.chain(net).walk_to(tfr.chain(net).stem(images), stage, block)
    return np.random.default_rng(7).normal(size=state.shape).astype("float32")


def assert_near(measured, expected, tolerance):
    """Relative to the largest value of each image: single entries may come out of cancellation."""
    scale = np.abs(expected).max(axis=1, keepdims=True)
    np.testing.assert_allclose(measured / scale, expected / scale, rtol=0, atol=tolerance)


# Every layout, a place before, at and after each kind of transition.
PLACES = [(CASES[0], 1, 1), (CASES[9], 2, 0), (CASES[14], 1, 0), (CASES[23], 2, 1)]
PLACES += [(CASES[26], 1, 1)]
PLACES = {
    case_id(case): (SMALL | case | {"blocks": 2}, stage, block) for case, stage, block in PLACES
}
# The metric holds the anchor.
AT_ANCHORS = {f"anchor {place}": (ANCHORED, *place) for place in ((1, 0), (2, 1), (2, 2))}


@pytest.mark.parametrize(
    "place",
    [*sample(PLACES, 2, pytest.mark.nightly), *sample(AT_ANCHORS, 2, pytest.mark.nightly)],
)
def test_product_equals_numpy(place):
    settings, stage, block = place
    net = random_network(seed=3, **settings)
    images, _ = random_batch(net)
    vectors = random_vectors(net, images, stage, block)
    product = probes.metric_product(
        net, images.astype(net.dtype), stage=stage, block=block, vectors=vectors
    )
    assert product.shape == vectors.shape
    assert product.dtype == net.dtype
    jacobian_of = anchored_jacobian if net.anchor == "input" else numpy_jacobian
    _, jacobian = jacobian_of(net, images, stage, block)
    expected = np.einsum("noi,noj,nj->ni", jacobian, jacobian, flat(vectors))
    assert_near(flat(product), expected, 1e-6 if net.anchor == "input" else 2e-5)


@pytest.mark.parametrize("place", sample(dict(list(PLACES.items())[1::-1]), 2, pytest.mark.nightly))
def test_eigenvalues_equal_numpy(place):
    settings, stage, block = place
    net = random_network(seed=3, **settings)
    images, labels = random_batch(net)
    frame = probes.metric_eigenvalues(
        net, (images, labels), stage=stage, block=block, count=4, tolerance=1e-4
    )
    _, jacobian = numpy_jacobian(net, images, stage, block)
    expected = np.linalg.svd(jacobian, compute_uv=False)[:, :4] ** 2
    measured = frame["eigenvalue"].to_numpy().reshape(3, 4)
    np.testing.assert_allclose(measured / expected[:, :1], expected / expected[:, :1], atol=2e-5)
    assert (frame["residual"] <= 1e-4).all()
    assert frame["image"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert frame["rank"].tolist() == [0, 1, 2, 3] * 3
    places = ["stage", "block", "image", "rank"]
    assert frame.columns.tolist() == [*places, "eigenvalue", "residual"]


def linear_chain(*matrices):
    """A chain of one pixel whose blocks multiply the state by matrices."""
    matrices = [np.asarray(matrix, "float32") for matrix in matrices]
    blocks = [
        Block(1, index, len(matrix) == len(matrix[0]), lambda h, matrix=matrix: h @ matrix.T)
        for index, matrix in enumerate(matrices)
    ]

    def head(state):
        return ops.reshape(state, (-1, state.shape[-1]))

    return chain_of(*blocks, head=head, input_shape=(1, 1, len(matrices[0][0])))


def pixels(rows):
    rows = np.asarray(rows, "float32")
    return rows[:, None, None], np.zeros(len(rows), "int32")


def test_eigenvalues_by_hand():
    # A shear between two scalings: the metric before the last block is diag(9, 4, 0); before the
    # first it is that of [[3, 3, 0], [0, 2, 0], [0, 0, 0]], with trace 22 and minor 36.
    chain = linear_chain([[1, 1, 0], [0, 1, 0], [0, 0, 1]], np.diag([3, 2, 0]))
    data = pixels([[1, 2, 3], [0, 0, 0]])
    last = probes.metric_eigenvalues(chain, data, stage=1, block=1)
    np.testing.assert_allclose(last["eigenvalue"], [9, 4, 0] * 2, rtol=1e-5, atol=1e-6)
    first = probes.metric_eigenvalues(chain, data, stage=1, block=0, count=2)
    roots = 11 + np.sqrt(85) * np.array([1, -1])
    np.testing.assert_allclose(first["eigenvalue"], np.tile(roots, 2), rtol=1e-5)
    assert (first["residual"] < 1e-5).all()


def diagonal_chain(singular_values):
    """A linear chain of given singular values in a random basis."""
    size = len(singular_values)
    left, right = np.linalg.qr(np.random.default_rng(0).normal(size=(2, size, size)))[0]
    return linear_chain(left @ np.diag(singular_values) @ right)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("singular_values", "tolerance"),
    [
        pytest.param(np.linspace(2, 1, 120), 1e-3, marks=pytest.mark.nightly),
        # Equal ones.
        ([3, 3, 3, 3, 3, 2, 2] + [1] * 60, 1e-4),
        # Less of them than are sought.
        ([5] + [0] * 70, 1e-4),
        pytest.param([0] * 70, 1e-4, marks=pytest.mark.nightly),
        pytest.param(1e12 * np.linspace(2, 0, 70) ** 2, 1e-4, marks=pytest.mark.nightly),
        (1e-12 * np.linspace(2, 0, 70) ** 2, 1e-4),
    ],
    ids=["close", "equal", "one", "none", "large", "small"],
)
def test_eigenvalues_of_many_features(singular_values, tolerance):
    chain = diagonal_chain(singular_values)
    data = pixels(np.zeros((2, len(singular_values))))
    frame = probes.metric_eigenvalues(chain, data, stage=1, block=0, count=3, tolerance=tolerance)
    expected = np.tile(np.square(singular_values[:3], dtype=float), 2)
    scale = expected[0] or 1
    np.testing.assert_allclose(frame["eigenvalue"] / scale, expected / scale, atol=tolerance)
    assert (frame["residual"] <= tolerance).all()
    assert (frame["eigenvalue"] >= 0).all()


def numpy_line_element(before, after, jacobian):
    """Both parts and the length per image, of the states before and after a block."""
    layer = ((after - before) ** 2).sum(axis=1)
    spatial = (np.einsum("noi,ni->no", jacobian, after - before) ** 2).sum(axis=1)
    return np.array([layer, spatial, np.sqrt(layer + spatial)])


@pytest.mark.parametrize("case", sample([CASES[8], CASES[21]], 2, pytest.mark.nightly))
def test_line_element_equals_numpy(case):
    net = random_network(seed=3, blocks=2, **SMALL, **case)
    images, labels = random_batch(net)
    chain = tfr.chain(net)
    frame = probes.line_element(chain, (images, labels), per_image=True)
    run = numpy_network.analyse(net.get_config(), numpy_network.weights_of(net), images, labels)
    expected = np.full((2, 2, 3, 3), np.nan)
    for stage, states in enumerate(run.states):
        states = [*states, run.last_states[stage]]
        for block in range(2):
            before, after = map(flat, states[block : block + 2])
            if before.shape == after.shape:
                _, jacobian = numpy_jacobian(net, images, stage + 1, block)
                expected[stage, block] = numpy_line_element(before, after, jacobian)
    columns = ["layer_part", "spatial_part", "length"]
    assert frame.columns.tolist() == ["stage", "block", "image", *columns]
    measured = np.moveaxis(frame[columns].to_numpy().reshape(2, 2, 3, 3), 3, 2)
    np.testing.assert_allclose(measured, expected, **TOLERANCE)
    means = probes.line_element(chain, (images, labels))
    np.testing.assert_allclose(means[columns], expected.mean(axis=3).reshape(4, 3), **TOLERANCE)


@pytest.mark.compiled
def test_line_element_holds_the_anchor():
    net = random_network(seed=3, lipschitz=2.0, **ANCHORED | {"blocks": 2, "widths": (3,)})
    images, labels = random_batch(net)
    frame = probes.line_element(net, (images.astype("float64"), labels))
    columns = ["layer_part", "spatial_part", "length"]
    for stage, block in ((1, 0), (1, 1)):
        state, jacobian = anchored_jacobian(net, images, stage, block)
        before, anchor, _ = anchored(net, images, stage, block)
        unit = net.get_layer(f"stage{stage}_block{block}")
        after = flat(unit(before, anchor, training=False))
        expected = numpy_line_element(state, after, jacobian).mean(axis=1)
        row = frame[(frame["stage"] == stage) & (frame["block"] == block)]
        np.testing.assert_allclose(row[columns].to_numpy()[0], expected, rtol=1e-5)


def test_line_element_by_hand():
    # h = (3, 4); the first block halves it, the second swaps the axes. F = (-1.5, -2) and, of
    # (1.5, 2), (0.5, -0.5). The first one's step is halved on its way to the end.
    chain = plane_chain(lambda h: -h / 2, lambda h: h[..., ::-1] - h)
    frame = probes.line_element(chain, at(3, 4))
    np.testing.assert_allclose(frame["layer_part"], [6.25, 0.5])
    np.testing.assert_allclose(frame["spatial_part"], [6.25 / 4, 0.5])
    np.testing.assert_allclose(frame["length"], [np.sqrt(7.8125), 1], rtol=1e-6)
    lengths = probes.path_lengths(chain, {"a": at(3, 4), "b": at(0, 0)})
    assert lengths["split"].tolist() == ["a", "a", "b", "b"]
    assert lengths["stage"].tolist() == [1, "all"] * 2
    assert lengths["blocks"].tolist() == [2] * 4
    total = np.sqrt(7.8125) + 1
    np.testing.assert_allclose(lengths["path_length"], [total, total, 0, 0], rtol=1e-6)


@pytest.mark.compiled
def test_line_by_hand():
    # The block takes (x, 0) to (x, x^2): from -1 to 1 a parabola's arc, there and back in y.
    chain = plane_chain(lambda h: ops.flip(h, axis=-1) ** 2 * [0.0, 1.0])
    frame = probes.line_between(chain, at(-1, 0)[0], at(1, 0)[0], points=400)
    arc = np.sqrt(5) + np.arcsinh(2) / 2
    assert frame["length"][0] == pytest.approx(arc, rel=1e-4)
    assert frame["last_distance"][0] == pytest.approx(2)
    # At two points, x = -0.5 and 0.5, the speed is 2 |(1, 2 x)|.
    frame = probes.line_between(chain, at(-1, 0)[0], at(1, 0)[0], points=2)
    assert frame["length"][0] == pytest.approx(2 * np.sqrt(2))
