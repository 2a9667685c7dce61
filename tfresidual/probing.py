"""The probes by name, and their frames and figures for a saved network."""

import contextlib
import dataclasses
import json
import math
import os
from importlib import metadata

import numpy as np
import pandas as pd

from tfresidual import datasets, probes, tuning
from tfresidual.arguments import check_int
from tfresidual.chains import chain as chain_of
from tfresidual.chains.evaluator import MEMORY_LIMIT, check_memory_limit
from tfresidual.chains.outputs import is_binary
from tfresidual.chains.routes import check_scale, check_times, movable_runs
from tfresidual.chains.saved_model import check_whole, is_saved_model, series_of
from tfresidual.console import followed, say
from tfresidual.files import check_folder, checked_path, read_json, written
from tfresidual.locks import locked
from tfresidual.probes.convergence_indices import check_chance
from tfresidual.report import study_figures
from tfresidual.run_folder import MODEL_FILE, SETTINGS_FILE, settings_of
from tfresidual.settings import Settings, check_epsilon, describe, prepare

SPLITS = ("train", "test")
# Where the frames and figures of a series are until all of them are there.
UNFINISHED = "unfinished"
# What frames were measured on, by their name.
RECORD = "probes.json"


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """What the probes are told beside chain and images.

    Attributes:
        times: extra applications of a stage's last block.
        scale: what the block's branch is multiplied by in them. The indices are defined, and
            measured, without.
        chance: the error of guessing, see `tfresidual.probes.convergence_indices`.
        at_chance: `"raise"`, or `"nan"` for indices that are NaN where the network errs as often
            as chance or more.
        epsilon: mean scaled perturbation of the stopping rule, `None` for that of the run.
        memory_limit: MiB that the evaluator may take.
        seed: decides on the orders of shuffled blocks, `None` for that of the run.

    Raises:
        ValueError: if one of them cannot be used.
    """

    times: int = 16
    scale: float = 1.0
    chance: str | float = "uniform"
    at_chance: str = "raise"
    epsilon: float | None = None
    memory_limit: float = MEMORY_LIMIT
    seed: int | None = None

    def __post_init__(self):
        check_times(self.times)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        check_scale(self.scale)
        check_chance(self.chance)
        check_memory_limit(self.memory_limit)


