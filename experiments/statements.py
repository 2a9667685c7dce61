"""The page of all statements, written from the frames that are kept."""

from __future__ import annotations

import dataclasses

import numpy as np
from catalogue import (
    PAPERS,
    STATEMENTS,
    MissingError,
    entries_of,
    kept_images,
    read_frames,
    verdict_of,
)
from drawing import ranged

from tfresidual.datasets.description import sizes_of
from tfresidual.jobs.training import batches_of
from tfresidual.report import axes_text

SIZE = "small"
TITLES = {
    "II": 'Jastrzebski et al. 2018, "Residual connections encourage iterative inference"',
    "IC": '"Iterative convergent computation is not a useful inductive bias for ResNets"',
    "PI": 'Hauser 2019, "On residual networks learning a perturbation from identity"',
    "IM": 'He et al. 2016, "Identity mappings in deep residual networks"',
}
# Where the size differs from the papers', besides the number of images and epochs, and names that
# need to be explained.
SMALL = {
    "II": "ResNets of 3 x 9 blocks of 8, 16 and 32 channels stand for ResNet-110, of 3 x 4 for "
    "ResNet-38; blocks are shared from the fourth on. The other networks have 16 channels. 8,000 "
    "images of CIFAR-10 (JPEG q75), 6 epochs in batches of 16, a rate of 0.0125 (0.1 for batches "
    "of 128), divided by 10 after one half and three quarters. Trained networks are measured on "
    "test images, in the paper on validation images. *110 naive* is the one for ResNet-110 whose "
    "later blocks of a stage are one and the same, batch normalization included; *gamma 0.1*: with "
    "its gamma begun at 0.1; *statistics*: with statistics of its own for each application; *UBN*: "
    "with batch normalization not shared.",
    "IC": "*ordinary*, or 0 (non-rec.): the blocks of a stage begin different and are trained as "
    "usual; *coupling 0*, or 0 (rec.): they begin equal; with a coupling of 0.5 and 0.9, each "
    "block's update is mixed with the mean over its stage, and with 1 blocks stay equal. "
    "*standard*: uniform kernel, batch normalization's gamma begun at 1, coupling of all blocks, "
    "no bounds. *improperly convergent*: the norms of the branches are bounded by 0.95; *properly "
    "convergent*: moreover, a block adds its branch to the stage's input. The convergence index "
    "is the mean, over blocks after which a stage is left, of how much of the way from chance to "
    "the network's accuracy is reached (1: all at once); the recurrence index is 1 if all dropped "
    "blocks cost the same; the divergence index is 0 if repetitions of the last block do not "
    "hurt, and 1 if they lead to chance. *On agreement*: with the predictions of the whole "
    "network in place of the labels. A picture of Digitclutter is right if exactly its digits are "
    "found (errors of guessing: 99.2, 99.5 and 99.6 % with 3, 4 and 5 digits).\n\nStages of 5 "
    "blocks, first stage of 4 and 8 channels; late coupling from the third block on. 8,000 images "
    "and 4 epochs of CIFAR-10 (JPEG q75) and MNIST, 16,000 and 4 of Digitclutter (recipe of 400 "
    "epochs, for A4 the second one that the paper prints, too); as many steps of the sets with "
    "few images. Batches of 16 with one eighth of the rates for batches of 128, a quarter on "
    "Digitclutter; the sets with few images are 8,000 of four digits, and 2,048 of CIFAR-10. A "
    "last block is repeated up to 16 times, as in the paper, where a stage has 16 blocks. A "
    "convergence index is the mean over all blocks, the last one included; it is 0.2 for a stage "
    "that does nothing before its fifth. The networks of IC-1 have 500 points to find.",
    "PI": "Up to 24 blocks per section of 8, 16 and 32 channels, batches of 64. 12,000 images and "
    "5 epochs, on CIFAR-10 (JPEG q75) with a rate of 0.1, divided by 10 after one half and three "
    "quarters, on MNIST with 0.025, divided by 2.5. L is the number of blocks "
    "per section, F what a block adds to its input h. A perturbation is the norm |F|, or |F| / |h| "
    "if scaled, as a mean over images; a distance is the sum over the blocks of a section.",
    "IM": "ResNet-38 of 8, 16 and 32 channels takes the place of ResNet-110, and ResNet-74 of these"
    " widths that of deeper ones. 8,000 images of CIFAR-10 (JPEG q75), 6 epochs in batches of"
    " 16, a rate of 0.0125 (0.1 for batches of 128), divided by 10 after one half and three "
    "quarters, without warm-up and weight decay. *identity* and *original* are one network: "
    "original units with identity shortcuts.",
}
# Which networks were trained again at other sizes, and how.
AGAIN = {
    "longer": {
        "II": "ResNet-110 alone, on 16,000 images, for 10 epochs",
        "IC": "one width (8 channels) without bounds, on 16,000 images, for 8 epochs",
        "PI": "MNIST alone, up to 16 blocks, 8 epochs in batches of 16: over six times the steps",
        "IM": "the layouts of table 2, on 16,000 images, for 8 epochs",
    },
    "deeper": {
        "IC": "stages of 16 blocks, as in the paper, 8 channels, 16,000 images; the ordinary "
        "network and that of coupling 0.9, each with bounds and without",
    },
}
TRAINED = {"longer": "Trained for longer", "deeper": "Deeper"}
INTRODUCTION = """# What the papers state, put to the test

Written by `python experiments/papers.py page` from the measurements in experiments/frames, which
`python experiments/papers.py run II IC PI IM --size small` made. A case is a network, a data set
or a seed. A statement *holds* if it is true in every case, *fails* if in none, and is *mixed*
otherwise, so that with two seeds, one of them can make the difference. The effect is the mean over
the cases, with the lowest and the highest; *decided by* counts the networks whose measurements
decide. All networks are far smaller than the papers' and trained for a few epochs: a statement that
fails here need not fail at the size of the paper. CIFAR-10 is CIFAR-10 (JPEG q75) here, whose
images were encoded as JPEG of quality 75. Where it says so, a few of the same networks were trained
for longer, or with more blocks, and decide the same statements again.

Networks are measured at their best epoch, by validation error, as in IC; the other papers do not
say. Figures over the epochs show all of them. The line above each figure gives the number of images
its numbers were measured on, and the errors of its networks on all 5,000 test images, as means over
all networks of one name. In figures, lines are means over the seeds, and bands go from the lowest
to the highest; where there are large and small marks, the large ones are means and the small ones
seeds. A dotted line at 90 % is the error of guessing.
"""


