"""Heads of attention layers, patched and dropped, against plain NumPy and kernels cut by hand."""

import keras
import numpy as np
import pytest
from refusals import refused

import tfresidual as tfr
from tfresidual import probes

pytestmark = [pytest.mark.eager]
HEADS, SIZE, POSITIONS = 2, 3, 4


def attention_model(layer, end=None, after=None, dtype="float64"):
    """Two blocks `after(h + end(attention(h)))`, and logits from the last position."""
    keras.utils.set_random_seed(0)
    inputs = state = keras.Input((POSITIONS, 6), dtype=dtype)
    for _ in range(2):
        branch = layer(dtype)(state, state)
        branch = branch if end is None else end(dtype)(branch)
        state = keras.layers.Add(dtype=dtype)([state, branch])
        state = state if after is None else after(dtype)(state)
    model = keras.Model(inputs, keras.layers.Dense(5, dtype=dtype)(state[:, -1]))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight.numpy() + 0.4 * rng.normal(size=weight.shape))
    return model


def multi_head(dtype):
    return keras.layers.MultiHeadAttention(HEADS, SIZE, dtype=dtype)


def norm(dtype):
    return keras.layers.LayerNormalization(dtype=dtype, epsilon=1e-6)


def pairs(images=3):
    """Data and sources."""
    states = np.random.default_rng(1).normal(size=(2, images, POSITIONS, 6))
    labels = np.arange(images) % 5
    return [(one, labels) for one in states]


def head_parts(layer, state):
    """What every head adds, and the bias, `(heads, images, positions, features)`."""
    weights = [weight.numpy() for weight in layer.weights]
    q, k, v = (np.einsum("ipf,fhs->ihps", state, weights[i]) for i in (0, 2, 4))
    q, k, v = (one + weights[i][:, None] for one, i in ((q, 1), (k, 3), (v, 5)))
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(SIZE))
    read = scores / scores.sum(axis=-1, keepdims=True) @ v
    return np.einsum("ihps,hsf->hipf", read, weights[6]), weights[7]


@pytest.mark.parametrize("positions", [None, [1, 3]])
@pytest.mark.parametrize("after", [None, norm])
def test_patched_heads_equal_numpy(after, positions):
    model = attention_model(multi_head, after=after)
    (data, labels), (source, _) = pairs()
    attentions = [one for one in model.layers if "attention" in one.name]
    norms = [one.get_weights() for one in model.layers if "norm" in one.name]
    kernel, bias = model.layers[-1].get_weights()

    def joined(block, state, branch):
        state = state + branch
        if after is not None:
            state = state - state.mean(axis=-1, keepdims=True)
            state = state / np.sqrt((state**2).mean(axis=-1, keepdims=True) + 1e-6)
            state = state * norms[block][0] + norms[block][1]
        return state

    def run(state, change=lambda block, parts: parts):
        found = []
        for block, layer in enumerate(attentions):
            parts, bias_of_block = head_parts(layer, state)
            found.append(parts)
            state = joined(block, state, change(block, parts).sum(axis=0) + bias_of_block)
        return found, (state[:, -1] @ kernel + bias)[range(len(labels)), labels]

    of_source, _ = run(source)
    chosen = slice(None) if positions is None else positions
    settings = {"what": "addition", "per_image": True, "positions": positions}
    frame = probes.patching(model, (data, labels), (source, labels), heads="each", **settings)
    assert frame.columns.tolist()[:4] == ["stage", "block", "head", "image"]
    assert len(frame) == 2 * HEADS * len(labels)
    for (block, head), rows in frame.groupby(["block", "head"]):

        def change(place, parts, block=block, head=head):
            parts = parts.copy()
            if place == block:
                parts[head][:, chosen] = of_source[block][head][:, chosen]
            return parts

        np.testing.assert_allclose(rows["patched_logit"], run(data, change)[1], rtol=1e-6)
    estimated = probes.patching(
        model, (data, labels), (source, labels), heads="each", by="gradient", **settings
    )
    np.testing.assert_allclose(
        estimated["exact_difference"], frame["difference"], rtol=1e-6, atol=1e-12
    )
    # What follows on the last block is linear, unless it is normalized.
    if after is None:
        last = frame["block"] == 1
        difference = frame["difference"][last]
        np.testing.assert_allclose(estimated["difference"][last], difference, rtol=1e-6, atol=1e-12)
        whole = probes.patching(model, (data, labels), (source, labels), **settings)
        wanted = whole.query("block == 1")["difference"]
        sums = frame[last].groupby("image")["difference"].sum()
        np.testing.assert_allclose(sums, wanted, rtol=1e-6, atol=1e-12)


