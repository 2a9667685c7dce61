"""Searches with networks that are not of this package, and what stands beside their depth.

Not covered: several devices; what is proposed, and chief and workers, which do not depend on the
kind of networks, are in `test_depth_oracle.py` and `test_workers.py`.
"""

import keras
import keras_tuner
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.encoder import Encoder
from reference.random_network import sample
from reference.unchanged import assert_same, unchanged
from tuning.synthetic_search import constant, quiet_oracle, stages_of

import tfresidual as tfr
from tfresidual import tuning
from tfresidual.definitions import chance
from tfresidual.tuning import as_built, fingerprint

pytestmark = [pytest.mark.eager, pytest.mark.usefixtures("no_old_garbage")]

KERNEL = {"kernel_initializer": "he_normal"}


def images_of(seed, count):
    """Images whose class, of three, is the channel that is brightest."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    images = rng.normal(size=(count, 8, 8, 3)) + 3 * np.eye(3)[labels][:, None, None, :]
    return images.astype("float32"), labels


TRAIN, HELD_OUT = images_of(0, 48), images_of(1, 48)


def compiled(net, rate=0.05, metrics=("accuracy",), **kwargs):
    optimizer = kwargs.pop("optimizer", None) or keras.optimizers.SGD(rate, momentum=0.9)
    loss = kwargs.pop("loss", "sparse_categorical_crossentropy")
    net.compile(optimizer, loss, metrics=list(metrics), run_eagerly=True, **kwargs)
    return net


def convnext(blocks, rate=0.05, ending=None, **kwargs):
    """A small ConvNeXt: depthwise convolution, layer normalization, two pointwise layers."""
    state = inputs = keras.Input((8, 8, 3))
    state = keras.layers.Conv2D(4, 1)(state)
    for stage, depth in enumerate(blocks):
        if stage:
            state = keras.layers.LayerNormalization()(state)
            state = keras.layers.Conv2D(4 + 2 * stage, 2, 2)(state)
        width = state.shape[-1]
        for _ in range(depth):
            branch = keras.layers.DepthwiseConv2D(3, padding="same")(state)
            branch = keras.layers.LayerNormalization()(branch)
            branch = keras.layers.Dense(2 * width, "gelu")(branch)
            branch = keras.layers.Dense(width, ending)(branch)
            state = keras.layers.Add()([state, branch])
    state = keras.layers.GlobalAveragePooling2D()(state)
    net = keras.Model(inputs, keras.layers.Dense(3, "softmax")(state))
    return compiled(net, rate, **kwargs)


def dense(blocks, rate=0.01, **kwargs):
    """Blocks of two dense layers, on the numbers of an image: what is fastest."""
    inputs = keras.Input((8, 8, 3))
    state = keras.layers.Dense(6)(keras.layers.Flatten()(inputs))
    for stage, depth in enumerate(blocks):
        width = 6 + 2 * stage
        state = keras.layers.Dense(width)(state) if stage else state
        for _ in range(depth):
            branch = keras.layers.Dense(2 * width, "gelu")(state)
            state = keras.layers.Add()([state, keras.layers.Dense(width)(branch)])
    net = keras.Model(inputs, keras.layers.Dense(3, "softmax")(state))
    return compiled(net, rate, **kwargs)


def transformer(blocks):
    """A transformer encoder whose positions are the rows of an image."""
    (depth,) = blocks
    inputs = keras.Input((8, 8, 3))
    state = keras.layers.Dense(6)(keras.layers.Reshape((8, 24))(inputs))
    for _ in range(depth):
        state = Encoder(6)(state)
    state = keras.layers.GlobalAveragePooling1D()(state)
    return compiled(keras.Model(inputs, keras.layers.Dense(3, "softmax")(state)))


def normalized(blocks, shared=False, width=6, momentum=0.99):
    """Blocks of vectors with batch normalization; `shared`: all blocks are one."""
    state = inputs = keras.Input((width,))
    parts = []
    for _ in range(blocks[0]):
        if not parts or not shared:
            parts = [keras.layers.Dense(width, **KERNEL)]
            parts.append(keras.layers.BatchNormalization(momentum=momentum))
        dense, normalize = parts
        state = keras.layers.Add()([state, normalize(dense(state))])
    return compiled(keras.Model(inputs, keras.layers.Dense(3, "softmax")(state)))


class Subclassed(keras.Model):
    """A network that is built by its first call."""

    def __init__(self, depth):
        super().__init__()
        self.enter = keras.layers.Conv2D(4, 1)
        self.parts = [keras.layers.Conv2D(4, 3, padding="same") for _ in range(depth)]
        self.pool, self.leave = (
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3, "softmax"),
        )

    def call(self, inputs):
        state = self.enter(inputs)
        for part in self.parts:
            state = state + part(state)
        return self.leave(self.pool(state))


def whole_layers(net):
    return tfr.chain(net, blocks=Encoder)


def with_inputs(net):
    return tfr.chain(net, inputs=TRAIN[0][:2])


# By name: a function of the depths that builds a network, the first depths, other options.
SEARCHES = {
    "dense": (dense, (1, 1), {"epsilon": 0.35}),
    "convnext": (convnext, (1, 1), {"epsilon": 0.35}),
    "transformer": (transformer, (1,), {"epsilon": 0.2, "chain": whole_layers}),
    "subclassed": (
        lambda blocks: compiled(Subclassed(*blocks)),
        (1,),
        {"epsilon": 0.6, "chain": with_inputs},
    ),
}


def tuner_in(folder, make, start, hypermodel=None, **kwargs):
    return tuning.DepthSearch(
        hypermodel or (lambda hp: make(tuning.blocks(hp))),
        start=start,
        directory=folder,
        project_name="search",
        **({"max_blocks": 4, "max_trials": 2} | kwargs),
    )


def search(tuner, data=TRAIN, held_out=HELD_OUT, epochs=1):
    tuner.search(
        *data, validation_data=held_out, batch_size=16, epochs=epochs, shuffle=False, verbose=0
    )
    return tuner


def searched(folder, make, start, **kwargs):
    return search(tuner_in(folder, make, start, **kwargs))


class Interrupted(keras_tuner.HyperModel):
    """Builds networks, and is stopped by Ctrl-C in its second training."""

    def __init__(self, make):
        super().__init__()
        self.make, self.trained = make, 0

    def build(self, hp):
        return self.make(tuning.blocks(hp))

    def fit(self, hp, model, *args, **kwargs):
        self.trained += 1
        if self.trained == 2:
            raise KeyboardInterrupt
        return super().fit(hp, model, *args, **kwargs)


def same(frame, other):
    pd.testing.assert_frame_equal(
        frame.drop(columns="seconds"), other.drop(columns="seconds"), check_exact=True
    )


@pytest.mark.system
@pytest.mark.parametrize(
    "name", sample({n: n for n in SEARCHES}, every=4, others=pytest.mark.nightly)
)
def test_a_search_with_other_networks_and_resumed(tmp_path, name):
    make, start, options = SEARCHES[name]
    whole = searched(tmp_path / "whole", make, start, **options)
    trace = whole.trace()
    assert set(trace["status"]) == {"completed"}
    assert trace["trial"].max() > 0
    for trial in whole.oracle.in_order()[-1:]:
        net = whole.load_model(trial)
        found = tfr.probes.computational_distance(
            options.get("chain", tfr.chain)(net), HELD_OUT
        ).query("stage != 'all'")
        rows = trace[trace["trial"] == int(trial.trial_id)]
        np.testing.assert_allclose(rows["scaled_distance"], found["scaled_distance"], rtol=1e-4)
        assert rows["blocks"].tolist() == rows["measured_blocks"].tolist()
    assert trace["mean_scaled_perturbation_as_built"].gt(0).all()
    # Stopped in its second trial and resumed, it is the same.
    with pytest.raises(KeyboardInterrupt):
        search(tuner_in(tmp_path / "parts", make, start, Interrupted(make), **options))
    resumed = searched(tmp_path / "parts", make, start, **options)
    same(resumed.trace(), trace)
    assert resumed.outcome() == whole.outcome()


# What a build did with the depths is compared with its chain.


# What tells networks and trainings apart.


def functional(factor=2.0, size=2, loss="mse", optimizer="sgd", two=False, **dense):
    """A network of Keras' layers, one of them a `Lambda`, one with a seed that is drawn."""
    keras.backend.clear_session()
    inputs = keras.Input((8, 8, 1))
    state = keras.layers.RandomCrop(8, 8)(inputs)
    branch = keras.layers.Conv2D(1, size, padding="same", **dense)(state)
    branch = keras.layers.Lambda(lambda value: factor * value)(branch)
    branch = keras.layers.Dropout(0.1)(branch)
    state = keras.layers.Add()([branch if two else state, branch])
    net = keras.Model(inputs, keras.layers.Dense(3, "softmax")(keras.layers.Flatten()(state)))
    net.compile(optimizer, loss)
    return net


