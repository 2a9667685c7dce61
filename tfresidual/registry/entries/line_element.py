"""The entry of `tfresidual.probes.line_element`, and of the path lengths that it adds up to."""

from tfresidual import plots, probes
from tfresidual.registry.entry import HAUSER, Entry, Figure


def run(chain, data, options, progress):
    """Measures the line element of every block, and the length of the path through every stage."""
    elements = probes.line_element(chain, data, progress=progress)
    # The lengths are sums of those just measured.
    return {"line_element": elements, "path_lengths": probes.path_lengths_of(elements)}


ENTRY = Entry(
    name="line_element",
    run=run,
    # A pass through the network for every block.
    by_default=False,
    figures=(
        Figure(
            name="line_element",
            frames=("line_element",),
            column="length",
            draw=lambda frame, epsilon: plots.line_element(frame),
            title="How long is the path by the line element?",
            question=(
                "The length of what each block adds to the state, across the layers and by the "
                "metric of the last state, and the two squares of which the square of that length "
                "is the sum."
            ),
            reading=(
                "The lengths of a stage add up to its path length. Where the second part is the "
                "larger one, the rest of the network lengthens the step."
            ),
            source=f"{HAUSER}, equations 3, 4 and 12",
        ),
    ),
)
