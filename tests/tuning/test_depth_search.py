"""The search with real networks, tiny ones, that are really trained.

What is proposed, and what stands on the disk, is tested with laws in `test_depth_oracle.py`; chief,
workers and kills in `test_workers.py` and `test_killed_search.py`.

Not covered: GPUs, several devices; how good a search is, see `experiments/`.
"""

import shutil

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from refusals import refused

import tfresidual
from tfresidual import networks, probes, tuning
from tfresidual.tuning.trace import STAGE_METRICS

pytestmark = [
    pytest.mark.eager,
    pytest.mark.system,
    pytest.mark.usefixtures("no_old_garbage"),
]


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


def building(*args, **kwargs):
    return lambda hp: network(tuning.blocks(hp), *args, **kwargs)


build_compiled = building((2, 4), run_eagerly=False)


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


def only_row(tuner):
    (row,) = tuner.trace().to_dict("records")
    return row


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


def set_seed(depths, execution=0):
    """What a training begins with in a search of seed 0."""
    sequence = np.random.SeedSequence([0, execution, *depths])
    keras.utils.set_random_seed(int(sequence.generate_state(1)[0] >> 1))


def trained_by_hand(depths, execution=0):
    """The network of a trial without the tuner."""
    set_seed(depths, execution)
    net = network(depths)
    net.fit(*TRAIN, batch_size=16, validation_data=HELD_OUT, verbose=0)
    return net


def measured(net, data=HELD_OUT):
    """What the probe says of the stages, a list of dicts."""
    frame = probes.computational_distance(tfresidual.chain(net), data)
    return frame[frame["stage"] != "all"].to_dict("records")


def assert_measured(row, net, data=HELD_OUT, rel=1e-6):
    (of_stage,) = measured(net, data)
    for name in STAGE_METRICS:
        assert row[name] == pytest.approx(of_stage[name], rel=rel)


OPTIONS = {"epsilon": 0.6, "max_blocks": 12, "max_trials": None}
TWO_STAGES = {"epsilon": 1.0, "start": (1, 2), "max_blocks": 12, "max_trials": None}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search of two stages that has found, compiled as users compile."""
    return searched(tmp_path_factory.mktemp("finished"), build_compiled, **TWO_STAGES)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One stage, whose first trial is the one of most tests here."""
    return searched(tmp_path_factory.mktemp("small"), **OPTIONS)


@pytest.fixture
def folder(small, tmp_path):
    shutil.copytree(small.project_dir, tmp_path / "search")
    return tmp_path


COLUMNS = [
    *("trial", "status", "stage", "blocks", "measured_blocks", *STAGE_METRICS),
    *("scaled_distance_deviation", "depth_asked_for", "meets_rule", "found", "error", "seconds"),
    *("val_accuracy", "val_loss", "chance_error", "error_se", "moved"),
    *(f"mean_scaled_perturbation_{name}" for name in ("as_built", "settled", "change_error")),
]
# What a search ends with that has found a depth: the labels are noise.
FOUND = "no better than chance"


class TestFinished:
    @pytest.mark.nightly
    def test_rows_say_what_the_networks_measure(self, finished):
        trace = finished.trace()
        assert sorted(trace.columns) == sorted(COLUMNS)
        count = len(finished.oracle.trials)
        assert count > 1
        assert trace["trial"].tolist() == [place for place in range(count) for _ in range(2)]
        assert trace["stage"].tolist() == [1, 2] * count
        assert set(trace["status"]) == {"completed"}
        assert trace["scaled_distance_deviation"].isna().all()
        assert (trace["seconds"] > 0).all()
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

    def test_outcome(self, finished, capsys):
        outcome, trace = finished.outcome(), finished.trace()
        assert finished.outcomes() == [outcome]
        assert (outcome.status, outcome.hyperparameters) == (FOUND, {})
        assert not trace["found"].any()
        found = trace[trace["trial"] == outcome.trial]
        assert tuple(found["blocks"]) == outcome.blocks
        assert found["meets_rule"].all()
        met = trace.groupby("trial")["meets_rule"].all()
        assert sum(outcome.blocks) == trace.groupby("trial")["blocks"].sum()[met].min()
        assert outcome.error == found["error"].iloc[0]
        assert outcome.chance_error == found["chance_error"].iloc[0]
        assert outcome.is_better_than_chance is False
        error = f"error {outcome.error:.1%}, chance {outcome.chance_error:.1%}"
        depths = f"{outcome.blocks[0]} {outcome.blocks[1]} blocks"
        assert outcome.message.startswith(f"{depths} ({error}): every stage")
        finished.results_summary()
        text = capsys.readouterr().out
        assert text.startswith(outcome.message)
        assert all(name in text.splitlines()[1] for name in trace.columns)
        assert f"{trace['scaled_distance'][0]:.4g}" in text
        assert f"Results in {finished.project_dir}" in text
        assert text.count("Score:") == met.sum()

    def test_the_best_meet_the_rule(self, finished):
        met = finished.trace().groupby("trial")["meets_rule"].all()
        assert 0 < met.sum() < len(met)
        best = finished.get_best_hyperparameters(9)
        assert len(best) == met.sum()
        assert tuning.blocks(best[0]) == finished.outcome().blocks
        models = finished.get_best_models(9)
        assert len(models) == met.sum()
        trial = finished.oracle.in_order()[finished.outcome().trial]
        same_weights(models[0], finished.load_model(trial))
        # They can be trained on.
        assert int(models[0].optimizer.iterations) == 3
        assert any(np.any(momentum) for momentum in models[0].optimizer.momentums)
        assert models[0].compiled


