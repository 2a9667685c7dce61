"""The routes in NumPy: by hand, and against the NumPy network without routes."""

import numpy as np
import pytest

from reference import numpy_routes
from reference.numpy_network import NumpyNetwork, analyse, weights_of
from reference.random_network import random_batch, random_network


class Ending:
    """As much of a `NumpyNetwork` as scores need."""

    def __init__(self, activation):
        self.config = {"classifier_activation": activation}


def test_one_label_by_hand():
    scores = numpy_routes.scores(
        Ending("softmax"), np.log([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]), np.array([0, 2])
    )
    entropy = -(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2))
    np.testing.assert_array_equal(scores["wrong"], [0, 1])
    np.testing.assert_allclose(scores["cross_entropy"], -np.log([0.5, 0.2]))
    np.testing.assert_allclose(scores["entropy"], [entropy, entropy])
    np.testing.assert_allclose(scores["margin"], [0.2, -0.3])


def test_several_labels_by_hand():
    p = np.array([[0.8, 0.6, 0.1], [0.8, 0.6, 0.1]])
    labels = np.array([[1, 1, 0], [1, 0, 1]])
    scores = numpy_routes.scores(Ending("sigmoid"), np.log(p / (1 - p)), labels)
    np.testing.assert_array_equal(scores["wrong"], [0, 1])
    expected = [-np.log([0.8, 0.6, 0.9]).sum(), -np.log([0.8, 0.4, 0.1]).sum()]
    np.testing.assert_allclose(scores["cross_entropy"], expected)
    both = np.array([0.8, 0.2, 0.6, 0.4, 0.1, 0.9])
    np.testing.assert_allclose(scores["entropy"], -(both * np.log(both)).sum())
    np.testing.assert_allclose(scores["margin"], [0.5, -0.5])


@pytest.mark.parametrize("transition", ["projection", "convolution"])
def test_the_plain_route_is_the_network(transition):
    net = random_network(transition=transition)
    images, labels = random_batch(net)
    config, weights = net.get_config(), weights_of(net)
    expected = analyse(config, weights, images, labels)
    plain = [[(0, 1.0), (1, 1.0)]] * 2
    states, logits = numpy_routes.run(NumpyNetwork(config, weights), plain, images)
    for state, last_state in zip(states, expected.last_states, strict=True):
        np.testing.assert_array_equal(state, last_state)
    np.testing.assert_array_equal(logits, expected.logits)
    values = numpy_routes.analyse(config, weights, [plain], images, labels)
    np.testing.assert_allclose(values["cross_entropy"][0], expected.losses)
    np.testing.assert_array_equal(values["outputs"][0], expected.outputs)
    np.testing.assert_array_equal(values["agreement"], 1)
    np.testing.assert_array_equal(values["distance"], 0)


def test_a_branch_times_a_number_moves_the_state_so_far():
    net = random_network(transition="convolution")
    images, _ = random_batch(net)
    numpy_net = NumpyNetwork(net.get_config(), weights_of(net))
    stages = [[(0, 1.0), (1, scale)] for scale in (0.0, 1.0, 0.25)]
    before, whole, part = (
        numpy_routes.run(numpy_net, [stage, []], images)[0][0] for stage in stages
    )
    np.testing.assert_allclose(part - before, (whole - before) / 4, atol=1e-12)
