"""What callbacks and probes do with every kind of model and data that `fit` takes.

    PYTHONPATH=tests python -m reference.what_fit_takes

measures every cell and writes what_fit_takes.csv beside this file, and docs/what_fit_takes.md. With
names of rows as arguments, only those are measured anew.

Every cell is a training of a tiny network. The truth comes from the layers of the trained model,
called one by one under a gradient tape; nothing of the package takes part in it.
"""

import csv
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfresidual as tfr
from tfresidual import callbacks, probes

TABLE = pathlib.Path(__file__).with_suffix(".csv")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "what_fit_takes.md"
WORKS = "works"
# What comes before a note on the numbers, and parts of such notes.
AND_NOTES, NOTED = f"{WORKS}, and notes: ", ("the loss of the probes is", "when `fit` ends")
BLOCKS, IMAGES, BATCH, FEATURES, CLASSES = 2, 12, 4, 4, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(IMAGES, FEATURES)).astype("float32")
Y = RNG.integers(0, CLASSES, IMAGES)
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5] * (IMAGES // 4), "float32")
# A power of two, so that gradients in half precision do not vanish.
SCALE = 1024.0
LOSS = "sparse_categorical_crossentropy"
BLOCK_KEYS = ("cosine_loss", "l2_ratio", "gradient_norm")


# Networks


def parts(activation="tanh", norm=False, **dense):
    """The layers of a network, by role: stem, branches (lists of layers), head."""
    branches = []
    for block in range(BLOCKS):
        branch = [layers.Dense(FEATURES, activation, name=f"branch{block}", **dense)]
        if norm:
            branch.insert(0, layers.BatchNormalization(name=f"branch{block}_norm"))
        branches.append(branch)
    stem = layers.Dense(FEATURES, name="stem", dtype=dense.get("dtype"))
    return stem, branches, layers.Dense(CLASSES, "softmax", name="head", dtype="float32")


def functional(kind=keras.Model, inputs=None, pooled=False, outputs=None, **options):
    stem, branches, head = parts(**options)
    inputs = keras.Input((FEATURES,)) if inputs is None else inputs
    state = stem(layers.Add(name="both")(inputs) if isinstance(inputs, list) else inputs)
    for branch in branches:
        value = state
        for layer in branch:
            value = layer(value)
        state = layers.Add(dtype=options.get("dtype"))([state, value])
    if pooled:
        state = layers.GlobalAveragePooling1D(name="pool")(state)
    output = head(state)
    return kind(inputs, output if outputs is None else outputs(state, output))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.stem, branches, self.head = parts()
        self.branches = [branch for (branch,) in branches]

    def call(self, inputs):
        state = self.stem(inputs)
        for branch in self.branches:
            state = state + branch(state)
        return self.head(state)


class OwnStep(keras.Model):
    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(images, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        del x, sample_weight, training
        return 3 * keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred))


def compiled(model, optimizer="sgd", loss=LOSS, **options):
    model.compile(optimizer, loss, **options)
    return model


# The truth


def walk(model, images, training, seen, left_out=None):
    """Calls the layers of a network one by one; returns its output.

    `seen` gets every state, and what the block before it adds.
    """

    def call(layer, value):
        takes = isinstance(layer, layers.BatchNormalization)
        return layer(value, training=training) if takes else layer(value)

    names = {layer.name: layer for layer in model._flatten_layers(include_self=False)}
    if isinstance(images, (list, tuple)):
        images = images[0] + images[1]
    elif isinstance(images, dict):
        (images,) = images.values()
    state = seen(call(names["stem"], tf.convert_to_tensor(images)))
    for block in range(BLOCKS):
        value = state
        for name in (f"branch{block}_norm", f"branch{block}"):
            if name in names:
                value = call(names[name], value)
        value = tf.cast(value, state.dtype)
        state = seen(state if block == left_out else state + value, value)
    if "pool" in names:
        state = call(names["pool"], state)
    return call(names["head"], state)


def cross_entropies(labels, outputs):
    """Those of all images, and that from which gradients are taken."""
    return -tf.math.log(tf.gather(outputs, labels, batch_dims=1))