class TestSameSearch:
    """A folder holds one search: of the same networks, trained in the same way."""

    @pytest.mark.parametrize("changes", [{"widths": (3,)}, {"rate": 0.1}, {"loss": "mse"}], ids=str)
    def test_another_build_function(self, folder, changes):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with refused("hypermodel"):
            searched(folder, building(**changes), **OPTIONS)
        after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert {path: after[path] for path in before} == before
        options = {**OPTIONS, "overwrite": True}
        assert not tuner_in(folder, building(**changes), **options).oracle.trials

    def test_other_trainings(self, folder, small):
        weights = {0: 2.0, 1: 1.0, 2: 1.0}
        given = {"validation_data": HELD_OUT, "batch_size": 16, "verbose": 0}
        given |= {"x": TRAIN[0], "y": TRAIN[1]}
        for name, value in {
            **{"epochs": 2, "validation_data": PROBED, "batch_size": 8, "class_weight": weights},
            "x": TRAIN[0] + 1,
        }.items():
            with refused(name):
                tuner_in(folder, **OPTIONS).search(**given | {name: value})
        with refused("probe_data"):
            tuner_in(folder, **OPTIONS, probe_data=PROBED).search(**given)
        tuner = tuner_in(folder, epsilon=0.6, start=(2,), min_blocks=2, max_blocks=9)
        assert len(tuner.oracle.trials) == len(small.oracle.trials)
        fit(tuner_in(folder, **OPTIONS))


def test_cut_short_and_gone_on(small, tmp_path):
    """The same in the end, bit for bit, as the search that was not cut short."""
    short = searched(tmp_path, **OPTIONS | {"max_trials": 1})
    outcome = short.outcome()
    assert (outcome.status, outcome.trial) == ("searching", None)
    assert "`max_trials`" in outcome.message
    assert f"1 block errs least ({short.trace()['error'].min():.1%})" in outcome.message
    with pytest.raises(RuntimeError, match="errs least"):
        short.get_best_models()
    (checkpoint,) = tmp_path.rglob("*.h5")
    before = checkpoint.stat().st_mtime_ns
    longer = searched(tmp_path, **OPTIONS | {"max_trials": 20})
    assert checkpoint.stat().st_mtime_ns == before
    assert longer.outcome() == small.outcome()
    assert longer.outcome().status == FOUND
    same(longer.trace(), small.trace())
    for trial, other in zip(longer.oracle.in_order(), small.oracle.in_order(), strict=True):
        same_weights(longer.load_model(trial), small.load_model(other))


