"""The search with real networks, tiny ones, that are really trained.

What is proposed, and what stands on the disk, is tested with laws in `test_depth_oracle.py`; chief,
workers and kills in `test_workers.py` and `test_killed_search.py`. Run as a program, this file
searches on two devices.

Not covered: GPUs; how good a search is, see `experiments/`.
"""

import gc
import json
import math
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys

import keras
import keras_tuner
import numpy as np
import pandas as pd
import processes
import pytest
import tensorflow as tf
from reference.unsafe_files import IN_WEIGHTS, change_weights, with_secret

import tfresidual
from tfresidual import networks, probes, tuning
from tfresidual.tuning import depth_search

pytestmark = [
    pytest.mark.eager,
    pytest.mark.system,
    pytest.mark.usefixtures("no_old_garbage"),
]

STAGE_METRICS = ("distance", "scaled_distance", "mean_perturbation", "mean_scaled_perturbation")


def images_of(seed, count):
    """Noise, and labels that it does not tell."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 8, 8, 1)).astype("float32"), rng.integers(0, 3, count)


TRAIN, HELD_OUT, PROBED = images_of(0, 48), images_of(1, 32), images_of(2, 16)


def network(blocks, widths=(2,), metrics=("accuracy",), rate=0.02, **compiled):
    """A small network. Eagerly it trains slower, but begins at once."""
    net = networks.ResidualNetwork((8, 8, 1), 3, blocks=blocks, widths=widths)
    net.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        metrics=list(metrics),
        **{"loss": "sparse_categorical_crossentropy", "run_eagerly": True, **compiled},
    )
    return net


def build(hp):
    return network(tuning.blocks(hp))


def build_compiled(hp):
    return network(tuning.blocks(hp), (2, 4), run_eagerly=False)


class Untrainable(keras_tuner.HyperModel):
    """For searches that must not train any more."""

    def build(self, hp):
        return build_compiled(hp)

    def fit(self, hp, model, *args, **kwargs):
        raise keras_tuner.errors.FatalRuntimeError("trained")


def tuner_in(folder, hypermodel=build, **kwargs):
    defaults = {"epsilon": 1e-6, "start": (1,), "max_blocks": 3, "max_trials": 1}
    return tuning.DepthSearch(
        hypermodel, **{**defaults, "directory": folder, "project_name": "search", **kwargs}
    )


def fit(tuner, **kwargs):
    defaults = {"validation_data": HELD_OUT, "batch_size": 16, "verbose": 0}
    tuner.search(*TRAIN, **{**defaults, **kwargs})
    return tuner


def searched(folder, hypermodel=build, **kwargs):
    """A finished search, in `folder/search`; by default of one trial."""
    return fit(tuner_in(folder, hypermodel, **kwargs))


def single(number):
    """As single precision prints it: so the trace has it."""
    return float(str(np.float32(number)))


def same(frame, other):
    """Asserts that two traces are equal, but for times."""
    pd.testing.assert_frame_equal(
        frame.drop(columns="seconds"), other.drop(columns="seconds"), check_exact=True
    )


def same_weights(network, other):
    assert len(network.weights) == len(other.weights) > 0
    for weight, other_weight in zip(network.weights, other.weights, strict=True):
        np.testing.assert_array_equal(weight, other_weight)


def seed_of(depths, execution=0):
    """The seed of a training in a search of seed 0."""
    return int(np.random.SeedSequence([0, execution, *depths]).generate_state(1)[0] >> 1)


def trained_by_hand(tuner, depths, execution=0):
    """The network of a trial without the tuner."""
    keras.utils.set_random_seed(seed_of(depths, execution))
    net = network(depths)
    net.fit(*TRAIN, batch_size=16, validation_data=HELD_OUT, verbose=0)
    return net


def measured(net, data=HELD_OUT):
    """What the probe says of the stages, a list of dicts."""
    frame = probes.computational_distance(tfresidual.chain(net), data)
    return frame[frame["stage"] != "all"].to_dict("records")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search of two stages that has found, compiled as users compile."""
    return searched(
        tmp_path_factory.mktemp("finished"),
        build_compiled,
        epsilon=1.0,
        start=(1, 2),
        max_blocks=12,
        max_trials=None,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One stage, whose first trial is the one of most tests here."""
    return searched(tmp_path_factory.mktemp("small"), epsilon=0.6, max_blocks=12, max_trials=None)


COLUMNS = [
    *("trial", "status", "stage", "blocks", "measured_blocks", *STAGE_METRICS),
    *("scaled_distance_deviation", "depth_asked_for", "meets_rule", "found", "error", "seconds"),
    *("val_accuracy", "val_loss", "chance_error", "error_se", "moved"),
    *(f"mean_scaled_perturbation_{name}" for name in ("as_built", "change_error")),
]
# What a search ends with that has found a depth: the labels are noise.
FOUND = "no better than chance"


class TestFinished:
    def test_a_row_per_trial_and_stage(self, finished):
        trace = finished.trace()
        assert sorted(trace.columns) == sorted(COLUMNS)
        count = len(finished.oracle.trials)
        assert count > 1
        assert trace["trial"].tolist() == [place for place in range(count) for _ in range(2)]
        assert trace["stage"].tolist() == [1, 2] * count
        assert set(trace["status"]) == {"completed"}
        assert trace["scaled_distance_deviation"].isna().all()
        assert (trace["seconds"] > 0).all()
        seconds = trace["seconds"].to_numpy().reshape(count, 2)
        assert (seconds[:, 0] == seconds[:, 1]).all()

    def test_rows_say_what_the_networks_measure(self, finished):
        trace = finished.trace()
        for number, trial in enumerate(finished.oracle.in_order()):
            net = finished.load_model(trial)
            rows = trace[trace["trial"] == number].to_dict("records")
            for row, of_stage in zip(rows, measured(net), strict=True):
                assert row["blocks"] == net.blocks[row["stage"] - 1]
                # The first block of the second stage changes the shape.
                assert row["measured_blocks"] == of_stage["blocks"]
                assert row["blocks"] == row["measured_blocks"] + (row["stage"] == 2)
                for name in STAGE_METRICS:
                    assert row[name] == single(of_stage[name])
                assert row["depth_asked_for"] == tuning.depth_for(row["scaled_distance"], 1.0)
                assert row["meets_rule"] == (row["depth_asked_for"] <= row["measured_blocks"])
            values = net.evaluate(*HELD_OUT, batch_size=16, verbose=0, return_dict=True)
            assert {row["val_loss"] for row in rows} == {single(values["loss"])}
            assert {row["val_accuracy"] for row in rows} == {single(values["accuracy"])}
            assert {row["error"] for row in rows} == {single(1 - values["accuracy"])}

    def test_outcome(self, finished):
        outcome, trace = finished.outcome(), finished.trace()
        assert finished.outcomes() == [outcome]
        assert outcome.status == FOUND
        assert outcome.hyperparameters == {}
        assert not trace["found"].any()
        found = trace[trace["trial"] == outcome.trial]
        assert tuple(found["blocks"]) == outcome.blocks
        assert found["meets_rule"].all()
        met = trace.groupby("trial")["meets_rule"].all()
        depths = trace.groupby("trial")["blocks"].sum()
        assert sum(outcome.blocks) == depths[met].min()
        assert outcome.error == found["error"].iloc[0]
        error = f"error {outcome.error:.1%}, chance {outcome.chance_error:.1%}"
        depths = f"{outcome.blocks[0]} {outcome.blocks[1]} blocks"
        assert outcome.message.startswith(f"{depths} ({error}): every stage")

    def test_the_best_meet_the_rule(self, finished):
        trace = finished.trace()
        met = trace.groupby("trial")["meets_rule"].all()
        assert 0 < met.sum() < len(met)
        best = finished.get_best_hyperparameters(9)
        assert len(best) == met.sum()
        assert tuning.blocks(best[0]) == finished.outcome().blocks
        models = finished.get_best_models(9)
        assert len(models) == met.sum()
        trial = finished.oracle.in_order()[finished.outcome().trial]
        same_weights(models[0], finished.load_model(trial))

    def test_the_best_can_be_trained_on(self, finished):
        (net,) = finished.get_best_models()
        assert int(net.optimizer.iterations) == 3
        assert any(np.any(momentum) for momentum in net.optimizer.momentums)
        assert net.compiled

    def test_summary(self, finished, capsys):
        finished.results_summary()
        text = capsys.readouterr().out
        assert text.startswith(finished.outcome().message)
        trace = finished.trace()
        assert all(name in text.splitlines()[1] for name in trace.columns)
        assert f"{trace['scaled_distance'][0]:.4g}" in text
        assert f"Results in {finished.project_dir}" in text
        best = finished.oracle.get_best_trials(9)
        assert text.count("Score:") == len(best)
        assert f"Score: {best[0].score}" in text

    def test_what_lies_in_the_folder(self, finished):
        folder = pathlib.Path(finished.project_dir)
        expected = [trial.trial_id for trial in finished.oracle.in_order()]
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            ["network.json", "oracle.json", *(f"trial_{name}" for name in expected)]
        )
        for name in expected:
            files = {path.name for path in (folder / f"trial_{name}").iterdir()}
            assert files == {"trial.json", "checkpoint.weights.h5"}

    def test_a_trial_does_not_depend_on_those_before(self, finished, tmp_path):
        """Its seed follows from its depths."""
        outcome = finished.outcome()
        assert outcome.trial > 0
        other = searched(tmp_path, build_compiled, epsilon=1.0, start=outcome.blocks)
        trace = finished.trace()
        expected = trace[trace["trial"] == outcome.trial].reset_index(drop=True)
        same(expected.assign(trial=0, found=False), other.trace().assign(found=False))
        (trial,) = other.oracle.in_order()
        same_weights(other.load_model(trial), finished.get_best_models()[0])

    def test_again_runs_nothing(self, finished):
        again = fit(
            tuner_in(
                finished.directory,
                Untrainable(),
                epsilon=1.0,
                start=(1, 2),
                max_blocks=12,
                max_trials=None,
            )
        )
        assert again.outcome() == finished.outcome()
        pd.testing.assert_frame_equal(again.trace(), finished.trace(), check_exact=True)
        same_weights(again.get_best_models()[0], finished.get_best_models()[0])
        assert again.oracle.start_order == finished.oracle.start_order

    def test_overwritten(self, finished, tmp_path):
        shutil.copytree(finished.project_dir, tmp_path / "search")
        anew = tuner_in(tmp_path, epsilon=1.0, overwrite=True)
        assert not list(tmp_path.glob("search/trial_*"))
        assert anew.oracle.in_order() == []
        fit(anew)
        assert anew.trace()["blocks"].tolist() == [1]
        assert len(list(tmp_path.glob("search/trial_*"))) == 1


def test_a_full_disk(tmp_path, capfd):
    """The error is told once, nothing half-written stays, and the search resumes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match=r"checkpoint\.weights\.h5' could not be written: "):
            searched(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "Traceback" not in "".join(capfd.readouterr())
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"network.json", "oracle.json", "trial.json"}
    assert not [path for path in tmp_path.rglob(".*")]
    searched(tmp_path)
    assert len([*tmp_path.rglob("checkpoint.weights.h5")]) == 1


