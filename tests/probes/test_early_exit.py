"""Networks left early: errors and FLOPs against plain NumPy, and what is exported."""

import itertools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.plane import blocks_of, chain_of
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import networks, probes, training

WIDTH, CLASSES, BLOCKS = 4, 3, 3
RNG = np.random.default_rng(3)
KERNELS = [RNG.normal(size=(WIDTH, WIDTH)) for _ in range(BLOCKS)]
HEADS = [RNG.normal(size=(WIDTH, CLASSES)) / 2 for _ in range(BLOCKS)]
PLACES = [(1, block) for block in range(BLOCKS)]


def chain(checked=False):
    """Blocks h + tanh(h K) and a matrix as the head; the last block may check its input."""

    def block(index):
        def function(state):
            if checked and index == BLOCKS - 1:
                state += 0 * tf.debugging.check_numerics(tf.sqrt(100 - tf.abs(state)), "too large")
            return state + tf.tanh(tf.matmul(state, tf.constant(KERNELS[index], tf.float32)))

        return function

    return chain_of(
        *blocks_of(*map(block, range(BLOCKS))),
        head=lambda state: tf.matmul(state, tf.constant(HEADS[-1], tf.float32)),
        input_shape=(WIDTH,),
        outputs="logits",
    )


def readouts():
    """Linear heads after all blocks but the last, with the weights above."""
    made = networks.Readouts("head", [BLOCKS], PLACES[:-1], [WIDTH] * 2, classes=CLASSES)
    for layer, kernel in zip(made.readouts, HEADS, strict=False):
        layer.kernel.assign(kernel)
    return made


def data(images, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(images, WIDTH)).astype("float32"), rng.integers(0, CLASSES, images)


def by_exit(batch):
    """Which images are wrong after each block, and the probability of the predicted class."""
    state, wrong, sure = batch[0].astype(float), [], []
    for kernel, head in zip(KERNELS, HEADS, strict=True):
        state = state + np.tanh(state @ kernel)
        logits = state @ head
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        wrong.append(p.argmax(axis=1) != batch[1])
        sure.append(p.max(axis=1))
    return np.array(wrong).T, np.array(sure).T


def left_at(sure, threshold):
    return [next((t for t in range(BLOCKS - 1) if row[t] >= threshold), BLOCKS - 1) for row in sure]


def test_equals_numpy():
    validation, test = data(40, seed=1), data(60, seed=2)
    frame = probes.early_exit(chain(), readouts(), validation, test, most_rise=0.2)
    assert len(frame) == 21
    assert frame["threshold"].is_monotonic_increasing
    (wrong, sure), (own_wrong, own_sure) = map(by_exit, (test, validation))
    rises, safe = [], []
    for _, row in frame.iterrows():
        left = left_at(sure, row["threshold"] - 1e-6)
        errors = np.array([wrong[image, place] for image, place in enumerate(left)], float)
        np.testing.assert_allclose(row["error"], errors.mean())
        change = errors - wrong[:, -1]
        np.testing.assert_allclose(row["error_rise"], change.mean(), atol=1e-12)
        np.testing.assert_allclose(row["error_rise_se"], change.std(ddof=1) / 60**0.5, atol=1e-12)
        counts = np.bincount(left, minlength=BLOCKS)
        np.testing.assert_allclose(row["random_error"], counts / 60 @ wrong.mean(axis=0))
        if row["threshold"] < np.inf:
            # Two per multiplication: 16 in a block, 12 in a head, and all heads on the way.
            flops = np.mean([2 * (WIDTH * WIDTH + WIDTH * CLASSES) * (1 + place) for place in left])
        else:
            flops = 2 * (BLOCKS * WIDTH * WIDTH + WIDTH * CLASSES)
        np.testing.assert_allclose(row["flops"], flops)
        np.testing.assert_allclose(row["flops_share"], flops / frame["flops"].iloc[-1])
        np.testing.assert_allclose(row["blocks"], np.mean(left) + 1)
        own = left_at(own_sure, row["threshold"] - 1e-6)
        change = np.array([own_wrong[i, t] for i, t in enumerate(own)], float) - own_wrong[:, -1]
        np.testing.assert_allclose(row["validation_error_rise"], change.mean(), atol=1e-12)
        rises.append(change.mean() + 2 * change.std(ddof=1) / 40**0.5)
    safe = list(itertools.takewhile(lambda rise: rise <= 0.2, rises[::-1]))
    assert frame["chosen"].tolist().index(True) == len(frame) - len(safe)
    assert frame["chosen"].sum() == 1
    assert (frame["milliseconds"] > 0).all()


