"""What a report says was found: sentences computed from frames.

A mean counts as below or above zero where it is more than two standard errors over the images
away from it; otherwise its sign is undecided. Each function returns `None` where the frames do
not tell: those of earlier versions have no standard errors.
"""

import math

import numpy as np

# How many standard errors a mean must be away from zero to have a sign.
ERRORS = 2
BELOW, UNDECIDED, ABOVE = -1, 0, 1
_BEYOND = "by more than two standard errors over the images"


def signs(means, errors):
    """Whether means are below or above zero, as far as their standard errors tell.

    >>> signs([-0.3, -0.1, 0.3], [0.1, 0.1, 0.1]).tolist()
    [-1, 0, 1]

    Args:
        means: numbers.
        errors: their standard errors; those of NaN leave the sign undecided.

    Returns:
        An array of -1, 0 (undecided) and 1.
    """
    means, reach = np.asarray(means, float), ERRORS * np.asarray(errors, float)
    return np.where(means < -reach, BELOW, np.where(means > reach, ABOVE, UNDECIDED))


def error_of_share(share, images):
    """The standard error of a share of so many images."""
    return math.sqrt(share * (1 - share) / images)


def count_signs(block_metrics):
    """How many blocks have a cosine loss below zero, undecided and above zero.

    Args:
        block_metrics: frame of `tfresidual.probes.block_metrics` with means.

    Returns:
        A tuple of three ints; blocks without a cosine are not counted. Or `None`.
    """
    if "cosine_loss_se" not in block_metrics:
        return None
    part = _of_test(block_metrics)[0].dropna(subset="cosine_loss")
    found = signs(part["cosine_loss"], part["cosine_loss_se"]).tolist()
    return tuple(found.count(sign) for sign in (BELOW, UNDECIDED, ABOVE))


def of_cosine_loss(frames):
    """How many blocks move the state down the gradient."""
    counts = count_signs(frames["block_metrics"])
    if counts is None or not sum(counts):
        return None
    below, undecided, above = counts
    images = _of_test(frames["block_metrics"])[1]
    found = f"{images}, {below} of {_many(sum(counts), 'block')} lie below zero and {above} above"
    if undecided:
        return f"{found}, {_BEYOND}; the sign of {undecided} is undecided."
    return f"{found}, {_BEYOND}."


def of_repetition_steps(frames):
    """How long a repeated block goes on to move the state down the gradient."""
    return _of_steps(frames["repetition_steps"])


def of_scaled_repetition_steps(frames):
    """The same with a scaled branch, and whether that is longer than with the whole one."""
    frame, whole = frames["repetition_steps_scaled"], frames.get("repetition_steps")
    found = _of_steps(frame)
    if found is None or whole is None or "cosine_loss_se" not in whole:
        return found
    here, there = _runs(frame), _runs(whole)
    compared = {}
    for stage in sorted(set(here) & set(there)):
        # Where the trained step itself is not below zero, there is nothing to compare.
        if here[stage][0] >= 0:
            compared.setdefault(_compare(here[stage], there[stage]), []).append(stage)
    parts = [f"{length} in {_stages(stages)}" for length, stages in compared.items()]
    return f"{found} Compared with the whole branch: {', '.join(parts)}." if parts else found


def of_indices(frames):
    """Whether the network errs less than chance by enough for indices to mean something."""
    if "borderline" not in frames:
        return None
    images = _of_test(frames["convergence_indices"])[1]
    if errs_less_than_chance(frames):
        return None
    return (
        f"{images} the error of the whole network is not below chance {_BEYOND}: the indices, "
        "which divide by that difference, tell nothing here."
    )


def errs_less_than_chance(frames):
    """Whether the error on the test images is more than two standard errors below chance.

    Args:
        frames: dict of frames by name, with those of `convergence_indices` and `borderline`,
            which tells how many images there are.
    """
    row = _of_test(frames["convergence_indices"])[0].iloc[0]
    error = error_of_share(row["error"], count_images(frames))
    return bool(row["chance"] - row["error"] > ERRORS * error)


def count_images(frames):
    """How many test images were measured, by the frame of `borderline`."""
    groups = _of_test(frames["borderline"])[0]
    return int(groups.loc[groups["group"] == "all", "images"].iloc[0])


def _of_test(frame):
    """The part of a frame that is said something about, and which images those are."""
    if "split" not in frame:
        return frame, "On the images measured"
    splits = frame["split"].unique().tolist()
    split = "test" if "test" in splits else splits[-1]
    return frame[frame["split"] == split], f"On the {split} images"


def _runs(frame):
    """For every stage how long the cosine of a repeated block stays below zero.

    Returns:
        A dict from stage to a tuple: the last repetition up to which it is below zero for
        certain, and the last up to which it may be, from 0 (as trained), -1 for none; and the
        last that was measured.
    """
    part, _ = _of_test(frame)
    runs = {}
    for stage, steps in part.groupby("stage"):
        steps = steps.sort_values("repetition")
        found = signs(steps["cosine_loss"], steps["cosine_loss_se"])
        # Numbers that overflow have no direction.
        ends = (found == ABOVE) | steps["cosine_loss"].isna().to_numpy()
        runs[stage] = (_before(found != BELOW), _before(ends), len(found) - 1)
    return runs


def _before(ends):
    """The place before the first that is true, the last place where none is."""
    return int(np.argmax(ends)) - 1 if ends.any() else len(ends) - 1


def _of_steps(frame):
    if "cosine_loss_se" not in frame:
        return None
    found = "; ".join(f"stage {stage} {_run_text(*run)}" for stage, run in _runs(frame).items())
    return f"{_of_test(frame)[1]}, the cosine stays below zero {_BEYOND}: {found}."


def _run_text(certain, possible, last):
    """How long a cosine stays below zero, in words; see `_runs`."""
    if certain == last:
        return f"up to repetition {last}, the last one measured"
    if certain < 0:
        return "not even as trained" if possible < 0 else "undecided already as trained"
    text = f"up to repetition {certain}" if certain else "as trained"
    if possible > certain:
        return f"{text} (perhaps up to {possible})"
    return text if certain else f"{text} only"


def _compare(run, other):
    """How the length of a run lies to that of another, as far as both are certain."""
    if run[0] > other[1]:
        return "longer"
    if run[1] < other[0]:
        return "shorter"
    return "equally long" if run[:2] == other[:2] and run[0] == run[1] else "undecided"


def _stages(stages):
    return f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"


def _many(count, noun):
    return f"{count} {noun}{'s' * (count != 1)}"
