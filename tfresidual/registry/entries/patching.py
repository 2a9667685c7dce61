"""The entry of `tfresidual.probes.patching`."""

from tfresidual import plots, probes
from tfresidual.probes.patching import ADDITION
from tfresidual.registry.entry import Entry, Figure, needs_classes


def run(chain, data, options, progress):
    """Measures what the addition of another image's block does, with images paired by label."""
    # A whole state brings all that follows with it, in every network without a context.
    return {"patching": probes.patching(chain, data, what=ADDITION, progress=progress)}


ENTRY = Entry(
    name="patching",
    run=run,
    is_possible=needs_classes,
    # As many passes as there are blocks.
    by_default=False,
    figures=(
        Figure(
            name="patching",
            frames=("patching",),
            column="effect",
            draw=lambda frame, epsilon: plots.patching(frame),
            title="Where do the runs on two images differ?",
            question=(
                "What a block adds is replaced by what it adds for another image, the next one of "
                "the batch with another label; the change of the label's logit, as a share of the "
                "difference between the runs on both images."
            ),
            reading=(
                "At 0, it makes no difference for which image the block adds; at 1, the logit is "
                "that of the other image. The effects of the blocks need not add up to 1."
            ),
        ),
    ),
)