def probe(
    target,
    names=None,
    folder=None,
    splits=("test",),
    images=None,
    changes=None,
    options=None,
    console=None,
    pixels="standardized",
):
    """Runs probes on a saved network, and writes their frames and figures.

    Args:
        target: the folder of a run, a `.keras` file, a SavedModel that `tfresidual.export` wrote,
            or the folder of a series of them, see `tfresidual.callbacks.ExportForProbing`. The
            data is that of the run in whose folder it lies, unless `changes` say otherwise.
        names: names of probes, or one of them, see `PROBES`; by default all that the network has
            blocks for.
        folder: where to write, by default `probes` in the folder of the run or of the series, and
            `probes/NAME` beside a network of another name. `probes.json` there says of every
            frame what it was measured on. The frames of a series
            have the column `epoch`, counted from 0 (-1 is before the first); beside the figures
            of its last network stand those over the epochs. Until a series is through, its files
            are in the folder `unfinished` there, and those of an earlier probe stay.
        splits: `"train"`, `"test"` or both.
        images: int, how many images of each split, rounded up to whole batches; by default all of
            the test images, and as many training images.
        changes: dict of fields of `tfresidual.study.Settings` that name the data.
        options: a `ProbeOptions`.
        console: a `rich.console.Console` for progress, or `None` for silence.
        pixels: what the images hold, see `tfresidual.datasets.load`: what the network was trained
            on, where that was not done here.

    Returns:
        A tuple of the frames by name, and the list of the `pathlib.Path`s written.

    Raises:
        FileNotFoundError: if there is no such network, or the dataset is not on the disk.
        NotADirectoryError: if `folder` cannot be a folder.
        tfresidual.locks.FolderInUseError: if another process writes to `folder`.
        ValueError: if an argument cannot be used, a network or another file is damaged, or the
            data does not fit a network.
    """
    names, splits = _listed(names) or None, _listed(splits)
    for name in names or ():
        if name not in PROBES:
            raise ValueError(
                f"Argument `names` must hold names of probes: {', '.join(map(repr, PROBES))}. "
                f"Received: {name!r}"
            )
    if not splits or any(split not in SPLITS for split in splits):
        raise ValueError(
            f"Argument `splits` must hold 'train', 'test' or both. Received: splits={splits!r}"
        )
    if images is not None:
        check_int("images", images, at_least=1)
    if pixels not in datasets.PIXELS:
        raise ValueError(
            f"Argument `pixels` must be one of {', '.join(map(repr, datasets.PIXELS))}. "
            f"Received: pixels={pixels!r}"
        )
    options = options or ProbeOptions()
    if names is None:
        # Who did not ask for the indices gets the other probes without them.
        options = dataclasses.replace(options, at_chance="nan")
    target = checked_path("target", target)
    series = _whole_series(target)
    networks = {epoch - 1: path for epoch, path in series.items()} or {None: network_of(target)}
    settings = _settings(target, next(iter(networks.values())), changes or {})
    folder = _folder_of(target if series else networks[None]) if folder is None else folder
    folder = checked_path("folder", folder)
    # A series that is not through leaves the whole frames of an earlier probe as they are.
    written_to = folder / UNFINISHED if series else folder
    check_folder("folder", folder, UNFINISHED if series else "")
    options = dataclasses.replace(
        options,
        epsilon=settings.epsilon if options.epsilon is None else options.epsilon,
        seed=settings.seed if options.seed is None else options.seed,
    )
    with locked(folder):
        known = _known(folder)
        data, frames, paths, last = None, {}, {}, [*networks.values()][-1]
        for epoch, path in networks.items():
            say(console, f"opening {path}")
            chain = chain_of(path)
            if data is None:
                say(console, str(chain))
            _check_fit(chain, settings, path)
            if data is None:
                data = _data(settings, splits, images, pixels, console)
                counts = {split: _count(part) for split, part in data.items()}
                say(console, f"on {counts} images of {settings.data}, pixels {pixels}")
                what = {
                    "network": str(target),
                    "tfresidual": metadata.version("tfresidual"),
                    "data": settings.data,
                    "images": counts,
                    "pixels": pixels,
                    "options": dataclasses.asdict(options),
                }
            # The indices come with the read-outs and the drops they are taken from.
            taken_from = ("readout", "drop_blocks")
            for name in names or [name for name in possible(chain) if name not in taken_from]:
                say(console, f"running {name}")
                measured = PROBES[name](chain, data, options, console is not None)
                # Of a series the last network is drawn.
                figures = study_figures(measured, options.epsilon) if path == last else {}
                if epoch is not None:
                    measured = _with_epoch(measured, epoch, frames)
                # At once: an interruption loses the probe that runs, not those before it.
                written_now = write_frames_and_figures(written_to, measured, figures, flat=True)
                paths |= dict.fromkeys(written_now)
                frames |= measured
                if not series:
                    paths[_record(folder, known, measured, what)] = None
        if series:
            figures = study_figures(_by_epoch(frames), options.epsilon)
            paths |= dict.fromkeys(write_frames_and_figures(written_to, {}, figures, flat=True))
            paths = [path.replace(folder / path.name) for path in paths]
            paths.append(_record(folder, known, frames, what))
            # What an interrupted probe of other names left there stays.
            with contextlib.suppress(OSError):
                written_to.rmdir()
        return frames, list(paths)


def _listed(names):
    # One name does for a list of it.
    return [names] if isinstance(names, str) else list(dict.fromkeys(names or ()))


def _whole_series(target):
    """`series_of` a folder, each of which looks as if it can be opened."""
    series = series_of(target)
    named = series_of(target, is_member=os.path.lexists) if series else {}
    lost = [path.name for epoch, path in named.items() if epoch not in series]
    if lost:
        raise ValueError(
            "Argument `target` must be the folder of a series of whole SavedModels. "
            f"Received: target={str(target)!r}, in which {', '.join(lost)} is none"
        )
    for path in series.values():
        check_whole(path)
    return series


def _folder_of(path):
    """Where the frames of a network, or of the series in a folder, are written by default."""
    path = path.absolute()
    if series_of(path):
        return path / "probes"
    is_of_run = path.name == MODEL_FILE and (path.parent / SETTINGS_FILE).exists()
    # Networks side by side leave each other's frames alone.
    name = path.name if path.is_dir() else path.stem
    return path.parent / "probes" / ("" if is_of_run else name)


def _known(folder):
    """What an earlier probe wrote down, a dict by the names of its frames."""
    path = folder / RECORD
    return read_json(path, "Remove it, to probe anew") if path.exists() else {}


def _record(folder, known, frames, what):
    """Writes down what frames were measured on, and leaves what is known of others; the path."""
    known |= dict.fromkeys(frames, what)
    path = folder / RECORD
    with written(path) as beside:
        beside.write_text(json.dumps(known, indent=2) + "\n", "utf-8")
    return path


