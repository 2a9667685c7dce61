"""Searches for depth that are killed again and again, and end as if nothing had happened.

Run as a program, this file searches. TensorFlow is loaded once, and every life of a search is a
process forked from there, which saves seconds each.

Not covered: a machine that loses its power; chief and workers, see `test_workers.py`.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytestmark = pytest.mark.system

KILLS = 20
EVENTS = {
    "moves": ("os.rename", "os.remove"),
    "all": ("open", "os.mkdir", "os.rename", "os.remove"),
}
# A large search has more trials than this, and each of them sleeps so many seconds.
TRIALS, SLEEP = 44, 0.01
REAL = {"start": (2,), "epsilon": 0.25, "max_blocks": 8, "max_trials": 6}


# The program


def main(kind, *folders):
    if kind == "real":
        search_with_networks(*folders)
    else:
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps(all_lives(**order)), flush=True)


def all_lives(folder, lives, size):
    """Lets a search live, die, and live again; says of every life how it ended and what it did."""
    folder = pathlib.Path(folder)
    search_class(folder, None)
    told = []
    for number, life in enumerate(lives):
        finished = finished_trials(folder)
        child = os.fork()
        if not child:
            one_life(folder, number, size, **life)
        if "after" in life:
            wait_for_trials(folder, number, life["trials"], child)
            time.sleep(life["after"])
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.append({"code": code, "finished": finished, "begun": begun_trials(folder, number)})
    return told


def wait_for_trials(folder, number, count, child):
    """Until a life has begun so many trials, or is over."""
    while len(begun_trials(folder, number)) < count:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)


def one_life(folder, number, size, kill_at=None, events="moves", **_):
    """Searches, and ends the process."""
    code = 1
    with folder.with_suffix(".log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            if kill_at is not None:
                kill_at_file(folder, EVENTS[events], kill_at)
            search_of(folder, number, size).search(validation_data=([0], [0]), verbose=0)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def kill_at_file(folder, events, count):
    """Kills this process just before its `count`-th operation on a file of the search."""
    left = count

    def watch(event, arguments):
        nonlocal left
        if event in events and str(folder) in os.fsdecode(arguments[0]):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def search_of(folder, number, size):
    start, widths = {
        "large": ((4, 4), [4, 8, 12, 16, 20, 24, 28, 32]),
        "small": ((37,), [4]),
        "longer": ((30,), [4]),
    }[size]
    return search_class(folder, number)(
        lambda hp: hp.Choice("width", widths),
        start=start,
        max_blocks=60,
        directory=folder.parent,
        project_name=folder.name,
    )


def search_class(folder, number):
    import keras_tuner

    from tfresidual import tuning

    class Search(tuning.DepthSearch):
        """Computes what a network would have measured."""

        def execute(self, trial, execution, *args, **kwargs):
            depths, width = (
                tuning.blocks(trial.hyperparameters),
                trial.hyperparameters.get("width"),
            )
            with begun_file(folder, number).open("a") as file:
                file.write(f"{trial.trial_id}\n")
            time.sleep(SLEEP)
            if width == 8 and depths[0] > 40:
                raise keras_tuner.errors.FailedTrialError("too deep")
            noise = np.random.default_rng([width, *depths]).uniform(0.97, 1.03, len(depths))
            measured = {"blocks": float(sum(depths)), "seconds": SLEEP}
            for stage, depth in enumerate(depths, start=1):
                distance = (3 + stage) * -math.expm1(-width * depth / 60) * noise[stage - 1]
                measured[f"stage{stage}/blocks"] = float(depth)
                measured[f"stage{stage}/distance"] = 3 * distance
                measured[f"stage{stage}/scaled_distance"] = distance
            return measured

    return Search


def begun_file(folder, number):
    return folder.with_name(f"{folder.name}-life{number}.txt")


def begun_trials(folder, number):
    path = begun_file(folder, number)
    return path.read_text().split() if path.exists() else []


def finished_trials(folder):
    """The trials whose measurements, or failures, are on the disk."""
    states = states_of(folder)
    return [name for name, state in states.items() if is_finished(state)]


def is_finished(state):
    return "blocks" in state["metrics"]["metrics"] or state["status"] == "FAILED"


def states_of(folder):
    """What the files of the trials hold; each of them is whole, whenever one looks."""
    states = [json.loads(path.read_text()) for path in sorted(folder.glob("trial_*/trial.json"))]
    return {state["trial_id"]: state for state in states}


def search_with_networks(folder):
    """A search that trains, and says when it begins."""
    from tfresidual import networks, tuning

    def build(hp):
        net = networks.ResidualNetwork((8, 8, 1), 3, blocks=tuning.blocks(hp), widths=(2,))
        net.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return net

    rng = np.random.default_rng(5)
    images = rng.normal(size=(60, 8, 8, 1)).astype("float32")
    labels = rng.integers(0, 3, 60)
    folder = pathlib.Path(folder)
    search = tuning.DepthSearch(
        build, **REAL, warm_start=True, directory=folder.parent, project_name=folder.name
    )
    print("ready", flush=True)
    search.search(
        images[:40],
        labels[:40],
        validation_data=(images[40:], labels[40:]),
        batch_size=20,
        epochs=2,
        verbose=0,
    )


# The tests


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A function that takes a folder, its lives and the size of the search through all lives."""
    log = tmp_path_factory.mktemp("program").joinpath("log").open("w+")
    program = subprocess.Popen(
        [sys.executable, "-P", __file__, "synthetic"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )

    def order(folder, lives, size="large"):
        order = {"folder": str(folder), "lives": lives, "size": size}
        program.stdin.write(json.dumps(order) + "\n")
        program.stdin.flush()
        answer = program.stdout.readline()
        log.seek(0)
        assert answer, log.read()
        return json.loads(answer)

    try:
        yield order
    finally:
        program.kill()
        program.communicate()
        log.close()


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory, live):
    """A function from a size to the folder of a search that was not killed."""

    @functools.cache
    def whole(size):
        folder = tmp_path_factory.mktemp("whole") / size
        (life,) = live(folder, [{}], size)
        assert life["code"] == 0, folder.with_suffix(".log").read_text()
        assert life["begun"] == list(states_of(folder))
        return folder

    return whole


