"""The oracle inside keras-tuner: its trials, its files, its workers, and the frame of it all.

The networks are laws, see `synthetic_search`; all else is keras-tuner's, the serialised messages
between a chief and its workers too. Not covered: processes and the network between them, see
`test_workers.py` and `test_killed_search.py`.
"""

import collections
import json
import re
import shutil

import keras_tuner
import numpy as np
import pandas as pd
import pytest
from keras_tuner.src.engine.trial import Trial
from tuning.synthetic_search import (
    Stages,
    SyntheticSearch,
    Wire,
    constant,
    depths_of,
    end,
    follow,
    follow_plan,
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
    DepthOracle,
    blocks,
    depth_oracle,
    outcomes_of,
    read_search,
    trace,
    trace_of,
)

pytestmark = pytest.mark.eager

EASY = stages_of(constant(0.6))
MIXED = stages_of(saturating(3, 5), constant(1.05), hyperbolic(2.2, 4), offsets=(0, 1, 1))


def state_of(oracle):
    """What an oracle knows, but for times."""
    trials = [trial.get_state() for trial in oracle.in_order()]
    return {"trials": trials, "ends": oracle.end_order, "waiting": oracle.waiting}


def without_ids(values):
    return {name: value for name, value in values.items() if not name.startswith("tuner/")}


def json_at(folder, *path):
    return json.loads(folder.joinpath("search", *path).read_text())


@pytest.fixture
def clock(monkeypatch):
    """The oracle's clock, which tests turn: `clock.now += 10`."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(depth_oracle, "time", clock)
    return clock


@pytest.fixture
def served(monkeypatch):
    """This process is a chief's."""
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")


class TestSearch:
    @pytest.mark.parametrize(
        ("stages", "start", "epsilon", "most"),
        [
            (stages_of(constant(3.69)), (4,), 0.1, 3),
            (stages_of(constant(0.0)), (9,), 0.1, 2),
            (stages_of(power(50), power(9), power(70), power(0.1)), (3, 4, 5, 2), 0.2, 4),
            (stages_of(saturating(4, 8), saturating(6, 12)), (8, 2), 0.05, 6),
            (MIXED, (40, 1, 60), 0.1, 9),
        ],
    )
    def test_finds_the_fewest_blocks(self, tmp_path, stages, start, epsilon, most):
        tuner = search(tmp_path, stages, start, epsilon=epsilon)
        answer = stages.answer(epsilon)
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks, outcome.hyperparameters) == ("found", answer, {})
        (best,) = tuner.get_best_hyperparameters()
        assert blocks(best) == answer
        assert tuner.ran[0] == start
        assert len(set(tuner.ran)) == len(tuner.ran) <= most
        assert depths_of(tuner.oracle) == tuner.ran
        assert depths_of(tuner.oracle)[outcome.trial] == answer
        assert tuner.oracle.is_over() or tuner.oracle.tuner_ids

    def test_does_what_the_plan_says(self, tmp_path):
        for place in range(5):
            noisy = Stages(MIXED.laws, noise=0.03, seed=place)
            tuner = search(tmp_path / str(place), noisy, (4, 4, 4), tolerance=place % 2)
            found, settings = follow_plan(noisy, (4, 4, 4), tolerance=place % 2)
            assert tuner.ran == settings
            assert outcomes_of(tuner.oracle)[0].blocks == found.best

    def test_not_satisfied(self, tmp_path):
        stages = stages_of(constant(0.5), proportional(0.3))
        tuner = search(tmp_path, stages, (4, 4), max_blocks=(128, 24))
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks, outcome.trial) == ("not satisfied", None, None)
        assert outcome.message == (
            "no depth inside the bounds brings every mean scaled perturbation to 0.1: stage 2 at "
            "24 blocks has more. Raise `epsilon` or `max_blocks`, or train longer"
        )
        assert tuner.oracle.get_best_trials(10) == []
        assert tuner.get_best_hyperparameters(10) == []

    def test_max_trials(self, tmp_path):
        tuner = search(tmp_path, EASY, (40,), max_trials=2)
        (outcome,) = outcomes_of(tuner.oracle)
        assert tuner.ran == [(40,), (6,)]
        assert (outcome.status, outcome.blocks, outcome.trial) == ("searching", (6,), 1)
        assert outcome.message == (
            "the search for a mean scaled perturbation of 0.1 is not finished: 6 blocks (error "
            "16.7%) meet it; 2 trials were allowed"
        )
        assert tuner.remaining_trials == 0
        assert tuner.oracle.is_over()
        assert search(tmp_path, EASY, (40,), max_trials=2).ran == []
        assert search(tmp_path, EASY, (40,), max_trials=9).ran == [(5,)]

    def test_overwrite(self, tmp_path):
        search(tmp_path, EASY)
        other = stages_of(constant(2.0))
        assert search(tmp_path, other, overwrite=True).ran == [(4,), (20,), (19,)]
        assert search(tmp_path, other).ran == []

    def test_summaries(self, tmp_path, capsys):
        tuner = search(tmp_path, EASY)
        tuner.search_space_summary()
        tuner.results_summary()
        printed = capsys.readouterr().out
        assert "blocks1 (Int)" in printed
        assert "Score: 6.0" in printed

    def test_talks_of_the_rule(self, tmp_path, capsys):
        """And never of the penalty that is the score of a trial that does not meet it."""
        stages = stages_of(constant(0.6), constant(0.2), offsets=(0, 1), deepest=80)
        SyntheticSearch(
            DepthOracle((4, 1)), stages, directory=tmp_path, project_name="search"
        ).search()
        printed = capsys.readouterr().out
        assert "Search: Running Trial #3" in printed
        told = re.findall(r"^(Trial .*) \[00h 00m 0.s\](.*)\n(Fewest .*)$", printed, re.M)
        rule, fewest = "the rule of 0.1 or less", "Fewest blocks that meet the rule so far: "
        assert told == [
            (
                "Trial 1, 4 1 blocks",
                f": mean scaled perturbation 0.15 none, does not meet {rule}, error 20.0%",
                f"{fewest}none yet",
            ),
            ("Trial 2, 6 128 blocks", ": could not be trained", f"{fewest}none yet"),
            (
                "Trial 3, 5 64 blocks",
                f": mean scaled perturbation 0.12 0.00317, does not meet {rule}, error 1.4%",
                f"{fewest}none yet",
            ),
            *told[3:],
        ]
        assert told[-1][2] == f"{fewest}6 3"
        assert "10000" not in printed


