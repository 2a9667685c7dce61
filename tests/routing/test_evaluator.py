"""The evaluator against rebuilt networks, against NumPy in float64, and solved by hand.

Not covered here: networks on a GPU, where the kernels of a rebuilt network need not be those of
its blocks. How much memory is taken in truth is measured in test_memory.py.
"""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from reference.random_network import of_every_kind, random_batch, random_network
from reference.route_values import TOLERANCE, every_route, expected_of

import tfresidual as tfr
from tfresidual.routing import Block, Chain, Stage, evaluate
from tfresidual.routing.routes import drop, readout, repeat_last_block, shuffle, swap, unperturbed

pytestmark = pytest.mark.eager

SCORES = ("wrong", "cross_entropy", "entropy", "margin", "agreement", "distance", "outputs")


# Against rebuilt networks


def rebuilt(net, route):
    """The network whose layers are applied as the route says, compiled as one function."""

    def call(state):
        stem, stages, head = net.sections()
        for layer in stem:
            state = layer(state)
        for (transition, units), applications in zip(stages, route.stages, strict=True):
            state = state if transition is None else transition(state)
            for block, scale in applications:
                state = units[block](state) if scale == 1 else scaled(units[block], scale, state)
        for layer in head:
            state = layer(state)
        return state

    return tf.function(call, autograph=False)


def scaled(unit, scale, state):
    """What a unit makes of a state, with its branch multiplied by a number."""
    branch = scale * unit.branch(state, training=False)
    return unit.join(state, branch, training=False)


def some_routes(chain):
    last = len(chain.stages)
    return [
        drop(chain, (1, 1)),
        readout(chain, last, 0),
        repeat_last_block(chain, last, 2),
        repeat_last_block(chain, 1, 1, 0.3),
    ]


def check_rebuilt(net, images, routes, outputs):
    # Bit for bit: the same kernels on as many images.
    assert outputs.shape == (len(routes), len(images), net.classes)
    for route, measured in zip(routes, outputs, strict=True):
        expected = rebuilt(net, route)(tf.constant(images))
        np.testing.assert_array_equal(measured, expected, err_msg=str(route))


@pytest.fixture(
    scope="module",
    params=[
        {"blocks": 3, "widths": (6,), "layout": "original"},
        pytest.param(
            {"blocks": 2, "widths": (4, 8), "transition": "convolution"}, marks=pytest.mark.nightly
        ),
        {"blocks": (1, 2, 2), "widths": (4, 8, 12), "transition": "projection"},
    ],
    ids=["one stage", "two stages", "three stages"],
)
def routed(request):
    """A network, images, every route through it, and the outputs of the routes."""
    net = random_network(**request.param)
    chain, batch = tfr.chain(net), random_batch(net, images=6)
    routes = every_route(chain)
    return net, batch[0], routes, evaluate(chain, batch, routes, with_outputs=True).outputs


def test_equals_networks_built_anew(routed):
    check_rebuilt(*routed)


@pytest.mark.compiled
def test_equals_compiled_networks_built_anew(routed):
    net, images, routes, outputs = routed
    check_rebuilt(net, images, routes[::5], outputs[::5])


@pytest.fixture(scope="module", params=of_every_kind(pytest.mark.nightly))
def of_a_kind(request):
    """A network, a batch, some routes, and their values."""
    net = random_network(seed=2, **request.param)
    chain, batch = tfr.chain(net), random_batch(net, images=6)
    routes = some_routes(chain)
    return net, batch, routes, evaluate(chain, batch, routes, with_outputs=True)


def test_equals_networks_of_all_kinds_built_anew(of_a_kind):
    net, (images, _), routes, values = of_a_kind
    check_rebuilt(net, images, routes, values.outputs)


