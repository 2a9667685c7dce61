"""The entry of `tfresidual.probes.lens`."""

from tfresidual import plots, probes
from tfresidual.registry.entry import INFERENCE, Entry, Figure, Study, needs_classes


def run(chain, data, options, progress):
    """Measures what the head predicts from the state after every block."""
    return {"lens": probes.lens(chain, data, progress=progress)}


ENTRY = Entry(
    name="lens",
    run=run,
    is_possible=needs_classes,
    studies=(Study(splits=("test",)),),
    figures=(
        Figure(
            name="lens",
            frames=("lens",),
            column="cross_entropy",
            draw=lambda frame, epsilon: plots.lens(frame),
            title="What does the head predict after every block?",
            question=(
                "The head applied directly to the states that have the shape of the last one: the "
                "cross-entropy and the entropy of its prediction, its divergence to the final "
                "prediction, and the rank of the label."
            ),
            reading=(
                "Where the divergence reaches 0, the prediction is made. A rank of 1 means that "
                "the label has the highest output."
            ),
            source=f"{INFERENCE}, section 4.2, for the last stage",
        ),
    ),
)
