"""How closely a network behaves like an iterative method, as three numbers per stage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tfresidual import sources
from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_number,
    is_number,
)
from tfresidual.definitions.averages import images_of, weighted_mean
from tfresidual.definitions.chance import chance_error, is_below, noise_at
from tfresidual.definitions.settings import CHANCES
from tfresidual.probes.drop_blocks import compared_with_whole
from tfresidual.probes.drop_blocks import rows_of as drop_rows
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.probes.readout import rows_of as readout_rows
from tfresidual.probes.repeat_last_block import rows_of as repeat_rows
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import check_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import AtChance, ChainSource, Chance, Data, Frame, Reading
    from tfresidual.routing import Chain

MEAN = "mean"
BASES = ("labels", "agreement")
INDICES = ("convergence_index", "recurrence_index", "divergence_index")
READINGS = ("all blocks", "all but last", "trapezoid")
TIMES = 16


def convergence_indices(
    chain: Chain | ChainSource,
    data: Data,
    *,
    times: int = TIMES,
    chance: Chance = "uniform",
    reading: Reading = "all blocks",
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the convergence, recurrence and divergence index of every stage.

    Let e0 be the error of the whole network and c the error of guessing.

    - `convergence_index`: the mean over the blocks of the stage of (c - error of the read-out
      after the block) / (c - e0). 1 means the final error is reached after the first block; a stage
      of T blocks whose read-outs but the last are at chance has 1 / T.
    - `recurrence_index`: 1 - the mean over all blocks but the last of (error without the block -
      error without the last) / (c - error without the last). 0 means chance level whichever block
      is dropped, 1 means it does not matter which block is dropped; it is over 1 if the last block
      is missed more than the others.
    - `divergence_index`: the mean over 1 to `times` extra applications of the last block of
      (error - e0) / (c - e0). 0 means no harm, 1 means chance level at once.

    Each is given for the error on the labels and for the disagreement with the predictions of the
    whole network (here e0 is 0, and c is the same as for the labels). The row `"mean"` is the mean
    over the stages for which the index is defined. docs/concepts/probes.md says when an index is
    NaN or leaves [0, 1], and what the readings of the convergence index are.

    Example:

    >>> convergence_indices(tfresidual.chain(net), test)["stage"].tolist()
    [1, 2, 3, 'mean', 1, 2, 3, 'mean']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        times: int, the largest number of extra applications of the last block; 16 in the paper.
        chance: the error of guessing. `"uniform"`: all classes are equally likely, 1 - 1 / classes;
            with n labels per image, all sets of n labels are. `"largest class"`: always guess the
            class, or set of labels, that most images of the split have. Or a number over 0, up to
            1.
        reading: the convergence index is the mean over `"all blocks"`, over `"all but last"`, or
            the area by the `"trapezoid"` rule.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `basis` (`"labels"` or `"agreement"`), `stage` (from
        1, and `"mean"`), the three indices, `error` (e0), `chance` (c), `reading` and `chance_from`
        (the choice made for `chance`, or `"given"` for a number). If `data` is a dict, `split` is
        the first column.

    Raises:
        ValueError: if an argument cannot be used, or the error of the network is not below chance
            by more than two standard errors over the images, in which case the indices are not
            defined.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        3.3, fig. 2b; appendix B, fig. 6a for the agreement.
    """
    return convergence_frames(
        chain,
        data,
        times=times,
        chance=chance,
        reading=reading,
        memory_limit=memory_limit,
        progress=progress,
    )[1]