class TestDamaged:
    """What stands in the files of the oracle is tested with `test_depth_oracle.py`."""

    def test_trials_without_their_search(self, small, tmp_path):
        shutil.copytree(small.project_dir, tmp_path / "search")
        (tmp_path / "search" / "oracle.json").unlink()
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(FileNotFoundError, match=r"but no .*oracle\.json\. .*Received: folder="):
            tuner_in(tmp_path)
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("content", [None, b"", b"\x89HDF\r\n\x1a\n\0\0", b"text"], ids=str)
    def test_weights(self, small, tmp_path, content):
        shutil.copytree(small.project_dir, tmp_path / "search")
        options = {"epsilon": 0.6, "max_blocks": 12, "max_trials": None}
        tuner = tuner_in(tmp_path, **options)
        path = tuner.oracle.weights_path(tuner.oracle.get_best_trials()[0])
        path.unlink() if content is None else path.write_bytes(content)
        told = "are missing" if content is None else "is damaged: "
        with pytest.raises(
            ValueError, match=rf"{told}.*Replace it by [^\n]*path='{path}'$"
        ) as raised:
            tuner.get_best_models()
        assert isinstance(raised.value, keras_tuner.errors.FatalError)

    @pytest.mark.parametrize("name", ["external_data", "empty_gigabytes"])
    def test_weights_that_lead_elsewhere(self, small, tmp_path, name):
        shutil.copytree(small.project_dir, tmp_path / "search")
        tuner = tuner_in(tmp_path, epsilon=0.6, max_blocks=12, max_trials=None)
        path = tuner.oracle.weights_path(tuner.oracle.get_best_trials()[0])
        change_weights(path, IN_WEIGHTS[name], with_secret(tmp_path / "secret.h5"))
        with pytest.raises(keras_tuner.errors.FatalValueError, match=r"not opened: .*Received: "):
            tuner.get_best_models()

    def test_the_file_of_an_older_tuner(self, small, tmp_path):
        """It held nothing; a search in a folder with one resumes."""
        shutil.copytree(small.project_dir, tmp_path / "search")
        (tmp_path / "search" / "tuner0.json").write_text('{"')
        options = {"epsilon": 0.6, "max_blocks": 12, "max_trials": None}
        assert tuner_in(tmp_path, **options).outcome() == small.outcome()


