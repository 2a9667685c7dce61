"""Runs probes on saved networks: what `tfresidual probe` does."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual import datasets, sources
from tfresidual.definitions.arguments import ArgumentError, check_choice, checked_path
from tfresidual.jobs.data import prepare
from tfresidual.jobs.frames import (
    count_images,
    described,
    known_records,
    record,
    write_frames_and_figures,
)
from tfresidual.jobs.targets import (
    check_fit,
    folder_of,
    network_of,
    pixels_for,
    settings_for,
    whole_series,
)
from tfresidual.machine.console import say
from tfresidual.machine.files import check_folder
from tfresidual.machine.locks import locked
from tfresidual.plots.declared import study_figures
from tfresidual.probes import running
from tfresidual.probes.running import PROBES, ProbeOptions, possible

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal

    from rich.console import Console

    from tfresidual.definitions.types import Frame, Pixels, StrPath
    from tfresidual.jobs.settings import Settings

SPLITS = ("train", "test")


def probe(
    target: StrPath,
    names: str | Iterable[str] | None = None,
    folder: StrPath | None = None,
    splits: Iterable[Literal["train", "test"]] = ("test",),
    images: int | None = None,
    changes: Mapping[str, Any] | None = None,
    options: ProbeOptions | None = None,
    console: Console | None = None,
    pixels: Pixels | None = None,
) -> tuple[dict[str, Frame], list[pathlib.Path]]:
    """Runs probes on a saved network, and writes their frames and figures.

    Args:
        target: the folder of a run, a `.keras` file, a SavedModel written by `tfresidual.export`,
            or the folder of a series of them, see `tfresidual.callbacks.ExportForProbing`. The
            data is that of the run whose folder contains the network, unless `changes` says
            otherwise.
        names: names of probes, or a single name, see `tfresidual.probes.running.PROBES`; by default
            all probes that the network has blocks for, except those that take much longer than
            the others (`drop_heads`, `line_element`, `patching` and `round_blocks`),
            `block_importance`, which measures drops anew, and `linear_probe` and `similarity`,
            which also measure untrained networks.
        folder: where to write; by default `probes` in the folder of the run or of the series, or
            `probes/NAME` beside any other network. The file `probes.json` there records what each
            frame was measured on. The frames of a series have the column `epoch`, counted from 0
            (-1 is before the first epoch), and its figures are those of the last network and those
            over the epochs, all written when the last one was probed.
        splits: `"train"`, `"test"` or both. A probe that fits something to training images, such
            as `linear_probe`, reads as many of them as of the others.
        images: int, number of images of each split, rounded up to whole batches; by default all
            test images, and the same number of training images.
        changes: dict of fields of `tfresidual.jobs.settings.Settings` that describe the data.
        options: a `ProbeOptions`.
        console: a `rich.console.Console` for progress, or `None` for no output.
        pixels: format of the pixels, see `tfresidual.datasets.load`; for a network that was not
            trained by this package, the format that it was trained on. By default that of the run,
            or `"standardized"`.

    Returns:
        A tuple of the frames by name, and the list of the `pathlib.Path`s written.

    Raises:
        FileNotFoundError: if there is no such network, or the dataset is not on the disk.
        NotADirectoryError: if `folder` cannot be a folder.
        tfresidual.machine.locks.FolderInUseError: if another process is writing to `folder`.
        ValueError: if an argument cannot be used, a network or another file is damaged, or the
            data does not fit a network.
    """
    asked = _checked(target, names, folder, splits, images, changes, options, pixels)
    with locked(asked.folder):
        return _run(asked, console)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What `probe` was asked for, after all checks; the `networks` are paths by epoch."""

    target: pathlib.Path
    networks: dict[int | None, pathlib.Path]
    is_series: bool
    names: list[str] | None
    folder: pathlib.Path
    splits: list[str]
    images: int | None
    settings: Settings
    options: ProbeOptions
    pixels: Pixels


def _checked(target, names, folder, splits, images, changes, options, pixels):
    """Returns the arguments of `probe` as an `_Asked`; raises its errors, and writes nothing."""
    names, splits = _listed(names) or None, _listed(splits)
    for name in names or ():
        if name not in PROBES:
            raise ArgumentError(
                "names",
                f"hold names of probes: {', '.join(map(repr, PROBES))}",
                received=f"{name!r}",
            )
    if not splits or any(split not in SPLITS for split in splits):
        raise ArgumentError("splits", "hold 'train', 'test' or both", splits)
    if pixels is not None:
        check_choice("pixels", pixels, datasets.PIXELS)
    options = options or ProbeOptions()
    if names is None:
        # Nobody asked for the indices, so a network at chance must not stop the other probes.
        options = dataclasses.replace(options, at_chance="nan")
    target = checked_path("target", target)
    series = whole_series(target)
    networks = {epoch - 1: path for epoch, path in series.items()} or {None: network_of(target)}
    first = next(iter(networks.values()))
    settings = settings_for(target, first, changes or {})
    folder = folder_of(target if series else networks[None]) if folder is None else folder
    folder = checked_path("folder", folder)
    check_folder("folder", folder)
    options = dataclasses.replace(
        options,
        epsilon=settings.epsilon if options.epsilon is None else options.epsilon,
        seed=settings.seed if options.seed is None else options.seed,
    )
    return _Asked(
        target,
        networks,
        bool(series),
        names,
        folder,
        splits,
        images,
        settings,
        options,
        pixels_for(first) if pixels is None else pixels,
    )


