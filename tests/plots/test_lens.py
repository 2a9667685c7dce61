"""The figures of the lens, of attribution and of patching.

Not covered: how they look; that was judged by eye.
"""

import numpy as np
import pandas as pd
import pytest
from plots.read_figures import draws, legend_texts, lines_with, metric_lines, points

from tfresidual import plots


def state_frame(columns, stages=1, blocks=3, splits=(None,), first=-1, seed=0):
    """A frame with a row for every state, from the one before the first block of a stage."""
    rng = np.random.default_rng(seed)
    rows = [
        {"split": split, "stage": stage, "block": block} | {name: rng.random() for name in columns}
        for split in splits
        for stage in range(1, stages + 1)
        for block in range(first, blocks)
    ]
    frame = pd.DataFrame(rows)
    return frame if splits != (None,) else frame.drop(columns="split")


LENS = ("cross_entropy", "entropy", "kl", "rank")


def named(axes):
    """The names below an axis by place."""
    ticks, labels = axes.get_xticks(), axes.get_xticklabels()
    return {int(x): label.get_text() for x, label in zip(ticks, labels, strict=True)}


class TestLens:
    def test_lines_stand_at_their_states(self):
        frame = state_frame(LENS, splits=("train", "test"))
        figure = plots.lens(frame.sample(frac=1, random_state=1))
        panels = (LENS[:2], LENS[2:3], LENS[3:])
        for axes, columns in zip(figure.axes, panels, strict=True):
            lines = {line.get_label(): points(line) for line in metric_lines(axes)}
            assert set(lines) == {f"{split}, {c}" for c in columns for split in ("train", "test")}
            for split in ("train", "test"):
                rows = frame[frame["split"] == split]
                for name in columns:
                    assert lines[f"{split}, {name}"] == dict(enumerate(rows[name]))
        assert named(figure.axes[-1]) == {0: "first", 1: "0", 2: "1", 3: "2"}
        assert figure.axes[-1].get_xlabel() == "after block of stage 1"
        assert legend_texts(figure) == ["cross-entropy", "entropy", "train", "test"]
        assert legend_texts(plots.lens(state_frame(LENS))) == ["cross-entropy", "entropy"]

    def test_states_that_the_head_cannot_take_have_no_place(self):
        frame = state_frame(LENS, stages=3)
        frame.loc[(frame["stage"] == 1) | ((frame["stage"] == 3) & (frame["block"] < 1)), LENS] = (
            np.nan
        )
        figure = plots.lens(frame)
        above, *_, below = figure.axes
        assert named(below) == {0: "first", 1: "0", 2: "1", 3: "2", 4: "1", 5: "2"}
        (line, _) = metric_lines(above)
        # A gap between the stages.
        assert np.isnan(line.get_xdata()).tolist() == [False] * 4 + [True] + [False] * 2
        assert len(lines_with(above, "boundary")) == 1

    def test_values_that_differ_much(self):
        frame = state_frame(LENS, blocks=60)
        frame["kl"] = np.r_[np.geomspace(5, 1e-4, 60), 0]
        figure = plots.lens(frame)
        assert [axes.get_yscale() for axes in figure.axes][1] == "symlog"
        assert len(named(figure.axes[-1])) <= 31
        assert draws(figure).startswith(b"\x89PNG")


class TestAttribution:
    def frame(self, **settings):
        frame = state_frame(("attribution",), blocks=4, **settings)
        parts = {-1: "first state", 3: "head"}
        return frame.assign(part=[parts.get(block, "block") for block in frame["block"]])

    def test_bars_and_their_sums(self):
        frame = self.frame(splits=("train", "test"))
        above, below = (figure := plots.attribution(frame)).axes
        for split, bars, line in zip(
            ("train", "test"), above.containers, metric_lines(below), strict=True
        ):
            heights = frame.loc[frame["split"] == split, "attribution"]
            np.testing.assert_allclose([bar.get_height() for bar in bars], heights)
            np.testing.assert_allclose(line.get_ydata(), heights.cumsum())
        assert named(below) == {0: "first", 1: "0", 2: "1", 3: "2", 4: "head"}
        assert [bars[0].get_hatch() for bars in above.containers] == ["", "////"]
        assert legend_texts(figure) == ["train", "test"]
        assert plots.attribution(self.frame()).legends == []
        assert draws(figure).startswith(b"\x89PNG")

    def test_blocks_without_a_part_have_no_place(self):
        frame = self.frame()
        frame.loc[1, "attribution"] = np.nan
        assert list(named(plots.attribution(frame).axes[1]).values()) == ["first", "1", "2", "head"]


class TestPatching:
    def test_a_line(self):
        frame = state_frame(("effect",), stages=2)
        (axes,) = plots.patching(frame).axes
        (line,) = metric_lines(axes)
        assert list(points(line).values()) == frame["effect"].tolist()
        assert len(lines_with(axes, "zero")) == len(lines_with(axes, "one")) == 1
        assert axes.get_xlabel() == "after block"

    def test_a_map_of_positions(self):
        frame = pd.concat(
            [
                state_frame(("effect",), splits=("train", "test"), seed=p).assign(position=p)
                for p in range(3)
            ]
        )
        figure = plots.patching(frame.drop(index=frame.index[0]))
        *panels, scale = figure.axes
        for axes, split in zip(panels, ("train", "test"), strict=True):
            (image,) = axes.get_images()
            rows = frame[frame["split"] == split].set_index(["position", "block"])["effect"]
            drawn = np.ma.filled(image.get_array(), np.nan)
            for position in range(3):
                for column, block in enumerate(range(-1, 3)):
                    value = drawn[position, column]
                    assert np.isnan(value) or value == rows[position, block]
            assert image.get_clim() == (-1, 1)
        assert np.isnan(drawn).sum() == 0
        assert named(panels[-1]) == {0: "first", 1: "0", 2: "1", 3: "2"}
        assert "effect" in scale.get_ylabel()
        assert draws(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "columns"),
    [("lens", LENS), ("attribution", ("attribution", "part")), ("patching", ("effect",))],
)
def test_frames_that_cannot_be_drawn(name, columns):
    frame, draw = state_frame(columns), getattr(plots, name)
    with pytest.raises(ValueError, match=rf"missing: `{columns[-1]}`.*Received: "):
        draw(frame.drop(columns=columns[-1]))
    with pytest.raises(ValueError, match=r"one row per stage and block.*Received: "):
        draw(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match=r"at least one finite number.*Received: "):
        draw(frame.assign(**dict.fromkeys(columns, np.nan)))
