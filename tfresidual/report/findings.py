"""The findings of a report: sentences computed from frames.

A mean counts as below or above zero if it is more than two standard errors over the images away
from zero; otherwise its sign is undecided. Each function returns `None` if the frames do not
provide the answer.
"""

import math

import numpy as np

from tfresidual.definitions.averages import STANDARD_ERRORS, error_of_share
from tfresidual.definitions.chance import is_below

BELOW, UNDECIDED, ABOVE = -1, 0, 1
_BEYOND = "by more than two standard errors over the images"
# Two standard errors of an index with a tile are less than this.
SURE = 0.25
# What the tile of an index says of it.
INDICES = {
    "convergence": "1 if a stage has its result after its first block",
    "recurrence": "1 if it does not matter which block is dropped; over 1, the last is missed most",
    "divergence": "0 if repeating the last block of a stage does no harm, 1 if it leads to chance",
}


def signs(means, errors):
    """Returns whether means are below (-1) or above zero (1), or undecided by their errors (0).

    >>> signs([-0.3, -0.1, 0.3], [0.1, 0.1, 0.1]).tolist()
    [-1, 0, 1]
    """
    means, reach = np.asarray(means, float), STANDARD_ERRORS * np.asarray(errors, float)
    return np.where(means < -reach, BELOW, np.where(means > reach, ABOVE, UNDECIDED))


def count_signs(block_metrics):
    """Returns how many blocks have a cosine loss below zero, undecided and above."""
    part = of_test(block_metrics)[0].dropna(subset="cosine_loss")
    return _counts(part, "cosine_loss")


def _counts(rows, column):
    found = signs(rows[column], rows[f"{column}_se"]).tolist()
    return tuple(found.count(sign) for sign in (BELOW, UNDECIDED, ABOVE))


def of_cosine_loss(frames):
    """Returns a sentence on how many mean cosines are below zero, and for how many images."""
    below, undecided, above = counts = count_signs(frames["block_metrics"])
    rows, images = of_test(frames["block_metrics"])
    found = f"{images}, {below} of {_many(sum(counts), 'block')} lie below zero and {above} above"
    found += f", {_BEYOND}"
    if undecided:
        found += f"; the sign of {undecided} is undecided"
    if below:
        shares = _percent(_below_zero(rows)["cosine_loss_below_zero"])
        found += f". Of these {below}, the cosine is below zero for {shares} of the images"
    return f"{found}."


def of_first_order(frames):
    """Returns what first-order terms and losses say where the mean cosine is below zero."""
    metrics, terms = (of_test(frames[name])[0] for name in ("block_metrics", "first_order"))
    chosen = _below_zero(metrics)[["stage", "block"]].merge(terms, on=["stage", "block"])
    if not len(chosen):
        return None
    parts, images = [], of_test(frames["first_order"])[1]
    for name in ("first_order", "loss_change"):
        below, _, above = _counts(chosen, name)
        parts.append(f"{below} of them lower the loss and {above} raise it")
    return (
        f"{images}, {_many(len(chosen), 'block')} have a mean cosine below zero. By the mean "
        f"product of F and g, in which large gradients count more, {parts[0]}; "
        f"measured, {parts[1]}. "
        "The others are within two standard errors of zero."
    )


def _below_zero(rows):
    """Returns the rows whose mean cosine loss is below zero beyond noise."""
    rows = rows.dropna(subset="cosine_loss")
    return rows[signs(rows["cosine_loss"], rows["cosine_loss_se"]) == BELOW]


def _percent(shares):
    """Returns the range of some shares as text."""
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low[:-1]} to {high}"


def of_repetition_metrics(frames):
    """Returns a sentence on how long a repeated block has a mean cosine below zero."""
    return _of_repetitions(frames["repetition_metrics"])


def of_scaled_repetition_metrics(frames):
    """Returns the same for a scaled branch."""
    return _of_repetitions(frames["repetition_metrics_scaled"])


def _of_repetitions(frame):
    rows, images = of_test(frame)
    found = []
    for stage, here in rows.sort_values("repetition").groupby("stage"):
        # A state that overflowed has no cosine, and none of the sign.
        ends = signs(here["cosine_loss"], here["cosine_loss_se"]) != BELOW
        most = len(ends) - 1
        last = int(np.argmax(ends)) - 1 if ends.any() else most
        length = f"up to repetition {last} of {most}" if last >= 0 else "not even as trained"
        found.append(f"stage {stage} {length}")
    return f"{images}, the cosine stays below zero {_BEYOND}: {'; '.join(found)}."