OPTIONS = {"epsilon": 0.6, "max_blocks": 12, "max_trials": None}


def functional(factor=2.0, size=2, loss="mse", seed=None, optimizer="sgd", **dense):
    """A function that builds networks of Keras' layers, one of them a `Lambda`."""

    def build(hp):
        state = inputs = keras.Input((8, 8, 1))
        for _ in range(tuning.blocks(hp)[0]):
            branch = keras.layers.Conv2D(1, size, padding="same", **dense)(state)
            branch = keras.layers.Dropout(0.1, seed=seed)(branch)
            state = keras.layers.Add()(
                [state, keras.layers.Lambda(lambda value: factor * value)(branch)]
            )
        outputs = keras.layers.Dense(3, "softmax")(keras.layers.Flatten()(state))
        net = keras.Model(inputs, outputs)
        net.compile(optimizer, loss)
        return net

    return build


def weighted(factor):
    def loss(labels, outputs):
        return factor * keras.losses.sparse_categorical_crossentropy(labels, outputs)

    return loss


OTHERS = {
    "width": (lambda hp: network(tuning.blocks(hp), (3,)), "network widths"),
    "metrics only": (lambda hp: network(tuning.blocks(hp), metrics=()), None),
    "compiled": (lambda hp: network(tuning.blocks(hp), run_eagerly=False), None),
    "rate": (lambda hp: network(tuning.blocks(hp), rate=0.1), "optimizer learning_rate"),
    "kind": (functional(), "class"),
    "loss": (
        lambda hp: network(tuning.blocks(hp), loss=weighted(2)),
        "loss",
    ),
}

