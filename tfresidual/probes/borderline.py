"""Whom do the last blocks help? Images near the decision against those that are right already."""

import numpy as np
import pandas as pd

from tfresidual.arguments import check_int, check_number
from tfresidual.chains import chain as chain_of
from tfresidual.chains import evaluate
from tfresidual.chains.batches import splits_of
from tfresidual.chains.evaluator import MEMORY_LIMIT
from tfresidual.chains.routes import check_scale, read_out, repeat_last, unperturbed

GROUPS = ("borderline", "correct", "all")
BLOCKS, REPETITIONS = "blocks", "repetitions"


def borderline(
    chain,
    data,
    blocks=5,
    times=20,
    scale=1.0,
    probability=0.1,
    memory_limit=MEMORY_LIMIT,
    progress=False,
):
    """Measures groups of images behind each of the last blocks, and along the repeated last one.

    The head reads the state behind each of the last blocks of the last stage, and behind each
    extra application of the last block. Where such a curve begins, at the first of these blocks
    and at the trained network, each image is put into groups and stays there:

    - `borderline`: the prediction turns to or from the right class when less than `probability`
      moves from one class to another: half of the gap between the probability of the label and
      the highest other one is less than that (of several labels, the lowest of them counts);
    - `correct`: the prediction is right;
    - `all`.

    Example:

    >>> frame = borderline(tfresidual.chain(net), {"train": train, "test": test})

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by the name of the split.
        blocks: int, how many of the last blocks; a shorter stage gives all of its blocks.
        times: int, the most extra applications of the last block, 0 for none.
        scale: float, what the block's branch is multiplied by in the extra applications.
        probability: float over 0, up to 1, how much of it moves.
        memory_limit: MiB that the evaluator may take, some 25 or more; the result is the same.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `along` (`"blocks"` or `"repetitions"`), `stage`,
        `block` (the last block applied; extra applications are counted on from the last block),
        `group`, `images` (how many it has), `accuracy` in [0, 1], `cross_entropy` and `entropy`
        in nats, all three NaN in an empty group; `split` first, where `data` is a dict. Where the
        last block changes the shape of the state, there are no repetitions.

    Raises:
        ValueError: if an argument cannot be used.

    Reference:
        Jastrzebski et al. 2018, sections 4.3 and 4.4, fig. 6 and 7.
    """
    chain = chain_of(chain)
    check_arguments(blocks, times, probability)
    check_scale(scale)
    curves = _curves(chain, blocks, times, scale)
    routes = [route for steps in curves.values() for _, route in steps]
    frames = []
    for split, part in splits_of(data).items():
        values, begin = evaluate(chain, routes, part, memory_limit, progress=progress), 0
        for along, steps in curves.items():
            groups = {
                "borderline": np.abs(values.margin[begin]) / 2 < probability,
                "correct": values.wrong[begin] == 0,
                "all": np.ones(len(values.labels), bool),
            }
            for index, (block, _) in enumerate(steps, start=begin):
                frames += [
                    {"split": split, "along": along, "stage": chain.stages[-1].index}
                    | {"block": block, "group": group}
                    | _means(values, index, groups[group])
                    for group in GROUPS
                ]
            begin += len(steps)
    frame = pd.DataFrame(frames)
    return frame.drop(columns="split") if None in splits_of(data) else frame


def check_arguments(blocks, times, probability):
    """Raises a `ValueError` unless `borderline` can use these."""
    check_int("blocks", blocks, at_least=1)
    check_int("times", times, at_least=0)
    check_number("probability", probability, over=0, at_most=1)


def last_blocks(chain, blocks):
    """The steps of the last blocks of the last stage, behind which the head can follow."""
    return chain.stages[-1].exits[-blocks:]


def _curves(chain, blocks, times, scale):
    """The blocks and routes of every curve, by name."""
    stage = chain.stages[-1]
    last = len(stage.blocks) - 1
    if not stage.blocks:
        raise ValueError(
            "Argument `chain` must have a block in its last stage. "
            f"Received: {chain.name}, whose last stage has none"
        )
    curves = {
        BLOCKS: [(step, read_out(chain, stage.index, step)) for step in last_blocks(chain, blocks)]
    }
    if times and stage.can_repeat:
        curves[REPETITIONS] = [(last, unperturbed(chain))] + [
            (last + k, repeat_last(chain, stage.index, k, scale)) for k in range(1, times + 1)
        ]
    return curves


def _means(values, route, group):
    """Means over the images of a group on a route."""
    means = {"images": int(group.sum())}
    for name, column in (
        ("accuracy", 1 - values.wrong),
        ("cross_entropy", values.cross_entropy),
        ("entropy", values.entropy),
    ):
        with np.errstate(invalid="ignore"):
            means[name] = column[route][group].mean(dtype=float) if group.any() else np.nan
    return means
