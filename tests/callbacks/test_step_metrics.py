"""Metrics of the training steps themselves: the numbers, and that the training stays the same.

The numbers are compared with a pass of their own, layer by layer, whose gradients are those of one
tape, and with NumPy in double precision from there on. Not covered: GPUs.
"""

import contextlib
import math

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers
from reference.numpy_network import cosine, norm
from reference.random_network import (
    case_id,
    random_batch,
    random_network,
    randomise,
)
from reference.small_networks import functional_network
from reference.unchanged import assert_same
from refusals import refused

from tfresidual import callbacks, probes, training
from tfresidual.layers import ResidualUnit

METRICS = ("cosine_loss", "l2_ratio", "gradient_norm", "perturbation")
LOSS = "sparse_categorical_crossentropy"


def nightly(*case):
    return pytest.param(*case, marks=pytest.mark.nightly)


def compiled(net, rate=0.05, loss=LOSS, **kwargs):
    net.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, **kwargs)
    return net


def fit(net, data, chosen, epochs=1, batch=8, **kwargs):
    kwargs = {"shuffle": False, "verbose": 0, "callbacks": chosen} | kwargs
    return net.fit(*data, batch_size=batch, epochs=epochs, **kwargs).history


def values_of(history, name, block, stage=1):
    return history[f"step/stage{stage}/block{block}/{name}"]


def metrics(before, after, gradient):
    """The metrics of every image, by name, in double precision."""
    before, after, gradient = (
        np.asarray(tensor, np.float64) for tensor in (before, after, gradient)
    )
    values = {"gradient_norm": norm(gradient)}
    if before.shape == after.shape:
        change = after - before
        values |= {
            "cosine_loss": cosine(change, gradient),
            "l2_ratio": norm(change) / norm(before),
            "perturbation": norm(change),
        }
    return values


def by_tape(net, images, labels, weights=1):
    """The metrics of every block in a training step, by stage, block and name, per image."""
    stem, stages, head = net.sections()
    pairs = {}
    # The statistics stay as they are.
    with keras.StatelessScope(), tf.GradientTape() as tape:
        state = keras.ops.convert_to_tensor(images)
        for layer in stem:
            state = layer(state, **_training(layer))
        for stage, (transition, units) in enumerate(stages, start=1):
            state = entry = (
                state if transition is None else transition(state, **_training(transition))
            )
            for index, unit in enumerate(units):
                is_anchored = net.anchor == "input" and unit.resizing is None
                after = unit(state, *([entry] if is_anchored else []), training=True)
                pairs[stage, index] = state, after
                entry = entry if unit.resizing is None else after
                state = after
        for layer in head:
            state = layer(state, **_training(layer))
        total = tf.reduce_sum(keras.losses.get(LOSS)(labels, state) * weights)
    gradients = tape.gradient(total, [before for before, _ in pairs.values()])
    return {
        (*place, name): values
        for (place, pair), gradient in zip(pairs.items(), gradients, strict=True)
        for name, values in metrics(*pair, (gradient.numpy().T / weights).T).items()
    }


def _training(layer):
    has_modes = isinstance(layer, (layers.BatchNormalization, ResidualUnit))
    return {"training": True} if has_modes else {}


def assert_steps(history, expected, images, weights=None, rtol=2e-4):
    """Compares the logs of an epoch with metrics per image of its only step."""
    found = {key: values[0] for key, values in history.items() if key.startswith("step/")}
    assert len(found) == len(expected)
    for (stage, block, name), values in expected.items():
        value = found[f"step/stage{stage}/block{block}/{name}"]
        mean = np.average(values[:images], weights=None if weights is None else weights[:images])
        assert value == pytest.approx(mean, rel=rtol, abs=2e-6)


NETWORKS = [
    {},
    {"layout": "original", "share_from": 0, "batch_norm": "unshared", "blocks": 3},
    {"share_from": 0, "blocks": 3, "transition": "downsampling_block"},
    {"anchor": "input", "blocks": 3, "transition": "average_pooling", "dtype": "float64"},
    {"anchor": "input", "blocks": 3, "lipschitz": 0.9},
]