def test_equals_networks_of_low_precision_built_anew():
    # Not bit for bit: where a network is compiled as one, TensorFlow leaves out some of the
    # roundings to bfloat16 between two operations. 8 bits are 0.4 %, some times over.
    net = random_network(seed=5, dtype="mixed_bfloat16")
    chain = tfr.chain(net)
    routes = [unperturbed(chain), *some_routes(chain)]
    images, labels = random_batch(net, images=6)
    outputs = evaluate(chain, (images, labels), routes, with_outputs=True).outputs
    for route, measured in zip(routes, outputs, strict=True):
        expected = rebuilt(net, route)(tf.constant(images))
        np.testing.assert_allclose(measured, expected, atol=0.03, err_msg=str(route))
    assert np.abs(outputs[1:] - outputs[0]).max(axis=(1, 2)).min() > 0.06


# Against NumPy


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


def test_equals_numpy(of_a_kind):
    check_numpy(*of_a_kind)


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


@pytest.fixture(scope="module")
def of_three_stages():
    """A chain of three stages, and a batch."""
    net = random_network(widths=(4, 8, 12), transition="convolution")
    return tfr.chain(net), random_batch(net)


def test_distance_begins_where_the_route_leaves(of_three_stages):
    chain, batch = of_three_stages
    routes = [drop(chain, (stage, 1)) for stage in (1, 2, 3)]
    distance = evaluate(chain, batch, routes).distance
    for route, by_stage in enumerate(distance):
        np.testing.assert_array_equal(by_stage[:, :route], 0)
        assert (by_stage[:, route:] > 0).all()


def test_routes_that_differ_later_share_the_distances_before(of_three_stages):
    chain, batch = of_three_stages
    routes = [drop(chain, (1, 1), (3, 0)), drop(chain, (1, 1)), drop(chain, (1, 1), (3, 1))]
    distance = evaluate(chain, batch, routes).distance
    assert (distance > 0).all()
    for other in distance[1:]:
        np.testing.assert_array_equal(other[:, :2], distance[0, :, :2])
        assert (other[:, 2] != distance[0, :, 2]).all()
    for route, expected in zip(routes, distance, strict=True):
        np.testing.assert_array_equal(evaluate(chain, batch, [route]).distance[0], expected)


@pytest.mark.parametrize("activation", ["softmax", pytest.param(None, marks=pytest.mark.nightly)])
def test_labels_in_every_form(activation):
    net = random_network(widths=(4,), classifier_activation=activation)
    chain = tfr.chain(net)
    images, labels = random_batch(net, images=6)
    one_hot = np.eye(net.classes)[labels]
    expected = evaluate(chain, (images, labels), some_routes(chain))
    forms = (labels[:, None], labels.astype("uint8"), labels.astype("float32"), one_hot)
    for form in (*forms, one_hot.astype("float32"), one_hot.astype(bool), labels.tolist()):
        values = evaluate(chain, (images, form), some_routes(chain))
        for name in ("wrong", "cross_entropy", "entropy", "margin", "agreement"):
            np.testing.assert_array_equal(getattr(values, name), getattr(expected, name))


def test_images_of_other_precision(case):
    chain, routes, (images, labels), _ = case
    images = np.round(images * 10 + 100)
    expected = evaluate(chain, (images, labels), routes, with_outputs=True)
    for dtype in ("float64", "float16"):
        values = evaluate(chain, (images.astype(dtype), labels), routes, with_outputs=True)
        np.testing.assert_allclose(values.outputs, expected.outputs, **TOLERANCE)
        np.testing.assert_allclose(values.distance, expected.distance, **TOLERANCE)


# By hand


def plane_chain(*changes, head=None, outputs="logits"):
    """A chain in the plane: block t adds `changes[t](h)`, and the state at the end is returned."""
    blocks = tuple(
        Block(1, index, True, lambda h, change=change: h + change(h))
        for index, change in enumerate(changes)
    )
    return Chain(
        name="plane",
        stem=lambda images: ops.convert_to_tensor(images),
        stages=(Stage(1, blocks),),
        head=head or (lambda state: ops.reshape(state, (-1, 2))),
        loss=lambda labels, outputs: ops.sum(outputs, axis=-1),
        input_shape=(1, 1, 2),
        outputs=outputs,
    )


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


