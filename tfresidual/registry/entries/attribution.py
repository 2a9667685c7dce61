"""The entry of `tfresidual.probes.attribution`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import Entry, Figure, needs_classes


def run(chain, data, options, progress):
    """Measures what every block adds to the logit of the label."""
    return {"attribution": probes.attribution(chain, data, progress=progress)}


ENTRY = Entry(
    name="attribution",
    run=run,
    is_possible=needs_classes,
    figures=(
        Figure(
            name="attribution",
            frames=("attribution",),
            column="attribution",
            draw=lambda frame, epsilon: plots.attribution(frame),
            title="Which blocks make the logit of the label?",
            question=(
                "The scalar product of what each block adds with the gradient of the label's logit "
                "at the last state, for the blocks that reach it through identity shortcuts."
            ),
            reading=(
                "Above zero, a part raises the logit. The first part is that of all blocks before "
                "those shown. The last one, of the head, is what is left, so that the parts add up "
                "to the logit by definition: biases, and how far the head is from being linear. It "
                "is nearly the whole logit if the head begins with layer or RMS normalization, "
                "whose divisor changes with the state."
            ),
        ),
    ),
)
