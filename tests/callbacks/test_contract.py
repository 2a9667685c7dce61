"""What all callbacks that run probes do, in real fits.

Logs equal the frames of the probe; every key exists from the first epoch on; splits begin the keys;
callbacks are copied and reused; the network is left as it was; bad arguments are refused.
"""

import math

import keras
import numpy as np
import pandas as pd
import pytest
from reference.random_network import random_batch, random_network
from reference.unchanged import assert_same
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks, probes, tuning

pytestmark = pytest.mark.eager

INDICES = ("convergence_index", "recurrence_index", "divergence_index")
# The callbacks that run probes, with arguments other than the defaults, if they have some.
KINDS = {
    callbacks.Attribution: {"target": ("label", 1)},
    callbacks.BlockMetrics: {},
    callbacks.Borderline: {"blocks": 2, "probability": 0.3},
    callbacks.ConvergenceIndices: {"times": 2, "chance": 0.9, "reading": "trapezoid"},
    callbacks.DropBlocks: {"fill": "resample", "seed": 3},
    callbacks.Lens: {},
    callbacks.Perturbation: {"epsilon": 0.05},
    callbacks.Readout: {},
    callbacks.SignalPropagation: {},
}
# The columns that are published as they are, and what comes before their names.
COLUMNS = {
    callbacks.BlockMetrics: ("", ("cosine_loss", "readout_cosine_loss", "l2_ratio",
                                  "gradient_norm")),
    callbacks.DropBlocks: ("drop_", ("error", "cross_entropy", "agreement")),
    callbacks.Lens: ("lens_", ("cross_entropy", "rank", "probability", "kl")),
    callbacks.Lipschitz: ("lipschitz_", ("estimate", "residual", "certified", "divisor")),
    callbacks.Readout: ("readout_", ("error", "cross_entropy", "entropy")),
    callbacks.SignalPropagation: ("", ("state_norm", "state_l1", "state_gradient_norm",
                                       "gradient_ratio", "shortcut_share", "shortcut_norm",
                                       "shortcut_product", "sum_deviation")),
}  # fmt: skip


def network(rate=1e-3, **kwargs):
    net = random_network(**{"blocks": (2, 3), "widths": (4, 8)} | kwargs)
    net.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    return net


