"""Coupled and convergent networks: the indices, the error and the effective parameters of each.

    python experiments/iterative_convergence.py --size smoke
    python experiments/iterative_convergence.py --size small --data-dir ~/tensorflow_datasets
    python experiments/iterative_convergence.py --size paper --data-dir ~/tensorflow_datasets

Figures 3, 4, 7, 8 and 10 to 12 of "Iterative convergent computation is not a useful inductive bias
for ResNets", and the table that they are drawn from. Every network is trained once per seed, each
time in its own folder; an interrupted run resumes. Sizes: `smoke` shows that everything works;
`small` is CIFAR-10 with few channels and blocks, for two cores; `paper` has the settings of the
paper, for a GPU.
"""

import argparse
import dataclasses
from pathlib import Path

import keras
import pandas as pd

import tfresidual
from tfresidual import datasets, plots, probes
from tfresidual.jobs import study
from tfresidual.jobs.settings import Settings, prepare
from tfresidual.machine.console import say, terminal
from tfresidual.machine.files import replacing
from tfresidual.routing import routes

# Number of images of each split on which the indices are measured.
IMAGES = 2000
MU = 0.95
ORDINARY = {"ordinary": {}}
RECURRENT = {
    f"coupling {coupling:g}": {"recurrent": True, "coupling": coupling}
    for coupling in (0.0, 0.5, 0.9, 1.0)
}
COUPLED = {name: RECURRENT[name] for name in RECURRENT if name != "coupling 0"}
BASE = ORDINARY | RECURRENT


def bounded(networks, anchor):
    """Returns the networks with bounded branches: improperly or properly convergent."""
    kind = {"previous": "improperly", "input": "properly"}[anchor]
    return {
        f"{kind} convergent, {name}": changes | {"lipschitz": MU, "anchor": anchor}
        for name, changes in networks.items()
    }


def varied(networks, kind, **variation):
    """Returns the networks with a variation of their training."""
    return {f"{name}, {kind}": changes | variation for name, changes in networks.items()}


def runs_of(size, data_dir):
    """Returns the settings of every training of a size, by the name of its folder."""
    widths = (8,)
    ends = {name: BASE[name] for name in ("ordinary", "coupling 1")}
    if size == "paper":
        common = {"data": "cifar10", "data_dir": data_dir, "epochs": 400, "validation": 5000}
        networks = BASE | bounded(BASE, "previous") | bounded(BASE, "input")
        networks |= varied(BASE, "gamma 0.1", gamma=0.1)
        networks |= varied(COUPLED, "triangular", kernel="triangular")
        networks |= varied(COUPLED, "late", coupling_from=5)
        networks |= varied(COUPLED, "late and gamma 0.1", coupling_from=5, gamma=0.1)
        widths, seeds = (8, 16, 32, 64), range(6)
    elif size == "small":
        common = {"data": "cifar10", "data_dir": data_dir, "epochs": 3, "depth": 5}
        networks = ORDINARY | COUPLED | bounded(ends, "previous") | bounded(ends, "input")
        seeds = range(2)
    else:
        common = {"data_dir": data_dir, "epochs": 1, "depth": 2}
        common |= {"train_size": 256, "validation": 64, "test_size": 64}
        networks = ends | bounded(ends, "input") | varied(COUPLED, "late", coupling_from=1)
        networks |= bounded(ORDINARY, "previous") | varied(ends, "gamma 0.1", gamma=0.1)
        widths, seeds = (4,), range(2)
    settings = Settings(network="resnet101", **common)
    return {
        f"{name}, {width} channels, seed {seed}": dataclasses.replace(
            settings, width=width, seed=seed, **changes
        )
        for width in widths
        for seed in seeds
        for name, changes in networks.items()
    }


