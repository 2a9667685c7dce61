"""Which blocks go, what that costs, and what is done about it; on real networks and images."""

import contextlib
import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import networks, probes, routes, surgery
from tfresidual.probes.block_importance import CRITERIA
from tfresidual.routing.costs import Costs


def net_and_batches(**settings):
    net = random_network(**{"blocks": 3, "widths": (4, 8), "seed": 1} | settings)
    net.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return net, random_batch(net, images=12), random_batch(net, images=9, seed=5)


def measured(chain, batch, gone):
    """Cross-entropy and errors of single images without some blocks, by `evaluate_routes`."""
    route = routes.drop(chain, *gone) if gone else routes.unperturbed(chain)
    rows = probes.evaluate_routes(chain, batch, [route], per_image=True)
    return rows["cross_entropy"].mean(), rows["error"].to_numpy(float)


@pytest.mark.eager
@pytest.mark.parametrize(
    "by",
    [pytest.param(by, marks=() if by == "loss" else pytest.mark.nightly) for by in CRITERIA],
)
def test_a_plan_takes_what_is_needed_least_and_measures_again(by):
    """Step by step, by calls of probes on the smaller model; judged on other images."""
    net, batch, test = net_and_batches()
    plan = surgery.plan(net, batch, blocks=3, by=by, test=test, batch_sizes=())
    chain, gone, whole = tfr.chain(net), [], measured(tfr.chain(net), test, [])[1]
    for row in plan.itertuples():
        if row.step:
            left = [
                (b.stage, b.index)
                for b in chain.blocks
                if b.keeps_shape and (b.stage, b.index) not in gone
            ]
            if by == "loss":
                now = measured(chain, batch, gone)[0]
                values = [measured(chain, batch, [*gone, one])[0] - now for one in left]
            else:
                model = surgery.without_blocks(net, gone) if gone else net
                frame = probes.block_importance(model, batch, by=by)
                values = frame[CRITERIA[by]].dropna().tolist()
            assert left[int(np.argmin(values))] == (row.stage, row.block)
            assert row.value == pytest.approx(min(values), rel=1e-3, abs=1e-5)
            gone.append((row.stage, row.block))
        entropy, errors = measured(chain, test, gone)
        rises = errors - whole
        noise = rises.std(ddof=1) / len(rises) ** 0.5
        found = [row.error, row.error_rise, row.error_rise_se, row.cross_entropy]
        np.testing.assert_allclose(found, [errors.mean(), rises.mean(), noise, entropy], rtol=1e-4)
        assert row.error_selection == pytest.approx(measured(chain, batch, gone)[1].mean())
    smaller = surgery.without_blocks(net, plan)
    assert smaller.count_params() == plan["parameters"].iloc[-1] < net.count_params()
    assert plan["blocks_left"].tolist() == [6, 5, 4, 3]
    assert (plan["flops"].diff().dropna() < 0).all()


@pytest.mark.eager
def test_all_subsets():
    """None of the same size has a lower cross-entropy; and the order within it is by what costs."""
    net, batch, test = net_and_batches()
    plan = surgery.plan(net, batch, blocks=2, exact=True, test=test, batch_sizes=())
    chain = tfr.chain(net)
    places = [(b.stage, b.index) for b in chain.blocks if b.keeps_shape]
    losses = {two: measured(chain, batch, two)[0] for two in itertools.combinations(places, 2)}
    found = [*plan[["stage", "block"]].iloc[1:].itertuples(index=False, name=None)]
    assert tuple(sorted(found)) == min(losses, key=losses.get)
    singles = [measured(chain, batch, [one])[0] for one in found]
    assert singles[0] <= singles[1]
    plan = surgery.plan(net, batch, blocks=1, exact=True, stages=[2], test=test, batch_sizes=())
    assert plan["stage"].tolist() == [0, 2]


