"""A deeper network that begins where a shallower one ended.

Networks are called eagerly, their weights and statistics drawn from a seed. Searches that start
warm are in `test_depth_search.py`, networks that are not of this package in `test_any_network.py`.
Not covered: `channels_first`, which the CPU cannot run.
"""

import keras
import numpy as np
import pytest
from reference.random_network import (
    LAYOUTS,
    TRANSITIONS,
    random_network,
    randomise,
)

from tfresidual.tuning import interleave

pytestmark = pytest.mark.eager

IMAGES = np.random.default_rng(3).normal(size=(4, 8, 8, 3)).astype("float32")
STATES = np.abs(np.random.default_rng(4).normal(size=(2, 5, 5, 8))).astype("float32")


def pair(shallow_blocks, deep_blocks, **kwargs):
    """Two networks that have nothing in common but their settings."""
    settings = {"widths": (4, 8), **kwargs}
    shallow = random_network(0, blocks=shallow_blocks, **settings)
    return shallow, random_network(1, blocks=deep_blocks, **settings)


def values_of(layer):
    """All weights and statistics by path."""
    values = {v.path: keras.ops.convert_to_numpy(v).copy() for v in layer.variables}
    assert len(values) == len(layer.variables)
    return values


def weights(layer):
    return [keras.ops.convert_to_numpy(weight).copy() for weight in layer.weights]


def equal(values, others):
    """Whether two lists of arrays are the same, bit for bit."""
    pairs = zip(values, others, strict=True)
    return all(np.array_equal(value, other, equal_nan=True) for value, other in pairs)


def units_of(network, stage):
    return network.sections()[1][stage - 1][1]


def sources_of(shallow, deep, stage):
    """The places in the shallow stage from which the blocks of the deep one come, or `None`."""
    old = [weights(unit) for unit in units_of(shallow, stage)]
    places = []
    for unit in units_of(deep, stage):
        own = weights(unit)
        shapes = [value.shape for value in own]
        fitting = [p for p, other in enumerate(old) if [v.shape for v in other] == shapes]
        same = [place for place in fitting if equal(old[place], own)]
        assert len(same) < 2
        places.append(same[0] if same else None)
    return places


# Settings of networks that compute the same with new blocks that do nothing. A ReLU after the
# addition does nothing to states that are positive.
LAYOUTS_BY_PLACE = ("full_preactivation", "relu_only_preactivation")
SAME = [
    *(
        {
            "layout": LAYOUTS_BY_PLACE[place % 2],
            "transition": transition,
            "bottleneck": place // 2 % 2 == 1,
        }
        for place, transition in enumerate(TRANSITIONS)
    ),
    *({"layout": layout} for layout in ("original", "relu_before_addition")),
]


def assert_same_at_zero(shallow, deep):
    expected, before = shallow(IMAGES).numpy(), weights(shallow)
    assert np.abs(deep(IMAGES).numpy() - expected).max() > 1e-3
    interleave(shallow, deep, nearness=0)
    np.testing.assert_allclose(deep(IMAGES), expected, rtol=1e-5, atol=1e-6)
    assert equal(weights(shallow), before)


class TestTheSameAtZero:
    @pytest.mark.parametrize("settings", SAME, ids=str)
    def test_layouts(self, settings):
        assert_same_at_zero(*pair((1, 2), (2, 4), **settings))

    @pytest.mark.compiled
    def test_bounded_branches(self):
        assert_same_at_zero(*pair((1, 2), (2, 3), lipschitz=0.9))

    def test_trained_and_frozen(self):
        """Moving statistics are those of the training."""
        shallow, deep = pair((1, 2), (3, 4))
        before = values_of(shallow)
        shallow.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        shallow.fit(IMAGES, np.arange(4), batch_size=2, verbose=0)
        trained = {path: v for path, v in values_of(shallow).items() if "moving_" in path}
        assert trained
        assert not any(np.array_equal(value, before[path]) for path, value in trained.items())
        deep.trainable = False
        assert_same_at_zero(shallow, deep)
        # Nothing is shared afterwards.
        before = weights(deep)
        for variable in shallow.variables:
            variable.assign(variable + 1)
        assert equal(weights(deep), before)


class TestPlaces:
    @pytest.mark.parametrize(
        ("old", "young", "expected", "settings"),
        [
            ((2,), (5,), [0, None, 1, None, None], {}),
            ((1,), (4,), [0, None, None, None], {}),
            ((4,), (6,), [0, 1, None, 2, 3, None], {}),
            # The first block of the second stage changes the shape, and stays the first.
            ((1, 3), (2, 6), [0, 1, None, 2, None, None], {}),
            ((1, 3), (2, 6), [0, None, 1, None, 2, None], {"transition": "downsampling_block"}),
            # There are no others.
            ((1, 1), (1, 3), [0, None, None], {}),
            ((2, 3), (2, 3), [0, 1, 2], {}),
        ],
    )
    def test_spread_evenly(self, old, young, expected, settings):
        shallow, deep = pair(old, young, widths=(4, 8)[: len(old)], **settings)
        interleave(shallow, deep)
        assert sources_of(shallow, deep, len(old)) == expected
        if len(old) > 1:
            assert sources_of(shallow, deep, 1) == [*range(old[0]), *[None] * (young[0] - old[0])]


def last_layer(unit):
    """The name of the layer with weights that ends the branch."""
    count = 3 if unit.bottleneck else 2
    # Figure 4 of He et al. 2016: after the last convolution come normalization and ReLU in the
    # first three layouts, of which so much comes after the addition.
    ends_in_normalization = ("original", "relu_before_addition", "relu_only_preactivation")
    kind = "normalization" if unit.layout in ends_in_normalization else "convolution"
    return f"{kind}{count}"


@pytest.mark.parametrize(("place", "layout"), list(enumerate(LAYOUTS)))
def test_new_branches_are_scaled(place, layout):
    bottleneck = place % 2 == 1
    shallow, deep = pair((1,), (2,), widths=(8,), layout=layout, bottleneck=bottleneck)
    new = units_of(deep, 1)[-1]
    for options in ({}, {"nearness": 0.25}, {"nearness": 1}):
        randomise(new, 5)
        before, branch = values_of(new), new.branch(STATES).numpy()
        assert np.abs(branch).max() > 0.1
        interleave(shallow, deep, **options)
        scaled = np.float32(options.get("nearness", 0.1))
        np.testing.assert_allclose(new.branch(STATES), scaled * branch, rtol=1e-5, atol=1e-6)
        # All weights but those of the branch's last layer are what they were.
        last, after = last_layer(new), values_of(new)
        for path, value in before.items():
            is_last = f"/{last}/" in path and "moving_" not in path
            np.testing.assert_array_equal(after[path], value * scaled if is_last else value)