def gradients_of(case, images, labels, training):
    """Returns states, what was added before each, and gradients; eager float8 has none."""
    states, changes = [], []

    def seen(state, change=None):
        tape.watch(state)
        states.append(state)
        changes.append(state if change is None else change)
        return state

    with tf.GradientTape() as tape:
        outputs = walk(case.model, images, training, seen)
        loss = tf.reduce_sum(cross_entropies(labels, outputs))
        if training and case.activity:
            # Training minimizes it, too.
            loss += case.activity * tf.reduce_sum(tf.square(changes[1:]))
        loss *= SCALE
    return states, changes, tape.gradient(loss, states)


def truth(case, batches, training=False):
    """Returns the means over the images of all batches, by name of metric and block, from 0."""
    per_image, weights = [], []
    gradients_in = tf.function(lambda x, y: gradients_of(case, x, y, training))
    for images, labels, weight in batches:
        labels = np.asarray(labels)
        states, _, gradients = gradients_in(images, labels)
        rows = {}
        for block in range(BLOCKS):
            before, after, gradient = (
                np.asarray(tf.cast(tensor, tf.float64)).reshape(len(labels), -1)
                for tensor in (states[block], states[block + 1], gradients[block])
            )
            gradient, change = gradient / SCALE, after - before
            sizes = [np.sqrt((v**2).sum(1)) for v in (before, change, gradient)]
            cosine = (change * gradient).sum(1) / (sizes[1] * sizes[2])
            rows |= {("cosine_loss", block): cosine, ("l2_ratio", block): sizes[1] / sizes[0]}
            rows |= {("gradient_norm", block): sizes[2], ("perturbation", block): sizes[1]}
            without = walk(case.model, images, False, lambda state, change=None: state, block)
            rows["drop_cross_entropy", block] = cross_entropies(labels, without).numpy()
        per_image.append(rows)
        weights.append(np.ones(len(labels)) if weight is None else np.asarray(weight))
    weights = np.concatenate(weights)
    return {
        key: np.average(np.concatenate([rows[key] for rows in per_image]), weights=weights)
        for key in per_image[0]
    }


# Trainings


@dataclasses.dataclass
class Case:
    """A model and how it is trained.

    Attributes:
        model: the compiled model; after `fit`, the one that was trained.
        x: what `fit` gets first; `arguments` are its other arguments.
        data: function that returns the data for the callbacks.
        batches: list of batches `(images, labels, weights or None)`, the same data.
        steps: the batches of an epoch of training, in order.
        options: arguments of `tfresidual.chain`, or of `use_blocks`.
        activity: factor of the activity regularizer of the blocks.
        tolerance: the largest relative difference that rounding explains.
        run: function from the case and callbacks to a `History`, by default `model.fit`.
    """

    model: keras.Model
    x: object = None
    arguments: dict = dataclasses.field(default_factory=dict)
    data: object = lambda: (X, Y)
    batches: list = dataclasses.field(default_factory=lambda: batches_of(IMAGES))
    steps: list = dataclasses.field(default_factory=lambda: batches_of(BATCH))
    options: dict = dataclasses.field(default_factory=dict)
    activity: float = 0.0
    tolerance: float = 1e-3
    run: object = None

    def fit(self, made):
        if self.options:
            callbacks.use_blocks(self.model, **self.options)
        if self.run is not None:
            return self.run(self, made)
        return self.fit_once(made)

    def fit_once(self, made, **more):
        given = {"verbose": 0, "shuffle": False, "callbacks": made, **self.arguments, **more}
        if self.x is None:
            return self.model.fit(X, Y, **{"batch_size": BATCH, **given})
        return self.model.fit(self.x, **given)


def batches_of(size, weights=None):
    places = [slice(start, start + size) for start in range(0, IMAGES, size)]
    return [(X[p], Y[p], None if weights is None else weights[p]) for p in places]


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays or (X, Y)).batch(BATCH)


def generator():
    for images, labels, _ in batches_of(BATCH):
        yield images, labels


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return IMAGES // BATCH

    def __getitem__(self, place):
        images, labels, _ = batches_of(BATCH)[place]
        return images, labels


def lora():
    model = compiled(functional())
    for block in range(BLOCKS):
        model.get_layer(f"branch{block}").enable_lora(2)
    return compiled(model)


def quantized(mode, tolerance=0.01):
    model = functional()
    for block in range(BLOCKS):
        model.get_layer(f"branch{block}").quantize(mode)
    return Case(compiled(model), tolerance=tolerance)