SAME = functional()
FUNCTIONAL = {
    "again": (functional(), None),
    "Lambda": (functional(3.0), "computes"),
    "seed": (functional(seed=1), "seed"),
    "regularizer": (functional(kernel_regularizer="l2"), "kernel_regularizer"),
    "frozen": (functional(trainable=False), "trainable"),
    "kernel": (functional(size=3), "kernel_size"),
    "loss": (functional(loss=weighted(2)), "loss"),
    "clipping": (
        functional(optimizer={"class_name": "SGD", "config": {"clipnorm": 1.0}}),
        "clipnorm",
    ),
    "policy": (functional(dtype="bfloat16"), "dtype"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A search that has no trial."""
    path = tmp_path_factory.mktemp("begun")
    with pytest.raises(keras_tuner.errors.FatalRuntimeError):
        fit(tuner_in(path, Untrained(SAME), epsilon=0.6))
    # Other names in the same process.
    functional()(tuner_in(path / "other", SAME).oracle.get_space())
    return path / "search"


class TestSameSearch:
    """A folder holds one search: of the same networks, trained in the same way."""

    @pytest.fixture
    def folder(self, small, tmp_path):
        shutil.copytree(small.project_dir, tmp_path / "search")
        return tmp_path

    @pytest.mark.parametrize("name", OTHERS)
    def test_another_build_function(self, folder, small, name):
        other, differs = OTHERS[name]
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        if differs is None:
            assert tuner_in(folder, other, **OPTIONS).outcome() == small.outcome()
        else:
            with pytest.raises(
                ValueError, match=rf"`hypermodel` must .*`project_name`.* Received: .*{differs}"
            ):
                tuner_in(folder, other, **OPTIONS)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        anew = tuner_in(folder, other, **OPTIONS, overwrite=True)
        assert not anew.oracle.trials

    @pytest.mark.parametrize("name", FUNCTIONAL)
    def test_networks_of_keras(self, begun, tmp_path, name):
        other, differs = FUNCTIONAL[name]
        shutil.copytree(begun, tmp_path / "search")
        if differs is None:
            tuner_in(tmp_path, other, epsilon=0.6)
            return
        with pytest.raises(ValueError, match=rf"`hypermodel` must .* Received: .*{differs}"):
            tuner_in(tmp_path, other, epsilon=0.6)

    def test_other_starts_and_bounds(self, folder, small):
        tuner = tuner_in(folder, epsilon=0.6, start=(2,), min_blocks=2, max_blocks=9)
        assert len(tuner.oracle.trials) == len(small.oracle.trials)

    @pytest.mark.parametrize(
        ("name", "given"),
        [
            ("epochs", {"epochs": 2}),
            ("validation_data", {"validation_data": PROBED}),
            pytest.param("batch_size", {"batch_size": 8}, marks=pytest.mark.nightly),
            pytest.param(
                "class_weight",
                {"class_weight": {0: 2.0, 1: 1.0, 2: 1.0}},
                marks=pytest.mark.nightly,
            ),
        ],
    )
    def test_other_trainings(self, folder, name, given):
        with pytest.raises(ValueError, match=rf"Argument `{name}` must be what it was .* Received"):
            fit(tuner_in(folder, **OPTIONS), **given)
        fit(tuner_in(folder, **OPTIONS))

    def test_other_data(self, folder):
        with pytest.raises(ValueError, match=r"Argument `x` must be what it was"):
            tuner_in(folder, **OPTIONS).search(
                TRAIN[0] + 1, TRAIN[1], validation_data=HELD_OUT, batch_size=16, verbose=0
            )
        with pytest.raises(ValueError, match=r"Argument `probe_data` must be what it was"):
            fit(tuner_in(folder, **OPTIONS, probe_data=PROBED))

    @pytest.mark.parametrize("outputs", [[], "abc", [math.nan] * 6, None])
    def test_a_damaged_description_of_the_network(self, folder, outputs):
        path = folder / "search" / "network.json"
        content = json.loads(path.read_text())
        content["network"]["output"] = outputs
        path.unlink()
        if outputs is None:
            path.symlink_to("nothing")
        else:
            path.write_text(json.dumps(content))
        with pytest.raises((ValueError, OSError), match=r"network\.json|the number of outputs"):
            tuner_in(folder, **OPTIONS)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_folder_of_an_earlier_version(self, folder, small):
        (folder / "search" / "network.json").unlink()
        path = folder / "search" / "oracle.json"
        state = json.loads(path.read_text())
        kept = {"warm_start", "seed", "executions_per_trial"}
        settings = state["depth_search"]["settings"]
        state["depth_search"]["settings"] = {name: settings[name] for name in kept}
        path.write_text(json.dumps(state))
        # Its weights are intact, though they are those of another network.
        wider = tuner_in(folder, lambda hp: network(tuning.blocks(hp), (3,)), **OPTIONS)
        with pytest.raises(ValueError, match=r"Argument `hypermodel` must .* do not fit .*path="):
            wider.get_best_models()
        with pytest.warns(UserWarning, match="earlier version, which did not record what networks"):
            again = fit(tuner_in(folder, **OPTIONS))
        assert again.outcome() == small.outcome()
        with pytest.raises(ValueError, match="`hypermodel` must build the networks"):
            tuner_in(folder, lambda hp: network(tuning.blocks(hp), (3,)), **OPTIONS)

    @pytest.mark.nightly
    def test_a_worker_with_another_build_function(self, tmp_path, monkeypatch):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            "KERASTUNER_ORACLE_IP": "127.0.0.1",
            "KERASTUNER_ORACLE_PORT": str(port),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        chief = subprocess.Popen(
            [sys.executable, __file__, "chief", tmp_path],
            env={**os.environ, **environment, "KERASTUNER_TUNER_ID": "chief"},
        )
        try:
            for name, value in {**environment, "KERASTUNER_TUNER_ID": "worker0"}.items():
                monkeypatch.setenv(name, value)
            wider = tuner_in(
                tmp_path, lambda hp: network(tuning.blocks(hp), (3,)), chief_timeout=60
            )
            with pytest.raises(
                keras_tuner.errors.FatalValueError, match=r"`hypermodel` must .*network widths"
            ):
                fit(wider)
            same = tuner_in(tmp_path, chief_timeout=60)
            with pytest.raises(keras_tuner.errors.FatalValueError, match="`epochs` must be what"):
                fit(same, epochs=2)
        finally:
            chief.kill()
            chief.wait()


class Untrained(Untrainable):
    """Builds what a function builds."""

    def __init__(self, function):
        super().__init__()
        self.build = function


class TestMaxTrials:
    def test_cut_short_and_gone_on(self, small, tmp_path):
        """The same in the end, bit for bit, as the search that was not cut short."""
        options = {"epsilon": 0.6, "max_blocks": 12}
        short = searched(tmp_path, **options, max_trials=1)
        outcome = short.outcome()
        assert (outcome.status, outcome.trial) == ("searching", None)
        assert "; 1 trial was allowed" in outcome.message
        with pytest.raises(RuntimeError, match=r"no best network: the search .* not finished"):
            short.get_best_models()
        (checkpoint,) = tmp_path.rglob("*.h5")
        before = checkpoint.stat().st_mtime_ns
        longer = searched(tmp_path, **options, max_trials=20)
        assert checkpoint.stat().st_mtime_ns == before
        assert longer.outcome() == small.outcome()
        assert longer.outcome().status == FOUND
        same(longer.trace(), small.trace())
        for trial, other in zip(longer.oracle.in_order(), small.oracle.in_order(), strict=True):
            same_weights(longer.load_model(trial), small.load_model(other))

    def test_another_seed(self, small, tmp_path):
        other = searched(tmp_path, seed=1)
        (distance,) = other.trace()["scaled_distance"]
        assert distance != small.trace()["scaled_distance"][0]

    def test_not_satisfied(self, tmp_path):
        tuner = searched(tmp_path, max_blocks=1, max_trials=None)
        assert tuner.outcome().status == "not satisfied"
        assert tuner.outcome().blocks is None
        for method in (tuner.get_best_models, tuner.get_best_hyperparameters):
            with pytest.raises(RuntimeError, match="no best network: no depth inside the bounds"):
                method()
        assert not tuner.trace()["found"].any()


class Slow(keras_tuner.HyperModel):
    """Turns a clock while it trains: by 10 seconds the first time, by 1 the second."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.left = clock, [10.0, 1.0]

    def build(self, hp):
        return build(hp)

    def fit(self, hp, model, *args, **kwargs):
        self.clock.now += self.left.pop(0)
        return super().fit(hp, model, *args, **kwargs)


def test_several_executions(tmp_path, monkeypatch):
    """Measurements are averaged, seconds are not; the weights are those of the last."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(depth_search, "time", clock)
    tuner = searched(tmp_path, Slow(clock), start=(2,), executions_per_trial=2)
    (row,) = tuner.trace().to_dict("records")
    assert row["seconds"] == 11.0
    nets = [trained_by_hand(tuner, (2,), execution) for execution in range(2)]
    of_stage = [measured(net)[0] for net in nets]
    assert of_stage[0] != of_stage[1]
    for name in STAGE_METRICS:
        values = [values[name] for values in of_stage]
        assert row[name] == pytest.approx(np.mean(values), rel=1e-6)
    distances = [values["scaled_distance"] for values in of_stage]
    deviation = abs(distances[0] - distances[1]) / np.sqrt(2)
    assert row["scaled_distance_deviation"] == pytest.approx(deviation, rel=1e-4)
    losses = [net.evaluate(*HELD_OUT, batch_size=16, verbose=0)[0] for net in nets]
    assert row["val_loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert row["measured_blocks"] == 2
    (trial,) = tuner.oracle.in_order()
    # Kept is the network whose worst stage has the smaller mean.
    kept = int(np.argmin(distances))
    same_weights(tuner.load_model(trial), nets[kept])
    assert trial.metrics.get_best_value("stage1/kept_scaled_distance") == distances[kept]

    # Of several stages, one of the kept network may fail where the averages of all meet the rule.
    del trial.metrics.metrics["stage1/scaled_distance"]
    del trial.metrics.metrics["stage1/kept_scaled_distance"]
    trial.metrics.update("stage1/scaled_distance", 2.0)
    trial.metrics.update("stage1/kept_scaled_distance", 4.2)
    tuner.oracle.epsilon = 1.5
    tuner.oracle.score_trial(trial)
    assert tuner.get_best_hyperparameters()
    assert not tuner.oracle.is_kept_met(trial)
    with pytest.raises(
        RuntimeError, match="do so only on average; none of their networks does on its own"
    ):
        tuner.get_best_models()


class Noted(keras.callbacks.Callback):
    """Notes the trainings that it sees."""

    def __init__(self, note):
        super().__init__()
        self.note = note
        self.trainings = 0

    def __deepcopy__(self, memo):
        copied = Noted(self.note)
        copied.trainings = self.trainings
        return copied

    def on_train_begin(self, logs=None):
        self.trainings += 1

    def on_epoch_end(self, epoch, logs=None):
        self.note((self.trainings, self.model.blocks, epoch, sorted(logs)))


class TestCallbacks:
    def test_a_fresh_copy_for_each_trial(self, tmp_path):
        notes = []
        own = Noted(notes.append)
        tuner = fit(tuner_in(tmp_path, max_blocks=2, max_trials=2), callbacks=[own], epochs=2)
        logs = ["accuracy", "loss", "val_accuracy", "val_loss"]
        assert notes == [
            (1, tuning.blocks(trial.hyperparameters), epoch, logs)
            for trial in tuner.oracle.in_order()
            for epoch in range(2)
        ]
        assert own.trainings == 0
        assert len(tuner.oracle.trials) == 2

    @pytest.mark.nightly
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
    def test_tensorboard(self, tmp_path):
        pytest.importorskip("tensorboard")
        callback = keras.callbacks.TensorBoard(tmp_path / "logs")
        tuner = fit(tuner_in(tmp_path), callbacks=[callback])
        (trial,) = tuner.oracle.in_order()
        assert list(tmp_path.glob(f"logs/{trial.trial_id}/execution0/train/events*"))


def dataset(data, batch_size=16):
    return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)


class TestData:
    """The network is that of the first trial of `small` in all of these."""

    @pytest.fixture
    def net(self, small):
        return small.load_model(small.oracle.in_order()[0])

    @pytest.mark.parametrize("kind", [list, pytest.param(dataset, marks=pytest.mark.nightly)])
    def test_probe_data(self, net, tmp_path, kind):
        tuner = searched(tmp_path, probe_data=kind(PROBED))
        (row,) = tuner.trace().to_dict("records")
        (of_stage,) = measured(net, PROBED)
        for name in STAGE_METRICS:
            assert row[name] == pytest.approx(of_stage[name], rel=1e-6)
        loss, accuracy = net.evaluate(*HELD_OUT, batch_size=16, verbose=0)
        assert row["val_loss"] == single(loss)
        assert row["error"] == single(1 - accuracy)

    def test_no_validation_data(self, net, tmp_path):
        tuner = fit(tuner_in(tmp_path, probe_data=PROBED), validation_data=None)
        trace = tuner.trace()
        assert trace["scaled_distance"][0] == single(measured(net, PROBED)[0]["scaled_distance"])
        assert trace["error"].isna().all()
        assert not [name for name in trace.columns if name.startswith("val_")]

    def test_datasets(self, small, tmp_path):
        """Of the training too: the order of the images is then another."""
        tuner = tuner_in(tmp_path)
        tuner.search(
            dataset(TRAIN), validation_data=dataset(HELD_OUT, 10), shuffle=False, verbose=0
        )
        (row,) = tuner.trace().to_dict("records")
        net = tuner.load_model(tuner.oracle.in_order()[0])
        (of_stage,) = measured(net)
        for name in STAGE_METRICS:
            assert row[name] == pytest.approx(of_stage[name], rel=1e-5)
        loss, accuracy = net.evaluate(*HELD_OUT, verbose=0)
        assert row["val_loss"] == pytest.approx(loss, rel=1e-5)
        assert row["error"] == pytest.approx(1 - accuracy, rel=1e-5)

    def test_weights_of_images(self, net, small, tmp_path):
        """They count in the loss, not in the distances."""
        weights = np.linspace(0, 3, 32)
        tuner = fit(tuner_in(tmp_path), validation_data=(*HELD_OUT, weights))
        (row,), first = tuner.trace().to_dict("records"), small.trace().iloc[0]
        for name in (*STAGE_METRICS, "error"):
            assert row[name] == first[name]
        loss, _ = net.evaluate(*HELD_OUT, batch_size=16, sample_weight=weights, verbose=0)
        assert row["val_loss"] == single(loss) != first["val_loss"]

    @pytest.mark.nightly
    def test_steps_of_validation(self, net, tmp_path):
        held_out = dataset(HELD_OUT).repeat(2)
        tuner = fit(
            tuner_in(tmp_path, probe_data=PROBED), validation_data=held_out, validation_steps=1
        )
        loss, _ = net.evaluate(HELD_OUT[0][:16], HELD_OUT[1][:16], batch_size=16, verbose=0)
        assert tuner.trace()["val_loss"][0] == pytest.approx(loss, rel=1e-5)


class Own(keras_tuner.HyperModel):
    """A hypermodel that trains in its own way.

    Args:
        result: what `fit` returns.
        metrics: those of the networks.
    """

    def __init__(self, result, metrics=("accuracy",)):
        super().__init__()
        self.result = result
        self.metrics = metrics

    def build(self, hp):
        return network(tuning.blocks(hp), metrics=self.metrics)

    def fit(self, hp, model, *args, **kwargs):
        assert model.blocks == tuning.blocks(hp)
        assert kwargs["callbacks"]
        model.fit(*args, **kwargs)
        # As much training once more.
        model.fit(*args, **{**kwargs, "verbose": 0})
        return self.result


class TestHyperModel:
    def test_trains_in_its_own_way(self, tmp_path):
        tuner = searched(tmp_path, Own({"note": 7, "blocks": 99, "error": 5.0}))
        (row,) = tuner.trace().to_dict("records")
        assert row["note"] == 7.0
        # What the search measures counts, whatever it was told.
        assert row["blocks"] == 1
        assert row["error"] == single(1 - row["val_accuracy"])
        net = tuner.load_model(tuner.oracle.in_order()[0])
        assert int(net.optimizer.iterations) == 6
        assert row["scaled_distance"] == single(measured(net)[0]["scaled_distance"])

    @pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
    def test_without_an_accuracy_and_with_a_metric_that_is_not_a_number(self, tmp_path):
        top = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top2")
        tuner = searched(tmp_path, Own({"note": float("nan")}, [top]))
        (row,) = tuner.trace().to_dict("records")
        assert np.isnan(row["error"]) and np.isnan(row["note"])
        assert 0 <= row["val_top2"] <= 1
        assert np.isfinite(row["scaled_distance"])

    @pytest.mark.nightly
    def test_accuracy_by_its_short_name(self, tmp_path):
        tuner = searched(tmp_path, lambda hp: network(tuning.blocks(hp), metrics=["acc"]))
        (row,) = tuner.trace().to_dict("records")
        assert row["error"] == single(1 - row["val_acc"])


class TestOtherHyperparameters:
    def test_a_search_for_each_width(self, tmp_path, capsys):
        def build(hp):
            return network(tuning.blocks(hp), (hp.Choice("width", [2, 3]),))

        tuner = searched(tmp_path, build, epsilon=0.9, max_blocks=12, max_trials=None)
        trace, outcomes = tuner.trace(), tuner.outcomes()
        assert [outcome.hyperparameters for outcome in outcomes] == [{"width": 2}, {"width": 3}]
        assert set(trace["width"]) == {2, 3}
        for trial in tuner.oracle.in_order():
            (number,) = [n for n, t in enumerate(tuner.oracle.in_order()) if t is trial]
            net = tuner.load_model(trial)
            (row,) = trace[trace["trial"] == number].to_dict("records")
            assert net.widths == (row["width"],)
            assert row["scaled_distance"] == single(measured(net)[0]["scaled_distance"])
        for outcome in outcomes:
            assert outcome.status == FOUND
            (row,) = trace[trace["trial"] == outcome.trial].to_dict("records")
            assert row["width"] == outcome.hyperparameters["width"]
            # A search of its own, for this width alone.
            of_width = trace[trace["width"] == row["width"]]
            assert row["blocks"] == of_width[of_width["meets_rule"]]["blocks"].min()
        assert tuner.outcome().blocks == min(outcome.blocks for outcome in outcomes)
        (best,) = tuner.get_best_models()
        assert best.blocks == tuner.outcome().blocks
        tuner.results_summary()
        assert f"width=3: {outcomes[1].message}" in capsys.readouterr().out

    def test_too_large_networks(self, tmp_path):
        most = sum(np.prod(weight.shape) for weight in network((4,)).trainable_weights)
        tuner = searched(tmp_path, start=(8,), max_blocks=8, max_trials=2, max_model_size=int(most))
        trace = tuner.trace()
        assert trace["status"].tolist() == ["failed", "completed"]
        assert trace["blocks"][1] <= 4
        first, _ = tuner.oracle.in_order()
        assert "Oversized model" in first.message


class TestWarmStart:
    def test_begins_where_the_shallower_ended(self, tmp_path):
        tuner = searched(tmp_path, max_trials=2, warm_start=True)
        trace = tuner.trace()
        first, second = tuner.oracle.in_order()
        assert sorted(trace.columns) == sorted([*COLUMNS, "from_trial"])
        assert trace["from_trial"].isna().tolist() == [True, False]
        assert trace["from_trial"][1] == first.trial_id
        assert trace["blocks"][1] > trace["blocks"][0]

        same_weights(tuner.load_model(first), trained_by_hand(tuner, (1,)))
        depths = tuning.blocks(second.hyperparameters)
        keras.utils.set_random_seed(seed_of(depths))
        deep, shallow = network(depths), network((1,))
        shallow.optimizer.build(shallow.trainable_variables)
        shallow.load_weights(tuner.oracle.weights_path(first))
        tuning.interleave(shallow, deep)
        deep.fit(*TRAIN, batch_size=16, validation_data=HELD_OUT, verbose=0)
        same_weights(tuner.load_model(second), deep)
        assert trace["scaled_distance"][1] == single(measured(deep)[0]["scaled_distance"])
        # Not what the same depth gives from the start.
        cold = trained_by_hand(tuner, depths)
        assert trace["scaled_distance"][1] != single(measured(cold)[0]["scaled_distance"])

    @pytest.mark.nightly
    def test_shared_blocks(self, tmp_path):
        def build(hp):
            net = networks.ResidualNetwork(
                (8, 8, 1), 3, blocks=tuning.blocks(hp), widths=(2,), share_from=0
            )
            net.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
            return net

        with pytest.raises(
            keras_tuner.errors.FatalValueError, match=r"`shallow` must .* Received: shallow="
        ):
            searched(tmp_path, build, max_trials=2, warm_start=True)


class TestRefused:
    @pytest.mark.parametrize("seed", [-1, 2**31, True, 0.5, "0", None])
    def test_seed(self, tmp_path, seed):
        with pytest.raises(ValueError, match=rf"Argument `seed` must .* Received: seed={seed!r}$"):
            tuner_in(tmp_path, seed=seed)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "10", None])
    def test_chief_timeout(self, tmp_path, seconds):
        with pytest.raises(
            ValueError, match=rf"`chief_timeout` must be a .*\. Received: .*{seconds!r}$"
        ):
            tuner_in(tmp_path, chief_timeout=seconds)
        assert not list(tmp_path.iterdir())

    def test_no_images_to_measure_on(self, tmp_path):
        tuner = tuner_in(tmp_path)
        with pytest.raises(
            ValueError, match=r"`validation_data` must .* `probe_data` .* Received: .*=None$"
        ):
            tuner.search(*TRAIN, verbose=0)
        assert len(tuner.trace()) == 0

    def test_other_images(self, tmp_path):
        with pytest.raises(ValueError, match=r"^Argument `probe_data` must hold .* Received: "):
            searched(tmp_path, probe_data="images")
        endless = dataset(HELD_OUT, 10).repeat()
        with pytest.raises(ValueError, match=r"^Argument `validation_data` must .* Received: "):
            fit(tuner_in(tmp_path), validation_data=endless, validation_steps=2)
        larger = np.zeros((4, 9, 9, 1), "float32"), np.zeros(4, int)
        with pytest.raises(
            keras_tuner.errors.FatalValueError, match=r"^Argument `probe_data` .* Received: "
        ):
            searched(tmp_path / "larger", probe_data=larger)

    def test_other_depths_than_proposed(self, tmp_path):
        with pytest.raises(
            keras_tuner.errors.FatalValueError,
            match=r"Argument `hypermodel` must build .*`tuning\.blocks\(hp\)` blocks .*here \(1,\)"
            r".* Received: residual_network with \(2,\): stage 1 has 2 blocks, expected 1$",
        ):
            searched(tmp_path, lambda hp: network(2))

    def test_no_residual_network(self, tmp_path):
        def build(hp):
            net = keras.Sequential(
                [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
            )
            net.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
            return net

        with pytest.raises(
            keras_tuner.errors.FatalValueError, match=r"must be .* Received: source=.*[Ss]equential"
        ):
            searched(tmp_path, build)

    @pytest.mark.parametrize("kind", [tuning.DepthSearch, tuning.DepthOracle])
    def test_an_objective(self, kind):
        given = {"hypermodel": build} if kind is tuning.DepthSearch else {}
        with pytest.raises(
            ValueError, match=r"`objective` must not be given.* Received: objective='val_loss'$"
        ):
            kind(**given, start=(1,), objective="val_loss")

    def test_keras_distribution(self, tmp_path):
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
        try:
            with pytest.raises(
                ValueError, match=r"`keras\.distribution` does nothing .* Received: .*DataParallel"
            ):
                tuner_in(tmp_path)
        finally:
            keras.distribution.set_distribution(None)
        tuner_in(tmp_path)

    def test_other_strategies(self, tmp_path):
        strategy = tf.distribute.experimental.CentralStorageStrategy()
        with pytest.raises(
            ValueError,
            match=r"`distribution_strategy` must .* Received: .* type CentralStorageStrategy$",
        ):
            tuner_in(tmp_path, distribution_strategy=strategy)


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
class TestDiverged:
    def test_is_a_failure(self, tmp_path):
        tuner = tuner_in(
            tmp_path,
            lambda hp: network(tuning.blocks(hp), rate=1e30),
            start=(4,),
            max_blocks=4,
            max_trials=None,
        )
        with pytest.raises(tuning.SearchError, match=r"3\. The last: .*diverged.* Received: "):
            fit(tuner)
        trace = tuner.trace()
        assert trace["status"].tolist() == ["failed"] * 3
        assert trace["scaled_distance"].isna().all()
        assert trace["blocks"].tolist() == [4, 2, 1]

    def test_in_the_last_block(self, tmp_path):
        class Broken(Own):
            def fit(self, hp, model, *args, **kwargs):
                *_, last = model.sections()[1][0][1]
                last.convolution2.bias.assign([np.nan, np.nan])

        (row,) = searched(tmp_path, Broken(None), start=(3,)).trace().to_dict("records")
        assert row["status"] == "failed"


# Several devices: two that TensorFlow makes of the CPU, which it must be told when it starts.


def main(folder, trials):
    """Searches on two devices and on one, and says what came of it.

    Args:
        folder: str.
        trials: str, how many on two devices, the second with the weights of the first.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    folder, trials, told = pathlib.Path(folder), int(trials), {}
    several_machines = tf.distribute.MultiWorkerMirroredStrategy()
    told["machines"] = failure(tuner_in, folder, distribution_strategy=several_machines)
    gc.collect()
    gc.freeze()
    mirrored_strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    strategies = {
        "two": (mirrored_strategy, {"max_trials": trials, "warm_start": trials > 1}),
        "one": (tf.distribute.OneDeviceStrategy("/cpu:0"), {}),
    }
    for name, (strategy, options) in strategies.items():
        replicas = []
        tuner = tuner_in(
            folder / name,
            mirrored(replicas),
            distribution_strategy=strategy,
            **{"start": (2,), "min_blocks": 2, **options},
        )
        fit(tuner)
        net = tuner.load_model(tuner.oracle.in_order()[0])
        loss = net.evaluate(*HELD_OUT, batch_size=16, verbose=0)[0]
        trace = json.loads(tuner.trace().to_json(orient="records"))
        told[name] = {"trace": trace, "replicas": replicas, "reloaded": loss}
    for name in ("steps_per_execution", "jit_compile", "gradient_accumulation_steps"):
        strategy, _ = strategies["two"]
        tuner = tuner_in(folder / name, mirrored([], name), distribution_strategy=strategy)
        told[name] = failure(fit, tuner)
    print("told", json.dumps(told))


def mirrored(replicas, refused=None):
    """A function that builds networks, and notes for how many devices."""

    def build(hp):
        replicas.append(tf.distribute.get_strategy().num_replicas_in_sync)
        net = network(
            tuning.blocks(hp),
            run_eagerly=False,
            steps_per_execution=2 if refused == "steps_per_execution" else 1,
            jit_compile=refused == "jit_compile",
        )
        if refused == "gradient_accumulation_steps":
            net.optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        return net

    return build


def failure(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def told_of_devices(folder, trials):
    """What `main` says."""
    done = processes.run(pathlib.Path(__file__), folder, str(trials))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return told_of_devices(tmp_path_factory.mktemp("devices"), trials=1)


class TestDevices:
    def test_two(self, devices):
        """Batch normalization sees half of a batch on each, so that the two differ a little."""
        # The first is built before there is a trial.
        assert set(devices["two"]["replicas"][1:]) == {2}
        (two,), (one,) = devices["two"]["trace"], devices["one"]["trace"]
        assert two["status"] == one["status"] == "completed"
        for name in (*STAGE_METRICS, "val_loss"):
            assert two[name] == pytest.approx(one[name], rel=0.05)
        assert two["scaled_distance"] != one["scaled_distance"]
        assert devices["two"]["reloaded"] == pytest.approx(two["val_loss"], rel=0.05)

    @pytest.mark.xfail(
        strict=True,
        reason="each device has moving statistics of its own: those of the first are saved and "
        "measured, the images are evaluated with all of them",
    )
    def test_what_is_evaluated_is_what_is_saved(self, devices):
        (row,) = devices["two"]["trace"]
        assert devices["two"]["reloaded"] == pytest.approx(row["val_loss"], rel=1e-5)

    def test_one(self, devices, tmp_path):
        """The same as without a strategy."""
        (one,) = devices["one"]["trace"]
        tuner = searched(tmp_path, start=(2,))
        assert set(devices["one"]["replicas"]) == {1}
        for name in (*STAGE_METRICS, "val_loss"):
            assert one[name] == pytest.approx(tuner.trace()[name][0], rel=1e-4)
        assert devices["one"]["reloaded"] == pytest.approx(one["val_loss"], rel=1e-5)

    @pytest.mark.nightly
    def test_warm_start(self, tmp_path):
        _, second = told_of_devices(tmp_path, trials=2)["two"]["trace"]
        assert int(second["from_trial"]) == 0
        assert second["status"] == "completed"
        assert second["scaled_distance"] > 0

    @pytest.mark.parametrize(
        ("name", "expected", "value"),
        [
            ("steps_per_execution", 1, 2),
            ("jit_compile", False, True),
            ("gradient_accumulation_steps", None, 2),
        ],
    )
    def test_what_keras_cannot_do(self, devices, name, expected, value):
        kind, message = devices[name]
        assert kind == "FatalValueError"
        assert message.startswith(f"Argument `{name}` of the compiled network must be {expected} ")
        assert message.endswith(f"Received: {name}={value}")

    def test_several_machines(self, devices):
        kind, message = devices["machines"]
        assert kind == "ValueError"
        assert message.startswith("Argument `distribution_strategy` must be ")
        assert "type CollectiveAllReduceStrategy" in message.partition("Received: ")[2]


if __name__ == "__main__":
    if sys.argv[1] == "chief":
        fit(tuner_in(sys.argv[2]))
    else:
        main(*sys.argv[1:])
