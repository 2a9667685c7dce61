"""What a report says was found: on frames made so that it holds, fails, or is undecided."""

import pandas as pd
import pytest
from plots.make_frames import block_frame

from tfresidual.plots.declared import study_figures
from tfresidual.report import findings
from tfresidual.report.study import study_sections

NAN = float("nan")


def cosines(*pairs, splits=(None,)):
    """A block metrics frame of one stage with these means and standard errors."""
    rows = [
        {"stage": 1, "block": block, "cosine_loss": mean, "cosine_loss_se": error}
        | ({} if split is None else {"split": split})
        for split in splits
        for block, (mean, error) in enumerate(pairs)
    ]
    return pd.DataFrame(rows)


def repetitions(*stages, scale=1.0, split="test"):
    """A repetitions frame: for each stage the means and standard errors from repetition 0 on."""
    rows = [
        {
            **{"split": split, "stage": stage, "repetition": repetition, "scale": scale},
            **{"cosine_loss": mean, "l2_ratio": 0.1, "cosine_loss_se": error},
        }
        for stage, pairs in enumerate(stages, start=1)
        for repetition, (mean, error) in enumerate(pairs)
    ]
    return pd.DataFrame(rows)


BELOW, ABOVE, UNDECIDED = (-0.3, 0.1), (0.3, 0.1), (-0.1, 0.1)


@pytest.mark.parametrize(
    ("mean", "error", "sign"),
    [
        (-0.3, 0.1, -1),
        (-0.0005, 0.004, 0),
        (-0.2, 0.1, 0),  # just two standard errors
        (-0.2001, 0.1, -1),
        (0.1999, 0.1, 0),
        (0.3, 0.1, 1),
        (0, 0, 0),
        (-1e-9, 0, -1),
        (-0.5, NAN, 0),  # a single image
        (NAN, NAN, 0),
    ],
)
def test_signs(mean, error, sign):
    assert findings.signs([mean], [error]).tolist() == [sign]


class TestCosineLoss:
    @pytest.mark.parametrize(
        ("pairs", "counts", "words"),
        [
            ([BELOW] * 3, (3, 0, 0), "3 of 3 blocks lie below zero and 0 above, by more than"),
            ([ABOVE, ABOVE], (0, 0, 2), "0 of 2 blocks lie below zero and 2 above, by more than"),
            ([BELOW, ABOVE, UNDECIDED], (1, 1, 1), "1 of 3 blocks lie below zero and 1 above"),
            ([UNDECIDED], (0, 1, 0), "0 of 1 block lie below zero and 0 above"),
            ([BELOW, (NAN, NAN)], (1, 0, 0), "1 of 1 block lie below"),
        ],
        ids=["holds", "fails", "all three", "undecided", "shape"],
    )
    def test_counts(self, pairs, counts, words):
        frame = cosines(*pairs)
        assert findings.count_signs(frame) == counts
        # The third block is none of those that are below zero.
        shares = frame.assign(cosine_loss_below_zero=[0.57, 0.66, 0.9][: len(frame)])
        text = findings.of_cosine_loss({"block_metrics": shares})
        assert words in text
        said = "57% to 90%" if len(pairs) == counts[0] == 3 else "57% of" if counts[0] else ""
        assert said.replace("57% to", "57 to") in text
        assert "two standard errors over the images" in text
        assert ("undecided" in text) == (counts[1] > 0)

    def test_test_images_are_those_spoken_of(self):
        train = cosines(BELOW, splits=["train"])
        test = cosines(ABOVE, splits=["test"])
        text = findings.of_cosine_loss({"block_metrics": pd.concat([test, train])})
        assert text.startswith("On the test images, 0 of 1 block")


def test_cosines_beside_first_order_terms():
    """Of two blocks whose cosine is below zero, one has a term above zero, and both lower the loss.

    The cosine of the third is not below zero beyond noise.
    """
    terms = {"first_order": [0.3, -0.3, -9.0], "first_order_se": 0.1, "stage": 1}
    terms |= {"loss_change": [-0.3, -0.3, 9.0], "loss_change_se": 0.1, "block": range(3)}
    frames = {
        "block_metrics": cosines(BELOW, BELOW, UNDECIDED),
        "first_order": pd.DataFrame(terms),
    }
    text = findings.of_first_order(frames)
    assert "2 blocks have a mean cosine below zero" in text
    assert "1 of them lower the loss and 1 raise it; measured, 2 of them" in text
    above = frames | {"block_metrics": cosines(ABOVE, ABOVE, ABOVE)}
    assert findings.of_first_order(above) is None


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([BELOW] * 4, "stage 1 up to repetition 3 of 3."),
        ([BELOW, BELOW, ABOVE, BELOW], "stage 1 up to repetition 1 of 3."),
        ([BELOW, BELOW, UNDECIDED, BELOW], "stage 1 up to repetition 1 of 3."),
        ([BELOW, ABOVE, BELOW], "stage 1 up to repetition 0 of 2."),
        ([ABOVE, BELOW, BELOW], "stage 1 not even as trained."),
        ([BELOW, BELOW, (NAN, NAN)], "stage 1 up to repetition 1 of 2."),
        ([BELOW, (-0.5, NAN), BELOW], "stage 1 up to repetition 0 of 2."),
    ],
)
def test_how_long_a_repeated_block_has_a_cosine_below_zero(pairs, words):
    frame = repetitions(pairs, [BELOW, ABOVE]).sample(frac=1, random_state=0)
    text = findings.of_repetition_metrics({"repetition_metrics": frame})
    assert text.startswith("On the test images, the cosine stays below zero by more than two ")
    assert text.endswith(f"{words[:-1]}; stage 2 up to repetition 0 of 1.")


