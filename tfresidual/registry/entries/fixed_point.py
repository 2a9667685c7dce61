"""The entry of `tfresidual.probes.fixed_point`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import (
    CONVERGENCE,
    UNROLLED,
    Entry,
    Figure,
    Study,
    has_bounds,
    needs_repetition,
)


def run(chain, data, options, progress):
    """Measures where the state of every stage goes when its last block is applied repeatedly."""
    return {"fixed_point": probes.fixed_point(chain, data, times=options.times, progress=progress)}


ENTRY = Entry(
    name="fixed_point",
    run=run,
    is_possible=needs_repetition,
    studies=(Study(splits=("test",), changes={"times": UNROLLED}, when=has_bounds),),
    figures=(
        Figure(
            name="fixed_point",
            frames=("fixed_point",),
            column="change",
            draw=lambda frame, epsilon: plots.fixed_point(frame),
            title="Is there a fixed point?",
            question=(
                "How far the state moves with every further application of a stage's last block."
            ),
            reading=(
                "A contraction approaches a fixed point, with a straight falling line on the "
                "logarithmic axis. If the change levels off far above rounding, the state keeps "
                "moving."
            ),
            source=f"{CONVERGENCE}, section 4.2",
        ),
    ),
)