def mixed(policy, tolerance):
    case = Case(compiled(functional(dtype=policy)), tolerance=tolerance)
    if policy == "mixed_float16":
        compiled(case.model, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)))
    return case


def several_outputs():
    def outputs(state, output):
        return [output, layers.Dense(1, name="other")(state)]

    model = functional(outputs=outputs)
    labels = Y, np.zeros((IMAGES, 1), "float32")
    return Case(
        compiled(model, loss=[LOSS, "mse"]),
        x=dataset(X, labels),
        data=lambda: dataset(X, labels),
        options={"output": "head"},
    )


def several_inputs():
    inputs = [keras.Input((FEATURES,)), keras.Input((FEATURES,))]
    whole = [((x, x), y, w) for x, y, w in batches_of(IMAGES)]
    steps = [((x, x), y, w) for x, y, w in batches_of(BATCH)]
    data = tf.data.Dataset.from_tensor_slices(((X, X), Y)).batch(BATCH)
    return Case(compiled(functional(inputs=inputs)), data, {}, lambda: data, whole, steps)


def dict_input():
    model = compiled(functional(inputs={"image": keras.Input((FEATURES,), name="image")}))
    return model


def bucketed():
    images = [RNG.normal(size=(BATCH, length, FEATURES)).astype("float32") for length in (3, 5)]
    batches = [(x, Y[:BATCH], None) for x in images]

    def data():
        signature = tf.TensorSpec((None, None, FEATURES)), tf.TensorSpec((None,), tf.int64)
        return tf.data.Dataset.from_generator(
            lambda: ((x, y) for x, y, _ in batches), output_signature=signature
        )

    model = compiled(functional(inputs=keras.Input((None, FEATURES)), pooled=True))
    return Case(model, data(), {}, data, batches, batches)


def unknown_length():
    def data():
        return dataset().filter(lambda images, labels: True)

    return Case(compiled(functional()), data(), {}, data)


def weighted(how):
    case = Case(compiled(functional()))
    if how == "class_weight":
        case.arguments = {"class_weight": {0: 0.5, 1: 1.0, 2: 2.0}}
        # Data for probes has weights of its own, or none.
        case.steps = batches_of(BATCH, np.array([0.5, 1.0, 2.0])[Y])
        return case
    case.x = dataset(X, Y, WEIGHTS)
    case.data = lambda: (X, Y, WEIGHTS)
    case.batches, case.steps = batches_of(IMAGES, WEIGHTS), batches_of(BATCH, WEIGHTS)
    return case


def twice(case, made):
    case.fit_once(made)
    return case.fit_once(made)


def continued(case, made):
    case.fit_once(made)
    return case.fit_once(made, initial_epoch=1, epochs=2)


def restored(case, made):
    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 2):
            case.model = compiled(functional())
            backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
            history = case.fit_once([*made, backup], epochs=epochs)
    return history


def mirrored():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return Case(compiled(functional()))


def frozen_rate(case):
    """Several steps are one execution, so that nobody sees the weights between them."""
    case.model.optimizer.learning_rate = 0.0
    return case


def plain(**options):
    return Case(compiled(functional(), **options))


# The rows, by group and name: functions that return a `Case`.
ROWS = {
    "Models": {
        "functional": plain,
        "subclassed": lambda: Case(compiled(Subclassed()), options={"inputs": X}),
        "batch normalization": lambda: Case(compiled(functional(norm=True))),
        "a custom gradient (silu)": lambda: Case(compiled(functional(activation="silu"))),
        "several inputs": several_inputs,
        "several outputs": several_outputs,
        "a `train_step` of its own": lambda: Case(compiled(functional(OwnStep))),
        "a `compute_loss` of its own": lambda: Case(compiled(functional(OwnLoss))),
        "activity regularizers": lambda: Case(
            compiled(functional(activity_regularizer=keras.regularizers.L2(0.1))), activity=0.1
        ),
        "LoRA": lambda: Case(lora()),
        "int8": lambda: quantized("int8"),
        "int4": lambda: quantized("int4"),
        "float8": lambda: quantized("float8"),
        "mixed_bfloat16": lambda: mixed("mixed_bfloat16", 0.05),
        "mixed_float16, loss scaling": lambda: mixed("mixed_float16", 0.02),
    },
    "Data": {
        "arrays": plain,
        "`tf.data`": lambda: Case(compiled(functional()), dataset(), {}, dataset),
        "a Python generator of batches": lambda: Case(
            compiled(functional()), generator(), {}, generator
        ),
        "a `PyDataset`": lambda: Case(compiled(functional()), Sequence(), {}, Sequence),
        "unknown length": unknown_length,
        "lengths in buckets": bucketed,
        "weights of images": lambda: weighted("sample_weight"),
        "`class_weight`": lambda: weighted("class_weight"),
    },
    "Training": {
        "eager": lambda: plain(run_eagerly=True),
        "XLA": lambda: plain(jit_compile=True),
        "`steps_per_execution`": lambda: frozen_rate(plain(steps_per_execution=3)),
        "gradient accumulation": lambda: plain(
            optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        ),
        "a moving average of weights": lambda: plain(
            optimizer=keras.optimizers.SGD(0.1, use_ema=True)
        ),
        "a strategy": mirrored,
        "fitted twice": lambda: Case(compiled(functional()), run=twice),
        "`initial_epoch`": lambda: Case(compiled(functional()), run=continued),
        "resumed by `BackupAndRestore`": lambda: Case(compiled(functional()), run=restored),
    },
}