@dataclasses.dataclass(frozen=True)
class Judged:
    """What the frames say about a statement, in words.

    Attributes:
        verdict: `"holds"`, `"mixed"`, `"fails"` or `"not run"`.
        effect: the mean effect with its range, or why there is none.
        cases: how many of the cases hold.
        networks: how many networks of how many seeds decided it.
    """

    verdict: str
    effect: str
    cases: str = ""
    networks: str = ""


def judged(statement, frames, size=SIZE):
    """Returns what the frames of its paper say about a statement, a `Judged`."""
    if statement.cannot is not None and not statement.networks(size):
        return Judged("not run", statement.cannot)
    try:
        found = statement.judged(frames, size)
    except MissingError as error:
        return Judged("not run", str(error))
    cases = [case for case in found if has_value(case)]
    if not cases:
        return Judged("not run", "no case has a value")
    count = f"{sum(case.holds for case in cases)} of {len(cases)}"
    if len(cases) < len(found):
        count += f", {len(found) - len(cases)} without a value"
    effect = f"{ranged([case.effect for case in cases])}: {statement.effect}"
    return Judged(verdict_of(cases), effect, count, counted(statement.networks(size)))


def counted(networks):
    """Returns how many networks of how many seeds there are, in words."""
    seeds = {network.labels["seed"] for network in networks}
    return f"{counted_as(len(networks), 'network')}, {counted_as(len(seeds), 'seed')}"


def counted_as(number, noun):
    """Returns a number of things, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def has_value(case):
    """Returns whether the effect of a case is a number; infinity is one."""
    return not np.isnan(case.effect)


def row(cells):
    """Returns a row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def markdown(frame):
    """Returns a frame as a table, lines of Markdown."""
    if frame.index.name is not None:
        frame = frame.reset_index()
    names = [str(column).replace("_", " ") for column in frame]
    return [row(names), row(["---"] * len(names)), *(row(cells) for cells in frame.to_numpy())]


def table_of(paper, frames):
    """Returns the table of a paper's statements, lines of Markdown."""
    names = ["id", "statement", "place", "effect", "cases", "decided by", "verdict"]
    lines = [row(names), row(["---"] * len(names))]
    for statement in STATEMENTS.values():
        if statement.paper != paper:
            continue
        found = judged(statement, frames)
        says = statement.says + (f" *{statement.differs}*" if statement.differs else "")
        effect, verdict = found.effect, f"**{found.verdict}**"
        if found.verdict == "not run":
            effect, verdict = "", f"not run: {found.effect}"
        cells = [statement.id, says, statement.place, effect, found.cases, found.networks, verdict]
        lines.append(row(cells))
    return lines


def again_of(paper, size):
    """Returns what networks of another size say, lines of Markdown; none if none were trained.

    Statements on other networks are left out.
    """
    frames = read_frames(size, paper)
    if not frames:
        return []
    names = ["id", "effect", "cases", "decided by", "verdict", f"at `{SIZE}`"]
    lines = [
        f"{TRAINED[size]}, `papers.py run {paper} --size {size}`: {AGAIN[size][paper]}. "
        f"{trainings_of(frames)}",
        "",
        row(names),
        row(["---"] * len(names)),
    ]
    shorter = read_frames(SIZE, paper)
    for statement in STATEMENTS.values():
        if statement.paper == paper:
            found = judged(statement, frames, size)
            if found.cases:
                before = judged(statement, shorter).verdict
                cells = [found.effect, found.cases, found.networks, f"**{found.verdict}**", before]
                lines.append(row([statement.id, *cells]))
    return [*lines, ""]