def test_agreement_is_with_the_network_not_with_the_labels():
    chain = plane_chain(doubles, turns)
    values = evaluate(chain, at((3, 1), (1, 3)), [drop(chain, (1, 0)), drop(chain, (1, 1))])
    # (3, 1) goes to (-2, 6), class 1, and (1, 3) to (-6, 2), class 1; without the turn the first
    # stays in class 0. All labels are 0.
    np.testing.assert_array_equal(values.agreement, [[1, 1], [0, 1]])
    np.testing.assert_array_equal(values.wrong, [[1, 1], [0, 1]])


def grows(h):
    return h * 1e30


@pytest.mark.parametrize("outputs", ["logits", "label_logits", "probabilities"])
def test_outputs_that_are_not_finite_are_wrong_and_agree_with_nothing(outputs):
    head = ops.softmax if outputs == "probabilities" else (lambda state: state)
    chain = plane_chain(
        doubles, grows, head=lambda h: head(ops.reshape(h, (-1, 2))), outputs=outputs
    )
    routes = [unperturbed(chain), repeat_last_block(chain, 1, 1), repeat_last_block(chain, 1, 2)]
    labels = [[1, 0]] if outputs == "label_logits" else [0]
    # 2e30 is finite, 2e60 not any more; the zero next to it becomes neither.
    values = evaluate(chain, at((1, 0), labels=labels), routes)
    np.testing.assert_array_equal(values.wrong, [[0], [1], [1]])
    np.testing.assert_array_equal(values.agreement, [[1], [0], [0]])
    np.testing.assert_array_equal(values.distance, [[[0]], [[np.inf]], [[np.inf]]])


def test_a_network_that_overflows_agrees_not_even_with_itself():
    chain = plane_chain(doubles, grows, grows)
    routes = [unperturbed(chain), drop(chain, (1, 2)), drop(chain, (1, 0))]
    values = evaluate(chain, at((1, 0), (np.nan, 0), (0, 0)), routes)
    np.testing.assert_array_equal(values.wrong, [[1, 1, 0], [0, 1, 0], [1, 1, 0]])
    np.testing.assert_array_equal(values.agreement, [[0, 0, 1], [0, 0, 1], [0, 0, 1]])


def test_scales_of_other_precision():
    chain = plane_chain(doubles, turns)
    routes = [repeat_last_block(chain, 1, 1, 0.5)]
    images, labels = at((3, 1))
    expected = evaluate(chain, (images, labels), routes, with_outputs=True)
    for dtype in ("float64", "float16"):
        values = evaluate(chain, (images.astype(dtype), labels), routes, with_outputs=True)
        np.testing.assert_allclose(values.outputs, expected.outputs, rtol=1e-3, err_msg=dtype)


# Which rows


def test_rows_are_those_asked_for(of_three_stages):
    chain, batch = of_three_stages
    first, second = drop(chain, (1, 0)), repeat_last_block(chain, 3, 2)
    whole, early = unperturbed(chain), readout(chain, 2, 1)
    asked = [second, whole, first, second, early, first, whole]
    rows = {
        route: evaluate(chain, batch, [route], with_outputs=True)
        for route in (first, second, whole)
    }
    values = evaluate(chain, batch, asked, with_outputs=True)
    for name in SCORES:
        expected = [getattr(rows[route if route != early else whole], name)[0] for route in asked]
        np.testing.assert_array_equal(getattr(values, name), expected, err_msg=name)
    # What is compared is not all alike.
    assert len({row.tobytes() for row in values.outputs}) == 3


def test_no_routes(case):
    chain, _, batch, _ = case
    values = evaluate(chain, [part[:4] for part in batch], [], with_outputs=True)
    shapes = {name: getattr(values, name).shape for name in SCORES}
    assert shapes == dict.fromkeys(SCORES, (0, 4)) | {"distance": (0, 4, 2), "outputs": (0, 4, 5)}


