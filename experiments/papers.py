"""The figures, tables and statements of the papers, from one command.

    python experiments/papers.py list
    python experiments/papers.py run II-4 PI-7 --size small --data-dir ~/tensorflow_datasets
    python experiments/papers.py run IC --size smoke --workers 2
    python experiments/papers.py page

`run` trains the networks that are missing, measures what is missing, and draws. A network is
trained once for all figures and tables that need it, in a process of its own; after a kill, the
same command resumes where it stopped. Networks whose frames are kept in experiments/frames, of all
sizes but `smoke` and `paper`, need no training (`--anew` trains them all the same).
Sizes: `smoke` shows that everything works; `small` is for two cores; `trained` is few networks,
most of them on 48,000 images; `untrained` and `untrained-small` are the networks of these two as
they are built; `paper` has the settings of the papers, for a GPU.
`page` writes the page of all statements from the frames that are kept in experiments/frames.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SIZES = ("smoke", "small", "untrained-small", "trained", "untrained", "paper")
FIGURES = HERE.parent / "docs" / "images" / "papers"


def page(arguments):
    """Writes the page of all statements, and its figures, from the frames that are kept."""
    load()
    from statements import write_page

    write_page(HERE / "STATEMENTS.md", FIGURES)


def load():
    """Imports the catalogue; that takes seconds, which wrong arguments should not need."""
    import importlib

    import catalogue

    for module in catalogue.PAPERS.values():
        importlib.import_module(module)
    return catalogue


def chosen(catalogue, names):
    """Returns the entries of the figures, tables, statements and papers that are named."""
    entries = []
    for name in names:
        found = [one for one in catalogue.ENTRIES.values() if name in one.names]
        if not found:
            known = ", ".join([*catalogue.PAPERS, *catalogue.ENTRIES])
            raise SystemExit(f"There is no figure, table or paper {name!r}. There are: {known}")
        entries += [e for e in found if e not in entries]
    return entries


def networks_of(entries, size):
    """Returns the networks that entries need, by paper and name, and what is measured on each."""
    networks, measures = {}, {}
    for one in entries:
        for network in one.networks(size):
            key = one.paper, network.name
            if networks.setdefault(key, network).settings != network.settings:
                raise ValueError(f"Two networks have the name {network.name!r}.")
            found = {m.__name__: m for m in one.measures_at(size)}
            measures.setdefault(key, {}).update(found)
    return networks, measures


def folder_of(out, size, key):
    return Path(out) / size / key[0] / key[1]


def missing(networks, measures, out, size, anew=False):
    """Returns the keys of the networks that are not trained, or not measured, completely.

    A network with rows in all frames that the repository keeps of its size needs no training, on
    whatever machine they were measured.

    Args:
        networks: dict of networks by paper and name.
        measures: dict of what is measured on each.
        out: folder of the trained networks.
        size: name of a size.
        anew: whether frames that are kept do not count.

    Raises:
        SystemExit: if a folder holds a network that was trained with other settings.
    """
    import catalogue

    papers = set() if anew or size not in catalogue.KEPT else {paper for paper, _ in networks}
    rows = {paper: catalogue.read_frames(size, paper, out) for paper in papers}
    left = []
    for key, network in networks.items():
        if is_kept(rows.get(key[0], {}), network, measures[key]):
            continue
        frames = folder_of(out, size, key) / "frames"
        kept = frames / "settings.txt"
        others = other_settings(kept.read_text(), network.settings) if kept.exists() else []
        if others:
            raise SystemExit(
                f"{frames.parent} holds a network that was trained with other settings "
                f"({', '.join(others)}). Move it away to train it anew, or name another folder "
                "with --out."
            )
        if not all(catalogue.is_measured(frames, measure) for measure in measures[key].values()):
            left.append(key)
    return left


def is_kept(frames, network, measures):
    """Returns whether all frames of a network are kept, as they would be measured today."""
    from catalogue import is_on_as_many, kept_images, kept_settings

    settings = kept_settings(frames).get(network.name)
    if settings is None or other_settings(settings, network.settings):
        return False
    images = kept_images(frames)[network.name]
    return all(
        name in frames
        and (frames[name]["name"] == network.name).any()
        and is_on_as_many(images, measure)
        for name, measure in measures.items()
    )


def other_settings(text, settings):
    """Returns the names of the settings that differ from those of a trained network.

    A setting that did not exist yet when the network was trained had its default value. The dtype
    may differ: it is that of the machine (`--dtype`), and kept with the frames.

    Args:
        text: the settings of the trained network, as their `repr`.
        settings: a dataclass, the present settings.
    """
    from tfresidual.jobs.run_folder import changed_settings

    names = [field.name for field in dataclasses.fields(settings)]
    try:
        call = ast.parse(text, mode="eval").body
        kept = {argument.arg: ast.literal_eval(argument.value) for argument in call.keywords}
        kept.pop("dtype", None)
        is_same_kind = call.func.id == type(settings).__name__
    except (SyntaxError, ValueError, AttributeError):
        return names
    if not is_same_kind:
        return names
    return [*changed_settings(settings, kept), *(name for name in kept if name not in names)]


def train_one(arguments):
    """Trains and measures one network, in this process."""
    from tfresidual.machine.files import replacing

    catalogue = load()
    entries = chosen(catalogue, arguments.names)
    networks, measures = networks_of(entries, arguments.size)
    key = tuple(arguments.key)
    folder = folder_of(arguments.out, arguments.size, key)
    network = catalogue.with_dtype(networks[key], arguments.dtype)
    trained = catalogue.on_disk(network, arguments.data_dir).train(folder)
    (folder / "frames").mkdir(parents=True, exist_ok=True)
    with replacing(folder / "frames" / "settings.txt") as path:
        path.write_text(repr(network.settings))
    for measure in measures[key].values():
        catalogue.measured(trained, measure)


# Seconds to start the process of a network, to compile it and to measure it.
OVERHEAD = 60
# Multiplications per second of a training in one process of one thread, if none was timed yet.
RATE = 2e10


def rate_of(catalogue, size, out):
    """Returns the multiplications per second of the trainings that were timed, or a guess."""
    done, seconds = 0.0, 0.0
    for paper in catalogue.PAPERS:
        frame = catalogue.read_frames(size, paper, out).get("summary")
        if frame is None or "seconds" not in frame:
            continue
        networks, _ = networks_of(catalogue.entries_of(paper), size)
        # Those trained elsewhere have none.
        times = frame.set_index("name")["seconds"].dropna()
        for (_, name), network in networks.items():
            if name in times:
                done, seconds = done + network.operations(), seconds + times[name]
    return done / seconds if seconds else RATE


def listed(arguments):
    """Prints every figure and table with its state, and what its statements are decided by."""
    catalogue = load()
    control = catalogue.CONTROLS.get(arguments.size)
    before = {p: catalogue.read_frames(control, p) for p in catalogue.PAPERS if control}
    for one in catalogue.ENTRIES.values():
        networks, measures = networks_of([one], arguments.size)
        left = missing(networks, measures, arguments.out, arguments.size)
        kept = catalogue.read_frames(arguments.size, one.paper, arguments.out)
        try:
            one.select(kept, arguments.size)
            state = "frames kept"
        except catalogue.MissingError:
            state = f"{len(networks) - len(left)} of {len(networks)} networks"
            state = state if networks else "not at this size"
        question = one.asks.partition("?")[0] + "?"
        print(f"{one.id:8} {state:20} {question}")
        for statement in catalogue.STATEMENTS.values():
            if statement.entry == one.id:
                found = statement.judged(kept, arguments.size, before.get(one.paper))
                print(f"    {statement.id:8} {found.kind}{f': {found.why}' if found.why else ''}")


def run(arguments):
    """Trains, measures and draws what was asked for."""
    catalogue = load()
    entries = chosen(catalogue, arguments.names)
    networks, measures = networks_of(entries, arguments.size)
    keys = missing(networks, measures, arguments.out, arguments.size, arguments.anew)
    rate = rate_of(catalogue, arguments.size, arguments.out)
    # Large ones first, so that no process ends long after the others.
    keys.sort(key=lambda key: -networks[key].operations())
    seconds = {key: OVERHEAD + networks[key].operations() / rate for key in keys}
    print(
        f"{len(networks)} networks, {len(keys)} of them to be trained or measured: about "
        f"{sum(seconds.values()) / arguments.workers / 60:.0f} minutes in {arguments.workers} "
        f"processes{' without a GPU' if arguments.size == 'paper' else ''}",
        flush=True,
    )
    if arguments.dry_run:
        for key in keys:
            print(described(key, networks[key], seconds[key]))
        return
    everything, _ = networks_of(list(catalogue.ENTRIES.values()), arguments.size)
    collect = functools.partial(catalogue.collect, arguments.out, arguments.size, everything)
    failed = run_all({key: networks[key] for key in keys}, seconds, arguments, collect)
    collect()
    for one in entries:
        draw(catalogue, one, arguments)
    if failed:
        raise SystemExit("Not trained: " + ", ".join("/".join(key) for key in failed))


def described(key, network, seconds):
    """Returns a line on a training: its network, its length and its schedule."""
    from tfresidual.datasets.description import sizes_of
    from tfresidual.jobs.settings import recipe_of

    settings = network.settings
    if not network.operations():
        return f"{'/'.join(key)}: {settings}"
    images, _, _ = sizes_of(
        settings.data, settings.train_size, settings.validation, settings.test_size
    )
    recipe = recipe_of(settings)
    steps = -(-images // settings.batch_size)
    rates = ", ".join(
        f"{rate:g} from {round(first / recipe.epochs * settings.epochs)}"
        for first, rate in recipe.rates
    )
    return (
        f"{'/'.join(key)}: {parameters_of(settings):,} parameters, {settings.epochs} epochs "
        f"of {steps} steps of {settings.batch_size} images, rate {rates}; {seconds / 60:.0f} min"
    )


def parameters_of(settings):
    """Returns the number of parameters of a network, which is built once for all its trainings."""
    # What changes the training and not the network.
    training = {"seed": 0, "recipe": None, "epochs": 1, "coupling": None, "recurrent": False}
    training |= {"kernel": "uniform", "coupling_from": 0, "train_size": None, "learning_rate": None}
    return _count(dataclasses.replace(settings, **training))


@functools.cache
def _count(settings):
    from tfresidual.jobs.building import build

    return build(settings).count_params()


def run_all(networks, seconds, arguments, collect):
    """Trains and measures networks in processes of their own.

    Prints a line as each of them ends and, on a terminal, shows a bar with the epochs so far.

    Args:
        networks: dict of the networks, in the order in which they begin.
        seconds: dict of about how many seconds each of them takes.
        arguments: those of the command.
        collect: function that puts the frames together, called as each of them ends, so that
            nothing that was measured is lost with the folder of the networks.

    Returns:
        A list of the keys of those that failed.
    """
    from rich.console import Console

    from tfresidual.machine.console import progress_bar

    waiting, running, failed, done, shown = list(networks), {}, [], 0.0, 0.0
    threads = str(max(1, (os.cpu_count() or 1) // arguments.workers))
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, threads) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    total, began = sum(seconds.values()), time.monotonic()
    # The bar is where the lines are, so that it does not appear in a file.
    with progress_bar("starting", total, Console()) as advance:
        try:
            while waiting or running:
                while waiting and len(running) < arguments.workers:
                    key = waiting.pop(0)
                    running[key] = start(key, arguments, environment)
                time.sleep(0.5)
                for key in [key for key, process in running.items() if process.poll() is not None]:
                    process = running.pop(key)
                    done += seconds[key]
                    if process.returncode:
                        failed.append(key)
                    state = "failed, see log.txt" if process.returncode else "done"
                    print(
                        f"{'/'.join(key)}: {state}; {done / total:.0%} after "
                        f"{(time.monotonic() - began) / 60:.1f} min",
                        flush=True,
                    )
                    collect()
                states = [
                    so_far(key, networks[key], seconds[key], arguments.out, arguments.size)
                    for key in running
                ]
                now = done + sum(share for share, _ in states)
                advance(now - shown, ", ".join(text for _, text in states))
                shown = now
        finally:
            for process in running.values():
                process.terminate()
    return failed


def so_far(key, network, seconds, out, size):
    """Returns how many of its seconds a network has been trained, by its epochs, and a text."""
    from tfresidual.training.checkpoints import TrainingFolder

    name = "/".join(key)
    if not network.operations():
        return 0.0, name
    done, epochs = TrainingFolder(folder_of(out, size, key), "").epochs(), network.settings.epochs
    return (seconds - OVERHEAD) * done / epochs, f"{name} {done}/{epochs}"


def start(key, arguments, environment):
    """Starts the process that trains and measures a network; it writes to log.txt."""
    folder = folder_of(arguments.out, arguments.size, key)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "train", *arguments.names, "--size", arguments.size]
    command += ["--out", str(arguments.out), "--key", *key]
    if arguments.data_dir:
        command += ["--data-dir", arguments.data_dir]
    if arguments.dtype:
        command += ["--dtype", arguments.dtype]
    with open(folder / "log.txt", "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def draw(catalogue, one, arguments):
    """Draws a figure, or prints a table, from the frames, and says what was measured."""
    from statements import measured_on

    frames = catalogue.read_frames(arguments.size, one.paper, arguments.out)
    try:
        pictures = one.pictures(frames, arguments.size)
    except catalogue.MissingError as error:
        print(f"{one.id}: {error}")
        return
    print(f"{one.id}: {measured_on(one, frames, arguments.size)}")
    for name, found in pictures.items():
        if hasattr(found, "savefig"):
            path = arguments.out / arguments.size / one.paper / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            found.savefig(path, dpi=160)
            print(path)
        else:
            print(found.to_string())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "run", "page", "train"])
    parser.add_argument(
        "names", nargs="*", help="figures, tables and statements such as II-4, or papers"
    )
    parser.add_argument("--size", choices=SIZES, default="smoke")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument(
        "--dtype",
        help="dtype policy of the trainings, such as mixed_bfloat16 where the processor has AMX; "
        "networks are measured in float32",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    parser.add_argument("--workers", type=int, default=2, help="processes that train side by side")
    parser.add_argument(
        "--anew", action="store_true", help="train networks whose frames are kept, too"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be trained")
    parser.add_argument("--key", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.command in ("run", "train") and not arguments.names:
        parser.error("name figures, tables or papers, such as II-4 or IC; see `list`")
    commands = {"list": listed, "run": run, "train": train_one, "page": page}
    commands[arguments.command](arguments)


if __name__ == "__main__":
    main()
