"""The entry of `tfresidual.probes.lipschitz`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import CONVERGENCE, Entry, Figure, Study, has_bounds


def run(chain, data, options, progress):
    """Reads the bounds of the blocks; reads no images."""
    return {"lipschitz": probes.lipschitz(chain, progress=progress)}


ENTRY = Entry(
    name="lipschitz",
    run=run,
    is_possible=has_bounds,
    studies=(Study(),),
    figures=(
        Figure(
            name="lipschitz_bounds",
            frames=("lipschitz",),
            column="estimate",
            draw=lambda frame, epsilon: plots.lipschitz_bounds(frame, mu=frame["lipschitz"].max()),
            title="What bounds the blocks?",
            question=(
                "Lower and upper bounds on the Lipschitz constant of every branch before it is "
                "divided, and the divisor."
            ),
            reading="Where the divisor is above 1, the bound takes effect.",
            source=f"{CONVERGENCE}, section 4.2",
            has_table=True,
        ),
    ),
)
