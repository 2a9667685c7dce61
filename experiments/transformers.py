"""Attention and feed-forward blocks of a small language model and of a small vision transformer.

    python experiments/transformers.py --size smoke
    python experiments/transformers.py --size small

Both networks are built by keras-hub, whose layers hide their additions; `tfresidual.chain` opens
the layers, so that attention and feed-forward layers are blocks of their own. The language model
learns the next character of the reference of the Python language, a text that comes with Python
(`pydoc_data.topics`); the vision transformer learns Digitclutter, which is drawn. Nothing is
downloaded. Training resumes after a kill; what is measured goes to `frames`, drawn figures beside
it.
"""

import argparse
import dataclasses
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
from drawing import panels, show, write_frames

import tfresidual as tfr
from tfresidual import datasets, probes
from tfresidual.machine.first_step import traced_once


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained: numbers of layers, features, positions, examples and epochs."""

    layers: int
    width: int
    positions: int
    texts: int
    images: int
    epochs: int
    image_epochs: int
    probed: int


SIZES = {
    "smoke": Size(2, 16, 16, 256, 128, 1, 1, 64),
    "small": Size(6, 96, 64, 6_000, 12_000, 10, 10, 512),
}
HEADS = 4
LAST_CHARACTER = 127
# The title, the column and the unit of every figure.
FIGURES = {
    "lens": ("Cross-entropy of the head applied after every block", "cross_entropy", "nats"),
    "drops": ("Error without one block", "error", "error"),
    "cosine": ("Cosine between block output and loss gradient", "cosine_loss", "cosine"),
    "l2_ratio": ("Size of the block's output, |F| / |h|", "l2_ratio", "l2 ratio"),
}


def text(size):
    """Returns characters and the ones after them, `(texts, positions)` each, and a test split."""
    from pydoc_data import topics

    whole = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = np.minimum([ord(character) for character in whole], LAST_CHARACTER)
    count = len(characters) // (size.positions + 1)
    rows = characters[: count * (size.positions + 1)].reshape(count, -1).astype("int32")
    rows = np.random.default_rng(0).permutation(rows)
    test, train = rows[: size.probed], rows[size.probed :][: size.texts]
    padding = {"train": np.ones_like(train[:, 1:]), "test": np.ones_like(test[:, 1:])}
    return {
        name: ({"token_ids": part[:, :-1], "padding_mask": padding[name]}, part[:, 1:])
        for name, part in {"train": train, "test": test}.items()
    }


def language_model(size):
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=LAST_CHARACTER + 1,
        num_layers=size.layers,
        num_heads=HEADS,
        hidden_dim=size.width,
        intermediate_dim=4 * size.width,
        dropout=0.0,
        max_sequence_length=size.positions,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(
        keras.optimizers.AdamW(3e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def pictures(size):
    """Returns Digitclutter as arrays."""
    train, test = datasets.load(
        "digitclutter", batch_size=256, train_size=size.images, test_size=size.probed
    )
    parts = {"train": datasets.plain(train), "test": test}
    return {
        name: tuple(map(np.concatenate, zip(*part.as_numpy_iterator(), strict=True)))
        for name, part in parts.items()
    }


def vision_transformer(size):
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(32, 32, 1),
        patch_size=4,
        num_layers=size.layers,
        num_heads=HEADS,
        hidden_dim=size.width // 2,
        mlp_dim=2 * size.width,
    )
    model = keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=10, preprocessor=None, activation="sigmoid"
    )
    model.compile(
        keras.optimizers.AdamW(2e-3, clipnorm=1.0), "binary_crossentropy", metrics=["accuracy"]
    )
    return model


NETWORKS = {
    "language model": (text, language_model, "epochs"),
    "vision transformer": (pictures, vision_transformer, "image_epochs"),
}


def trained(folder, build, data, epochs):
    """Returns a trained network; the training resumes after its last complete epoch."""
    keras.utils.set_random_seed(0)
    model = build()
    weights = folder / "trained.weights.h5"
    if not weights.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with traced_once(model):
            model.fit(
                *data["train"],
                validation_data=data["test"],
                batch_size=64,
                epochs=epochs,
                verbose=2,
                callbacks=[
                    keras.callbacks.BackupAndRestore(folder / "backup"),
                    keras.callbacks.CSVLogger(folder / "log.csv", append=True),
                ],
            )
        model.save_weights(weights)
    model.load_weights(weights)
    return model


def measured(model, data):
    """Returns the frames of a network, by name, with the kind and the layer of every block."""
    inputs, labels = data["test"]
    chain = tfr.chain(model, inputs=inputs)
    print(chain)
    lens = probes.lens(chain, (inputs, labels))
    drops = probes.drop_blocks(chain, (inputs, labels))
    metrics = probes.block_metrics(chain, (inputs, labels))
    names = [block.name.rpartition("/") for block in chain.blocks]
    kinds = pd.DataFrame(
        {
            "stage": [block.stage for block in chain.blocks],
            "block": [block.index for block in chain.blocks],
            "kind": [name for _, _, name in names],
            "layer": np.arange(len(names)) // 2,
        }
    )
    frames = {"lens": lens, "drops": drops, "block_metrics": metrics}
    return {name: frame.merge(kinds, on=["stage", "block"]) for name, frame in frames.items()}


def drawn(frames):
    """Returns the figures, by name: a panel per network, a line per kind of block."""
    found = {}
    for name, (title, column, unit) in FIGURES.items():
        source = name if name in frames else "block_metrics"
        found[name] = panels(
            frames[source],
            "layer",
            column,
            title,
            panel="network",
            line="kind",
            share_y=False,
            zero=name == "cosine",
            log=name == "l2_ratio",
            percent=name == "drops",
            below="layer",
            beside=unit,
        )
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="smoke")
    parser.add_argument("--out", type=Path, default=Path("runs/transformers"))
    arguments = parser.parse_args()
    size, out = SIZES[arguments.size], arguments.out / arguments.size
    parts = {}
    for name, (load, build, epochs) in NETWORKS.items():
        data = load(size)
        folder = out / name.replace(" ", "_")
        model = trained(folder, lambda build=build: build(size), data, getattr(size, epochs))
        for frame_name, frame in measured(model, data).items():
            parts.setdefault(frame_name, []).append(frame.assign(network=name, seed=0))
    frames = {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}
    write_frames(frames, out / "frames")
    show([], drawn(frames), out)


if __name__ == "__main__":
    main()
