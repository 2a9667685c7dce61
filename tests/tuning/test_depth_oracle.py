"""The oracle inside keras-tuner: its trials, its files, its workers, and the frame of it all.

The networks are laws, see `synthetic_search`; all else is keras-tuner's, the serialised messages
between a chief and its workers too. Not covered: processes and the network between them, see
`test_workers.py` and `test_killed_search.py`.
"""

import json

import keras_tuner
import numpy as np
import pandas as pd
import pytest
from keras_tuner.engine.trial import Trial
from refusals import refused
from tuning.synthetic_search import (
    Stages,
    Wire,
    constant,
    depths_of,
    end,
    follow,
    hyperbolic,
    power,
    proportional,
    quiet_oracle,
    report,
    saturating,
    search,
    single,
    stages_of,
)

from tfresidual import tuning
from tfresidual.tuning import (
    blocks,
    outcomes_of,
    read_search,
    trace,
    trace_of,
)

pytestmark = pytest.mark.eager

EASY = stages_of(constant(0.6))
UNTRAINABLE = Stages(EASY.laws, deepest=0)
MIXED = stages_of(saturating(3, 5), constant(1.05), hyperbolic(2.2, 4), offsets=(0, 1, 1))


def json_at(folder, *path):
    return json.loads(folder.joinpath("search", *path).read_text())


def reloaded(folder, start=(4,), **kwargs):
    oracle = quiet_oracle(folder, start, **kwargs)
    oracle.reload()
    return oracle


def space_of(**choices):
    space = keras_tuner.HyperParameters()
    for name, values in choices.items():
        space.Choice(name, values)
    return space


def served_copy(trial):
    """A trial as a worker has it."""
    return Trial.from_proto(trial.to_proto())


@pytest.fixture
def oracle(tmp_path):
    """One that begins with a stage of four blocks."""
    return quiet_oracle(tmp_path)


@pytest.fixture
def served(monkeypatch):
    """This process is a chief's."""
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")


class TestSearch:
    def test_max_trials(self, tmp_path):
        tuner = search(tmp_path, EASY, (40,), max_trials=2)
        (outcome,) = outcomes_of(tuner.oracle)
        assert tuner.ran == [(40,), (6,)]
        assert (outcome.status, outcome.blocks, outcome.trial) == ("searching", (6,), 1)
        assert "`max_trials`" in outcome.message
        assert "40 blocks (2.5%)" in outcome.message
        frame = trace_of(tuner.oracle)
        assert frame["meets_rule"].tolist() == [True, True]
        assert not frame["found"].any()
        assert tuner.remaining_trials == 0
        assert search(tmp_path, EASY, (40,), max_trials=2).ran == []
        assert search(tmp_path, EASY, (40,), max_trials=9).ran == [(5,)]


class TestScores:
    def test_blocks_or_more_than_a_million(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (4, 4))
        follow(oracle, stages_of(constant(0.6), constant(2.0), offsets=(0, 1)))
        scores = {blocks(t.hyperparameters): t.score for t in oracle.in_order()}
        # What keeps the shape counts: 20 of 21 blocks. The worst stage is how far off it is.
        assert scores.pop((4, 4)) == pytest.approx(1e6 + (2.0 / 3) / 0.1, abs=1e-6)
        assert scores.pop((6, 21)) == 27
        assert scores.pop((5, 20)) == pytest.approx(1e6 + 0.12 / 0.1, abs=1e-6)
        assert scores == {}
        oracle.create_trial("b")
        assert [blocks(t.hyperparameters) for t in oracle.get_best_trials(10)] == [(6, 21)]
        assert oracle.get_best_trials(0) == []