@pytest.mark.nightly
def test_several_executions(tmp_path):
    """Measurements are averaged; the weights are those of the best."""
    tuner = searched(tmp_path, start=(2,), executions_per_trial=2)
    row = only_row(tuner)
    assert row["measured_blocks"] == 2
    nets = [trained_by_hand((2,), execution) for execution in range(2)]
    of_stage = [measured(net)[0] for net in nets]
    assert of_stage[0] != of_stage[1]
    for name in STAGE_METRICS:
        assert row[name] == pytest.approx(np.mean([v[name] for v in of_stage]), rel=1e-6)
    distances = [values["scaled_distance"] for values in of_stage]
    deviation = abs(distances[0] - distances[1]) / np.sqrt(2)
    assert row["scaled_distance_deviation"] == pytest.approx(deviation, rel=1e-4)
    losses = [net.evaluate(*HELD_OUT, batch_size=16, verbose=0)[0] for net in nets]
    assert row["val_loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    (trial,) = tuner.oracle.in_order()
    # Kept is the network whose worst stage has the smaller mean.
    kept = int(np.argmin(distances))
    same_weights(tuner.load_model(trial), nets[kept])
    assert trial.metrics.get_best_value("stage1/kept_scaled_distance") == distances[kept]

    # Of several stages, one of the kept network may fail where the averages of all meet the rule.
    for name, value in {"scaled_distance": 2.0, "kept_scaled_distance": 4.2}.items():
        del trial.metrics.metrics[f"stage1/{name}"]
        trial.metrics.update(f"stage1/{name}", value)
    tuner.oracle.epsilon = 1.5
    tuner.oracle.score_trial(trial)
    assert tuner.get_best_hyperparameters()
    assert not tuner.oracle.is_kept_met(trial)
    with pytest.raises(RuntimeError, match="do so only on average; none of their networks does"):
        tuner.get_best_models()


def dataset(data, batch_size=16, **kwargs):
    return tf.data.Dataset.from_tensor_slices(data).batch(batch_size, **kwargs)


class TestData:
    """The network is that of the first trial of `small` in all of these."""

    @pytest.fixture
    def net(self, small):
        return small.load_model(small.oracle.in_order()[0])

    @pytest.mark.parametrize("kind", [list, pytest.param(dataset, marks=pytest.mark.nightly)])
    def test_probe_data(self, net, tmp_path, kind):
        row = only_row(searched(tmp_path, probe_data=kind(PROBED)))
        assert_measured(row, net, PROBED)
        loss, accuracy = net.evaluate(*HELD_OUT, batch_size=16, verbose=0)
        assert row["val_loss"] == single(loss)
        assert row["error"] == single(1 - accuracy)

    def test_no_validation_data(self, net, tmp_path):
        tuner = fit(tuner_in(tmp_path, probe_data=PROBED), validation_data=None)
        row = only_row(tuner)
        assert row["scaled_distance"] == single(measured(net, PROBED)[0]["scaled_distance"])
        assert np.isnan(row["error"])
        assert not [name for name in row if name.startswith("val_")]

    @pytest.mark.compiled
    @pytest.mark.filterwarnings("ignore:Your input ran out of data")
    @pytest.mark.parametrize("is_known", [True, False])
    def test_datasets(self, tmp_path, is_known):
        """Of the training too: the order of the images is then another."""
        tuner = tuner_in(tmp_path, building(run_eagerly=False))
        held_out = dataset(HELD_OUT, 8, drop_remainder=not is_known)
        if not is_known:
            held_out = held_out.filter(lambda images, labels: True)
        tuner.search(dataset(TRAIN), validation_data=held_out, shuffle=False, verbose=0)
        row, net = only_row(tuner), tuner.load_model(tuner.oracle.in_order()[0])
        assert_measured(row, net, rel=1e-5)
        loss, accuracy = net.evaluate(*HELD_OUT, verbose=0)
        assert row["val_loss"] == pytest.approx(loss, rel=1e-5)
        assert row["error"] == pytest.approx(1 - accuracy, rel=1e-5)


class TestOtherHyperparameters:
    @pytest.mark.nightly
    def test_a_search_for_each_width(self, tmp_path, capsys):
        def build(hp):
            return network(tuning.blocks(hp), (hp.Choice("width", [2, 3]),))

        tuner = searched(tmp_path, build, epsilon=0.9, max_blocks=12, max_trials=None)
        outcomes = tuner.outcomes()
        assert [outcome.hyperparameters for outcome in outcomes] == [{"width": 2}, {"width": 3}]
        assert {outcome.status for outcome in outcomes} == {FOUND}
        assert tuner.outcome().blocks == min(outcome.blocks for outcome in outcomes)
        (best,) = tuner.get_best_models()
        assert best.blocks == tuner.outcome().blocks
        assert best.widths == tuple(tuner.outcome().hyperparameters.values())
        tuner.results_summary()
        assert f"width=3: {outcomes[1].message}" in capsys.readouterr().out


class TestWarmStart:
    @pytest.mark.nightly
    def test_begins_where_the_shallower_ended(self, tmp_path):
        tuner = searched(tmp_path, max_trials=2, warm_start=True)
        trace = tuner.trace()
        first, second = tuner.oracle.in_order()
        assert sorted(trace.columns) == sorted([*COLUMNS, "from_trial"])
        assert trace["from_trial"].isna().tolist() == [True, False]
        assert trace["from_trial"][1] == first.trial_id
        assert trace["blocks"][1] > trace["blocks"][0]

        same_weights(tuner.load_model(first), trained_by_hand((1,)))
        depths = tuning.blocks(second.hyperparameters)
        set_seed(depths)
        deep, shallow = network(depths), network((1,))
        shallow.optimizer.build(shallow.trainable_variables)
        shallow.load_weights(tuner.oracle.weights_path(first))
        tuning.interleave(shallow, deep)
        deep.fit(*TRAIN, batch_size=16, validation_data=HELD_OUT, verbose=0)
        same_weights(tuner.load_model(second), deep)
        assert trace["scaled_distance"][1] == single(measured(deep)[0]["scaled_distance"])
        # Not what the same depth gives from the start.
        cold = trained_by_hand(depths)
        assert trace["scaled_distance"][1] != single(measured(cold)[0]["scaled_distance"])


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
class TestDiverged:
    def test_is_a_failure(self, tmp_path):
        tuner = tuner_in(tmp_path, building(rate=1e30), start=(4,), max_blocks=4, max_trials=None)
        with pytest.raises(tuning.SearchError, match=r"3\. The last: .*diverged.* Received: "):
            fit(tuner)
        trace = tuner.trace()
        assert trace["status"].tolist() == ["failed"] * 3
        assert trace["scaled_distance"].isna().all()
        assert trace["blocks"].tolist() == [4, 2, 1]