@pytest.mark.eager
@pytest.mark.parametrize(
    "settings", [NETWORKS[0], *map(nightly, NETWORKS[1:3]), *NETWORKS[3:]], ids=case_id
)
def test_equals_a_tape_of_its_own(settings):
    net = compiled(random_network(**settings))
    if settings is NETWORKS[0]:
        # An optimizer that couples the gradients of the blocks changes nothing.
        net.compile(training.GradientCoupling(keras.optimizers.SGD(0.1), 0.9), LOSS)
    data = random_batch(net, images=8)
    weights = np.random.default_rng(0).uniform(0.5, 2, 8).astype("float32")
    expected = by_tape(net, *data, weights)
    history = fit(net, data, [callbacks.StepMetrics(images=5)], sample_weight=weights)
    assert_steps(history, expected, 5, weights)


def plane_model(*positions, **of_branch):
    """h = x, F(h) = (0, 1.25 h2), outputs h + F."""
    inputs = keras.Input((*positions, 2))
    stem = layers.Dense(2, use_bias=False, name="stem")
    branch = layers.Dense(2, use_bias=False, name="branch", **of_branch)
    state = stem(inputs)
    model = keras.Model(inputs, layers.Add(name="add")([state, branch(state)]))
    stem.kernel.assign(np.eye(2))
    branch.kernel.assign([[0, 0], [0, 1.25]])
    return model


PLANE = np.array([[3, 4], [0, 0], [1, 1]], "float32"), np.array([[3, 8], [4, 0], [0, 0]], "float32")
# The gradients of the mean squares with respect to the outputs are (0, 1) and (-4, 0), with respect
# to the states (0, 2.25) and (-4, 0); the branches are (0, 5) and 0.
BY_HAND = {"cosine_loss": 0.5, "l2_ratio": 0.5, "gradient_norm": 3.125, "perturbation": 2.5}


@pytest.mark.parametrize("kind", ["plain", nightly("every second"), "dynamic", "sequence"])
def test_by_hand(kind):
    model, every = plane_model(), 2 if kind == "every second" else 1
    optimizer = keras.optimizers.SGD(0.0)
    if kind == "dynamic":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    elif kind == "sequence":
        model = keras.Sequential([keras.Input((2,)), model])
    model.compile(optimizer, "mse")
    history = fit(model, PLANE, [callbacks.StepMetrics(images=2, every=every)], epochs=2)
    for name, value in BY_HAND.items():
        expected = [value, value if every == 1 else math.nan]
        assert values_of(history, name, 0) == pytest.approx(expected, nan_ok=True)


# All different.
STEPS = 5
ROWS = np.random.default_rng(0).normal(size=(2, 2 * STEPS, 2)).astype("float32")


def of_plane(images, labels, weights=1):
    """The metrics of images in `plane_model`, by name, in double precision.

    Args:
        images: `(images, ..., 2)`.
        labels: of the same shape.
        weights: those of the positions of every image, which sum to one.
    """
    states, labels = images.astype(float), labels.astype(float)
    jacobian = np.diag([1, 2.25])
    after = states @ jacobian
    return metrics(states, after, np.expand_dims(weights, -1) * (after - labels) @ jacobian)


WEIGHTS = np.array([2, 0, 1, 0.5, 0, 0, 0, 5, 1, 0.25])
CLASS_WEIGHTS = {0: 3.0, 1: 0.5}


