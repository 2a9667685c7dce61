"""Block metrics against the NumPy version, and cases solved by hand.

Not covered here: networks on a GPU.
"""

import numpy as np
import pytest
import tensorflow as tf
from reference import numpy_network
from reference.plane import TOLERANCE, at, plane_chain
from reference.random_network import (
    CASES,
    random_batch,
    random_network,
    sample,
)
from reference.route_probes import CONSTRAINED_NETWORKS, constrained, network

from tfresidual import probes
from tfresidual.routing.block_values import BLOCK_METRICS as METRICS

pytestmark = pytest.mark.eager


def numpy_metrics(net, images, labels):
    """Every metric by name, `(images, blocks)`, by the NumPy version."""
    run = numpy_network.analyse(
        net.get_config(), numpy_network.weights_of(net), images, np.asarray(labels)
    )
    return {
        name: np.stack(
            [values for stage in getattr(numpy_network, name)(run) for values in stage], axis=1
        )
        for name in METRICS
    }


@pytest.mark.parametrize("case", sample(CASES, 5, pytest.mark.nightly))
def test_equals_numpy(case):
    net = random_network(seed=3, **case)
    images, labels = random_batch(net, images=4)
    frame = probes.block_metrics(net, (images, labels), per_image=True)
    for name, expected in numpy_metrics(net, images, labels).items():
        measured = frame[name].to_numpy().reshape(-1, len(images)).T
        np.testing.assert_allclose(measured, expected, **TOLERANCE, err_msg=name)


def assert_equals_numpy_but_for_rounding(net, batch):
    frame = probes.block_metrics(net, batch, per_image=True)
    expected = numpy_metrics(net, *batch)
    # Where a block hardly changes the state, rounding turns the change, and resizes it.
    rounding = 3e-7 / np.maximum(expected["l2_ratio"], 1e-6)
    for name, values in expected.items():
        measured = frame[name].to_numpy().reshape(-1, len(batch[0])).T
        np.testing.assert_array_equal(np.isnan(measured), np.isnan(values), err_msg=name)
        allowed = 1e-4 * np.abs(values) + 2e-6
        if name != "gradient_norm":
            allowed += rounding * (1 if "cosine" in name else np.abs(values))
        assert not (np.abs(measured - values) > allowed).any(), name


