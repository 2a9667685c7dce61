"""Linear probes: against the closed form in NumPy and scikit-learn, controls, what is refused."""

import functools
import random

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference import sequences
from reference.plane import blocks_of, chain_of
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes

pytestmark = pytest.mark.eager

HELD_OUT, PENALTIES = 5, [10.0**power for power in range(-6, 3)]


def network(**settings):
    net = random_network(blocks=(2, 1), widths=(3, 5), classes=3, **settings)
    several = net.classifier_activation == "sigmoid"
    net.compile("sgd", "binary_crossentropy" if several else "sparse_categorical_crossentropy")
    return net


def split_data(net, train=22, test=10):
    """With labels that the mean colour decides in part."""
    data = {}
    for seed, (split, images) in enumerate({"train": train, "test": test}.items()):
        pictures, labels = random_batch(net, images=images, seed=seed + 1)
        pictures += labels.reshape(len(labels), -1).mean(axis=1)[:, None, None, None]
        data[split] = pictures, labels
    return data


def examples(chain, images, labels):
    """States of every block, `(examples, channels)`, labels, and whose examples these are."""
    chain = chain.with_context(tf.constant(images))
    pairs, _ = chain.walk(chain.stem(tf.constant(images)))
    states = [after.numpy().astype(float) for _, after in pairs]
    if labels.ndim == 2 and states[0].ndim == 3:  # labels per position
        is_counted = labels >= 0
        return [one[is_counted] for one in states], labels[is_counted], np.nonzero(is_counted)[0]
    return [one.mean(axis=(1, 2)) for one in states], labels, np.arange(len(labels))


def solved(x, y, penalty):
    """Ridge regression with an intercept that has no penalty: coefficients, intercept."""
    centred = x - x.mean(axis=0)
    products = centred.T @ centred
    ridge = penalty * np.trace(products) / len(products) * np.eye(len(products))
    found = np.linalg.solve(products + ridge, centred.T @ (y - y.mean(axis=0)))
    return found, y.mean(axis=0) - x.mean(axis=0) @ found


def chosen(x, y):
    is_held_out = np.arange(len(x)) % HELD_OUT == HELD_OUT - 1
    errors = []
    for penalty in PENALTIES:
        found, intercept = solved(x[~is_held_out], y[~is_held_out], penalty)
        errors.append(((x[is_held_out] @ found + intercept - y[is_held_out]) ** 2).sum())
    return PENALTIES[int(np.argmin(errors))]


def closed_form(chain, data, classes):
    """A row per block of squared error, accuracy and penalty."""
    (train, labels, _), (test, truth, _) = (examples(chain, *data[s]) for s in ("train", "test"))
    rows = [one if one.ndim == 2 else np.eye(classes)[one] for one in (labels, truth)]
    found = []
    for x, other in zip(train, test, strict=True):
        penalty = chosen(x, rows[0])
        weights, intercept = solved(x, rows[0], penalty)
        outputs = other @ weights + intercept
        order = np.argsort(-outputs, axis=1)
        are_right = [
            set(one[: int(row.sum())]) == set(np.flatnonzero(row))
            for one, row in zip(order, rows[1], strict=True)
        ]
        found.append([((outputs - rows[1]) ** 2).sum(axis=1).mean(), np.mean(are_right), penalty])
    return np.array(found)