class TestScores:
    @pytest.fixture
    def oracle(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (4, 4))
        follow(oracle, stages_of(constant(0.6), constant(2.0), offsets=(0, 1)))
        return oracle

    def test_blocks_or_more_than_a_million(self, oracle):
        scores = {blocks(t.hyperparameters): t.score for t in oracle.in_order()}
        # What keeps the shape counts: 20 of 21 blocks. The worst stage is how far off it is.
        assert scores.pop((4, 4)) == pytest.approx(1e6 + (2.0 / 3) / 0.1, abs=1e-6)
        assert scores.pop((6, 21)) == 27
        assert scores.pop((5, 20)) == pytest.approx(1e6 + 0.12 / 0.1, abs=1e-6)
        assert scores == {}

    def test_a_stage_without_measured_blocks_is_far_off(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (1, 4))
        stages = stages_of(constant(0.3), constant(0.3), offsets=(1, 0))
        report(oracle, oracle.create_trial("a"), stages)
        assert oracle.in_order()[0].score == 1e6 + 10

    def test_never_less_than_a_million_nor_more_than_two(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (4,), epsilon=1e-3)
        for distance in (0.0041, 1e30):
            report(oracle, oracle.create_trial("a"), stages_of(constant(distance)))
        assert [trial.score > 1e6 for trial in oracle.in_order()] == [True, True]
        assert oracle.in_order()[1].score == 2e6

    def test_the_best_meet_the_rule(self, oracle):
        oracle.create_trial("b")
        assert [blocks(t.hyperparameters) for t in oracle.get_best_trials(10)] == [(6, 21)]
        assert oracle.get_best_trials(0) == []

    def test_the_fewest_blocks_first(self, tmp_path):
        tuner = search(tmp_path, stages_of(constant(0.35)), (40,))
        assert [blocks(hp) for hp in tuner.get_best_hyperparameters(10)] == [(4,), (40,)]
        assert [blocks(hp) for hp in tuner.get_best_hyperparameters(1)] == [(4,)]

    def test_neither_running_nor_failed_ones(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        trial = oracle.create_trial("a")
        oracle.create_trial("b")
        end(oracle, trial, "FAILED")
        assert oracle.get_best_trials(10) == []


class TestWire:
    @pytest.mark.parametrize("noise", [0.0, 0.03])
    def test_the_same_search(self, tmp_path, noise):
        stages = Stages(MIXED.laws, MIXED.offsets, noise)
        direct, wired = (quiet_oracle(tmp_path / name, (4, 4, 4)) for name in ("a", "b"))
        assert follow(Wire(wired), stages) == follow(direct, stages)
        assert outcomes_of(wired) == outcomes_of(direct)
        pd.testing.assert_frame_equal(trace_of(wired), trace_of(direct))
        scores = [[trial.score for trial in oracle.in_order()] for oracle in (wired, direct)]
        assert scores[0] == scores[1]

    def test_measurements_are_what_was_measured(self, tmp_path):
        rng = np.random.default_rng(0)
        numbers = [0.3, 0.1, 1.1, 1e-20, 3e7, *10 ** rng.uniform(-6, 3, 60)]
        for place, number in enumerate(numbers):
            oracle = quiet_oracle(tmp_path / str(place), (7,))
            trial = oracle.create_trial("a")
            metrics = {"blocks": 7.0, "stage1/blocks": 7.0, "stage1/scaled_distance": number}
            Wire(oracle).update_trial(trial.trial_id, metrics)
            received = Trial.from_proto(oracle.trials[trial.trial_id].to_proto())
            (measured,) = oracle.measurements(oracle.trials[trial.trial_id])
            assert oracle.measurements(received) == [measured]
            assert (measured.blocks, measured.counted) == (7, 7)
            # Also where the worker is this process, and nothing was rounded on the way.
            oracle = quiet_oracle(tmp_path / f"own{place}", (7,))
            oracle.create_trial("a")
            oracle.update_trial("0000", metrics)
            assert oracle.measurements(oracle.trials["0000"]) == [measured]
            assert measured.distance == single(number)

    def test_an_exact_multiple_stays_one(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (3,))
        assert follow(Wire(oracle), stages_of(constant(0.3))) == [(3,), (2,)]
        assert outcomes_of(oracle)[0].blocks == (3,)

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
        values = [oracle.others_of(trial) for trial in oracle.in_order()]
        assert all(value in combinations for value in values)


class TestOtherHyperparameters:
    def test_a_search_per_combination(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        space.Int("kernel", 3, 7, step=2)
        space.Boolean("norm")
        space.Fixed("stem", "wide")

        def law(values):
            return stages_of(constant(values["width"] / 10 + values["kernel"] + values["norm"]))

        tuner = search(tmp_path, law, (4,), hyperparameters=space)
        outcomes = outcomes_of(tuner.oracle)
        assert len(outcomes) == len(tuner.oracle.combinations()) == 12
        for outcome in outcomes:
            assert outcome.status == "found"
            assert outcome.blocks == law(outcome.hyperparameters).answer(0.1)
            assert outcome.hyperparameters["stem"] == "wide"
        trials = [t.hyperparameters.values for t in tuner.oracle.in_order()]
        assert len({tuple(sorted(map(str, values.items()))) for values in trials}) == len(trials)
        # The best is the best of all.
        (best,) = tuner.get_best_hyperparameters()
        assert best.values == {
            "blocks1": 38,
            "width": 8,
            "kernel": 3,
            "norm": False,
            "stem": "wide",
        }

    def test_one_combination_after_the_other(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        tuner = search(tmp_path, EASY, (4,), hyperparameters=space)
        assert tuner.ran == [(4,), (6,), (5,)] * 2
        widths = [trial.hyperparameters["width"] for trial in tuner.oracle.in_order()]
        assert widths == [8, 8, 8, 16, 16, 16]

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
            {"kind": "wide", "factor": 2},
            {"kind": "wide", "factor": 4},
            {"kind": "wide", "factor": 6},
            {"kind": "deep", "shared": True},
            {"kind": "deep", "shared": False},
        ]
        assert len(tuner.ran) == 6 * 3
        assert {outcome.blocks for outcome in outcomes_of(tuner.oracle)} == {(6,)}

    def test_declared_by_a_network_that_is_built_later(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        for _ in range(20):
            trial = oracle.create_trial("a")
            if trial.status == "STOPPED":
                break
            trial.hyperparameters.Choice("width", [8, 16])
            report(oracle, trial, EASY)
        assert depths_of(oracle) == [(4,), (6,), (5,)] * 2

    def test_names_of_scopes(self, tmp_path):
        space = keras_tuner.HyperParameters()
        with space.name_scope("stem"):
            space.Choice("width", [8, 16])
        tuner = search(tmp_path, EASY, (4,), hyperparameters=space)
        assert trace_of(tuner.oracle)["width"].tolist() == [8, 8, 8, 16, 16, 16]

    def test_not_a_combination_shares_trials_with_another(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        oracle = quiet_oracle(tmp_path, hyperparameters=space)
        report(oracle, oracle.create_trial("a"), EASY)
        assert oracle.plan({"width": 8}).proposals[0] == (6,)
        assert oracle.plan({"width": 16}).proposals[0] == (4,)

    def test_infinitely_many_values(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Float("rate", 0.1, 0.3)
        oracle = quiet_oracle(tmp_path, hyperparameters=space)
        with pytest.raises(ValueError, match=r"`rate` a `step`.*Received: Float\(name: 'rate'"):
            oracle.combinations()

    @pytest.mark.parametrize("name", ["blocks1", "blocks7"])
    def test_the_names_of_depths(self, name):
        space = keras_tuner.HyperParameters()
        space.Int(name, 1, 9)
        with pytest.raises(ValueError, match=f"must not name the depths.*Received: '{name}'$"):
            DepthOracle((4,), hyperparameters=space)

    def test_names_like_those_of_depths(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("blocks", [2, 3])
        space.Choice("blocks1x", ["a"])
        oracle = quiet_oracle(tmp_path, hyperparameters=space)
        assert follow(oracle, EASY) == [(4,), (6,), (5,)] * 2

    def test_under_the_condition_of_a_depth(self, tmp_path):
        space = DepthOracle((4,)).hyperparameters
        with space.conditional_scope("blocks1", [4]):
            space.Boolean("flag")
        oracle = quiet_oracle(tmp_path)
        with space.conditional_scope("blocks1", [4]):
            oracle.update_space(space)
        with pytest.raises(ValueError, match=r"must not depend on them.*Received: Boolean\(name"):
            follow(oracle, EASY, most=20)

    def test_columns_of_the_same_name(self, tmp_path):
        space = keras_tuner.HyperParameters()
        for scope, width in (("stem", 8), ("head", 16)):
            with space.name_scope(scope):
                space.Fixed("width", width)
        oracle = quiet_oracle(tmp_path, hyperparameters=space)
        follow(oracle, EASY)
        row = trace_of(oracle).iloc[0].to_dict()
        assert {8, 16} <= {row[name] for name in row if "width" in name}


class TestBlocks:
    def test_of_a_trial(self, tmp_path):
        oracle = quiet_oracle(tmp_path, tuple(range(1, 12)))
        trial = oracle.create_trial("a")
        assert blocks(trial.hyperparameters) == tuple(range(1, 12))
        assert all(type(depth) is int for depth in blocks(trial.hyperparameters))
        assert blocks(Trial.from_proto(trial.to_proto()).hyperparameters) == tuple(range(1, 12))

    @pytest.mark.parametrize("values", [{}, {"blocks2": 4}, {"blocks1": 4, "blocks3": 4}])
    def test_of_another_search(self, values):
        hyperparameters = keras_tuner.HyperParameters()
        hyperparameters.values = values
        with pytest.raises(ValueError, match=r"`hyperparameters`.*Received: .*values \{"):
            blocks(hyperparameters)


class TestResumed:
    @pytest.mark.parametrize("trial", range(6))
    def test_goes_on_as_if_nothing_had_happened(self, tmp_path, trial):
        whole = search(tmp_path / "whole", MIXED, (4, 4, 4))
        assert len(whole.ran) == 5
        folder = tmp_path / "interrupted"
        if trial < 5:
            with pytest.raises(KeyboardInterrupt):
                search(folder, MIXED, (4, 4, 4), interrupt_at=trial)
        else:
            search(folder, MIXED, (4, 4, 4), interrupt_at=trial)
        resumed = search(folder, MIXED, (4, 4, 4))
        assert resumed.ran == whole.ran[trial:]
        assert depths_of(resumed.oracle) == whole.ran
        assert outcomes_of(resumed.oracle) == outcomes_of(whole.oracle)
        assert state_of(resumed.oracle) == state_of(whole.oracle)
        assert json_at(folder, "oracle.json")["start_order"] == whole.oracle.start_order

    def test_a_trial_that_runs_is_run_again(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        begun = [oracle.create_trial(name) for name in ("a", "b")]
        again = quiet_oracle(tmp_path)
        again.reload()
        taken = [again.create_trial(name) for name in ("c", "d")]
        assert [t.trial_id for t in taken] == [t.trial_id for t in begun]
        assert [blocks(t.hyperparameters) for t in taken] == [(6,), (5,)]
        assert len(again.trials) == 3

    def test_a_chief_gives_a_trial_back_to_its_worker(self, tmp_path, served):
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        begun = [oracle.create_trial(name) for name in ("a", "b")]
        again = quiet_oracle(tmp_path)
        again.reload()
        for name, trial in zip(("b", "a"), reversed(begun), strict=True):
            assert again.create_trial(name).trial_id == trial.trial_id
        # A worker that has not noticed ends its trial.
        report(again, Trial.from_proto(begun[0].to_proto()), EASY)
        assert again.plan().best == (6,)
        assert "a" not in again.ongoing_trials

    def test_a_chief_that_talks(self, tmp_path, served, capsys):
        oracle = quiet_oracle(tmp_path)
        oracle.verbose = 1
        trial = Wire(oracle).create_trial("a")
        again = quiet_oracle(tmp_path)
        again.verbose = 1
        again.reload()
        report(Wire(again), trial, EASY)
        assert again.ongoing_trials == {}

    def test_another_epsilon_scores_anew(self, tmp_path):
        search(tmp_path, EASY)
        loose = search(tmp_path, EASY, epsilon=0.15)
        assert [t.score for t in loose.oracle.in_order()[:3]] == [4.0, 6.0, 5.0]
        assert loose.ran == [(3,)]
        assert json_at(tmp_path, "trial_0000", "trial.json")["score"] == 4.0
        tight = search(tmp_path, EASY, epsilon=0.05)
        assert tight.ran == [(12,), (11,)]
        assert [trial.score > 1e6 for trial in tight.oracle.in_order()] == [True] * 4 + [
            False,
            True,
        ]
        assert json_at(tmp_path, "trial_0000", "trial.json")["score"] > 1e6
        assert [o.blocks for o in outcomes_of(tight.oracle)] == [(12,)]

    def test_larger_limits(self, tmp_path):
        stages = stages_of(constant(3.0))
        assert outcomes_of(search(tmp_path, stages, max_blocks=9).oracle)[0].blocks is None
        assert outcomes_of(search(tmp_path, stages, max_blocks=40).oracle)[0].blocks == (30,)

    def test_a_start_elsewhere_is_not_begun_again(self, tmp_path):
        search(tmp_path, EASY)
        assert search(tmp_path, EASY, (50,)).ran == []

    def test_another_number_of_stages(self, tmp_path):
        search(tmp_path, EASY)
        with pytest.raises(ValueError, match=r"`start`.*has, 1, .*Received: start=\(4, 4\), fol"):
            search(tmp_path, EASY, (4, 4))

    def test_a_folder_of_another_search(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Int("width", 1, 9)
        other = keras_tuner.oracles.RandomSearchOracle(
            keras_tuner.Objective("blocks", "min"), hyperparameters=space
        )
        other._set_project_dir(str(tmp_path), "search")
        other.save()
        with pytest.raises((ValueError, RuntimeError), match="search"):
            quiet_oracle(tmp_path).reload()


def contents_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


DAMAGED = {
    "empty": b"",
    "cut": lambda whole: whole[: len(whole) // 2],
    "binary": b"\x89\xff\x00",
    "null": b"null",
    "a list": b"[]",
    "a number": b"7",
}


class TestTorn:
    """What a killed process leaves, on purpose; `test_killed_search.py` kills."""

    @pytest.fixture
    def folder(self, tmp_path):
        """A search with one finished trial, and a second one whose worker has reported."""
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        trial = oracle.create_trial("a")
        oracle.update_trial(trial.trial_id, EASY.metrics(blocks(trial.hyperparameters)))
        return tmp_path

    def reloaded(self, folder, start=(4,)):
        oracle = quiet_oracle(folder, start)
        oracle.reload()
        return oracle

    def test_a_report_makes_a_finished_trial(self, folder):
        assert json_at(folder, "trial_0001", "trial.json")["status"] == "RUNNING"
        oracle = self.reloaded(folder)
        assert [trial.status for trial in oracle.in_order()] == ["COMPLETED", "COMPLETED"]
        assert oracle.in_order()[1].score == 6.0
        assert oracle.end_order == ["0000", "0001"]
        assert follow(oracle, EASY) == [(5,)]

    def test_a_failure_that_the_oracle_has_not_noted(self, tmp_path):
        """Other ends are among `test_at_every_write`."""
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        trial = oracle.create_trial("a")
        before = (tmp_path / "search" / "oracle.json").read_bytes()
        end(oracle, trial, "FAILED")
        (tmp_path / "search" / "oracle.json").write_bytes(before)
        again = self.reloaded(tmp_path)
        assert again.end_order == ["0000", "0001"]
        assert again.trials["0001"].status == "FAILED"
        assert (again.ongoing_trials, again.waiting) == ({}, [])

    def test_killed_before_anything_was_written(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        (tmp_path / "search" / "trial_0000").mkdir(parents=True)
        (tmp_path / "search" / ".oracle-x1y2.json").write_text('{"ongo')
        assert follow(oracle, EASY) == [(4,), (6,), (5,)]
        assert len(self.reloaded(tmp_path).trials) == 3

    def test_a_trial_that_ends_while_the_folder_is_read(self, tmp_path, monkeypatch):
        """Whoever watches a search does not hold its folder."""
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        read = depth_oracle.read_json

        def read_slowly(*args):
            content = read(*args)
            if len(oracle.trials) == 1:
                report(oracle, oracle.create_trial("a"), EASY)
            return content

        for module in (depth_oracle, trace):
            monkeypatch.setattr(module, "read_json", read_slowly)
        again = quiet_oracle(tmp_path)
        again.reload(look=True)
        assert len(trace_of(again)) == 2

    @pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
    @pytest.mark.parametrize("name", ["oracle.json", "trial_0001/trial.json"])
    def test_a_damaged_file(self, folder, name, content):
        path = folder / "search" / name
        whole = path.read_bytes()
        path.write_bytes(content(whole) if callable(content) else content)
        self.assert_refused(folder, rf"is damaged: .* Replace it by .*path='{path}'")
        path.write_bytes(whole)
        assert follow(self.reloaded(folder), EASY) == [(5,)]

    def assert_refused(self, folder, match):
        """By those that look and those that resume, in one line, with nothing written."""
        before = contents_of(folder)
        for act in (lambda: read_search(folder / "search"), lambda: self.reloaded(folder)):
            with pytest.raises((ValueError, OSError), match=match) as raised:
                act()
            assert re.search(r"\. Received: [^\n]+$", str(raised.value))
            assert contents_of(folder) == before

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("oracle.json", {"start_order": None}),
            ("oracle.json", {"end_order": 7}),
            ("oracle.json", {"hyperparameters": {"space": "none"}}),
            ("oracle.json", {"depth_search": {"start": [4]}}),
            ("trial_0001/trial.json", {"trial_id": "0000"}),
            ("trial_0001/trial.json", {"metrics": {"metrics": {}}, "status": "COMPLETED"}),
            ("trial_0001/trial.json", {"hyperparameters": {"space": [], "values": {}}}),
            ("trial_0001/trial.json", {"hyperparameters": {"space": [], "values": {"blocks1": 9}}}),
        ],
        ids=str,
    )
    def test_a_file_of_something_else(self, folder, name, wrong):
        path = folder / "search" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
        self.assert_refused(folder, rf"is damaged: .* Replace it by .*path='{path}'")

    @pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
    def test_a_measurement_that_is_no_number(self, folder):
        path = folder / "search" / "trial_0001" / "trial.json"
        path.write_text(path.read_text().replace("0.6", "NaN"))
        self.assert_refused(folder, rf"is damaged: .* Replace it by .*path='{path}'")

    def test_a_trial_that_is_not_there(self, folder):
        report(oracle := self.reloaded(folder), oracle.create_trial("a"), EASY)
        for name in ("0000", "0001"):
            (folder / "search" / f"trial_{name}").rename(folder / "away")
            self.assert_refused(folder, rf"must hold all of its trials.* without trial {name}$")
            (folder / "away").rename(folder / "search" / f"trial_{name}")

    def test_a_trial_that_had_just_begun_and_was_not_copied(self, folder):
        oracle = self.reloaded(folder)
        oracle.create_trial("a")
        shutil.rmtree(folder / "search" / "trial_0002")
        assert [t.trial_id for t in read_search(folder / "search").in_order()] == ["0000", "0001"]
        assert follow(self.reloaded(folder), EASY) == [(5,)]

    def test_a_folder_of_a_trial_without_a_trial(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        (tmp_path / "search" / "trial_0001").mkdir()
        (tmp_path / "search" / "trial_0001" / ".trial-abc.json").write_text("")
        again = self.reloaded(tmp_path)
        assert again.create_trial("a").trial_id == "0001"

    def test_at_every_write(self, tmp_path, monkeypatch):
        """The folder as it is after each file is written, and what a search makes of it.

        Finished trials stay, and no more than the one that ran is run again.
        """
        folders, write = [], depth_oracle.write_json

        def watched(path, content):
            write(path, content)
            folders.append(tmp_path / f"copy{len(folders)}")
            shutil.copytree(tmp_path / "origin", folders[-1])

        monkeypatch.setattr(depth_oracle, "write_json", watched)
        stages = stages_of(saturating(3, 5), constant(1.05))
        oracle = quiet_oracle(tmp_path / "origin", (4, 4))
        oracle.save()
        settings = follow(oracle, stages)
        monkeypatch.undo()
        assert len(settings) == 5
        assert len(folders) == 1 + 5 * 5
        for folder in folders:
            again = self.reloaded(folder, (4, 4))
            statuses = [trial.status for trial in again.in_order()]
            finished = statuses.count("COMPLETED")
            assert statuses[:finished] == ["COMPLETED"] * finished
            assert len(statuses) - finished <= 1
            assert follow(again, stages) == settings[finished:]
            assert depths_of(again) == settings
            assert state_of(again)["trials"] == state_of(oracle)["trials"]


class TestSeveralAtOnce:
    def test_a_bracket_around_the_first(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), stages_of(constant(3.69)))
        trials = [oracle.create_trial(name) for name in "abcdefg"]
        assert [t.status for t in trials] == ["RUNNING"] * 5 + ["IDLE"] * 2
        settings = [blocks(t.hyperparameters) for t in trials[:5]]
        assert settings == [(37,), (36,), (38,), (20,), (83,)]
        assert [t.trial_id for t in trials[:5]] == ["0001", "0002", "0003", "0004", "0005"]

    def test_the_first_trials(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (4, 6), max_blocks=20)
        trials = [oracle.create_trial(name) for name in "abcde"]
        assert [t.status for t in trials] == ["RUNNING"] * 4 + ["IDLE"]
        assert depths_of(oracle) == [(4, 6), (8, 12), (16, 20), (20, 6)]

    def test_another_combination_before_a_second_guess(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        oracle = quiet_oracle(tmp_path, hyperparameters=space)
        asked = [oracle.create_trial(name).hyperparameters.values for name in "abc"]
        assert asked == [
            {"blocks1": 4, "width": 8},
            {"blocks1": 4, "width": 16},
            {"blocks1": 8, "width": 8},
        ]

    @pytest.mark.parametrize("workers", [2, 3, 5])
    def test_finds_the_same_in_fewer_rounds(self, tmp_path, workers):
        alone = quiet_oracle(tmp_path / "alone", (4, 4, 4))
        steps = len(follow(alone, MIXED))
        oracle = quiet_oracle(tmp_path / "several", (4, 4, 4))
        wire = Wire(oracle)
        rounds = 0
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
        assert oracle.is_over()

    def test_proposals_do_not_depend_on_who_reports_first(self, tmp_path):
        plans = []
        for order in ((0, 1, 2), (2, 0, 1)):
            oracle = quiet_oracle(tmp_path / str(order), (4, 4, 4))
            trials = [oracle.create_trial(name) for name in "abc"]
            for place in order:
                report(oracle, trials[place], MIXED)
            plans.append(oracle.plan())
        assert plans[0] == plans[1]

    def test_the_search_is_over_when_all_know(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        a, b = oracle.create_trial("a"), oracle.create_trial("b")
        stages = stages_of(constant(0.1))
        report(oracle, a, stages)
        assert blocks(oracle.create_trial("a").hyperparameters) == (1,)
        report(oracle, oracle.ongoing_trials["a"], stages)
        # The answer is found; but if b dies, a has its trial to do.
        assert oracle.create_trial("a").status == "IDLE"
        assert not oracle.is_over()
        report(oracle, b, stages)
        assert not oracle.is_over()
        assert oracle.create_trial("b").status == "STOPPED"
        assert not oracle.is_over()
        assert oracle.create_trial("a").status == "STOPPED"
        assert oracle.is_over()

    def test_one_that_dies_while_the_others_have_nothing_to_do(self, tmp_path, clock):
        oracle = quiet_oracle(tmp_path)
        a, b = oracle.create_trial("a"), oracle.create_trial("b")
        report(oracle, a, stages_of(constant(0.1)))
        report(oracle, oracle.create_trial("a"), stages_of(constant(0.1)))
        assert oracle.create_trial("a").status == "IDLE"
        clock.now += 2 * depth_oracle.LEASE
        assert oracle.create_trial("a").status == "IDLE"
        oracle.release_silent()
        assert not oracle.is_over()
        assert oracle.create_trial("a").trial_id == b.trial_id

    def test_a_worker_that_was_started_again(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        first = oracle.create_trial("a")
        assert oracle.create_trial("a") is first
        assert len(oracle.trials) == 1

    def test_max_trials(self, tmp_path):
        oracle = quiet_oracle(tmp_path, max_trials=2)
        trials = [oracle.create_trial(name) for name in "abc"]
        assert [t.status for t in trials] == ["RUNNING", "RUNNING", "IDLE"]
        for name in "abc":
            for trial in list(oracle.ongoing_trials.values()):
                report(oracle, trial, EASY)
            assert oracle.create_trial(name).status == "STOPPED"
        assert [t.trial_id for t in trials[:2]] == ["0", "1"]

    def test_a_worker_left_over_from_another_search(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        stranger = Trial(keras_tuner.HyperParameters(), "0007", "COMPLETED")
        assert oracle.update_trial("0007", EASY.metrics((4,))).status == "STOPPED"
        oracle.end_trial(stranger)
        assert oracle.trials == {}


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
            if not shallower:
                assert source is None
            else:
                lent += 1
                assert sum(blocks(trials[source].hyperparameters)) == max(map(sum, shallower))
                assert blocks(trials[source].hyperparameters) in shallower
        assert lent >= 2
        assert tuner.ran == search(tmp_path / "cold", stages, (4, 4)).ran
        frame = trace_of(tuner.oracle)
        assert frame.loc[frame["trial"] == 1, "from_trial"].tolist() == ["0000", "0000"]

    def test_of_the_same_width(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        tuner = search(tmp_path, EASY, (4,), warm_start=True, hyperparameters=space)
        trials = tuner.oracle.trials
        sources = [t.hyperparameters.values.get("tuner/warm_start") for t in trials.values()]
        assert sources == [None, "0000", "0000", None, "0003", "0003"]
        assert {outcome.status for outcome in outcomes_of(tuner.oracle)} == {"found"}

    def test_stays_with_its_trial(self, tmp_path):
        oracle = quiet_oracle(tmp_path, warm_start=True)
        report(oracle, oracle.create_trial("a"), EASY)
        running = oracle.create_trial("a")
        again = quiet_oracle(tmp_path, warm_start=True)
        again.reload()
        assert again.create_trial("b").hyperparameters.values == running.hyperparameters.values
        assert running.hyperparameters.values["tuner/warm_start"] == "0000"


class TestFailures:
    def test_goes_shallower(self, tmp_path):
        stages = stages_of(power(16), deepest=38)
        tuner = search(tmp_path, stages, (4,))
        assert [depth > 38 for (depth,) in tuner.ran[:3]] == [False, True, False]
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks) == ("found", (13,))
        failed = [t for t in tuner.oracle.in_order() if t.status == "FAILED"]
        assert len(failed) == 1
        assert all("blocks are too many" in trial.message for trial in failed)

    def test_three_in_a_row_end_it(self, tmp_path):
        with pytest.raises(RuntimeError, match=r"^Number of consecutive failures exceeded"):
            search(tmp_path, Stages(EASY.laws, deepest=0), (9,))
        oracle = read_search(tmp_path / "search")
        assert depths_of(oracle) == [(9,), (4,), (2,)]
        assert [trial.status for trial in oracle.in_order()] == ["FAILED"] * 3

    def test_as_many_in_a_row_as_allowed(self, tmp_path):
        stages = Stages(EASY.laws, deepest=6)
        tuner = search(tmp_path, stages, (40,), max_consecutive_failed_trials=6)
        assert tuner.ran == [(40,), (20,), (10,), (5,), (6,)]
        assert outcomes_of(tuner.oracle)[0].blocks == (6,)

    def test_mended_and_started_again(self, tmp_path):
        with pytest.raises(RuntimeError):
            search(tmp_path, Stages(EASY.laws, deepest=0), (9,))
        tuner = search(tmp_path, EASY, (9,))
        # All of them are tried again, and what follows.
        assert tuner.ran == [(9,), (4,), (2,), (6,), (5,)]
        assert depths_of(tuner.oracle) == tuner.ran
        assert {trial.status for trial in tuner.oracle.in_order()} == {"COMPLETED"}
        assert {trial.message for trial in tuner.oracle.in_order()} == {None}
        assert outcomes_of(tuner.oracle)[0].blocks == (6,)

    def test_not_mended_and_started_again(self, tmp_path):
        for _ in range(2):
            with pytest.raises(RuntimeError):
                search(tmp_path, Stages(EASY.laws, deepest=0), (9,))
        assert depths_of(read_search(tmp_path / "search")) == [(9,), (4,), (2,)]

    def test_mended_in_the_same_process(self, tmp_path):
        tuner = SyntheticSearch(
            quiet_oracle(tmp_path, (9,)),
            Stages(EASY.laws, deepest=0),
            directory=tmp_path,
            project_name="search",
        )
        with pytest.raises(RuntimeError):
            tuner.search(verbose=0)
        tuner.stages = lambda values: EASY
        tuner.oracle.reload()
        tuner.search(verbose=0)
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

    def test_what_waits_for_a_retry_is_not_lost(self, tmp_path):
        oracle = quiet_oracle(tmp_path, max_retries_per_trial=3)
        end(oracle, oracle.create_trial("a"), "INVALID")
        again = quiet_oracle(tmp_path, max_retries_per_trial=3)
        again.reload()
        assert trace_of(again)["status"].tolist() == ["running"]
        assert again.create_trial("b").trial_id == "0000"
        assert not again.is_over()

    def test_a_chief_does_not_raise(self, tmp_path, served):
        oracle = quiet_oracle(tmp_path, (9,))
        wire = Wire(oracle)
        others = wire.create_trial("b")
        for _ in range(3):
            assert oracle.failure is None
            end(wire, wire.create_trial("a"), "FAILED")
        assert oracle.failure.startswith("Number of consecutive failures exceeded")
        assert wire.create_trial("a").status == "STOPPED"
        assert not oracle.is_over()
        report(wire, others, EASY)
        assert wire.create_trial("b").status == "STOPPED"
        assert oracle.is_over()

    def test_nothing_shallower_is_left(self, tmp_path):
        tuner = search(tmp_path, Stages(EASY.laws, deepest=0), (2,))
        (outcome,) = outcomes_of(tuner.oracle)
        assert (outcome.status, outcome.blocks) == ("failed", None)
        assert outcome.message.startswith(
            "networks of the depths that are left to try could not be trained"
        )
        assert "(1,) blocks are too many" in outcome.message

    def test_what_lies_below_could_not_be_trained(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (2,))
        report(oracle, oracle.create_trial("a"), stages_of(constant(0.1)))
        end(oracle, oracle.create_trial("a"), "FAILED")
        (outcome,) = outcomes_of(oracle)
        assert (outcome.status, outcome.blocks) == ("found", (2,))
        assert "contradict" not in outcome.message


class TestSilence:
    """A worker that dies says nothing."""

    def test_its_trial_goes_to_another(self, tmp_path, clock):
        oracle = quiet_oracle(tmp_path)
        lost = oracle.create_trial("a")
        clock.now += depth_oracle.LEASE
        oracle.release_silent()
        assert "a" in oracle.ongoing_trials
        clock.now += 1
        oracle.release_silent()
        assert oracle.ongoing_trials == {}
        assert not oracle.is_over()
        taken = oracle.create_trial("b")
        assert taken.trial_id == lost.trial_id
        report(oracle, taken, EASY)
        assert follow(oracle, EASY, "b") == [(6,), (5,)]
        assert oracle.is_over()

    def test_a_sign_of_life(self, tmp_path, clock):
        oracle = quiet_oracle(tmp_path)
        wire = Wire(oracle)
        trial = wire.create_trial("a")
        for _ in range(3):
            clock.now += 0.7 * depth_oracle.LEASE
            wire.get_trial(trial.trial_id)
            oracle.release_silent()
        assert "a" in oracle.ongoing_trials

    def test_one_that_waits_is_forgotten_too(self, tmp_path, clock):
        oracle = quiet_oracle(tmp_path, max_blocks=4)
        trial = oracle.create_trial("a")
        assert oracle.create_trial("b").status == "IDLE"
        clock.now += 2 * depth_oracle.LEASE
        oracle.get_trial(trial.trial_id)
        oracle.release_silent()
        assert oracle.tuner_ids == {"a"}
        assert set(oracle.ongoing_trials) == {"a"}

    def test_a_chief_that_was_started_again_waits_for_its_workers(self, tmp_path, clock, served):
        oracle = quiet_oracle(tmp_path)
        trial = oracle.create_trial("a")
        again = quiet_oracle(tmp_path)
        again.reload()
        again.release_silent()
        clock.now += 0.9 * depth_oracle.LEASE
        again.release_silent()
        assert set(again.ongoing_trials) == {"a"}
        clock.now += 0.2 * depth_oracle.LEASE
        again.release_silent()
        assert again.ongoing_trials == {}
        assert again.create_trial("b").trial_id == trial.trial_id

    def silenced(self, folder, clock, **kwargs):
        """An oracle whose worker a is taken for dead."""
        oracle = quiet_oracle(folder, **kwargs)
        late = Trial.from_proto(oracle.create_trial("a").to_proto())
        clock.now += 2 * depth_oracle.LEASE
        oracle.release_silent()
        return oracle, late

    def test_a_report_that_comes_first_counts_once(self, tmp_path, clock):
        oracle, late = self.silenced(tmp_path, clock)
        report(oracle, late, EASY)
        assert oracle.waiting == []
        assert blocks(oracle.create_trial("b").hyperparameters) == (6,)

    def test_a_report_while_another_runs_it(self, tmp_path, clock):
        oracle, late = self.silenced(tmp_path, clock)
        taken = Trial.from_proto(oracle.create_trial("b").to_proto())
        report(oracle, late, EASY)
        # The second report says something else, and is not heard.
        report(oracle, taken, stages_of(constant(9.0)))
        assert oracle.end_order == ["0000"]
        assert oracle.measurements(oracle.trials["0000"])[0].distance == 0.6
        assert oracle.ongoing_trials == {}
        assert follow(oracle, EASY, "b") == [(6,), (5,)]

    def test_a_report_after_that_of_another(self, tmp_path, clock):
        oracle, late = self.silenced(tmp_path, clock)
        report(oracle, oracle.create_trial("b"), EASY)
        running = oracle.create_trial("b")
        report(oracle, late, stages_of(constant(9.0)))
        assert oracle.end_order == ["0000"]
        assert oracle.measurements(oracle.trials["0000"])[0].distance == 0.6
        assert oracle.ongoing_trials == {"b": running}
        end(oracle, late, "FAILED")
        assert oracle.trials["0000"].status == "COMPLETED"

    def test_a_failure_while_another_runs_it(self, tmp_path, clock):
        oracle, late = self.silenced(tmp_path, clock)
        taken = Trial.from_proto(oracle.create_trial("b").to_proto())
        end(oracle, late, "FAILED")
        report(oracle, taken, EASY)
        assert oracle.trials["0000"].status == "COMPLETED"

    def test_no_trial_doubled(self, tmp_path, clock):
        """Workers that vanish and come back, at random, until the search is over."""
        rng = np.random.default_rng(0)
        for place in range(3):
            oracle = quiet_oracle(tmp_path / str(place), (4, 4, 4))
            wire, held = Wire(oracle), {}
            reports = collections.Counter()
            for _ in range(400):
                name = str(rng.choice(list("abcd")))
                if name not in held:
                    trial = wire.create_trial(name)
                    if trial.status == "RUNNING":
                        held[name] = trial
                elif rng.random() < 0.7:
                    trial = held.pop(name)
                    reports[trial.trial_id] += 1
                    report(wire, trial, MIXED)
                else:
                    # It dies; its successor has the same name or not.
                    held.pop(name)
                clock.now += rng.choice([1.0, 40.0])
                oracle.release_silent()
                if not held and oracle.is_over():
                    break
            settings = depths_of(oracle)
            assert len(set(settings)) == len(settings) == len(set(oracle.start_order))
            assert outcomes_of(oracle)[0].blocks == MIXED.answer(0.1)
            assert sorted(oracle.end_order) == sorted(set(reports))


class TestTrace:
    COLUMNS: dict = {  # noqa: RUF012
        "trial": "int64",
        "status": "str",
        "stage": "int64",
        "blocks": "int64",
        "measured_blocks": "Int64",
        "distance": "float64",
        "scaled_distance": "float64",
        "mean_perturbation": "float64",
        "mean_scaled_perturbation": "float64",
        "scaled_distance_deviation": "float64",
        "mean_scaled_perturbation_as_built": "float64",
        "mean_scaled_perturbation_change_error": "float64",
        "moved": "boolean",
        "depth_asked_for": "Int64",
        "meets_rule": "boolean",
        "found": "bool",
        "error": "float64",
        "seconds": "float64",
    }

    @pytest.fixture
    def oracle(self, tmp_path):
        """A finished, a failed and a running trial."""
        oracle = quiet_oracle(tmp_path, (4, 2))
        report(oracle, oracle.create_trial("a"), stages_of(*EASY.laws * 2, offsets=(0, 1)))
        end(oracle, oracle.create_trial("a"), "FAILED")
        oracle.create_trial("a")
        return oracle

    def test_columns(self, oracle):
        frame = trace_of(oracle)
        assert list(frame.columns) == list(self.COLUMNS)
        types = {name: str(frame[name].dtype) for name in frame}
        # Strings are objects before pandas 3.
        assert types.pop("status") in ("str", "object")
        assert types == {n: t for n, t in self.COLUMNS.items() if n != "status"}

    def test_rows(self, oracle):
        frame = trace_of(oracle)
        assert frame["trial"].tolist() == [0, 0, 1, 1, 2, 2]
        assert frame["stage"].tolist() == [1, 2] * 3
        assert frame["status"].tolist() == ["completed"] * 2 + ["failed"] * 2 + ["running"] * 2
        assert frame["blocks"].tolist() == [4, 2, 6, 7, 5, 4]
        row = frame.iloc[0].to_dict()
        # Laws are not built.
        assert all(pd.isna(row.pop(name)) for name in list(row) if "as_built" in name)
        assert pd.isna(row.pop("mean_scaled_perturbation_change_error")) and pd.isna(
            row.pop("moved")
        )
        assert row == {
            "trial": 0,
            "status": "completed",
            "stage": 1,
            "blocks": 4,
            "measured_blocks": 4,
            "distance": 18.0,
            "scaled_distance": 0.6,
            "mean_perturbation": 4.5,
            "mean_scaled_perturbation": 0.15,
            "scaled_distance_deviation": pytest.approx(np.nan, nan_ok=True),
            "depth_asked_for": 6,
            "meets_rule": False,
            "found": False,
            "error": pytest.approx(1 / 6, rel=1e-6),
            "seconds": 2.5,
        }
        assert frame.loc[1, ["measured_blocks", "scaled_distance"]].tolist() == [1, 0.6]

    def test_unfinished_rows_have_no_numbers(self, oracle):
        frame = trace_of(oracle)
        known = ["trial", "status", "stage", "blocks", "found"]
        assert frame.loc[2:, [n for n in frame if n not in known]].isna().all(axis=None)
        assert not frame["found"].any()

    @pytest.mark.parametrize("status", ["FAILED", "RUNNING"])
    def test_nothing_finished(self, tmp_path, status):
        oracle = quiet_oracle(tmp_path)
        trial = oracle.create_trial("a")
        if status == "FAILED":
            end(oracle, trial, status)
        frame = trace_of(oracle)
        assert frame["status"].tolist() == [status.lower()]
        types = {name: str(frame[name].dtype) for name in frame if name != "status"}
        assert types == {n: t for n, t in self.COLUMNS.items() if n != "status"}

    def test_nothing_begun(self, tmp_path):
        """A chief has written its file, and no worker has asked yet."""
        quiet_oracle(tmp_path).save()
        oracle = read_search(tmp_path / "search")
        assert list(trace_of(oracle).columns) == list(self.COLUMNS)
        assert len(trace_of(oracle)) == 0
        assert [outcome.status for outcome in outcomes_of(oracle)] == ["searching"]

    def test_a_stage_without_measured_blocks(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (1,))
        report(oracle, oracle.create_trial("a"), stages_of(constant(0.6), offsets=(1,)))
        (row,) = trace_of(oracle).to_dict("records")
        assert (row["measured_blocks"], row["scaled_distance"]) == (0, 0.0)
        assert row["meets_rule"] is False
        assert np.isnan(row["mean_scaled_perturbation"])

    def test_numbers_are_those_of_the_laws(self, tmp_path):
        tuner = search(tmp_path, MIXED, (4, 4, 4))
        frame = trace_of(tuner.oracle)
        assert len(frame) == 3 * len(tuner.ran)
        for place, setting in enumerate(tuner.ran):
            rows = frame[frame["trial"] == place]
            measured = MIXED.measurements(setting)
            assert rows["blocks"].tolist() == list(setting)
            assert rows["measured_blocks"].tolist() == [m.counted for m in measured]
            assert rows["scaled_distance"].tolist() == [m.distance for m in measured]
            assert rows["meets_rule"].tolist() == [m.meets(0.1) for m in measured]
            asked = [tuning.depth_for(m.distance, 0.1) for m in measured]
            assert rows["depth_asked_for"].tolist() == asked
            assert rows["found"].tolist() == [setting == MIXED.answer(0.1)] * 3

    def test_one_found_per_combination(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        tuner = search(tmp_path, EASY, (4,), hyperparameters=space)
        frame = trace_of(tuner.oracle)
        assert frame.loc[frame["found"], "width"].tolist() == [8, 16]
        assert frame.loc[frame["found"], "blocks"].tolist() == [6, 6]
        assert list(frame.columns)[:3] == ["trial", "status", "width"]

    def test_nothing_is_found_before_the_end(self, tmp_path):
        tuner = search(tmp_path, EASY, (40,), max_trials=2)
        frame = trace_of(tuner.oracle)
        assert frame["meets_rule"].tolist() == [True, True]
        assert not frame["found"].any()

    def test_read_from_the_disk(self, tmp_path, oracle):
        read = read_search(tmp_path / "search")
        pd.testing.assert_frame_equal(trace_of(read), trace_of(oracle))
        assert outcomes_of(read) == outcomes_of(oracle)
        assert [trial.status for trial in read.in_order()] == ["COMPLETED", "FAILED", "RUNNING"]

    def test_read_with_all_settings(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Choice("width", [8, 16])
        stages = stages_of(constant(0.62), constant(1.3))
        settings = {
            "epsilon": 0.2,
            "min_blocks": (2, 3),
            "max_blocks": (30, 40),
            "tolerance": 1,
            "warm_start": True,
            "hyperparameters": space,
            "max_trials": 7,
        }
        live = search(tmp_path, stages, (4, 4), **settings).oracle
        read = read_search(str(tmp_path / "search"))
        pd.testing.assert_frame_equal(trace_of(read), trace_of(live))
        assert outcomes_of(read) == outcomes_of(live)
        for name in ("start", "epsilon", "limits", "tolerance", "warm_start", "max_trials"):
            assert getattr(read, name) == getattr(live, name)

    def test_reading_changes_nothing(self, tmp_path, oracle):
        files = [path for path in (tmp_path / "search").rglob("*") if path.is_file()]
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
        trace_of(read_search(tmp_path / "search"))
        after = [path for path in (tmp_path / "search").rglob("*") if path.is_file()]
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in after} == before
        # All trials have failed; a reader does not forgive them.
        with pytest.raises(RuntimeError):
            search(tmp_path / "failed", Stages(EASY.laws, deepest=0), (9,))
        read = read_search(tmp_path / "failed" / "search")
        assert trace_of(read)["status"].tolist() == ["failed"] * 3

    def test_no_search_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"`folder`.*Received: folder='.*nothing'$"):
            read_search(tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()


class TestOutcomes:
    def test_found(self, tmp_path):
        (outcome,) = outcomes_of(search(tmp_path, MIXED, (4, 4, 4)).oracle)
        depths = " ".join(map(str, MIXED.answer(0.1)))
        assert outcome.message == (
            f"{depths} blocks (error {1 / sum(outcome.blocks):.1%}): every stage has a mean scaled "
            "perturbation of 0.1 or less, and more with one block less"
        )

    def test_with_tolerance(self, tmp_path):
        oracle = search(tmp_path, stages_of(saturating(3, 5)), (4,), tolerance=2).oracle
        assert outcomes_of(oracle)[0].message.endswith(" and more with 3 blocks less")

    def test_at_the_smallest_depth(self, tmp_path):
        stages = stages_of(constant(0.6), constant(0.05), constant(0.05), offsets=(0, 1, 0))
        (outcome,) = outcomes_of(search(tmp_path, stages, (4, 4, 4), min_blocks=(1, 1, 3)).oracle)
        assert outcome.blocks == (6, 2, 3)
        assert outcome.message.endswith(" less (stage 2, 3: the smallest depth possible)")

    def test_contradictions(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (5, 10))
        distances = {(5, 10): (0.5, 1.0), (4, 7): (0.5, 0.8), (5, 8): (0.6, 0.8), (6, 8): (1, 1)}
        distances[5, 9] = (0.6, 0.9)
        for setting, (first, second) in distances.items():
            trial = oracle.create_trial("a")
            # Whatever is asked for.
            trial.hyperparameters.values = dict(zip(("blocks1", "blocks2"), setting, strict=True))
            report(oracle, trial, stages_of(constant(first), constant(second)))
        (outcome,) = outcomes_of(oracle)
        assert (outcome.status, outcome.blocks) == ("found", (5, 10))
        assert "the measurements contradict one another; average more" in outcome.message

    def test_interrupted(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path, EASY, interrupt_at=1)
        (outcome,) = outcomes_of(read_search(tmp_path / "search"))
        assert (outcome.status, outcome.blocks, outcome.trial) == ("searching", None, None)
        assert outcome.message == (
            "the search for a mean scaled perturbation of 0.1 is not finished: no trained "
            "network meets it"
        )


class TestArguments:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("start", ()),
            ("start", 4),
            ("start", "44"),
            ("start", (4, 0)),
            ("start", (4, 2.5)),
            ("start", (4, True)),
            ("start", None),
            ("start", (4, 200)),
            ("epsilon", 0),
            ("epsilon", -0.1),
            ("epsilon", float("nan")),
            ("epsilon", "0.1"),
            ("min_blocks", 0),
            ("min_blocks", (1, 2, 3)),
            ("min_blocks", 5),
            ("min_blocks", 1.5),
            ("min_blocks", True),
            ("max_blocks", 3),
            ("max_blocks", (9,)),
            ("max_blocks", None),
            ("tolerance", -1),
            ("tolerance", 0.5),
            ("tolerance", True),
            ("tolerance", None),
        ],
    )
    def test_refused(self, name, value):
        with pytest.raises(ValueError, match=r"Argument `\w+` .*\. Received: \w+=") as raised:
            DepthOracle(**{"start": (4, 4), name: value})
        assert repr(value) in str(raised.value)

    def test_accepted(self):
        oracle = DepthOracle(
            np.array([4, 5]),
            epsilon=np.float32(0.1),
            min_blocks=[1, 2],
            max_blocks=np.array([8, 9]),
            tolerance=3,
        )
        assert oracle.start == (4, 5)
        assert oracle.limits == [(1, 8), (2, 9)]
        assert json.loads(json.dumps([oracle.start, oracle.limits])) == [[4, 5], [[1, 8], [2, 9]]]

    def test_epsilon_as_it_prints(self, tmp_path):
        tuner = search(tmp_path, stages_of(constant(0.3)), (3,), epsilon=0.1)
        assert tuner.ran == [(3,), (2,)]

    def test_a_report_without_its_numbers(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        trial = oracle.create_trial("a")
        with pytest.raises(ValueError, match="Objective value missing"):
            oracle.update_trial(trial.trial_id, {"loss": 1.0})


class TestDeaths:
    def test_a_trial_of_which_its_worker_dies_again_and_again(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (8,))
        wire = Wire(oracle)
        begun = [wire.create_trial("a") for _ in range(1 + depth_oracle.MOST_DEATHS)]
        assert [trial.trial_id for trial in begun] == ["0000"] * depth_oracle.MOST_DEATHS + ["0001"]
        assert oracle.trials["0000"].status == "FAILED"
        assert "died before finishing it" in oracle.trials["0000"].message
        assert blocks(begun[-1].hyperparameters) == (4,)
        report(wire, begun[-1], EASY)
        assert follow(wire, EASY) == [(6,), (5,)]


class TestChanged:
    def test_settings(self, tmp_path):
        search(tmp_path, EASY, settings={"seed": 1})
        with pytest.raises(ValueError, match=r"`seed` must be .*began, 1,.*Received: seed=2, fol"):
            search(tmp_path, EASY, settings={"seed": 2})
        with pytest.raises(ValueError, match=r"`warm_start` must be .*Received: warm_start=True"):
            search(tmp_path, EASY, settings={"seed": 1}, warm_start=True)

    def test_further_values(self, tmp_path):
        for values, ran in (([8], 3), ([8, 16], 3), ([16], 0)):
            space = keras_tuner.HyperParameters()
            space.Choice("width", values)
            tuner = search(tmp_path, EASY, (4,), hyperparameters=space)
            assert len(tuner.ran) == ran
            found = [outcome.hyperparameters["width"] for outcome in outcomes_of(tuner.oracle)]
            assert found == values

    def test_a_hyperparameter_that_only_some_trials_ask_for(self, tmp_path):
        oracle = quiet_oracle(tmp_path)
        report(oracle, oracle.create_trial("a"), EASY)
        trial = oracle.create_trial("a")
        trial.hyperparameters.Choice("extra", [1, 2])
        with pytest.raises(ValueError, match=r"must not depend on them.*Received: new ones"):
            report(oracle, trial, EASY)

    def test_too_many_combinations(self, tmp_path):
        space = keras_tuner.HyperParameters()
        for number in range(40):
            space.Boolean(f"flag{number}")
        with pytest.raises(ValueError, match=r"at most 1000 combinations.*Received: more with Bo"):
            quiet_oracle(tmp_path, hyperparameters=space).combinations()

    def test_logarithmic_ints(self, tmp_path):
        space = keras_tuner.HyperParameters()
        space.Int("width", 2, 8, step=2, sampling="log")
        found = quiet_oracle(tmp_path, hyperparameters=space).combinations()
        assert [type(values["width"]) for values in found] == [int] * 3

    def test_a_passing_failure_is_tried_again(self, tmp_path):
        oracle = quiet_oracle(tmp_path, (1,))
        end(oracle, oracle.create_trial("a"), "FAILED")
        assert outcomes_of(oracle)[0].status == "failed"
        assert search(tmp_path, EASY, (1,)).ran[0] == (1,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_trials", wrong) for wrong in (-1, 0, "3", 2.5)),
        *(("warm_start", "no"), ("max_retries_per_trial", -1), ("hyperparameters", {"a": 1})),
    ],
)
def test_arguments_of_the_oracle(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must be .*Received: {name}="):
        DepthOracle((4,), **{name: value})


def test_numbers_of_numpy(tmp_path):
    oracle = quiet_oracle(
        tmp_path, epsilon=np.float32(0.3), max_blocks=np.int64(8), max_trials=np.int64(3)
    )
    oracle.save()
    assert read_search(tmp_path / "search").epsilon == 0.3