def test_the_random_error_is_that_of_all_ways_to_choose_images():
    batch = data(4, seed=5)
    wrong, sure = by_exit(batch)
    threshold = float(np.median(sure[:, :-1]))
    frame = probes.early_exit(chain(), readouts(), batch, batch, thresholds=[threshold])
    left = left_at(sure, threshold)
    orders = [wrong[list(order), left].mean() for order in itertools.permutations(range(4))]
    np.testing.assert_allclose(frame["random_error"].iloc[0], np.mean(orders))


def test_one_image_is_never_safe():
    frame = probes.early_exit(chain(), readouts(), data(1, 0), data(1, 1), thresholds=[0.5])
    assert frame["chosen"].tolist() == [False, True]
    assert frame["error_rise_se"].isna().all()


def signatures(path):
    return tf.saved_model.load(str(path)).signatures


@pytest.mark.parametrize("probing", [False, True])
def test_exported_it_leaves_where_numpy_says(tmp_path, probing):
    images, labels = data(30, seed=7)
    _, sure = by_exit((images, labels))
    tfr.export(chain(), tmp_path / "net", exits=readouts(), threshold=0.7, probing=probing)
    served = signatures(tmp_path / "net")
    left, found = left_at(sure, 0.7), served["serving_default"](images=images)
    assert sorted(set(left)) == list(range(BLOCKS))
    np.testing.assert_array_equal(found["block"], left)
    np.testing.assert_array_equal(found["stage"], 1)
    # One at a time, as together.
    for place in range(10):
        one = served["serving_default"](images=images[place : place + 1])
        assert int(one["block"][0]) == left[place]
        np.testing.assert_allclose(one["outputs"][0], found["outputs"][place], rtol=1e-5)
    frame = probes.early_exit(
        chain(), readouts(), (images, labels), (images, labels), thresholds=[0.7]
    )
    named = np.argmax(found["outputs"], axis=1)
    np.testing.assert_allclose(frame["error"].iloc[0], np.mean(named != labels))
    np.testing.assert_allclose(
        served["whole"](images=images)["outputs"], chain()(images), rtol=1e-5
    )
    if probing:
        loaded = tfr.chain(tmp_path / "net")
        again = probes.early_exit(
            loaded, readouts(), (images, labels), (images, labels), thresholds=[0.7]
        )
        np.testing.assert_array_equal(again["error"], frame["error"])


def test_what_comes_after_an_exit_is_not_computed(tmp_path):
    """The last block fails on large states, which leave before, unless one image is there."""
    tfr.export(chain(checked=True), tmp_path / "net", exits=readouts(), threshold=0.7)
    serve = signatures(tmp_path / "net")["serving_default"]
    large = 1000 * HEADS[0].T[:1].astype("float32")
    assert int(serve(images=large)["block"][0]) == 0
    images, _ = data(30, seed=7)
    stays = images[left_at(by_exit((images, np.zeros(30)))[1], 0.7).index(BLOCKS - 1)]
    assert int(serve(images=stays[None])["block"][0]) == BLOCKS - 1
    with pytest.raises(tf.errors.InvalidArgumentError):
        serve(images=np.concatenate([large, stays[None]]))