@pytest.mark.parametrize(
    ("given", "reduction"),
    [
        nightly("array", "sum_over_batch_size"),
        ("column", "sum"),
        ("dataset", "mean_with_sample_weight"),
        ("classes", "sum_over_batch_size"),
        nightly("nothing", "mean_with_sample_weight"),
        ("scaled", "mean"),
    ],
)
def test_weights_of_images_are_those_of_the_means(given, reduction):
    """Of three batches of 4, 4 and 2 images, 3, 3 and 2 are measured."""
    weights, kwargs, data = WEIGHTS, {}, ROWS
    optimizer = keras.optimizers.SGD(0.0, loss_scale_factor=64.0 if given == "scaled" else None)
    model = plane_model()
    model.compile(optimizer, keras.losses.MeanSquaredError(reduction=reduction))
    if given == "dataset":
        data = [tf.data.Dataset.from_tensor_slices((*ROWS, WEIGHTS)).batch(4)]
        kwargs = {"batch": None}
    elif given == "classes":
        kwargs = {"class_weight": CLASS_WEIGHTS, "batch": 4}
        weights = np.array([CLASS_WEIGHTS[label] for label in ROWS[1].argmax(axis=-1)])
    elif given == "nothing":
        weights, kwargs = np.ones(10), {"batch": 4}
    else:
        shape = (10, 1) if given == "column" else 10
        kwargs = {"sample_weight": WEIGHTS.reshape(shape), "batch": 4}
    history = fit(model, data, [callbacks.StepMetrics(images=3)], **kwargs)
    measured = [0, 1, 2, 4, 5, 6, 8, 9]
    for name, values in of_plane(*ROWS).items():
        expected = np.average(values[measured], weights=weights[measured])
        assert values_of(history, name, 0) == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("reduction", [nightly("sum"), "sum_over_batch_size"])
def test_the_loss_of_an_image_is_the_mean_over_positions_of_weight_one(reduction):
    """As in the probe. The last image has no such position."""
    images, labels = np.random.default_rng(0).normal(size=(2, 4, 3, 2)).astype("float32")
    weights = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]], "float32")
    model = plane_model(3)
    model.compile(keras.optimizers.SGD(0.0), keras.losses.MeanSquaredError(reduction=reduction))
    steps = [callbacks.StepMetrics()]
    history = fit(model, (images, labels), steps, sample_weight=weights)
    shares = weights / weights.sum(axis=1, keepdims=True).clip(1)
    for name, values in of_plane(images, labels, shares).items():
        assert values_of(history, name, 0) == pytest.approx([values[:3].mean()], rel=1e-5)
    history = fit(model, (images, labels), steps, sample_weight=-weights)
    assert all(math.isnan(values_of(history, name, 0)[0]) for name in METRICS)


def dense_model(*positions, wrap=lambda layer: layer):
    """A stem and one block, whose layers all have trained biases."""
    inputs = keras.Input((*positions, 2))
    stem, branch = (
        wrap(layers.Dense(2, kernel_regularizer="l2", bias_initializer="normal", name=name))
        for name in ("stem", "branch")
    )
    state = stem(inputs)
    return keras.Model(inputs, layers.Add()([state, branch(state)]))


def with_lora(model):
    for layer in model.layers[1:3]:
        layer.enable_lora(1, b_initializer="normal")
    return model


def with_frozen_branch(model):
    model.layers[2].trainable = False
    return model


def quantized(model):
    for layer in model.layers[1:3]:
        layer.quantize("int8")
    model.train_function = None
    return model


def rematerialized(model):
    with keras.RematScope(mode="activations"):
        return keras.models.clone_model(model)


CHANGES = {
    "eager": lambda model: model,
    "LoRA": with_lora,
    "frozen": with_frozen_branch,
    "int8": quantized,
    "int8 and LoRA": lambda model: with_lora(quantized(model)),
    "cloned": keras.models.clone_model,
    "wrapped": lambda model: dense_model(3, wrap=layers.TimeDistributed),
    "rematerialized": rematerialized,
    "nested": lambda model: keras.Sequential([keras.Input((2,)), model]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [*list(CHANGES)[:4], *map(nightly, list(CHANGES)[4:])])
def test_a_model_changed_after_a_training_is_measured_as_it_is(change):
    data = np.random.default_rng(0).normal(size=(2, 4, 2)).astype("float32")
    model = dense_model()
    model.compile("sgd", "mse")
    fit(model, data, [callbacks.StepMetrics()])
    model = CHANGES[change](model)
    if change == "wrapped":
        data = np.stack([data] * 3, axis=2)
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=change == "eager")
    history = fit(model, data, [callbacks.StepMetrics()])
    inner = model.layers[-1] if change == "nested" else model
    _, stem, branch, _ = inner.layers
    with tf.GradientTape() as tape:
        before = stem(tf.constant(data[0]))
        tape.watch(before)
        after = before + branch(before)
        losses = tf.reduce_mean((after - data[1]) ** 2, axis=range(1, data[0].ndim))
    for name, values in metrics(before, after, tape.gradient(losses, before)).items():
        assert values_of(history, name, 0) == pytest.approx([values.mean()], rel=2e-4, abs=1e-6)