def learnt(net, images=12, seed=1):
    """Images with the labels that the network gives them now, but for a quarter."""
    pictures, _ = random_batch(net, images=images, seed=seed)
    labels = np.argmax(net(pictures), axis=-1)
    labels[: images // 4] = (labels[: images // 4] + 1) % 5
    return pictures, labels


def fit(net, chosen, data=None, epochs=2, **kwargs):
    """Trains a network, in one step an epoch; returns the logs of all epochs."""
    images, labels = random_batch(net, images=12) if data is None else data
    kwargs = {"batch_size": len(images), "shuffle": False, "verbose": 0} | kwargs
    return net.fit(images, labels, epochs=epochs, callbacks=chosen, **kwargs).history


def place_of(row):
    split = f"{row['split']}/" if "split" in row else ""
    if row["stage"] == "mean":
        return split
    block = f"block{row['block']}/" if "block" in row else ""
    return f"{split}stage{row['stage']}/{block}"


def expected_of(kind, chain, data, settings):
    """The numbers that a callback publishes, by key, from the frames of its probe."""
    data = () if kind is callbacks.Lipschitz else (data,)
    if kind is callbacks.Perturbation:
        blocks = probes.perturbation(chain, *data)
        found = {
            place_of(row) + name: row[name]
            for row in blocks.dropna().to_dict("records")
            for name in ("perturbation", "scaled_perturbation")
        }
        stages = probes.computational_distance(chain, *data)
        for row in stages[stages["stage"] != "all"].to_dict("records"):
            place, distance = place_of(row), row["scaled_distance"]
            for name in ("distance", "scaled_distance"):
                for prefix in ("", "mean_"):
                    column = prefix + name.replace("distance", "perturbation") if prefix else name
                    found[place + column] = row[column]
            depth = tuning.depth_for(distance, settings["epsilon"]) if row["blocks"] else math.nan
            found[place + "depth"] = depth
        return found
    if kind is callbacks.ConvergenceIndices:
        frame = probes.convergence_indices(chain, *data, **settings)
        return {
            f"{place_of(row)}{'' if row['basis'] == 'labels' else 'agreement_'}{name}": row[name]
            for row in frame.to_dict("records")
            for name in INDICES
        }
    if kind is callbacks.Borderline:
        frame = probes.borderline(chain, *data, times=0, **settings)
        return {
            f"{place_of(row)}{row['group']}_{name}": row[name]
            for row in frame.to_dict("records")
            for name in frame.columns[frame.columns.get_loc("images") :]
        }
    if kind is callbacks.Attribution:
        frame = probes.attribution(chain, *data, **settings).query("part == 'block'")
        # The blocks of the end of the network that have the identity as their shortcut.
        is_own = frame["stage"].eq(2) & frame["block"].gt(0)
        return {
            f"{place_of(row)}attribution": row["attribution"]
            for row in frame[is_own].to_dict("records")
        }
    prefix, names = COLUMNS[kind]
    frame = getattr(probes, kind.runs)(chain, *data, **settings)
    if kind is callbacks.Lens:
        frame = frame.query("stage == 2 and block >= 0")
    # Read-outs after blocks without an exit, or drops of those that change the shape, have no rows.
    return {
        f"{place_of(row)}{prefix}{name}": row[name]
        for row in frame.to_dict("records")
        for name in names
        if not np.isnan(row[name])
    }


# One training of each of these networks with all callbacks.


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("splits", marks=pytest.mark.nightly),
        "one",
        pytest.param("lipschitz", marks=[pytest.mark.nightly, pytest.mark.compiled]),
    ],
)
def trained(request, tmp_path_factory):
    """The chain of a trained network, data, callbacks, logs, and the file of `CSVLogger`.

    With splits, every second epoch is measured. In one network, the only block of the last stage
    changes the shape.
    """
    keras.utils.set_random_seed(0)
    blocks = {"splits": (2, 3), "one": (2, 1), "lipschitz": (1, 2)}[request.param]
    is_bounded, every = request.param == "lipschitz", 1 if request.param == "one" else 2
    net = network(blocks=blocks, lipschitz=0.9 if is_bounded else None)
    # Compiling a step with bounds takes longer than a few of them.
    net.run_eagerly = is_bounded
    data = learnt(net)
    if every == 2:
        data = {"train": data, "held out": learnt(net, images=7, seed=5)}
    kinds = {callbacks.SignalPropagation: {}} if is_bounded else KINDS
    chosen = [kind(data, every=every, **settings) for kind, settings in kinds.items()]
    chosen += [callbacks.Lipschitz(every=2)] * is_bounded
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    history = fit(net, [*chosen, keras.callbacks.CSVLogger(path)])
    return tfr.chain(net), data, chosen, history, path


def test_logs_equal_the_frames_of_the_probes(trained):
    chain, data, chosen, history, path = trained
    table, keys = pd.read_csv(path), []
    for callback in chosen:
        kind = type(callback)
        own = callback.keys(chain)
        keys += own
        expected = expected_of(kind, chain, data, KINDS.get(kind, {}))
        assert sorted(own) == sorted(expected)
        for key, value in expected.items():
            assert isinstance(history[key][-1], (float, int))
            assert history[key][-1] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True)
            np.testing.assert_allclose(table[key], history[key], rtol=1e-12)
        if callback.every == 2:
            assert table.loc[0, own].isna().all()
        elif kind is not callbacks.Lens:
            # The network is trained between the epochs.
            assert any(history[key][0] != history[key][1] for key in own) or not own
            assert table.loc[0, own].notna().any() or not own
        if isinstance(data, dict) and kind is not callbacks.Lipschitz:
            without = kind(data["train"], **KINDS[kind]).keys(chain)
            assert own == [f"{split}/{key}" for split in data for key in without]
            assert any(history[f"train/{key}"] != history[f"held out/{key}"] for key in without)
        assert set(callback.frames) and all(len(frame) for frame in callback.frames.values())
    assert keys == [key for key in history if key != "loss"] and len(set(keys)) == len(keys)


