"""A deeper network that begins where a shallower one ended.

Networks are called eagerly, their weights and statistics drawn from a seed. Searches that start
warm are in `test_depth_search.py`. Not covered: `channels_first`, which the CPU cannot run.
"""

import keras
import numpy as np
import pytest
from reference.random_network import (
    LAYOUTS,
    SHORTCUTS,
    TRANSITIONS,
    random_network,
    randomise,
    sample,
)

from tfresidual.layers import ResidualUnit
from tfresidual.tuning import interleave

pytestmark = pytest.mark.eager

PREACTIVATION = ("full_preactivation", "relu_only_preactivation")
IMAGES = np.random.default_rng(3).normal(size=(4, 8, 8, 3)).astype("float32")


def pair(shallow_blocks, deep_blocks, **kwargs):
    """Two networks that have nothing in common but their settings."""
    settings = {"widths": (4, 8), **kwargs}
    shallow = random_network(0, blocks=shallow_blocks, **settings)
    return shallow, random_network(1, blocks=deep_blocks, **settings)


def values_of(layer):
    """All weights and statistics by path."""
    return {
        variable.path: keras.ops.convert_to_numpy(variable).copy() for variable in layer.variables
    }


def equal(values, others):
    """Whether two lists of arrays are the same, bit for bit."""
    pairs = zip(values, others, strict=True)
    return all(np.array_equal(value, other, equal_nan=True) for value, other in pairs)


def weights(layer):
    return [keras.ops.convert_to_numpy(weight).copy() for weight in layer.weights]


def units_of(network, stage):
    return network.sections()[1][stage - 1][1]


def sources_of(shallow, deep, stage):
    """The places in the shallow stage from which the blocks of the deep one come, or `None`."""
    old = [weights(unit) for unit in units_of(shallow, stage)]
    places = []
    for unit in units_of(deep, stage):
        own = weights(unit)
        same = [
            place
            for place, other in enumerate(old)
            if [value.shape for value in other] == [value.shape for value in own]
            and equal(other, own)
        ]
        assert len(same) < 2
        places.append(same[0] if same else None)
    return places


class TestTheSameAtZero:
    @pytest.mark.parametrize(("place", "transition"), list(enumerate(TRANSITIONS)))
    def test_preactivation(self, place, transition):
        layout, bottleneck = PREACTIVATION[place % 2], place // 2 % 2 == 1
        shallow, deep = pair(
            (1, 2), (2, 4), layout=layout, transition=transition, bottleneck=bottleneck
        )
        expected = shallow(IMAGES).numpy()
        assert np.abs(deep(IMAGES).numpy() - expected).max() > 1e-3
        interleave(shallow, deep, nearness=0)
        np.testing.assert_allclose(deep(IMAGES), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("layout", ["original", "relu_before_addition"])
    def test_layouts_whose_states_are_positive(self, layout):
        """A ReLU after the addition does nothing to them."""
        shallow, deep = pair((1, 2), (2, 4), layout=layout)
        interleave(shallow, deep, nearness=0)
        np.testing.assert_allclose(deep(IMAGES), shallow(IMAGES), rtol=1e-5, atol=1e-6)

    @pytest.mark.compiled
    def test_bounded_branches(self):
        shallow, deep = pair((1, 2), (2, 3), lipschitz=0.9)
        interleave(shallow, deep, nearness=0)
        np.testing.assert_allclose(deep(IMAGES), shallow(IMAGES), rtol=1e-5, atol=1e-6)

    def test_trained(self):
        """Moving statistics are those of the training."""
        shallow, deep = pair((1, 2), (3, 4))
        before = values_of(shallow)
        shallow.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        shallow.fit(IMAGES, np.arange(4), batch_size=2, verbose=0)
        assert not any(np.array_equal(value, before[path]) for path, value in statistics(shallow))
        expected = shallow(IMAGES).numpy()
        interleave(shallow, deep, nearness=0)
        np.testing.assert_allclose(deep(IMAGES), expected, rtol=1e-5, atol=1e-6)

    def test_shallow_is_left_as_it_was(self):
        shallow, deep = pair((1, 2), (2, 3))
        before = weights(shallow)
        interleave(shallow, deep)
        assert equal(weights(shallow), before)

    def test_nothing_is_shared_afterwards(self):
        shallow, deep = pair((1, 2), (2, 3))
        interleave(shallow, deep, nearness=0)
        before = weights(deep)
        for variable in shallow.variables:
            variable.assign(variable + 1)
        assert equal(weights(deep), before)

    def test_frozen(self):
        shallow, deep = pair((1, 2), (2, 4))
        deep.trainable = False
        interleave(shallow, deep, nearness=0)
        np.testing.assert_allclose(deep(IMAGES), shallow(IMAGES), rtol=1e-5, atol=1e-6)


def statistics(network):
    values = values_of(network)
    return [(path, value) for path, value in values.items() if "moving_" in path]


class TestPlaces:
    @pytest.mark.parametrize(
        ("old", "young", "expected"),
        [
            (2, 5, [0, None, 1, None, None]),
            (1, 4, [0, None, None, None]),
            (4, 6, [0, 1, None, 2, 3, None]),
        ],
    )
    def test_spread_evenly(self, old, young, expected):
        shallow, deep = pair((old,), (young,), widths=(4,))
        interleave(shallow, deep)
        assert sources_of(shallow, deep, 1) == expected

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            # The first block of the second stage changes the shape, and stays the first.
            ({}, [0, 1, None, 2, None, None]),
            ({"transition": "downsampling_block"}, [0, None, 1, None, 2, None]),
        ],
    )
    def test_blocks_that_change_the_shape(self, settings, expected):
        shallow, deep = pair((1, 3), (2, 6), **settings)
        interleave(shallow, deep)
        assert sources_of(shallow, deep, 1) == [0, None]
        assert sources_of(shallow, deep, 2) == expected

    def test_a_stage_with_no_other_blocks(self):
        shallow, deep = pair((1, 1), (1, 3))
        interleave(shallow, deep)
        assert sources_of(shallow, deep, 2) == [0, None, None]

    def test_stem_transitions_and_head(self):
        for transition in ("convolution", "downsampling_block"):
            shallow, deep = pair((1, 1), (2, 3), transition=transition)
            interleave(shallow, deep)
            (stem, stages, head), (deep_stem, deep_stages, deep_head) = (
                network.sections() for network in (shallow, deep)
            )
            layers = zip(
                [*stem, *head, stages[1][0]],
                [*deep_stem, *deep_head, deep_stages[1][0]],
                strict=True,
            )
            for layer, deep_layer in layers:
                assert equal(weights(layer), weights(deep_layer))

    def test_equal_depths(self):
        shallow, deep = pair((2, 3), (2, 3))
        interleave(shallow, deep)
        assert equal(weights(deep), weights(shallow))
        np.testing.assert_array_equal(deep(IMAGES), shallow(IMAGES))