def of_indices(frames):
    """Returns that the error is at chance, where the indices are not defined, or `None`."""
    if "borderline" not in frames or errs_less_than_chance(frames):
        return None
    images = of_test(frames["convergence_indices"])[1]
    return (
        f"{images}, the error of the whole network is not below chance {_BEYOND}: the indices "
        "divide by that difference, and are not defined here."
    )


def index_tiles(frames):
    """Returns a triple (label, value, note) for every index of stages; none at chance.

    An index divides by the distance of an error to chance. Where that is not far beyond noise, the
    index is left out.
    """
    if not errs_less_than_chance(frames):
        return []
    indices, _ = of_test(frames["convergence_indices"])
    rows = indices.query("basis == 'labels' and stage != 'mean'")
    drops, _ = of_test(frames["drop_blocks"])
    last, images = drops.groupby("stage")["error"].nth(-1), count_images(frames)
    divisors = dict.fromkeys(INDICES, rows["error"]) | {"recurrence": last.set_axis(rows.index)}
    tiles, dash = [], "\N{EN DASH}"
    for name, meaning in INDICES.items():
        errors = divisors[name]
        noise = STANDARD_ERRORS * (2 * errors * (1 - errors) / images) ** 0.5
        values = rows[f"{name}_index"].where(noise / (rows["chance"] - errors).clip(0) < SURE)
        if values.notna().any():
            text = ", ".join(dash if math.isnan(of) else f"{of:.2f}" for of in values)
            note = f"index on test images: {meaning}{f'; {dash}: within noise' * (dash in text)}"
            tiles.append((f"{name.capitalize()} by stage", text, note))
    return tiles


def of_readout(frames):
    """Returns a sentence on the block of the last stage from which the answer is as good as it is.

    Errors are compared as if they were measured on different images, which gives more noise than
    there is.
    """
    rows, images = of_test(frames["readout"])
    rows = rows[rows["stage"] == rows["stage"].max()].dropna(subset="error")
    if len(rows) < 2:
        return None
    error, count = rows["error"].iloc[-1], count_images(frames)
    noise = [
        math.hypot(error_of_share(one, count), error_of_share(error, count))
        for one in rows["error"]
    ]
    is_worse = rows["error"].to_numpy() - error > STANDARD_ERRORS * np.array(noise)
    first = np.flatnonzero(is_worse)[-1] + 1 if is_worse.any() else 0
    if first == len(rows) - 1:
        found = "the last block still lowers it, by more than two standard errors."
    else:
        block = rows["block"].iloc[first]
        found = (
            f"from block {block} of that stage on, the difference is within two standard errors."
        )
    return (
        f"{images}, the head of the network errs on {rows['error'].iloc[0]:.0%} after the first "
        f"block of stage {rows['stage'].iloc[0]} and on {error:.0%} after the last; {found}"
    )


def in_short(frames):
    """Returns what a study found, as pairs of a subject and a sentence with its uncertainty.

    Of a network that is no better than chance, that alone.
    """
    if "borderline" not in frames or "convergence_indices" not in frames:
        return []
    found = {"Indices": of_indices(frames)}
    if errs_less_than_chance(frames):
        known = {
            "Cosine with the loss gradient": ("block_metrics", of_cosine_loss),
            "Where the answer is found": ("readout", of_readout),
        }
        of = {subject: get(frames) for subject, (name, get) in known.items() if name in frames}
        found = of | found
    return [(subject, sentence) for subject, sentence in found.items() if sentence]


def errs_less_than_chance(frames):
    """Returns whether the error on test images is more than two standard errors below chance."""
    row = of_test(frames["convergence_indices"])[0].iloc[0]
    return is_below(row["error"], row["chance"], count_images(frames))


def count_images(frames):
    """Returns the number of test images, from the frame of `borderline`."""
    groups = of_test(frames["borderline"])[0]
    return int(groups.loc[groups["group"] == "all", "images"].iloc[0])


def of_test(frame):
    """Returns the rows of the split `"test"`, or else of the last split, and its name as text."""
    if "split" not in frame:
        return frame, "On the images measured"
    splits = frame["split"].unique().tolist()
    split = "test" if "test" in splits else splits[-1]
    return frame[frame["split"] == split], f"On the {split} images"


def _many(count, noun):
    return f"{count} {noun}{'s' * (count != 1)}"