def index_frames(error, chance, images):
    rows = {"split": ["train", "test"], "stage": [1, 2], "basis": "labels", "chance": chance}
    rows |= {"error": [0.1, error]}
    groups = pd.DataFrame({"split": ["train", "test"], "group": "all", "images": [9, images]})
    return {"convergence_indices": pd.DataFrame(rows), "borderline": groups}


@pytest.mark.parametrize(
    ("error", "chance", "images", "is_less"),
    [
        (0.5, 0.9, 100, True),
        (0.988, 0.992, 256, False),  # 0.004 below, with a standard error of 0.007
        (0.988, 0.992, 4000, True),
        (0.95, 0.9, 100, False),
        (0.9, 0.9, 100, False),
    ],
)
def test_indices_need_an_error_below_chance(error, chance, images, is_less):
    frames = index_frames(error, chance, images)
    assert findings.count_images(frames) == images
    assert findings.errs_less_than_chance(frames) == is_less
    text = findings.of_indices(frames)
    assert (text is None) == is_less
    if text:
        assert text.startswith("On the test images, the error of the whole network is not below ")


def test_a_quotient_of_noise_is_no_headline():
    """Without blocks of the second stage, the network is all but at chance."""
    indices = pd.DataFrame({"split": "test", "basis": "labels", "stage": [1, 2, "mean"]})
    indices = indices.assign(error=0.2, chance=0.99, recurrence_index=[0.9, 3.03, 2.0])
    indices = indices.assign(convergence_index=0.4, divergence_index=NAN)
    drops = pd.DataFrame({"split": "test", "stage": [1, 1, 2, 2], "error": [0.3, 0.3, 0.94, 0.97]})
    groups = pd.DataFrame({"split": "test", "group": "all", "images": [2000]})
    frames = {"convergence_indices": indices, "drop_blocks": drops, "borderline": groups}
    tiles = {label: value for label, value, _ in findings.index_tiles(frames)}
    dash = "\N{EN DASH}"
    assert tiles == {"Convergence by stage": "0.40, 0.40", "Recurrence by stage": f"0.90, {dash}"}
    # On many more images, the same errors tell.
    frames["borderline"] = groups.assign(images=10**6)
    assert "3.03" in dict(tile[:2] for tile in findings.index_tiles(frames))["Recurrence by stage"]


def readout_frame(*errors):
    return pd.DataFrame({"split": "test", "stage": 2, "block": range(len(errors)), "error": errors})


@pytest.mark.parametrize(
    ("errors", "found"),
    [
        ((0.8, 0.5, 0.3, 0.31, 0.3), "from block 2 of"),
        ((0.3, 0.5, 0.3), "the last block still"),
        ((0.31, 0.3), "from block 0 of"),
    ],
)
def test_where_the_answer_is_found(errors, found):
    # With 1,000 images, two standard errors of a difference of such errors are 4 points.
    frames = index_frames(0.3, 0.9, 1000) | {"readout": readout_frame(*errors)}
    text = findings.of_readout(frames)
    assert f"{errors[0]:.0%} after the first" in text
    assert found in text
    assert [sentence for _, sentence in findings.in_short(frames)] == [text]
    # A network that guesses found no answer anywhere.
    ((_, text),) = findings.in_short(index_frames(0.89, 0.9, 100) | {"readout": frames["readout"]})
    assert "not below chance" in text


# In the report


def test_findings_stand_in_their_sections():
    frame = block_frame(3, splits=("test",)).assign(cosine_loss_se=1e-6, cosine_loss_below_zero=0.6)
    frames = {"block_metrics": frame}
    counts = {"block_metrics": {"train": 2000, "test": 10_000}}
    sections = {s.title: s for s in study_sections(frames, study_figures(frames, 0.1), counts)}
    measured = frame["cosine_loss"].dropna()
    section = sections["Do blocks move down the loss gradient?"]
    assert f"{(measured < 0).sum()} of {len(measured)} blocks lie below zero" in section.finding
    assert sections["How large is the gradient?"].finding is None
    # Where the number of images is known, the caption says it.
    assert section.images == "2,000 training images and 10,000 test images"
    # The frame of another network, and other words.
    frames = {"block_metrics": frame.assign(cosine_loss=-frame["cosine_loss"])}
    others = {s.title: s for s in study_sections(frames, study_figures(frames, 0.1))}
    assert others[section.title].finding != section.finding
    assert others[section.title].reading == section.reading
    assert others[section.title].images is None
