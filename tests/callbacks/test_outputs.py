"""Models with several outputs: one is chosen, with its loss, labels and weight."""

import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks, probes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype("float32")
CLASSES, VALUES = RNG.integers(0, 3, 12), RNG.normal(size=(12, 2)).astype("float32")
LOSSES = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"]
WEIGHTS = [0.5, 3.0]


class Unit(layers.Layer):
    def build(self, shape):
        self.dense = layers.Dense(shape[-1], activation="tanh")
        self.dense.build(shape)

    def call(self, inputs):
        return inputs + self.dense(inputs)


class Subclassed(keras.Model):
    """Reads one output in the middle of its trunk."""

    def __init__(self):
        super().__init__()
        self.units = [Unit(), Unit()]
        self.heads = [layers.Dense(3), layers.Dense(2)]

    def call(self, inputs):
        middle = self.units[0](inputs)
        return {"a": self.heads[0](self.units[1](middle)), "b": self.heads[1](middle)}


def functional(as_dict, is_early):
    inputs = state = keras.Input((6,))
    units = [Unit(), Unit()]
    middle = units[0](state)
    last = units[1](middle)
    heads = [layers.Dense(3, name="a"), layers.Dense(2, name="b")]
    outputs = [heads[0](last), heads[1](middle if is_early else last)]
    model = keras.Model(inputs, dict(zip("ab", outputs, strict=True)) if as_dict else outputs)
    vars(model).update(units=units, heads=heads)
    return model


def norms(model, number, is_early):
    """The mean norm of the gradient of an output's weighted loss at every state, by a tape."""
    count = 1 if number and is_early else 2
    return [np.linalg.norm(one, axis=1).mean() for one in gradients(model, number, count)]


def gradients(model, number, count):
    """The gradient of an output's weighted loss at the state before each of some units."""
    states, found = [tf.constant(X)], []
    for unit in model.units[:count]:
        states.append(unit(states[-1]))
    for index in range(count):
        with tf.GradientTape() as tape:
            tape.watch(state := states[index])
            last = state
            for unit in model.units[index:count]:
                last = unit(last)
            outputs = model.heads[number](last)
            if number:
                losses = tf.reduce_mean((outputs - VALUES) ** 2, axis=-1)
            else:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(CLASSES, outputs)
            total = WEIGHTS[number] * tf.reduce_sum(losses)
        found.append(tape.gradient(total, state).numpy())
    return found


MODELS = {
    "list": (lambda: functional(False, False), False),
    "dict": (lambda: functional(True, False), False),
    "early output": (lambda: functional(True, True), True),
    "subclassed": (Subclassed, True),
}


def compiled(name, labels):
    """A model, labels in its structure, and whether its second output is an early one."""
    build, is_early = MODELS[name]
    model = build()
    model(X)
    labels, losses, weights = (
        parts if name == "list" else dict(zip("ab", parts, strict=True))
        for parts in (labels, LOSSES, WEIGHTS)
    )
    model.compile(keras.optimizers.SGD(0.0), loss=losses, loss_weights=weights)
    return model, labels, is_early


def logged_norms(model, labels):
    metrics = callbacks.BlockMetrics((X, labels))
    history = model.fit(X, labels, verbose=0, callbacks=[metrics]).history
    return [values[0] for key, values in history.items() if key.endswith("gradient_norm")]


# The first always, two more in every submission.
CASES = [("early output", 1), ("list", 0), ("subclassed", 0), ("subclassed", 1), ("list", 1),
         ("dict", 0), ("dict", 1), ("early output", 0)]  # fmt: skip
MARKS = [(), *[pytest.mark.system] * 2, *[pytest.mark.nightly] * 5]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "number"),
    [pytest.param(*case, marks=marks) for case, marks in zip(CASES, MARKS, strict=True)],
)
def test_one_of_several_outputs(name, number, tmp_path):
    model, labels, is_early = compiled(name, [CLASSES, VALUES])
    options = {"output": number if name == "list" else "ab"[number]}
    options |= {"inputs": X} if name == "subclassed" else {}
    chain = tfr.chain(model, **options)
    outputs = keras.tree.flatten(model(X))[number]
    np.testing.assert_allclose(chain(X), outputs, rtol=1e-4, atol=1e-5)
    expected = norms(model, number, is_early)
    path = tmp_path / "saved"
    tfr.export(chain, path)
    pairs = tf.data.Dataset.from_tensor_slices((X, labels if name != "list" else tuple(labels)))
    # Of those of all outputs, or those of this one.
    given = [(X, labels), (X, [CLASSES, VALUES][number])]
    for source, data in (
        (chain, pairs.batch(5)),
        *((one, d) for one in (chain, path) for d in given),
    ):
        found = probes.block_metrics(tfr.chain(source), data)["gradient_norm"]
        np.testing.assert_allclose(found, expected, rtol=1e-3)
    callbacks.use_blocks(model, **options)
    np.testing.assert_allclose(logged_norms(model, labels), expected, rtol=1e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fill", ["mean", "resample"])
def test_probes_of_one_of_several_outputs(fill):
    model = functional(True, False)
    model.compile("sgd", dict(zip("ab", LOSSES, strict=True)))
    chain, data = tfr.chain(model, output="a"), (X, {"a": CLASSES, "b": VALUES})
    alone = keras.Model(model.input, model.output["a"])
    alone.compile("sgd", LOSSES[0])
    alone = tfr.chain(alone)
    filled = functools.partial(probes.drop_blocks, fill=fill)
    patched = functools.partial(probes.patching, what="addition")
    for measure in (probes.first_order, probes.lens, patched, filled):
        expected = measure(alone, (X, CLASSES))
        pd.testing.assert_frame_equal(measure(chain, data), expected, rtol=1e-4, atol=1e-6)
    # What takes the place of labels is no label of several outputs.
    products = [probes.metric_product(of, X, stage=1, block=1, vectors=X) for of in (chain, alone)]
    np.testing.assert_allclose(*products, rtol=1e-4, atol=1e-6)


def test_outputs_that_cannot_be_taken():
    for output in ("c", 2, -1, 0.5, True, ["a"]):
        with refused("output"):
            tfr.chain(functional(True, False), output=output)
    with pytest.raises(ValueError, match="use_blocks"):
        tfr.chain(functional(False, False))