def convergence_frames(
    chain: Chain | ChainSource,
    data: Data,
    *,
    times: int = TIMES,
    chance: Chance = "uniform",
    reading: Reading = "all blocks",
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
    at_chance: AtChance = "raise",
) -> tuple[dict[str, Frame], Frame]:
    """Measures the indices of `convergence_indices` and returns the frames they are taken from too.

    Args:
        chain: see `convergence_indices`, as for the other arguments.
        data: see there.
        times: see there.
        chance: see there.
        reading: see there.
        memory_limit: see there.
        progress: see there.
        at_chance: `"raise"`, or `"nan"` for indices that are NaN if the error of the network is not
            below chance by more than two standard errors over the images.

    Returns:
        A tuple of a dict and a frame: the frames of `readout`, `drop_blocks` and
        `repeat_last_block` (the latter without `block_metrics`) by these names, and that of
        `convergence_indices`.

    Raises:
        ValueError: if an argument cannot be used, or the network is not better than chance, unless
            `at_chance` is `"nan"`.
    """
    chain = sources.numbered(chain)
    check_times(times)
    check_chance(chance)
    check_choice("reading", reading, READINGS)
    tables = {
        "readout": readout_rows(chain),
        "drop_blocks": drop_rows(chain),
        "repeat_last_block": repeat_rows(chain, times),
    }
    if at_chance == "raise":
        # Checked before the long evaluation, not after it.
        for split, part in frames_of_rows(chain, data, {}, memory_limit)[1].items():
            error = float(weighted_mean(part.wrong[0], part.weights))
            _refuse_chance(error, chance_error(chance, part), split, images_of(part.weights))
    frames, values = frames_of_rows(chain, data, tables, memory_limit, progress)
    chances = {split: chance_error(chance, part) for split, part in values.items()}
    images = {split: images_of(part.weights) for split, part in values.items()}
    indices = indices_of(
        **frames, chance=chances, images=images, at_chance=at_chance, reading=reading
    )
    first = 1 + sum(route is not None for _, route in tables["readout"])
    frames["drop_blocks"] = compared_with_whole(frames["drop_blocks"], values, first)
    return frames, indices.assign(chance_from=chance if isinstance(chance, str) else "given")


def indices_of(
    readout: Frame,
    drop_blocks: Frame,
    repeat_last_block: Frame,
    chance: float | dict[str, float],
    *,
    at_chance: AtChance = "raise",
    reading: Reading = "all blocks",
    images: float | dict[str, float] | None = None,
) -> Frame:
    """Computes the indices from the frames of three probes.

    Args:
        readout: a frame of `readout`.
        drop_blocks: a frame of `drop_blocks`.
        repeat_last_block: a frame of `repeat_last_block` with a scale of 1.
        chance: float, the error of guessing, or a dict of these by split.
        at_chance: see `convergence_frames`.
        reading: see `convergence_indices`.
        images: number of images on which the errors were measured, or a dict of these by split;
            `None` for errors that are known without noise.

    Returns:
        The frame of `convergence_indices`, without `chance_from`.

    Raises:
        ValueError: if an argument cannot be used, or the network is not better than chance, unless
            `at_chance` is `"nan"`.
    """
    check_choice("at_chance", at_chance, ("raise", "nan"))
    check_choice("reading", reading, READINGS)
    for count in images.values() if isinstance(images, dict) else [images]:
        if count is not None:
            check_number("images", count, over=0)
    records = []
    splits: Iterable[Any] = readout["split"].unique() if "split" in readout else [None]
    for split in splits:
        parts = [
            frame if split is None else frame[frame["split"] == split]
            for frame in (readout, drop_blocks, repeat_last_block)
        ]
        c = chance[split] if isinstance(chance, dict) else chance
        count = images[split] if isinstance(images, dict) else images
        place = {} if split is None else {"split": split}
        error = float(parts[0]["error"].iloc[-1])
        if at_chance == "raise":
            _refuse_chance(error, c, split, count)
        is_at_chance = not is_below(error, c, count)
        for basis in BASES:
            for record in _indices_of_basis(parts, basis, c, is_at_chance, reading, count):
                chosen = {"chance": c, "reading": reading}
                records.append(place | {"basis": basis} | record | chosen)
    return pd.DataFrame(records)


