"""Converts between frames of probes and the keys of their numbers in training logs."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.files import read_table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import keras

    from tfresidual.definitions.declarations import Probe
    from tfresidual.definitions.types import Frame, StrPath
    from tfresidual.routing import Chain

KEY = re.compile(
    r"(?:(?P<split>[^/]+)/)?stage(?P<stage>\d+)/(?:block(?P<block>\d+)/)?(?P<name>\w+)"
)


def log_key(
    name: str, stage: int | None = None, block: int | None = None, split: str | None = None
) -> str:
    """Returns the key of one number in `logs`, such as `"stage1/block0/cosine_loss"`.

    Args:
        name: name of the metric.
        stage: index of the stage, from 1, or `None` for a number of the whole network.
        block: index of the block in its stage, from 0, or `None` for a number of the stage.
        split: name of the split, which comes first, or `None`.
    """
    of_stage = None if stage is None else f"stage{stage}"
    of_block = None if block is None else f"block{block}"
    places = [split, of_stage, of_block, name]
    return "/".join(place for place in places if place is not None)


def block_logs(frame: Frame, names: Iterable[str], *, prefix: str = "") -> dict[str, float]:
    """Returns the numbers of a frame with one row per block (and split) by their keys in `logs`.

    Args:
        frame: the frame of a probe.
        names: the columns whose numbers are returned.
        prefix: what the metrics are called in the logs begins with it.
    """
    return {
        log_key(prefix + name, row["stage"], row["block"], row.get("split")): row[name]
        for row in frame.to_dict("records")
        for name in names
    }


def published_places(probe: Probe, chain: Chain) -> dict[str, set[tuple[int, int]]]:
    """Returns the stages and indices of the blocks that callbacks publish, by column."""
    module = importlib.import_module(f"tfresidual.probes.{probe.module or probe.name}")
    found = {}
    for name, where in probe.published.items():
        kind = where.removeprefix("last ")
        if kind == "all":
            blocks = list(chain.blocks)
        elif kind == "keeping":
            blocks = [block for block in chain.blocks if block.keeps_shape]
        elif kind == "exits":
            blocks = [b for stage in chain.stages for b in stage.blocks if b.index in stage.exits]
        else:
            blocks = getattr(module, kind)(chain)
        last = chain.stages[-1].index
        found[name] = {(b.stage, b.index) for b in blocks if kind == where or b.stage == last}
    return found


def blocks_of(log: Frame) -> list[tuple[int, int]]:
    """Returns the blocks, pairs of stage and index, that a frame with a row per epoch tells of."""
    matches = [match for match in map(KEY.fullmatch, log.columns) if match and match["block"]]
    return list(dict.fromkeys((int(m["stage"]), int(m["block"])) for m in matches))


def from_logs(history: keras.callbacks.History | dict[str, Any] | Frame | StrPath) -> Frame:
    """Reads the numbers that the callbacks published for each block back into a frame.

    Keys of stages, such as `"stage1/scaled_distance"` and `"stage1/depth"` of
    `callbacks.Perturbation`, and those of the whole network are left out. The depth in the logs is
    the column `depth_asked_for` of `computational_distance.csv` and of `DepthSearch.trace`: how
    many blocks the stopping rule asks for, not how many there are.

    Args:
        history: the return value of `model.fit`, its `history` dict, or a `pandas.DataFrame` (or
            the path of a CSV file) with one row per epoch.

    Returns:
        A `pandas.DataFrame` with the columns `epoch` (from 0), `split` (if there are splits),
        `stage`, `block` and one column per metric. Epochs without measurements are left out.

    Raises:
        ValueError: if the history holds no numbers of blocks, or an epoch twice, or its file is
            damaged.
    """
    table = _table(history)
    twice = table["epoch"].duplicated()
    if twice.any():
        raise ArgumentError(
            "history",
            "have one row per epoch",
            received=f"several rows of epoch {table.loc[twice, 'epoch'].iloc[0]}",
        )
    rows: dict[tuple[Any, ...], dict[str, float]] = {}
    for key in table.columns:
        match = KEY.fullmatch(key)
        if match is None or match["block"] is None:
            continue
        for epoch, value in zip(table["epoch"], table[key], strict=True):
            place = (int(epoch), match["split"], int(match["stage"]), int(match["block"]))
            rows.setdefault(place, {})[match["name"]] = value
    if not rows:
        raise ArgumentError(
            "history",
            "hold keys such as 'stage1/block0/cosine_loss', which the callbacks publish",
            received=f"the keys {list(table.columns)}",
        )
    index = pd.MultiIndex.from_tuples(rows, names=["epoch", "split", "stage", "block"])
    frame = pd.DataFrame(list(rows.values()), index=index).dropna(how="all").reset_index()
    frame = frame.sort_values(["epoch", "stage", "block"], kind="stable", ignore_index=True)
    return frame if frame["split"].notna().any() else frame.drop(columns="split")


def _table(history):
    if hasattr(history, "history"):
        history = history.history
    if isinstance(history, pd.DataFrame):
        table = history
    elif isinstance(history, dict):
        table = pd.DataFrame(history)
    else:
        table = read_table(history)
    return table if "epoch" in table else table.assign(epoch=range(len(table)))