NETWORKS = {
    "classes": lambda: tfr.chain(network()),
    "several labels": lambda: tfr.chain(network(classifier_activation="sigmoid")),
    "positions": lambda: sequences.sequence_chain("decoder"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_ridge_is_the_closed_form(name):
    chain = NETWORKS[name]()
    if name == "positions":
        data = dict.fromkeys(("train", "test"), sequences.batch("decoder"))
    else:
        data = split_data(chain.source.model)
    expected = closed_form(chain, data, 4 if name == "positions" else 3)
    for size in (1, 7, 22):
        batches = {
            split: tf.data.Dataset.from_tensor_slices(part).batch(size)
            for split, part in data.items()
        }
        frame = probes.linear_probe(chain, batches, control=False)
        columns = ["squared_error", "accuracy", "penalty"]
        np.testing.assert_allclose(frame[columns], expected, rtol=1e-6)
    assert "control" not in frame and not frame["accuracy"].isna().any()


@pytest.mark.parametrize("several", [False, True])
def test_logistic_is_that_of_scikit_learn(several):
    from sklearn import linear_model, multioutput, pipeline, preprocessing

    net = network(classifier_activation="sigmoid" if several else "softmax")
    data = split_data(net)
    frame = probes.linear_probe(net, data, kind="logistic", control=False)
    (train, labels, _), (test, truth, _) = (
        examples(tfr.chain(net), *data[split]) for split in ("train", "test")
    )
    for row, x, other in zip(frame.itertuples(), train, test, strict=True):
        model = linear_model.LogisticRegression(C=1 / row.penalty, max_iter=1000)
        model = multioutput.MultiOutputClassifier(model) if several else model
        model = pipeline.make_pipeline(preprocessing.StandardScaler(), model).fit(x, labels)
        p = model.predict_proba(other)
        p, rows = (np.stack(p, 1)[..., 1], truth) if several else (p, np.eye(3)[truth])
        expected = ((p - rows) ** 2).sum(axis=1).mean()
        assert row.squared_error == pytest.approx(expected, rel=1e-3)
        if not several:
            assert row.accuracy == pytest.approx(model.score(other, truth))


def by_hand(*functions):
    """A chain of numbers whose head is its state for two classes, and 0."""
    return chain_of(
        *blocks_of(*functions),
        input_shape=(1,),
        loss=lambda labels, outputs: tf.zeros(len(labels)),
        head=lambda state: tf.concat([tf.zeros_like(state), state], axis=1),
    )


def test_by_hand():
    """A state that tells all, one that tells nothing, and one that is not finite."""
    chain = by_hand(lambda h: h, lambda h: 0 * h + 7.0, lambda h: h * np.float32(np.inf))
    train, test = ([1, 1, 1, 0] * 5, [1, 0, 0, 1, 0, 0])
    data = {
        split: (np.float32(labels)[:, None] - 0.5, np.array(labels))
        for split, labels in (("train", train), ("test", test))
    }
    frame = probes.linear_probe(chain, data)
    np.testing.assert_array_equal(frame["accuracy"], [1, 1 / 3, np.nan])
    # 3/4 of the training images are of class 1.
    assert frame["squared_error"][1] == pytest.approx(2 * (2 / 6 * 0.25**2 + 4 / 6 * 0.75**2))
    np.testing.assert_array_equal(frame["control"], [1 / 3, 1 / 3, np.nan])
    assert frame["control_se"][1] == pytest.approx(np.sqrt(1 / 3 * 2 / 3 / 5))
    np.testing.assert_allclose(frame["selectivity"][:2], [2 / 3, 0])
    np.testing.assert_array_equal(frame["head"][:1], [1])
    assert frame["untrained"].isna().all()  # not made of a model
    weights = np.array([1.0, 1, 1, 1, 0, 4])
    data["test"] = *data["test"], weights
    weighted = probes.linear_probe(chain, data)
    assert weighted["accuracy"][1] == pytest.approx(2 / 8)


def test_controls():
    """The untrained network is one of the configuration, and the network stays what it was."""
    net = network()
    data = split_data(net)
    before = net.get_weights()
    frame = probes.linear_probe(net, data, seed=3)
    for own, other in zip(net.get_weights(), before, strict=True):
        np.testing.assert_array_equal(own, other)
    random.seed(3)
    other = type(net).from_config(net.get_config())
    expected = probes.linear_probe(other, data, control=False)
    np.testing.assert_allclose(frame["untrained"], expected["accuracy"])
    heads = 1 - probes.readout(net, data["test"])["error"]
    np.testing.assert_allclose(frame["head"], heads)
    assert (frame["head_se"].dropna() > 0).all()
    again, third = (probes.linear_probe(net, data, seed=seed) for seed in (3, 4))
    pd.testing.assert_frame_equal(frame, again)
    assert not frame["untrained"].equals(third["untrained"])


def test_states_on_disk(tmp_path):
    """Pooled when they are saved or when they are read, and labels as rows."""
    net = network()
    data = split_data(net)
    expected = probes.linear_probe(net, data)
    rows = {split: (images, np.eye(3)[labels]) for split, (images, labels) in data.items()}
    for number, (pool, parts) in enumerate((("mean", data), (None, rows))):
        states = probes.save_states(net, parts, tmp_path / str(number), pool=pool)
        frame = probes.linear_probe(states)
        missing = ["untrained", "untrained_se", "head", "head_se"]
        assert frame[missing].isna().all(axis=None)
        pd.testing.assert_frame_equal(
            frame.drop(columns=missing), expected.drop(columns=missing), rtol=1e-5
        )
    with refused("data"):
        probes.linear_probe(states, data)
    for wrong in (states["test"], {"train": states["train"]}):
        with refused("chain"):
            probes.linear_probe(wrong)
    images = {split: (part[0],) for split, part in data.items()}
    with refused("chain"):
        probes.linear_probe(probes.save_states(net, images, tmp_path / "images"))
    numbers = {split: (part[0], part[1] / 7) for split, part in data.items()}
    with refused("data"):
        probes.linear_probe(probes.save_states(regression(), numbers, tmp_path / "numbers"))


@functools.cache
def regression():
    images = keras.Input((8, 8, 3))
    state = images + keras.layers.Conv2D(3, 3, padding="same")(images)
    outputs = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(state))
    model = keras.Model(images, outputs)
    model.compile("sgd", "mse")
    return model


def one_class(part):
    return part[0], np.zeros_like(part[1])


REFUSED = {
    "no splits": ("data", lambda data: data["train"]),
    "no data": ("data", lambda data: None),
    "one split": ("data", lambda data: {"train": data["train"]}),
    "no training images": ("data", lambda data: {"test": data["test"], "other": data["test"]}),
    "no labels": ("data", lambda data: data | {"train": data["train"][:1]}),
    "no labels to measure": ("data", lambda data: data | {"test": data["test"][:1]}),
    "one class": ("data", lambda data: data | {"train": one_class(data["train"])}),
    "one image": ("data", lambda data: data | {"train": tuple(p[:1] for p in data["train"])}),
    "no images": ("data", lambda data: data | {"train": tuple(p[:0] for p in data["train"])}),
    "labels of another data set": (
        "data",
        lambda data: data | {"train": (data["train"][0], data["train"][1] + 3)},
    ),
    "one reading": ("data", lambda data: data | {"train": iter([data["train"]])}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_is_refused(name):
    argument, change = REFUSED[name]
    net = network()
    with refused(argument):
        probes.linear_probe(net, change(split_data(net)))


def test_other_arguments_that_are_refused():
    net = network()
    data = split_data(net)
    for settings in ({"kind": "lasso"}, {"seed": -1}):
        with refused(*settings):
            probes.linear_probe(net, data, **settings)
    with pytest.raises(ValueError, match="Received: "):
        probes.linear_probe(regression(), data)


def test_one_image_to_measure_and_several_outputs():
    """A right number, without a standard error; the labels of the output chosen."""
    net = network()
    data = split_data(net)
    data["test"] = tuple(part[:1] for part in data["test"])
    frame = probes.linear_probe(net, data)
    assert set(frame["accuracy"]) <= {0.0, 1.0} and frame["accuracy_se"].isna().all()
    images = keras.Input((8, 8, 3))
    outputs = {"a": net(images), "b": keras.layers.Dense(2)(keras.layers.Flatten()(images))}
    model = keras.Model(images, outputs)
    both = {split: (part[0], {"a": part[1], "b": part[1]}) for split, part in data.items()}
    chain = tfr.chain(model, output="a", outputs="probabilities")
    pd.testing.assert_frame_equal(
        probes.linear_probe(chain, both, control=False),
        probes.linear_probe(net, data, control=False),
        rtol=1e-4,
    )


def test_a_model_that_has_no_configuration():
    """Its untrained column is NaN."""

    class Scale(keras.layers.Layer):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def call(self, state):
            return self.factor * state

        def get_config(self):
            raise NotImplementedError

    net = network()
    model = keras.Model(net.input, Scale(2.0)(net.output))
    chain = tfr.chain(model, outputs="logits")
    frame = probes.linear_probe(chain, split_data(net))
    assert frame["untrained"].isna().all() and not frame["control"].isna().any()
