"""What is the network's answer worth when blocks are skipped?

Both functions draw a frame of one time over the blocks of all stages in a row, a line per split,
and a frame of several epochs in a panel per stage (and split), a line per block from blue and thin
(lowest) to red and thick (highest). A block without a value leaves a gap.
"""

from tfresidual.plots import frames
from tfresidual.plots.blocks import draw_block_metric


def readout(frame):
    """Draw the accuracy after every block, with the rest of its stage skipped.

    The last block of a stage has the accuracy of the whole network.

    Args:
        frame: Readout frame with the columns `stage`, `block` and `error`, and `split` and
            `epoch` where they apply.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: where a column is missing or holds no finite number, or where several rows
            stand for the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figures 5
        and 17.
    """
    frames.require_columns(frame, ("stage", "block", "error"))
    return draw_block_metric(
        frame.assign(accuracy=1 - frames.numbers(frame, "error")),
        "accuracy",
        title="Early read-out",
        label="accuracy with the stage\nended after the block",
        share=True,
    )


def drop_blocks(frame):
    """Draw the accuracy of the network without one block, for every block.

    A dotted line per split marks the accuracy with no block dropped; over several epochs it runs
    along with the blocks.

    Args:
        frame: Dropped blocks frame with the columns `stage`, `block`, `error` and
            `unperturbed_error`, and `split` and `epoch` where they apply.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: where a column is missing or holds no finite number, or where several rows
            stand for the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figures 3
        and 12.
    """
    frames.require_columns(frame, ("stage", "block", "error", "unperturbed_error"))
    return draw_block_metric(
        frame.assign(
            accuracy=1 - frames.numbers(frame, "error"),
            unperturbed_accuracy=1 - frames.numbers(frame, "unperturbed_error"),
        ),
        "accuracy",
        title="Dropped block",
        label="accuracy without the block",
        share=True,
        reference=("unperturbed_accuracy", "no block dropped"),
    )
