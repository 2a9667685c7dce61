"""Read-outs: their training against plain NumPy, and what probes read through them."""

import itertools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.numpy_lens import gradient_of, lens_metrics
from reference.random_network import random_batch, random_network
from reference.readout_cases import CASES
from refusals import refused

import tfresidual as tfr
from tfresidual import networks, probes, training
from tfresidual.probes.lens import METRICS

pytestmark = pytest.mark.eager
KINDS = ("affine", "head")
every_case = pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if (name, kind) in FEW else [pytest.mark.nightly])
        for FEW in [{("several labels", "affine"), ("images", "head"), ("encoder", "head")}]
        for name in CASES
        for kind in KINDS
    ],
)


@every_case
def test_a_step_and_all_that_is_read_equal_numpy(name, kind):
    """One step of gradient descent at the rate of 1; then the lens, the read-outs and the file."""
    case = CASES[name]()
    sgd = keras.optimizers.SGD(1.0)
    readouts = training.fit_readouts(case.chain, case.data, kind=kind, optimizer=sgd)
    assert list(readouts.places) == case.places(kind)
    # By the prefix of the columns, those of the controls with `control_`.
    logits = {"": {case.last: case.final}, "control_": {}}
    for place, prefix in itertools.product(readouts.places, logits):
        width = case.states[place].shape[-1]
        zeros = np.zeros((width + 1, width if kind == "affine" else case.final.shape[-1]))

        def loss(both, place=place, control=bool(prefix)):
            return case.loss(kind, case.read(kind, place, both[:-1], both[-1]), control)

        is_untrained = kind == "affine" and prefix
        *kernel, bias = zeros if is_untrained else -gradient_of(loss, zeros)
        logits[prefix][place] = case.read(kind, place, np.array(kernel), bias)
    frame = probes.lens(case.chain, case.data, readouts=readouts)
    after = probes.readout(case.chain, case.data, readouts=readouts)
    same = frame[frame["block"] >= 0].reset_index(drop=True)
    labels = np.asarray(case.data[1])
    for prefix, of_places in logits.items():
        for (_, row), place in zip(frame.iterrows(), case.states, strict=True):
            if place not in of_places:
                assert row[[prefix + metric for metric in METRICS]].isna().all()
                continue
            expected = [
                lens_metrics(of_places[place][one], case.final[one], labels[one])
                for one in zip(*np.nonzero(case.counted), strict=True)
            ]
            highest = np.sort(of_places[place][case.counted])[..., -2:]
            for metric in METRICS:
                if metric == "agreement" and np.diff(highest).min() < 1e-6:
                    continue  # which of two equal classes is a matter of rounding
                wanted = np.mean([one[metric] for one in expected])
                np.testing.assert_allclose(
                    row[prefix + metric], wanted, rtol=2e-3, atol=2e-5, err_msg=prefix + metric
                )
        # With n labels, the network knows n; otherwise an error is a rank over 1.
        for metric in ("cross_entropy", "entropy", "agreement"):
            columns = after[prefix + metric], same[prefix + metric]
            np.testing.assert_allclose(*columns, rtol=1e-4, atol=1e-6)
    untrained = probes.readout(case.chain, case.data)
    has_one = after["distance"].notna()
    np.testing.assert_allclose(
        after["distance"][has_one], untrained["distance"][has_one], rtol=1e-4, atol=1e-4
    )


