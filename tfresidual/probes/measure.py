"""Runs the function of a probe over data and makes a frame of what it returns."""

import numpy as np
import pandas as pd

from tfresidual.chains.batches import run_over, splits_of


def measure(chain, name, function, data, per_image=False, progress=False):
    """Measures values per image and block, and puts them into a frame.

    Args:
        chain: a `tfresidual.chains.Chain`.
        name: str, the probe's name.
        function: `function(images, labels)` returns a dict of tensors `(images, blocks)`.
        data: a dataset or arrays, or a dict of these by split.
        per_image: whether every image has its own rows, or the mean is taken (in float64).
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame`: `split` where `data` is a dict, `stage`, `block`, `image` where
        `per_image` is set, and a column per value.
    """
    frames = []
    for split, part in splits_of(data).items():
        frame = _frame(chain, run_over(chain, name, function, part, progress), per_image)
        if split is not None:
            frame.insert(0, "split", split)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _frame(chain, values, per_image):
    places = pd.DataFrame(
        [(block.stage, block.step) for block in chain.blocks], columns=["stage", "block"]
    )
    if not per_image:
        means = {name: value.mean(axis=0, dtype=np.float64) for name, value in values.items()}
        return places.assign(**means)
    images = len(next(iter(values.values())))
    frame = places.loc[np.repeat(places.index, images)].reset_index(drop=True)
    frame["image"] = np.tile(np.arange(images), len(places))
    return frame.assign(**{name: value.T.ravel() for name, value in values.items()})
