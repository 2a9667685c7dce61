"""Patched runs against NumPy versions that run each of them by itself, and cases by hand."""

import dataclasses

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.decoder import Decoder
from reference.numpy_lens import Images
from reference.plane import anchored_chain
from reference.random_network import random_batch, random_network, sample
from reference.route_probes import NETWORKS, network

import tfresidual as tfr
from tfresidual import probes

WHOLE = "The whole state is put in"
pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings(f"ignore:{WHOLE}:UserWarning")]
RUNS = ["logit", "source_logit", "patched_logit"]
COLUMNS = [*RUNS, "difference", "effect"]
TOLERANCE = {"rtol": 1e-3, "atol": 5e-5}


def chosen(logits, labels):
    hot = labels if labels.ndim == 2 else np.eye(logits.shape[1])[labels]
    return (logits * hot).sum(axis=1) / hot.sum(axis=1)


@pytest.mark.parametrize("settings", sample(NETWORKS, 3, pytest.mark.nightly))
def test_equals_numpy(settings):
    net, (images, labels) = network(settings)
    other = random_batch(net, images=len(labels), seed=9)[0]
    run, source = Images(net, images, labels), Images(net, other, labels)
    chain = tfr.chain(net)
    states, additions = (
        probes.patching(chain, (images, labels), (other, labels[::-1]), what=what, per_image=True)
        for what in ("state", "addition")
    )
    assert states.columns.tolist() == ["stage", "block", "image", *COLUMNS]
    assert states["block"].unique().tolist() == [-1, *range(states["block"].max() + 1)]
    for frame in (states, additions):
        for (stage, block), rows in frame.groupby(["stage", "block"]):
            state = source.states[stage, block]
            if frame is additions:
                before, own = source.states[stage, block - 1], run.states[stage, block - 1]
                if not chain.stages[stage - 1].blocks[block].keeps_shape:
                    assert rows[["patched_logit", "difference", "effect"]].isna().all(axis=None)
                    continue
                state = own + state - before
            found = [chosen(z, labels) for z in (run.logits, source.logits)]
            found.append(chosen(run.continue_from(state, stage, block), labels))
            np.testing.assert_allclose(rows[RUNS], np.transpose(found), **TOLERANCE)
            np.testing.assert_allclose(rows["difference"], found[2] - found[0], **TOLERANCE)
            np.testing.assert_allclose(
                rows["effect"], (found[2] - found[0]) / (found[1] - found[0]), rtol=0.02, atol=1e-3
            )
    # A whole state brings all that follows with it.
    np.testing.assert_allclose(states["patched_logit"], states["source_logit"], **TOLERANCE)
    frame = probes.patching(chain, (images, labels), (other, labels), what="addition")
    means = additions.groupby(["stage", "block"], as_index=False)[RUNS].mean()
    pd.testing.assert_frame_equal(frame[means.columns], means, rtol=1e-5)
    ratios = (means["patched_logit"] - means["logit"]) / (means["source_logit"] - means["logit"])
    np.testing.assert_allclose(frame["effect"], ratios, rtol=1e-3)