@pytest.mark.parametrize(
    "settings",
    [
        *constrained("bounded", "at its anchor", "shared"),
        pytest.param(
            CONSTRAINED_NETWORKS["bounded, several labels"],
            id="constrained bounded, several labels",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_constrained_networks_equal_numpy(settings):
    assert_equals_numpy_but_for_rounding(*network(settings))


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_equals_numpy_with_other_losses(activation):
    net = random_network(classifier_activation=activation, pooling=2)
    images, labels = random_batch(net)
    frame = probes.block_metrics(net, (images, labels))
    for name, expected in numpy_metrics(net, images, labels).items():
        np.testing.assert_allclose(frame[name], expected.mean(axis=0), **TOLERANCE, err_msg=name)


@pytest.mark.compiled
def test_solved_by_hand():
    # h = (3, 4); the block halves it: F = (-1.5, -2), next (1.5, 2). The loss |next|^2 / 2 has the
    # gradient next / 2 = (0.75, 1) at h; the loss of the head at h itself has the gradient (3, 4).
    row = probes.block_metrics(plane_chain(lambda h: -h / 2), at(3, 4)).iloc[0]
    assert row["cosine_loss"] == pytest.approx(-1)
    assert row["readout_cosine_loss"] == pytest.approx(-1)
    assert row["l2_ratio"] == row["scaled_perturbation"] == pytest.approx(0.5)
    assert row["perturbation"] == pytest.approx(2.5)
    assert row["gradient_norm"] == pytest.approx(1.25)


def test_zero_change_and_zero_gradient_give_zero_cosine():
    still = probes.block_metrics(plane_chain(lambda h: h * 0), at(3, 4)).iloc[0]
    assert (still["cosine_loss"], still["l2_ratio"]) == (0, 0)
    flat = probes.block_metrics(plane_chain(lambda h: -h), at(3, 4)).iloc[0]
    assert (flat["cosine_loss"], flat["gradient_norm"]) == (0, 0)
    origin = probes.block_metrics(plane_chain(lambda h: h + 1), at(0, 0)).iloc[0]
    assert origin["l2_ratio"] == 0
    assert np.isfinite(origin[list(METRICS)].to_numpy(float)).all()


def error_of_mean(values):
    """The standard error of a mean, with the sum of squares spelled out."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return (squares / (len(values) * (len(values) - 1))) ** 0.5


@pytest.mark.parametrize("case", sample(CASES[:2], 2, pytest.mark.nightly))
def test_standard_errors_and_shares_equal_numpy(case):
    net = random_network(seed=3, **case)
    images, labels = random_batch(net, images=7)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(3)
    frame = probes.block_metrics(net, {"a": batches, "b": (images[:1], labels[:1])})
    more = ["cosine_loss_se", "readout_cosine_loss_se", "cosine_loss_below_zero"]
    assert frame.columns.tolist()[3:] == [*METRICS, *more]
    several, one = (frame[frame["split"] == split] for split in "ab")
    metrics = numpy_metrics(net, images, labels)
    for name in ("cosine_loss", "readout_cosine_loss"):
        expected = [error_of_mean(column.tolist()) for column in metrics[name].T]
        np.testing.assert_allclose(several[f"{name}_se"], expected, rtol=1e-3, atol=1e-6)
        # One image does not tell how much images differ.
        assert one[f"{name}_se"].isna().all()
    assert several["cosine_loss_se"].notna().any()
    below = np.where(np.isnan(metrics["cosine_loss"]), np.nan, metrics["cosine_loss"] < 0)
    np.testing.assert_allclose(several["cosine_loss_below_zero"], below.mean(axis=0))
    own = probes.block_metrics(net, batches, per_image=True)
    assert own.columns.tolist() == ["stage", "block", "image", *METRICS]


def kinds_of_passes(chain):
    """The names of the passes that a chain has compiled."""
    return {name for (name, *_) in chain.compiled if name.startswith(("block", "perturb"))}


def test_plain_sums_are_used_until_an_image_leaves_their_range():
    """Afterwards, the numbers are those of scaled sums, which hold for all sizes."""
    chain = plane_chain(lambda h: -h / 2)
    usual = probes.block_metrics(chain, at(3, 4), per_image=True)
    assert kinds_of_passes(chain) == {"block metrics, plain"}
    points = np.array([[3, 4], [3e-20, 4e-20], [3e15, 4e15], [3, 4]], "float32")
    batches = [at(*point) for point in points]
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=tuple(tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in batches[0]),
    )
    frame = probes.block_metrics(chain, data, per_image=True)
    assert kinds_of_passes(chain) == {"block metrics, plain", "block metrics"}
    np.testing.assert_allclose(frame["perturbation"], np.hypot(*points.T) / 2, rtol=1e-6)
    np.testing.assert_allclose(frame["cosine_loss"], -1, rtol=1e-6)
    np.testing.assert_allclose(frame.iloc[[0]], usual, rtol=1e-6)
    np.testing.assert_allclose(frame.iloc[[3]].drop(columns="image"), usual.drop(columns="image"))
    distances = probes.perturbation(chain, data, per_image=True)
    assert kinds_of_passes(chain) >= {"perturbation, plain", "perturbation"}
    np.testing.assert_allclose(distances["perturbation"], frame["perturbation"], rtol=1e-6)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "probe",
    [probes.block_metrics, pytest.param(probes.signal_propagation, marks=pytest.mark.nightly)],
)
def test_gradients_do_not_vanish_in_float16(probe):
    """Those of images that are predicted with confidence are below the numbers of float16."""
    settings = {"input_shape": (16, 16, 3), "blocks": 2, "widths": (4, 8)}
    half, full = (random_network(dtype=one, **settings) for one in ("mixed_float16", "float32"))
    half.set_weights(full.get_weights())
    images, _ = random_batch(full, images=6)
    outputs = full.predict(images, verbose=0)
    for net in (half, full):
        # A margin of about 20 between the logits of the first class and of the others.
        net.layers[-1].bias.assign([20.0, *np.zeros(outputs.shape[1] - 1)])
        net.compile("sgd", "sparse_categorical_crossentropy")
    data = images, np.zeros(6)
    found, expected = (probe(net, data) for net in (half, full))
    assert (expected.filter(like="gradient_norm").min() < 1e-6).all()
    for name in expected.filter(regex="gradient|cosine_loss$|shortcut"):
        # The mean of cosines of both signs may be far smaller than what rounding makes of each.
        scale = 0.05 if "cosine" in name else np.nanmax(np.abs(expected[name]))
        np.testing.assert_allclose(found[name], expected[name], rtol=0.02, atol=0.02 * scale)
