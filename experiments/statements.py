"""The page of all statements, written from the frames that are kept."""

from __future__ import annotations

import functools
import math

from catalogue import (
    CONTROLS,
    PAPERS,
    STATEMENTS,
    MissingError,
    entries_of,
    kept_images,
    read_frames,
)
from drawing import ranged
from judging import (
    ALSO_UNTRAINED,
    CLASSES,
    CONFIRMED,
    IN_PART,
    NOT_RUN,
    REFUTED,
    UNDECIDABLE,
    WITHIN_NOISE,
    Z,
    has_value,
)

from tfresidual.datasets.description import sizes_of
from tfresidual.jobs.training import batches_of
from tfresidual.plots import style
from tfresidual.report import axes_text

# What the classes mean.
MEANS = {
    CONFIRMED: "gate met, true in every case beyond noise, and not true of untrained networks, "
    "where these were measured",
    IN_PART: "gate met, true in some cases beyond noise",
    WITHIN_NOISE: "gate met, true in no case beyond noise, and not false in all",
    ALSO_UNTRAINED: "true, and of the same networks before their training",
    REFUTED: "gate met, false in every case beyond noise",
    UNDECIDABLE: "a gate is not met, or the noise is not known",
    NOT_RUN: "nobody measured it",
}
# The test errors of the papers' networks on CIFAR-10, in percent: ResNet-110, ResNet-101, the
# published ResNet-20 that the third paper compares itself with, and ResNet-110 with original units.
ERRORS = {"II": 6.13, "IC": 5.2, "PI": 8.75, "IM": 6.61}
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
# The same of the networks of the size `trained`.
TRAINED = {
    "II": "ResNet-56 (3 x 9 blocks, 16 channels first) stands for ResNet-110 and was trained for "
    "15 epochs on 48,000 images; *few images*: on 8,000 without augmentation for 40 epochs, to fit "
    "them. *Single representation* and *average pooling* have 16 channels (in the paper 100, 150) "
    "and 10 epochs. There is no wide network, and none with shared blocks.",
    "IC": "Ordinary, 3 x 16 blocks, 16 channels first: 6 epochs on 48,000 images of CIFAR-10 (JPEG "
    "q75).",
    "PI": "4, 8, 16 and 32 blocks per section of 8, 16 and 32 channels, 4 epochs on 24,000 images. "
    "Decoupled weight decay of 0.02, so that the sum over the steps of rate times decay (3) is "
    "near that of 5e-4 over 200 epochs (3.9).",
    "IM": "ResNet-38 of 8, 16 and 32 channels, 6 epochs on 48,000 images.",
}
INTRODUCTION = """# What the papers state, put to the test

Written by `python experiments/papers.py page` from the measurements in experiments/frames. Data are
CIFAR-10 (JPEG q75), whose images were encoded as JPEG of quality 75, MNIST, and Digitclutter, which
is drawn. All networks are smaller than the papers' and were trained for fewer epochs; in brackets
stands their [size](#how-it-was-measured): networks of the size `trained` are of one seed.

{papers}
"""
HOW = """## How it was measured

- Size `trained`: one seed; batches of 128, one-cycle rates (0.01 to 0.4 to 0), Nesterov momentum,
  decoupled weight decay of 5e-4. PI: 24,000 images, weight decay of 0.02 (as much in all as 5e-4
  over 200 epochs), statistics of batch norm from 60 batches of images after the last epoch,
  since 750 steps are too few for moving averages. Made by
  `papers.py run II IC PI IM --size trained`; in bfloat16, ResNet-56 takes 48 minutes of one core
  with AMX (error 14.8 %; in float32, 14.8 % in 64 minutes of one without).
- Size `small`: two seeds, 8,000 to 16,000 images, batches of 16, no weight decay; three seeds of
  shared networks, four of table 1. Made with `--size small`. Where a statement is decided by
  networks of both sizes, the first counts.
- On a GPU (one H200, 13 minutes for 25 networks, six at a time), with Keras on JAX by `on_jax.py`:
  single representation and average pooling of size `trained`, and the third and fourth seeds of
  size `small`. Everything is measured on a processor, in float32.
- Untrained: the same networks as built, statistics of batch norm from 60 batches of images. Made
  with `--size untrained` and `--size untrained-small`.
- On that machine, training images were decoded by Pillow, which differs from TensorFlow by up to 5
  of 255 levels.
"""
SCHEME = f"""\
Every statement is one claim, with a gate (what networks must have learnt or be to decide it), a
control (the same networks before their training) and noise ({Z:g} standard errors: over images, on
the same ones where routes or blocks are compared, and over seeds where there are three or more). Of
three seeds, a mean without any effect is that far off in about one case of ten. Claims about errors
have no control: a network that was not trained guesses. Of the gates, only those of IC-2, IC-3b and
IC-13 ask for an error near the papers'; for all else, the column *error* says how far off the
networks are. That something does *not* help holds if it helps in no case beyond noise; II-T1c and
IC-3a4 ask for more, a difference of the other sign beyond noise.

After the numbers were seen, these lines were drawn: Where a case could not be measured, a statement
holds at most in part (IC-13; and II-2b and II-3b, without a wide network). *Within noise*, a part
of *in part* before, is a class of its own. IM-T2a asks for all five layouts, as IM-T2b did. All
else, criteria, gates and controls, was written before the networks of size `trained` were looked
at.

*Also untrained* says that the criterion is met before training as well, not that the numbers are
alike. Intervals reach over the same {Z:g} standard errors. The ids lead to cases and figure.
*Error* is the test error of the networks that decide, that of the paper's on CIFAR-10 (of PI, which
prints none, that of the published ResNet-20), and the size of the former.
"""


