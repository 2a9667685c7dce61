"""The entry of `tfresidual.probes.readout`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import INFERENCE, LINES, Entry, Figure, needs_classes


def run(chain, data, options, progress):
    """Measures the network when every stage is left after each of its blocks."""
    return {
        "readout": probes.readout(chain, data, memory_limit=options.memory_limit, progress=progress)
    }


ENTRY = Entry(
    name="readout",
    run=run,
    is_possible=needs_classes,
    measured_by="convergence_indices",
    figures=(
        Figure(
            name="readout",
            frames=("readout",),
            column="error",
            draw=lambda frame, epsilon: plots.readout(frame),
            title="Reading out early",
            question=(
                "The accuracy of the network when a stage is left after each of its blocks and "
                "the next stage, or the classifier, follows immediately."
            ),
            reading=(
                "A stage whose line rises in small steps comes closer to its result with every "
                "block; one whose line stays low until the last block builds something that can "
                "be read out only then."
            ),
            source=f"{INFERENCE}, figure 5, at the end of training",
        ),
        Figure(
            name="readout_by_epoch",
            frames=("block_metrics_by_epoch",),
            column="error",
            draw=lambda frame, epsilon: plots.readout(frame),
            title="Reading out over training",
            question=(
                "The accuracy on validation images when a stage is left after each of its blocks, "
                "epoch by epoch."
            ),
            reading=(
                f"{LINES} If the lines are one above the other in this order, each further block "
                "comes closer to the answer."
            ),
            source=f"{INFERENCE}, figure 5, and the same for the earlier stages",
            select=lambda frame: frame.rename(columns={"readout_error": "error"}),
        ),
    ),
)