def _by_epoch(frames):
    """What the figures over the epochs are drawn from, out of the frames of a series."""
    found = {}
    if "block_metrics" in frames:
        found["block_metrics_by_epoch"] = frames["block_metrics"]
    if "readout" in frames:
        columns = [c for c in ("split", "stage", "block", "epoch") if c in frames["readout"]]
        read = frames["readout"][[*columns, "error"]]
        blocks = found.get("block_metrics_by_epoch", read[columns])
        found["block_metrics_by_epoch"] = blocks.merge(read, "left", columns)
    if "drop_blocks" in frames:
        found["drop_blocks_by_epoch"] = frames["drop_blocks"]
    return found


def _with_epoch(measured, epoch, frames):
    """The frames of a network of a series, behind those of the networks before it."""
    measured = {name: frame.assign(epoch=epoch) for name, frame in measured.items()}
    return {
        name: pd.concat([frames[name], frame], ignore_index=True) if name in frames else frame
        for name, frame in measured.items()
    }


def _data(settings, splits, images, pixels, console):
    train, _, test = prepare(settings, console, pixels=pixels)
    batches = math.ceil(images / settings.batch_size) if images else int(test.cardinality())
    parts = {"train": datasets.plain(train), "test": test}
    return {split: parts[split].take(batches) for split in splits}


def _count(dataset):
    return sum(len(images) for images, _ in dataset)


def possible(chain):
    """The names of the probes that a network has blocks for.

    A network whose stages end in a block that changes the shape has nothing to repeat, one
    without two other blocks in any stage nothing to shuffle, and one built without `lipschitz`
    no bounds. Routes are measured by what is right and wrong: not where outputs are no classes.

    Args:
        chain: a `tfresidual.chains.Chain`.

    Returns:
        A list of keys of `PROBES`.
    """
    missing = set()
    if not any(stage.can_repeat for stage in chain.stages):
        missing |= {"repeat_last_block", "fixed_point"}
    if not any(map(movable_runs, chain.stages)):
        missing.add("shuffle_blocks")
    if all(block.lipschitz is None for block in chain.blocks):
        missing.add("lipschitz")
    if chain.outputs == "values":
        missing |= {"readout", "drop_blocks", "repeat_last_block"}
        missing |= {"shuffle_blocks", "convergence_indices", "borderline"}
    return [name for name in PROBES if name not in missing]


def write_frames_and_figures(folder, frames, figures, flat=False, console=None):
    """Writes frames as CSV and figures as PNG; what stands there is replaced file by file.

    Args:
        folder: where to write, made if it is not there.
        frames: `pandas.DataFrame`s by name.
        figures: `matplotlib.figure.Figure`s by name.
        flat: whether all files are put into the folder itself, not into `frames` and `figures`.
        console: a `rich.console.Console` for a progress bar, or `None` for silence.

    Returns:
        The list of the `pathlib.Path`s written.
    """
    paths = []
    for name, frame in frames.items():
        paths.append(folder / ("" if flat else "frames") / f"{name}.csv")
        with written(paths[-1]) as path:
            frame.to_csv(path, index=False)
    for name, figure in followed(figures.items(), "writing the figures", console):
        paths.append(folder / ("" if flat else "figures") / f"{name}.png")
        with written(paths[-1]) as path:
            figure.savefig(path, dpi=160)
    return paths


def block_metrics(chain, data, options, progress):
    """The metrics of all blocks, the distances, and the depth the stopping rule asks for."""
    blocks = probes.block_metrics(chain, data, progress=progress)
    # The distances are sums of the perturbations just measured.
    distances = probes.distances_of(blocks)
    in_stages = distances[distances["stage"] != probes.ALL_STAGES]
    measured = in_stages["blocks"] > 0
    asked_for = pd.Series(
        tuning.depth_for(in_stages.loc[measured, "scaled_distance"], options.epsilon),
        index=in_stages.index[measured],
    )
    distances["depth_asked_for"] = asked_for.reindex(distances.index).astype("Int64")
    return {"block_metrics": blocks, "computational_distance": distances}


def readout(chain, data, options, progress):
    """Every stage left behind each of its blocks."""
    return {"readout": probes.readout(chain, data, options.memory_limit, progress)}


def drop_blocks(chain, data, options, progress):
    """Every block left out."""
    return {"drop_blocks": probes.drop_blocks(chain, data, options.memory_limit, progress)}


def repeat_last_block(chain, data, options, progress):
    """Every stage's last block repeated, and what its steps do."""
    frame = probes.repeat_last_block(
        chain,
        data,
        options.times,
        options.scale,
        memory_limit=options.memory_limit,
        progress=progress,
    )
    return {"repetition_steps": frame}


def shuffle_blocks(chain, data, options, progress):
    """The blocks of every stage in other orders."""
    frame = probes.shuffle_blocks(
        chain, data, seed=options.seed, memory_limit=options.memory_limit, progress=progress
    )
    return {"shuffle_blocks": frame}


