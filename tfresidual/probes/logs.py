"""The names under which a probe's numbers stand in the logs of a training, and back."""

import re

import pandas as pd

KEY = re.compile(
    r"(?:(?P<split>[^/]+)/)?stage(?P<stage>\d+)/(?:block(?P<block>\d+)/)?(?P<name>\w+)"
)


def log_key(name, stage=None, block=None, split=None):
    """The key of one number: `"stage1/block0/cosine_loss"`, after the split if there is one."""
    of_stage = None if stage is None else f"stage{stage}"
    of_block = None if block is None else f"block{block}"
    places = [split, of_stage, of_block, name]
    return "/".join(place for place in places if place is not None)


def block_logs(frame, names, prefix=""):
    """The numbers of a frame with a row per block (and split), by log key."""
    return {
        log_key(prefix + name, row["stage"], row["block"], row.get("split")): row[name]
        for row in frame.to_dict("records")
        for name in names
    }


def from_logs(history):
    """Reads the numbers that the callbacks published per block back into a frame.

    Args:
        history: what `model.fit` returned, its `history` dict, or a `pandas.DataFrame` (or the
            path of a CSV file) with a row per epoch.

    Returns:
        A `pandas.DataFrame` with the columns `epoch` (from 0), `split` where there is one,
        `stage`, `block` and one per metric; epochs that were not measured are left out.

    Raises:
        ValueError: if the history holds no number of a block.
    """
    table = _table(history)
    rows = {}
    for key in table.columns:
        match = KEY.fullmatch(key)
        if match is None or match["block"] is None:
            continue
        for epoch, value in zip(table["epoch"], table[key], strict=True):
            place = (int(epoch), match["split"], int(match["stage"]), int(match["block"]))
            rows.setdefault(place, {})[match["name"]] = value
    if not rows:
        raise ValueError(
            "Argument `history` must hold keys such as 'stage1/block0/cosine_loss', which the "
            f"callbacks publish. Received: the keys {list(table.columns)}"
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
        table = pd.read_csv(history)
    return table if "epoch" in table else table.assign(epoch=range(len(table)))