def test_layers_with_several_blocks_go_as_a_whole():
    from sources import zoo

    model = zoo.build("BertTextClassifier")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng, specs = np.random.default_rng(0), model.inputs
    inputs = {one.name: rng.integers(0, 2, (6, 8)).astype(one.dtype) for one in specs}
    inputs["padding_mask"][:, :2] = 1
    data = inputs, rng.integers(0, model.output_shape[-1], 6)
    plan = surgery.plan(model, data, blocks=1, by="influence", test=data, batch_sizes=())
    assert plan["blocks"].tolist() == [0, 2]
    smaller = surgery.without_blocks(tfr.chain(model), plan)
    assert type(smaller) is type(model)


def test_costs():
    """Multiplications counted by hand, and more of them take longer."""
    inputs = keras.Input((8, 8, 3))
    state = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    state = layers.DepthwiseConv2D(5, padding="same")(state)
    state = layers.Conv2DTranspose(2, 3, strides=2, padding="same")(state)
    state = layers.Conv2D(6, 1, groups=2)(state)
    state = layers.Reshape((64, 6))(state)
    state = layers.EinsumDense("abc,cd->abd", output_shape=(64, 5))(state)
    state = layers.Dot(2)([state, state])
    model = keras.Model(inputs, layers.Dense(7)(state))
    counted = 16 * 4 * 27 + 16 * 4 * 25 + 16 * 4 * 2 * 9 + 64 * 6 * 1 + 64 * 6 * 5
    counted += 64 * 64 * 5 + 64 * 64 * 7
    found = Costs(model, np.zeros((2, 8, 8, 3), "float32"), ()).of(model)
    assert found == {"parameters": model.count_params(), "flops": 2 * counted}


def repeated(function):
    """Returns a layer of a function of states of 4 features and a matrix, 16 products per image."""
    matrix = np.eye(4, dtype="float32")
    return layers.Lambda(lambda state: function(state, matrix), output_shape=lambda shape: shape)


def times(state, matrix):
    return keras.ops.matmul(state, matrix)


def until(steps, step=times):
    """Returns a loop whose counter goes from 0 to a number of steps, or of the state."""
    return repeated(
        lambda state, matrix: keras.ops.while_loop(
            lambda i, state: i < (steps or keras.ops.cast(keras.ops.max(state), "int32")),
            lambda i, state: (i + 1, step(state, matrix)),
            (0, state),
        )[1]
    )