def convergence_indices(chain, data, options, progress):
    """The indices, and the three frames they are taken from."""
    frames, indices = probes.convergence_frames(
        chain,
        data,
        options.times,
        options.chance,
        options.memory_limit,
        progress,
        options.at_chance,
    )
    return {"convergence_indices": indices, **frames}


def borderline(chain, data, options, progress):
    """Groups of images behind the last blocks, and along the repeated last block."""
    frame = probes.borderline(
        chain,
        data,
        times=options.times,
        scale=options.scale,
        memory_limit=options.memory_limit,
        progress=progress,
    )
    return {"borderline": frame}


def signal_propagation(chain, data, options, progress):
    """States and gradients along the network, and what the shortcuts carry."""
    return {"signal_propagation": probes.signal_propagation(chain, data, progress=progress)}


def effective_parameters(chain, data, options, progress):
    """How alike the blocks of each stage are; reads no images."""
    return {
        "effective_parameters": probes.effective_parameters(chain),
        "weight_deviations": probes.weight_deviations(chain),
    }


def fixed_point(chain, data, options, progress):
    """Where every stage goes when its last block is applied on and on."""
    return {"fixed_point": probes.fixed_point(chain, data, options.times, progress)}


def lipschitz(chain, data, options, progress):
    """What bounds the blocks; reads no images."""
    return {"lipschitz": probes.lipschitz(chain, progress)}


PROBES = {
    "block_metrics": block_metrics,
    "readout": readout,
    "drop_blocks": drop_blocks,
    "repeat_last_block": repeat_last_block,
    "shuffle_blocks": shuffle_blocks,
    "convergence_indices": convergence_indices,
    "borderline": borderline,
    "signal_propagation": signal_propagation,
    "effective_parameters": effective_parameters,
    "fixed_point": fixed_point,
    "lipschitz": lipschitz,
}


def network_of(target):
    """The path of a network.

    Args:
        target: the folder of a run, a `.keras` file, or a SavedModel.

    Returns:
        A `pathlib.Path`.

    Raises:
        FileNotFoundError: if there is none.
    """
    target = checked_path("target", target)
    if is_saved_model(target):
        return target
    path = target / MODEL_FILE if target.is_dir() else target
    if not path.exists():
        raise FileNotFoundError(
            "Argument `target` must be the folder of a run, a .keras file, a SavedModel, or the "
            f"folder of a series of them; there is no {path}. Received: target={str(target)!r}"
        )
    return path


def _settings(target, path, changes):
    """The settings of the run in whose folder a network lies, if it lies in one."""
    path = path.absolute()
    folders = [folder for folder in path.parents[:2] if (folder / SETTINGS_FILE).exists()]
    if folders:
        settings = settings_of(folders[0])
    elif "data" in changes:
        settings = Settings()
    else:
        raise ValueError(
            "Argument `data` must be given for a network outside of the folder of a run. "
            f"Received: target={str(target)!r}, data=None"
        )
    unknown = set(changes) - {field.name for field in dataclasses.fields(Settings)}
    if unknown:
        raise ValueError(
            "Argument `changes` must hold fields of `tfresidual.study.Settings`. "
            f"Received: {', '.join(map(repr, sorted(unknown)))}"
        )
    settings = dataclasses.replace(settings, **changes)
    try:
        datasets.describe(settings.data)
    except ValueError as error:
        raise ValueError(
            "Argument `data` must name a dataset, see `tfresidual.datasets.load`. "
            f"Received: data={settings.data!r}"
        ) from error
    return settings


def _check_fit(chain, settings, path):
    """Refuses data that does not fit a network, that of the first before any is loaded."""
    name = f"{chain.name} in {str(path)!r}"
    description = describe(settings)
    shape = description.input_shape
    expected = chain.input_shape
    if len(expected) != len(shape) or any(
        size not in (None, given) for size, given in zip(expected, shape, strict=True)
    ):
        raise ValueError(
            f"Argument `data` must name a dataset of images of shape {expected}, which "
            f"{name} takes. Received: data={settings.data!r} with images of shape {shape}"
        )
    classes = chain(np.zeros((1, *shape), "float32")).shape[-1]
    has_labels = chain.outputs.startswith("label")
    if is_binary(chain.outputs, classes):
        classes, has_labels = 2, False
    if classes != description.classes or has_labels != description.multi_label:
        kind = "with several labels an image" if has_labels else "with one label an image"
        raise ValueError(
            f"Argument `data` must name a dataset of {classes} classes {kind}, which {name} was "
            f"made for. Received: data={settings.data!r}"
        )
