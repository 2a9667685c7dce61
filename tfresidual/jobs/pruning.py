"""Takes blocks out of a saved network: what `tfresidual prune` does."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import keras
import pandas as pd

from tfresidual import datasets, surgery, training
from tfresidual.definitions.arguments import ArgumentError, check_choice, checked_path
from tfresidual.definitions.chance import chance_text
from tfresidual.definitions.settings import CRITERIA, PruningSettings
from tfresidual.jobs.data import prepare
from tfresidual.jobs.frames import count_images, write_frames_and_figures
from tfresidual.jobs.run_folder import (
    MODEL_FILE,
    claim,
    read_settings,
    refuse_other_settings,
)
from tfresidual.jobs.settings import recipe_of, used
from tfresidual.jobs.targets import (
    check_fit,
    is_of_run,
    network_of,
    pixels_for,
    settings_for,
)
from tfresidual.machine.console import say
from tfresidual.machine.files import replacing
from tfresidual.machine.locks import locked
from tfresidual.report import pruning_sections, write
from tfresidual.report.pruning import outcome_text
from tfresidual.report.study import images_text
from tfresidual.routing.data import batches_of
from tfresidual.sources import chain as chain_of
from tfresidual.sources.keras_file import model_in
from tfresidual.surgery.planning import Goal
from tfresidual.surgery.pruning import TUNED, Judge, planned, remeasured

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rich.console import Console

    from tfresidual.definitions.types import Frame, Pixels, StrPath

# Batch sizes that are timed along the plan of the network that is made.
BATCH_SIZES = (1, 256)
# Subfolder of the training without the blocks.
TUNING = "tuning"


# The settings of a run that are of its data.
OF_DATA = (
    *("data", "digits", "data_dir", "data_file", "train_size", "validation", "test_size"),
    *("batch_size", "augment", "seed"),
)


@dataclasses.dataclass(frozen=True)
class _Network:
    """The network that a pruning began with."""

    path: str = dataclasses.field(metadata={"shown": "target"})
    digest: str = dataclasses.field(metadata={"shown": "SHA-256 of the file"})
    pixels: str


def run(
    target: StrPath,
    folder: StrPath,
    pruning: PruningSettings,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
    pixels: Pixels | None = None,
) -> Frame:
    """Takes blocks out of a saved network and writes the smaller one, with a report.

    Blocks are chosen on the validation images, statistics and training use the training images, and
    networks are judged on the test images. An interrupted run resumes: curves that are complete are
    kept, and so are complete epochs.

    - `settings.json`: the settings, the network, the versions of the packages, the machine;
    - `frames/plan_loss.csv` and so on: which blocks go by a criterion, and what that costs;
    - `frames/pruned.csv`: the same for the network that was made, with what was done for it since;
    - `figures/pruning.png`: the curves of all criteria;
    - `tuning/`: the training without the blocks, if it was asked for;
    - `model.keras`: the smaller network, which plain Keras opens if it opens the one before;
    - `report.html`: all results on one page.

    Args:
        target: the folder of a run, or a `.keras` file.
        folder: where to write; created if it does not exist.
        pruning: a `PruningSettings`.
        changes: dict of fields of `tfresidual.jobs.settings.Settings` that describe the data.
        console: a `rich.console.Console` for progress, or `None` for no output.
        pixels: format of the pixels, see `tfresidual.jobs.probing.probe`.

    Returns:
        The frame of `tfresidual.surgery.prune`.

    Raises:
        FileNotFoundError: if there is no such network, or the dataset is not on the disk.
        tfresidual.machine.locks.FolderInUseError: if another process is writing to `folder`.
        ValueError: if an argument cannot be used, a file is damaged, the folder holds another run,
            or blocks cannot go.
    """
    Goal(pruning.blocks, pruning.speed, pruning.most_error)
    if pixels is not None:
        check_choice("pixels", pixels, datasets.PIXELS)
    target, folder = checked_path("target", target), checked_path("folder", folder)
    path = network_of(target)
    if path.is_dir():
        raise ArgumentError(
            "target",
            "be the folder of a run or a .keras file: a SavedModel holds no layers",
            str(target),
        )
    if path.absolute().parent == folder.absolute():
        raise ArgumentError("folder", "be another one than that of the network", str(folder))
    settings = settings_for(target, path, changes or {})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    known = pixels_for(path) if pixels is None else pixels
    network = _Network(str(path.absolute()), digest, known)
    parts = {"settings": settings, "pruning": pruning, "network": network}
    with locked(folder):
        return _run(path, folder, parts, console)


def _run(path, folder, parts, console):
    settings, origin = parts["settings"], parts["pruning"]
    refuse_other_settings(folder, parts)
    say(console, f"opening {path}")
    model, _ = model_in(path)
    chain = chain_of(model)
    say(console, str(chain))
    say(console, f"on images of {settings.data}, pixels {parts['network'].pixels}")
    check_fit(chain, settings, path)
    train, validation, test = prepare(settings, console, pixels=parts["network"].pixels)
    claim(folder, parts)
    (folder / "frames").mkdir(exist_ok=True)
    criteria = [origin.by, *(by for by in CRITERIA if origin.compare and by != origin.by)]
    plans = {by: _plan(folder, model, by, origin, validation, test, console) for by in criteria}
    frame = plans[origin.by]
    judge = Judge(chain, test)
    made, frame = _made(
        folder, model, chain, frame, origin, settings, train, validation, judge, console
    )
    with replacing(folder / MODEL_FILE) as written:
        made.save(written)
    curves = pd.concat([one.assign(by=by) for by, one in plans.items()], ignore_index=True)
    warning = chance_text(judge.values, "the test images")
    sections = pruning_sections(
        curves,
        frame,
        images_text({"validation": count_images(validation)}),
        images_text({"test": count_images(test)}),
        warning,
    )
    figures = {"pruning": sections[0].figure}
    write_frames_and_figures(folder, {"pruned": frame}, figures, console=console)
    write(
        folder / "report.html",
        f"{model.name} without blocks",
        sections,
        summary=_summary(frame),
        settings=_shown_settings(folder, path, settings, origin),
    )
    say(console, outcome_text(frame, warning))
    return frame


def _plan(folder, model, by, origin, validation, test, console):
    """Returns the plan by a criterion, from its file if it is there."""
    path = folder / "frames" / f"plan_{by}.csv"
    if path.exists():
        return pd.read_csv(path)
    say(console, f"choosing blocks by {by}")
    is_chosen = by == origin.by
    goal = {name: getattr(origin, name) for name in ("blocks", "speed", "most_error")}
    if goal["speed"] is not None and not is_chosen:
        # As many blocks as make the network so fast by the criterion that decides.
        chosen = pd.read_csv(folder / "frames" / f"plan_{origin.by}.csv")
        goal = {"blocks": len(chosen) - 1}
    frame = surgery.plan(
        model,
        validation,
        **goal,
        by=by,
        test=test,
        batch_sizes=BATCH_SIZES if is_chosen else (),
        progress=console is not None,
    )
    with replacing(path) as written:
        frame.to_csv(written, index=False)
    return frame


def _shown_settings(folder, path, settings, origin):
    """Returns the settings for the report: of a network of no run, those of the data alone."""
    content, known = read_settings(folder), used(settings)
    if is_of_run(path):
        content["settings"] = known
    else:
        of_it = (*OF_DATA, *(("recipe",) if origin.tuning_epochs else ()))
        content["settings"] = {name: known[name] for name in of_it if name in known}
    if origin.tuning_epochs:
        content["pruning"] = content["pruning"] | {"tuning_rate": _tuning_rate(settings, origin)}
    return content


def _tuning_rate(settings, origin):
    return origin.tuning_rate or recipe_of(settings).learning_rate / 10


def _made(folder, model, chain, frame, origin, settings, train, validation, judge, console):
    """Returns the smaller network and the frame of `tfresidual.surgery.prune`."""
    say(console, f"making the network of {int(frame['blocks_left'].iloc[-1])} blocks")
    keras.utils.set_random_seed(settings.seed)
    plain = datasets.plain(train)
    images, *_ = next(batches_of(plain, chain, with_labels=False))
    made = surgery.without_blocks(chain, frame, inputs=images)
    frame = planned(made, frame, plain, judge, origin.statistics)
    if origin.tuning_epochs:
        say(console, f"training without the blocks: {origin.tuning_epochs} epochs")
        keras.utils.set_random_seed(settings.seed)
        rate = _tuning_rate(settings, origin)
        metric = training.compile_network(
            made,
            recipe_of(settings).name,
            epochs=origin.tuning_epochs,
            steps_per_epoch=len(train),
            multi_label=datasets.describe(settings.data, digits=settings.digits).multi_label,
            learning_rate=rate,
        )
        result = training.train(
            made,
            train,
            validation,
            folder=folder / TUNING,
            epochs=origin.tuning_epochs,
            metric=metric,
            console=console,
        )
        made = result.network
        remeasured(made, plain, chain, origin.statistics)
        frame = judge.added(frame, made, TUNED)
    return made, frame


def _summary(frame):
    first, last = frame.iloc[0], frame.iloc[-1]
    return [
        ("Blocks", f"{int(last['blocks_left'])} of {int(first['blocks_left'])}", "left"),
        (
            "Error on test images",
            f"{last['error']:.1%}",
            f"{first['error']:.1%} with all blocks; standard error of the difference "
            f"{100 * last['error_rise_se']:.1f} points",
        ),
        (
            "FLOPs",
            f"{last['flops'] / first['flops']:.0%}",
            f"of {first['flops'] / 1e6:,.1f} million per image",
        ),
        (
            "Parameters",
            f"{int(last['parameters']):,}",
            f"of {int(first['parameters']):,}",
        ),
    ]
