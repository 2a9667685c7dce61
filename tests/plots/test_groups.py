"""The figure of borderline, correct and all images."""

import numpy as np
import pandas as pd
import pytest
from plots.make_frames import borderline_frame
from plots.read_figures import draws, legend_texts, metric_lines, points

from tfresidual import plots

METRICS = ("accuracy", "cross_entropy", "entropy")


@pytest.mark.parametrize("along", ["blocks", "repetitions"])
class TestAlong:
    def test_a_line_per_group_and_split(self, along):
        frame = borderline_frame(splits=("test", "train"))
        figure = plots.borderline(frame.sample(frac=1.0, random_state=1), along=along)
        for axes, metric in zip(figure.axes, METRICS, strict=True):
            drawn = {line.get_label().split(" (")[0]: line for line in metric_lines(axes)}
            assert list(drawn) == [
                f"{group}, {split}"
                for group in ("borderline", "correct", "all")
                for split in ("train", "test")
            ]
            for name, line in drawn.items():
                group, split = name.split(", ")
                rows = frame[(frame["along"] == along) & (frame["group"] == group)]
                rows = rows[rows["split"] == split]
                assert points(line) == dict(zip(rows["block"], rows[metric], strict=True))

    def test_words(self, along):
        figure = plots.borderline(borderline_frame(), along=along)
        assert [axes.get_ylabel().split(" (")[0] for axes in figure.axes] == [
            "accuracy",
            "cross-entropy",
            "entropy",
        ]
        assert ("repetitions" in figure.axes[0].get_xlabel()) == (along == "repetitions")
        assert "last stage" in figure.axes[0].get_xlabel()
        assert figure.axes[0].yaxis.get_major_formatter()(0.5, None) == "50%"


def test_groups_have_colours_and_splits_lines():
    figure = plots.borderline(borderline_frame(splits=("train", "test")))
    lines = metric_lines(figure.axes[0])
    assert [line.get_linestyle() for line in lines] == ["-", "--"] * 3
    colours = [line.get_color() for line in lines]
    assert colours[0::2] == colours[1::2]
    assert len(set(colours)) == 3


def test_the_legend_counts_the_images():
    figure = plots.borderline(borderline_frame())
    assert legend_texts(figure) == [
        "borderline (310 images)",
        "correct (9,000 images)",
        "all (10,000 images)",
    ]


def test_a_group_without_images_has_no_line_but_is_counted():
    frame = borderline_frame(splits=("train", "test"))
    nobody = (frame["group"] == "borderline") & (frame["split"] == "train")
    frame.loc[nobody, ["images", "accuracy", "cross_entropy", "entropy"]] = [0, 0.0, np.nan, np.nan]
    figure = plots.borderline(frame)
    for axes in figure.axes:
        assert points(metric_lines(axes)[0]) == {}
        assert points(metric_lines(axes)[1]) != {}
    assert legend_texts(figure)[0] == "borderline, train (0 images)"
    draws(figure)


class TestGroupsOfTheNextBlock:
    FRAME = borderline_frame().assign(
        accuracy_before=0.5, cross_entropy_before=0.7, entropy_before=lambda f: f["block"] / 100
    )

    def test_a_line_per_block_from_before_to_after(self):
        for axes, metric in zip(plots.borderline(self.FRAME).axes, METRICS, strict=True):
            for line in metric_lines(axes):
                group = line.get_label().split(" (")[0]
                rows = self.FRAME[self.FRAME["along"] == "blocks"]
                rows = rows[rows["group"] == group]
                places, heights = (np.reshape(values, (-1, 3)) for values in line.get_data())
                np.testing.assert_array_equal(places[:, 0], rows["block"] - 1)
                np.testing.assert_array_equal(places[:, 1], rows["block"])
                np.testing.assert_array_equal(heights[:, 0], rows[f"{metric}_before"])
                np.testing.assert_array_equal(heights[:, 1], rows[metric])
                assert np.isnan([places[:, 2], heights[:, 2]]).all()

    def test_the_legend_has_the_range_of_the_images(self):
        frame = self.FRAME.copy()
        frame.loc[(frame["group"] == "correct") & (frame["block"] == 14), "images"] = 8000
        assert legend_texts(plots.borderline(frame))[:2] == [
            "borderline (310 images)",
            "correct (8,000 to 9,000 images)",
        ]

    def test_the_title_tells_them_apart(self):
        frame = self.FRAME.assign(scale=lambda f: np.where(f["along"] == "blocks", 1.0, 0.3))
        titles = {
            (kind, along): plots.borderline(table, along=along).get_suptitle()
            for kind, table in (("next", frame), ("fixed", frame.filter(regex="^(?!.*_before)")))
            for along in ("blocks", "repetitions")
        }
        assert titles == {
            ("next", "blocks"): "Borderline before each block",
            ("next", "repetitions"): "Borderline before each block, branch scaled by 0.3",
            ("fixed", "blocks"): "Borderline images",
            ("fixed", "repetitions"): "Borderline images, branch scaled by 0.3",
        }

    def test_the_axis_has_room_for_both(self):
        frame = self.FRAME.assign(cross_entropy_before=1e-4)
        assert plots.borderline(frame).axes[1].get_yscale() == "log"
        draws(plots.borderline(frame, along="repetitions"))

    def test_refused(self):
        with pytest.raises(ValueError, match=r"missing: `entropy_before`\. Received: columns="):
            plots.borderline(self.FRAME.drop(columns="entropy_before"))


def test_decades_are_logarithmic():
    frame = borderline_frame()
    frame.loc[frame["group"] == "correct", "cross_entropy"] = 1e-4
    axes = plots.borderline(frame).axes[1]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "cross-entropy (log scale)"


def test_a_metric_without_values_and_a_single_row():
    figure = plots.borderline(borderline_frame().assign(entropy=np.nan))
    assert [text.get_text() for text in figure.axes[2].texts] == ["no values"]
    figure = plots.borderline(borderline_frame().iloc[:1])
    assert legend_texts(figure) == ["borderline (310 images)"]
    draws(figure)


def test_refused():
    frame = borderline_frame()
    with pytest.raises(ValueError, match=r"`along` must be one of .*Received: along='epochs'"):
        plots.borderline(frame, along="epochs")
    with pytest.raises(
        ValueError, match=r"rows with along='repetitions'. Received: .*\['blocks'\]"
    ):
        plots.borderline(frame.query("along == 'blocks'"), along="repetitions")
    with pytest.raises(ValueError, match=r"missing: `images`\. Received: columns="):
        plots.borderline(frame.drop(columns="images"))
    with pytest.raises(ValueError, match=r"`group`.*Received: \['hard'\]"):
        plots.borderline(frame.assign(group="hard"))
    with pytest.raises(ValueError, match=r"one row per block and group.*group='borderline'"):
        plots.borderline(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match=r"`accuracy`, `cross_entropy`.*Received: 15 rows"):
        plots.borderline(frame.assign(images=0))
