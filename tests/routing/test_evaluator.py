"""The evaluator against NumPy in float64, and solved by hand.

How much memory is taken in truth is measured in test_memory.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from reference.plane import plane_chain
from reference.random_network import of_every_kind, random_batch, random_network
from reference.route_values import TOLERANCE, every_route, expected_of

import tfresidual as tfr
from tfresidual.routing import evaluate
from tfresidual.routing.routes import drop, readout, repeat_last_block, shuffle, swap, unperturbed

pytestmark = pytest.mark.eager

SCORES = ("wrong", "cross_entropy", "entropy", "margin", "agreement", "distance", "outputs")


def some_routes(chain):
    last = len(chain.stages)
    return [
        drop(chain, (1, 1)),
        readout(chain, last, 0),
        repeat_last_block(chain, last, 2),
        repeat_last_block(chain, 1, 1, 0.3),
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("settings", of_every_kind(pytest.mark.nightly))
def test_networks_of_all_kinds_equal_numpy(settings):
    net = random_network(seed=2, **settings)
    chain, batch = tfr.chain(net), random_batch(net, images=6)
    routes = some_routes(chain)
    check_numpy(net, batch, routes, evaluate(chain, batch, routes, with_outputs=True))


def labels_for(net, images, seed=1):
    """Ints, or k-hot rows with one to four of five labels, without their kind's other forms."""
    rng = np.random.default_rng(seed)
    if net.classifier_activation != "sigmoid":
        return rng.integers(0, net.classes, images)
    ranks = rng.permuted(np.tile(np.arange(net.classes), (images, 1)), axis=1)
    return (ranks < rng.integers(1, net.classes, (images, 1))).astype(int)


def check_numpy(net, batch, routes, values):
    for name, expected in expected_of(net, routes, *batch).items():
        measured = getattr(values, name)
        assert measured.dtype == np.float32
        assert measured.shape == expected.shape
        np.testing.assert_allclose(measured, expected, **TOLERANCE, err_msg=name)
    np.testing.assert_array_equal(values.labels, batch[1])
    assert values.classes == net.classes


@pytest.mark.parametrize(
    "activation", ["softmax", pytest.param(None, marks=pytest.mark.nightly), "sigmoid"]
)
def test_equals_numpy_for_every_route(activation):
    net = random_network(blocks=3, classifier_activation=activation)
    chain = tfr.chain(net)
    routes = [*every_route(chain), unperturbed(chain)]
    batch = random_batch(net, images=20)[0], labels_for(net, 20)
    values = evaluate(chain, batch, routes, with_outputs=True)
    check_numpy(net, batch, routes, values)
    # The cases are many-sided: some right and some wrong, some moved and some not.
    assert 0.1 < values.wrong.mean() < 1
    assert 0.1 < values.agreement.mean() < 0.95
    np.testing.assert_array_equal(values.agreement[-1], 1)
    np.testing.assert_array_equal(values.distance[-1], 0)


# By hand


def at(*points, labels=None):
    images = np.array(points, "float32").reshape(-1, 1, 1, 2)
    return images, np.zeros(len(images), "int32") if labels is None else np.array(labels)


def doubles(h):
    return h


def turns(h):
    """What a quarter of a turn adds to a point."""
    return ops.stack([-h[..., 1], h[..., 0]], axis=-1) - h


