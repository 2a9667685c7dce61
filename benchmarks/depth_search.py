"""`tuning.DepthOracle` against other ways to search the depths, on laws that are known.

    python benchmarks/depth_search.py [--problems 30] [--trials 60] [--bayesian 2]

Nothing is trained: a tuner of keras-tuner computes the scaled distances of three stages from a law
whose constants are drawn from a seed: D are the paper's distances for CIFAR-10 and MNIST, varied by
10 %, tau is 15 to 25. The rule is a mean of 0.1, depths go from 1 to 128, and the start is 4 4 4.
keras-tuner's random search and Bayesian optimization get the score of `DepthOracle.score_trial`,
and stop as soon as they have tried the answer, as if they knew it. The bisection halves the bounds
of all stages in every trial. Bayesian optimization is included if scipy and scikit-learn are
installed (`pip install ".[benchmarks]"`), and only on the first `--bayesian` problems, because it
takes a quarter of a second per trial.

The ratio is that of the blocks of all trials together to those of `DepthOracle` on the same
problem, the median over the problems: 2x trains twice as many. The notes are medians over the
problems and, in brackets, the worst. *Meets*: trials up to the first setting that meets the rule as
measured; *smallest*: up to the smallest setting that meets it by the law without noise; *ends*: up
to the end of the search ("> 60" is not reached); *off*: the number of blocks by which the worst
stage of the answer misses the smallest setting. With noise, an answer that is one block off counts
as the smallest; the search then takes twice as many trials and is two blocks off, because a single
measurement decides, and `executions_per_trial` averages several.

The rows of several workers simulate what they gain: their ratio is when the last of them ends, to
when a single worker ends, the median over the problems; the note says how many trials they train. A
trial lasts 1, or as long as its number of blocks: deep networks then dominate the time.
"""

import heapq
import importlib.util
import math
import os
import statistics
import tempfile
import warnings
from concurrent import futures
from multiprocessing import get_context

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Every core runs its own search.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras_tuner
import numpy as np
from results import NOT_MEASURED, Row, run
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tfresidual.machine.console import terminal
from tfresidual.tuning import DepthOracle, blocks
from tfresidual.tuning.proposals import Measurement

EPSILON, START, DEEPEST = 0.1, (4, 4, 4), 128
# The distances that the paper prints for CIFAR-10 and MNIST, and how far the constants may differ.
PRINTED = ((3.69, 3.81, 4.27), (4.11, 3.12, 4.58))
SPREAD, TAU, NOISE = 0.1, (15, 25), 0.03
WORKERS = (1, 2, 4)

# The scaled distance of L blocks. The constant of the law in 1/L is chosen such that it needs as
# many blocks as a constant distance D.
LAWS = {
    "D": lambda d, tau, depth: d,
    "D^2 / (0.1 L)": lambda d, tau, depth: d**2 / (EPSILON * depth),
    "D (1 - exp(-L / tau))": lambda d, tau, depth: d * -math.expm1(-depth / tau),
    "D L / (L + tau)": lambda d, tau, depth: d * depth / (depth + tau),
}
NOISY = "D (1 - exp(-L / tau)), 3 % noise"


class Problem:
    """Three stages that follow the same law, with constants drawn from a seed."""

    def __init__(self, law, seed):
        self.seed = seed
        self.noise = NOISE if law == NOISY else 0.0
        self.law = LAWS[law.removesuffix(", 3 % noise")]
        rng = np.random.default_rng(seed)
        around = rng.uniform(1 - SPREAD, 1 + SPREAD, len(START))
        self.constants = rng.permutation(PRINTED)[0] * around
        self.taus = rng.uniform(*TAU, len(START))
        self.smallest = tuple(
            next(
                depth
                for depth in range(1, DEEPEST + 1)
                if Measurement(depth, depth, self.distance(stage, depth)).meets(EPSILON)
            )
            for stage in range(len(START))
        )

    def distance(self, stage, depth):
        return float(self.law(self.constants[stage], self.taus[stage], depth))

    def measured(self, depths, trial):
        """Returns the scaled distances that trial number `trial` measures."""
        noise = np.random.default_rng([self.seed, trial]).normal(0, self.noise, len(depths))
        return [
            self.distance(stage, depth) * float(1 + noise[stage])
            for stage, depth in enumerate(depths)
        ]

    def off(self, depths):
        """Returns by how many blocks the worst stage misses the smallest setting."""
        return max(abs(a - b) for a, b in zip(depths, self.smallest, strict=True))

    def is_smallest(self, depths):
        return self.off(depths) <= (1 if self.noise else 0)


class Scored:
    """An oracle whose trials get the score of a `DepthOracle`."""

    def __init__(self, **kwargs):
        self.judge = DepthOracle(START, epsilon=EPSILON, min_blocks=1, max_blocks=DEEPEST)
        super().__init__(
            objective=self.judge.objective, hyperparameters=self.judge.get_space(), **kwargs
        )

    def score_trial(self, trial):
        self.judge.score_trial(trial)


