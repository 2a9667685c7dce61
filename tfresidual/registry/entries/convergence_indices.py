"""The entry of `tfresidual.probes.convergence_indices`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import CONVERGENCE, Entry, Figure, Study, needs_classes
from tfresidual.report import findings


def run(chain, data, options, progress):
    """Measures the indices and returns them with the three frames they are taken from."""
    frames, indices = probes.convergence_frames(
        chain,
        data,
        times=options.times,
        chance=options.chance,
        memory_limit=options.memory_limit,
        progress=progress,
        at_chance=options.at_chance,
    )
    return {"convergence_indices": indices, **frames}


def _chances(indices):
    """Returns the error of guessing by split; `None` if guessing never errs on some split."""
    if not (indices["chance"] > 0).all():
        return None
    if "split" not in indices:
        return float(indices["chance"].iloc[0])
    return indices.groupby("split")["chance"].first().to_dict()


ENTRY = Entry(
    name="convergence_indices",
    run=run,
    is_possible=needs_classes,
    studies=(Study(),),
    figures=(
        Figure(
            name="route_errors",
            frames=("readout", "drop_blocks", "repeat_last_block", "convergence_indices"),
            column="error",
            draw=lambda read, drop, repeat, indices, epsilon: plots.route_errors(
                read, drop, repeat, chance=_chances(indices)
            ),
            title="Read out early, drop, repeat",
            question=(
                "The error when a stage is left early, when one of its blocks is dropped, and "
                "when its last block is applied again and again."
            ),
            reading=(
                "An iterative method would come closer to the answer with every block, would "
                "hardly depend on which block is dropped, and would stay where it is when its "
                "last step is repeated."
            ),
            source=f"{CONVERGENCE}, figure 2a",
        ),
        Figure(
            name="convergence_indices",
            frames=("convergence_indices",),
            column="convergence_index",
            draw=lambda frame, epsilon: plots.convergence_indices(frame),
            title="Convergence, recurrence, divergence",
            question=(
                "The three curves above, each as one number per stage: on the labels, and on "
                "agreement with the predictions of the whole network."
            ),
            reading=(
                "Convergence is 1 when the first block already gives the final error; recurrence "
                "is 1 when it does not matter which block is dropped; divergence is 0 when "
                "repetition does no harm and 1 when it leads to chance at once."
            ),
            source=f"{CONVERGENCE}, figures 2b and 6a",
            has_table=True,
            finding=findings.of_indices,
        ),
        Figure(
            name="convergence_curves",
            frames=("readout", "repeat_last_block"),
            column="cross_entropy",
            draw=lambda read, repeat, epsilon: plots.convergence_curves(read, repeat),
            title="On the way to the last state, and past it",
            question=(
                "The cross-entropy, and the distance between the state that leaves a stage and "
                "the one that leaves it in the whole network, over the number of blocks applied "
                "and the repetitions of the last block."
            ),
            reading=(
                "By definition, the distance is 0 at the trained number of blocks. If it then "
                "rises as fast as it fell, the state moves past its final value; if it stays "
                "near 0, the state has converged."
            ),
            source=f"{CONVERGENCE}, figures 6b and 6c",
        ),
    ),
)
