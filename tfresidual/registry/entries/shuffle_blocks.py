"""The entry of `tfresidual.probes.shuffle_blocks`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import VEIT, Entry, Figure, Study, needs_classes
from tfresidual.routing.routes import movable_runs


def run(chain, data, options, progress):
    """Measures the network with the blocks of every stage in other orders."""
    frame = probes.shuffle_blocks(
        chain, data, seed=options.seed, memory_limit=options.memory_limit, progress=progress
    )
    return {"shuffle_blocks": frame}


ENTRY = Entry(
    name="shuffle_blocks",
    run=run,
    is_possible=lambda chain: needs_classes(chain) and any(map(movable_runs, chain.stages)),
    studies=(Study(splits=("test",)),),
    figures=(
        Figure(
            name="shuffle_blocks",
            frames=("shuffle_blocks",),
            column="error",
            draw=lambda frame, epsilon: plots.shuffle_blocks(frame),
            title="Does the order matter?",
            question=(
                "The error when blocks of a stage change places, over how much of their order is "
                "preserved."
            ),
            reading="If the error hardly rises, the order of the blocks matters little.",
            source=f"{VEIT}, on reordering",
        ),
    ),
)
