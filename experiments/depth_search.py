"""Sections 2.3 and 3.5.1 of Hauser 2019: a depth found by the stopping rule, and confirmed.

    python experiments/depth_search.py --size smoke
    python experiments/depth_search.py --size small --data-dir ~/tensorflow_datasets
    python experiments/depth_search.py --size paper --data-dir ~/tensorflow_datasets

The depth of a network is searched with cold and with warm starts. To confirm the answer of the cold
search, networks with one block less and one block more in every stage are trained with further
seeds; a stage at its smallest depth keeps it. Each search has its own folder, and an interrupted
run resumes. Sizes: `smoke` shows that everything works; `small` is MNIST with narrow networks, for
two cores; `paper` is the paper's network on MNIST and CIFAR-10 with its epsilon of 0.1, for a GPU.
"""

import argparse
import dataclasses
from pathlib import Path

import pandas as pd

from tfresidual import tuning
from tfresidual.jobs.depth_study import PROJECT, SearchSettings, run
from tfresidual.jobs.settings import Settings
from tfresidual.machine.console import say, terminal
from tfresidual.machine.files import replacing
from tfresidual.tuning.trace import AT_CHANCE


def searches_of(size, data_dir):
    """Returns the settings of every search of a size, by name, and the further seeds."""
    if size == "paper":
        search = SearchSettings(start=8, max_blocks=100)
        return {
            data: (
                Settings(data=data, data_dir=data_dir, network="hauser_resnet", epochs=60),
                search,
            )
            for data in ("mnist", "cifar10")
        }, (1, 2, 3)
    if size == "small":
        settings = Settings(
            data="mnist",
            data_dir=data_dir,
            width=8,
            epochs=3,
            train_size=16_000,
            validation=2_000,
            test_size=5_000,
            epsilon=0.5,
        )
        return {"mnist": (settings, SearchSettings(start=3, max_blocks=24))}, (1, 2)
    settings = Settings(
        data_dir=data_dir,
        width=4,
        epochs=1,
        train_size=256,
        validation=64,
        test_size=64,
        epsilon=1.0,
    )
    return {"digitclutter": (settings, SearchSettings(start=2, max_blocks=6))}, (1,)


def smallest_depths(trace, search, trial):
    """Returns the smallest depth of every stage that is allowed and can be measured.

    Args:
        trace: the trace of the search.
        search: its `SearchSettings`.
        trial: int, the trial whose depths meet the rule.
    """
    trial = trace[trace["trial"] == trial].sort_values("stage")
    least = [search.min_blocks] * len(trial)
    if isinstance(search.min_blocks, tuple):
        least = search.min_blocks
    # A block that changes the shape of the state is not measured.
    first = trial["blocks"] - trial["measured_blocks"] + 1
    return tuple(max(pair) for pair in zip(least, map(int, first), strict=True))


def lowered(blocks, smallest):
    """Returns depths with one block less in every stage, except in stages at their smallest depth.

    Prints these stages.
    """
    stay = {s for s, pair in enumerate(zip(blocks, smallest, strict=True), 1) if pair[0] <= pair[1]}
    if stay:
        which = "no stage has" if len(stay) == len(blocks) else "the others have"
        stages = ", ".join(map(str, sorted(stay)))
        print(f"\nat the smallest depth: stage {stages}; {which} one block less")
    return tuple(depth - (stage not in stay) for stage, depth in enumerate(blocks, 1))


def confirm(folder, settings, blocks, smallest, seeds, console):
    """Trains networks of the depths found, of one block less and of one more, with other seeds.

    A stage at its smallest depth keeps it in the networks with one block less. Returns the traces
    of all networks as a frame.
    """
    frames = []
    for change in (-1, 0, 1):
        depths = tuple(depth + change for depth in blocks)
        if change < 0:
            depths = lowered(blocks, smallest)
        if depths == blocks and change:
            continue
        for seed in seeds:
            name = f"confirm-{settings.data}-{'-'.join(map(str, depths))}-seed{seed}"
            single = SearchSettings(start=depths, max_blocks=max(depths), max_trials=1)
            run(folder / name, dataclasses.replace(settings, seed=seed), single, console)
            trace = tuning.trace_of(tuning.read_search(folder / name / PROJECT))
            frames.append(trace.assign(change=change, seed=seed))
    return pd.concat(frames, ignore_index=True)


def table(frame, key):
    """Returns the trace of networks as a table to print, with one row per network."""
    rows = []
    for _, rows_of_one in frame.groupby([*key, "trial"], sort=False):
        first = rows_of_one.iloc[0]
        rows.append(
            {
                **{name: first[name] for name in key},
                "blocks": " ".join(map(str, rows_of_one["blocks"])),
                "mean_scaled_perturbation": " ".join(
                    f"{mean:.3f}" for mean in rows_of_one["mean_scaled_perturbation"]
                ),
                "meets_rule": bool(rows_of_one["meets_rule"].all()),
                "error": first["error"],
                "seconds": first["seconds"],
            }
        )
    return pd.DataFrame(rows)


def main(size, data_dir, out, workers):
    console, out = terminal(), out / size
    searches, seeds = searches_of(size, data_dir)
    for name, (settings, search) in searches.items():
        for start in ("cold", "warm"):
            say(console, f"{name}, {start} starts")
            folder = out / f"{name}-{start}"
            changed = dataclasses.replace(search, warm_start=start == "warm")
            outcome = run(folder, settings, changed, console, workers)
            print(f"\n{name}, {start} starts, {outcome.status}: {outcome.message}")
            trace = tuning.trace_of(tuning.read_search(folder / PROJECT))
            print(table(trace, []).to_string(index=False))
            if start == "warm" or outcome.status not in ("found", AT_CHANCE):
                continue
            smallest = smallest_depths(trace, search, outcome.trial)
            frame = confirm(out, settings, outcome.blocks, smallest, seeds, console)
            with replacing(out / f"{name}-confirmed.csv") as path:
                frame.to_csv(path, index=False)
            print(f"\n{name}, one block less and one more, other seeds")
            print(table(frame, ["change", "seed"]).to_string(index=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=["smoke", "small", "paper"], default="smoke")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/depth_search"))
    parser.add_argument("--workers", type=int, default=1, help="networks trained at the same time")
    arguments = parser.parse_args()
    main(arguments.size, arguments.data_dir, arguments.out, arguments.workers)
