"""The papers' learning rates, step by step, against the numbers printed in the papers."""

import dataclasses

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from tfresidual import networks, training

# The epochs of the paper, whether it augments, and the first epoch and the rate of every phase.
PAPERS = {
    "resnet110": (300, True, [(0, 0.1), (80, 0.01), (120, 0.001), (200, 1e-5), (240, 1.1e-5)]),
    "single_representation": (200, True, [(0, 0.1), (40, 0.02), (60, 0.004), (80, 0.0008)]),
    "avg_pooling": (100, True, [(0, 0.1), (40, 0.02), (60, 0.004), (80, 0.0008)]),
    "wide": (100, True, [(0, 0.1), (60, 0.02)]),
    "cifar10": (400, True, [(0, 0.1), (200, 0.01), (300, 0.001)]),
    "cifar100": (200, True, [(0, 0.1), (100, 0.01), (150, 0.001)]),
    "mnist": (400, False, [(0, 0.025), (200, 0.01), (300, 0.004)]),
    "digitclutter": (400, False, [(0, 0.05), (200, 0.01), (300, 0.002)]),
    "digitclutter_200": (200, False, [(0, 0.1), (100, 0.01), (150, 0.001)]),
    # Not printed but chosen: a half and three quarters of the training.
    "hauser": (200, True, [(0, 0.1), (100, 0.01), (150, 0.001)]),
}
recipes = pytest.mark.parametrize("name", PAPERS)


def close(rate):
    return pytest.approx(rate, rel=1e-6)


@recipes
def test_recipes_are_those_of_the_papers(name):
    assert set(training.RECIPES) == {*PAPERS, "one_cycle"}
    found = training.recipe(name)
    assert (found.name, found.epochs, found.augment, list(found.rates)) == (name, *PAPERS[name])
    assert ("our choice" in found.source) == (name == "hauser")


def test_batch_sizes_of_hauser():
    # The depths that the paper names, with the batch sizes that it prints.
    printed = {
        "cifar10": {256: range(2, 29, 2), 128: range(30, 59, 2), 64: range(60, 101, 10)},
        "mnist": {128: range(2, 61, 2), 64: range(70, 101, 10)},
    }
    for data, sizes in printed.items():
        for size, depths in sizes.items():
            assert {training.hauser_batch_size(blocks, data=data) for blocks in depths} == {size}
    assert training.hauser_batch_size(30) == 128
    assert training.hauser_batch_size(1) == training.hauser_batch_size(29) == 256


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PAPERS)),
    epochs=st.integers(1, 700),
    steps=st.integers(1, 2000),
    share=st.floats(0, 1, exclude_max=True),
)
def test_every_step_has_the_rate_of_its_share_of_the_training(name, epochs, steps, share):
    paper_epochs, _, phases = PAPERS[name]
    total = epochs * steps
    step = int(share * total)
    # The middle of the step says in which phase of the paper it lies; in whole numbers.
    middle = (2 * step + 1) * paper_epochs
    if any(middle == 2 * total * first for first, _ in phases):
        return  # half of the step lies in either phase
    rate = [rate for first, rate in phases if 2 * total * first < middle][-1]
    assert float(training.recipe(name).schedule(epochs, steps)(step)) == close(rate)


def test_a_step_is_that_of_momentum_by_hand():
    optimizer = training.recipe("cifar10").optimizer(4, 1)
    assert optimizer.nesterov is False
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    value, velocity = 1.0, 0.0
    for rate in (0.1, 0.1, 0.01, 0.001):
        assert float(optimizer.learning_rate) == close(rate)
        optimizer.apply([keras.ops.ones((1,))])
        velocity = 0.9 * velocity - rate
        value += velocity
        assert float(variable.value[0]) == close(value)


def test_one_cycle():
    found = training.recipe("one_cycle", learning_rate=0.8)
    schedule = found.schedule(8, 10)
    for step, rate in ((0, 0.02), (10, 0.41), (20, 0.8), (50, 0.4), (80, 0), (99, 0)):
        assert float(schedule(step)) == pytest.approx(rate, abs=1e-6)
    assert found.optimizer(8, 10).nesterov
    assert "our choice" in found.source


@pytest.mark.parametrize("coupling", [None, 0.5])
@pytest.mark.parametrize("decay", ["weight_decay", "l2"])
def test_a_step_with_weight_decay_by_hand(decay, coupling):
    network = networks.resnet(14, input_shape=(8, 8, 1), classes=3, widths=(2, 2, 2))
    training.compile_network(
        network, "hauser", epochs=4, steps_per_epoch=1, coupling=coupling, **{decay: 0.5}
    )
    weights = [w for w in network.trainable_variables if "/kernel" in w.path]
    before = [w.numpy() for w in weights]
    found = []
    for _ in range(2):
        network.optimizer.apply(
            [keras.ops.zeros(w.shape) for w in network.trainable_variables],
            network.trainable_variables,
        )
        found.append([w.numpy() for w in weights])
    # Decoupled, each step of rate 0.1 takes 5 %; as part of the gradient, with momentum 0.9.
    first = 0.95
    second = first * 0.95 if decay == "weight_decay" else first - 0.1 * 0.5 * first - 0.9 * 0.05
    for share, values in zip((first, second), found, strict=True):
        for one, other in zip(values, before, strict=True):
            np.testing.assert_allclose(one, share * other, rtol=1e-5)


def test_a_learning_rate_changes_all_rates_by_the_same_factor():
    own = training.recipe("resnet110")
    changed = training.recipe("resnet110", learning_rate=np.float64(own.rates[0][1] / 8))
    assert changed.rates == tuple((first, close(rate / 8)) for first, rate in own.rates)
    assert dataclasses.replace(changed, rates=own.rates) == own
    assert own.with_learning_rate(own.rates[0][1]) == own
    steps = keras.ops.arange(77)
    theirs, ours = (np.array([found.schedule(7, 11)(i) for i in steps]) for found in (own, changed))
    np.testing.assert_allclose(8 * ours, theirs, rtol=1e-6)


def test_refused():
    with refused("name"):
        training.recipe("resnet")
    for rate in (0, -0.1, float("nan")):
        with refused("learning_rate"):
            training.recipe("mnist").with_learning_rate(rate)
