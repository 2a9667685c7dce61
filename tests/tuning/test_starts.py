"""Searches with workers that are started on a machine that has no time for them.

Several at once, next to processes that are always busy, so that chief, workers, and whoever watches
them come to their turns in any order.
"""

import os
import pathlib
import subprocess
import sys
import time
from concurrent import futures

import pandas as pd
import pytest

COMMAND = pathlib.Path(sys.executable).with_name("tfresidual")
STARTS, AT_ONCE, BUSY = 12, 3, 4
# Seconds: of one start, and of all.
PATIENCE, LONGEST_RUN = 600, 3600
TINY = [
    *("--width", "2", "--epochs", "1", "--batch-size", "16", "--epsilon", "1e-6", "--start", "1"),
    *("--train-size", "16", "--validation", "16", "--test-size", "16", "--max-trials", "1"),
]


@pytest.fixture
def busy():
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(BUSY)
    ]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.nightly
def test_searches_that_begin_on_a_busy_machine(tmp_path, busy):
    begun = time.monotonic()

    def start(number):
        if time.monotonic() - begun > LONGEST_RUN:
            return f"not begun after {LONGEST_RUN} s"
        with (tmp_path / f"{number}.log").open("w+") as log:
            arguments = ["--workers", "2", "--data-dir", "clutter", "--out", f"search{number}"]
            try:
                done = subprocess.run(
                    [COMMAND, "tune", *TINY, *arguments],
                    cwd=tmp_path,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                    stdout=log,
                    stderr=log,
                    timeout=PATIENCE,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"no end after {PATIENCE} s"
            log.seek(0)
            told = log.read()
        folder = tmp_path / f"search{number}"
        # One trial is not enough for a depth.
        if done.returncode != 1 or told.count("trial 0: 1 1 1 blocks") != 1:
            return told
        trace = pd.read_csv(folder / "frames" / "trace.csv")
        names = sorted(path.name for path in folder.iterdir())
        expected = "figures frames logs outcome.json report.html search settings.json"
        is_whole = trace["status"].tolist() == ["completed"] * 3 and names == expected.split()
        return None if is_whole else f"{names}\n{trace}"

    # The first prepares the data for all.
    told = [start(0)]
    with futures.ThreadPoolExecutor(AT_ONCE) as threads:
        told += threads.map(start, range(1, STARTS))
    failed = {number: text for number, text in enumerate(told) if text is not None}
    took = time.monotonic() - begun
    print(f"{STARTS - len(failed)} of {STARTS} came to their end, in {took:.0f} s")
    assert not failed, "\n\n".join(f"{number}: {text}" for number, text in failed.items())