@pytest.mark.eager
def test_means_are_over_the_images_of_all_measured_steps(tmp_path):
    """Batches of 3, 3 and 1 images, of which 2, 2 and 1 are measured."""
    net = random_network(blocks=1)
    for layer in net._flatten_layers():
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    compiled(net, rate=0.0)
    data = random_batch(net, images=7)
    path = tmp_path / "new" / "steps.csv"
    history = fit(net, data, [callbacks.StepMetrics(images=2, csv=path)], epochs=2, batch=3)
    per_image = probes.block_metrics(net, data, per_image=True)
    first = per_image[(per_image["stage"] == 1) & per_image["image"].isin([0, 1, 3, 4, 6])]
    assert values_of(history, "l2_ratio", 0) == pytest.approx(
        [first["l2_ratio"].mean()] * 2, rel=1e-4
    )
    table = pd.read_csv(path)
    assert list(table) == ["epoch", "step", "stage", "block", *METRICS]
    assert table["step"].tolist() == [step for step in range(6) for _ in range(2)]
    assert table["epoch"].tolist() == [0] * 6 + [1] * 6
    assert table["stage"].tolist() == [1, 2] * 6
    ratios = first["l2_ratio"].to_numpy()
    expected = [ratios[:2].mean(), ratios[2:4].mean(), ratios[4]]
    assert table.loc[table["stage"] == 1, "l2_ratio"].tolist() == pytest.approx(
        expected * 2, rel=1e-4
    )
    assert table.loc[table["stage"] == 2, list(METRICS)].notna().all().tolist() == [
        False, False, True, False]  # fmt: skip


@pytest.mark.eager
def test_a_training_that_resumes_continues_its_file(tmp_path):
    straight, resumed = tmp_path / "straight.csv", tmp_path / "resumed.csv"
    data = ROWS[:, :8]

    def made():
        return compiled(plane_model(), loss="mse")

    def steps_to(path):
        return [callbacks.StepMetrics(every=2, csv=path)]

    fit(made(), data, steps_to(straight), epochs=3, batch=3)
    again = made()
    fit(again, data, steps_to(resumed), epochs=1, batch=3)
    again.save(tmp_path / "net.keras")
    # An epoch after the last checkpoint, which is done again.
    fit(again, data, steps_to(resumed), epochs=2, initial_epoch=1, batch=3)
    again = keras.saving.load_model(tmp_path / "net.keras")
    before = resumed.read_bytes()
    with pytest.raises(InterruptedError):
        fit(again, data, [*steps_to(resumed), Interruption()], epochs=3, initial_epoch=1, batch=3)
    assert resumed.read_bytes() == before
    again = keras.saving.load_model(tmp_path / "net.keras")
    fit(again, data, steps_to(resumed), epochs=3, initial_epoch=1, batch=3)
    pd.testing.assert_frame_equal(pd.read_csv(straight), pd.read_csv(resumed), rtol=1e-5)
    fit(again, data, steps_to(resumed), epochs=1, batch=3)
    assert pd.read_csv(resumed)["epoch"].unique().tolist() == [0]
    assert [path.name for path in tmp_path.glob("*.csv")] != [] and not list(tmp_path.glob(".*"))