def result_of(folder):
    """Whatever a search leaves behind that does not depend on the time."""
    from tfresidual import tuning
    from tfresidual.tuning.trace import outcomes_of, trace_of

    oracle = tuning.read_search(folder)
    state = json.loads((folder / "oracle.json").read_text())
    return {
        "trials": list(states_of(folder).values()),
        "outcomes": outcomes_of(oracle),
        "trace": trace_of(oracle).to_csv(),
        "best": [trial.trial_id for trial in oracle.get_best_trials(100)],
        "order": [trial.trial_id for trial in oracle.in_order()],
        "of the oracle": {name: state[name] for name in ("start_order", "end_order")},
    }


def assert_nothing_lost_or_doubled(folder, lives):
    """Finished trials stay what they were; every life does only what was not finished."""
    assert [life["code"] for life in lives] == [-signal.SIGKILL] * (len(lives) - 1) + [0], (
        folder.with_suffix(".log").read_text()
    )
    finished = finished_trials(folder)
    assert sorted(finished) == sorted(states_of(folder))
    for life, following in itertools.pairwise(lives):
        assert set(life["finished"]) <= set(following["finished"])
    for life in lives:
        assert len(set(life["begun"])) == len(life["begun"])
        assert not set(life["begun"]) & set(life["finished"])
    # What was half finished is done again before anything new.
    begun = [trial for life in lives for trial in life["begun"]]
    assert begun == sorted(begun, key=list(states_of(folder)).index)
    assert set(begun) == set(finished)


def test_the_search_that_is_killed(never_killed):
    result = result_of(never_killed("large"))
    assert len(result["trials"]) > TRIALS
    statuses = [trial["status"] for trial in result["trials"]]
    assert {*statuses} == {"COMPLETED", "FAILED"}
    assert [outcome.status for outcome in result["outcomes"]].count("found") >= 6


def random_lives(seed):
    """Lives that end at random, in all their parts, before the search can be through."""
    rng = random.Random(seed)
    # Killed after the beginning of the process, of its first trial, or of its second.
    trials = [*[0] * 6, *[1] * 6, *[2] * 8]
    rng.shuffle(trials)
    shares = [rng.random() for _ in trials]
    most = (TRIALS - 10) * SLEEP
    delays = [share * most / sum(shares) for share in shares]
    pairs = zip(trials, delays, strict=True)
    return [*({"trials": count, "after": delay} for count, delay in pairs), {}]