def judgements(statement, frames_of):
    """Returns what the networks of every size say about a statement, best trained first."""
    return [
        statement.judged(
            frames_of(size, statement.paper), size, frames_of(control, statement.paper)
        )
        for size, control in CONTROLS.items()
    ]


def deciding(found):
    """Returns the judgement that counts: of the best trained networks that can decide."""
    for kinds in ((NOT_RUN, UNDECIDABLE), (NOT_RUN,), ()):
        left = [one for one in found if one.kind not in kinds]
        if left:
            return left[0]
    raise ValueError("Argument `found` must not be empty.")


def values_of(cases):
    """Returns the effects of cases as text: with its interval if it is one, else their range."""
    found = [case.effect for case in cases if has_value(case)]
    if not found:
        return ""
    if len(found) == 1:
        return in_words(found[0])
    low, high = (limit(one.value for one in found) for limit in (min, max))
    return f"{short(low)} to {short(high)} ({len(found)} cases)"


def short(value):
    return style.short_number(value).replace("-", "\u2212")


def in_words(effect):
    """Returns a number with its interval as text."""
    if math.isnan(effect.value):
        return "no value"
    if not effect.known:
        return short(effect.value)
    low, high = effect.interval
    return f"{short(effect.value)} [{short(low)}, {short(high)}]"


def counted(networks):
    """Returns how many networks of how many seeds there are, in words."""
    seeds = {network.labels["seed"] for network in networks}
    return f"{counted_as(len(networks), 'network')}, {counted_as(len(seeds), 'seed')}"


def counted_as(number, noun):
    """Returns a number of things, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def anchor(id):
    return id.lower()


def errors_beside(statement, found, frames_of):
    """Returns the test errors of the networks that decide, and the paper's, as text."""
    if found.kind == NOT_RUN or statement.as_built:
        return ""
    rows = statement.rows(frames_of(found.size, statement.paper), found.size)
    errors = 100 * rows["summary"]["error"] if "summary" in rows else []
    if not len(errors):
        return ""
    low, high = (f"{value:.1f}" for value in (min(errors), max(errors)))
    text = low if low == high else f"{low} to {high}"
    return f"{text} / {ERRORS[statement.paper]:g} %, `{found.size}`"


