"""The lens against the NumPy version, a logit lens by hand, and cases solved by hand."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import ops
from reference.decoder import Decoder
from reference.numpy_lens import Images, lens_metrics
from reference.plane import blocks_of, chain_of
from reference.random_network import sample
from reference.route_probes import NETWORKS, network

import tfresidual as tfr
from tfresidual import probes
from tfresidual.probes.lens import METRICS
from tfresidual.routing.losses import softmax_cross_entropy

pytestmark = pytest.mark.eager
TOLERANCE = {"rtol": 1e-3, "atol": 2e-5}


@pytest.mark.parametrize("settings", sample(NETWORKS, every=3, others=pytest.mark.nightly))
def test_equals_numpy(settings):
    net, (images, labels) = network(settings)
    run = Images(net, images, labels)
    last = run.states[max(run.states)]
    frame = probes.lens(net, (images, labels), per_image=True)
    assert frame.columns.tolist() == ["stage", "block", "image", *METRICS]
    assert list(frame.groupby(["stage", "block"]).groups) == sorted(run.states)
    for place, rows in frame.groupby(["stage", "block"]):
        if run.states[place].shape != last.shape:
            assert rows[[*METRICS]].isna().all(axis=None)
            continue
        logits = run.head(run.states[place])
        expected = [lens_metrics(*row) for row in zip(logits, run.logits, labels, strict=True)]
        for name in METRICS:
            wanted = [row[name] for row in expected]
            np.testing.assert_allclose(rows[name], wanted, **TOLERANCE, err_msg=name)
    assert (frame["kl"].iloc[-len(images) :] == 0).all()
    means = frame.groupby(["stage", "block"], as_index=False)[[*METRICS]].mean()
    frame = probes.lens(net, (images, labels))
    pd.testing.assert_frame_equal(frame, means, rtol=1e-5, check_dtype=False)


class TestDecoder:
    model = Decoder()

    def expected(self, inputs, labels, logits=None):
        """Every metric, arrays (examples, states), of the positions that have a label."""
        states, final = self.model.run(inputs["ids"], inputs["mask"])
        rows = []
        for state in states:
            found = self.model.logits(state)
            rows.append(
                [
                    lens_metrics(found[place], final[place], labels[place])
                    for place in zip(*np.nonzero(labels >= 0), strict=True)
                ]
            )
        return {name: np.array([[one[name] for one in row] for row in rows]) for name in METRICS}

    def test_equals_the_logit_lens_by_hand(self):
        inputs, labels = self.model.batch()
        labels[0, 0] = -1
        wanted = self.expected(inputs, labels)
        frame = probes.lens(self.model.chain(), (inputs, labels), per_position=True)
        images, positions = np.nonzero(labels >= 0)
        for block, rows in enumerate(wanted["kl"], start=-1):
            found = frame[frame["block"] == block]
            np.testing.assert_array_equal(found["image"], images)
            np.testing.assert_array_equal(found["position"], positions)
            assert len(found) == len(rows)
        for name in METRICS:
            np.testing.assert_allclose(
                frame[name], wanted[name].ravel(), rtol=1e-5, atol=1e-5, err_msg=name
            )
        # The label has the highest output where its rank is 1.
        label = np.tile(labels[labels >= 0], len(wanted["kl"]))
        np.testing.assert_array_equal(frame["predicted"] == label, frame["rank"] == 1)
        final = frame["predicted"].to_numpy().reshape(len(wanted["kl"]), -1)
        agrees = frame["agreement"].to_numpy().reshape(final.shape)
        np.testing.assert_array_equal(final == final[-1], agrees == 1)

    @pytest.mark.compiled
    def test_means_are_over_all_positions_with_a_label_in_any_batches(self):
        inputs, labels = self.model.batch(images=7)
        wanted = self.expected(inputs, labels)
        data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(3)
        chain = self.model.chain()
        frame = probes.lens(chain, data)
        for name in METRICS:
            np.testing.assert_allclose(
                frame[name], wanted[name].mean(axis=1), rtol=1e-5, atol=1e-5, err_msg=name
            )
        images = np.nonzero(labels >= 0)[0]
        own = probes.lens(chain, (inputs, labels), per_image=True)
        of_image = [wanted["kl"][:, images == image].mean(axis=1) for image in range(7)]
        np.testing.assert_allclose(own["kl"], np.transpose(of_image).ravel(), rtol=1e-5, atol=1e-5)
        made = [made for (name, *_), made in chain.compiled.items() if name == "lens of logits"]
        assert [function.experimental_get_tracing_count() for function in made] == [1]


def logits_chain(*states, outputs="logits", head=None):
    """A chain whose state after block t is `states[t]`, as logits; it begins with zeros."""
    classes = len(states[0])
    blocks = [lambda h, z=z: ops.zeros_like(h) + np.array(z, "float32") for z in states]
    return chain_of(
        *blocks_of(*blocks),
        head=head or (lambda state: ops.reshape(state, (-1, classes))),
        outputs=outputs,
        input_shape=(1, 1, classes),
    )


def test_by_hand():
    # Probabilities 1/2, 1/4, 1/4 and then 1/4, 1/2, 1/4; the first state predicts nothing.
    images = np.zeros((2, 1, 1, 3), "float32")
    chain = logits_chain(np.log([2, 1, 1]), np.log([1, 2, 1]))
    frame = probes.lens(chain, (images, [0, 2]), per_image=True)
    half, log = np.log(2), np.log
    of_first = frame.query("image == 0")
    expected = {
        "cross_entropy": [log(3), half, 2 * half],
        "rank": [2, 1, 2.5],  # of three equal ones, the second; one of two equal ones after another
        "probability": [1 / 3, 1 / 2, 1 / 4],
        # The sum of p log(p / q), with p = 1/4, 1/2, 1/4.
        "kl": [log(3) - 1.5 * half, half / 4, 0],
        "agreement": [0, 0, 1],
        "entropy": [log(3), 1.5 * half, 1.5 * half],
    }
    for name in METRICS:
        np.testing.assert_allclose(of_first[name], expected[name], atol=1e-6, err_msg=name)
    assert frame.query("image == 1")["rank"].tolist() == [2, 2.5, 2.5]


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_two_classes_with_one_output(kind):
    # Probability 3/4 of class 1.
    value = np.log(3) if kind == "logits" else 3 / 4
    chain = logits_chain([value], outputs=f"label_{kind}")
    images = np.full((2, 1, 1, 1), 0 if kind == "logits" else 0.5, "float32")
    frame = probes.lens(chain, (images, [1, 0]), per_image=True)
    np.testing.assert_allclose(frame["probability"], [0.5, 0.5, 0.75, 0.25], rtol=1e-5)
    assert frame["rank"].tolist() == [1.5, 1.5, 1, 2]
    wanted = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    np.testing.assert_allclose(frame["kl"], [wanted, wanted, 0, 0], rtol=1e-5, atol=1e-7)


def test_probabilities_are_read_from_the_logits_that_keras_stores():
    states, data = [[200.0, 0, -200], [0.0, 150, 0]], (np.zeros((1, 1, 1, 3), "float32"), [2])
    heads = {
        "logits": lambda state: state[:, 0, 0],
        "probabilities": lambda state: keras.activations.softmax(state[:, 0, 0]),
    }
    frames = [
        probes.lens(logits_chain(*states, outputs=kind, head=head), data)
        for kind, head in heads.items()
    ]
    pd.testing.assert_frame_equal(*frames)
    assert frames[0]["cross_entropy"].iloc[1] == pytest.approx(400)


def test_a_logit_of_minus_infinity_is_a_probability_of_zero():
    # The second state excludes class 2, and the first one class 0.
    chain = logits_chain([-np.inf, 1, 1], [np.log(3), 0, -np.inf], outputs="logits")
    images = np.zeros((1, 1, 1, 3), "float32")
    half, share = np.log(2), np.log(4)
    for labels in ([0], [1], [2], [[0.5, 0.5, 0]], [[0, 0.5, 0.5]]):
        frame = probes.lens(chain, (images, np.array(labels)))
        hot = np.eye(3)[labels] if np.ndim(labels) == 1 else np.array(labels)
        logs = np.array([[np.inf, half, half], [share - np.log(3), share, np.inf]])
        wanted = [sum(w * log for w, log in zip(hot[0], row, strict=True) if w) for row in logs]
        np.testing.assert_allclose(frame["cross_entropy"].iloc[1:], wanted, rtol=1e-6)
        entropy = [half, share - 3 / 4 * np.log(3)]
        np.testing.assert_allclose(frame["entropy"].iloc[1:], entropy, rtol=1e-6)
        assert frame["kl"].iloc[1:].tolist() == [np.inf, 0]
        scores = probes.evaluate_routes(chain, (images, labels), [tfr.routes.unperturbed(chain)])
        for name in ("cross_entropy", "entropy"):
            np.testing.assert_allclose(scores[name], frame[name].iloc[2:], rtol=1e-6)
        losses = softmax_cross_entropy(hot.astype("float32"), tf.constant([[0.0, -np.inf, 0]]))
        assert np.isfinite(losses.numpy()).all() == (hot[0, 1] == 0)


# Statistics of the last state


def normalized_model(norm, positions=(), epsilon=0.1, width=5, classes=4):
    """Two blocks h + tanh(K h), a normalization and a matrix, with random weights."""
    inputs = keras.Input((*positions, width))
    state = inputs
    for _ in range(2):
        state = keras.layers.add([state, keras.layers.Dense(width, "tanh")(state)])
    state = norm(epsilon=epsilon)(state)
    model = keras.Model(inputs, keras.layers.Dense(classes)(state))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize(
    ("norm", "positions"),
    [(keras.layers.LayerNormalization, ()), (keras.layers.RMSNormalization, (3,))],
)
def test_statistics_of_the_last_state_equal_numpy(norm, positions):
    model = normalized_model(norm, positions)
    rng = np.random.default_rng(1)
    images = rng.normal(1, 2, (4, *positions, 5)).astype("float32")
    labels = rng.integers(0, 4, (4, *positions))
    weights = [np.asarray(weight, "float64") for weight in model.get_weights()]
    states = [images.astype("float64")]
    for kernel, bias in (weights[:2], weights[2:4]):
        states.append(states[-1] + np.tanh(states[-1] @ kernel + bias))
    is_centred = len(weights) == 8
    scale, shift = weights[4], weights[5] if is_centred else 0

    def centred(state):
        return state - state.mean(-1, keepdims=True) if is_centred else state

    def logits_of(state, of):
        divisor = np.sqrt((centred(of) ** 2).mean(-1, keepdims=True) + 0.1)
        return (centred(state) / divisor * scale + shift) @ weights[-2] + weights[-1]

    frames = {
        normalize: probes.lens(
            model, (images, labels), normalize=normalize, **{f"per_{unit}": True}
        )
        for unit in ["position" if positions else "image"]
        for normalize in ("own", "final")
    }
    final = logits_of(states[-1], states[-1])
    for normalize, frame in frames.items():
        for block, state in enumerate(states, start=-1):
            logits = logits_of(state, states[-1] if normalize == "final" else state)
            rows = frame[frame["block"] == block]
            wanted = [
                lens_metrics(logits[place], final[place], labels[place])
                for place in np.ndindex(labels.shape)
            ]
            for name in METRICS:
                expected = [row[name] for row in wanted]
                np.testing.assert_allclose(rows[name], expected, rtol=1e-3, atol=2e-5)
    assert (frames["own"]["kl"] - frames["final"]["kl"]).abs().max() > 0.01


@pytest.mark.compiled
def test_statistics_of_the_last_state_by_hand():
    # States (1, 3) and (1, 7): less their means (-1, 1) and (-3, 3), of which the last is divided
    # by 3. The first is then (-1, 1) by its own statistics and (-1, 1) / 3 by those of the last.
    inputs = keras.Input((2,))
    state = keras.layers.add([inputs, keras.layers.Dense(2, use_bias=False)(inputs)])
    state = keras.layers.LayerNormalization(epsilon=1e-9)(state)
    model = keras.Model(inputs, keras.layers.Dense(2)(state))
    model.layers[1].set_weights([np.diag([0.0, 4 / 3])])
    model.layers[-1].set_weights([np.eye(2), np.array([0.5, 0])])
    data = np.array([[1, 3], [1, 3]], "float32"), np.array([0, 1])
    for normalize, size in (("own", 1), ("final", 1 / 3)):
        frame = probes.lens(model, data, normalize=normalize, per_image=True)
        margins = [2 * size - 0.5, 2 - 0.5]
        wanted = [1 / (1 + np.exp(sign * m)) for m in margins for sign in (1, -1)]
        np.testing.assert_allclose(frame["probability"], wanted, rtol=1e-5)
    # A last state without differences does not show what it is divided by.
    frame = probes.lens(model, (np.array([[7, 3]], "float32"), [0]), normalize="final")
    assert frame["kl"].isna().tolist() == [True, False]