def test_outputs_only_where_asked_for(case):
    chain, routes, batch, with_outputs = case
    without = evaluate(chain, batch, iter(routes))
    assert without.outputs is None
    assert without.predicted is None
    # The classes that are named have the highest outputs.
    named = np.argmax(with_outputs.outputs, axis=-1)
    np.testing.assert_array_equal(np.argmax(with_outputs.predicted, axis=-1), named)
    assert (with_outputs.predicted.sum(axis=-1) == 1).all()
    for field in dataclasses.fields(without):
        if field.name not in ("outputs", "predicted"):
            values = [getattr(v, field.name) for v in (with_outputs, without)]
            np.testing.assert_array_equal(*values)


# Batches and memory


class Sequence(keras.utils.PyDataset):
    """Images and labels in batches of seven."""

    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels = images, labels

    def __len__(self):
        return -(-len(self.images) // 7)

    def __getitem__(self, index):
        part = slice(7 * index, 7 * index + 7)
        return self.images[part], self.labels[part]


def uneven(images, labels):
    """Batches of one, two, three, .. images, whose number is not known beforehand."""

    def batches():
        begin = 0
        for size in itertools.count(1):
            if begin >= len(images):
                return
            yield images[begin : begin + size], labels[begin : begin + size]
            begin += size

    specs = (tf.TensorSpec([None, 8, 8, 3], tf.float32), tf.TensorSpec([None], tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def sliced(size):
    return lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


DATA = {
    "lists": lambda x, y: [x.tolist(), y.tolist()],
    "tensors": lambda x, y: (tf.constant(x), tf.constant(y)),
    "with weights": lambda x, y: (x, y, np.full(len(y), 3.0)),
    "batches of 1": sliced(1),
    "batches of 4": sliced(4),
    "one batch": sliced(100),
    "uneven batches": uneven,
    "PyDataset": Sequence,
}


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


@pytest.mark.parametrize("form", DATA.values(), ids=DATA.keys())
def test_any_form_and_batching_of_the_data(case, form):
    chain, routes, batch, expected = case
    check_equal(evaluate(chain, form(*batch), routes, with_outputs=True), expected)


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
        (lowest + 0.1, sliced(5)(*batch)),
        (lowest + 0.5, batch),
        (np.float32(100), sliced(5)(*batch)),
        (2**40, batch),
    ):
        values = evaluate(chain, data, routes, memory_limit=limit, with_outputs=True)
        check_equal(values, expected)


def test_no_limit_of_memory(case):
    chain, routes, batch, expected = case
    values = evaluate(chain, batch, routes, memory_limit=float("inf"), with_outputs=True)
    check_equal(values, expected)


def counting_chain(blocks):
    """A chain in the plane that returns how many images it took at once."""

    def count(state):
        state = ops.reshape(state, (-1, 2))
        return ops.zeros_like(state) + ops.cast(ops.shape(state)[0], "float32")

    return plane_chain(*[doubles] * blocks, head=count)


def sizes_at(chain, routes, images, **kwargs):
    data = at(*np.zeros((images, 2)))
    return evaluate(chain, data, routes, with_outputs=True, **kwargs).outputs[0, :, 0].tolist()


@pytest.fixture(scope="module")
def counted():
    """A counting chain, all of its drops, and the lowest limit that is enough for these."""
    chain = counting_chain(10)
    drops = [drop(chain, (1, block)) for block in range(10)]
    return chain, drops, lowest_limit(chain, drops, at((0, 0)), 2**-21)


@pytest.mark.system
def test_takes_as_many_images_at_once_as_memory_allows(counted):
    chain, routes, lowest = counted
    # A state of an image is 8 bytes; the images and 11 states of the unperturbed route wait
    # for the others. What is over the lowest limit is there for further images.
    assert set(sizes_at(chain, routes, 3, memory_limit=lowest)) == {1.0}
    largest = []
    for over in (1024, 4096):
        sizes = sizes_at(chain, routes, 60, memory_limit=lowest + over / 2**20)
        largest.append(int(max(sizes)))
        assert sizes == sorted(sizes, reverse=True)
        assert 1 < largest[-1] <= 1 + over / 8 / 12
        # Nor is next to all of it kept free.
        assert largest[-1] >= over / 8 / 12 / 4
    assert largest[0] < largest[1]
    # Repetitions hold fewer states than drops, so that more images fit.
    repetitions = [repeat_last_block(chain, 1, times) for times in range(1, 11)]
    limit = lowest + 1024 / 2**20
    assert max(sizes_at(chain, repetitions, 60, memory_limit=limit)) > largest[0]


def test_takes_no_more_images_at_once_than_is_of_use():
    chain = counting_chain(1)
    assert sizes_at(chain, [unperturbed(chain)], 300) == [256.0] * 256 + [44.0] * 44


@pytest.mark.system
def test_more_routes_take_no_more_memory(counted):
    chain, drops, lowest = counted
    many = drops + [shuffle(chain, 1, seed) for seed in range(50)]
    limit = lowest + 4096 / 2**20
    few, all_of_them = (
        max(sizes_at(chain, routes, 60, memory_limit=limit)) for routes in (drops, many)
    )
    assert few >= all_of_them > few / 2


@pytest.mark.parametrize("limit", [0, -1, True, "1", None, float("nan"), 1j], ids=repr)
def test_bad_memory_limit(case, limit):
    chain, routes, batch, _ = case
    with pytest.raises(ValueError, match=r"`memory_limit` must be a number.*Received: memory_lim"):
        evaluate(chain, batch, routes, memory_limit=limit)


def test_too_low_a_limit_says_what_is_enough(case):
    chain, routes, batch, expected = case
    with pytest.raises(ValueError, match=r"`memory_limit` must be .*Received: .*=0\.001") as error:
        evaluate(chain, batch, routes, memory_limit=0.001)
    enough = float(str(error.value).split("must be ")[1].split(" MiB")[0])
    values = evaluate(chain, batch, routes, memory_limit=enough, with_outputs=True)
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


def test_scales_that_share_a_function_are_told_apart():
    chain = plane_chain(doubles)
    scales = (0.5, 0.25, 3, 0, -1)
    routes = [repeat_last_block(chain, 1, 1, scale) for scale in scales]
    values = evaluate(chain, at((1, -1)), routes, with_outputs=True)
    expected = [2 + 2 * scale for scale in scales]
    np.testing.assert_allclose(values.outputs[:, 0, 0], expected, rtol=1e-6)


def test_follows_the_weights():
    net = random_network(widths=(4,))
    chain, batch = tfr.chain(net), random_batch(net)
    routes = some_routes(chain)
    before = evaluate(chain, batch, routes, with_outputs=True).outputs
    for unit in net.sections()[1][0][1]:
        unit.convolution1.bias.assign_add(np.ones(4, "float32"))
    after = evaluate(chain, batch, routes, with_outputs=True).outputs
    assert np.abs(after - before).max(axis=(1, 2)).min() > 0.01
    fresh = evaluate(tfr.chain(net), batch, routes, with_outputs=True).outputs
    np.testing.assert_array_equal(after, fresh)


def test_images_of_any_size():
    net = random_network(input_shape=(None, None, 3))
    chain = tfr.chain(net)
    rng = np.random.default_rng(0)
    for size in (8, 12):
        images = rng.normal(size=(3, size, size, 3)).astype("float32")
        labels = rng.integers(0, 5, 3)
        values = evaluate(chain, (images, labels), some_routes(chain))
        expected = expected_of(net, some_routes(chain), images, labels)
        np.testing.assert_allclose(values.distance, expected["distance"], **TOLERANCE)
        np.testing.assert_allclose(values.cross_entropy, expected["cross_entropy"], **TOLERANCE)


def test_leaves_the_network_as_it_was():
    net = random_network(shortcut="dropout", blocks=(2, 1), widths=(4, 8))
    net.compile(keras.optimizers.SGD(momentum=0.9), "sparse_categorical_crossentropy")
    batch = random_batch(net)
    net.fit(*batch, verbose=0)
    net.layers[2].trainable = False
    variables = [*net.variables, *net.optimizer.variables]
    before = [v.numpy().copy() for v in variables]
    nodes = [len(layer._inbound_nodes) for layer in net._flatten_layers()]
    chain = tfr.chain(net)
    evaluate(chain, batch, [drop(chain, (1, 1)), repeat_last_block(chain, 1, 2, 0.5)])
    for variable, old in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old, err_msg=variable.path)
    assert [len(layer._inbound_nodes) for layer in net._flatten_layers()] == nodes
    assert [layer.trainable for layer in net.layers].count(False) == 1


def test_a_progress_bar_is_on_stderr_alone(case, capsys):
    chain, routes, batch, expected = case
    values = evaluate(chain, sliced(5)(*batch), routes, with_outputs=True, progress=True)
    check_equal(values, expected)
    assert capsys.readouterr().out == ""


# Data and routes that cannot be used


EMPTY = np.zeros((0, 8, 8, 3), "float32"), np.zeros(0, int)
BAD_DATA = {
    "no data": (3, "must be a `tf.data.Dataset`"),
    "labels": ((np.zeros((4, 8, 8, 3), "f"), np.zeros(3, int)), "as many labels as images"),
    "shape": ((np.zeros((4, 9, 8, 3), "f"), np.zeros(4, int)), "images of shape"),
    "one image": ((np.zeros((8, 8, 3), "f"), np.zeros(8, int)), "images of shape"),
    "no labels": (
        tf.data.Dataset.from_tensor_slices(np.zeros((4, 8, 8, 3), "f")).batch(2),
        "must hold labels",
    ),
    "empty": (EMPTY, "at least one batch"),
    "empty dataset": (tf.data.Dataset.from_tensor_slices(EMPTY).batch(2), "at least one batch"),
    "an empty batch": (tf.data.Dataset.from_tensors(EMPTY), "at least one"),
}


@pytest.mark.parametrize(("data", "message"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_data(case, data, message):
    chain, routes, *_ = case
    with pytest.raises(ValueError, match=f"`data`.*{message}.*Received: "):
        evaluate(chain, data, routes)


def test_endless_data(case):
    chain, routes, batch, _ = case
    with pytest.raises(ValueError, match=r"`data` must be finite.*Received: "):
        evaluate(chain, tf.data.Dataset.from_tensors(batch).repeat(), routes)


def test_routes_of_another_chain(case):
    chain, _, batch, _ = case
    other = tfr.chain(random_network(blocks=3))
    for routes in ([drop(other, (1, 1))], [drop(chain, (1, 1)), None]):
        with pytest.raises(ValueError, match=r"`routes` must hold routes .*Received: "):
            evaluate(chain, batch, routes)


def test_one_route_is_no_list(case):
    chain, routes, batch, _ = case
    with pytest.raises(ValueError, match=r"`routes` must .*Received: "):
        evaluate(chain, batch, routes[0])


def test_routes_that_leave_out_a_change_of_the_shape():
    # All widths are one, so that nothing fails before states of two sizes are compared.
    chain = tfr.chain(random_network(widths=(4, 4)))
    other = tfr.chain(random_network(widths=(4, 4), transition="convolution"))
    batch = np.zeros((2, 8, 8, 3), "float32"), np.zeros(2, int)
    with pytest.raises(ValueError, match=r"`routes` must hold routes .*Received: "):
        evaluate(chain, batch, [drop(other, (2, 0))])


def test_bad_chain():
    with pytest.raises(ValueError, match=r"`chain` must be a .*Chain.*Received: chain=3"):
        evaluate(3, (np.zeros((1, 8, 8, 3)), np.zeros(1)), [])