# The layer, the shape of its input, and its multiplications, NaN if they depend on the input.
LOOPS = {
    "LSTM": (layers.LSTM(3), (10, 3), 10 * (3 + 3) * 4 * 3),
    "GRU of masked steps": (
        lambda x: layers.GRU(3)(layers.Masking()(x)),
        (10, 3),
        10 * (3 + 3) * 3 * 3,
    ),
    "both ways": (layers.Bidirectional(layers.SimpleRNN(5)), (7, 3), 2 * 7 * (3 + 5) * 5),
    "ConvLSTM": (layers.ConvLSTM1D(2, 3, padding="same"), (5, 6, 3), 5 * 6 * 3 * (3 + 2) * 4 * 2),
    "while_loop": (until(6), (4,), 6 * 16),
    "as often as the state says": (until(None), (4,), np.nan),
    "nothing in it": (until(None, lambda state, _: state - 1), (4,), 0),
    "a loop in a loop": (until(6, lambda x, m: tf.map_fn(lambda r: r @ m, x)), (3, 4), 18 * 16),
    "map": (
        repeated(lambda x, m: keras.ops.map(lambda r: times(r, m), x)),
        (3, 4),
        3 * 16,
    ),
    "scan": (
        repeated(lambda x, m: keras.ops.scan(lambda c, _: (times(c, m), c), x, length=5)[0]),
        (4,),
        5 * 16,
    ),
    "fori_loop": (
        repeated(lambda x, m: keras.ops.fori_loop(2, 7, lambda _, state: times(state, m), x)),
        (4,),
        5 * 16,
    ),
    "either way": (
        repeated(lambda x, m: tf.cond(x[0, 0] > 0, lambda: x @ m, lambda: x @ m + 1)),
        (4,),
        16,
    ),
    "one way": (
        repeated(lambda x, m: tf.cond(x[0, 0] > 0, lambda: x @ m, lambda: x)),
        (4,),
        np.nan,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_costs_of_loops(name):
    layer, shape, multiplications = LOOPS[name]
    inputs = keras.Input(shape)
    model = keras.Model(inputs, layer(inputs))
    found = Costs(model, np.zeros((2, *shape), "float32"), ()).of(model)
    np.testing.assert_equal(found["flops"], 2.0 * multiplications)


def digits(images, seed):
    """Images of a bright column in one of four places, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, images)
    pixels = rng.normal(0, 1.0, (images, 8, 8, 1))
    pixels[np.arange(images), :, 2 * labels, 0] += 1.5
    return pixels.astype("float32"), labels


@functools.cache
def trained():
    keras.utils.set_random_seed(0)
    net = networks.ResidualNetwork((8, 8, 1), 4, blocks=4, widths=(8,))
    net.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    net.fit(*digits(512, 1), epochs=6, verbose=0)
    return net


def read_as(kind):
    """Images of which each reading has all in another order, or other ones, or changed ones."""
    images = tf.data.Dataset.from_tensor_slices(digits(64, 3))
    generator = tf.random.Generator.from_seed(0)
    noisy = images.map(lambda image, label: (image + generator.normal(image.shape), label))
    shuffled = images.shuffle(64, seed=0)
    kinds = {"shuffled": shuffled, "cut": shuffled.take(32), "augmented": noisy, "fixed": images}
    return kinds[kind].batch(32)


@pytest.mark.eager
@pytest.mark.parametrize(
    ("name", "kind", "is_refused"),
    [
        pytest.param("data", "shuffled", False, marks=pytest.mark.nightly),
        pytest.param("data", "cut", True, marks=pytest.mark.nightly),
        ("data", "augmented", True),
        *(("selection", "cut", True), ("test", "shuffled", True), ("test", "augmented", True)),
        ("halves", "shuffled", True),
    ],
)
def test_images_are_the_same_whenever_they_are_read(name, kind, is_refused):
    given = {"data": "fixed", "test": "fixed"} | {name: kind}
    if name == "halves":
        given = {"data": kind}
    given = {argument: read_as(one) for argument, one in given.items()}
    named = "data" if name == "halves" else name
    with refused(named) if is_refused else contextlib.nullcontext():
        surgery.prune(trained(), **given, blocks=2, batch_sizes=())


@pytest.mark.parametrize("distil", [None, pytest.param("outputs", marks=pytest.mark.nightly)])
def test_a_pruned_network_gets_back_what_it_lost(distil):
    net, test = trained(), digits(400, 2)
    before = [weight.numpy() for weight in net.weights]
    keras.utils.set_random_seed(0)
    smaller, frame = surgery.prune(
        net,
        digits(512, 1),
        blocks=2,
        test=test,
        selection=digits(100, 3),
        epochs=4,
        distil=distil,
        optimizer=keras.optimizers.Adam(0.003),
        batch_sizes=(),
    )
    assert frame["what"].tolist() == ["network", *["removed"] * 2, "statistics", "fine-tuned"]
    errors = frame["error"].to_numpy()
    assert errors[0] < 0.2 and errors[4] < errors[2] - 0.1
    assert errors[4] == pytest.approx(1 - smaller.evaluate(*test, verbose=0)[1], abs=1e-6)
    assert frame["error_rise"].iloc[-1] == pytest.approx(errors[4] - errors[0])
    assert smaller.compiled and smaller.blocks == (2,)
    for weight, value in zip(net.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


def after_one_step(model, data, plan, **options):
    """The loss of a step of SGD without the blocks of a plan, and the trained weights after it."""
    losses = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(logs))
    keras.utils.set_random_seed(0)
    smaller, frame = surgery.prune(
        model,
        data,
        blocks=plan["step"].max(),
        by="l2_ratio",
        test=data,
        statistics=False,
        epochs=1,
        optimizer=keras.optimizers.SGD(0.1),
        callbacks=[seen],
        batch_sizes=(),
        **options,
    )
    assert frame["block"][: len(plan)].tolist() == plan["block"].tolist()
    return losses[0]["loss"], [one.numpy() for one in smaller.trainable_variables]


def states_in(model, part):
    """The model of the outputs of all layers with a part of a name."""
    return keras.Model(model.input, [one.output for one in model.layers if part in one.name])


def distance(states, others, counts=1.0, total=np.sum):
    """The mean of |s - h|^2 / |h|^2 where positions count."""
    pairs = zip(states, others, strict=True)
    found = [total(counts * (s - h) ** 2) / total(counts * h**2) for s, h in pairs]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    "kind", ["places", *(pytest.param(k, marks=pytest.mark.nightly) for k in ("outputs", "states"))]
)
def test_a_distance_is_added_to_the_loss(kind):
    """By hand, as are its gradients; with the weight 0, all is as without it."""
    net, data = trained(), digits(32, 4)
    plan = surgery.plan(net, data, blocks=1, by="l2_ratio", test=data, batch_sizes=())
    (gone,), smaller = plan["block"][1:], surgery.without_blocks(net, plan)
    kept = [block for block in range(4) if block != gone]
    options = {"distil": "states" if kind == "places" else kind}
    pairs = [(place, block + (block + 1 == gone)) for place, block in enumerate(kept)]
    if kind == "places":
        pairs = [(2, 0), (0, 3)]
        options["places"] = {(1, kept[place]): (1, other) for place, other in pairs}
    # A step gives batch normalization new statistics before states are compared.
    predictions, _ = net.predict(data[0], verbose=0), smaller(data[0], training=True)
    whole = states_in(net, "_block").predict(data[0], verbose=0)

    def by_hand(dtype, total):
        if kind == "outputs":
            outputs = keras.ops.log(smaller(data[0], training=True))
            return -total(predictions.astype(dtype) * keras.ops.cast(outputs, dtype)) / 32
        own = states_in(smaller, "_block")(data[0], training=False)
        own = [keras.ops.cast(one, dtype) for one in own]
        others = [whole[other].astype(dtype) for _, other in pairs]
        return distance([own[place] for place, _ in pairs], others, total=total)

    plain, none, found = (
        after_one_step(net, data, plan, **others)
        for others in ({}, *(options | {"distil_weight": weight} for weight in (0, 2.5)))
    )
    for weight, other in zip(plain[1], none[1], strict=True):
        np.testing.assert_array_equal(weight, other)
    assert found[0] - none[0] == pytest.approx(2.5 * by_hand("float64", np.sum), rel=1e-4)
    with tf.GradientTape() as tape:
        loss = 2.5 * by_hand("float32", keras.ops.sum)
    weights = [one.value for one in smaller.trainable_variables]
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
    for weight, other, gradient in zip(found[1], none[1], gradients, strict=True):
        np.testing.assert_allclose(weight - other, -0.1 * gradient, rtol=1e-3, atol=2e-6)


def test_padding_is_in_no_distance():
    """Of an encoder of keras-hub, whose layers are blocks as a whole."""
    import keras_hub
    from sources import zoo

    model, rng = zoo.build("BertTextClassifier"), np.random.default_rng(0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    inputs = {one.name: rng.integers(0, 2, (6, 8)).astype(one.dtype) for one in model.inputs}
    inputs["padding_mask"] = (np.arange(8) < rng.integers(2, 9, (6, 1))).astype("int32")
    labels = rng.integers(0, model.output_shape[-1], 6)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(6)
    chain = tfr.chain(model, blocks=keras_hub.layers.TransformerEncoder)
    plan = surgery.plan(chain, data, blocks=1, by="l2_ratio", test=data, batch_sizes=())
    # Of two layers; the one that stays is trained towards the last one.
    smaller = surgery.without_blocks(chain, plan)
    *own, target = (
        states_in(one.backbone, "transformer_layer").predict(inputs, verbose=0)
        for one in (smaller, model)
    )
    counts = inputs["padding_mask"][:, :, None].astype("float64")
    expected = distance(own, target[-1:], counts)
    losses = [
        after_one_step(chain, data, plan, distil="states", distil_weight=weight)[0]
        for weight in (0, 100)
    ]
    assert losses[1] - losses[0] == pytest.approx(100 * expected, rel=1e-3)


@pytest.mark.nightly
def test_states_come_closer():
    """Than before the training, and than with the labels alone."""
    net, data, test = trained(), digits(512, 1), digits(100, 2)
    whole = states_in(net, "_block").predict(test[0], verbose=0)
    found = {}
    for distil, epochs in ((None, 0), (None, 3), ("states", 3)):
        keras.utils.set_random_seed(0)
        optimizer = keras.optimizers.Adam(0.003) if epochs else None
        smaller, frame = surgery.prune(
            *(net, data),
            blocks=2,
            by="l2_ratio",
            test=test,
            epochs=epochs,
            optimizer=optimizer,
            distil=distil,
            batch_sizes=(),
        )
        gone = frame["block"][1:3].tolist()
        kept = [block for block in range(4) if block not in gone]
        after = [end - 1 for end in [*kept[1:], 4]]
        own = states_in(smaller, "_block").predict(test[0], verbose=0)
        found[distil, epochs] = distance(own, [whole[place] for place in after])
    closest = found.pop(("states", 3))
    assert all(closest < 0.9 * other for other in found.values()), (closest, found)


def at_its_end():
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 1))


def several():
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {".*kernel": keras.optimizers.Adam()})
    )


@pytest.mark.eager
@pytest.mark.filterwarnings("ignore:The network is no better")
@pytest.mark.parametrize(
    ("optimizer", "distil"),
    [(several, None), pytest.param(at_its_end, "states", marks=pytest.mark.nightly)],
)
def test_training_takes_what_the_model_was_compiled_with(optimizer, distil):
    """Functions of one's own, and an optimizer like that of the model, from the first step on."""
    net, data, _ = net_and_batches()
    loss = keras.losses.sparse_categorical_crossentropy
    options = {"metrics": [lambda labels, outputs: keras.ops.max(outputs, axis=-1)]}
    net.compile(optimizer(), lambda labels, outputs: 2 * loss(labels, outputs), **options)
    net.fit(*data, epochs=2, verbose=0)
    weighted = *data, np.ones(len(data[1]))
    smaller, _ = surgery.prune(
        net, weighted, blocks=1, by="l2_ratio", test=data, epochs=1, distil=distil, batch_sizes=()
    )
    assert [int(one.optimizer.iterations) for one in (net, smaller)] == [2, 1]
    outputs = smaller.predict(data[0], verbose=0)
    expected = [2 * np.mean(loss(data[1], outputs)), outputs.max(axis=-1).mean()]
    np.testing.assert_allclose(smaller.evaluate(*data, verbose=0), expected, rtol=1e-5)


@pytest.mark.parametrize("declared", [{"outputs": "label_logits"}, {"output": "a"}])
def test_what_a_chain_declares_holds_for_the_pruned_network(declared):
    inputs = keras.Input((6,))
    state = layers.Dense(8)(inputs)
    for _ in range(3):
        branch = layers.Dense(8, "tanh")(layers.BatchNormalization()(state))
        state = layers.Add()([state, branch])
    one, other = layers.Dense(4, name="one")(state), layers.Dense(1)(state)
    model = keras.Model(inputs, {"a": one, "b": other} if "output" in declared else one)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    metric = None if "output" in declared else [keras.metrics.BinaryAccuracy(name="own")]
    model.compile("sgd", {"a": loss, "b": "mse"} if "output" in declared else loss, metrics=metric)
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(64, 6)), rng.integers(0, 2, (64, 4)).astype("float32")
    if metric:
        model.evaluate(images, labels, verbose=0)
        before = float(metric[0].result())
    smaller, frame = surgery.prune(
        tfr.chain(model, **declared),
        (images, labels),
        blocks=1,
        by="l2_ratio",
        test=(images, labels),
        epochs=1,
        batch_sizes=(),
    )
    # The smaller network has this output alone.
    chain = tfr.chain(smaller, outputs="label_logits")
    errors = probes.drop_blocks(chain, (images, labels))
    assert frame["error"].iloc[-1] == pytest.approx(errors["unperturbed_error"][0])
    assert not metric or float(metric[0].result()) == before


NET = functools.cache(lambda: net_and_batches()[0])
BATCH = functools.cache(lambda: random_batch(NET(), images=8))


def uncompiled():
    return random_network(blocks=3, widths=(4,), seed=2)


def at_rate_zero():
    net = net_and_batches()[0]
    net.optimizer.learning_rate = 0.0
    return net


def relu_after_additions():
    """Without the second block of every stage, no block has the activation any more."""
    state = inputs = keras.Input((8, 8, 3))
    for width in (4, 8, 16):
        for strides in (2, 1):
            branch = layers.Conv2D(width, 3, strides, "same")(state)
            shortcut = layers.Conv2D(width, 1, 2)(state) if strides == 2 else state
            state = layers.ReLU()(layers.Add()([branch, shortcut]))
    state = layers.GlobalAveragePooling2D()(state)
    model = keras.Model(inputs, layers.Dense(5, "softmax")(state))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


DISTIL = {"distil": "states", "epochs": 1}
SHARING = {"blocks": 3, "widths": (4,), "share_from": 0}
# What is given beside, or in place of, a model, data and one block to take out.
REFUSED = {
    "plan": [
        *(({"blocks": value}, "blocks") for value in (0, -1, 1.5, "2", True, 6, 10**10)),
        *(({"speed": value, "blocks": None}, "speed") for value in (1, 0.5, -2, "2", True, np.nan)),
        *(({"most_error": v, "blocks": None}, "most_error") for v in (-0.1, 1.1, "0", np.inf)),
        ({"blocks": None}, "blocks"),
        ({"speed": 2.0}, "speed"),
        ({"most_error": 0.1}, "most_error"),
        ({"speed": 2.0, "blocks": None, "batch_sizes": ()}, "batch_sizes"),
        *(({"by": value}, "by") for value in ("cosine", None, ["loss"], 1)),
        *(({"stages": value}, "stages") for value in ([0], [3], 1, "1", [])),
        ({"exact": True, "by": "influence"}, "exact"),
        ({"exact": True, "blocks": None, "most_error": 0.1}, "exact"),
        *(({"memory_limit": value}, "memory_limit") for value in (0, -1, "1")),
        ({"data": lambda: iter([1])}, "data"),
        ({"model": lambda: None}, "source"),
        ({"model": lambda: random_network(**SHARING)}, "model"),
    ],
    "prune": [
        *(({"distil": value, "epochs": 1}, "distil") for value in (0.5, "logits", True)),
        ({"distil": "states"}, "distil"),
        *((DISTIL | {"distil_weight": v}, "distil_weight") for v in (-0.1, "1", np.nan)),
        *((DISTIL | {"places": v}, "places") for v in ({}, {(9, 0): (1, 0)}, {(1, 1): (1, 9)})),
        ({"places": {(1, 1): (1, 2)}, "distil": "outputs", "epochs": 1}, "places"),
        (DISTIL | {"model": lambda: relu_after_additions(), "blocks": 3}, "distil"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"optimizer": "sdg", "epochs": 1}, "optimizer"),
        ({"optimizer": 3, "epochs": 1}, "optimizer"),
        ({"optimizer": lambda: trained().optimizer, "epochs": 1}, "optimizer"),
        ({"callbacks": [keras.callbacks.History()]}, "callbacks"),
        ({"model": uncompiled, "epochs": 1}, "model"),
        ({"model": at_rate_zero, "epochs": 1}, "optimizer"),
    ],
}


@pytest.mark.sampled(40)
@pytest.mark.eager
@pytest.mark.parametrize(
    ("function", "given", "name"),
    [(function, *case) for function, cases in REFUSED.items() for case in cases],
)
def test_refusals(function, given, name):
    """Before anything is trained, or changed."""
    usual = {"model": NET, "data": BATCH, "blocks": 1, "test": BATCH}
    given = {
        key: value() if callable(value) and key != "callbacks" else value
        for key, value in (usual | given).items()
    }
    model, data = given.pop("model"), given.pop("data")
    before = [weight.numpy() for weight in getattr(model, "weights", ())]
    with refused(name):
        getattr(surgery, function)(model, data, **given)
    for weight, value in zip(getattr(model, "weights", ()), before, strict=True):
        np.testing.assert_array_equal(weight, value)