def _refuse_chance(error, chance, split, images):
    if not is_below(error, chance, images):
        noise = noise_at(chance, images)
        of_split = "" if split is None else f" on {split}"
        of_images = (
            f" on {images:.0f} images, where guessing has one from {chance - noise:.4f} on"
            if images
            else ""
        )
        raise ArgumentError(
            "chain",
            "be a network whose error is below chance, by more than two standard errors over the "
            "images: the indices divide by the difference between chance and error",
            received=f"an error of {error:.4f}{of_split}{of_images}; chance is {chance:.4f}",
        )


def _indices_of_basis(frames, basis, chance, is_at_chance, reading, images):
    """Returns one record for each stage and one for their mean."""
    reads, drops, repeats = (
        frame.assign(wrong=frame["error"] if basis == "labels" else 1 - frame["agreement"])
        for frame in frames
    )
    # The read-out after the last block of the last stage is the whole network.
    error = float(reads["wrong"].iloc[-1])
    records = []
    for stage, of_stage in reads.groupby("stage"):
        values = [math.nan] * len(INDICES)
        if not is_at_chance:
            in_stage = [
                frame.loc[frame["stage"] == stage, "wrong"].to_numpy() for frame in (drops, repeats)
            ]
            values = [
                convergence_index(of_stage["wrong"].to_numpy(), error, chance, reading),
                recurrence_index(in_stage[0], chance, images),
                divergence_index(in_stage[1][1:], error, chance),
            ]
        records.append({"stage": stage} | dict(zip(INDICES, values, strict=True)))
    means = pd.DataFrame(records)[list(INDICES)].mean().to_dict()
    return [record | {"error": error} for record in (*records, {"stage": MEAN} | means)]


def convergence_index(errors, error, chance, reading="all blocks"):
    """Returns a mean of (c - e) / (c - e0) over the errors of the read-outs after each block.

    It is NaN if an error is missing, or a single block is too few for the reading.
    """
    shares = (chance - np.asarray(errors, float)) / (chance - error)
    if reading == "all blocks":
        return float(np.mean(shares))
    if len(shares) < 2:
        return math.nan
    # An interval has the mean height of its two ends under the line, all of them the same width.
    heights = shares[:-1] if reading == "all but last" else (shares[:-1] + shares[1:]) / 2
    return float(np.mean(heights))


def recurrence_index(errors, chance, images=None):
    """Returns 1 - mean of (e - e_last) / (c - e_last) over the errors without one block.

    The mean is over all blocks but the last. Blocks that cannot be dropped have NaN. If the error
    without the last block is not below chance by more than its noise on so many images, the
    quotient has no meaning; the index is then 0 if that is so of all errors (the meaning of 0),
    else NaN. It is also NaN if the last block, or all of the others, cannot be dropped.
    """
    errors = np.asarray(errors, float)
    last, others = errors[-1], errors[:-1][~np.isnan(errors[:-1])]
    if np.isnan(last) or len(others) == 0:
        return math.nan
    if not is_below(last, chance, images):
        return math.nan if any(is_below(other, chance, images) for other in others) else 0.0
    return float(1 - np.mean((others - last) / (chance - last)))


def divergence_index(errors, error, chance):
    """Returns the mean of (e - e0) / (c - e0) over the errors with 1, 2, ... extra applications."""
    if len(errors) == 0:
        return math.nan
    return float(np.mean((np.asarray(errors) - error) / (chance - error)))


def check_chance(choice):
    """Raises a `ValueError` unless `convergence_indices` can use this as its `chance`."""
    is_choice = isinstance(choice, str) and choice in CHANCES
    if not is_choice and not (is_number(choice) and 0 < choice <= 1):
        raise ArgumentError(
            "chance",
            f"be one of {', '.join(map(repr, CHANCES))}, or a number over 0 and at most 1",
            choice,
        )


def frames(chain, data, options, progress):
    """Measures the indices and returns them with the three frames they are taken from."""
    curves, indices = convergence_frames(
        chain,
        data,
        times=options.times,
        chance=options.chance,
        memory_limit=options.memory_limit,
        progress=progress,
        at_chance=options.at_chance,
    )
    return {"convergence_indices": indices, **curves}