class RandomSearch(Scored, keras_tuner.oracles.RandomSearchOracle):
    """Draws every depth with the same probability."""


class BayesianOptimization(Scored, keras_tuner.oracles.BayesianOptimizationOracle):
    """A Gaussian process on the score."""


class Bisection(Scored, keras_tuner.Oracle):
    """Bisects the depth of every stage, assuming that the largest depth meets the rule."""

    def populate_space(self, trial_id):
        if self.ongoing_trials:
            return {"status": "IDLE"}
        failing, meeting = [0] * len(START), [DEEPEST] * len(START)
        for trial in self.trials.values():
            for stage, measured in enumerate(self.judge.measurements(trial)):
                if failing[stage] < measured.blocks < meeting[stage]:
                    bound = meeting if measured.meets(EPSILON) else failing
                    bound[stage] = measured.blocks
        # Rounded up: if the two bounds are neighbours, the result is the one that meets the rule.
        setting = [(low + high + 1) // 2 for low, high in zip(failing, meeting, strict=True)]
        values = {f"blocks{stage}": depth for stage, depth in enumerate(setting, start=1)}
        if values in [trial.hyperparameters.values for trial in self.trials.values()]:
            return {"status": "STOPPED"}
        return {"status": "RUNNING", "values": values}


METHODS = {
    "DepthOracle": lambda **kwargs: DepthOracle(
        START, epsilon=EPSILON, min_blocks=1, max_blocks=DEEPEST, **kwargs
    ),
    "bisection": Bisection,
    "random search": RandomSearch,
    "Bayesian optimization": BayesianOptimization,
}
# Methods that do not end by themselves.
ENDLESS = ("random search", "Bayesian optimization")


class Computed(keras_tuner.Tuner):
    """A tuner whose trials compute what a trained network would have measured."""

    def __init__(self, problem, method, trials, directory):
        # keras-tuner treats a seed of 0 as no seed.
        oracle = METHODS[method](max_trials=trials, seed=problem.seed + 1)
        self.problem = problem
        self.stops_at_answer = method in ENDLESS
        super().__init__(oracle, directory=directory, project_name="search")
        oracle.verbose = 0

    def run_trial(self, trial, **kwargs):
        depths = blocks(trial.hyperparameters)
        results = {"blocks": float(sum(depths))}
        distances = self.problem.measured(depths, int(trial.trial_id))
        for stage, (depth, distance) in enumerate(zip(depths, distances, strict=True), start=1):
            results[f"stage{stage}/blocks"] = float(depth)
            results[f"stage{stage}/scaled_distance"] = distance
        return results

    def on_trial_end(self, trial):
        super().on_trial_end(trial)
        if self.stops_at_answer and self.problem.is_smallest(blocks(trial.hyperparameters)):
            self.oracle.max_trials = len(self.oracle.trials)

    def depths(self):
        """Returns the depths of all trials, in the order in which they began."""
        return [
            blocks(self.oracle.trials[trial_id].hyperparameters)
            for trial_id in self.oracle.start_order
        ]


def search(law, seed, method, cap):
    """Runs one search with a single worker and returns what it needed."""
    problem = Problem(law, seed)
    with tempfile.TemporaryDirectory() as directory:
        tuner = Computed(problem, method, cap, directory)
        tuner.search(verbose=0)
    tried = tuner.depths()
    trials = [tuner.oracle.trials[trial_id] for trial_id in tuner.oracle.start_order]
    met = [depths for depths, t in zip(tried, trials, strict=True) if t.score < 1e6]
    answer = min(met, key=sum, default=None)
    return {
        "first": 1 + tried.index(met[0]) if met else math.inf,
        "smallest": next(
            (place for place, d in enumerate(tried, start=1) if problem.is_smallest(d)), math.inf
        ),
        "off": math.inf if answer is None else problem.off(answer),
        "trials": len(tried),
        "blocks": sum(map(sum, tried)),
    }


def search_together(law, seed, workers, by_blocks, cap):
    """Simulates a search by several workers.

    Returns when the last worker ended, and how many trials they trained. A trial lasts 1, or its
    number of blocks if `by_blocks`.
    """
    with tempfile.TemporaryDirectory() as directory:
        tuner = Computed(Problem(law, seed), "DepthOracle", cap, directory)
        clock, running, free = 0, [], [f"worker{number}" for number in range(workers)]
        while True:
            waiting = []
            for worker in free:
                trial = tuner.oracle.create_trial(worker)
                if trial.status == "RUNNING":
                    seconds = sum(blocks(trial.hyperparameters)) if by_blocks else 1
                    heapq.heappush(running, (clock + seconds, worker, trial))
                elif trial.status == "IDLE":
                    waiting.append(worker)
            if not running:
                break
            clock, free = running[0][0], waiting
            while running and running[0][0] == clock:
                _, worker, trial = heapq.heappop(running)
                tuner.oracle.update_trial(trial.trial_id, tuner.run_trial(trial))
                trial.status = "COMPLETED"
                tuner.oracle.end_trial(trial)
                free.append(worker)
            free.sort()
        if waiting:
            raise RuntimeError(f"All workers wait for one another: {law}, seed {seed}, {waiting}")
    return {"time": clock, "trials": len(tuner.oracle.trials)}


def run_all(jobs):
    """Runs jobs, tuples of a function and its arguments, on all cores; returns results by job."""
    columns = (TextColumn("searches"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Slow jobs first, so that no core waits for another one at the end.
    slow_first = sorted(jobs, key=_weight, reverse=True)
    with (
        futures.ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_quieten) as pool,
        Progress(*columns, console=terminal()) as progress,
    ):
        bar = progress.add_task("", total=sum(map(_weight, jobs)))
        submitted = {pool.submit(*job): job for job in slow_first}
        results = {}
        for future in futures.as_completed(submitted):
            results[submitted[future]] = future.result()
            progress.advance(bar, _weight(submitted[future]))
    return results


def _weight(job):
    return 100 if "Bayesian optimization" in job else 10 if "random search" in job else 1


def _quieten():
    # Warnings of the Gaussian process about its convergence.
    warnings.filterwarnings("ignore", module="sklearn")


def median_and_worst(values, endless):
    median, worst = (
        f"{value:g}" if math.isfinite(value) else endless
        for value in (statistics.median(values), max(values))
    )
    return f"{median} ({worst})"


def compare_methods(problems, cap, bayesian):
    """Returns the jobs of the methods, and a function from their results to the rows."""
    counts = {method: problems for method in METHODS}
    has_bayesian = all(importlib.util.find_spec(name) for name in ("scipy", "sklearn"))
    counts["Bayesian optimization"] = min(problems, bayesian) if has_bayesian else 0
    cases = [(law, method) for law in (*LAWS, NOISY) for method in METHODS if counts[method]]
    jobs = [(search, law, n, method, cap) for law, method in cases for n in range(counts[method])]

    def rows_of(results):
        for law, method in cases:
            seeds = range(counts[method])
            found = [results[search, law, seed, method, cap] for seed in seeds]
            ours = [results[search, law, seed, "DepthOracle", cap] for seed in seeds]
            ratio = statistics.median(
                a["blocks"] / b["blocks"] for a, b in zip(found, ours, strict=True)
            )
            trials = {
                word: median_and_worst([f[name] for f in found], f"> {cap}")
                for word, name in (("meets", "first"), ("smallest", "smallest"), ("ends", "trials"))
            }
            if method in ENDLESS:
                del trials["ends"]
            trials["off"] = median_and_worst([f["off"] for f in found], "no answer")
            parts = [f"{word} {value}" for word, value in trials.items()]
            if method == "DepthOracle":
                parts.append(f"{statistics.median(f['blocks'] for f in found):g} blocks")
            parts.append(f"{len(found)} problems")
            yield Row(method, f"`{law}`", ratio=ratio, note=", ".join(parts))
        if not has_bayesian:
            note = f"{NOT_MEASURED}: scipy and scikit-learn are not installed"
            yield Row("Bayesian optimization", note=note)

    return jobs, rows_of


def compare_workers(problems, cap):
    """Returns the jobs of the simulated workers, and a function from their results to the rows."""
    cases = [(law, by_blocks) for law in (*LAWS, NOISY) for by_blocks in (False, True)]
    jobs = [
        (search_together, law, seed, workers, by_blocks, cap)
        for law, by_blocks in cases
        for workers in WORKERS
        for seed in range(problems)
    ]

    def rows_of(results):
        for law, by_blocks in cases:
            setting = f"`{law}`, a trial lasts {'its blocks' if by_blocks else '1'}"
            for workers in WORKERS:
                found, alone = (
                    [results[search_together, law, n, w, by_blocks, cap] for n in range(problems)]
                    for w in (workers, 1)
                )
                ratio = statistics.median(
                    a["time"] / b["time"] for a, b in zip(found, alone, strict=True)
                )
                note = f"{statistics.median(f['trials'] for f in found):g} trials"
                if not by_blocks:
                    note = f"ends at {median_and_worst([f['time'] for f in found], '')}, {note}"
                what = "1 worker" if workers == 1 else f"{workers} workers"
                yield Row(what, setting, ratio=ratio, note=note)

    return jobs, rows_of


def measure(arguments):
    methods, rows_of_methods = compare_methods(
        arguments.problems, arguments.trials, arguments.bayesian
    )
    together, rows_of_workers = compare_workers(arguments.problems, arguments.trials)
    results = run_all([*methods, *together])
    yield from rows_of_methods(results)
    yield from rows_of_workers(results)


def add_arguments(parser):
    parser.add_argument("--problems", type=int, default=30, help="problems per law")
    parser.add_argument("--trials", type=int, default=60, help="most trials per search")
    parser.add_argument("--bayesian", type=int, default=2, help="problems for the slow method")


if __name__ == "__main__":
    run(measure, add_arguments)