# The columns


class Weights(keras.callbacks.Callback):
    """Keeps the weights before every step of the last epoch, and at its end."""

    def on_epoch_begin(self, epoch, logs=None):
        self.before_steps = []

    def on_train_batch_begin(self, batch, logs=None):
        self.before_steps.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        # An optimizer may replace them when training ends.
        self.at_end = self.model.get_weights()


def in_callbacks(case):
    weights = Weights()
    made = [callbacks.BlockMetrics, callbacks.Perturbation, callbacks.DropBlocks]
    logs = last(case.fit([*(kind(case.data()) for kind in made), weights]))
    case.model.set_weights(weights.at_end)
    return compared(logs, truth(case, case.batches), case)


def in_steps(case):
    weights = Weights()
    logs = last(case.fit([callbacks.StepMetrics(images=BATCH), weights]))
    measured = []
    for place, batch in enumerate(case.steps):
        before = weights.before_steps
        case.model.set_weights(before[min(place, len(before) - 1)])
        measured.append(truth(case, [batch], training=True))
    names = (*BLOCK_KEYS, "perturbation")
    shares = [len(y) if weight is None else np.sum(weight) for _, y, weight in case.steps]
    expected = {
        key: np.average([means[key] for means in measured], weights=shares)
        for key in measured[0]
        if key[0] in names
    }
    return compared({k.removeprefix("step/"): v for k, v in logs.items()}, expected, case)


def exported(case):
    with tempfile.TemporaryDirectory() as folder:
        weights, declared = Weights(), getattr(case.model, "inputs", None)
        is_open = bool(declared) and None in declared[0].shape[1:]
        inputs = case.batches[-1][0] if is_open else None
        history = case.fit([callbacks.ExportForProbing(folder, inputs=inputs), weights])
        case.model.set_weights(weights.at_end)
        path = pathlib.Path(folder, f"epoch{history.epoch[-1] + 1:04}")
        return by_hand_of(case, tfr.chain(path))


def by_hand(case):
    case.fit([])
    return by_hand_of(case, tfr.chain(case.model, **case.options))


def by_hand_of(case, chain):
    frame = probes.block_metrics(chain, case.data())
    logs = {
        f"stage{row['stage']}/block{row['block']}/{name}": row[name]
        for row in frame.to_dict("records")
        for name in (*BLOCK_KEYS, "perturbation")
    }
    expected = truth(case, case.batches)
    return compared(logs, {k: v for k, v in expected.items() if k[0] in names_in(logs)}, case)


COLUMNS = {
    "BlockMetrics, Perturbation, DropBlocks": in_callbacks,
    "StepMetrics": in_steps,
    "ExportForProbing": exported,
    "probes by hand": by_hand,
}


def last(history):
    return {name: values[-1] for name, values in history.history.items()}


def names_in(logs):
    return {key.rpartition("/")[2] for key in logs}


def compared(logs, expected, case):
    """Returns `WORKS`, or how published numbers differ from the truth."""
    for (name, block), value in expected.items():
        key = f"stage1/block{block}/{name}"
        if key not in logs:
            return f"**publishes no `{key}`**"
        if np.isnan(logs[key]):
            return "NaN"
        if abs(logs[key] - value) > case.tolerance * max(1.0, abs(value)):
            return f"**differs** in `{key}`: {logs[key]:.3g}, where {value:.3g} is right"
    return WORKS