def trainings_of(frames):
    """Returns the sentence on the networks of a paper, their errors and their time."""
    if "summary" not in frames:
        return "No networks were trained."
    frame = frames["summary"]
    hours = frame["seconds"].sum() / 3600
    least, most = frame["epochs"].min(), frame["epochs"].max()
    epochs = f"{least} to {most}" if least < most else str(most)
    low, high = (f"{100 * error:.1f}" for error in (frame["error"].min(), frame["error"].max()))
    errors = f"test errors from {low} to {high} %" if low != high else f"test error {low} %"
    return (
        f"{counted_as(len(frame), 'network')}, trained in {hours:.1f} hours on one core; "
        f"{errors}, best of {epochs} epochs."
    )


def page_of(folder=None):
    """Returns the text of the page, and saves its figures if there is a folder for them."""
    lines = [INTRODUCTION]
    for paper in PAPERS:
        frames = read_frames(SIZE, paper)
        lines += [f"## {paper}: {TITLES[paper]}", "", trainings_of(frames), ""]
        lines += [SMALL[paper], ""]
        lines += [*table_of(paper, frames), ""]
        lines += [line for size in AGAIN for line in again_of(paper, size)]
        for entry in entries_of(paper):
            lines += drawn_of(entry, frames, folder)
    return "\n".join(lines).rstrip() + "\n"


def drawn_of(entry, frames, folder):
    """Returns the section of a figure or table in Markdown; nothing if frames are missing."""
    try:
        pictures = entry.pictures(frames, SIZE)
    except MissingError:
        return []
    lines = [f"### {entry.id}", "", f"{entry.asks} *{measured_on(entry, frames, SIZE)}.*", ""]
    for name, drawn in pictures.items():
        if not hasattr(drawn, "savefig"):
            lines += [*markdown(drawn), ""]
            continue
        if folder is not None:
            drawn.savefig(folder / f"{name}.png", dpi=110)
        title = drawn.get_suptitle() or entry.asks
        panels = "; ".join(filter(None, (axes.get_title() for axes in drawn.axes)))
        shown = ". ".join(filter(None, (title, panels, axes_text(drawn))))
        lines += [f"![{shown}](../docs/images/papers/{name}.png)", ""]
    return lines


def measured_on(entry, frames, size):
    """Returns what the networks of an entry are, their images and their errors, in words."""
    said = [counted(entry.networks(size)), *images_of(entry, frames, size)]
    parts = entry.select(frames, size)
    if "summary" in parts:
        said.append(f"test error of {errors_of(parts['summary'])}")
    return "; ".join(said)


def images_of(entry, frames, size):
    """Returns on how many images the measurements of an entry were made, a list of texts."""
    found, kept = {}, kept_images(frames)
    for measure in entry.measures:
        counts = {
            images_in_words(taken, network.settings)
            for network in entry.networks(size)
            if (taken := kept.get(network.name, {}).get(measure.__name__)) is not None
        }
        if counts:
            found.setdefault(" or ".join(sorted(counts)), []).append(MEASURED[measure.__name__])
    return [f"{' and '.join(names)} on {words}" for words, names in found.items()]


def images_in_words(counts, settings):
    """Returns the numbers of images that are taken of the splits of a network, whole batches.

    Args:
        counts: dict from a split to the least number of images, `None` for all.
        settings: the `Settings` of the network.
    """
    sizes = sizes_of(settings.data, settings.train_size, settings.validation, settings.test_size)
    available = dict(zip(("train", "validation", "test"), sizes, strict=True))
    parts = []
    for split, count in counts.items():
        taken = available[split]
        if count is not None:
            taken = min(taken, batches_of(count, settings) * settings.batch_size)
        parts.append(f"{taken:,} {'training' if split == 'train' else split}")
    return " and ".join(parts) + " images"


# What is measured, in words.
MEASURED = {
    "summary": "errors",
    "history": "errors over the epochs",
    "by_epoch": "metrics over the epochs",
    "block_metrics": "metrics of the blocks",
    "first_order": "first-order terms",
    "drop_blocks": "errors without a block",
    "perturbation": "perturbations",
    "borderline": "groups of images",
    "repetitions": "repetitions",
    "initial_signal": "the network as it is built",
    "first_signal": "the network before training",
    "route_errors": "errors on routes",
    "indices": "indices",
    "path_lengths": "path lengths",
}
# Columns that tell networks apart, and how many groups of them are named, not pooled.
GROUPS = ("data", "network", "layers", "setting")
NAMED = 8


def errors_of(frame):
    """Returns the errors of networks as text: of each kind, if there are not too many."""
    columns = [name for name in GROUPS if name in frame and frame[name].nunique() > 1]
    while columns and frame.groupby(columns).ngroups > NAMED:
        columns.pop()
    if not columns:
        return ranged(frame["error"], percent=True)
    parts = []
    for names, errors in frame.groupby(columns, sort=False)["error"]:
        labels = zip(columns, names, strict=True)
        said = ", ".join(f"{name} layers" if of == "layers" else name for of, name in labels)
        parts.append(f"{said}: {ranged(errors, percent=True)}")
    return "; ".join(parts)


def write_page(path, folder):
    """Writes the page and its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(folder))
    print(path)
