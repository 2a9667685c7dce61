"""The figure of the line element of every block.

Not covered: how it looks; that was judged by eye.
"""

import numpy as np
import pandas as pd
import pytest
from plots.read_figures import draws, legend_texts, metric_lines, points

from tfresidual import plots


def line_element_frame(splits=(None,), growth=1.0):
    rows = []
    for place, split in enumerate(splits):
        for stage in (1, 2):
            for block in range(3):
                layer, spatial = 4.0 + place, 9.0 * growth ** (3 * stage + block)
                row = {"split": split, "stage": stage, "block": block, "layer_part": layer}
                rows.append(row | {"spatial_part": spatial, "length": np.sqrt(layer + spatial)})
    frame = pd.DataFrame(rows)
    return frame if splits != (None,) else frame.drop(columns="split")


def test_lines():
    frame = line_element_frame(splits=("train", "test"))
    frame.loc[frame["block"].eq(0) & frame["stage"].eq(2), ["length", "layer_part"]] = np.nan
    figure = plots.line_element(frame.sample(frac=1.0, random_state=1))
    panels = (("length",), ("layer_part", "spatial_part"))
    for axes, columns in zip(figure.axes, panels, strict=True):
        lines = {line.get_label(): line for line in metric_lines(axes)}
        assert set(lines) == {f"{split}, {name}" for name in columns for split in ("train", "test")}
        for label, line in lines.items():
            split, name = label.split(", ")
            rows = frame[frame["split"] == split].dropna(subset=name)
            places = (rows["stage"] - 1) * 3 + rows["block"]
            assert points(line) == dict(zip(places, rows[name], strict=True))
    assert legend_texts(figure)[2:] == ["train", "test"]
    assert draws(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(("growth", "scale"), [(1.0, "linear"), (4.0, "log")])
def test_scale(growth, scale):
    figure = plots.line_element(line_element_frame(growth=growth))
    assert [axes.get_yscale() for axes in figure.axes] == [scale, scale]
    is_log = ["(log scale)" in axes.get_ylabel() for axes in figure.axes]
    assert is_log == [scale == "log"] * 2


def test_frames_that_cannot_be_drawn():
    with pytest.raises(ValueError, match=r"missing: `length`.*Received: "):
        plots.line_element(line_element_frame().drop(columns="length"))