def measure(folder, name, settings, console):
    """Returns the row of a trained network in the table."""
    network = keras.saving.load_model(folder / "model.keras")
    train, _, test = prepare(settings)
    batches = -(-IMAGES // settings.batch_size)
    chain = tfresidual.chain(network)
    few = test.take(batches)
    _, indices = probes.convergence_frames(chain, few, at_chance="nan")
    mean = indices.query("basis == 'labels' and stage == 'mean'").iloc[0]
    count = probes.effective_parameters(chain).iloc[-1]
    deviations = probes.weight_deviations(chain)
    return {
        "network": name.split(", seed")[0],
        "coupling": settings.coupling or 0.0,
        "initialization": "recurrent" if settings.recurrent else "non-recurrent",
        "lipschitz": settings.lipschitz,
        "anchor": settings.anchor,
        "kernel": settings.kernel,
        "gamma": 1.0 if settings.gamma is None else settings.gamma,
        "first_block": settings.coupling_from,
        "width": settings.width,
        "seed": settings.seed,
        "error": error_of(chain, test),
        "train_error": error_of(chain, datasets.plain(train).take(batches)),
        "convergence": mean["convergence_index"],
        "recurrence": mean["recurrence_index"],
        "divergence": mean["divergence_index"],
        "raw_parameters": count["raw"],
        "effective_parameters": count["effective"],
        "deviation": deviations["l1"].sum() / deviations["parameters"].sum(),
    }


def error_of(chain, data):
    """Returns the share of images that a chain gets wrong."""
    return probes.evaluate_routes(chain, data, [routes.unperturbed(chain)])["error"][0]


def figures_of(frame):
    """Returns the figures that the networks allow, by name; figures 3, 4, 7, 8 and 10 to 12."""
    plain = frame[frame["lipschitz"].isna()]
    standard = plain.query("kernel == 'uniform' and gamma == 1 and first_block == 0")
    improper = frame[frame["lipschitz"].notna() & (frame["anchor"] == "previous")]
    proper = frame[frame["lipschitz"].notna() & (frame["anchor"] == "input")]
    figures = {}
    for name, part in (("figure3", standard), ("figure4", improper), ("figure11", proper)):
        if not part.empty:
            figures[f"{name}_indices"] = plots.indices_of_runs(part)
            error = "figure12" if part is proper else f"{name}_error"
            figures[error] = plots.error_of_runs(part)
    figures["figure3_error_against_indices"] = plots.error_against_indices(standard)
    figures["figure7_parameters"] = plots.parameter_efficiency(standard)
    figures["figure7_deviation"] = plots.deviation_of_runs(standard)
    if len(plain) > len(standard):
        figures["figure10"] = plots.indices_of_runs(plain, panels="variation")
        figures["figure8"] = plots.error_of_runs(
            plain, panels="variation", errors=("train_error", "error")
        )
    return figures


def table_of(frame):
    """Returns mean and range over the seeds of every measurement, with one row per network."""
    columns = ["error", "convergence", "recurrence", "divergence", "effective_parameters"]
    groups = frame.groupby("network", sort=False)[columns]
    means, least, most = groups.mean(), groups.min(), groups.max()
    return pd.DataFrame(
        {
            name: [
                f"{mean:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"
                for mean, low, high in zip(means[name], least[name], most[name], strict=True)
            ]
            for name, digits in zip(columns, (3, 2, 2, 2, 0), strict=True)
        },
        index=means.index,
    )


def main(size, data_dir, out):
    console, rows = terminal(), []
    for name, settings in runs_of(size, data_dir).items():
        folder = out / size / name.replace(", ", "-").replace(" ", "_")
        say(console, name)
        row = folder / "row.csv"
        if not row.exists():
            study.train(folder, settings, console)
            with replacing(row) as path:
                pd.DataFrame([measure(folder, name, settings, console)]).to_csv(path, index=False)
            # The functions compiled for one network are of no use to the next.
            keras.backend.clear_session()
        rows.append(pd.read_csv(row))
    frame = pd.concat(rows, ignore_index=True)
    frame.to_csv(out / size / "runs.csv", index=False)
    for name, figure in figures_of(frame).items():
        figure.savefig(out / size / f"{name}.png", dpi=160)
        print(out / size / f"{name}.png")
    print(table_of(frame).to_string())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=["smoke", "small", "paper"], default="smoke")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/iterative_convergence"))
    arguments = parser.parse_args()
    main(arguments.size, arguments.data_dir, arguments.out)
