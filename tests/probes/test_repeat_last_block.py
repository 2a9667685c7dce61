"""Repeated last blocks against the NumPy version, its backward pass, and by hand."""

import numpy as np
import pytest
from reference import numpy_network, sequences
from reference.plane import at, plane_chain
from reference.random_network import sample
from reference.route_probes import (
    CONSTRAINED_NETWORKS,
    NETWORKS,
    assert_equals_numpy,
    constrained,
    network,
    numpy_means,
    shape_changing,
    trained_applications,
    with_stage,
)

import tfresidual as tfr
from tfresidual import probes

pytestmark = pytest.mark.eager

BLOCK_METRICS = ["cosine_loss", "l2_ratio", "cosine_loss_se"]


def repeated_stages(net, batch):
    """The stages whose last block keeps the shape, by the NumPy version."""
    fixed = shape_changing(net, batch[0])
    return [
        stage
        for stage, applications in enumerate(trained_applications(net), start=1)
        if (stage, len(applications) - 1) not in fixed
    ]


def numpy_metrics(net, batch, stage, scales):
    """Cosine, ratio and the cosine's standard error of every application of a last block.

    The gradient is that of the network that ends the stage with the application.
    """
    plain = numpy_network.NumpyNetwork(net.get_config(), numpy_network.weights_of(net))
    images, labels = batch
    state, _ = plain.stem(images.astype(np.float64))
    for index in range(stage - 1):
        (*_, state), _ = plain.stage(index, state)
    trained = trained_applications(net)[stage - 1][:-1]
    rows = []
    for count in range(1, len(scales) + 1):
        applied = trained + [(len(trained), scale) for scale in scales[:count]]
        (*_, before, after), pull = plain.stage(stage - 1, state, applied)
        last, pulls = after, []
        for index in range(stage, len(plain.units)):
            (*_, last), later = plain.stage(index, last)
            pulls.append(later)
        logits, pull_head = plain.head(last)
        gradient = pull_head(numpy_network.loss_of_logits(logits, labels)[1])
        for later in reversed(pulls):
            _, gradient = later(gradient)
        (*_, gradient, _), _ = pull(gradient)
        change = after - before
        ratio = numpy_network.norm(change) / numpy_network.norm(before)
        cosines = numpy_network.cosine(change, gradient)
        squares = sum((cosine - cosines.mean()) ** 2 for cosine in cosines)
        error = (squares / (len(cosines) * (len(cosines) - 1))) ** 0.5
        rows.append((cosines.mean(), ratio.mean(), error))
    return rows


CASES = {f"{name}, scaled": (settings, 0.25) for name, settings in NETWORKS.items()}
CASES |= {f"{name}, plain": (settings, 1.0) for name, settings in list(NETWORKS.items())[::2]}


def numpy_rows(net, batch, scale):
    """Of the unperturbed network and three repetitions: the means, and the block metrics."""
    means, metrics = [], []
    for stage in repeated_stages(net, batch):
        applications = trained_applications(net)[stage - 1]
        for times in range(4):
            route = with_stage(net, stage, applications + [(applications[-1][0], scale)] * times)
            means.append(numpy_means(net, batch, stage, route))
        metrics += numpy_metrics(net, batch, stage, [1.0] + [scale] * 3)
    return means, metrics


@pytest.mark.parametrize("case", sample(CASES, every=3, others=pytest.mark.nightly))
def test_equals_numpy(case):
    settings, scale = case
    net, batch = network(settings)
    frame = probes.repeat_last_block(net, batch, times=3, scale=scale)
    means, metrics = numpy_rows(net, batch, scale)
    assert_equals_numpy(frame, means)
    np.testing.assert_allclose(frame[BLOCK_METRICS], metrics, rtol=1e-3, atol=1e-5)
    assert (frame["scale"] == scale).all()


# Where the state is the anchor too, the gradient leaves out the way through the anchor; run
# operation by operation, it does not.
at_its_anchor = pytest.mark.xfail(strict=True, raises=AssertionError)


def assert_constrained_network_equals_numpy(settings):
    """Repetitions continue with the batch norm of the last step, and with the stage's input."""
    net, batch = network(settings)
    scale = 1.0 if net.lipschitz else 0.25
    frame = probes.repeat_last_block(net, batch, times=3, scale=scale)
    means, metrics = numpy_rows(net, batch, scale)
    assert_equals_numpy(frame, means)
    cosines, ratios, _ = np.transpose(metrics)
    np.testing.assert_allclose(frame["l2_ratio"], ratios, rtol=1e-3, atol=1e-7)
    error = np.abs(frame["cosine_loss"] - cosines)
    assert (error <= 1e-5 + 1e-3 * np.abs(cosines) + 3e-7 / ratios).all()


# Compiling bounds takes long: in every run there are few blocks.
BOUNDED = CONSTRAINED_NETWORKS["bounded"]


