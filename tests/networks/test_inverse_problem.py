"""The algorithm against its closed form, the network that is the algorithm, trained networks.

Not covered: which of the networks approaches the solution smoothly; that depends on the seed, see
`experiments/inverse_problem.py`.
"""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.inverse_problem import KINDS, forward, points, randomised
from reference.layer_test import run_layer_test
from refusals import refused

from tfresidual import datasets, networks

slopes = st.floats(0.1, 3).flatmap(lambda size: st.sampled_from([size, -size]))
pairs = st.tuples(slopes, slopes)


class TestErrorCorrection:
    @settings(max_examples=50, deadline=None)
    @given(slopes=pairs, share=st.tuples(st.floats(0.01, 1.9), st.floats(0.01, 1.9)))
    def test_closed_form(self, slopes, share):
        slopes = np.array(slopes)
        rates = np.array(share) / np.abs(slopes)
        x, steps = points(), 12
        estimates = networks.error_correction(x, slopes, steps, rates)
        solution = x / slopes
        factor = 1 - np.sign(slopes) * slopes * rates
        for step, estimate in enumerate(estimates):
            expected = solution + factor**step * (x - solution)
            np.testing.assert_allclose(estimate, expected, rtol=1e-9, atol=1e-9)

    def test_the_papers_example_never_moves_away(self):
        x, z = datasets.inverse_problem(100)
        estimates = networks.error_correction(x, steps=30)
        assert estimates.shape == (31, 100, 2)
        assert estimates.dtype == np.float32
        np.testing.assert_array_equal(estimates[0], x)
        np.testing.assert_allclose(estimates[-1], z, atol=1e-6)
        distances = np.linalg.norm(estimates[:8] - z, axis=-1)
        assert (np.diff(distances, axis=0) < 0).all()

    def test_where_it_converges(self):
        # Any rate up to 1 would do, the paper writes; with a slope over 2 it does not.
        x = np.ones((1, 2))
        near = networks.error_correction(x, (3, 3), 50, (0.6, 0.6))[-1]
        np.testing.assert_allclose(near, [[1 / 3, 1 / 3]], atol=1e-4)
        far = networks.error_correction(x, (3, 3), 50, (0.7, 1.0))[-1]
        assert (np.abs(far - 1 / 3) > 1).all()


class TestErrorCorrectingNetwork:
    @pytest.mark.parametrize("steps", [1, 8, 40])
    @pytest.mark.parametrize(
        ("slopes", "rates"), [((1.5, 0.75), (0.3, 0.8)), ((-2.0, 0.3), (0.4, 1.7))]
    )
    def test_is_the_algorithm(self, slopes, rates, steps):
        network = networks.error_correcting_network(slopes, steps, rates)
        x = points(50).astype(np.float32)
        expected = networks.error_correction(x.astype(np.float64), slopes, steps, rates)
        np.testing.assert_allclose(network(x), expected[-1], rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(forward(network, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"shortcut": False}, {"branch_initializer": "ones"}])
def test_block(options, tmp_path):
    run_layer_test(networks.DenseBlock, {"hidden": 5, **options}, (4, 3), (4, 3), (4, 0), tmp_path)


class TestNetwork:
    @pytest.mark.parametrize("kind", KINDS)
    def test_equals_numpy(self, kind):
        network = randomised(kind, blocks=3, width=5, hidden=4)
        x = points(20).astype(np.float32)
        np.testing.assert_allclose(network(x), forward(network, x)[-1], rtol=1e-4, atol=1e-4)

    def test_parameters(self):
        # Encoder 24, decoder 18, a block 9 * 16 + 17 * 8 = 280.
        counts = [networks.InverseProblemNetwork(kind).count_params() for kind in KINDS]
        assert counts == [24 + 18 + 8 * 280, 24 + 18 + 8 * 280, 24 + 18 + 280]

    def test_residual_blocks_begin_as_the_identity(self):
        x = points().astype(np.float32)
        for kind in ("residual", "recurrent"):
            estimates = forward(networks.InverseProblemNetwork(kind), x)
            np.testing.assert_array_equal(estimates[-1], estimates[0])
        estimates = forward(networks.InverseProblemNetwork("feedforward"), x)
        assert (np.abs(np.diff(estimates, axis=0)).max(axis=(1, 2)) > 1e-3).all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_config_and_file(self, kind, tmp_path):
        options = {"blocks": 3, "width": 5, "hidden": 7, "branch_initializer": "glorot_uniform"}
        network = randomised(kind, **options, name="small")
        config = network.get_config()
        assert networks.InverseProblemNetwork.from_config(config).get_config() == config
        json.dumps(config)
        network.save(tmp_path / "small.keras")
        loaded = keras.saving.load_model(tmp_path / "small.keras")
        assert type(loaded) is networks.InverseProblemNetwork
        assert loaded.get_config() == config
        x = points().astype(np.float32)
        np.testing.assert_array_equal(loaded(x), network(x))


VALUES = [
    (networks.error_correction, {"x": points()}, {
        "x": (np.ones(2), np.ones((1, 3)), np.ones((1, 2), int)),
        "slopes": ((1, 0), (1, np.inf), 1.5, "ab"), "rates": ((0.3, 0), (0.3,)),
    }),
    (networks.error_correcting_network, {}, {
        "slopes": ((0, 1),), "rates": ((-0.1, 1),),
    }),
    (networks.InverseProblemNetwork, {"kind": "residual"}, {
        "kind": ("plain",),
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "name", "value", "arguments"),
    [
        (function, name, value, arguments)
        for function, arguments, values in VALUES
        for name, bad in values.items()
        for value in bad
    ],
)
def test_a_bad_argument(function, name, value, arguments):
    with refused(name):
        function(**arguments | {name: value})


# Over 8 seeds the errors were 0.11 to 0.41, 0.006 to 0.021, and 0.007 to 0.035.
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        pytest.param("feedforward", 0.6, marks=pytest.mark.nightly),
        pytest.param("residual", 0.05, marks=pytest.mark.nightly),
        ("recurrent", 0.1),
    ],
)
def test_trains_to_a_low_error(kind, error):
    x, z = datasets.inverse_problem(1024)
    unseen, solution = datasets.inverse_problem(200, seed=1)
    network = networks.InverseProblemNetwork(kind)
    network.compile(keras.optimizers.Adam(3e-3), "mse", steps_per_execution=16)
    network.fit(x, z, batch_size=64, epochs=12, verbose=0)
    distance = np.linalg.norm(network(unseen) - solution, axis=-1).mean()
    assert distance < error
