"""The entry of `tfresidual.probes.drop_blocks`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import INFERENCE, LINES, Entry, Figure, needs_classes


def run(chain, data, options, progress):
    """Measures the network without each of its blocks."""
    return {
        "drop_blocks": probes.drop_blocks(
            chain, data, memory_limit=options.memory_limit, progress=progress
        )
    }


ENTRY = Entry(
    name="drop_blocks",
    run=run,
    is_possible=needs_classes,
    measured_by="convergence_indices",
    figures=(
        Figure(
            name="drop_blocks",
            frames=("drop_blocks",),
            column="error",
            draw=lambda frame, epsilon: plots.drop_blocks(frame),
            title="Which blocks are needed?",
            question="The accuracy of the network without each of its blocks.",
            reading=(
                "The closer a point is to the dotted line of the whole network, the less the "
                "block is needed. Blocks that change the shape of the state cannot be dropped."
            ),
            source=f"{INFERENCE}, figures 3 and 12",
        ),
        Figure(
            name="drop_blocks_by_epoch",
            frames=("drop_blocks_by_epoch",),
            column="error",
            draw=lambda frame, epsilon: plots.drop_blocks(frame),
            title="Dropped blocks over training",
            question="The accuracy without one block, epoch by epoch.",
            reading=(
                f"{LINES} The dotted line is the whole network. The further a line falls below "
                "it, the more the block is needed."
            ),
            source=f"{INFERENCE}, figure 3",
        ),
    ),
)