class Focal(keras.losses.Loss):
    def __init__(self, power=1.0):
        super().__init__()
        self.power = power

    def get_config(self):
        return {"power": self.power}


# What is another network, or is trained otherwise; and which part says so.
OTHERS = {
    "again": ({}, None),
    "wiring": ({"two": True}, "network"),
    "kernel": ({"size": 3}, "network"),
    "regularizer": ({"kernel_regularizer": "l2"}, "network"),
    "frozen": ({"trainable": False}, "network"),
    "policy": ({"dtype": "bfloat16"}, "network"),
    "loss": ({"loss": "mae"}, "loss"),
    "setting of a loss": ({"loss": Focal(2.0)}, "loss"),
    "clipping": (
        {"optimizer": {"class_name": "SGD", "config": {"clipnorm": 1.0}}},
        "optimizer",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_fingerprint_of_a_network(name):
    changes, part = OTHERS[name]
    given = {"loss": Focal()} if name == "setting of a loss" else {}
    before = fingerprint.of_network(functional(**given))
    now = fingerprint.of_network(functional(**{**given, **changes}))
    assert {one for one in before if before[one] != now[one]} == ({part} if part else set())


# As built, against NumPy.


def numpy_as_built(net, depth, shared, vectors, statistics=None):
    """Mean scaled steps per image of a `normalized` network, in float64; statistics of one pass.

    Returns:
        An array `(images, blocks)`.
    """
    dense = [layer for layer in net.layers if isinstance(layer, keras.layers.Dense)][:-1]
    norms = [layer for layer in net.layers if type(layer).__name__ == "BatchNormalization"]
    place = [0] * depth if shared else range(depth)

    def branches(state, given):
        found = []
        for block in range(depth):
            kernel, bias = (np.float64(w) for w in dense[place[block]].get_weights())
            gamma, beta = (np.float64(w) for w in norms[place[block]].get_weights()[:2])
            before = state @ kernel + bias
            of_batch = before.mean(0), before.var(0)
            mean, variance = of_batch if given is None else given[block]
            step = gamma * (before - mean) / np.sqrt(variance + 1e-3) + beta
            found.append((of_batch, np.linalg.norm(step, axis=1) / np.linalg.norm(state, axis=1)))
            state = state + step
        return found

    if statistics is None:
        # Batches of 128 images, of which the last is smaller.
        batches = [part for part in np.split(vectors, [128]) if len(part)]
        parts = [branches(part, None) for part in batches]
        shares = [len(part) / len(vectors) for part in batches]
        statistics = [
            [sum(s * part[block][0][which] for s, part in zip(shares, parts, strict=True))
             for which in range(2)]
            for block in range(depth)
        ]  # fmt: skip
        if shared:
            statistics = [np.mean(statistics, axis=0)] * depth
    return np.stack([step for _, step in branches(vectors, statistics)], axis=1)


def vectors_of(count, seed=0):
    return np.random.default_rng(seed).normal(1, 2, size=(count, 6))


@pytest.mark.parametrize("shared", [False, True])
def test_as_built_is_that_of_numpy(shared):
    keras.utils.set_random_seed(3)
    net = normalized((3,), shared=shared)
    vectors = vectors_of(200)
    before = [variable.numpy() for variable in net.variables]
    frame = tuning.distances_as_built(net, vectors.astype("float32"))
    expected = numpy_as_built(net, 3, shared, vectors)
    assert frame["blocks"].tolist() == [3, 3]
    np.testing.assert_allclose(frame["mean_scaled_perturbation"][0], expected.mean(), rtol=1e-3)
    # With the statistics that it was built with, it would be another one.
    plain = tfr.probes.computational_distance(net, vectors.astype("float32"))
    assert abs(plain["mean_scaled_perturbation"][0] / expected.mean() - 1) > 0.1
    assert_same([variable.numpy() for variable in net.variables], before)
    assert {layer.momentum for layer in net.layers if hasattr(layer, "momentum")} == {0.99}


def test_a_change_by_training_has_a_standard_error():
    keras.utils.set_random_seed(4)
    net = normalized((2,))
    vectors, labels = vectors_of(64).astype("float32"), np.arange(64) % 3
    built = as_built.values_of(net)
    untrained = numpy_as_built(net, 2, False, np.float64(vectors)).mean(axis=1)
    net.fit(vectors, labels, epochs=3, verbose=0)
    chain = tfr.chain(net)
    with unchanged(net):
        found = as_built.compared_with_built(net, chain, built, (vectors, labels))
    trained = numpy_as_built(net, 2, False, np.float64(vectors)).mean(axis=1)
    changes = trained - untrained
    (numbers,) = found.values()
    np.testing.assert_allclose(numbers[as_built.AS_BUILT], untrained.mean(), rtol=1e-3)
    np.testing.assert_allclose(numbers[as_built.SETTLED], trained.mean(), rtol=1e-3)
    error = changes.std(ddof=1) / np.sqrt(64)
    np.testing.assert_allclose(numbers[as_built.CHANGE_ERROR], error, rtol=1e-3)


# Chance.

LABELS = {
    "classes": ([0, 0, 0, 1, 2], "SparseCategoricalAccuracy", 2 / 5),
    "a column": ([[0], [0], [1]], "SparseCategoricalAccuracy", 1 / 3),
    "one-hot": (np.eye(3)[[0, 1, 1, 1]], "CategoricalAccuracy", 1 / 4),
    "the largest of several": ([[1.0, 1, 0], [0, 1, 1], [1, 0, 1]], "CategoricalAccuracy", 1 / 3),
    "one label of two": ([[1.0], [0.0], [0.0], [0.0]], "BinaryAccuracy", 1 / 4),
    "several labels": (
        [[1.0, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]],
        "BinaryAccuracy",
        (0 + 1 / 4 + 1 / 2) / 3,
    ),
    "all labels together": ([[1.0, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]], "ExactMatch", 1 / 2),
    "positions": ([[0, 1], [0, 1], [0, 2]], "SparseCategoricalAccuracy", (0 + 1 / 3) / 2),
}


@pytest.mark.parametrize("name", LABELS)
def test_the_error_of_guessing(name):
    labels, metric, expected = LABELS[name]
    labels = np.asarray(labels)
    images = np.zeros((len(labels), 2), "float32")
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(2)
    for validation in ((images, labels), (images, labels, np.ones(len(labels))), data):
        found = chance.error_of_guessing(validation, metric)
        assert found["chance_error"] == pytest.approx(expected)
        spread = np.sqrt(expected * (1 - expected) / len(labels))
        assert found["error_se"] == pytest.approx(spread)
        difference = chance.error_of_difference(0.1, 0.2, *found.values())
        assert difference == pytest.approx(np.sqrt((0.1 * 0.9 + 0.2 * 0.8) / len(labels)))
    first = chance.error_of_guessing(data, metric, steps=1)
    assert first == chance.error_of_guessing((images[:2], labels[:2]), metric)
    assert chance.error_of_guessing((images, {"a": labels}), metric) == {}


def reported(oracle, step=0.05, **metrics):
    """The oracle after one trial of a stage of 1 block, with some further measurements."""
    trial = oracle.create_trial("a")
    measured = stages_of(constant(step)).metrics((1,))
    oracle.update_trial(trial.trial_id, {**measured, **metrics})
    trial.status = "COMPLETED"
    oracle.end_trial(trial)
    return oracle


MEAN = "stage1/mean_scaled_perturbation"
TOLD = {
    "nothing": ({}, "found", None, None),
    "better": ({"error": 0.1, "chance_error": 0.5, "error_se": 0.05}, "found", True, None),
    "at chance": (
        {"error": 0.41, "chance_error": 0.5, "error_se": 0.05},
        "no better than chance",
        False,
        None,
    ),
    "moved": ({f"{MEAN}_as_built": 0.2, f"{MEAN}_change_error": 0.02}, "found", None, (True,)),
    "met as built": (
        {f"{MEAN}_as_built": 0.09, f"{MEAN}_change_error": 0.01},
        "found",
        None,
        (True,),
    ),
    "not moved": (
        {f"{MEAN}_as_built": 0.11, f"{MEAN}_change_error": 0.04},
        "found",
        None,
        (False,),
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_told_of_a_depth(tmp_path, name):
    metrics, status, is_better, moved = TOLD[name]
    if moved is not None:
        metrics = metrics | {f"{MEAN}_settled": 0.05}
    oracle = reported(quiet_oracle(tmp_path, (1,), epsilon=0.1), **metrics)
    (outcome,) = tuning.outcomes_of(oracle)
    assert (outcome.status, outcome.blocks, outcome.trial) == (status, (1,), 0)
    assert (outcome.is_better_than_chance, outcome.moved) == (is_better, moved)
    assert outcome.as_built == (None if moved is None else (metrics[f"{MEAN}_as_built"],))
    assert ("before any training" in outcome.message) == (name == "met as built")
    assert ("As built" in outcome.message) == (moved is not None)
    assert outcome.message.startswith("1 block (error ")
    assert ("not moved" in outcome.message) == (moved == (False,))
    assert ("no better than chance" in outcome.message) == (is_better is False)
    (row,) = tuning.trace_of(oracle).to_dict("records")
    assert row["found"] == (status == "found")
    assert pd.isna(row["moved"]) if moved is None else row["moved"] == moved[0]
    verdict = oracle.verdict(oracle.in_order()[0])
    assert ("as built" in verdict) == (moved is not None)
    # As read from disk.
    assert tuning.outcomes_of(tuning.read_search(tmp_path / "search")) == [outcome]


@pytest.mark.parametrize("most", [1, 8])
def test_a_search_among_networks_at_chance_says_so(tmp_path, most):
    """Whether it is over, at the bound, or would go deeper."""
    for error, is_told in ((0.1, False), (0.5, True)):
        oracle = quiet_oracle(tmp_path / str(error), (1,), epsilon=0.1, max_blocks=most)
        reported(oracle, 0.5, error=error, chance_error=0.5, error_se=0.05)
        (outcome,) = tuning.outcomes_of(oracle)
        assert outcome.status == ("not satisfied" if most == 1 else "searching")
        assert ("better than chance" in outcome.message) == is_told
