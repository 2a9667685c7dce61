"""The papers' learning rates, step by step, against the numbers printed in the papers."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfresidual import datasets, networks, training

# The epochs of the paper, and every phase by its first epoch, its last one and its rate.
PAPERS = {
    "resnet110": (
        300,
        [(0, 79, 0.1), (80, 119, 0.01), (120, 199, 0.001), (200, 239, 1e-5), (240, 299, 1.1e-5)],
    ),
    "single_representation": (
        200,
        [(0, 39, 0.1), (40, 59, 0.02), (60, 79, 0.004), (80, 199, 0.0008)],
    ),
    "avg_pooling": (100, [(0, 39, 0.1), (40, 59, 0.02), (60, 79, 0.004), (80, 99, 0.0008)]),
    "wide": (100, [(0, 59, 0.1), (60, 99, 0.02)]),
    "cifar10": (400, [(0, 199, 0.1), (200, 299, 0.01), (300, 399, 0.001)]),
    "cifar100": (200, [(0, 99, 0.1), (100, 149, 0.01), (150, 199, 0.001)]),
    "mnist": (400, [(0, 199, 0.025), (200, 299, 0.01), (300, 399, 0.004)]),
    "digitclutter": (400, [(0, 199, 0.05), (200, 299, 0.01), (300, 399, 0.002)]),
    "digitclutter_200": (200, [(0, 99, 0.1), (100, 149, 0.01), (150, 199, 0.001)]),
    # Not printed but chosen: a half and three quarters of the training.
    "hauser": (200, [(0, 99, 0.1), (100, 149, 0.01), (150, 199, 0.001)]),
}
recipes = pytest.mark.parametrize("name", PAPERS)
# Every third always.
some_recipes = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if place % 3 else [])
        for place, name in enumerate(PAPERS)
    ],
)


def close(rate):
    return pytest.approx(rate, rel=1e-6)


def test_there_is_a_recipe_for_every_paper_and_dataset():
    assert set(training.RECIPES) == set(PAPERS)
    for name in ("digitclutter", "cifar10", "cifar100", "mnist"):
        # The recipe of a dataset augments just where the dataset's pipeline does.
        assert datasets.describe(name)
        assert training.recipe(name).augment == name.startswith("cifar")


def test_recipes_that_a_paper_does_not_print_say_so():
    assert "our choice" in training.recipe("hauser").source
    # The dataset decides about augmentation, and MNIST has none.
    assert training.recipe("hauser").augment is True
    assert training.recipe("digitclutter_200").augment is False
    assert training.recipe("digitclutter_200").source == training.recipe("digitclutter").source


def test_batch_sizes_of_hauser():
    # The depths that the paper names, with the batch sizes that it prints.
    printed = {
        "cifar10": {256: range(2, 29, 2), 128: range(30, 59, 2), 64: range(60, 101, 10)},
        "mnist": {128: range(2, 61, 2), 64: range(70, 101, 10)},
    }
    for data, sizes in printed.items():
        for size, depths in sizes.items():
            assert {training.hauser_batch_size(blocks, data) for blocks in depths} == {size}
    assert training.hauser_batch_size(30) == 128
    assert training.hauser_batch_size(1) == training.hauser_batch_size(29) == 256
    assert training.hauser_batch_size(1000, data="mnist") == 64


@pytest.mark.parametrize(
    ("name", "value"),
    [("blocks", 0), ("blocks", 2.0), ("blocks", True), ("data", "cifar100"), ("data", None)],
)
def test_bad_arguments_of_batch_sizes(name, value):
    with pytest.raises(ValueError, match=rf"`{name}`.*Received: {name}="):
        training.hauser_batch_size(**{"blocks": 2, name: value})


@recipes
@pytest.mark.parametrize("steps", [1, 7, 391])
def test_rates_at_the_length_of_the_paper(name, steps):
    epochs, phases = PAPERS[name]
    assert training.recipe(name).epochs == epochs
    schedule = training.recipe(name).schedule(epochs, steps)
    for first, last, rate in phases:
        assert float(schedule(first * steps)) == close(rate)
        assert float(schedule((last + 1) * steps - 1)) == close(rate)


@recipes
@pytest.mark.parametrize("factor", [0.25, 0.5, 2, 3])
def test_a_stretched_recipe_changes_its_rate_at_the_same_share(name, factor):
    epochs, phases = PAPERS[name]
    steps = 60
    schedule = training.recipe(name).schedule(int(epochs * factor), steps)
    for first, last, rate in phases:
        assert float(schedule(int(first * factor * steps))) == close(rate)
        assert float(schedule(int((last + 1) * factor * steps) - 1)) == close(rate)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PAPERS)),
    epochs=st.integers(1, 700),
    steps=st.integers(1, 2000),
    share=st.floats(0, 1, exclude_max=True),
)
def test_every_step_has_the_rate_of_its_share_of_the_training(name, epochs, steps, share):
    paper_epochs, phases = PAPERS[name]
    total = epochs * steps
    step = int(share * total)
    # The middle of the step says in which phase of the paper it lies; in whole numbers.
    middle = (2 * step + 1) * paper_epochs
    if any(middle == 2 * total * first for first, _, _ in phases):
        return  # half of the step lies in either phase
    rate = [rate for first, _, rate in phases if 2 * total * first < middle][-1]
    assert float(training.recipe(name).schedule(epochs, steps)(step)) == close(rate)


def test_the_optimizer_follows_the_schedule():
    optimizer = training.recipe("digitclutter").optimizer(4, 2)
    assert optimizer.momentum == 0.9
    assert optimizer.nesterov is False
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    rates = []
    for _ in range(8):
        rates.append(float(optimizer.learning_rate))
        optimizer.apply([keras.ops.ones((1,))])
    assert rates == [close(rate) for rate in [0.05] * 4 + [0.01] * 2 + [0.002] * 2]


def test_a_step_is_that_of_momentum_by_hand():
    optimizer = training.recipe("cifar10").optimizer(4, 1)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    value, velocity = 1.0, 0.0
    for rate in (0.1, 0.1, 0.01, 0.001):
        optimizer.apply([keras.ops.ones((1,))])
        velocity = 0.9 * velocity - rate
        value += velocity
        assert float(variable.value[0]) == close(value)


@some_recipes
def test_a_learning_rate_changes_all_rates_by_the_same_factor(name):
    own = training.recipe(name)
    changed = own.with_learning_rate(np.float64(own.rates[0][1] / 8))
    assert changed.rates == tuple((first, close(rate / 8)) for first, rate in own.rates)
    assert dataclasses.replace(changed, rates=own.rates) == own
    assert own.with_learning_rate(own.rates[0][1]) == own
    assert training.recipe(name) == own  # which are kept
    steps = keras.ops.arange(77)
    theirs, ours = (np.array([found.schedule(7, 11)(i) for i in steps]) for found in (own, changed))
    np.testing.assert_allclose(8 * ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("rate", [0, -0.1, float("nan"), float("inf"), 1e-30, "0.1", None, True])
def test_a_learning_rate_is_checked(rate):
    with pytest.raises(ValueError, match=r"Argument `learning_rate` .* Received: learning_rate="):
        training.recipe("mnist").with_learning_rate(rate)


@pytest.mark.parametrize("coupling", [None, 0.5])
def test_a_network_is_compiled_with_a_learning_rate(coupling):
    network = networks.resnet(14, input_shape=(8, 8, 1), classes=3, widths=(2, 2, 2))
    training.compile_network(network, "digitclutter", 4, 2, coupling=coupling, learning_rate=0.01)
    assert float(network.optimizer.learning_rate) == close(0.01)
    network.optimizer.iterations.assign(7)
    assert float(network.optimizer.learning_rate) == close(0.01 / 25)
    with pytest.raises(ValueError, match=r"`learning_rate` .* Received: learning_rate=0"):
        training.compile_network(network, "digitclutter", 4, 2, learning_rate=0)


@some_recipes
def test_config_round_trip_of_the_optimizer(name):
    optimizer = training.recipe(name).optimizer(7, 11)
    config = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    again = keras.optimizers.deserialize(config)
    assert keras.optimizers.serialize(again) == keras.optimizers.serialize(optimizer)
    ours, theirs = training.recipe(name).schedule(7, 11), again._learning_rate
    for step in range(77):
        assert float(ours(step)) == float(theirs(step))


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None])
@pytest.mark.parametrize("argument", ["epochs", "steps_per_epoch"])
def test_lengths_are_positive_ints(argument, value):
    lengths = {"epochs": 3, "steps_per_epoch": 5} | {argument: value}
    for method in ("schedule", "optimizer"):
        with pytest.raises(ValueError, match=f"Received: {argument}=") as raised:
            getattr(training.recipe("wide"), method)(**lengths)
        assert str(raised.value).endswith(f"Received: {argument}={value!r}")


@pytest.mark.parametrize("name", ["resnet", "", None, 3])
def test_unknown_recipe(name):
    with pytest.raises(ValueError, match="'digitclutter'") as raised:
        training.recipe(name)
    assert str(raised.value).endswith(f"Received: name={name!r}")