class Interruption(keras.callbacks.Callback):
    """Ends a training after the first batches of an epoch."""

    def __init__(self, epoch=0):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.is_now = epoch >= self.epoch

    def on_train_batch_begin(self, batch, logs=None):
        if batch and self.is_now:
            raise InterruptedError


def dataset():
    return tf.data.Dataset.from_tensor_slices(tuple(ROWS))


def records(tmp_path):
    path = str(tmp_path / "rows.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in ROWS.transpose(1, 0, 2):
            writer.write(row.tobytes())
    rows = tf.data.TFRecordDataset(path)
    return rows.map(
        lambda one: tuple(tf.unstack(tf.reshape(tf.io.decode_raw(one, "float"), (2, 2))))
    )


def batches():
    yield from zip(*ROWS.reshape(2, STEPS, 2, 2), strict=True)


# Data whose number of batches Keras knows, or not.
KINDS = {
    "dataset": lambda path: dataset().batch(2),
    "filter": lambda path: dataset().filter(lambda *_: True).batch(2),
    "from_generator": lambda path: tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec((2, 2)),) * 2
    ),
    "unbatch": lambda path: dataset().batch(5).unbatch().batch(2),
    "records": lambda path: records(path).batch(2),
    "generator": lambda path: batches(),
}
SGD = keras.optimizers.SGD
OPTIMIZERS = {
    "SGD": lambda: SGD(0.0),
    "accumulation": lambda: SGD(0.0, gradient_accumulation_steps=2),
    # The first steps, whose gradients overflow, are skipped.
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(SGD(0.0), initial_scale=2.0**127),
}


# Keras says so at the end of any data whose length it does not know.
@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("kind", "course", "every", "steps", "optimizer"),
    [
        ("dataset", "again", 3, 1, "accumulation"),
        nightly("dataset", "resumed", 3, 2, "scaled"),
        nightly("filter", "straight", 1, 1, "SGD"),
        ("filter", "straight", 3, 1, "scaled"),
        nightly("from_generator", "resumed", 1, 1, "scaled"),
        ("from_generator", "restarted", 3, 1, "SGD"),
        ("unbatch", "straight", 3, 2, "accumulation"),
        ("records", "resumed", 1, 2, "SGD"),
        ("records", "without a file", 3, 1, "SGD"),
        nightly("generator", "again", 3, 1, "scaled"),
        ("generator", "again", 1, 2, "SGD"),
    ],
)
def test_every_row_is_of_the_batch_of_its_step(tmp_path, kind, course, every, steps, optimizer):
    path, events = tmp_path / "steps.csv", tmp_path / "events"

    def train(model, epochs, *others, **kwargs):
        file = {"tensorboard": events} if course == "without a file" else {"csv": path}
        chosen = [callbacks.StepMetrics(every=every, **file), *others]
        return fit(model, [KINDS[kind](tmp_path)], chosen, epochs, batch=None, **kwargs)

    def made():
        model = plane_model()
        model.compile(OPTIMIZERS[optimizer](), "mse", steps_per_execution=steps)
        return model

    model, epochs = made(), 3
    if course == "straight":
        train(model, 3)
    elif course == "resumed":
        # After the callback, so that it has restored nothing when the training begins.
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        with pytest.raises(InterruptedError):
            train(model, 3, backup, Interruption(epoch=1))
        train(made(), 3, backup)
    else:
        epochs = 2
        train(model, 1)
        train(model, epochs, initial_epoch=0 if course == "restarted" else 1)
    expected = list(range(0, epochs * STEPS, every))
    if course == "without a file":
        assert sorted({step for step, _ in events_of(events)}) == expected
        return
    table = pd.read_csv(path)
    assert table["step"].tolist() == expected
    assert table["epoch"].tolist() == [step // STEPS for step in expected]
    truth = [of_plane(*ROWS[:, 2 * (step % STEPS) :][:, :2]) for step in expected]
    for name in METRICS:
        found, right = table[name].to_numpy(), np.array([values[name].mean() for values in truth])
        # Where the gradient overflows, there are no metrics of it.
        finite = np.isfinite(table["gradient_norm"])
        assert finite.all() if optimizer != "scaled" else finite.any()
        np.testing.assert_allclose(found[finite], right[finite], rtol=2e-5, atol=1e-6)


class Freezes(keras.callbacks.Callback):
    """Freezes a layer before a batch of the second epoch, as Keras asks for, or calls `fit`."""

    def __init__(self, batch, how):
        super().__init__()
        self.batch, self.how, self.epoch = batch, how, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if epoch == 1 and self.batch is None:
            self.freeze()

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, self.batch):
            self.freeze()

    def freeze(self):
        if self.how == "fit":
            fit(self.model, np.ones((2, 4, 2)), [callbacks.StepMetrics()], batch=2)
            return
        self.model.get_layer("branch").trainable = False
        if self.how == "compile":
            self.model.compile("sgd", "mse", steps_per_execution=self.model.steps_per_execution)
        elif self.how == "refused":
            self.model.compile("sgd", "mse", loss_weights=[1.0])
        self.model.make_train_function(force=True)