def test_logs_there_and_back(trained):
    chain, data, chosen, history, path = trained
    if callbacks.Readout not in map(type, chosen):
        assert probes.from_logs(history)["lipschitz_divisor"].dropna().ge(1).all()
        return
    frame = probes.from_logs(path)
    places = ["epoch", *(["split"] if isinstance(data, dict) else []), "stage", "block"]
    assert frame.columns.tolist()[: len(places)] == places
    # The file has the keys in the order of the alphabet.
    pd.testing.assert_frame_equal(
        frame.set_index(places).sort_index(),
        probes.from_logs(history).set_index(places).sort_index(),
        check_like=True,
    )
    epochs = [1] if isinstance(data, dict) else [0, 1]
    assert frame["epoch"].unique().tolist() == epochs
    # After the last epoch the network is what it is now.
    last = frame[frame["epoch"] == 1].set_index(places[1:])
    reads = probes.readout(chain, data).set_index(places[1:])
    measured = last["readout_entropy"].dropna().sort_index()
    np.testing.assert_allclose(measured, reads["entropy"].sort_index(), rtol=1e-4)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.nightly),
        pytest.param({"lipschitz": 0.9}, marks=pytest.mark.nightly),
    ],
)
def test_network_is_left_as_it_was(settings):
    histories, weights = [], []
    for with_probes in (False, True):
        keras.utils.set_random_seed(4)
        net = network(shortcut="dropout", rate=0.01, blocks=2, widths=(4,), **settings)
        net.run_eagerly = bool(settings)
        data = random_batch(net, images=10, seed=3)
        chosen = [callbacks.Lipschitz(), callbacks.SignalPropagation(data)]
        if not settings:
            chosen = [kind(data) for kind in KINDS]
        histories.append(fit(net, chosen * with_probes)["loss"])
        # Moving statistics are among the weights. Inference keeps the norms it has sought for the
        # weights as they were; no step of training reads them.
        kept = ("/vector_of_", "/known_weights")
        weights.append([w.numpy() for w in net.weights if not any(k in w.path for k in kept)])
    assert histories[0] == histories[1]
    assert_same(*weights)


def test_seen_by_early_stopping():
    net = network(blocks=1, widths=(4,))
    stop = keras.callbacks.EarlyStopping("stage1/block0/l2_ratio", patience=1, mode="max",
                                         min_delta=1e6)  # fmt: skip
    history = fit(net, [callbacks.BlockMetrics(learnt(net)), stop], epochs=6)
    # No epoch improves by a million, so that it stops after the second.
    assert len(history["loss"]) == 2


# Numbers of their own


@pytest.mark.parametrize("classes", [pytest.param(3, marks=pytest.mark.nightly), 5])
def test_indices_of_constant_predictions_are_nan(classes):
    """Of a network that always names the first class, and is not trained."""
    net = network(rate=0.0, classes=classes, blocks=(1, 2))
    classifier = net.layers[-1]
    classifier.set_weights([0 * weights for weights in classifier.get_weights()])
    images, _ = random_batch(net, images=15)
    data = images, np.arange(15) % classes
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2)], data, epochs=1)
    assert len(history) == 1 + 2 * 9
    assert np.isnan([values for key, values in history.items() if key != "loss"]).all()


def test_borderline_groups_of_the_next_block():
    net = network()
    data = learnt(net)
    settings = {"blocks": 2, "probability": 0.3, "groups": "next block"}
    history = fit(net, [callbacks.Borderline(data, **settings)], data, epochs=1)
    expected = expected_of(callbacks.Borderline, tfr.chain(net), data, settings)
    assert len(expected) == 3 * (4 + 5) and {key[:13] for key in expected} == {"stage2/block2"}
    assert {key for key in history if key != "loss"} == set(expected)
    for key, value in expected.items():
        assert history[key][0] == pytest.approx(value, rel=1e-5, nan_ok=True)
    assert 0 < history["stage2/block2/all_images"][0] <= 12
    net = network(blocks=(2, 1))
    with refused("groups"):
        fit(net, [callbacks.Borderline(data, groups="next block")], data, epochs=1)


def test_what_is_chosen_of_a_head_with_layer_normalization():
    inputs = state = keras.Input((4,))
    for _ in range(2):
        state = keras.layers.add([state, keras.layers.Dense(4, "tanh")(state)])
    state = keras.layers.LayerNormalization()(state)
    net = keras.Model(inputs, keras.layers.Dense(3)(state))
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = np.random.default_rng(0).normal(size=(6, 4)).astype("float32"), np.arange(6) % 3
    lens, target = {"normalize": "final"}, {"freeze_normalization": True}
    chosen = [callbacks.Lens(data, **lens), callbacks.Attribution(data, **target)]
    logs = fit(net, chosen, data, epochs=1)
    chain = tfr.chain(net)
    found = [probes.lens(chain, data, **lens)["kl"], probes.attribution(chain, data, **target)]
    expected = found[0].iloc[1], found[1]["attribution"].iloc[1]
    for name, value in zip(("lens_kl", "attribution"), expected, strict=True):
        assert logs[f"stage1/block0/{name}"][-1] == pytest.approx(value, rel=1e-4)