NETS = {
    "anchored": {"blocks": (2, 3), "widths": (4, 6), "anchor": "input"},
    "several labels": {"classifier_activation": "sigmoid", "transition": "average_pooling"},
    "bfloat16": {"dtype": keras.DTypePolicy("mixed_bfloat16")},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("anchored"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("several labels", "bfloat16")),
    ],
)
@pytest.mark.parametrize("kind", ["head", pytest.param("affine", marks=pytest.mark.nightly)])
def test_networks_leave_as_the_probe_says(name, kind, tmp_path):
    settings = {"blocks": (1, 3), "widths": (4, 6), "transition": "convolution"} | NETS[name]
    net = random_network(**settings)
    images, labels = random_batch(net, images=12)
    # With several blocks from one exit to the next.
    blocks = [(1, 0), (2, 1)] if kind == "head" else None
    made = training.fit_readouts(net, (images, labels), kind=kind, epochs=3, blocks=blocks)
    frame = probes.early_exit(net, made, (images, labels), (images, labels))
    assert frame["flops"].between(1, frame["flops"].max()).all()
    middle = frame.iloc[10]
    tfr.export(net, tmp_path / "net", exits=made, threshold=middle["threshold"], probing=False)
    found = signatures(tmp_path / "net")["serving_default"](images=images)
    places = [(block.stage, block.index) for block in tfr.chain(net).blocks]
    left = np.stack([found["stage"], found["block"]], axis=1).tolist()
    applied = [1 + places.index(tuple(place)) for place in left]
    if name != "bfloat16":  # where batches of other sizes round differently
        np.testing.assert_allclose(np.mean(applied), middle["blocks"])
    exits = {place for place in made.places if place[1] >= 0} | {places[-1]}
    assert set(map(tuple, left)) <= exits


