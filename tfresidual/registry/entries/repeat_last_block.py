"""The entry of `tfresidual.probes.repeat_last_block`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import (
    INFERENCE,
    UNROLLED,
    UNROLLED_SCALE,
    Entry,
    Figure,
    Study,
    needs_classes,
    needs_repetition,
)
from tfresidual.report import findings

TRAINED = ("split", "stage", "block", "cosine_loss", "l2_ratio")


def run(chain, data, options, progress):
    """Measures the repetition of every stage's last block, and what each application does.

    The trained blocks are measured on the same images, since the figures compare them.
    """
    frame = probes.repeat_last_block(
        chain,
        data,
        times=options.times,
        scale=options.scale,
        memory_limit=options.memory_limit,
        progress=progress,
    )
    blocks = probes.block_metrics(chain, data, progress=progress)
    drawn = [name for name in TRAINED if name in blocks]
    return {"repetition_metrics": frame, "trained_blocks": blocks[drawn]}


ENTRY = Entry(
    name="repeat_last_block",
    run=run,
    is_possible=lambda chain: needs_classes(chain) and needs_repetition(chain),
    studies=(
        # A few images suffice for the means over single applications, which need backward passes.
        Study(images=256, changes={"times": UNROLLED}),
        Study(
            images=256,
            changes={"times": UNROLLED, "scale": UNROLLED_SCALE},
            renamed={"repetition_metrics": "repetition_metrics_scaled"},
        ),
    ),
    figures=(
        Figure(
            name="repetition_metrics",
            frames=("repetition_metrics", "trained_blocks"),
            column="l2_ratio",
            draw=lambda frame, blocks, epsilon: plots.repetition_metrics(frame, blocks),
            title="Does a repeated block keep refining?",
            question=(
                "Cosine loss and l2 ratio of each block, and of the last application when the last "
                "block of a stage is applied again and again."
            ),
            reading=(
                "As long as the cosine is below zero, one more application lowers the loss to "
                "first order. The vertical line marks the last block as trained."
            ),
            source=f"{INFERENCE}, figure 20, left",
            finding=findings.of_repetition_metrics,
        ),
        Figure(
            name="repetition_metrics_scaled",
            frames=("repetition_metrics_scaled", "trained_blocks"),
            column="l2_ratio",
            draw=lambda frame, blocks, epsilon: plots.repetition_metrics(frame, blocks),
            title="And with a scaled branch?",
            question=(
                "The same with the branch of the extra applications multiplied by the number in "
                "the title of the figure."
            ),
            reading=(
                "Below 1, the extra steps are smaller. Compare with the figure above: after how "
                "many repetitions is the cosine no longer below zero?"
            ),
            source=f"{INFERENCE}, figure 20, right",
            finding=findings.of_scaled_repetition_metrics,
        ),
    ),
)