class TestDecoder:
    model = Decoder()

    def batches(self, images=4):
        """Sequences and others with the same padding."""
        inputs, labels = self.model.batch(images)
        others, _ = self.model.batch(images, seed=5)
        return (inputs, labels), (inputs | {"ids": others["ids"]}, labels)

    def expected(self, data, source, positions, block):
        """The mean logit of the labels of every image in the run that is patched."""
        (inputs, labels), (others, _) = data, source
        state = self.model.run(inputs["ids"], inputs["mask"])[0][block + 1].copy()
        of_source = self.model.run(others["ids"], others["mask"])[0][block + 1]
        state[:, positions] = of_source[:, positions]
        return self.mean_logit(self.model.run(None, inputs["mask"], block + 1, state)[1], labels)

    def mean_logit(self, logits, labels):
        return [
            np.mean([row[place][y] for place, y in enumerate(own) if y >= 0])
            for row, own in zip(logits, labels, strict=True)
        ]

    @pytest.mark.parametrize("positions", [2, [0, 3], None])
    def test_equals_numpy(self, positions):
        data, source = self.batches()
        frame = probes.patching(
            self.model.chain(), data, source, positions=positions, per_image=True
        )
        for block, rows in frame.groupby("block"):
            chosen_ones = slice(None) if positions is None else positions
            wanted = np.array(self.expected(data, source, chosen_ones, block))
            # Images without any of these positions are left out.
            wanted[~data[0]["mask"][:, chosen_ones].reshape(len(wanted), -1).any(axis=1)] = np.nan
            np.testing.assert_allclose(rows["patched_logit"], wanted, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        "target", ["label", pytest.param("source label", marks=pytest.mark.nightly)]
    )
    def test_positions_count_that_are_no_padding_in_either(self, target):
        data, source = self.model.batch(), self.model.batch(seed=5)
        (inputs, labels), (others, of_source) = data, source
        assert (inputs["mask"] != others["mask"]).any()
        both = inputs["mask"] & others["mask"]
        wanted = np.where(both, labels if target == "label" else of_source, -1)
        logits = [self.model.run(one["ids"], one["mask"])[1] for one in (inputs, others)]
        settings = {"target": target, "per_image": True}
        frame = probes.patching(self.model.chain(), data, source, **settings)
        assert len(frame) == 5 * len(labels)
        for name, found in zip(["logit", "source_logit"], logits, strict=True):
            expected = self.mean_logit(found, wanted)
            np.testing.assert_allclose(frame[name][: len(labels)], expected, rtol=1e-4, atol=1e-5)
        # The last state of the source is all that its logits are made of.
        rows = frame[frame["block"] == 3]
        np.testing.assert_allclose(rows["patched_logit"], rows["source_logit"], rtol=1e-5)
        frame = probes.patching(self.model.chain(), data, source, positions="each", **settings)
        places = frame[frame["block"] == 0].sort_values(["image", "position"])
        np.testing.assert_array_equal(places[["image", "position"]].T, np.nonzero(both))

    @pytest.mark.parametrize("positions", [[2, 4], None])
    def test_padding_of_the_source_is_not_put_in(self, positions):
        data, source = self.model.batch(), self.model.batch(seed=5)
        (inputs, labels), (others, _) = data, source
        mask = others["mask"]
        states, _ = self.model.run(inputs["ids"], inputs["mask"])
        of_others, _ = self.model.run(others["ids"], mask)
        chosen_ones = np.isin(np.arange(7), range(7) if positions is None else positions)
        both = inputs["mask"] & mask
        put_in = np.where((chosen_ones & mask)[..., None], of_others[2], states[2])
        logits = self.model.run(None, inputs["mask"], 2, put_in)[1]
        wanted = np.array(self.mean_logit(logits, np.where(both, labels, -1)))
        wanted[~(both & chosen_ones).any(axis=1)] = np.nan
        chain = self.model.chain()
        for given in (positions, None if positions is None else np.array(positions)):
            frame = probes.patching(chain, data, source, positions=given, per_image=True)
            rows = frame[frame["block"] == 1]
            np.testing.assert_allclose(rows["patched_logit"], wanted, rtol=1e-4, atol=1e-5)
        means = probes.patching(chain, data, source, positions=positions)
        expected = rows[RUNS][~np.isnan(wanted)].mean()
        np.testing.assert_allclose(means.loc[means["block"] == 1, RUNS].iloc[0], expected, 1e-5)

    @pytest.mark.compiled
    def test_each_position_is_that_position(self):
        data, source = self.batches(images=70)
        chain = self.model.chain()
        frame = probes.patching(chain, data, source, positions="each", per_image=True)
        assert frame.columns.tolist() == ["stage", "block", "position", "image", *COLUMNS]
        mask = data[0]["mask"]
        assert len(frame) == 5 * mask.sum()
        for (block, position), rows in frame.groupby(["block", "position"]):
            wanted = np.array(self.expected(data, source, position, block))[mask[:, position]]
            np.testing.assert_allclose(rows["patched_logit"], wanted, rtol=1e-4, atol=1e-5)
        means = frame.groupby(["stage", "block", "position"], as_index=False)[RUNS].mean()
        own = probes.patching(chain, data, source, positions="each")
        pd.testing.assert_frame_equal(own[means.columns], means, rtol=1e-5)
        # All blocks, positions and batches in one function.
        made = [made for (name, *_), made in chain.compiled.items() if name == "patching"]
        assert [function.experimental_get_tracing_count() for function in made] == [1]

    def test_the_context_stays_that_of_the_data(self):
        (inputs, labels), (others, _) = self.batches()
        gap = inputs["mask"] & (np.arange(7) != 1)
        # What is padding in the source does not count.
        labels[:, 1] = -1
        frame, own = (
            probes.patching(self.model.chain(), (inputs, labels), (others | {"mask": mask}, labels))
            for mask in (gap, inputs["mask"])
        )
        assert frame["source_logit"].iloc[0] != own["source_logit"].iloc[0]
        ids = np.where(gap, others["ids"], inputs["ids"])
        _, logits = self.model.run(ids, inputs["mask"])
        expected = np.mean(self.mean_logit(logits, labels))
        assert frame["patched_logit"].iloc[0] == pytest.approx(expected, rel=1e-5)


