"""Does a network do what an iterative method does? Three numbers per stage."""

import math

import numpy as np
import pandas as pd

from tfresidual import sources
from tfresidual.arguments import check_bool, is_number
from tfresidual.probes.drop_blocks import rows_of as drop_rows
from tfresidual.probes.drop_blocks import with_unperturbed_error
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.probes.readout import rows_of as readout_rows
from tfresidual.probes.repeat_last_block import rows_of as repeat_rows
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import check_times

MEAN = "mean"
BASES = ("labels", "agreement")
INDICES = ("convergence_index", "recurrence_index", "divergence_index")
CHANCES = ("uniform", "largest class")
TIMES = 16


def convergence_indices(
    chain, data, *, times=TIMES, chance="uniform", memory_limit=MEMORY_LIMIT, progress=False
):
    """Measures the convergence, recurrence and divergence index of every stage.

    With e0 the error of the whole network and c that of guessing:

    - `convergence_index`: mean over the blocks of the stage of (c - error of the read-out behind
      the block) / (c - e0). 0: no better than chance until the last block; 1: the final error
      from the first block on.
    - `recurrence_index`: 1 - mean over all blocks but the last of (error without the block -
      error without the last) / (c - error without the last). 0: chance, whichever is dropped; 1:
      it does not matter which.
    - `divergence_index`: mean over 1 to `times` extra applications of the last block of (error -
      e0) / (c - e0). 0: unharmed; 1: chance at once.

    They leave [0, 1] where a perturbed network errs more than chance, or less than the whole one.
    The recurrence index is badly conditioned where the drop of the last block is just under
    chance. An index that a stage cannot have is NaN: recurrence where fewer than two blocks can be
    dropped, or where chance is reached without the last block but not without every other;
    recurrence and divergence where the last block changes the shape of the state; convergence
    where the stage cannot be left behind every block.

    Each is given for the error on the labels and for disagreement with the whole network's own
    predictions (whose e0 is 0, and whose c is that of the labels). The row `"mean"` is the mean
    of the stages that have the index.

    Example:

    >>> convergence_indices(tfresidual.chain(net), test)["stage"].tolist()
    [1, 2, 3, 'mean', 1, 2, 3, 'mean']

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by the name of the split.
        times: int, the most extra applications of the last block, 1 or more; 16 in the paper.
        chance: the error of guessing. `"uniform"`: all classes alike, 1 - 1 / classes, or, of n
            labels an image, all sets of n alike. `"largest class"`: always the class, or set of
            labels, that most images of the split have; for data where some have many more. Or a
            number over 0, up to 1.
        memory_limit: MiB that the evaluator may take, some 25 or more; the result is the same.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `basis` (`"labels"` or `"agreement"`), `stage` (from
        1, and `"mean"`), the three indices, `error` (e0), `chance` (c) and `chance_from` (which
        choice it was); `split` first, where `data` is a dict.

    Raises:
        ValueError: if an argument cannot be used, or the network errs as often as chance or more:
            then there is nothing to perturb, and no index.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        3.3, fig. 2b; appendix B, fig. 6a for the agreement.
    """
    return convergence_frames(
        chain, data, times=times, chance=chance, memory_limit=memory_limit, progress=progress
    )[1]


def convergence_frames(
    chain,
    data,
    *,
    times=TIMES,
    chance="uniform",
    memory_limit=MEMORY_LIMIT,
    progress=False,
    at_chance="raise",
):
    """`convergence_indices` together with the frames they are taken from.

    Args:
        chain: see `convergence_indices`, as the following.
        data: images and labels.
        times: int, the most extra applications.
        chance: the error of guessing.
        memory_limit: MiB.
        progress: whether to show a progress bar.
        at_chance: `"raise"`, or `"nan"` for indices that are NaN where the network errs as often
            as chance or more.

    Returns:
        A tuple of a dict with the frames of `readout`, `drop_blocks` and `repeat_last_block`
        (without its steps) under these names, and the frame of `convergence_indices`.

    Raises:
        ValueError: if an argument cannot be used, or the network is at chance or above, unless
            `at_chance` is `"nan"`.
    """
    chain = sources.chain(chain)
    check_times(times)
    check_chance(chance)
    check_bool("progress", progress)
    tables = {
        "readout": readout_rows(chain),
        "drop_blocks": drop_rows(chain),
        "repeat_last_block": repeat_rows(chain, times),
    }
    if at_chance == "raise":
        # Before the work, not behind it.
        for split, part in frames_of_rows(chain, data, {}, memory_limit)[1].items():
            error = float(part.wrong[0].mean(dtype=float))
            _refuse_chance(error, chance_error(chance, part), split)
    frames, values = frames_of_rows(chain, data, tables, memory_limit, progress)
    chances = {split: chance_error(chance, part) for split, part in values.items()}
    indices = indices_of(**frames, chance=chances, at_chance=at_chance)
    frames["drop_blocks"] = with_unperturbed_error(frames["drop_blocks"], values)
    return frames, indices.assign(chance_from=chance if isinstance(chance, str) else "given")


