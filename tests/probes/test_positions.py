"""Probes of networks of tokens: against NumPy, with more padding, and per position."""

import dataclasses
import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers
from reference import sequences
from reference.plane import plane_chain
from reference.random_network import random_batch, random_network
from reference.route_values import TOLERANCE

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.probes import running
from tfresidual.probes.running import PROBES, ProbeOptions
from tfresidual.routing import Block, Chain, Stage
from tfresidual.routing.block_values import block_values
from tfresidual.routing.positions import VALID_POSITIONS

pytestmark = pytest.mark.eager

WEIGHTS = sequences.random_weights()
PLACES = ["stage", "block"]
# The columns that say where a value is.
KEYS = [*PLACES, "image", "part", "rank", "route"]


@pytest.fixture(scope="module", params=sequences.KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def chain(kind):
    return sequences.sequence_chain(kind, WEIGHTS)


@pytest.fixture(scope="module")
def decoder():
    return sequences.sequence_chain("decoder", WEIGHTS)


def first_state(sequence):
    return WEIGHTS["embedding"][np.array(sequence)]


def of_sequences(kind):
    return zip(sequences.SEQUENCES, sequences.LABELS[kind], strict=True)


def values_of(frame):
    return frame.drop(columns=KEYS, errors="ignore")


# Against NumPy


@pytest.mark.parametrize("per_position", [False, True])
def test_block_metrics_equal_numpy(kind, chain, per_position):
    parts = [
        sequences.block_metrics(WEIGHTS, kind, sequence, label, per_position)
        for sequence, label in of_sequences(kind)
    ]
    columns = {"per_position": per_position}
    frame = probes.block_metrics(chain, sequences.batch(kind), per_image=True, **columns)
    means = probes.block_metrics(chain, sequences.batch(kind), **columns)
    moved = probes.perturbation(chain, sequences.batch(kind), per_image=True, **columns)
    pd.testing.assert_frame_equal(moved, frame[moved.columns], rtol=1e-5)
    for name in parts[0]:
        expected = np.concatenate([part[name] for part in parts])
        np.testing.assert_allclose(frame[name], expected.T.ravel(), **TOLERANCE, err_msg=name)
        np.testing.assert_allclose(means[name], expected.mean(axis=0), **TOLERANCE, err_msg=name)
        if name == "cosine_loss":
            error = expected.std(axis=0, ddof=1) / np.sqrt(len(expected))
            np.testing.assert_allclose(means["cosine_loss_se"], error, **TOLERANCE)
    assert ("position" in frame) == per_position
    if per_position:
        of_block = frame[frame["block"] == 1]
        valid = sequences.batch(kind)[0] > 0
        np.testing.assert_array_equal(of_block[["image", "position"]].T, np.nonzero(valid))


def test_signal_propagation_and_first_order_equal_numpy(kind, chain):
    data = sequences.batch(kind)
    signal = probes.signal_propagation(chain, data, per_image=True)
    first = probes.first_order(chain, data, per_image=True)
    rows = []
    for image, (sequence, label) in enumerate(of_sequences(kind)):
        states = sequences.walk(WEIGHTS, kind, first_state(sequence))
        for index in range(3):
            rest = [(later, 1.0) for later in range(index + 1, 3)]

            def loss(state, rest=rest, label=label):
                last = sequences.walk(WEIGHTS, kind, state, rest)[-1]
                return sequences.loss(WEIGHTS, kind, last, label)

            after = sequences.gradient(loss, states[index + 1])
            before = sequences.gradient(
                lambda h, loss=loss, index=index: loss(
                    h + sequences.branch(WEIGHTS, kind, index, h)
                ),
                states[index],
            )
            change = states[index + 1] - states[index]
            row = {"block": index, "image": image}
            row |= {"state_norm": np.linalg.norm(states[index + 1])}
            row |= {"state_l1": np.abs(states[index + 1]).sum()}
            row |= {"state_gradient_norm": np.linalg.norm(after), "sum_deviation": 0}
            row |= {"first_order": (change * before).sum()}
            row |= {"first_order_after": (change * after).sum()}
            row |= {"loss_change": loss(states[index + 1]) - loss(states[index])}
            ends = [sequences.loss(WEIGHTS, kind, states[i], label) for i in (index, index + 1)]
            row |= {"readout_change": ends[1] - ends[0]}
            head = functools.partial(sequences.loss, WEIGHTS, kind, label=label)
            row |= {"first_order_readout": (change * sequences.gradient(head, states[index])).sum()}
            rows.append(row)
    expected = pd.DataFrame(rows).sort_values(["block", "image"], ignore_index=True)
    for name in expected.columns[2:]:
        found = (signal if name in signal else first)[name]
        np.testing.assert_allclose(found, expected[name], rtol=1e-3, atol=2e-5, err_msg=name)


def test_repetitions_equal_numpy(kind, chain):
    data, times = sequences.batch(kind), 3
    repeated = probes.repeat_last_block(chain, data, times=times, scale=0.5)
    fixed = probes.fixed_point(chain, data, times=times)
    ratios, changes = [], []
    for sequence, _ in of_sequences(kind):
        for scale, sizes in ((0.5, ratios), (1.0, changes)):
            applied = [(0, 1.0), (1, 1.0), (2, 1.0), *[(2, scale)] * times]
            states = sequences.walk(WEIGHTS, kind, first_state(sequence), applied)[2:]
            sizes.append(np.linalg.norm(np.diff(states, axis=0), axis=(1, 2)))
            if scale == 0.5:
                sizes[-1] /= np.linalg.norm(states[:-1], axis=(1, 2))
    np.testing.assert_allclose(repeated["l2_ratio"], np.mean(ratios, axis=0), **TOLERANCE)
    np.testing.assert_allclose(fixed["change"], np.mean(changes, axis=0), **TOLERANCE)


def test_by_hand():
    # Two positions (3, 4) and (0, 2) and padding; the block doubles the state.
    valid = np.array([[True, True, False]])
    double = Block(1, 0, True, apply=lambda state, context: 2 * state)
    chain = Chain(
        "by hand",
        stem=lambda images: images,
        stages=(Stage(1, (double,)),),
        head=lambda state, context: state,
        loss=lambda labels, outputs: tf.reduce_sum(outputs[:, 0], axis=-1),
        input_shape=(3, 2),
        outputs="values",
        context=lambda images: {VALID_POSITIONS: tf.repeat(valid, tf.shape(images)[0], axis=0)},
    )
    images = np.array([[[3, 4], [0, 2], [np.inf, 9]]], "float32")
    frame = probes.block_metrics(chain, (images, np.zeros(1)))
    np.testing.assert_allclose(frame["perturbation"], np.sqrt(29), rtol=1e-6)
    np.testing.assert_allclose(frame["gradient_norm"], np.sqrt(8), rtol=1e-6)
    np.testing.assert_allclose(frame["cosine_loss"], 14 / np.sqrt(29 * 8), rtol=1e-6)
    frame = probes.block_metrics(chain, (images, np.zeros(1)), per_image=True, per_position=True)
    np.testing.assert_allclose(frame["perturbation"], [5, 2], rtol=1e-6)
    np.testing.assert_allclose(frame["cosine_loss"], [7 * 2 / (5 * np.sqrt(8)), 0], atol=1e-6)
    distance = probes.computational_distance(chain, (images, np.zeros(1)), per_position=True)
    assert distance["distance"].tolist() == pytest.approx([3.5, 3.5])


# Padding

OPTIONS = ProbeOptions(times=2, at_chance="nan", epsilon=0.1, seed=0, chance=0.99)
READING_NO_DATA = {"effective_parameters", "lipschitz"}
OTHERS = {
    "per position": lambda *given: probes.block_metrics(*given, per_position=True),
    "routes of every image": lambda chain, data: probes.evaluate_routes(
        chain, data, [tfr.routes.drop(chain, (1, 0))], per_image=True
    ),
    "groups of every image": lambda *given: probes.borderline(*given, times=1, per_image=True),
    "lens of every image": lambda *given: probes.lens(*given, per_image=True),
    "margins of every image": lambda *given: probes.attribution(
        *given, target="margin", per_image=True
    ),
    "patches of every image": lambda *given: probes.patching(
        *given, what="addition", per_image=True
    ),
    "patches of every position": lambda *given: probes.patching(*given, positions="each"),
    "distance": probes.computational_distance,
    "path lengths": probes.path_lengths,
    "eigenvalues": lambda *given: probes.metric_eigenvalues(
        *given, stage=1, block=1, tolerance=1e-4
    ),
}


def measured(name, chain, data):
    """The frames of a declared probe; one that is fitted is measured on the same data."""
    if PROBES[name].fits:
        # More images than folds.
        data = {"train": tuple(np.concatenate([part, part]) for part in data), "test": data}
    return running.run(name, chain, data, OPTIONS, False)


CHAINS = {kind: sequences.sequence_chain(kind, WEIGHTS) for kind in sequences.KINDS}
NAMES = sorted({*running.possible(CHAINS["decoder"]), *OTHERS} - READING_NO_DATA)


def marks_of(place, name, kind):
    """Every probe with one kind of network in every run: with the other one it is nightly."""
    if kind != sequences.KINDS[place % 2]:
        return [pytest.mark.nightly]
    return [] if name in {*PROBES, "per position"} else [pytest.mark.nightly]


CASES = [
    pytest.param(name, kind, marks=marks_of(place, name, kind))
    for place, name in enumerate(NAMES)
    for kind in sequences.KINDS
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_padding_changes_no_metric(name, kind):
    """More padding at the ends of the sequences, and sequences that are all padding."""
    chain = CHAINS[kind]

    def run(length, empty=0):
        data = sequences.batch(kind, length, empty=empty)
        if name in OTHERS:
            return {name: OTHERS[name](chain, data)}
        return measured(name, chain, data)

    found = [run(4), run(9, empty=2)]
    for key, frame in found[0].items():
        assert len(frame)
        rtol = 1e-3 if name == "eigenvalues" else 1e-4
        other, columns = found[1][key], [c for c in frame if c != "residual"]
        if "image" in frame:
            is_empty = other["image"] >= len(sequences.SEQUENCES)
            assert values_of(other[is_empty][columns]).isna().all(axis=None)
            other = other[~is_empty].reset_index(drop=True)
        pd.testing.assert_frame_equal(frame[columns], other[columns], rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("name", ["block_metrics", "perturbation", "signal_propagation"])
def test_an_image_without_labels_counts_for_states_only(decoder, name):
    tokens, labels = sequences.batch("decoder")
    fewer = np.where(np.arange(4)[:, None] == 1, -1, labels)
    of_states = ["perturbation", "scaled_perturbation", "l2_ratio"]
    of_states += ["state_norm", "state_l1", "sum_deviation"]
    probe = getattr(probes, name)
    few, rest, every = (
        probe(decoder, data)
        for data in ((tokens, fewer), (tokens[[0, 2, 3]], labels[[0, 2, 3]]), (tokens, labels))
    )
    assert any(column in of_states for column in few)
    for column in few.columns[2:]:
        wanted = every if column in of_states else rest
        np.testing.assert_allclose(few[column], wanted[column], rtol=1e-4, err_msg=column)
    rows = probe(decoder, (tokens, fewer), per_image=True).query("image == 1")
    for column in few.columns[2:].intersection(rows.columns):
        assert rows[column].isna().all() == (column not in of_states)


def test_a_batch_without_labels_is_left_out(decoder):
    tokens, labels = sequences.batch("decoder")
    labels = np.where(np.arange(4)[:, None] >= 2, -1, labels)
    batches = tf.data.Dataset.from_tensor_slices((tokens, labels)).batch(2)
    found = probes.first_order(decoder, batches, per_image=True)
    few = probes.first_order(decoder, (tokens[:2], labels[:2]), per_image=True)
    is_few = found["image"] < 2
    pd.testing.assert_frame_equal(found[is_few].reset_index(drop=True), few, rtol=1e-5)
    assert values_of(found[~is_few]).isna().all(axis=None)


@pytest.fixture(scope="module")
def with_an_ignored_class():
    """A network whose loss ignores a class, and data in which it is that of image 2."""
    net = random_network(blocks=(2,), widths=(3,), classifier_activation=None)
    images, labels = random_batch(net, images=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    net.compile("sgd", loss)
    return net, images, np.where(np.arange(4) == 2, 255, labels).astype("uint8")


# Of gradients, of routes, and of what reads the classes itself, the first in every run.
READING_LABELS = ["block_metrics", "drop_blocks", "attribution"]
LIKE_THEM = ["first_order", "borderline", "convergence_indices", "readout", "lens", "patching"]


@pytest.mark.parametrize(
    "name",
    [*READING_LABELS, *(pytest.param(name, marks=pytest.mark.nightly) for name in LIKE_THEM)],
)
def test_an_image_whose_class_is_ignored_is_not_there(with_an_ignored_class, name):
    """Whatever number the class has."""
    net, images, ignored = with_an_ignored_class
    chain, few, of_states = tfr.chain(net), [0, 1, 3], ["perturbation", "scaled_perturbation"]
    found, expected = (
        running.run(name, chain, data, OPTIONS, False)[name]
        for data in ((images, ignored), (images[few], ignored[few]))
    )
    if name == "block_metrics":
        found, expected = (
            frame.drop(columns=[*of_states, "l2_ratio"]) for frame in (found, expected)
        )
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4, atol=1e-6)


def test_an_ignored_class_is_that_of_keras(with_an_ignored_class):
    """As in `fit` and `evaluate`."""
    net, images, ignored = with_an_ignored_class
    with_keras = [
        callbacks.DropBlocks((images, ignored)),
        callbacks.BlockMetrics((images, ignored)),
    ]
    net.fit(images, ignored, verbose=0, callbacks=with_keras)
    chain = tfr.chain(net)
    rows = probes.lens(chain, (images, ignored), per_image=True)
    assert rows.loc[rows["image"] == 2, "kl"].isna().all()
    last = probes.lens(chain, (images, ignored))["cross_entropy"].iloc[-1]
    assert last == pytest.approx(net.evaluate(images, ignored, verbose=0), rel=1e-4)


# What is missing first, of probes that need more than a position.
NEEDED = {"linear_probe": "5 training images", "similarity": "4 images that count"}


@pytest.mark.nightly
def test_where_nothing_counts_of_an_encoder():
    chain = CHAINS["encoder"]
    tokens, labels = sequences.batch("encoder")
    for name in NAMES:
        run = OTHERS.get(name, functools.partial(measured, name))
        needed = NEEDED.get(name, "one position that counts")
        with pytest.raises(ValueError, match=f"at least {needed}"):
            run(chain, (np.zeros_like(tokens), labels))


def test_where_nothing_counts(decoder):
    tokens, labels = data = sequences.batch("decoder")
    for name in (
        *("block_metrics", "first_order", "lens", "attribution", "drop_blocks"),
        *("signal_propagation", "repeat_last_block", "patching"),
    ):
        source = (data,) if name == "patching" else ()
        with pytest.raises(ValueError, match=r"at least one position that counts.* 4 images"):
            getattr(probes, name)(decoder, (tokens, np.full_like(labels, -1)), *source)
    for name in ("perturbation", "fixed_point", "line_element", "eigenvalues"):
        probe = OTHERS.get(name) or getattr(probes, name)
        with pytest.raises(ValueError, match=r"must hold at least one position that counts"):
            probe(decoder, (np.zeros_like(tokens), labels))


@pytest.mark.parametrize("probe", [probes.lens, probes.attribution])
def test_padding_changes_no_value_of_a_position(decoder, probe):
    few, many = (
        probe(decoder, sequences.batch("decoder", length), per_position=True) for length in (4, 9)
    )
    columns = few.columns.difference(["deviation"])
    pd.testing.assert_frame_equal(few[columns], many[columns], rtol=1e-4, atol=1e-5)


def test_a_row_of_zeros_is_left_out(decoder):
    tokens, labels = sequences.batch("decoder")
    rows = np.eye(4, dtype="float32")[labels]
    rows[labels < 0] = 0
    # The network does not know what is padding.
    known = decoder.context

    def context(images):
        return known(images) | {VALID_POSITIONS: tf.ones_like(images, bool)}

    chain = dataclasses.replace(decoder, context=context, compiled={})
    for probe in (probes.lens, probes.block_metrics, probes.drop_blocks):
        frames = [probe(chain, (tokens, some)) for some in (labels, rows)]
        pd.testing.assert_frame_equal(*frames, rtol=1e-5)


def test_weights_are_padding_too(decoder):
    tokens, labels = sequences.batch("decoder", fill=0)
    weights = np.random.default_rng(0).integers(0, 2, labels.shape)
    data = tf.data.Dataset.from_tensor_slices((tokens, labels, weights)).batch(3)
    expected = tokens, np.where(weights == 1, labels, -100)
    for probe in (probes.block_metrics, probes.readout, probes.first_order, probes.lens):
        pd.testing.assert_frame_equal(probe(decoder, data), probe(decoder, expected), rtol=1e-4)


@pytest.mark.compiled
def test_compiled(decoder):
    data = sequences.batch("decoder")
    found = probes.block_metrics(decoder, data, per_position=True)
    values = block_values(decoder, *map(tf.constant, data), per_position=True)
    expected = values["cosine_loss"].numpy()[values[VALID_POSITIONS].numpy()].mean(axis=0)
    np.testing.assert_allclose(found["cosine_loss"], expected, rtol=1e-4)


# What is refused


def test_a_line_between_sequences_of_numbers():
    half = Block(1, 0, True, apply=lambda state: state / 2)
    chain = dataclasses.replace(plane_chain(), stages=(Stage(1, (half,)),), input_shape=(3, 2))
    first, second = np.zeros((1, 3, 2), "float32"), np.float32([[[3, 4]] * 3])
    frame = probes.line_between(chain, first, second)
    assert frame["euclidean_length"].item() == pytest.approx(5 * np.sqrt(3))
    assert frame["length"].item() == pytest.approx(5 * np.sqrt(3) / 2)


# Callbacks


def causal_network(mask_zero=False):
    tokens = keras.Input((5,), dtype="int32")
    state = layers.Embedding(6, 3, mask_zero=mask_zero)(tokens)
    # A mask passes through these; attention takes it from what it reads.
    state = layers.Add()([state, layers.Dense(3, activation="tanh")(state)])
    read = layers.LayerNormalization()(state)
    branch = layers.MultiHeadAttention(1, 3)(read, read, use_causal_mask=True)
    state = layers.Add()([state, branch])
    state = layers.Add()([state, layers.Dense(3, activation="tanh")(state)])
    net = keras.Model(tokens, layers.Dense(4)(state))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile("sgd", loss)
    return net


@pytest.mark.parametrize("mask_zero", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_callbacks_in_a_fit(mask_zero):
    net = causal_network(mask_zero)
    tokens, labels = sequences.batch("decoder", fill=0)
    # Padding is known by the mask, or by the weights alone.
    data = tokens, labels, np.ones(tokens.shape) if mask_zero else (tokens > 0).astype("float32")
    chosen = [
        callbacks.BlockMetrics(data),
        callbacks.Perturbation(data),
        callbacks.Readout(data),
        callbacks.DropBlocks(data),
        callbacks.Borderline(data),
        callbacks.ConvergenceIndices(data, times=1, chance=0.99),
        callbacks.SignalPropagation(data),
    ]
    logs = net.fit(*data[:2], sample_weight=data[2], verbose=0, callbacks=chosen).history
    chain = tfr.chain(net)
    examples = probes.evaluate_routes(chain, data, [tfr.routes.unperturbed(chain)], per_image=True)
    np.testing.assert_array_equal(examples[["image", "position"]].T, np.nonzero(tokens))
    for probe, key in ((probes.drop_blocks, "drop_error"), (probes.block_metrics, "l2_ratio")):
        frame = probe(chain, data).set_index("block")
        expected = frame[key.removeprefix("drop_")][1]
        assert logs[f"stage1/block1/{key}"][-1] == pytest.approx(expected, rel=1e-4)
    too_large = callbacks.DropBlocks((tokens, labels + 3, data[2]))
    with pytest.raises(ValueError, match="labels from 0 to 3, or a row of 4 per position"):
        net.fit(*data[:2], verbose=0, callbacks=[too_large])