@pytest.mark.sampled(3)
@pytest.mark.system
@pytest.mark.eager
@pytest.mark.parametrize(
    ("batch", "how", "is_before", "executed", "missing"),
    [
        (None, "force", False, 1, []),
        (1, "compile", True, 1, []),
        (1, "force", False, 1, [4]),
        (2, "force", False, 2, [5]),
        (None, "fit", False, 1, []),
        (None, "refused", True, 1, range(3, 9)),
    ],
)
def test_layers_frozen_in_the_middle(tmp_path, batch, how, is_before, executed, missing):
    data = np.random.default_rng(0).normal(size=(2, 12, 2)).astype("float32")

    def made():
        keras.utils.set_random_seed(0)
        model = dense_model()
        model.compile("sgd", "mse", steps_per_execution=executed)
        return model

    path, freezes = tmp_path / "steps.csv", Freezes(batch, how)
    steps = callbacks.StepMetrics(csv=path)
    said = pytest.warns(UserWarning, match="not measured|without the metrics")
    with said if missing else contextlib.nullcontext():
        chosen = [freezes, steps] if is_before else [steps, freezes]
        history = fit(model := made(), data, chosen, epochs=3, batch=4)
    fit(other := made(), data, [Freezes(batch, how)], epochs=3, batch=4)
    assert_same(model.get_weights(), other.get_weights())
    expected = [step for step in range(9) if step not in missing]
    assert sorted(set(pd.read_csv(path)["step"])) == expected
    if how == "force" and not missing:
        # One after the other, with the layer frozen in between.
        other, parts = made(), []
        for epochs, first in ((1, 0), (3, 1)):
            other.get_layer("branch").trainable = not first
            other.compile("sgd", "mse", steps_per_execution=executed)
            chosen = [callbacks.StepMetrics()]
            parts.append(fit(other, data, chosen, epochs, batch=4, initial_epoch=first))
        assert history == {key: [*values, *parts[1][key]] for key, values in parts[0].items()}
    if how == "force":
        with refused("model"):
            fit(model, data, [callbacks.StepMetrics()])
        model.compile("sgd", "mse", steps_per_execution=executed)
    if how != "refused":
        fit(model, data, [callbacks.StepMetrics(csv=path)], epochs=4, batch=4, initial_epoch=3)
        assert sorted(set(pd.read_csv(path)["step"]))[-3:] == [9, 10, 11]


@pytest.mark.eager
def test_tensorboard_has_every_step(tmp_path):
    model = plane_model()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    steps = callbacks.StepMetrics(images=2, every=2, tensorboard=tmp_path / "steps")
    fit(model, PLANE, [steps], epochs=3)
    found = events_of(tmp_path / "steps")
    assert found == pytest.approx(
        {(step, f"stage1/block0/{name}"): BY_HAND[name] for step in (0, 2) for name in METRICS}
    )


def events_of(folder):
    """The scalars in a folder by step and tag."""
    return {
        (event.step, value.tag): float(tf.make_ndarray(value.tensor))
        for path in folder.iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }


def states_of(model):
    """Everything that a training changes."""
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def flat(states):
    return np.concatenate([np.ravel(state) for state in states])


def shared_unit():
    """One unit that is applied three times, the last time in a nested model."""
    inputs, unit = keras.Input((8, 8, 3)), ResidualUnit(4, name="unit")
    state = layers.Conv2D(4, 3, padding="same")(inputs)
    inner = keras.Input((8, 8, 4))
    nested = keras.Model(inner, unit(inner))
    state = nested(unit(unit(state)))
    state = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(state))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(state))


MODELS = {
    "ordinary": lambda: random_network(blocks=2),
    "shared unit": shared_unit,
    "bfloat16": lambda: random_network(dtype="mixed_bfloat16"),
    "dropout": lambda: random_network(shortcut="dropout", layout="original"),
    "bounded": lambda: random_network(lipschitz=0.9, share_from=0),
    "anchored": lambda: random_network(anchor="input", blocks=3),
    "anchored, bounded": lambda: random_network(anchor="input", blocks=3, lipschitz=0.9),
    "functional": functional_network,
    "unshared": lambda: random_network(blocks=3, share_from=0, batch_norm="unshared"),
    "relu_only": lambda: random_network(layout="relu_only_preactivation", bottleneck=True),
}


# The first always, two more in every submission.
MARKS = [[], *[[pytest.mark.nightly]] * 9]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=marks)
        for (name, make), marks in zip(MODELS.items(), MARKS, strict=True)
    ],
)
def test_the_training_is_the_same_bit_for_bit(make):
    trained = []
    rng = np.random.default_rng(0)
    data = rng.normal(size=(16, 8, 8, 3)).astype("float32"), rng.integers(0, 5, 16)
    for chosen in (
        [],
        [callbacks.StepMetrics(images=3, every=1)],
        [callbacks.StepMetrics(every=2)],
    ):
        keras.utils.set_random_seed(0)
        model = make()
        randomise(model)
        compiled(model)
        history = fit(model, data, chosen, epochs=2, batch=6)
        trained.append((states_of(model), history["loss"]))
        own = [key for key in history if key.startswith("step/")]
        assert bool(own) == bool(chosen) and np.isfinite([history[key] for key in own]).all()
    (expected, losses), *others = trained
    for states, other in others:
        if getattr(model, "anchor", "state") == "input":
            # The gradients of an anchor are added in another order.
            assert other == pytest.approx(losses, rel=1e-5)
            np.testing.assert_allclose(*map(flat, (states, expected)), rtol=1e-5, atol=1e-6)
            continue
        assert other == losses
        assert_same(states, expected)


@pytest.mark.eager
def test_every_call_of_a_shared_unit_is_a_block_of_its_own():
    model = shared_unit()
    randomise(model)
    model.get_layer("unit").trainable = False
    compiled(model, rate=0.0)
    data = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32"), np.arange(4)
    expected = probes.perturbation(model, data)["perturbation"].tolist()
    history = fit(model, data, [callbacks.StepMetrics()])
    found = [values_of(history, "perturbation", block)[0] for block in range(3)]
    assert found == pytest.approx(expected, rel=1e-4) and len(set(found)) == 3


@pytest.mark.eager
def test_blocks_before_the_first_trained_weight_are_nan():
    net = random_network()
    for layer in [*net.sections()[0], *net.sections()[1][0][1]]:
        layer.trainable = False
    history = fit(compiled(net), random_batch(net, images=4), [callbacks.StepMetrics()])
    assert math.isnan(values_of(history, "perturbation", 0)[0])
    assert math.isnan(values_of(history, "gradient_norm", 0, stage=2)[0])
    assert np.isfinite(values_of(history, "cosine_loss", 1, stage=2)[0])
    for layer in net.layers[:-1]:
        layer.trainable = False
    with refused("model"):
        fit(compiled(net), random_batch(net, images=4), [callbacks.StepMetrics()])