def cell(row, column):
    """Returns what a column does with a row, in a few words."""
    make = next(group[row] for group in ROWS.values() if row in group)
    keras.utils.set_random_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = COLUMNS[column](make())
        except Exception as error:
            return _first_sentence(f"{error}") or type(error).__name__
    told = [f"{w.message}" for w in caught if w.category is UserWarning]
    if found == WORKS:
        notes = sorted({text for text in told if any(part in text for part in NOTED)})
        return f"{AND_NOTES}{_first_sentence(notes[0])}" if notes else WORKS
    # What Keras says of data that ends is not the cause.
    told = [_first_sentence(text) for text in told if not text.startswith("Your input ran out")]
    return ": ".join([found, *told[:1]])


def _first_sentence(text):
    """Returns the first sentence of a message, without what differs from run to run."""
    text = " ".join(text.split()).partition(" Received: ")[0]
    text = re.split(r"(?<=[\w`)])\. ", text, maxsplit=1)[0].rstrip(".")
    text = re.sub(r"\b([a-z_]+?)_\d+\b", r"\1", text)
    return text.replace("|", r"\|").replace("[", r"\[")


def row_of(name):
    return {"row": name, **{column: cell(name, column) for column in COLUMNS}}


def names():
    return [name for group in ROWS.values() for name in group]


# The page


def read():
    """Returns the committed rows by name."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["row"]: row for row in csv.DictReader(file)}


def write(rows):
    """Writes the table and the page."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["row", *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    PAGE.write_text(page(rows), encoding="utf-8")


def page(rows):
    """Returns the text of docs/what_fit_takes.md."""
    parts, notes = [HEAD], []
    for title, group in ROWS.items():
        parts.append(f"\n## {title}\n\n| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}\n")
        for name in group:
            cells = []
            for text in (rows[name][column] for column in COLUMNS):
                if text == WORKS:
                    cells.append(text)
                    continue
                if text not in notes:
                    notes.append(text)
                word = WORKS if text.startswith(AND_NOTES) else "no"
                cells.append(f"{word}, {notes.index(text) + 1}")
            shown = f"{name}, {TOLD[name]}" if name in TOLD else name
            parts.append(f"| {shown} | {' | '.join(cells)} |\n")
    parts.append("\n## Messages\n\n")
    parts += [
        f"{number}. {note.removeprefix(AND_NOTES)}\n" for number, note in enumerate(notes, start=1)
    ]
    return "".join(parts)


# What callbacks are told of a model before `fit`, and `tfresidual.chain` by the same arguments.
TOLD = {
    "subclassed": "after `callbacks.use_blocks(model, inputs=batch)`",
    "several outputs": "after `callbacks.use_blocks(model, output=name)`",
}
HEAD = """# What `fit` takes

Kinds of models, data and trainings that Keras' `fit` accepts, and what callbacks and probes do with
them. *Works* means that in a training of this kind, all numbers equal those that were computed from
the trained model's layers, one by one, with a gradient tape. Where something does not work, an
error says why: the number is that of the message below. The trainings are in
`tests/reference/what_fit_takes.py`, and a test compares this page with them.

- **BlockMetrics, Perturbation, DropBlocks**: the numbers that these callbacks publish at the end of
  the last epoch. The other probe callbacks have the same base.
- **StepMetrics**: the means over the images of all steps of the last epoch.
- **ExportForProbing**: `block_metrics` of the SavedModel that it writes.
- **probes by hand**: `block_metrics` of `tfresidual.chain(model)` after training.

Where blocks are not found without help, callbacks are told once, before `fit`, by
[`callbacks.use_blocks`](reference/callbacks.md), and `tfresidual.chain` by the same arguments. An
error says when that is needed.

On TensorFlow, data of unknown length cost one optimizer step more per epoch than they have batches:
rates of a schedule and weight decay run ahead, and probes at the end of an epoch see it.
`data.apply(tf.data.experimental.assert_cardinality(batches))` says the length.
"""


def main(chosen):
    rows = read() if chosen else {}
    for name in chosen or names():
        rows[name] = row_of(name)
        print(name, list(rows[name].values())[1:], flush=True)
    write({name: rows[name] for name in names() if name in rows})


if __name__ == "__main__":
    main(sys.argv[1:])