def learnt(seed, epochs=12, rate=0.01, **settings):
    """A network that has learnt which quarter of an image is brighter, and three sets of images."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 3072)
    images = rng.normal(size=(3072, 8, 8, 1)).astype("float32")
    # Some images are harder than others.
    for image, label, light in zip(images, labels, rng.uniform(0.3, 3, 3072), strict=True):
        image[4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += light
    parts = [slice(1024 * part, 1024 * (part + 1)) for part in range(3)]
    train, validation, test = ((images[part], labels[part]) for part in parts)
    keras.utils.set_random_seed(seed)
    net = networks.ResidualNetwork((8, 8, 1), 4, **{"blocks": (2, 4), "widths": (4, 8)} | settings)
    net.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    net.fit(*train, epochs=epochs, batch_size=64, verbose=0)
    return net, train, validation, test


every_seed = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)


@pytest.mark.system
@every_seed
def test_of_a_network_that_has_learnt(seed):
    """Trained read-outs are closer to the network than its head; leaving early saves a fifth."""
    net, train, validation, test = learnt(seed)
    tuned = training.fit_readouts(net, train, epochs=3)
    untuned, tuned = (probes.lens(net, test, readouts=one)["kl"].dropna() for one in (None, tuned))
    assert (tuned.iloc[:-1] < untuned.iloc[:-1]).all()
    assert tuned.iloc[-1] == 0
    heads = training.fit_readouts(net, train, kind="head", epochs=8)
    of_heads = probes.readout(net, test, readouts=heads)[:-1]
    assert (of_heads["cross_entropy"] < 0.9 * np.log(4)).all()
    assert (of_heads["control_cross_entropy"] > 0.95 * np.log(4)).all()
    frame = probes.early_exit(net, heads, validation, test)
    (chosen,) = frame[frame["chosen"]].to_dict("records")
    assert chosen["error_rise"] <= 0.01
    assert chosen["flops_share"] <= 0.8
    # Which images leave is not left to chance.
    assert chosen["error"] < chosen["random_error"]


@pytest.mark.system
@every_seed
def test_with_the_threshold_chosen_one_image_takes_less_time(seed, tmp_path):
    """In a network so wide that a block takes longer than a condition."""
    settings = {"blocks": (1, 6), "widths": (16, 128), "epochs": 3, "rate": 0.003}
    net, train, validation, (images, labels) = learnt(seed, **settings)
    heads = training.fit_readouts(
        net, train, kind="head", epochs=6, blocks=[(1, 0), (2, 0), (2, 1)]
    )
    frame = probes.early_exit(net, heads, validation, (images, labels))
    (chosen,) = frame[frame["chosen"]].to_dict("records")
    assert chosen["error_rise"] <= 0.01 and chosen["flops_share"] <= 0.8
    exits = {"exits": heads, "threshold": chosen["threshold"]}
    tfr.export(net, tmp_path / "net", probing=False, **exits)
    served = signatures(tmp_path / "net")
    found = {
        name: value.numpy() for name, value in served["serving_default"](images=images).items()
    }
    applied = np.where(found["stage"] == 1, 1, 2 + found["block"])
    np.testing.assert_allclose(applied.mean(), chosen["blocks"], rtol=0.01)
    wrong = np.argmax(found["outputs"], axis=1) != labels
    np.testing.assert_allclose(wrong.mean(), chosen["error"], atol=0.002)
    early, whole = shortest_times(served, images[:40], calls=8)
    assert early < 0.9 * whole


def shortest_times(served, images, calls):
    """The times of one image if it may leave and if not: the median of the images' shortest ones.

    The calls alternate, so that what else the machine does slows both alike.
    """
    times = np.zeros((len(images), calls, 2))
    for place in np.ndindex(times.shape):
        image = tf.constant(images[place[0]][None])
        before = time.perf_counter()
        served[("serving_default", "whole")[place[2]]](images=image)["outputs"].numpy()
        times[place] = time.perf_counter() - before
    return np.median(times.min(axis=1), axis=0)


@pytest.mark.nightly
def test_leaving_after_the_first_block_takes_less_time(tmp_path):
    """In a network of the usual size: in one of a few channels, a condition costs a block."""
    net = networks.resnet(20, input_shape=(32, 32, 3), classes=10)
    images = np.zeros((1, 32, 32, 3), "float32"), np.zeros(1, int)
    heads = training.fit_readouts(net, images, kind="head")
    tfr.export(net, tmp_path / "net", exits=heads, threshold=0, probing=False)
    early, whole = shortest_times(signatures(tmp_path / "net"), images[0], calls=40)
    assert early < 0.8 * whole


REFUSED = {
    "most_rise": ("most_rise", {"most_rise": -0.1}),
    "a percentage": ("thresholds", {"thresholds": [90]}),
    "no probability": ("thresholds", {"thresholds": [float("nan")]}),
    "labels": ("data", {"test": (data(3, 0)[0],)}),
    "classes": ("data", {"validation": (data(3, 0)[0], [0, 1, 3])}),
    "other read-outs": (
        "readouts",
        {"readouts": networks.Readouts("head", [2], [(1, 0)], [WIDTH], classes=CLASSES)},
    ),
    "a row per position": ("model", {"per position": True}),
    "no places": ("readouts", {"readouts": None}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    argument, changes = REFUSED[name]
    given = {"readouts": readouts(), "validation": data(8, 1), "test": data(8, 2)} | changes
    model = chain()
    if given.pop("per position", False):
        # Positions of one state each.
        model = chain_of(
            *blocks_of(*[lambda state: 2 * state] * BLOCKS),
            head=lambda state: state[..., :CLASSES],
            input_shape=(2, WIDTH),
        )
        for split in ("validation", "test"):
            given[split] = np.zeros((4, 2, WIDTH), "float32"), np.zeros((4, 2), int)
        given["readouts"] = networks.Readouts(
            "head", [BLOCKS], PLACES[:-1], [WIDTH] * 2, classes=CLASSES, per_position=True
        )
    with refused(argument):
        probes.early_exit(model, given.pop("readouts"), **given)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("threshold", {"exits": True}),
        ("exits", {"threshold": 0.5}),
        ("threshold", {"exits": True, "threshold": 1.5}),
        ("exits", {"exits": "heads", "threshold": 0.5}),
    ],
)
def test_export_refuses_and_writes_nothing(argument, given, tmp_path):
    exits = readouts() if given.pop("exits", None) is True else given.pop("exits", None)
    with refused(argument):
        tfr.export(chain(), tmp_path / "net", exits=exits, **given)
    assert not list(tmp_path.iterdir())