def test_solved_by_hand():
    # (3, 1) doubled is (6, 2), and turned by a quarter (-2, 6); turned first it is the same.
    chain = plane_chain(doubles, turns)
    routes = [
        unperturbed(chain),
        drop(chain, (1, 0)),
        drop(chain, (1, 1)),
        drop(chain, (1, 0), (1, 1)),
        swap(chain, 1, 0, 1),
        repeat_last_block(chain, 1, 1),
        repeat_last_block(chain, 1, 1, 0.5),
        readout(chain, 1, 0),
    ]
    values = evaluate(chain, at((3, 1), labels=[1]), routes, with_outputs=True)
    # Turned half way (-2, 6) meets the middle of itself and (-6, -2).
    ends = [(-2, 6), (-1, 3), (6, 2), (3, 1), (-2, 6), (-6, -2), (-4, 2), (6, 2)]
    np.testing.assert_array_equal(values.outputs[:, 0], ends)
    distances = [np.hypot(x + 2, y - 6) for x, y in ends]
    np.testing.assert_allclose(values.distance[:, 0, 0], distances, rtol=1e-6)
    # The label is 1, the second coordinate.
    wrong = [float(x > y) for x, y in ends]
    np.testing.assert_array_equal(values.wrong[:, 0], wrong)
    np.testing.assert_array_equal(values.agreement[:, 0], 1 - np.array(wrong))
    p = np.array([1 / (1 + np.exp(x - y)) for x, y in ends])
    np.testing.assert_allclose(values.cross_entropy[:, 0], -np.log(p), rtol=1e-5, atol=1e-7)
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    np.testing.assert_allclose(values.entropy[:, 0], entropy, rtol=1e-4)
    np.testing.assert_allclose(values.margin[:, 0], 2 * p - 1, rtol=1e-5)


# Memory


@pytest.fixture(scope="module")
def case():
    """A chain, routes, images with labels, and the values of the routes."""
    net = random_network()
    chain = tfr.chain(net)
    routes = [*some_routes(chain), unperturbed(chain)]
    batch = random_batch(net, images=23)
    return chain, routes, batch, evaluate(chain, batch, routes, with_outputs=True)


def check_equal(values, expected):
    """Equal but for another kernel, which TensorFlow may take for another number of images."""
    for name in SCORES:
        measured, other = getattr(values, name), getattr(expected, name)
        np.testing.assert_allclose(measured, other, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(values.labels, expected.labels)


def in_batches(size, batch):
    return tf.data.Dataset.from_tensor_slices(batch).batch(size)


def lowest_limit(chain, routes, data, precision):
    """The lowest limit that is enough for one image at a time, in MiB."""
    low, high = 0.0, 1024.0
    while high - low > precision:
        middle = (low + high) / 2
        try:
            evaluate(chain, data, routes, memory_limit=middle)
        except ValueError:
            low = middle
        else:
            high = middle
    return high


@pytest.mark.system
def test_any_limit_of_memory(case):
    chain, routes, batch, expected = case
    lowest = lowest_limit(chain, routes, (batch[0][:1], batch[1][:1]), 1e-3)
    for limit, data in (
        (lowest, batch),
        (lowest + 0.1, in_batches(5, batch)),
        (lowest + 0.5, batch),
        (np.float32(100), in_batches(5, batch)),
        (2**40, batch),
        (float("inf"), batch),
    ):
        values = evaluate(chain, data, routes, memory_limit=limit, with_outputs=True)
        check_equal(values, expected)


# Compiled once


@pytest.mark.compiled
def test_each_block_is_traced_once():
    traced = []

    def traced_change(index):
        def change(h):
            traced.append(index)
            return h / 2

        return change

    chain = plane_chain(*map(traced_change, range(3)))
    evaluate(chain, at((1, 2)), [drop(chain, (1, block)) for block in range(3)])
    assert sorted(traced) == [0, 1, 2]
    keys = set(chain.compiled)
    # More routes, batches of other sizes, the last of them smaller, and another call.
    more = [shuffle(chain, 1, seed) for seed in range(5)] + [repeat_last_block(chain, 1, 7)]
    for images in (1, 5, 300):
        evaluate(chain, at(*np.ones((images, 2))), more)
    assert sorted(traced) == [0, 1, 2]
    assert set(chain.compiled) == keys
    # All scales share one function, which is not the plain one.
    scaled = [
        repeat_last_block(chain, 1, times, scale) for times in (1, 3) for scale in (0.5, 0.1, -2)
    ]
    evaluate(chain, at((1, 2)), scaled)
    assert sorted(traced) == [0, 1, 2, 2]
    assert len(set(chain.compiled) - keys) == 1
    # Images and labels of another type are compiled for again, once.
    images, labels = at((1, 2))
    for _ in range(2):
        evaluate(chain, (images.astype("float64"), labels), more)
    assert sorted(traced) == [0, 0, 1, 1, 2, 2, 2]