class TestNearness:
    @pytest.mark.parametrize(("place", "layout"), list(enumerate(LAYOUTS)))
    def test_new_branches_are_scaled(self, place, layout):
        bottleneck = place % 2 == 1
        shallow, deep = pair((1,), (2,), widths=(8,), layout=layout, bottleneck=bottleneck)
        new = units_of(deep, 1)[-1]
        states = np.abs(np.random.default_rng(4).normal(size=(2, 5, 5, 8))).astype("float32")
        for options in ({}, {"nearness": 0.25}):
            randomise(new, 5)
            before, branch = values_of(new), new.branch(states).numpy()
            assert np.abs(branch).max() > 0.1
            interleave(shallow, deep, **options)
            scaled = np.float32(options.get("nearness", 0.1))
            np.testing.assert_allclose(new.branch(states), scaled * branch, rtol=1e-5, atol=1e-6)
            # All weights but those of the branch's last layer are what they were.
            last = last_layer(new)
            after = values_of(new)
            for path, value in before.items():
                is_last = f"/{last}/" in path and "moving_" not in path
                np.testing.assert_array_equal(after[path], value * scaled if is_last else value)

    def test_one_leaves_them(self):
        shallow, deep = pair((1, 2), (2, 4))
        new = [units_of(deep, 1)[1], units_of(deep, 2)[2], units_of(deep, 2)[3]]
        before = [weights(unit) for unit in new]
        interleave(shallow, deep, nearness=1)
        for unit, values in zip(new, before, strict=True):
            assert equal(weights(unit), values)

    @pytest.mark.parametrize("nearness", [-1.0, float("nan"), float("inf"), "0.1", None])
    def test_refused(self, nearness):
        with pytest.raises(ValueError, match=r"Argument `nearness` must .* Received: nearness="):
            interleave(None, None, nearness)


def last_layer(unit):
    """The name of the layer with weights that ends the branch."""
    count = 3 if unit.bottleneck else 2
    # Figure 4 of He et al. 2016: after the last convolution come normalization and ReLU in the
    # first three layouts, of which so much comes after the addition.
    ends_in_normalization = {
        "original": True,
        "bn_after_addition": False,
        "relu_before_addition": True,
        "relu_only_preactivation": True,
        "full_preactivation": False,
    }
    kind = "normalization" if ends_in_normalization[unit.layout] else "convolution"
    return f"{kind}{count}"


@pytest.fixture(scope="module")
def shallow():
    return random_network(0, blocks=1, widths=(4, 8))