def test_the_effect_in_a_model_does_not_depend_on_what_stands_under_padding():
    keras.utils.set_random_seed(0)
    ids, mask = (keras.Input((4,), dtype="int32", name=name) for name in ("ids", "padding_mask"))
    kept = keras.ops.cast(mask, "float32")[..., None]
    state = keras.layers.Embedding(9, 4)(ids)
    for _ in range(2):
        seen = keras.ops.sum(state * kept, axis=1, keepdims=True)
        state = state + keras.layers.Dense(4, "tanh")(state + seen)
    whole = keras.layers.Dense(3)(keras.ops.sum(state * kept, axis=1))
    # States of half the positions, of which it is not known which are padding.
    halves = keras.layers.AveragePooling1D(2)(state * kept)
    halves = halves + keras.layers.Dense(4, "tanh")(halves)
    halves = keras.layers.Dense(3)(keras.ops.sum(halves, axis=1))
    rng = np.random.default_rng(0)
    tokens, lengths = (
        rng.integers(0, 9, (2, 6, 4)),
        np.array([[4, 2, 3, 1, 4, 2], [2, 3, 4, 4, 1, 0]]),
    )
    data, source = (
        {"ids": one, "padding_mask": (np.arange(4) < length[:, None]).astype("int32")}
        for one, length in zip(tokens, lengths, strict=True)
    )
    others = source | {"ids": np.where(source["padding_mask"], source["ids"], 8)}
    labels = np.arange(6) % 3
    model, of_halves = (keras.Model([ids, mask], outputs) for outputs in (whole, halves))
    for one in (model, of_halves):
        first, second = (one.predict([*images.values()], verbose=0) for images in (source, others))
        np.testing.assert_allclose(first, second, rtol=1e-5)
    chain, few = tfr.chain(model), slice(5)
    frames = [
        probes.patching(chain, (list(data.values()), labels), (list(one.values()), labels))
        for one in (source, others)
    ]
    pd.testing.assert_frame_equal(*frames, rtol=1e-4)
    # The last source is all padding.
    rest = [([part[few] for part in one.values()], labels[few]) for one in (data, source)]
    pd.testing.assert_frame_equal(probes.patching(chain, *rest), frames[0], rtol=1e-4)
    with pytest.raises(ValueError, match=r"`source` must have the padding of `data`.*Received: "):
        probes.patching(of_halves, *rest)
    same = [rest[0][0][0][::-1], rest[0][0][1]]
    frame = probes.patching(of_halves, rest[0], (same, labels[few]))
    np.testing.assert_allclose(frame["effect"], 1, rtol=1e-3)


def test_targets():
    net = random_network(blocks=(2,), widths=(4,), classifier_activation=None)
    (images, labels), (others, wanted) = random_batch(net), random_batch(net, seed=3)
    logits, of_others = net.predict(images, verbose=0), net.predict(others, verbose=0)
    rows = np.arange(3)
    rest = np.eye(5)[labels] > 0

    def margin(z):
        return z[rows, labels] - np.where(rest, -np.inf, z).max(axis=1)

    for target, pair in {
        "label": [z[rows, labels] for z in (logits, of_others)],
        "source label": [z[rows, wanted] for z in (logits, of_others)],
        "margin": [margin(z) for z in (logits, of_others)],
        3: [z[:, 3] for z in (logits, of_others)],
        ("label", "source label"): [z[rows, labels] - z[rows, wanted] for z in (logits, of_others)],
        ("label", 3): [z[rows, labels] - z[:, 3] for z in (logits, of_others)],
        (np.int64(2), 0): [z[:, 2] - z[:, 0] for z in (logits, of_others)],
    }.items():
        frame = probes.patching(
            net, (images, labels), (others, wanted), target=target, per_image=True
        )
        found = frame[["logit", "source_logit"]].to_numpy()[:3]
        np.testing.assert_allclose(found, np.transpose(pair), rtol=1e-4, atol=1e-5)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("metric", ["probability", "kl"])
