"""Attribution with frozen normalization: NumPy, a case by hand, keras-hub, and what is refused.

Not covered: float16, and heads on states with more than one axis of positions.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfresidual as tfr
from tfresidual import probes

pytestmark = pytest.mark.eager


class MeanSquareNorm(keras.layers.Layer):
    """An RMS normalization by others, which Keras knows nothing of."""

    epsilon = 1e-2

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")

    def call(self, state):
        mean_square = ops.mean(state**2, axis=-1, keepdims=True) + self.epsilon
        return state / ops.sqrt(mean_square) * (1 + self.scale)


class Readout(keras.layers.Layer):
    """Layer normalization and a matrix, inside of one layer."""

    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        self.normalization = keras.layers.LayerNormalization()
        self.dense = keras.layers.Dense(classes)

    def build(self, shape):
        self.normalization.build(shape)
        self.dense.build(shape)

    def call(self, state):
        return self.dense(self.normalization(state))


def randomised(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(weight.numpy() + rng.normal(0, 0.3, weight.shape))
    return model


def model_of(*head, width=6, positions=()):
    """Two blocks h + tanh(K h), and a head of some layers."""
    images = keras.Input((*positions, width))
    state = keras.layers.Dense(width)(images)
    for _ in range(2):
        state = keras.layers.Add()([state, keras.layers.Dense(width, "tanh")(state)])
    for layer in head:
        state = layer(state)
    model = keras.Model(images, state)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return randomised(model)


def data_for(model, images=5, classes=4):
    rng = np.random.default_rng(1)
    shape = (images, *model.input_shape[1:])
    return rng.normal(1, 2, shape).astype("float32"), rng.integers(0, classes, shape[:-1])


NORMALIZATIONS = {
    "layer": lambda: keras.layers.LayerNormalization(epsilon=0.1),
    "RMS": lambda: keras.layers.RMSNormalization(epsilon=0.1),
    "others'": MeanSquareNorm,
    "inside": lambda: Readout(4),
    "each position": lambda: keras.layers.TimeDistributed(keras.layers.LayerNormalization()),
}


def direct(last, added, normalization, column, more=0):
    """What parts of the last state add to a logit, by the formula, in float64.

    `more` is added to the scale, as in Gemma's normalization.
    """
    scale, *shift = (np.asarray(weight, np.float64) for weight in normalization.get_weights())

    def centred(values):
        return values - np.mean(values) if shift else values

    divisor = np.sqrt(np.mean(centred(last) ** 2) + normalization.epsilon)
    return [centred(part) / divisor * (scale + more) @ column for part in added]


@pytest.mark.parametrize(
    ("kind", "positions"),
    [
        ("layer", ()),
        ("layer", (3,)),
        ("RMS", ()),
        ("others'", (3,)),
        ("inside", ()),
        ("each position", (2,)),
    ],
)
def test_equals_numpy(kind, positions):
    layer = NORMALIZATIONS[kind]()
    head = [layer] if kind == "inside" else [layer, keras.layers.Dense(4)]
    model = model_of(*head, positions=positions)
    dense = layer.dense if kind == "inside" else model.layers[-1]
    norm = {"inside": lambda: layer.normalization, "each position": lambda: layer.layer}
    norm = norm.get(kind, lambda: layer)()
    images, labels = data_for(model)
    kernels = [layer.get_weights() for layer in model.layers if layer.name.startswith("dense")]
    kernel, shift = (np.asarray(weight, np.float64) for weight in dense.get_weights())
    frame = probes.attribution(
        model,
        (images, labels),
        freeze_normalization=True,
        per_image=not positions,
        per_position=bool(positions),
    )
    names = ["image", "position"] if positions else ["image"]
    rows = frame.set_index([*names, "block"])["attribution"]
    logits = frame.set_index([*names, "block"])["logit"]
    expected = model.predict(images, verbose=0)
    bias = norm.get_weights()[1] @ kernel if len(norm.get_weights()) == 2 else np.zeros(4)
    for place in np.ndindex(labels.shape):
        state = images[place].astype(np.float64) @ kernels[0][0] + kernels[0][1]
        added = [state]
        for matrix, offset in kernels[1:3]:
            added.append(np.tanh(state @ matrix + offset))
            state = state + added[-1]
        label = labels[place]
        parts = direct(state, added, norm, kernel[:, label], more=int(kind == "others'"))
        np.testing.assert_allclose(
            [rows[*place, block] for block in (-1, 0, 1)], parts, rtol=2e-4, atol=2e-5
        )
        # The biases alone are left for the head.
        assert rows[*place, 2] == pytest.approx(bias[label] + shift[label], rel=2e-4, abs=2e-5)
        assert logits[*place, 0] == pytest.approx(expected[place][label], rel=1e-5, abs=1e-6)


def test_by_hand():
    images = keras.Input((2,))
    state = keras.layers.Add()([images, keras.layers.Dense(2, use_bias=False)(images)])
    normal = keras.layers.LayerNormalization(epsilon=1e-9)(state)
    model = keras.Model(images, keras.layers.Dense(2)(normal))
    model.layers[1].set_weights([np.diag([2.0, 4.0])])
    model.layers[-1].set_weights([np.diag([1.0, 2.0]), np.array([10.0, 0.0])])
    data = np.ones((2, 2), "float32"), np.array([0, 1])
    # The states are (1, 1) and (3, 5), normalized (-1, 1): the logits are -1 + 10 and 2. The first
    # state has no difference of its features, and (2, 4) / 1 all of it.
    frame = probes.attribution(model, data, freeze_normalization=True, per_image=True)
    np.testing.assert_allclose(frame["attribution"], [0, 0, -1, 2, 10, 0], atol=1e-5)
    np.testing.assert_allclose(frame["logit"], [9, 2] * 3, rtol=1e-6)
    # Not frozen, the head of two features is constant, and all of the logit is left for it.
    frame = probes.attribution(model, data, per_image=True)
    np.testing.assert_allclose(frame["attribution"], [0, 0, 0, 0, 9, 2], atol=1e-5)


class Subclassed(keras.Model):
    """One block and a head that normalizes by an operation of `keras.ops`."""

    def __init__(self):
        super().__init__()
        self.branch, self.out = keras.layers.Dense(6, "tanh"), keras.layers.Dense(4)
        self.scale = self.add_weight(shape=(6,), initializer="ones")

    def call(self, state):
        state = state + self.branch(state)
        return self.out(ops.rms_normalization(state, self.scale, axis=-1, epsilon=0.1))


@pytest.mark.compiled
def test_an_operation_with_weights_is_a_normalization():
    model = Subclassed()
    images = np.random.default_rng(1).normal(size=(3, 6)).astype("float32")
    model(images)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    randomised(model)
    chain = tfr.chain(model, inputs=images)
    frame = probes.attribution(chain, (images, [0, 1, 2]), freeze_normalization=True, target=1)
    (kernel, shift), wide = model.out.get_weights(), images.astype(float)
    state = wide + np.tanh(wide @ model.branch.get_weights()[0] + model.branch.get_weights()[1])
    scale = np.asarray(model.scale) / np.sqrt(np.mean(state**2, axis=1, keepdims=True) + 0.1)
    parts = [(part * scale @ kernel[:, 1]).mean() for part in (wide, state - wide)]
    np.testing.assert_allclose(frame["attribution"], [*parts, shift[1]], rtol=1e-4, atol=1e-5)


def test_layers_that_are_linear_stay_as_they_are():
    layers = [
        keras.layers.Lambda(lambda h: 3 * h + 5),
        keras.layers.BatchNormalization(),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(4),
    ]
    model = model_of(*layers)
    layers[1].moving_variance.assign(np.full(6, 2.0))
    data = data_for(model)
    frame = probes.attribution(model, data, freeze_normalization=True, target=0)
    scale = layers[1].get_weights()[0] / np.sqrt(2 + layers[1].epsilon)
    chain = tfr.chain(model)
    pairs, last = chain.walk(chain.stem(data[0]))
    inner = 3 * np.asarray(last, float) + 5 - layers[1].get_weights()[2]
    inner = inner * scale + layers[1].get_weights()[1]
    kernel = layers[3].get_weights()[0]
    for block, (before, after) in enumerate(pairs):
        added = 3 * np.asarray(after - before, float) * scale
        states = zip(inner, added[:, None], strict=True)
        parts = [direct(*pair, layers[2], kernel[:, 0]) for pair in states]
        found = frame.query(f"block == {block}")["attribution"].iloc[0]
        assert found == pytest.approx(np.mean(parts), rel=2e-4, abs=2e-5)


def task(name):
    keras_hub = pytest.importorskip("keras_hub")
    settings = {"vocabulary_size": 20, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 16}
    settings |= {
        "GPT2": {"num_heads": 2, "max_sequence_length": 12},
        "Llama": {"num_query_heads": 2, "num_key_value_heads": 1},
        "Gemma": {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4},
    }[name]
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**settings)
    model = getattr(keras_hub.models, f"{name}CausalLM")(backbone=backbone, preprocessor=None)
    return randomised(model), backbone


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("GPT2", marks=pytest.mark.nightly),
        pytest.param("Llama", marks=pytest.mark.nightly),
        pytest.param("Gemma", marks=pytest.mark.nightly),
    ],
)
def test_language_models(name):
    model, backbone = task(name)
    ids = np.random.default_rng(2).integers(1, 20, (3, 6))
    mask = np.ones_like(ids)
    mask[1:, 4:] = 0
    inputs, labels = {"token_ids": ids[:, :5], "padding_mask": mask[:, :5]}, ids[:, 1:]
    chain = tfr.chain(model, inputs=inputs)
    frame = probes.attribution(
        chain, (inputs, labels), freeze_normalization=True, per_position=True
    )
    within = chain.with_context(tf.nest.map_structure(tf.constant, inputs))
    pairs, last = within.walk(within.stem(inputs))
    added = [pairs[0][0], *(after - before for before, after in pairs)]
    norm, embedding = backbone.layers[-1], backbone.token_embedding
    kernel = np.asarray(getattr(embedding, "reverse_embeddings", embedding.embeddings), float)
    kernel = kernel.T if kernel.shape[0] == 20 else kernel
    shift = norm.get_weights()[1:]
    expected = model.predict(inputs, verbose=0)
    assert len(frame) == mask[:, :5].sum() * 6
    for (image, position), rows in frame.groupby(["image", "position"]):
        label = labels[image, position]
        state = np.asarray(last[image, position], float)
        own = [np.asarray(part[image, position], float) for part in added]
        parts = direct(state, own, norm, kernel[:, label], more=int(name == "Gemma"))
        parts.append(shift[0] @ kernel[:, label] if shift else 0)
        np.testing.assert_allclose(rows["attribution"], parts, rtol=1e-3, atol=1e-4)
        logit = expected[image, position, label]
        assert rows["attribution"].sum() == pytest.approx(logit, rel=1e-4, abs=1e-5)
