"""The entry of `tfresidual.probes.borderline`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import (
    INFERENCE,
    UNROLLED,
    UNROLLED_SCALE,
    Entry,
    Figure,
    Study,
    needs_classes,
)


def run(chain, data, options, progress):
    """Measures groups of images after the last blocks and as the last block is repeated."""
    frame = probes.borderline(
        chain,
        data,
        times=options.times,
        scale=options.scale,
        memory_limit=options.memory_limit,
        progress=progress,
    )
    return {"borderline": frame}


ENTRY = Entry(
    name="borderline",
    run=run,
    is_possible=needs_classes,
    studies=(Study(changes={"times": UNROLLED, "scale": UNROLLED_SCALE}),),
    figures=(
        Figure(
            name="borderline",
            frames=("borderline",),
            column="accuracy",
            draw=lambda frame, epsilon: plots.borderline(frame),
            title="Which images do the last blocks help?",
            question=(
                "Accuracy, cross-entropy and entropy after the last blocks, for images that are "
                "near the decision boundary at the first of them, for images that are classified "
                "correctly there, and for all images."
            ),
            reading=(
                "The first point determines the groups, so the accuracy of the correct images is "
                "1 there and can only fall. Check whether that of the borderline images rises."
            ),
            source=f"{INFERENCE}, figure 6",
            select=lambda frame: frame[frame["along"] == "blocks"],
        ),
        Figure(
            name="borderline_repeated",
            frames=("borderline",),
            column="accuracy",
            draw=lambda frame, epsilon: plots.borderline(frame, along="repetitions"),
            title="Which images does repeating the last block help?",
            question=(
                "The same over extra applications of the last block, whose branch is multiplied by "
                "the number in the title of the figure, if there is one."
            ),
            reading="The first point is the trained network, which determines the groups.",
            source=f"{INFERENCE}, figure 7",
            select=lambda frame: frame[frame["along"] == "repetitions"],
        ),
    ),
)
