"""The experiment on pruned networks: its smallest size, and the page of the one that was kept."""

import pathlib

import depth_both_ways
import pytest
from drawing import kept_frames

README = pathlib.Path(depth_both_ways.__file__).parent / "README.md"


@pytest.mark.nightly
def test_all_networks_but_the_deep_one_have_as_many_blocks(tmp_path):
    size = depth_both_ways.SIZES["smoke"]
    rows, plans = depth_both_ways.Experiment(size, 0, tmp_path, str(tmp_path)).measured()
    blocks = [sum(map(int, stages.split())) for stages in rows["stages"]]
    is_deep = rows["network"] == depth_both_ways.DEEP
    assert blocks == [9 if deep else 9 - size.blocks for deep in is_deep]
    assert rows.groupby("network").size().tolist() == [3, 2, 2, 3, 2, 3, 3, 3, 3]
    assert plans.groupby("by")["blocks_left"].min().eq(9 - size.blocks).all()


def test_the_table_of_the_page_is_that_of_the_frames():
    (found,) = depth_both_ways.tables(kept_frames(depth_both_ways.KEPT))
    page = README.read_text()
    for name, cells in found.iterrows():
        assert f"| {' | '.join([name, *cells])} |" in page
