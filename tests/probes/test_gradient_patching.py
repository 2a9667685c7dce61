"""Estimates of patched runs against plain NumPy, and against exact runs where both agree."""

import keras
import numpy as np
import pandas as pd
import pytest
from reference.decoder import Decoder

import tfresidual as tfr
from tfresidual import probes

pytestmark = [
    pytest.mark.eager,
    pytest.mark.filterwarnings("ignore:The whole state is put in:UserWarning"),
]
WHATS = ("state", "addition")


def dense_model(units, kernels, head, activation):
    """Blocks h + activation(h W), and logits h V, in float64."""
    inputs = state = keras.Input((units,), dtype="float64")
    settings = {"use_bias": False, "dtype": "float64"}
    for _ in kernels:
        branch = keras.layers.Dense(units, activation, **settings)(state)
        state = keras.layers.Add(dtype="float64")([state, branch])
    logits = keras.layers.Dense(head.shape[1], **settings)(state)
    model = keras.Model(inputs, logits)
    model.set_weights([*kernels, head])
    return model


@pytest.mark.parametrize("what", WHATS)
def test_equals_numpy(what):
    rng = np.random.default_rng(0)
    kernels, head = rng.normal(size=(3, 4, 4)) / 2, rng.normal(size=(4, 3))
    model = dense_model(4, kernels, head, "tanh")
    data, source = rng.normal(size=(2, 5, 4))
    labels = np.array([0, 2, 1, 1, 0])

    def run(state):
        states = [state]
        for kernel in kernels:
            states.append(states[-1] + np.tanh(states[-1] @ kernel))
        return states

    states, others = run(data), run(source)
    gradients = [head.T[labels]]
    for kernel, state in zip(kernels[::-1], states[-2::-1], strict=True):
        slope = 1 - np.tanh(state @ kernel) ** 2
        gradients.insert(0, gradients[0] + (gradients[0] * slope) @ kernel.T)
    changes = np.subtract(others, states)
    if what == "addition":
        changes, gradients = np.diff(changes, axis=0), gradients[1:]
    expected = np.sum(changes * gradients, axis=-1)
    frame = probes.patching(
        tfr.chain(model),
        (data, labels),
        (source, labels),
        what=what,
        by="gradient",
        checked=2,
        per_image=True,
    )
    np.testing.assert_allclose(frame["difference"], expected.ravel(), rtol=1e-10)
    assert frame["exact_difference"].notna().sum() == 2 * len(labels)
    np.testing.assert_allclose(frame["patched_logit"] - frame["logit"], expected.ravel(), 1e-10)


@pytest.mark.compiled
@pytest.mark.parametrize("what", WHATS)
def test_is_exact_in_a_linear_network(what):
    layers = keras.layers
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float64")
    try:
        inputs = keras.Input((6, 6, 3), dtype="float64")
        state = layers.Conv2D(4, 3, padding="same")(inputs)
        branch = layers.Conv2D(4, 3, padding="same")(layers.BatchNormalization()(state))
        state = layers.Add()([state, branch])
        state = layers.Add()([layers.Conv2D(6, 1, 2)(state), layers.Conv2D(6, 1, 2)(state)])
        state = layers.Add()([state, layers.Conv2D(6, 3, padding="same")(state)])
        outputs = layers.Dense(5)(layers.GlobalAveragePooling2D()(state))
    finally:
        keras.config.set_dtype_policy("float32")
    chain = tfr.chain(keras.Model(inputs, outputs))
    images = np.random.default_rng(0).normal(size=(2, 6, 6, 6, 3))
    data, source = [
        (one, np.arange(6) % classes) for one, classes in zip(images, (5, 3), strict=True)
    ]
    settings = {"what": what, "target": ("label", 4), "per_image": True}
    exact = probes.patching(chain, data, source, **settings)
    frame = probes.patching(chain, data, source, by="gradient", checked=9, **settings)
    pd.testing.assert_frame_equal(frame[exact.columns], exact, rtol=1e-6)
    np.testing.assert_allclose(frame["exact_difference"], exact["difference"], rtol=1e-10)
    assert exact["difference"].isna().any() == (what == "addition")


def test_estimates_of_small_differences_in_gpt2_are_near_exact():
    keras_hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(10, 2, 2, 8, 16, dropout=0, max_sequence_length=6)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + 0.2 * rng.normal(size=weight.shape))
    ids = rng.integers(0, 10, (3, 6))
    inputs, others = (
        {"token_ids": one, "padding_mask": np.ones_like(ids)} for one in (ids, (ids + 1) % 10)
    )
    chain = tfr.chain(model, inputs=inputs)
    sizes = []
    embeddings = backbone.token_embedding.embeddings
    own = embeddings.numpy()
    for share in (1, 0.002):
        # All tokens come close to their mean.
        embeddings.assign(own.mean(axis=0) + share * (own - own.mean(axis=0)))
        frame = probes.patching(
            chain, (inputs, ids), (others, ids), positions="each", by="gradient", checked=12
        )
        checked = frame.dropna()
        assert len(checked) == 12
        sizes.append(checked["error"].abs().max() / checked["exact_difference"].abs().max())
    assert sizes[1] < 0.02 < sizes[0]


@pytest.mark.parametrize("what", WHATS)
def test_padding_and_checked_places(what):
    model = Decoder()
    data, source = model.batch(), model.batch(seed=5)
    chain, settings = model.chain(), {"what": what, "per_image": True}

    def patched(positions, **changed):
        return probes.patching(chain, data, source, positions=positions, **settings, **changed)

    each = patched("each", by="gradient")
    for positions in ("each", [1, 4], None):
        exact = patched(positions)
        frame, other, none = (
            patched(positions, by="gradient", checked=checked, seed=seed)
            for checked, seed in ((3, 0), (3, 1), (0, 0))
        )
        assert frame.columns.tolist() == [*exact.columns, "exact_difference", "error"]
        places = [*exact.columns[: exact.columns.get_loc("logit")]]
        pd.testing.assert_frame_equal(frame[places], exact[places])
        assert none["exact_difference"].isna().all() and none["error"].isna().all()
        pd.testing.assert_frame_equal(none[exact.columns], frame[exact.columns])
        is_checked = frame["exact_difference"].notna()
        assert (is_checked != other["exact_difference"].notna()).any()
        of_checked = frame[is_checked]
        assert len(of_checked.groupby(places[:-1])) == 3
        np.testing.assert_allclose(
            of_checked["exact_difference"], exact["difference"][is_checked], rtol=1e-4, atol=1e-6
        )
        error = of_checked["difference"] - of_checked["exact_difference"]
        np.testing.assert_array_equal(of_checked["error"], error)
        # The estimates of positions add up.
        chosen = each if positions in ("each", None) else each[each["position"].isin(positions)]
        sums, wanted = (
            one.dropna(subset="difference").groupby(["block", "image"])["difference"].sum()
            for one in (chosen, frame)
        )
        np.testing.assert_allclose(wanted, sums[wanted.index], rtol=1e-4, atol=1e-6)
