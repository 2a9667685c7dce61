"""What a report concludes of single blocks: on frames made so that it is each of all."""

import pandas as pd
import pytest

from tfresidual.report.blocks import block_conclusions

NAN = float("nan")


@pytest.mark.parametrize(
    ("rise", "noise", "images", "conclusion"),
    [
        (0.001, 0.001, 2000, "can go"),
        (-0.05, 0.01, 2000, "can go"),
        (0.0, 0.0, 2000, "can go"),  # no image differs: below 3 / 2000
        (0.0, 0.0, 200, "undecided"),  # below 3 / 200, which is over a point
        (0.009, 0.001, 2000, "undecided"),
        (0.03, 0.02, 2000, "undecided"),
        (0.03, 0.009, 2000, "needed"),
        (NAN, NAN, 2000, "changes the shape"),
    ],
)
def test_conclusions(rise, noise, images, conclusion):
    frame = pd.DataFrame(
        [{"stage": 1, "block": 0, "error": rise, "error_rise": rise, "error_rise_se": noise}]
    )
    found = block_conclusions(frame, images).iloc[0]
    assert found["conclusion"] == conclusion
    assert bool(found["costs"]) == (rise == rise)
    if rise == rise:
        # At chance, no error can rise.
        assert block_conclusions(frame, images, False)["conclusion"].item() == "undecided"
