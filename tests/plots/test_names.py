"""Names of splits, runs and metrics are shown as they are: no mathematics, and none left out."""

import pandas as pd
import pytest
from matplotlib.text import Text
from plots.make_frames import (
    block_frame,
    borderline_frame,
    distance_frame,
    drop_frame,
    history_frame,
    index_frame,
    readout_frame,
    repeat_frame,
    shuffle_frame,
)
from plots.read_figures import draws

from tfresidual import plots

NAMES = ("$x$", "_hidden")


def histories():
    logs = [history_frame(4).assign(network=name) for name in NAMES]
    return pd.concat(log.rename(columns={"accuracy": "a_$b$"}) for log in logs)


FIGURES = {
    "cosine_loss": lambda: plots.cosine_loss(block_frame(splits=NAMES)),
    "cosine_loss over epochs": lambda: plots.cosine_loss(block_frame(splits=NAMES, epochs=3)),
    "computational_distance": lambda: plots.computational_distance(distance_frame(splits=NAMES)),
    "readout": lambda: plots.readout(readout_frame(splits=NAMES)),
    "drop_blocks": lambda: plots.drop_blocks(drop_frame(splits=NAMES)),
    "route_errors": lambda: plots.route_errors(
        readout_frame(splits=NAMES), drop_frame(splits=NAMES), repeat_frame(splits=NAMES)
    ),
    "repetition_metrics": lambda: plots.repetition_metrics(repeat_frame(splits=NAMES)),
    "shuffle_blocks": lambda: plots.shuffle_blocks(shuffle_frame(splits=NAMES)),
    "convergence_indices": lambda: plots.convergence_indices(index_frame(splits=NAMES)),
    "borderline": lambda: plots.borderline(
        borderline_frame(splits=NAMES).query("along == 'blocks'")
    ),
    "network_curves": lambda: plots.network_curves(histories(), ["a_$b$"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_names_are_shown_as_they_are(name):
    figure = FIGURES[name]()
    draws(figure)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for shown in NAMES:
        assert any(shown in text.get_text() for text in texts)
    assert not any(text.get_parse_math() for text in texts if "$x" in text.get_text())
    assert not any(text.get_parse_math() for text in texts if "$b" in text.get_text())
