"""The entry of `tfresidual.probes.first_order`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import INFERENCE, Entry, Figure, Study, needs_classes


def run(chain, data, options, progress):
    """Compares what every block does to the loss with what the gradient predicts."""
    frame = probes.first_order(chain, data, memory_limit=options.memory_limit, progress=progress)
    return {"first_order": frame}


ENTRY = Entry(
    name="first_order",
    run=run,
    is_possible=needs_classes,
    # Takes as long as dropping every block once more.
    studies=(Study(splits=("test",), images=512),),
    figures=(
        Figure(
            name="first_order",
            frames=("first_order",),
            column="loss_change",
            draw=lambda frame, epsilon: plots.first_order(frame),
            title="Does the gradient predict what a block does?",
            question=(
                "The loss of the network minus its loss without the block, and the scalar product "
                "of what the block adds with the gradient of the loss, at its input and at its "
                "output."
            ),
            reading=(
                "Below zero, the block lowers the loss. Where the lines lie on one another, the "
                "block acts like a step along the gradient; a rank correlation of 1 means that "
                "the product tells which images gain more. Both are expected of blocks that change "
                "the state little."
            ),
            source=f"{INFERENCE}, equations 2 to 4",
        ),
    ),
)