def indices_of(readout, drop_blocks, repeat_last_block, chance, at_chance="raise"):
    """Takes the indices from the frames of the probes of these names.

    Args:
        readout: a frame of `readout`.
        drop_blocks: a frame of `drop_blocks`.
        repeat_last_block: a frame of `repeat_last_block` with a scale of 1.
        chance: float, the error of guessing, or a dict of these by split.
        at_chance: `"raise"`, or `"nan"` for indices that are NaN where the network errs as often
            as chance or more.

    Returns:
        The frame of `convergence_indices`, without `chance_from`.

    Raises:
        ValueError: if the network is at chance or above, unless `at_chance` is `"nan"`.
    """
    if at_chance not in ("raise", "nan"):
        raise ValueError(
            f"Argument `at_chance` must be 'raise' or 'nan'. Received: at_chance={at_chance!r}"
        )
    records = []
    splits = readout["split"].unique() if "split" in readout else [None]
    for split in splits:
        parts = [
            frame if split is None else frame[frame["split"] == split]
            for frame in (readout, drop_blocks, repeat_last_block)
        ]
        c = chance[split] if isinstance(chance, dict) else chance
        place = {} if split is None else {"split": split}
        error = float(parts[0]["error"].iloc[-1])
        if at_chance == "raise":
            _refuse_chance(error, c, split)
        is_at_chance = _reaches(error, c)
        for basis in BASES:
            for record in _indices_of_basis(parts, basis, c, is_at_chance):
                records.append(place | {"basis": basis} | record | {"chance": c})
    return pd.DataFrame(records)


def _refuse_chance(error, chance, split):
    if _reaches(error, chance):
        of_split = "" if split is None else f" on {split}"
        raise ValueError(
            "Argument `chain` must be a network that errs less than chance: the indices compare "
            "to what is left of the error up to chance. "
            f"Received: an error of {error:.4f}{of_split}, where chance is {chance:.4f}"
        )


def _indices_of_basis(frames, basis, chance, is_at_chance):
    """A record for each stage, and one for their mean."""
    reads, drops, repeats = (
        frame.assign(wrong=frame["error"] if basis == "labels" else 1 - frame["agreement"])
        for frame in frames
    )
    # Behind the last block of the last stage stands the whole network.
    error = float(reads["wrong"].iloc[-1])
    records = []
    for stage, of_stage in reads.groupby("stage"):
        values = [math.nan] * len(INDICES)
        if not is_at_chance:
            in_stage = [
                frame.loc[frame["stage"] == stage, "wrong"].to_numpy() for frame in (drops, repeats)
            ]
            values = [
                convergence_index(of_stage["wrong"].to_numpy(), error, chance),
                recurrence_index(in_stage[0], chance),
                divergence_index(in_stage[1][1:], error, chance),
            ]
        records.append({"stage": stage} | dict(zip(INDICES, values, strict=True)))
    means = pd.DataFrame(records)[list(INDICES)].mean().to_dict()
    return [record | {"error": error} for record in (*records, {"stage": MEAN} | means)]


def _reaches(error, chance):
    """Whether an error is that of chance or more, up to rounding: both are quotients of counts."""
    return error > chance - 1e-9


def convergence_index(errors, error, chance):
    """Mean of (c - e) / (c - e0) over the errors of the read-outs; NaN where one is missing."""
    return float(np.mean((chance - np.asarray(errors)) / (chance - error)))


def recurrence_index(errors, chance):
    """1 - mean of (e - e_last) / (c - e_last) over the errors without each block but the last.

    Args:
        errors: the error without each block, in order; NaN for blocks that cannot be dropped.
        chance: float, the error of guessing.

    Returns:
        The index. Where the error without the last block is at chance or above, the quotient has
        no meaning: 0 if all errors are at chance or above, which is what 0 stands for, else NaN.
        NaN too where the last block, or all others, cannot be dropped.
    """
    errors = np.asarray(errors, float)
    last, others = errors[-1], errors[:-1][~np.isnan(errors[:-1])]
    if np.isnan(last) or len(others) == 0:
        return math.nan
    if _reaches(last, chance):
        return 0.0 if all(_reaches(other, chance) for other in others) else math.nan
    return float(1 - np.mean((others - last) / (chance - last)))


def divergence_index(errors, error, chance):
    """Mean of (e - e0) / (c - e0) over the errors with 1, 2, .. extra applications."""
    if len(errors) == 0:
        return math.nan
    return float(np.mean((np.asarray(errors) - error) / (chance - error)))


def check_chance(choice):
    """Raises a `ValueError` unless `convergence_indices` can use this as its `chance`."""
    is_choice = isinstance(choice, str) and choice in CHANCES
    if not is_choice and not (is_number(choice) and 0 < choice <= 1):
        raise ValueError(
            f"Argument `chance` must be one of {', '.join(map(repr, CHANCES))}, or a number "
            f"over 0, up to 1. Received: chance={choice!r}"
        )


def chance_error(choice, values):
    """The error of guessing on a split.

    Args:
        choice: `"uniform"`, `"largest class"`, or a number, see `convergence_indices`.
        values: the `tfresidual.routing.evaluator.RouteValues` of the split.

    Returns:
        A float from 0 (all images of one class, and guessing it) to 1.
    """
    if not isinstance(choice, str):
        return float(choice)
    labels = values.label_sets
    if choice == "largest class":
        _, numbers = np.unique(labels, axis=0, return_counts=True)
        return 1 - float(numbers.max()) / len(labels)
    # One output that tells two classes apart always names one of them.
    has_row = labels.shape[1] == values.classes
    counts = labels.sum(axis=1).tolist() if has_row else [1] * len(labels)
    return 1 - float(np.mean([1 / math.comb(values.classes, count) for count in counts]))