@every_case
def test_untrained_affine_readouts_are_the_lens_itself(name, kind):
    case = CASES[name]()
    places = case.places(kind)
    widths = [case.states[place].shape[-1] for place in places]
    depths = [len(stage.blocks) for stage in case.chain.stages]
    classes = case.final.shape[-1] if kind == "head" else None
    readouts = networks.Readouts(
        kind, depths, places, widths, classes=classes, per_position=case.per_position
    )
    frame = probes.lens(case.chain, case.data, readouts=readouts)
    if kind == "affine":
        plain = probes.lens(case.chain, case.data)
        pd.testing.assert_frame_equal(frame[plain.columns], plain, check_exact=True)
    else:
        # All classes alike.
        entropy = np.log(classes) if not case.several else classes * np.log(2)
        np.testing.assert_allclose(frame["entropy"].iloc[:-1], entropy, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_they_read_the_same(kind, tmp_path):
    case = CASES["images"]()
    readouts = training.fit_readouts(case.chain, case.data, kind=kind, epochs=2)
    readouts.save(tmp_path / "readouts.keras")
    loaded = keras.models.load_model(tmp_path / "readouts.keras")
    assert loaded.get_config() == readouts.get_config()
    frames = [probes.lens(case.chain, case.data, readouts=one) for one in (readouts, loaded)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    states = [case.states[place].astype("float32") for place in readouts.places]
    for one, other in zip(readouts(states), loaded(states), strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_and_batches_and_the_network_stays_as_it_is():
    """An image of weight 0 is none, and the batches of one step each are those of the data."""
    net = random_network(blocks=(1, 2), widths=(2, 3))
    images, labels = random_batch(net, images=6)
    before = [variable.numpy() for variable in net.variables]
    weights = np.array([1, 2, 1, 0, 0, 0.0])
    given = {
        "weighted": (images, labels, weights),
        "twice": (images[[0, 1, 1, 2]], labels[[0, 1, 1, 2]]),
        "in batches": tf.data.Dataset.from_tensor_slices((images, labels)).batch(4),
    }
    found = {
        name: training.fit_readouts(net, data, kind="head", optimizer="sgd")
        for name, data in given.items()
    }
    test = images, labels
    frames = {name: probes.lens(net, test, readouts=one) for name, one in found.items()}
    assert not frames["in batches"].equals(frames["twice"])
    for one, other in zip(before, net.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    # Shift and size are those of the images, whatever their weights.
    kernels = [found[name].readouts[-1].bias for name in ("weighted", "twice")]
    np.testing.assert_allclose(*kernels, rtol=1e-4, atol=1e-6)
    # Without another image, a control learns nothing.
    alone = training.fit_readouts(net, (images[:1], labels[:1]), kind="head")
    found = probes.lens(net, test, readouts=alone)["control_entropy"].iloc[:-1]
    np.testing.assert_allclose(found, np.log(net.classes), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_states_without_a_readout_are_not_read(kind):
    net = random_network(blocks=(1, 3), widths=(2, 3))
    batch = random_batch(net, images=4)
    readouts = training.fit_readouts(net, batch, kind=kind, blocks=[(2, 0)])
    for frame in (
        probes.lens(net, batch, readouts=readouts),
        probes.readout(net, batch, readouts=readouts),
    ):
        read = frame.loc[frame["entropy"].notna(), ["stage", "block"]].to_numpy().tolist()
        assert read == [[2, 0], [2, 2]]


def test_labels_are_not_needed_for_affine_ones():
    net = random_network(blocks=(1, 2), widths=(2, 3))
    images, labels = random_batch(net)
    one = training.fit_readouts(net, (images,))
    other = training.fit_readouts(net, (images, labels))
    for left, right in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(left, right)


NET = random_network(blocks=(1, 2), widths=(2, 3))
BATCH = random_batch(NET)
REFUSED = {
    "kind": ("kind", lambda: training.fit_readouts(NET, BATCH, kind="linear")),
    "epochs": ("epochs", lambda: training.fit_readouts(NET, BATCH, epochs=0)),
    "once": ("data", lambda: training.fit_readouts(NET, iter([BATCH]), epochs=2)),
    "no labels": ("data", lambda: training.fit_readouts(NET, (BATCH[0],), kind="head")),
    "wrong labels": (
        "data",
        lambda: training.fit_readouts(NET, (BATCH[0], [0, 1, 9]), kind="head"),
    ),
    "no images": ("data", lambda: training.fit_readouts(NET, (BATCH[0][:0], BATCH[1][:0]))),
    "regression": (
        "chain",
        lambda: training.fit_readouts(tfr.chain(NET, outputs="values"), BATCH),
    ),
    "no state of the last shape": (
        "blocks",
        lambda: training.fit_readouts(random_network(blocks=(1, 1), widths=(2, 3)), BATCH),
    ),
    "the last": ("blocks", lambda: training.fit_readouts(NET, BATCH, kind="head", blocks=[(2, 1)])),
    "one block": ("blocks", lambda: training.fit_readouts(NET, BATCH, kind="head", blocks=(2, 0))),
    "no block": ("blocks", lambda: training.fit_readouts(NET, BATCH, kind="head", blocks=[])),
    "other depths": ("readouts", lambda: _lens_of(random_network(widths=(2, 3)))),
    "other classes": (
        "readouts",
        lambda: _lens_of(random_network(3, (8, 8, 3), 3, (1, 2), (2, 3))),
    ),
    "no read-outs": ("readouts", lambda: probes.readout(NET, BATCH, readouts=NET)),
    "two statistics": ("normalize", lambda: _lens_of(NET, normalize="final")),
}


def _lens_of(net, **options):
    heads = training.fit_readouts(NET, BATCH, kind="head")
    labels = np.zeros(3, int)
    return probes.lens(net, (BATCH[0], labels), readouts=heads, **options)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    argument, call = REFUSED[name]
    with refused(argument):
        call()
