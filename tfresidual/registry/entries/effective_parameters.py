"""The entry of `tfresidual.probes.effective_parameters`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import CONVERGENCE, Entry, Figure, Study


def run(chain, data, options, progress):
    """Measures how similar the blocks of each stage are; reads no images."""
    first_block = options.first_block or 0
    return {
        "effective_parameters": probes.effective_parameters(chain, first_block=first_block),
        "weight_deviations": probes.weight_deviations(chain, first_block=first_block),
    }


ENTRY = Entry(
    name="effective_parameters",
    run=run,
    studies=(Study(),),
    figures=(
        Figure(
            name="weight_deviations",
            frames=("weight_deviations",),
            column="deviation",
            draw=lambda frame, epsilon: plots.weight_deviations(frame),
            title="How different are the blocks?",
            question=(
                "The mean deviation of each block's weights from the mean block of its stage, in "
                "standard deviations of the stage's weights. Blocks that were left out of the "
                "coupling are left out here."
            ),
            reading=(
                "0 for blocks with equal weights, about 0.8 for many blocks with weights drawn "
                "independently from a normal distribution."
            ),
            source=f"{CONVERGENCE}, appendix C",
        ),
    ),
)