def test_probabilities_and_divergences_equal_numpy(metric):
    net = random_network(blocks=(2,), widths=(4,), classifier_activation=None)
    (images, labels), (others, _) = random_batch(net), random_batch(net, seed=3)
    wanted = (labels + 1) % 5
    run, source = Images(net, images, labels), Images(net, others, wanted)
    of_source = softmax(source.logits)

    def value_of(logits):
        p = softmax(logits)
        if metric == "kl":
            return np.sum(of_source * np.log(of_source / p), axis=-1)
        return p[range(3), labels] - p[range(3), wanted]

    target = {} if metric == "kl" else {"target": ("label", "source label")}
    settings = {"what": "addition", "metric": metric, "per_image": True} | target
    frame = probes.patching(net, (images, labels), (others, wanted), **settings)
    own, of_other = value_of(run.logits), value_of(source.logits)
    names = [metric, f"source_{metric}", f"patched_{metric}", "difference", "effect"]
    assert frame.columns.tolist() == ["stage", "block", "image", *names]
    for block, rows in frame.groupby("block"):
        state = run.states[1, block - 1] + source.states[1, block] - source.states[1, block - 1]
        patched = value_of(run.continue_from(state, 1, block))
        expected = [own, of_other, patched, patched - own, (patched - own) / (of_other - own)]
        np.testing.assert_allclose(rows[names], np.transpose(expected), rtol=2e-3, atol=1e-5)
    means = probes.patching(
        net, (images, labels), (others, wanted), **settings | {"per_image": False}
    )
    np.testing.assert_allclose(means[metric], own.mean(), rtol=1e-3)


def test_metrics_by_hand():
    # z + z / 2 for the last state of the source (0, 6) and of the data (4, 0) in one block; put in
    # after it, the logits are those of the source.
    chain = dataclasses.replace(anchored_chain(0.5, 1), outputs="logits")
    data, source = (np.log([[[[4.0, 1]]]]).astype("float32") * 2 / 3, np.zeros((1, 1, 1, 2)))
    batches = (data, [0]), (source.astype("float32"), [1])
    frame = probes.patching(chain, *batches, metric="probability")
    np.testing.assert_allclose(frame["probability"], 0.8, rtol=1e-5)
    np.testing.assert_allclose(frame["source_probability"], 0.5, rtol=1e-5)
    # Half of p log(p / q) for each class, with p = 1/2 and q = 4/5, 1/5.
    frame = probes.patching(chain, *batches, metric="kl")
    np.testing.assert_allclose(frame["kl"], (np.log(5 / 8) + np.log(5 / 2)) / 2, rtol=1e-5)
    assert frame["source_kl"].tolist() == [0, 0]
    several = dataclasses.replace(chain, outputs="label_logits", compiled={})
    batches = [(images, np.array([[1, 0]])) for images, _ in batches]
    frame = probes.patching(several, *batches, metric="kl")
    wanted = (np.log(5 / 8) + np.log(5 / 2)) / 2
    np.testing.assert_allclose(frame["kl"], wanted, rtol=1e-5)
    frame = probes.patching(chain, *batches, target=("label", 1))
    np.testing.assert_allclose(frame["logit"], np.log(4), rtol=1e-5)


def test_the_source_is_the_next_image_of_its_batch_with_another_label():
    net = random_network(blocks=(1,), widths=(4,))
    images, _ = random_batch(net, images=8)
    labels = np.array([1, 1, 2, 0, 1, 3, 3, 3])
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(5)
    # The second batch has one class.
    others = [2, 2, 3, 4, 2, 6, 7, 5]
    frame = probes.patching(net, data, what="addition", per_image=True)
    source = images[others], labels[others]
    wanted = probes.patching(net, (images, labels), source, what="addition", per_image=True)
    pd.testing.assert_frame_equal(frame, wanted, rtol=1e-5)
    with pytest.raises(ValueError, match=r"`source` must be given .*Received: .* of 1 image$"):
        probes.patching(net, (images[:1], labels[:1]))
    # A last image alone follows on the batch before it.
    last_alone = tf.data.Dataset.from_tensor_slices((images[:6], labels[:6])).batch(5)
    frame = probes.patching(net, last_alone, what="addition", per_image=True)
    others = [2, 2, 3, 4, 2, 0]
    source = images[others], labels[others]
    wanted = probes.patching(net, (images[:6], labels[:6]), source, what="addition", per_image=True)
    pd.testing.assert_frame_equal(frame, wanted, rtol=1e-5)
