"""The entry of `tfresidual.probes.signal_propagation`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import Entry, Figure, Study


def run(chain, data, options, progress):
    """Measures states and gradients along the network, and what the shortcuts carry."""
    return {"signal_propagation": probes.signal_propagation(chain, data, progress=progress)}


ENTRY = Entry(
    name="signal_propagation",
    run=run,
    studies=(Study(splits=("test",)),),
    figures=(
        Figure(
            name="signal_propagation",
            frames=("signal_propagation",),
            column="state_norm",
            draw=lambda frame, epsilon: plots.signal_propagation(frame),
            title="Do states and gradients grow?",
            question=(
                "The norms of the state and of the loss gradient after every block, and the share "
                "of the gradient that arrives from the end of the stage through the shortcuts "
                "alone."
            ),
            reading=(
                "Norms that change by orders of magnitude along the network indicate exploding "
                "or vanishing states and gradients. A share of 1 means that the branches add "
                "nothing along the gradient."
            ),
            source="He et al. 2016, equations 5 and 8",
        ),
    ),
)
