"""The gallery, docs/gallery.md, from what the probes declare.

    python docs/hooks/gallery.py [FOLDER]

writes it; with the folder of a study, also the pictures, from its frames and, of what a study does
not measure, by the lines of the page. A test compares the page.
"""

import pathlib
import re
import sys

from tfresidual.definitions.declarations import GROUPS, ROUTES, Figure, Probe
from tfresidual.definitions.probes import PROBES

DOCS = pathlib.Path(__file__).parents[1]
PAGE, PICTURES = DOCS / "gallery.md", DOCS / "images" / "gallery"
HEAD = """# Gallery

What the probes ask that lead to a decision, what the figure looks like, the line that
draws it, and what follows. What each number means, and what it cannot tell, is on
[the page of metrics](concepts/metrics.md); all probes are in [the reference](reference/probes.md).
The lines go with most networks that predict classes, and the images that `model.evaluate` takes.
`lipschitz` needs branches with a bound, which is why the network here has `lipschitz=0.95`, and the
indices a network that is better than chance.

```python
import keras
import numpy as np

import tfresidual as tfr
from tfresidual import networks, plots, probes, training

# Four classes: the quarter of the image that is brighter.
random = np.random.default_rng(0)
labels = random.integers(0, 4, 1024)
images = random.normal(size=(1024, 16, 16, 1)).astype("float32")
for image, label in zip(images, labels):
    image[8 * (label // 2) :, 8 * (label % 2) :][:8, :8] += 1
net = networks.resnet(
    depth=14, input_shape=(16, 16, 1), classes=4, lipschitz=0.95
)
net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
net.fit(images, labels, epochs=3, verbose=0)
chain, test = tfr.chain(net), (images[:256], labels[:256])
# For leaving early: trained read-outs, and images to choose the threshold on.
train = (images[512:], labels[512:])
validation = (images[256:512], labels[256:512])
heads = training.fit_readouts(chain, train, kind="head", epochs=4)
# For heads of attention: two layers of it, over patches of 4 x 4 pixels.
inputs = keras.Input((16, 16, 1))
state = keras.layers.Conv2D(16, 4, 4)(inputs)
state = keras.layers.Reshape((16, 16))(state)
for _ in range(2):
    attention = keras.layers.MultiHeadAttention(4, 4)
    state = keras.layers.add([state, attention(state, state)])
outputs = keras.layers.Dense(4, "softmax")(keras.layers.Flatten()(state))
encoder = keras.Model(inputs, outputs)
encoder.compile("adam", "sparse_categorical_crossentropy")
encoder.fit(images, labels, epochs=3, verbose=0)
```

The pictures are of the network of `make study`, ten blocks in five stages; those of what
a study does not measure are of the network above.
"""
# What no study runs, since it needs what was trained for it.
OTHERS = (
    (
        Probe("early_exit", frames={}),
        Figure(
            name="early_exit",
            group=ROUTES,
            column="error",
            title="What does it save to stop once a read-out is sure?",
            question="The error if an image leaves after the first block whose trained read-out is "
            "sure of its prediction, over the mean arithmetic and the mean time of an image.",
            reading="From left to right, the threshold rises from 0 to that of the whole network. "
            "The dashed line is the control: as many images leave after every block, whichever "
            "they are. If the solid line is not below it, the confidence says nothing of the "
            "images. Read-outs that are passed cost time, too: near the right end, leaving early "
            "may take longer than the network.",
            decision="Where the solid line reaches the dotted one with less arithmetic and in less "
            "time, serve the network with the threshold in the row `chosen`: "
            "`tfr.export(net, path, exits=heads, threshold=...)`.",
        ),
    ),
)
# Where the frame is not that of the probe's own function.
CODE = {
    "round_blocks": "probes.round_blocks(chain, test, bits=(4, 3, 2))",
    "drop_heads": "probes.drop_heads(encoder, test)",
    "early_exit": "probes.early_exit(chain, heads, validation, test)",
    "computational_distance": "probes.computational_distance(chain, test)",
    "scaled_perturbation": "probes.block_metrics(chain, test), epsilon=0.1",
    "linear_probe": 'probes.linear_probe(chain, {"train": train, "test": test})',
    "patching": 'probes.patching(chain, test, what="addition")',
    "route_errors": "**probes.convergence_frames(chain, test)[0]",
    "weight_deviations": "probes.weight_deviations(chain)",
}


def shown():
    """Returns the probes and figures of the gallery, in its order."""
    found = [(probe, one) for probe in PROBES.values() for one in probe.figures if one.decision]
    return sorted([*found, *OTHERS], key=lambda pair: GROUPS.index(pair[1].group))


def pages():
    """Returns the text of the gallery as it is now, by its path."""
    parts, group = [HEAD], None
    for probe, figure in shown():
        if figure.group != group:
            group = figure.group
            parts.append(f"\n## {group}\n")
        parts.append(entry(probe, figure))
    return {PAGE: "".join(parts)}


def entry(probe, figure):
    """Returns the text of one figure."""
    lines = [
        f"\n### {figure.title}\n",
        figure.question,
        "",
        "```python",
        code(probe, figure),
        "```",
    ]
    if (PICTURES / f"{figure.name}.png").exists():
        lines += ["", f"![{figure.question}](images/gallery/{figure.name}.png)"]
    lines += ["", figure.reading, ""]
    column = probe.columns.get(figure.column)
    if column is not None:
        ends = {"Low": column.low, "High": column.high}
        lines += [f"- {end}: {text}." for end, text in ends.items() if text]
    return "\n".join([*lines, f"- **What follows**: {figure.decision}", ""])


def code(probe, figure):
    """Returns the line that measures and draws."""
    frame = f"probes.{probe.name}(chain, test)" if probe.reads else f"probes.{probe.name}(chain)"
    return f"plots.{figure.draw or figure.name}({CODE.get(figure.name, frame)})"


def draw(folder):
    """Draws the pictures from the frames of a study, the others by the lines of the page."""
    import pandas as pd

    from tfresidual.plots.declared import study_figures

    frames = {path.stem: pd.read_csv(path) for path in folder.glob("frames/*.csv")}
    figures = study_figures(frames, 0.1)
    save({figure.name: figures[figure.name] for _, figure in shown() if figure.name in figures})
    save(drawn_by_lines({figure.name for _, figure in shown()} - set(figures)))


def drawn_by_lines(names):
    """Returns figures that the lines of the page draw, by name."""
    scope = {}
    exec(re.search("```python\n(.*?)```", HEAD, re.DOTALL).group(1), scope)
    lines = {figure.name: code(probe, figure) for probe, figure in shown()}
    return {name: eval(lines[name], scope) for name in sorted(names)}


def save(figures):
    """Saves figures by name."""
    PICTURES.mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(PICTURES / f"{name}.png", dpi=90)


if __name__ == "__main__":
    if sys.argv[1:]:
        draw(pathlib.Path(sys.argv[1]))
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