REFUSED = {
    "heads of states": (lambda: patched(what="state"), "heads"),
    "a head": (lambda: patched(heads=1), "heads"),
    "no attention": (lambda: patched(lambda dtype: Plain(6, dtype=dtype)), "chain"),
    "a branch that is no sum of heads": (lambda: patched(end=norm), "heads"),
}


class Plain(keras.layers.Dense):
    """A layer without heads that is called like attention."""

    def call(self, query, value):
        return super().call(query)


def patched(layer=multi_head, end=None, **settings):
    settings = {"what": "addition", "heads": "each"} | settings
    return probes.patching(attention_model(layer, end), *pairs(), **settings)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    function, argument = REFUSED[case]
    with refused(argument):
        function()


def group_query(dtype):
    return keras.layers.GroupQueryAttention(SIZE, 2, 1, dtype=dtype)


def of_hub(kind, inputs, **settings):
    """A small model of keras-hub, and data."""
    models = pytest.importorskip("keras_hub").models
    keras.utils.set_random_seed(0)
    backbone = getattr(models, f"{kind}Backbone")(**settings)
    if kind == "GPT2":
        model = models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    else:
        state = backbone.output
        state = state["pooled_output"] if isinstance(state, dict) else state[:, 0]
        model = keras.Model(backbone.inputs, keras.layers.Dense(5)(state))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight.numpy() + 0.3 * rng.normal(size=weight.shape))
    return model, (inputs, rng.integers(0, 5, (3, 6) if kind == "GPT2" else 3))


IDS = np.random.default_rng(3).integers(0, 9, (3, 6))
TOKENS = {"token_ids": IDS, "padding_mask": (np.arange(6) < [[6], [5], [3]]).astype("int32")}
TEXT = {"vocabulary_size": 9, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}
TEXT |= {"intermediate_dim": 12, "max_sequence_length": 6}
VIT = {"image_shape": (8, 8, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2}
VIT |= {"hidden_dim": 8, "mlp_dim": 12}
PICTURES = np.random.default_rng(4).normal(size=(3, 8, 8, 3)).astype("float32")
MODELS = {
    "multi-head": lambda: (attention_model(multi_head, dtype="float32"), pairs()[0]),
    "group-query": lambda: (attention_model(group_query, dtype="float32"), pairs()[0]),
    "GPT-2": lambda: of_hub("GPT2", TOKENS, **TEXT),
    "BERT": lambda: of_hub("Bert", TOKENS | {"segment_ids": 0 * IDS}, **TEXT),
    "ViT": lambda: of_hub("ViT", PICTURES, **VIT),
}


def cross_entropies(model, inputs, labels):
    """By hand, of every image or position."""
    logits = np.asarray(model.predict(inputs, verbose=0), float)
    mask = inputs["padding_mask"] > 0 if labels.ndim == 2 else np.ones(len(labels), bool)
    logits, labels = logits[mask], labels[mask]
    return np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(labels)), labels]


@pytest.mark.parametrize("name", MODELS)
def test_a_dropped_head_is_one_whose_rows_are_zero(name):
    model, (inputs, labels) = MODELS[name]()
    chain = tfr.chain(model, inputs=inputs, outputs="logits")
    before = [weight.numpy() for weight in model.weights]
    frame = probes.drop_heads(chain, {"test": (inputs, labels)})
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    whole = cross_entropies(model, inputs, labels).mean()
    layers = [one for one in model._flatten_layers() if hasattr(one, "_output_dense")]
    layers.sort(key=lambda layer: layer.path)
    assert len(frame) == 2 * len(layers) == 4
    assert frame["head"].tolist() == [0, 1, 0, 1]
    for (_, row), (layer, head) in zip(
        frame.iterrows(), [(layer, head) for layer in layers for head in (0, 1)], strict=True
    ):
        kernel = layer._output_dense.kernel
        own = kernel.numpy()
        cut = own.copy()
        cut[head] = 0
        kernel.assign(cut)
        found = cross_entropies(model, inputs, labels).mean()
        kernel.assign(own)
        assert row["cross_entropy"] == pytest.approx(found, rel=1e-6)
        assert row["cross_entropy_rise"] == pytest.approx(found - whole, abs=2e-6)
        assert abs(found - whole) > 1e-4


def test_a_chain_without_heads_has_none_to_drop():
    with refused("chain"):
        probes.drop_heads(attention_model(lambda dtype: Plain(6, dtype=dtype)), pairs()[0])