class TestWire:
    def test_the_same_search(self, tmp_path):
        stages = Stages(MIXED.laws, MIXED.offsets, 0.03)
        direct, wired = (quiet_oracle(tmp_path / name, (4, 4, 4)) for name in ("a", "b"))
        assert follow(Wire(wired), stages) == follow(direct, stages)
        assert outcomes_of(wired) == outcomes_of(direct)
        pd.testing.assert_frame_equal(trace_of(wired), trace_of(direct))
        scores = [[trial.score for trial in oracle.in_order()] for oracle in (wired, direct)]
        assert scores[0] == scores[1]

    def test_measurements_are_what_was_measured(self, tmp_path):
        rng = np.random.default_rng(0)
        for place, number in enumerate([0.3, 1.1, 1e-20, 3e7, *10 ** rng.uniform(-6, 3, 20)]):
            oracle = quiet_oracle(tmp_path / str(place), (7,))
            trial = oracle.create_trial("a")
            metrics = {"blocks": 7.0, "stage1/blocks": 7.0, "stage1/scaled_distance": number}
            Wire(oracle).update_trial(trial.trial_id, metrics)
            (measured,) = oracle.measurements(oracle.trials[trial.trial_id])
            assert oracle.measurements(served_copy(oracle.trials[trial.trial_id])) == [measured]
            assert (measured.blocks, measured.counted) == (7, 7)
            # Also where the worker is this process, and nothing was rounded on the way.
            oracle = quiet_oracle(tmp_path / f"own{place}", (7,))
            oracle.create_trial("a")
            oracle.update_trial("0000", metrics)
            assert oracle.measurements(oracle.trials["0000"]) == [measured]
            assert measured.distance == single(number)

    def test_other_hyperparameters_are_not_rounded(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Float("rate", 0.1, 0.5, step=0.2)
        space.Choice("share", [0.1, 0.7])
        with space.conditional_scope("share", [0.1]):
            space.Boolean("flag")
        oracle = quiet_oracle(tmp_path, (4,), hyperparameters=space)
        combinations = oracle.combinations()
        assert len(follow(Wire(oracle), EASY)) == 3 * 9
        assert [outcome.status for outcome in outcomes_of(oracle)] == ["found"] * 9
        assert oracle.combinations() == combinations
        assert all(oracle.others_of(trial) in combinations for trial in oracle.in_order())


class TestOtherHyperparameters:
    def test_a_search_per_combination(self, tmp_path):
        space = space_of(width=[8, 16])
        space.Int("kernel", 3, 7, step=2)
        space.Fixed("stem", "wide")

        def law(values):
            return stages_of(constant(values["width"] / 10 + values["kernel"]))

        tuner = search(tmp_path, law, (4,), hyperparameters=space)
        outcomes = outcomes_of(tuner.oracle)
        assert len(outcomes) == len(tuner.oracle.combinations()) == 6
        for outcome in outcomes:
            assert outcome.status == "found"
            assert outcome.blocks == law(outcome.hyperparameters).answer(0.1)
            assert outcome.hyperparameters["stem"] == "wide"
        trials = [t.hyperparameters.values for t in tuner.oracle.in_order()]
        assert len({tuple(sorted(map(str, values.items()))) for values in trials}) == len(trials)
        # The best is the best of all.
        (best,) = tuner.get_best_hyperparameters()
        assert best.values == {"blocks1": 38, "width": 8, "kernel": 3, "stem": "wide"}

    def test_only_active_ones(self, tmp_path):
        def build(hp):
            kind = hp.Choice("kind", ["plain", "wide", "deep"])
            with hp.conditional_scope("kind", ["wide"]):
                if kind == "wide":
                    hp.Int("factor", 2, 6, step=2)
            with hp.conditional_scope("kind", ["deep"]):
                if kind == "deep":
                    hp.Boolean("shared")

        tuner = search(tmp_path, EASY, (4,), hypermodel=build)
        assert tuner.oracle.combinations() == [
            {"kind": "plain"},
            *({"kind": "wide", "factor": factor} for factor in (2, 4, 6)),
            *({"kind": "deep", "shared": shared} for shared in (True, False)),
        ]
        assert len(tuner.ran) == 6 * 3
        assert {outcome.blocks for outcome in outcomes_of(tuner.oracle)} == {(6,)}

    @pytest.mark.parametrize("lost", ["trial_1", "oracle.json"])
    def test_no_trial_takes_the_place_of_another(self, tmp_path, lost):
        search(tmp_path, EASY, (4,), max_trials=3)
        (tmp_path / "search" / lost).rename(tmp_path / "lost")
        kept = {path: path.read_bytes() for path in tmp_path.rglob("trial.json")}
        with pytest.raises((ValueError, FileNotFoundError)):
            search(tmp_path, EASY, (4,), max_trials=4)
        assert kept == {path: path.read_bytes() for path in tmp_path.rglob("trial.json")}

    def test_that_only_some_trials_ask_for(self, oracle):
        report(oracle, oracle.create_trial("a"), EASY)
        trial = oracle.create_trial("a")
        trial.hyperparameters.Choice("extra", [1, 2])
        with pytest.raises(ValueError, match=r"must not depend on them.*Received: new ones"):
            report(oracle, trial, EASY)

    @pytest.mark.parametrize(
        ("declare", "match"),
        [
            (lambda space: space.Float("rate", 0.1, 0.3), r"`rate` a `step`.*Received: Float\("),
            (
                lambda space: [space.Boolean(f"flag{number}") for number in range(40)],
                "at most 1000 combinations.*Received: more with Bo",
            ),
        ],
    )
    def test_too_many(self, tmp_path, declare, match):
        space = keras_tuner.HyperParameters()
        declare(space)
        with pytest.raises(ValueError, match=match):
            quiet_oracle(tmp_path, hyperparameters=space).combinations()

    def test_a_chief_says_it_at_the_end(self, served, oracle):
        space = oracle.get_space()
        space.Float("rate", 0.1, 0.3)
        oracle.update_space(space)
        assert oracle.create_trial("a").status == "STOPPED"
        assert "`rate` a `step`" in oracle.failure


class TestResumed:
    def test_another_epsilon_scores_anew(self, tmp_path):
        search(tmp_path, EASY)
        loose = search(tmp_path, EASY, epsilon=0.15)
        assert [t.score for t in loose.oracle.in_order()[:3]] == [4.0, 6.0, 5.0]
        assert loose.ran == [(3,)]
        assert json_at(tmp_path, "trial_0000", "trial.json")["score"] == 4.0
        tight = search(tmp_path, EASY, epsilon=0.05)
        assert tight.ran == [(12,), (11,)]
        fails = [trial.score > 1e6 for trial in tight.oracle.in_order()]
        assert fails == [True] * 4 + [False, True]
        assert json_at(tmp_path, "trial_0000", "trial.json")["score"] > 1e6
        assert [o.blocks for o in outcomes_of(tight.oracle)] == [(12,)]

    def test_another_search(self, tmp_path):
        search(tmp_path, EASY, settings={"seed": 1})
        with refused("start"):
            search(tmp_path, EASY, (4, 4))
        with refused("seed") as caught:
            search(tmp_path, EASY, settings={"seed": 2})
        assert "began, 1," in str(caught.value)
        with refused("warm_start"):
            search(tmp_path, EASY, settings={"seed": 1}, warm_start=True)
        other = keras_tuner.RandomSearch(
            lambda hp: hp.Choice("width", [8]),
            objective=keras_tuner.Objective("blocks", "min"),
            directory=tmp_path,
            project_name="search",
            overwrite=True,
        )
        other.oracle.save()
        with pytest.raises(ValueError, match="a search of another kind"):
            reloaded(tmp_path)
        with refused("folder"):
            read_search(tmp_path / "search")


def contents_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


class TestSeveralAtOnce:
    def test_a_bracket_around_the_first(self, oracle):
        report(oracle, oracle.create_trial("a"), stages_of(constant(3.69)))
        trials = [oracle.create_trial(name) for name in "abcdefg"]
        assert [t.status for t in trials] == ["RUNNING"] * 5 + ["IDLE"] * 2
        assert depths_of(oracle)[1:] == [(37,), (36,), (38,), (20,), (83,)]
        assert oracle.start_order == ["0000", "0001", "0002", "0003", "0004", "0005"]

    @pytest.mark.parametrize("workers", [2, 5])
    def test_finds_the_same_in_fewer_rounds(self, tmp_path, workers):
        alone = quiet_oracle(tmp_path / "alone", (4, 4, 4))
        steps = len(follow(alone, MIXED))
        oracle = quiet_oracle(tmp_path / "several", (4, 4, 4))
        wire, rounds = Wire(oracle), 0
        while True:
            trials = {name: wire.create_trial(name) for name in "abcde"[:workers]}
            running = [t for t in trials.values() if t.status == "RUNNING"]
            if not running:
                break
            rounds += 1
            assert len(oracle.ongoing_trials) == len(running)
            # The last to begin is the first to end.
            for trial in reversed(running):
                report(wire, trial, MIXED)
        assert outcomes_of(oracle)[0].blocks == MIXED.answer(0.1)
        settings = depths_of(oracle)
        assert len(set(settings)) == len(settings)
        assert rounds <= steps

    def test_the_search_is_over_when_all_know(self, oracle):
        a, b = oracle.create_trial("a"), oracle.create_trial("b")
        stages = stages_of(constant(0.1))
        report(oracle, a, stages)
        assert blocks(oracle.create_trial("a").hyperparameters) == (1,)
        report(oracle, oracle.ongoing_trials["a"], stages)
        # The answer is found; but if b dies, a has its trial to do.
        assert oracle.create_trial("a").status == "IDLE"
        report(oracle, b, stages)
        for name in "ba":
            assert oracle.create_trial(name).status == "STOPPED"


class TestWarmStart:
    def test_the_deepest_that_is_shallower_lends_its_weights(self, tmp_path):
        stages = stages_of(saturating(4, 8), saturating(3, 5))
        tuner = search(tmp_path, stages, (4, 4), warm_start=True)
        trials = {trial.trial_id: trial for trial in tuner.oracle.in_order()}
        lent = 0
        for place, trial in enumerate(trials.values()):
            setting = blocks(trial.hyperparameters)
            shallower = [
                other
                for other in tuner.ran[:place]
                if all(a <= b for a, b in zip(other, setting, strict=True))
            ]
            source = trial.hyperparameters.values.get("tuner/warm_start")
            assert (source is None) == (not shallower)
            if shallower:
                lent += 1
                assert blocks(trials[source].hyperparameters) in shallower
                assert sum(blocks(trials[source].hyperparameters)) == max(map(sum, shallower))
        assert lent >= 2
        assert tuner.ran == search(tmp_path / "cold", stages, (4, 4)).ran
        frame = trace_of(tuner.oracle)
        assert frame.loc[frame["trial"] == 1, "from_trial"].tolist() == ["0000", "0000"]


class TestFailures:
    def test_goes_shallower(self, tmp_path):
        tuner = search(tmp_path, stages_of(power(16), deepest=38), (4,))
        assert [depth > 38 for (depth,) in tuner.ran[:3]] == [False, True, False]
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks) == ("found", (13,))
        (failed,) = (t for t in tuner.oracle.in_order() if t.status == "FAILED")
        assert "blocks are too many" in failed.message

    def test_three_in_a_row_end_it(self, tmp_path):
        message = (
            r"^Number of consecutive failures exceeded the limit of 3\. The last: .*are too many$"
        )
        for _ in range(2):
            with pytest.raises(tuning.SearchError, match=message):
                search(tmp_path, UNTRAINABLE, (9,))
            # Whoever reads it does not forgive them.
            oracle = read_search(tmp_path / "search")
            assert depths_of(oracle) == [(9,), (4,), (2,)]
            assert trace_of(oracle)["status"].tolist() == ["failed"] * 3
        # Mended and started again, all of them are tried again, and what follows.
        tuner = search(tmp_path, EASY, (9,))
        assert tuner.ran == [(9,), (4,), (2,), (6,), (5,)]
        assert depths_of(tuner.oracle) == tuner.ran
        assert {(t.status, t.message) for t in tuner.oracle.in_order()} == {("COMPLETED", None)}
        assert outcomes_of(tuner.oracle)[0].blocks == (6,)

    def test_retries(self, tmp_path):
        oracle = quiet_oracle(tmp_path, max_retries_per_trial=1)
        for _ in range(2):
            trial = oracle.create_trial("a")
            assert (trial.trial_id, trial.status) == ("0000", "RUNNING")
            end(oracle, trial, "INVALID")
        assert oracle.trials["0000"].status == "FAILED"
        trial = oracle.create_trial("a")
        assert (trial.trial_id, blocks(trial.hyperparameters)) == ("0001", (2,))

    def test_a_chief_does_not_raise(self, tmp_path, served):
        oracle = quiet_oracle(tmp_path, (9,))
        wire = Wire(oracle)
        others = wire.create_trial("b")
        for _ in range(3):
            assert oracle.failure is None
            end(wire, wire.create_trial("a"), "FAILED")
        assert oracle.failure.startswith("Number of consecutive failures exceeded")
        assert wire.create_trial("a").status == "STOPPED"
        report(wire, others, EASY)
        assert wire.create_trial("b").status == "STOPPED"

    def test_nothing_shallower_is_left(self, tmp_path):
        tuner = search(tmp_path, UNTRAINABLE, (2,))
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks) == ("failed", None)
        told = "networks of the depths that are left to try could not be trained"
        assert outcome.message.startswith(told)
        assert "(1,) blocks are too many" in outcome.message
        # A passing failure is tried again.
        assert search(tmp_path, EASY, (2,)).ran[:2] == [(2,), (1,)]

    def test_a_worker_that_dies_after_its_report(self, oracle):
        trial = oracle.create_trial("a")
        oracle.update_trial(trial.trial_id, EASY.metrics((4,)))
        assert oracle.create_trial("a").trial_id == "0001"
        assert (oracle.trials["0000"].status, oracle.end_order) == ("COMPLETED", ["0000"])