def row(cells):
    """Returns a row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def markdown(frame):
    """Returns a frame as a table, lines of Markdown."""
    if frame.index.name is not None:
        frame = frame.reset_index()
    names = [str(column).replace("_", " ") for column in frame]
    return [row(names), row(["---"] * len(names)), *(row(cells) for cells in frame.to_numpy())]


def first_screen(found):
    """Returns what was found, in sentences, and the table of the classes, lines of Markdown.

    Args:
        found: dict of the judgements that count, by id.
    """
    lines = []
    for heading, sentences in SENTENCES.items():
        said = [
            f"{text} {sizes_in(found, kinds)}" for text, kinds in sentences if says(found, kinds)
        ]
        lines += [f"**{heading}**", "", *(f"- {text}" for text in said), ""]
    lines += ["**What is not known**", "", *unknown(found), ""]
    lines += [row(["class", "means", "number", "statements"]), row(["---"] * 4)]
    for kind in CLASSES:
        ids = [id for id, one in found.items() if one.kind == kind]
        links = " ".join(f"[{id}](#{anchor(id)})" for id in ids)
        lines.append(row([f"**{kind}**", MEANS[kind], len(ids), links]))
    return [*lines, ""]


def sizes_in(found, ids):
    """Returns of which sizes the networks are that decide some statements, as text."""
    return f"*({', '.join(sorted({found[id].size for id in ids}, reverse=True))})*"


def unknown(found):
    """Returns what could not be decided, by the reason, lines of Markdown."""
    reasons = {}
    for id, one in found.items():
        if one.kind in (UNDECIDABLE, NOT_RUN):
            reasons.setdefault(one.why, []).append(id)
    return [
        "- "
        + " ".join(f"[{id}](#{anchor(id)})" for id in ids)
        + f" ({'; '.join(STATEMENTS[id].says for id in ids)}): {why}."
        for why, ids in reasons.items()
    ]


def says(found, kinds):
    """Returns whether statements have the classes that a sentence takes for granted."""
    return all(found[id].kind == kind for id, kind in kinds.items())


def all_of(kind, *ids):
    """Returns a dict from statements to the class that all of them have."""
    return dict.fromkeys(ids, kind)


# Sentences of the first screen under their heading, with the classes without which they are not
# printed.
SENTENCES: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "What holds here": (
        (
            "II: The higher blocks come to point down the gradient of the loss. No block of "
            "ResNet-56 is decisive. Where it fits its training images, its last blocks, and "
            "repetitions of the last one with a scaled branch, go on lowering the training loss, "
            "and raise the test loss. Statistics of batch norm of their own help a network with "
            "shared blocks.",
            all_of(CONFIRMED, "II-4a2", "II-6b1", "II-6b2", "II-7b1", "II-7b2", "II-9a2")
            | {"II-3b": IN_PART},
        ),
        (
            "IC: Left early, every stage approaches its final error smoothly. With a triangular "
            "kernel, or from a later block on, coupled networks do not err less than ordinary "
            "ones, whose blocks begin different.",
            all_of(CONFIRMED, "IC-2a", "IC-8b2", "IC-8c2"),
        ),
        (
            "PI: With weight decay and from 16 to 32 blocks, the distance that an image travels "
            "grows by less than half; its steps become smaller, and images of CIFAR-10 travel "
            "further than those of MNIST.",
            all_of(CONFIRMED, "PI-3a2", "PI-3b", "PI-4", "PI-6b"),
        ),
        (
            "IM: Shortcuts of 1x1 convolutions, with dropout, with exclusive gates, or scaled are "
            "worse than the identity, and in training error too. BN after the addition is the "
            "worst of the five layouts.",
            all_of(CONFIRMED, *(f"IM-T1{one}" for one in "abdef"), "IM-3", "IM-T2b"),
        ),
    ),
    "What does not": (
        (
            "II: The cosine is not negative for all blocks: of single ones it is over 0, by less "
            "than 0.01. Statistics of their own do not make "
            "the first states of a shared network smaller, and the l2 ratios of shared networks do "
            "not go as those of the unshared one. A step of descent on a convolution does not move "
            "its output exactly against the gradient.",
            all_of(REFUTED, "II-4a1", "II-9b2", "II-18c", "II-A1b"),
        ),
        (
            "IC: The divergence index is not lowest in stage 1, and over all networks the error "
            "does not rise with it.",
            all_of(REFUTED, "IC-2c2", "IC-3c2"),
        ),
        (
            "PI: While networks are shallow, the distance does not double with the depth. It does "
            "so before training.",
            all_of(REFUTED, "PI-3a1", "PI-6a"),
        ),
        (
            "IM: After 6 epochs, full pre-activation is not the best of the five layouts.",
            all_of(REFUTED, "IM-T2a"),
        ),
    ),
    "What lies within noise": (
        (
            "II: That deeper networks err less (table 1), and that unshared batch norm gains over "
            "a network of as many parameters.",
            all_of(WITHIN_NOISE, "II-T1a", "II-T1b"),
        ),
        (
            "IC: That coupling raises the convergence index, and lowers the divergence index.",
            all_of(WITHIN_NOISE, "IC-3a1", "IC-3a2", "IC-10a", "IC-10b"),
        ),
    ),
    "What meets its criterion before any training, too": (
        (
            "II: The first block has by far the largest l2 ratio. Repeated as it is, the last "
            "block makes the states explode, if less than after training. Where blocks are shared "
            "naively, states explode with the statistics that batch norm begins with, and not "
            "with those of images.",
            all_of(ALSO_UNTRAINED, "II-2a1", "II-7a") | {"II-8c1": CONFIRMED, "II-8c2": REFUTED},
        ),
        (
            "IC: A dropped block hurts the ResNets of the inverse problem little. The effective "
            "number of parameters lies between the recurrent and the raw one.",
            all_of(ALSO_UNTRAINED, "IC-1c", "IC-7a"),
        ),
        (
            "PI: In deep networks, mean scaled perturbations are under 0.2.",
            all_of(ALSO_UNTRAINED, "PI-7b"),
        ),
    ),
}


def table_of(paper, found, frames_of):
    """Returns the table of a paper's statements, lines of Markdown.

    Args:
        paper: short name of the paper.
        found: dict of the judgements that count, by id.
        frames_of: function from a size and a paper to frames.
    """
    names = ["id", "claim *(what is shown)*", "paper", "ours", "untrained", "error", "class"]
    lines = [row(names), row(["---"] * len(names))]
    for id, one in found.items():
        statement = STATEMENTS[id]
        if statement.paper == paper:
            cells = [f"[{id}](#{anchor(id)})", f"{statement.says} *({statement.effect})*"]
            cells += [statement.paper_says.replace("-0", "\u22120")]
            cells += [values_of(one.cases), values_of(one.untrained)]
            lines.append(row([*cells, errors_beside(statement, one, frames_of), kind_of(one)]))
    return lines


def kind_of(found):
    """Returns the class of a statement as text, and in how many cases it is so, if not in all."""
    answers = [case.holds for case in found.cases]
    whole = counted_as(len(answers), "case")
    said = []
    if found.kind == IN_PART:
        said.append(f"{answers.count(True)} of {whole}")
    if found.kind in (IN_PART, WITHIN_NOISE) and False in answers:
        said.append(f"false in {answers.count(False)}")
    return f"**{found.kind}** ({', '.join(said)})" if said else f"**{found.kind}**"


def details_of(statement, judgements):
    """Returns criterion, gates and cases of a statement, lines of Markdown."""
    lines = [f'<a id="{anchor(statement.id)}"></a>**{statement.id}** ({statement.place}): ']
    lines[0] += f"{statement.says}. *Shown*: {statement.effect}."
    if statement.note:
        lines[0] += f" {statement.note}"
    lines.append("")
    for one in judgements:
        if one.kind == NOT_RUN and one is not judgements[-1] and not one.cases:
            continue
        said = f"- `{one.size}`: **{one.kind}**"
        if one.why:
            said += f" ({one.why})"
        cases = "; ".join(
            f"{case.name}: {in_words(case.effect)}{f' ({case.beside})' if case.beside else ''}"
            for case in one.cases
        )
        before = values_of(one.untrained)
        lines.append(
            f"{said}. {cases}{f'; untrained: {before}' if before else ''}".rstrip(". ") + "."
        )
    return [*lines, ""]


def trainings_of(frames):
    """Returns the sentence on the networks of a paper, their errors and their time."""
    if "summary" not in frames:
        return "No networks were trained."
    frame = frames["summary"]
    # The processor time of a machine with a GPU says nothing.
    elsewhere = frame["seconds"].isna().sum()
    hours = frame["seconds"].sum() / 3600
    least, most = frame["epochs"].min(), frame["epochs"].max()
    epochs = f"{least} to {most}" if least < most else str(most)
    low, high = (f"{100 * error:.1f}" for error in (frame["error"].min(), frame["error"].max()))
    errors = f"test errors from {low} to {high} %" if low != high else f"test error {low} %"
    is_last = (frame["best_epoch"] == frame["epochs"] - 1).all()
    where = f"trained in {hours:.1f} hours on one core"
    if elsewhere:
        where = f"{elsewhere} of them trained on a GPU, the others in {hours:.1f} hours on one core"
    return (
        f"{counted_as(len(frame), 'network')}, {where}; "
        f"{errors}, {'after' if is_last else 'best of'} {epochs} epochs."
    )


def page_of(folder=None):
    """Returns the text of the page, and saves its figures if there is a folder for them."""
    frames_of = functools.cache(read_frames)
    # In the order of the papers, in whatever order their files were imported.
    ordered = sorted(STATEMENTS.values(), key=lambda one: list(PAPERS).index(one.paper))
    everything = {one.id: judgements(one, frames_of) for one in ordered}
    found = {id: deciding(of) for id, of in everything.items()}
    papers = "\n".join(f"- {paper}: {title}" for paper, title in TITLES.items())
    lines = [INTRODUCTION.format(papers=papers), *first_screen(found), HOW, SCHEME]
    for paper, title in TITLES.items():
        lines += [f"## {paper}: {title}", "", *table_of(paper, found, frames_of), ""]
        for size, said in (("trained", TRAINED), ("small", SMALL)):
            lines += [f"`{size}`: {trainings_of(frames_of(size, paper))} {said[paper]}", ""]
        for entry in entries_of(paper):
            lines += drawn_of(entry, everything, frames_of, folder)
    return "\n".join(lines).rstrip() + "\n"


def drawn_of(entry, judgements, frames_of, folder):
    """Returns the section of an entry in Markdown: its statements, and what it draws."""
    decided = [one for one in STATEMENTS.values() if one.entry == entry.id]
    lines = [line for one in decided for line in details_of(one, judgements[one.id])]
    for size in CONTROLS:
        frames = frames_of(size, entry.paper)
        try:
            pictures = entry.pictures(frames, size)
        except MissingError:
            continue
        measured = measured_on(entry, frames, size)
        lines += [f"{entry.asks} *Size `{size}`; {measured}.*", ""]
        lines += [line for one in pictures.items() for line in shown(entry, *one, folder)]
        break
    return [f"### {entry.id}", "", *lines] if lines else []


def shown(entry, name, drawn, folder):
    """Returns a figure or table of an entry in Markdown, and saves the figure."""
    if not hasattr(drawn, "savefig"):
        return [*markdown(drawn), ""]
    if folder is not None:
        drawn.savefig(folder / f"{name}.png", dpi=110)
    title = drawn.get_suptitle() or entry.asks
    panels = "; ".join(filter(None, (axes.get_title() for axes in drawn.axes)))
    said = ". ".join(filter(None, (title, panels, axes_text(drawn))))
    return [f"![{said}](../docs/images/papers/{name}.png)", ""]


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
    "stage_sums": "their sums along the last stage",
    "readouts": "read-outs",
    "next_block": "groups by the next block",
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