@pytest.mark.parametrize(
    "settings",
    [
        *constrained("shared"),
        pytest.param(
            BOUNDED | {"blocks": (3,), "widths": (4,)}, id="one stage", marks=pytest.mark.nightly
        ),
        pytest.param(BOUNDED, id="bounded", marks=pytest.mark.nightly),
        pytest.param(
            CONSTRAINED_NETWORKS["bounded, several labels"],
            id="bounded, several labels",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_constrained_networks_equal_numpy(settings):
    assert_constrained_network_equals_numpy(settings)


@pytest.mark.compiled
@at_its_anchor
@pytest.mark.parametrize("settings", constrained("at its anchor"))
def test_a_block_at_its_anchor_equals_numpy(settings):
    assert_constrained_network_equals_numpy(settings)


def test_solved_by_hand():
    # Each application halves the plane: (3, 4) is at (3, 4) / 2^(k+1) after k repetitions. The
    # loss |h|^2 / 2 falls along -h, the step is -h / 2.
    frame = probes.repeat_last_block(plane_chain(lambda h: -h / 2), at(3, 4), times=3)
    assert frame["repetition"].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(frame["cosine_loss"], [-1] * 4, rtol=1e-6)
    np.testing.assert_allclose(frame["l2_ratio"], [0.5] * 4, rtol=1e-6)
    np.testing.assert_allclose(
        frame["distance"], [5 * (1 / 2 - 1 / 2 ** (k + 1)) for k in range(4)], rtol=1e-6
    )
    assert frame["error"].tolist() == [1] * 4  # label 0, and the second logit is higher


def test_scaled_by_hand():
    # The trained application still adds -h / 2, the extra ones -h / 8. Scaled by -1 they lead
    # away from the origin, and the loss rises.
    frame = probes.repeat_last_block(plane_chain(lambda h: -h / 2), at(3, 4), times=2, scale=0.25)
    np.testing.assert_allclose(frame["l2_ratio"], [1 / 2, 1 / 8, 1 / 8], rtol=1e-6)
    np.testing.assert_allclose(
        frame["distance"], [0, 5 / 2 * 1 / 8, 5 / 2 * (1 - 49 / 64)], rtol=1e-6
    )
    away = probes.repeat_last_block(plane_chain(lambda h: -h / 2), at(3, 4), times=1, scale=-1)
    np.testing.assert_allclose(away["cosine_loss"], [-1, 1], rtol=1e-6)


def test_a_layer_of_an_mlp_and_an_attention_equals_numpy():
    chain, (tokens, labels) = sequences.sequence_chain("encoder"), sequences.batch("encoder")
    frame = probes.repeat_last_block(chain, (tokens, labels), times=2, scale=0.5, blocks=2)
    weights = sequences.random_weights()
    for times, row in enumerate(frame.to_dict("records")):
        route = [(0, 1.0), (1, 1.0), (2, 1.0), *[(1, 0.5), (2, 0.5)] * times]
        found = []
        for sequence, label in zip(sequences.SEQUENCES, labels, strict=True):
            states = sequences.walk(weights, "encoder", weights["embedding"][sequence], route)
            before, change = states[-3], states[-1] - states[-3]
            g = sequences.gradient(
                lambda h, label=label, last=tuple(route[-2:]): sequences.loss(
                    weights, "encoder", sequences.walk(weights, "encoder", h, last)[-1], label
                ),
                before,
            )
            loss = sequences.loss(weights, "encoder", states[-1], label)
            cosine = sequences.cosine(change.ravel(), g.ravel())
            found.append([loss, cosine, np.linalg.norm(change) / np.linalg.norm(before)])
        names = ["cross_entropy", "cosine_loss", "l2_ratio"]
        np.testing.assert_allclose([row[n] for n in names], np.mean(found, axis=0), rtol=1e-3)


def test_blocks_that_are_repeated_together_by_hand():
    # Plus (1, 0), and twice as much: from (0, 1) to (1, 1), (2, 2), (3, 2), (6, 4).
    chain = plane_chain(lambda h: np.array([1, 0], "float32") + 0 * h, lambda h: h)
    for blocks, last in ((1, [4, 4]), (2, [6, 4])):
        route = tfr.routes.repeat_last_block(chain, 1, 1, blocks=blocks)
        followed = tfr.routes.follow(chain, route)
        _, state = followed.walk(at(0, 1)[0])
        assert np.ravel(state).tolist() == last
    assert str(route) == "stage 1 blocks 0 and 1 applied 1 more time: 0 1 0 1"


def test_gradient_goes_through_what_follows():
    # A block of the second stage mirrors the plane at the diagonal. The step (1, 0) of the first
    # stage is a step along (0, 1) there; nothing else differs from a chain of one stage.
    one = plane_chain(lambda h: 0 * h + [1.0, 0.0])
    mirror = plane_chain(lambda h: h[..., ::-1] * [1.0, 0.0] - h)
    stages = (one.stages[0], mirror.stages[0].__class__(2, mirror.stages[0].blocks))
    chain = one.__class__(
        "two stages", one.stem, stages, one.head, one.loss, one.input_shape, one.outputs
    )
    frame = probes.repeat_last_block(chain, at(1, 2), times=1)
    # What is left at the end is (y, 0), so that the gradient is (0, y): the step is across.
    first = frame[frame["stage"] == 1]
    np.testing.assert_allclose(first["cosine_loss"], [0, 0], atol=1e-6)
    alone = probes.repeat_last_block(one, at(1, 2), times=1)
    # (1, 2) -> (2, 2) -> (3, 2): cosines of (1, 0) to (2, 2) and (3, 2).
    np.testing.assert_allclose(alone["cosine_loss"], [1 / np.sqrt(2), 3 / np.sqrt(13)], rtol=1e-6)
    np.testing.assert_allclose(alone["l2_ratio"], [1 / np.sqrt(5), 1 / np.sqrt(8)], rtol=1e-6)