def test_killed_at_random(tmp_path, live, never_killed):
    lives = live(tmp_path / "search", random_lives(0))
    assert_nothing_lost_or_doubled(tmp_path / "search", lives)
    assert result_of(tmp_path / "search") == result_of(never_killed("large"))
    # The last life does not do all the work.
    assert len(lives[-1]["finished"]) >= 8


def lives_ended_by_files(seed):
    rng = random.Random(seed)
    return [*({"kill_at": rng.randint(1, 40), "events": "all"} for _ in range(KILLS)), {}]


@pytest.mark.nightly
def test_killed_at_random_file_operations(tmp_path, live, never_killed):
    lives = live(tmp_path / "search", lives_ended_by_files(0))
    assert_nothing_lost_or_doubled(tmp_path / "search", lives)
    assert result_of(tmp_path / "search") == result_of(never_killed("large"))


def assert_survives_every_moment(tmp_path, live, expected, events, size):
    for moment in itertools.count(1):
        folder = tmp_path / f"search{moment}"
        killed, resumed = live(folder, [{"kill_at": moment, "events": events}, {}], size)
        if killed["code"] == 0:
            return moment - 1
        assert_nothing_lost_or_doubled(folder, [killed, resumed])
        assert result_of(folder) == expected, moment


@pytest.mark.nightly
def test_killed_before_and_after_every_move_of_a_file(tmp_path, live, never_killed):
    expected = result_of(never_killed("small"))
    moments = assert_survives_every_moment(tmp_path, live, expected, "moves", "small")
    # Each file is moved into place, and what was written next to it removed.
    assert moments >= 2 * 5 * len(expected["trials"])


@pytest.mark.nightly
def test_killed_at_every_file_operation(tmp_path, live, never_killed):
    expected = result_of(never_killed("longer"))
    moments = assert_survives_every_moment(tmp_path, live, expected, "all", "longer")
    assert moments >= 4 * 5 * len(expected["trials"])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 30))
def test_killed_at_random_many_times(tmp_path, live, never_killed, seed):
    for kind in (random_lives, lives_ended_by_files):
        folder = tmp_path / kind.__name__
        lives = live(folder, kind(seed))
        assert_nothing_lost_or_doubled(folder, lives)
        assert result_of(folder) == result_of(never_killed("large"))


# Networks that are trained


def one_real_life(folder, seconds=None):
    """Runs the program; kills it so many seconds after it began to search, if there are any.

    Returns:
        Its exit code, and the seconds that it searched.
    """
    with (
        folder.with_suffix(".log").open("a") as log,
        subprocess.Popen(
            [sys.executable, "-P", __file__, "real", str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert "ready\n" in iter(process.stdout.readline, "")
            begun = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=seconds)
            process.kill()
        finally:
            process.kill()
    return process.returncode, time.monotonic() - begun


def real_result_of(folder):
    """The trace without the times, and the weights that were saved."""
    import h5py

    from tfresidual import tuning
    from tfresidual.tuning.trace import outcomes_of, trace_of

    oracle = tuning.read_search(folder)
    weights = {}
    for path in sorted(folder.glob("trial_*/checkpoint.weights.h5")):
        with h5py.File(path) as file:

            def note(name, item, of=path.parent.name):
                if isinstance(item, h5py.Dataset):
                    weights[f"{of}/{name}"] = np.asarray(item)

            file.visititems(note)
    return trace_of(oracle).drop(columns="seconds"), outcomes_of(oracle), weights


@pytest.mark.nightly
def test_killed_while_networks_are_trained(tmp_path):
    code, seconds = one_real_life(tmp_path / "whole")
    assert code == 0, (tmp_path / "whole.log").read_text()
    trace, outcomes, weights = real_result_of(tmp_path / "whole")
    assert len(trace) >= 3
    assert trace["from_trial"].notna().sum() == len(trace) - 1
    rng = random.Random(0)
    kills, searches = 0, 0
    while kills < KILLS:
        folder = tmp_path / f"search{searches}"
        searches += 1
        while True:
            code, _ = one_real_life(folder, rng.uniform(0, 0.5 * seconds))
            if code == 0:
                break
            assert code == -signal.SIGKILL, folder.with_suffix(".log").read_text()
            kills += 1
        ours, our_outcomes, our_weights = real_result_of(folder)
        assert ours.to_csv() == trace.to_csv()
        assert our_outcomes == outcomes
        assert list(our_weights) == list(weights)
        for name, values in weights.items():
            np.testing.assert_array_equal(our_weights[name], values, err_msg=name)


if __name__ == "__main__":
    main(*sys.argv[1:])