def _run(asked, console):
    """Returns what `probe` returns; the folder is locked."""
    known = known_records(asked.folder)
    frames, drawn, paths, options = {}, {}, {}, asked.options
    data, last = None, [*asked.networks.values()][-1]
    for epoch, path in asked.networks.items():
        say(console, f"opening {path}")
        chain = sources.chain(path)
        if data is None:
            say(console, str(chain))
        check_fit(chain, asked.settings, path)
        if data is None:
            train, _, test = prepare(asked.settings, console, pixels=asked.pixels)
            batches = int(test.cardinality())
            if asked.images:
                batches = math.ceil(asked.images / asked.settings.batch_size)
            parts = {"train": datasets.plain(train), "test": test}
            data = {split: parts[split].take(batches) for split in _splits_read(asked)}
            counts = {split: count_images(part) for split, part in data.items()}
            if options.first_block is None:
                options = dataclasses.replace(
                    options, first_block=_first_coupled(chain, asked.settings)
                )
            say(console, f"on {counts} images of {asked.settings.data}, pixels {asked.pixels}")
        for name in asked.names or _by_default(chain):
            say(console, f"running {name}")
            read = [*data] if PROBES[name].fits else asked.splits
            measured = running.run(
                name, chain, {split: data[split] for split in read}, options, console is not None
            )
            of_read = {split: counts[split] for split in read}
            what = described(str(asked.target), asked.settings, of_read, asked.pixels, options)
            known |= dict.fromkeys(measured, what)
            # Only the last network of a series is drawn.
            figures = study_figures(measured, options.epsilon) if path == last else {}
            if epoch is None:
                # Written at once, so that an interruption loses only the current probe.
                paths |= dict.fromkeys(_write(asked.folder, measured, figures, known))
            else:
                measured, drawn = _with_epoch(measured, epoch, frames), drawn | figures
            frames |= measured
    if asked.is_series:
        # Together, so that a series that ends early leaves the frames of an earlier probe.
        drawn |= study_figures(_by_epoch(frames), options.epsilon)
        paths = _write(asked.folder, frames, drawn, known)
    return frames, list(paths)


def _write(folder, frames, figures, known):
    paths = write_frames_and_figures(folder, frames, figures, flat=True)
    return [*paths, record(folder, known)]


def _splits_read(asked):
    """Returns the names of the splits that probes read: those asked for, and what is fitted."""
    is_fitted = any(PROBES[name].fits for name in asked.names or ())
    return list(dict.fromkeys([*(["train"] if is_fitted else []), *asked.splits]))


def _by_default(chain):
    """Returns the names of the probes of a network, without those that another one covers."""
    names = [name for name in possible(chain) if PROBES[name].by_default]
    return [name for name in names if PROBES[name].measured_by not in names]


def _first_coupled(chain, settings):
    """Returns the block index from which the training of a network coupled its blocks, or 0."""
    first = settings.coupling_from
    later = [block for block in chain.blocks if block.keeps_shape and block.index >= first]
    # A search trains networks that do not have two such blocks in a stage without coupling.
    return first if len(later) > len({block.stage for block in later}) else 0


def _listed(names):
    # A single name stands for a list with that name.
    return [names] if isinstance(names, str) else list(dict.fromkeys(names or ()))


def _by_epoch(frames):
    """Returns the frames for figures over the epochs, from frames with the column `epoch`."""
    found = {}
    if "block_metrics" in frames:
        found["block_metrics_by_epoch"] = frames["block_metrics"]
    if "readout" in frames:
        columns = [c for c in ("split", "stage", "block", "epoch") if c in frames["readout"]]
        read = frames["readout"][[*columns, "error"]]
        blocks = found.get("block_metrics_by_epoch", read[columns])
        found["block_metrics_by_epoch"] = blocks.merge(read, "left", columns)
    others = {
        name: frame for name, frame in frames.items() if name not in ("block_metrics", "readout")
    }
    return found | {f"{name}_by_epoch": frame for name, frame in others.items()}


def _with_epoch(measured, epoch, frames):
    """Returns the frames of one network of a series, appended to those of the previous ones."""
    measured = {name: frame.assign(epoch=epoch) for name, frame in measured.items()}
    return {
        name: pd.concat([frames[name], frame], ignore_index=True) if name in frames else frame
        for name, frame in measured.items()
    }