TYPES = {
    **{"trial": "int64", "status": "str", "stage": "int64", "blocks": "int64"},
    "measured_blocks": "Int64",
    **{name: "float64" for name in (*trace.STAGE_METRICS, "scaled_distance_deviation")},
    "mean_scaled_perturbation_as_built": "float64",
    "mean_scaled_perturbation_settled": "float64",
    "mean_scaled_perturbation_change_error": "float64",
    **{"moved": "boolean", "depth_asked_for": "Int64", "meets_rule": "boolean", "found": "bool"},
    **{"error": "float64", "seconds": "float64"},
}


def assert_types(frame):
    # Strings are objects before pandas 3.
    found = {name: str(frame[name].dtype).replace("object", "str") for name in frame}
    assert list(found.items()) == list(TYPES.items())


class TestTrace:
    @pytest.fixture
    def oracle(self, tmp_path):
        """A finished, a failed and a running trial."""
        oracle = quiet_oracle(tmp_path, (4, 2))
        report(oracle, oracle.create_trial("a"), stages_of(*EASY.laws * 2, offsets=(0, 1)))
        end(oracle, oracle.create_trial("a"), "FAILED")
        oracle.create_trial("a")
        return oracle

    def test_rows(self, oracle):
        frame = trace_of(oracle)
        assert_types(frame)
        assert frame["trial"].tolist() == [0, 0, 1, 1, 2, 2]
        assert frame["stage"].tolist() == [1, 2] * 3
        assert frame["status"].tolist() == ["completed"] * 2 + ["failed"] * 2 + ["running"] * 2
        assert frame["blocks"].tolist() == [4, 2, 6, 7, 5, 4]
        # Laws are not built, nor trained several times.
        missing = [name for name in frame if name.endswith(("as_built", "settled", "change_error"))]
        missing += ["moved", "scaled_distance_deviation"]
        assert frame[missing].isna().all(axis=None)
        assert frame.drop(columns=missing).iloc[0].to_dict() == {
            **{"trial": 0, "status": "completed", "stage": 1, "blocks": 4, "measured_blocks": 4},
            **{"distance": 18.0, "scaled_distance": 0.6},
            **{"mean_perturbation": 4.5, "mean_scaled_perturbation": 0.15},
            **{"depth_asked_for": 6, "meets_rule": False, "found": False},
            **{"error": pytest.approx(1 / 6, rel=1e-6), "seconds": 2.5},
        }
        assert frame.loc[1, ["measured_blocks", "scaled_distance"]].tolist() == [1, 0.6]
        known = ["trial", "status", "stage", "blocks", "found"]
        assert frame.loc[2:, [n for n in frame if n not in known]].isna().all(axis=None)
        assert not frame["found"].any()

    def test_read_from_the_disk(self, tmp_path, oracle):
        before = contents_of(tmp_path)
        read = read_search(tmp_path / "search")
        pd.testing.assert_frame_equal(trace_of(read), trace_of(oracle))
        assert outcomes_of(read) == outcomes_of(oracle)
        assert [trial.status for trial in read.in_order()] == ["COMPLETED", "FAILED", "RUNNING"]
        assert contents_of(tmp_path) == before


