"""The findings of a report: sentences computed from frames.

A mean counts as below or above zero if it is more than two standard errors over the images away
from zero; otherwise its sign is undecided. Each function returns `None` if the frames do not
provide the answer.
"""

import math

import numpy as np

from tfresidual.definitions.chance import STANDARD_ERRORS, is_below

BELOW, UNDECIDED, ABOVE = -1, 0, 1
_BEYOND = "by more than two standard errors over the images"


def signs(means, errors):
    """Returns whether means are below (-1) or above zero (1), or undecided by their errors (0).

    >>> signs([-0.3, -0.1, 0.3], [0.1, 0.1, 0.1]).tolist()
    [-1, 0, 1]
    """
    means, reach = np.asarray(means, float), STANDARD_ERRORS * np.asarray(errors, float)
    return np.where(means < -reach, BELOW, np.where(means > reach, ABOVE, UNDECIDED))


def error_of_share(share, images):
    """Returns the standard error of a share measured on this number of images."""
    return math.sqrt(share * (1 - share) / images)


def count_signs(block_metrics):
    """Returns how many blocks have a cosine loss below zero, undecided and above, or `None`."""
    if "cosine_loss_se" not in block_metrics:
        return None
    part = of_test(block_metrics)[0].dropna(subset="cosine_loss")
    found = signs(part["cosine_loss"], part["cosine_loss_se"]).tolist()
    return tuple(found.count(sign) for sign in (BELOW, UNDECIDED, ABOVE))


def of_cosine_loss(frames):
    """Returns a sentence on how many mean cosines are below zero, and for how many images."""
    counts = count_signs(frames["block_metrics"])
    if counts is None or not sum(counts):
        return None
    below, undecided, above = counts
    rows, images = of_test(frames["block_metrics"])
    found = f"{images}, {below} of {_many(sum(counts), 'block')} lie below zero and {above} above"
    found += f", {_BEYOND}"
    if undecided:
        found += f"; the sign of {undecided} is undecided"
    rows = _below_zero(rows)
    if below and "cosine_loss_below_zero" in rows:
        shares = _percent(rows["cosine_loss_below_zero"])
        found += f". Of these {below}, the cosine is below zero for {shares} of the images"
    return f"{found}."


def of_first_order(frames):
    """Returns a sentence that joins the cosines with the first-order terms and the losses."""
    if "block_metrics" not in frames:
        return None
    metrics, terms = (of_test(frames[name])[0] for name in ("block_metrics", "first_order"))
    if "cosine_loss_se" not in metrics or "first_order_se" not in terms:
        return None
    chosen = _below_zero(metrics)[["stage", "block"]].merge(terms, on=["stage", "block"])
    if not len(chosen):
        return None
    parts = []
    for name, what in (
        ("first_order", "the mean product of F and g, in which large gradients count more,"),
        ("loss_change", "the change of the mean loss by the block"),
    ):
        found = signs(chosen[name], chosen[f"{name}_se"]).tolist()
        below, none, above = (found.count(sign) for sign in (BELOW, UNDECIDED, ABOVE))
        parts.append(f"{what} is below zero in {below}, above in {above}, undecided in {none}")
    images = of_test(frames["first_order"])[1]
    return (
        f"{images}, of {_many(len(chosen), 'block')} whose mean cosine is below zero: "
        f"{'; '.join(parts)}."
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
    """Returns the same for a scaled branch, and whether it is longer than with the full branch."""
    frame, whole = frames["repetition_metrics_scaled"], frames.get("repetition_metrics")
    found = _of_repetitions(frame)
    if found is None or whole is None or "cosine_loss_se" not in whole:
        return found
    here, there = _runs(frame), _runs(whole)
    compared = {}
    for stage in sorted(set(here) & set(there)):
        # If not even the trained application is below zero, there is nothing to compare.
        if here[stage][0] >= 0:
            compared.setdefault(_compare(here[stage], there[stage]), []).append(stage)
    parts = [f"{length} in {_stages(stages)}" for length, stages in compared.items()]
    return f"{found} Compared with the unscaled branch: {', '.join(parts)}." if parts else found


def of_indices(frames):
    """Returns a sentence on stages whose last block is missed most, or on an error at chance."""
    if "borderline" not in frames:
        return None
    rows, images = of_test(frames["convergence_indices"])
    if errs_less_than_chance(frames):
        stages = rows[(rows["basis"] == "labels") & (rows["stage"].astype(str) != "mean")]
        over = stages[stages["recurrence_index"] > 1.1]["stage"].astype(str).tolist()
        if not over:
            return None
        return (
            f"{images}, recurrence is over 1.1 in {_stages(over)}: without the last block there, "
            "the network errs more than without the others."
        )
    return (
        f"{images}, the error of the whole network is not below chance {_BEYOND}: the indices "
        "divide by that difference, and are not defined here."
    )


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


def _runs(frame):
    """Returns how long the cosine of a repeated block stays below zero, by stage.

    These are three repetitions from 0 (as trained), or -1 for none: the last up to which it is
    certainly below zero, the last up to which it may be, and the last that was measured.
    """
    part, _ = of_test(frame)
    runs = {}
    for stage, rows in part.groupby("stage"):
        rows = rows.sort_values("repetition")
        found = signs(rows["cosine_loss"], rows["cosine_loss_se"])
        # A state that overflowed has no cosine.
        ends = (found == ABOVE) | rows["cosine_loss"].isna().to_numpy()
        runs[stage] = (_before(found != BELOW), _before(ends), len(found) - 1)
    return runs


def _before(ends):
    """Returns the place before the first true entry, or the last place if none is true."""
    return int(np.argmax(ends)) - 1 if ends.any() else len(ends) - 1


def _of_repetitions(frame):
    if "cosine_loss_se" not in frame:
        return None
    found = "; ".join(f"stage {stage} {_run_text(*run)}" for stage, run in _runs(frame).items())
    return f"{of_test(frame)[1]}, the cosine stays below zero {_BEYOND}: {found}."


def _run_text(certain, possible, last):
    """Returns in words how long a cosine stays below zero; see `_runs`."""
    if certain == last:
        return f"up to repetition {last}, the last one measured"
    if certain < 0:
        return "not even as trained" if possible < 0 else "undecided already as trained"
    text = f"up to repetition {certain}" if certain else "as trained"
    if possible > certain:
        return f"{text} (perhaps up to {possible})"
    return text if certain else f"{text} only"


def _compare(run, other):
    """Returns in words how the length of a run compares with another, as far as is certain."""
    if run[0] > other[1]:
        return "longer"
    if run[1] < other[0]:
        return "shorter"
    return "equally long" if run[:2] == other[:2] and run[0] == run[1] else "undecided"


def _stages(stages):
    return f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"


def _many(count, noun):
    return f"{count} {noun}{'s' * (count != 1)}"