class TestRefused:
    """Nothing is written then."""

    def refused(self, shallow, deep, match):
        before = [weights(network) for network in (shallow, deep)]
        with pytest.raises(ValueError, match=match):
            interleave(shallow, deep)
        for network, values in zip((shallow, deep), before, strict=True):
            assert equal(weights(network), values)

    @pytest.mark.parametrize("blocks", [(1, 3), (2, 1)])
    def test_shallower(self, blocks):
        shallow, deep = pair((2, 3), blocks)
        self.refused(
            shallow,
            deep,
            r"Argument `deep` must have the stages of `shallow`, with as many blocks or more\. "
            rf"Received: deep with \[{blocks[0]}, {blocks[1]}\] blocks, shallow with \[2, 3\]$",
        )

    @pytest.mark.parametrize("widths", [(4,), (4, 8, 8)])
    def test_other_stages(self, shallow, widths):
        deep = random_network(1, blocks=2, widths=widths)
        self.refused(
            shallow, deep, r"Argument `deep` must .*`shallow`.* Received: deep with widths="
        )

    @pytest.mark.parametrize(
        "settings",
        [
            *({"widths": (4, 6)}, {"stem_width": 3}, {"classes": 7}, {"input_shape": (8, 8, 1)}),
            *({"bottleneck": True}, {"shortcut": "conv1x1"}, {"lipschitz": 0.9}),
            *({"layout": "original"}, {"layout": "relu_only_preactivation"}),
            *({"transition": "convolution"}, {"transition": "average_pooling"}),
            # Networks whose weights have the same shapes.
            *({"shortcut": "scaled"}, {"anchor": "input"}, {"classifier_activation": "sigmoid"}),
            {"pooling": 2},
        ],
        ids=str,
    )
    def test_other_networks(self, shallow, settings):
        deep = random_network(1, **{"blocks": 1, "widths": (4, 8), **settings})
        self.refused(shallow, deep, r"^Argument `deep` must .* Received: ")

    @pytest.mark.parametrize("name", ["shallow", "deep"])
    def test_shared_blocks(self, name):
        networks = dict(zip(("shallow", "deep"), pair((1, 2), (2, 3)), strict=True))
        networks[name] = random_network(2, blocks=(2, 3), widths=(4, 8), share_from=0)
        self.refused(
            **networks, match=rf"^Argument `{name}` must .* own\. Received: {name}=<ResidualNetwork"
        )

    @pytest.mark.parametrize("name", ["shallow", "deep"])
    def test_other_models(self, name):
        networks = dict(zip(("shallow", "deep"), pair((1, 2), (2, 3)), strict=True))
        networks[name] = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3)])
        self.refused(
            **networks, match=rf"^Argument `{name}` must be a .* Received: {name}=<Sequential"
        )


# Units that keep the shape, and units that change it.
BRANCHES = [
    {"layout": layout, "bottleneck": bottleneck, "channels": channels}
    for layout in LAYOUTS
    for bottleneck in (False, True)
    for channels in (8, 4)
]


class TestScaleBranch:
    @pytest.mark.parametrize("case", sample(BRANCHES, 3, pytest.mark.nightly))
    def test_every_branch(self, case):
        channels = case["channels"]
        unit = ResidualUnit(8, layout=case["layout"], bottleneck=case["bottleneck"])
        unit.build((None, 5, 5, channels))
        randomise(unit)
        states = np.random.default_rng(1).normal(size=(3, 5, 5, channels)).astype("float32")
        for training in (False, True):
            randomise(unit)
            branch = unit.branch(states, training=training).numpy()
            assert np.abs(branch).max() > 0.1
            for factor in (0.1, 3.0, 0.0):
                randomise(unit)
                unit.scale_branch(factor)
                scaled = unit.branch(states, training=training)
                np.testing.assert_allclose(scaled, factor * branch, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("shortcut", SHORTCUTS)
    def test_the_shortcut_stays(self, shortcut):
        unit = ResidualUnit(4, shortcut=shortcut)
        unit.build((None, 5, 5, 4))
        randomise(unit)
        states = np.random.default_rng(1).normal(size=(3, 5, 5, 4)).astype("float32")
        expected = unit.join(states, np.zeros_like(states))
        unit.scale_branch(0.0)
        np.testing.assert_allclose(unit(states), expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.compiled
    def test_bounded(self):
        unit = ResidualUnit(4, lipschitz=0.9)
        unit.build((None, 8, 8, 4))
        randomise(unit)
        unit.converge()
        states = np.random.default_rng(1).normal(size=(3, 8, 8, 4)).astype("float32")
        branch = unit.branch(states).numpy()
        unit.scale_branch(0.1)
        unit.converge()
        np.testing.assert_allclose(unit.branch(states), 0.1 * branch, rtol=1e-4, atol=1e-5)

    def test_frozen(self):
        unit = ResidualUnit(4)
        unit.build((None, 5, 5, 4))
        states = np.random.default_rng(1).normal(size=(3, 5, 5, 4)).astype("float32")
        branch = unit.branch(states).numpy()
        unit.trainable = False
        unit.scale_branch(0.1)
        np.testing.assert_allclose(unit.branch(states), 0.1 * branch, rtol=1e-4, atol=1e-5)

    def test_shared(self):
        first = ResidualUnit(4, name="first")
        first.build((None, 5, 5, 4))
        second = ResidualUnit(4, shares=first, name="second")
        second.build((None, 5, 5, 4))
        before = weights(first)
        with pytest.raises(
            ValueError, match=r"Received: factor=0\.5 for second, which shares those of first$"
        ):
            second.scale_branch(0.5)
        assert equal(weights(first), before)