def outcome_of(folder, stages, start, **kwargs):
    (outcome,) = outcomes_of(search(folder, stages, start, **kwargs).oracle)
    return outcome


class TestOutcomes:
    def test_found(self, tmp_path):
        outcome = outcome_of(tmp_path, MIXED, (4, 4, 4))
        depths = " ".join(map(str, MIXED.answer(0.1)))
        assert outcome.message == (
            f"{depths} blocks (error {1 / sum(outcome.blocks):.1%}): every stage has a mean scaled "
            "perturbation of 0.1 or less, and more with one block less"
        )
        outcome = outcome_of(tmp_path / "a", stages_of(saturating(3, 5)), (4,), tolerance=2)
        assert " and more with 3 blocks less" in outcome.message
        stages = stages_of(constant(0.6), constant(0.05), constant(0.05), offsets=(0, 1, 0))
        outcome = outcome_of(tmp_path / "b", stages, (4, 4, 4), min_blocks=(1, 1, 3))
        assert outcome.blocks == (6, 2, 3)
        assert " less (stage 2, 3: the smallest depth possible)" in outcome.message

    def test_not_satisfied(self, tmp_path):
        stages = stages_of(constant(0.5), proportional(0.3))
        tuner = search(tmp_path, stages, (4, 4), max_blocks=(128, 24))
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks, outcome.trial) == ("not satisfied", None, None)
        assert "stage 2 at 24 blocks" in outcome.message
        assert tuner.get_best_hyperparameters(10) == []
