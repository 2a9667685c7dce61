"""What the network predicts when a stage is left early."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tensorflow as tf

from tfresidual import sources
from tfresidual.probes.evaluate_routes import METRICS, frames_of_rows
from tfresidual.probes.measure import block_places, joined_splits
from tfresidual.probes.predictions import (
    COUNTED,
    frame_of,
    label_check,
    labels_of,
    logits_of,
    over_positions,
    scored_chain,
)
from tfresidual.routing import routes
from tfresidual.routing.data import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT, distance_between
from tfresidual.routing.readouts import check_readouts, confidence, of_control, read, states_of
from tfresidual.routing.runs import WEIGHTS, run_over
from tfresidual.routing.scores import prediction_scores

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.networks import Readouts
    from tfresidual.routing import Chain

CONFIDENCE = "confidence"
# What the outputs alone tell.
OF_OUTPUTS = tuple(metric for metric in METRICS if metric != "distance")


def readout(
    chain: Chain | ChainSource,
    data: Data,
    *,
    readouts: Readouts | None = None,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network when a stage is left after each of its blocks.

    The later stages follow as trained; in the last stage, the head follows directly. The metrics
    are those of `evaluate_routes`; the distance is that of the stage that is left. The row of the
    last block of a stage is that of the unperturbed network. If a later block of the stage changes
    the shape of the state, the stage cannot be left here, and the metrics are NaN.

    With `readouts`, the prediction is that of the read-out trained for the state after the block,
    and nothing follows; the row of the very last block is that of the unperturbed network. The
    metrics are NaN after blocks without a read-out, and the distance where a later block changes
    the shape of the state. `control_error` and so on are what the controls read: of heads, others
    that were trained with the labels of other images; of affine read-outs, the network's head
    alone.

    Example:

    >>> readout(tfresidual.chain(net), test).groupby("stage")["error"].last().nunique()
    1
    >>> heads = training.fit_readouts(net, train, kind="head")
    >>> readout(net, test, readouts=heads)["error"].between(0, 1).all()
    True

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        readouts: what `tfresidual.training.fit_readouts` returned for this network.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
            Not used with `readouts`.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `error`,
        `cross_entropy`, `entropy`, `agreement` and `distance`; with `readouts`, those of the
        controls but the distance follow, NaN after the last block. If `data` is a dict, `split` is
        the first column.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", fig. 2a
        and 6b, c; Jastrzebski et al. 2018, section 4.2 and fig. 5 for the last stage.
    """
    if readouts is not None:
        return _trained(chain, data, readouts, progress)
    chain = sources.numbered(chain)
    tables = {"readout": rows_of(chain)}
    return frames_of_rows(chain, data, tables, memory_limit, progress)[0]["readout"]


def rows_of(chain):
    """Returns pairs of the place columns of a row of the frame and its route."""
    rows = []
    for stage in chain.stages:
        for block in stage.blocks:
            can_leave = block.index in stage.exits
            route = routes.readout(chain, stage.index, block.index) if can_leave else None
            rows.append(({"stage": stage.index, "block": block.index}, route))
    return rows


def _trained(chain, data, readouts, progress):
    frames = {}
    chain = scored_chain(chain)
    for split, part in splits_of(data).items():
        values = exit_values(chain, readouts, part, progress)
        is_counted, weights = values.pop(COUNTED), values.pop(WEIGHTS)
        frame = frame_of(block_places(chain), values, is_counted, weights)
        frames[split] = frame.drop(columns=CONFIDENCE)
    return joined_splits(frames)


def exit_values(chain, readouts, data, progress=False, check=None):
    """Returns what trained read-outs predict after every block, NaN where there is none.

    Args:
        chain: what `scored_chain` returns.
        readouts: `Readouts`, for the last block none is needed.
        data: images and labels.
        progress: whether to show a progress bar.
        check: see `run_over`; by default, that of the labels.

    Returns:
        A dict of arrays: the metrics of `readout` and the `confidence`, `(images, blocks)`, of
        outputs per position means over the positions that count; and of what `run_over` adds.
    """
    check_readouts("readouts", readouts, chain)
    return run_over(
        chain,
        "trained read-outs",
        functools.partial(_batch_values, chain, readouts),
        data,
        progress,
        check=check or label_check(chain),
        with_losses=False,
        key=(readouts,),
    )


def _batch_values(chain, readouts, images, labels):
    chain = chain.with_context(images)
    states, last = states_of(chain, images)
    final, kind = chain.head(last), chain.outputs
    is_counted = labels_of(chain, labels, final, *logits_of(kind, final)).counted
    of_network = prediction_scores(kind, labels, final)["predicted"]
    positions = final.shape[1] if len(final.shape) == 3 and chain.outputs_at_positions else None
    rank, rows = is_counted.shape.rank, []

    def scores_of(outputs):
        scores = prediction_scores(kind, labels, outputs)
        agrees = tf.reduce_all(scores["predicted"] == of_network, axis=-1) & scores["is_finite"]
        return {
            "error": scores["wrong"],
            "cross_entropy": scores["cross_entropy"],
            "entropy": scores["entropy"],
            "agreement": agrees,
        }

    for block in chain.blocks:
        place = block.stage, block.index
        state, is_read = states[place], place in readouts.places
        row = dict.fromkeys((*METRICS, *map(of_control, OF_OUTPUTS), CONFIDENCE), float("nan"))
        if state is last or is_read:
            outputs = final if state is last else read(chain, readouts, place, state, final)
            row |= scores_of(outputs) | {CONFIDENCE: confidence(kind, outputs)}
            end = states[block.stage, len(chain.stages[block.stage - 1].blocks) - 1]
            if end.shape[1:] == state.shape[1:]:
                row["distance"] = distance_between(chain, end, state, positions)
        if is_read:
            of_controls = scores_of(read(chain, readouts, place, state, final, control=True))
            row |= {of_control(name): value for name, value in of_controls.items()}
        rows.append(row)

    def table(name):
        """Returns the values of all blocks, over the positions that count; some are of images."""
        columns = [tf.cast(row[name], tf.float32) for row in rows]
        columns = [one[:, tf.newaxis] if 0 < one.shape.rank < rank else one for one in columns]
        columns = [tf.broadcast_to(one, tf.shape(is_counted)) for one in columns]
        return over_positions(tf.stack(columns, axis=-1), is_counted)

    return {name: table(name) for name in rows[0]} | {COUNTED: is_counted}
