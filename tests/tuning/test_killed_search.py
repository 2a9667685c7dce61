"""Searches for depth that are killed again and again, and end as if nothing had happened.

Run as a program, this file searches with networks that are trained. Not covered: a machine that
loses its power; chief and workers, see `test_workers.py`.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tuning.forked_search import TRIALS, Cluster, wait_until

pytestmark = pytest.mark.system

KILLS = 20
SLEEP = 0.01
ALL = ["open", "os.mkdir", "os.rename", "os.remove"]
MOVES = ["os.rename", "os.remove"]
REAL = {"start": (2,), "epsilon": 0.25, "max_blocks": 8, "max_trials": 6}


def states_of(folder):
    """What the files of the trials hold; each of them is whole, whenever one looks."""
    states = [json.loads(path.read_text()) for path in sorted(folder.glob("trial_*/trial.json"))]
    return {state["trial_id"]: state for state in states}


def finished_trials(folder):
    """The trials whose measurements, or failures, are on the disk."""
    return [
        name
        for name, state in states_of(folder).items()
        if "blocks" in state["metrics"]["metrics"] or state["status"] == "FAILED"
    ]


def live(cluster, lives, size="many"):
    """Lets a search live, die, and live again; says of every life how it ended and what it did."""
    told = []
    for life in lives:
        finished, before = finished_trials(cluster.folder), len(cluster.begun())
        ending = {name: life[name] for name in ("kill_at", "events") if name in life}
        cluster.start("alone", size=size, sleep=SLEEP, **ending)
        if "after" in life:
            most = before + life["trials"]
            wait_until(
                lambda m=most: len(cluster.begun()) >= m or cluster.poll("alone") is not None
            )
            time.sleep(life["after"])
            cluster.kill("alone")
        code = cluster.ended("alone")
        told.append({"code": code, "finished": finished, "begun": cluster.begun()[before:]})
    return told


def result_of(folder):
    """Whatever a search leaves behind that does not depend on the time."""
    from tfresidual import tuning

    oracle = tuning.read_search(folder)
    state = json.loads((folder / "oracle.json").read_text())
    return {
        "trials": list(states_of(folder).values()),
        "outcomes": tuning.outcomes_of(oracle),
        "trace": tuning.trace_of(oracle).to_csv(),
        "best": [trial.trial_id for trial in oracle.get_best_trials(100)],
        "order": [trial.trial_id for trial in oracle.in_order()],
        "of the oracle": {name: state[name] for name in ("start_order", "end_order")},
    }


def assert_nothing_lost_or_doubled(cluster, lives):
    """Finished trials stay what they were; every life does only what was not finished."""
    codes = [-signal.SIGKILL] * (len(lives) - 1) + [0]
    assert [life["code"] for life in lives] == codes, cluster.logs()
    finished, states = finished_trials(cluster.folder), states_of(cluster.folder)
    assert sorted(finished) == sorted(states)
    for life, following in itertools.pairwise(lives):
        assert set(life["finished"]) <= set(following["finished"])
    for life in lives:
        assert len(set(life["begun"])) == len(life["begun"])
        assert not set(life["begun"]) & set(life["finished"])
    # What was half finished is done again before anything new.
    begun = [trial for life in lives for trial in life["begun"]]
    assert begun == sorted(begun, key=list(states).index)
    assert set(begun) == set(finished)


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


def lives_ended_by_files(seed):
    rng = random.Random(seed)
    return [*({"kill_at": rng.randint(1, 40), "events": ALL} for _ in range(KILLS)), {}]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(1, 12))]
)
@pytest.mark.parametrize(
    "lives_of", [random_lives, pytest.param(lives_ended_by_files, marks=pytest.mark.nightly)]
)
def test_killed_at_random(cluster, alone, lives_of, seed):
    lives = live(cluster, lives_of(seed))
    assert_nothing_lost_or_doubled(cluster, lives)
    assert result_of(cluster.folder) == result_of(alone("many"))
    if (lives_of, seed) == (random_lives, 0):
        # The last life does not do all the work.
        assert len(lives[-1]["finished"]) >= 8


@pytest.mark.nightly
@pytest.mark.parametrize(("events", "size", "least"), [(MOVES, "few", 10), (ALL, "some", 20)])
def test_killed_at_every_file_operation(tmp_path, launcher, alone, events, size, least):
    """Each file is written beside its place and moved there."""
    expected = result_of(alone(size))
    for moment in itertools.count(1):
        cluster = Cluster(launcher, tmp_path / f"search{moment}")
        lives = live(cluster, [{"kill_at": moment, "events": events}, {}], size)
        if lives[0]["code"] == 0:
            break
        assert_nothing_lost_or_doubled(cluster, lives)
        assert result_of(cluster.folder) == expected, moment
    assert moment - 1 >= least * len(expected["trials"])


# Networks that are trained


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
    held_out = (images[40:], labels[40:])
    search.search(
        images[:40], labels[:40], validation_data=held_out, batch_size=20, epochs=2, verbose=0
    )


def one_real_life(folder, seconds=None):
    """Runs the program; kills it so many seconds after it began to search, if there are any.

    Returns:
        Its exit code, and the seconds that it searched.
    """
    with (
        folder.with_suffix(".log").open("a") as log,
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[1])},
        ) as process,
    ):
        try:
            assert "ready\n" in iter(process.stdout.readline, "")
            begun = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=seconds)
        finally:
            process.kill()
    return process.returncode, time.monotonic() - begun


def real_result_of(folder):
    """The trace without the times, the outcomes, and the weights that were saved."""
    import h5py

    from tfresidual import tuning

    oracle = tuning.read_search(folder)
    weights = {}
    for path in sorted(folder.glob("trial_*/checkpoint.weights.h5")):
        with h5py.File(path) as file:

            def note(name, item, of=path.parent.name):
                if isinstance(item, h5py.Dataset):
                    weights[f"{of}/{name}"] = np.asarray(item).tolist()

            file.visititems(note)
    trace = tuning.trace_of(oracle).drop(columns="seconds").to_csv()
    return trace, tuning.outcomes_of(oracle), weights


@pytest.mark.nightly
def test_killed_while_networks_are_trained(tmp_path):
    code, seconds = one_real_life(tmp_path / "whole")
    assert code == 0, (tmp_path / "whole.log").read_text()
    expected = real_result_of(tmp_path / "whole")
    assert len(expected[0].splitlines()) >= 4
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
        assert real_result_of(folder) == expected


if __name__ == "__main__":
    search_with_networks(sys.argv[1])
