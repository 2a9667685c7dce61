"""What a pruned network learns best from: labels, outputs or states of the whole network.

    python experiments/distillation.py --size smoke
    python experiments/distillation.py --size small --data-dir ~/tensorflow_datasets
    python experiments/distillation.py --kept

Blocks are taken out of a ResNet-14, and layers out of an encoder of keras-hub that reads patches,
those without which the cross-entropy is lowest. Batch normalization gets the statistics of its
images anew. Then the network is trained for the same steps with the labels alone ("fine-tuned"),
with the predictions of the whole network beside them ("outputs"), or with its states ("states");
all three begin with the same weights and see the same batches. Controls: the whole network, and the
smaller one without a training ("statistics" for the ResNet, "removed" for the encoder, which has no
batch normalization). Sizes: `smoke` shows that it works, with Digitclutter; `small` is a part of
MNIST, for two cores. A network that is measured is not measured again; `--kept` shows the frame
that the repository keeps.
"""

import dataclasses
from pathlib import Path

# Before Keras: it sets how much TensorFlow prints.
import what_states_know as other  # isort: skip

import keras
import keras_hub
import pandas as pd
from drawing import show

from tfresidual import surgery, training
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import Settings
from tfresidual.surgery.pruning import TUNED

KEPT = Path(__file__).parent / "frames" / "distillation"
RESNET, TRANSFORMER, DEPTH = "ResNet-14", "encoder of keras-hub", 14
# Of 6 blocks, 2 of which change the shape of the state, and of 4 layers.
GONE = {RESNET: 2, TRANSFORMER: 2}
LEARNS_FROM = {TUNED: None, "outputs": "outputs", "states": "states"}
RATE, EPOCHS = 1e-3, 2
COLUMNS = ("error", "error_rise", "over_fine_tuned")
SIZES = {
    "smoke": other.Size(
        Settings(depth=20, width=4, epochs=1, train_size=128, validation=64, test_size=64),
        *(4, 8, 1, 0, 2),
    ),
    "small": other.Size(
        Settings(
            data="mnist",
            depth=20,
            width=8,
            epochs=3,
            batch_size=64,
            train_size=4_000,
            validation=2_000,
            test_size=5_000,
        ),
        *(4, 32, 6, 0, 3),
    ),
}


def built(network, size, settings, data):
    """Returns a compiled network, the number of its epochs and the name of its metric."""
    if network == RESNET:
        settings = dataclasses.replace(settings, depth=DEPTH)
        return other.built(other.RESNET, size, settings, data)
    # Its loss is that of the encoder, too.
    model, _, metric = other.built(other.RESNET, size, settings, data)
    options = {"num_heads": 4, "dropout": 0.0, "normalize_first": True}
    inputs = keras.Input(model.input_shape[1:])
    state = keras.layers.Conv2D(size.width, 4, 4)(inputs)
    state = keras.layers.Reshape((-1, size.width))(state)
    state += keras_hub.layers.PositionEmbedding(state.shape[1])(state)
    for _ in range(size.layers):
        state = keras_hub.layers.TransformerEncoder(4 * size.width, **options)(state)
    state = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(state))
    outputs = keras.layers.Dense(10, model.layers[-1].activation)(state)
    found, loss = keras.Model(inputs, outputs), model.loss
    metrics = [training.ExactMatch() if metric == "exact_match" else metric]
    found.compile(keras.optimizers.AdamW(2e-3, clipnorm=1.0), loss, metrics=metrics)
    return found, size.epochs, metric


def measured(network, size, seed, out, data_dir):
    """Trains a network, and returns what is left of it in every way, a frame by name."""
    settings = dataclasses.replace(size.settings, seed=seed, data_dir=data_dir)
    train, validation, _ = prepare(settings)
    model, epochs, metric = built(network, size, settings, train)
    model = training.train(
        model, train, validation, folder=out / "training", epochs=epochs, metric=metric
    ).network
    # Those of so short a training have not settled.
    surgery.update_statistics(model, (images for images, _ in prepare(settings)[0]))
    found = []
    for name, distil in LEARNS_FROM.items():
        # Anew, since the order of the images changes from one reading to the next.
        train, validation, test = prepare(settings)
        keras.utils.set_random_seed(seed)
        _, frame = surgery.prune(
            model,
            train,
            blocks=GONE[network],
            selection=validation,
            test=test,
            epochs=EPOCHS,
            optimizer=keras.optimizers.Adam(RATE),
            distil=distil,
            batch_sizes=(),
        )
        print(network, seed, name, frame["error"].tolist(), flush=True)
        # The last step of the plan, and what comes before the training, are the same in all.
        frame = frame.drop_duplicates("what", keep="last").replace({"what": {TUNED: name}})
        found.append(frame)
    frame = pd.concat(found).drop_duplicates("what")
    frame["over_fine_tuned"] = frame["error"] - frame.set_index("what")["error"][TUNED]
    names = ["what", "blocks_left", "parameters", "cross_entropy", *COLUMNS]
    return {"ways": frame[names].assign(network=network, seed=seed)}


def table(frame):
    """Returns means over the seeds with their standard errors, in percent but the last column."""
    groups = frame.groupby(["network", "what"], sort=False)[[*COLUMNS, "cross_entropy"]]
    means, errors = groups.mean(), groups.sem()
    factors = pd.Series({**dict.fromkeys(COLUMNS, 100), "cross_entropy": 1})
    forms = {**dict.fromkeys(COLUMNS, "{:.1f}"), "cross_entropy": "{:.3f}"}
    return pd.DataFrame(
        {
            name: [
                f"{form} ± {form}".format(factors[name] * mean, factors[name] * error)
                for mean, error in zip(means[name], errors[name], strict=True)
            ]
            for name, form in forms.items()
        },
        index=means.index,
    )


def main():
    networks = (RESNET, TRANSFORMER)
    frames, out = other.frames_of(__doc__, SIZES, KEPT.name, networks, measured, ("ways",))
    show([table(frames["ways"])], {}, out)


if __name__ == "__main__":
    main()
