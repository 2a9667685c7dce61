"""Chains from SavedModels: the frames of all probes, losses, memory, and damaged folders.

    python test_reader.py FOLDER NAME [NAME ...]

is what the tests start as another process: it opens the SavedModels FOLDER/NAME, without the code
that builds networks, and writes the frames of all probes on them as FOLDER/NAME.pickle. They are
compared with those of the live network, number by number: they are equal, but for gradients that
TensorFlow adds up in another order, where blocks take an anchor and in models by hand. There they
agree to 1e-5 of the largest number of a column, in bfloat16 to 0.5 %.

Not covered: SavedModels that another version of TensorFlow or of this package wrote.
"""

import dataclasses
import gc
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.small_networks import BFLOAT16, functional_network, small_images, small_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes, training
from tfresidual.routing import Block, Chain, Stage, evaluator, routes
from tfresidual.routing.losses import loss_from, loss_of
from tfresidual.routing.plan import plan_of
from tfresidual.saved_model.format import LAYOUT_FILE
from tfresidual.sources.exporting import export
from tfresidual.sources.outputs import kind_of

# Networks whose first stage has a block that keeps the shape, and whose last has another one.
TWO_STAGES = {"blocks": (1, 2), "widths": (2, 3), "transition": "convolution"}
NETWORKS = {
    # Its second stage is one block, which changes the shape.
    "ordinary": {"blocks": (2, 1), "widths": (2, 3)},
    "shared": TWO_STAGES | {"share_from": 0, "batch_norm": "unshared"},
    "coupled": TWO_STAGES | {"recurrent_initialization": True},
    "convergent": TWO_STAGES | {"lipschitz": 0.95, "anchor": "input"},
    "bounded": {"blocks": (3,), "widths": (3,), "lipschitz": 0.95, "anchor": "previous"},
    "functional": None,
}
IMAGES = 4


def network_of(kind, dtype="float32"):
    """A network, after a step of training where it is one that is coupled."""
    from reference.random_network import random_batch, random_network

    if NETWORKS[kind] is None:
        return functional_network(dtype)
    if kind != "coupled":
        return random_network(**NETWORKS[kind], dtype=dtype)
    # Its blocks begin with equal weights, and a step that is mixed keeps them near each other.
    net = tfr.networks.ResidualNetwork((8, 8, 3), 5, **NETWORKS[kind], dtype=dtype)
    optimizer = training.GradientCoupling(keras.optimizers.SGD(0.1), coupling=0.7)
    net.compile(optimizer, "sparse_categorical_crossentropy")
    net.fit(*random_batch(net, images=6, seed=4), verbose=0)
    return net


def probes_of(chain, data):
    """All probes by name, as functions without arguments that return a frame or an array."""
    images, _ = data
    block = chain.blocks[1]
    place = {"stage": block.stage, "block": block.index}
    state, _ = chain.lead_to(chain.stem(images), *place.values())
    vectors = np.random.default_rng(2).normal(size=state.shape).astype("float32")
    chosen = [routes.unperturbed(chain), routes.drop(chain, (1, 0)), routes.readout(chain, 1, 0)]
    found = {
        "block_metrics": lambda: probes.block_metrics(chain, data, per_image=True),
        "perturbation": lambda: probes.perturbation(chain, data),
        "computational_distance": lambda: probes.computational_distance(chain, data),
        "readout": lambda: probes.readout(chain, data),
        "drop_blocks": lambda: probes.drop_blocks(chain, data),
        "repeat_last_block": lambda: probes.repeat_last_block(chain, data, times=2),
        "repeat_last_block, scaled": lambda: probes.repeat_last_block(
            chain, data, times=2, scale=0.5
        ),
        "convergence_indices": lambda: probes.convergence_frames(
            chain, data, times=2, at_chance="nan"
        )[1],
        "borderline": lambda: probes.borderline(chain, data, blocks=2, times=2),
        "signal_propagation": lambda: probes.signal_propagation(chain, data, per_image=True),
        "effective_parameters": lambda: probes.effective_parameters(chain),
        "weight_deviations": lambda: probes.weight_deviations(chain),
        "fixed_point": lambda: probes.fixed_point(chain, data, times=3),
        "evaluate_routes": lambda: probes.evaluate_routes(chain, data, chosen, per_image=True),
        "metric_product": lambda: probes.metric_product(chain, images, **place, vectors=vectors),
        "metric_eigenvalues": lambda: probes.metric_eigenvalues(chain, data, **place, count=2),
        "line_element": lambda: probes.line_element(chain, data, per_image=True),
        "path_lengths": lambda: probes.path_lengths(chain, data),
        "line_between": lambda: probes.line_between(chain, images[:2], images[2:], points=2),
    }
    if chain.name != "functional":
        found["shuffle_blocks"] = lambda: probes.shuffle_blocks(chain, data)
    if any(block.lipschitz is not None for block in chain.blocks):
        found["lipschitz"] = lambda: probes.lipschitz(chain)
    return found


def frames_of(source, data):
    return {name: probe() for name, probe in probes_of(tfr.chain(source), data).items()}


def open_and_probe(folder, *names):
    """What the other process does."""

    def refuse(*args, **kwargs):
        raise AssertionError("a SavedModel is opened without the code of its network")

    # What the chain of a SavedModel has no need for.
    tfr.networks.ResidualNetwork.__init__ = tfr.layers.ResidualUnit.__init__ = refuse
    tfr.layers.ResidualUnit.__call__ = tfr.layers.BatchNormalization.__call__ = refuse
    keras.saving.load_model = keras.Model.__init__ = refuse
    with np.load(pathlib.Path(folder, "data.npz")) as data:
        data = data["images"], data["labels"]
    for name in names:
        path = pathlib.Path(folder, f"{name}.pickle")
        frames = frames_of(pathlib.Path(folder, name), data)
        path.with_suffix(".half").write_bytes(pickle.dumps(frames))
        path.with_suffix(".half").rename(path)


class Elsewhere:
    """The frames of SavedModels, computed in another process."""

    def __init__(self, folder, kinds):
        from reference.random_network import random_batch

        self.folder, self.live = folder, {}
        for name, (kind, dtype) in kinds.items():
            keras.utils.set_random_seed(3)
            self.live[name] = network_of(kind, dtype)
            export(self.live[name], folder / name)
        self.data = random_batch(next(iter(self.live.values())), images=IMAGES)
        np.savez(folder / "data.npz", images=self.data[0], labels=self.data[1])
        with (folder / "errors").open("w") as errors:
            command = [sys.executable, __file__, folder, *kinds]
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdout=errors,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def frames(self, name):
        path, deadline = self.folder / f"{name}.pickle", time.monotonic() + 500
        while not path.exists():
            if self.process.poll() is not None and not path.exists():
                raise AssertionError((self.folder / "errors").read_text()[-3000:])
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return pickle.loads(path.read_bytes())

    def close(self):
        self.process.kill()
        self.process.wait()


DEFAULT = {"shared": ("shared", "float32")}
FURTHER = {
    f"{kind}, {dtype}": (kind, dtype)
    for kind in NETWORKS
    for dtype in ("float32", BFLOAT16)
    # Opened as in `test_a_layer_by_hand_in_mixed_precision`.
    if (kind, dtype) not in (*DEFAULT.values(), ("functional", BFLOAT16))
}


def opened_elsewhere(kinds):
    @pytest.fixture(scope="module")
    def fixture(tmp_path_factory):
        other = Elsewhere(tmp_path_factory.mktemp("exports"), kinds)
        yield other
        other.close()

    return fixture


elsewhere, further = opened_elsewhere(DEFAULT), opened_elsewhere(FURTHER)
# The SavedModels of every run, and all others.
both = pytest.mark.parametrize(
    "of",
    [
        pytest.param("elsewhere", marks=pytest.mark.system),
        pytest.param("further", marks=pytest.mark.nightly),
    ],
)


# Of what little is compiled.
CHEAP = ("readout", "drop_blocks", "borderline", "weight_deviations", "perturbation")
# Of what gradients are not a part.
FORWARD = (
    *("perturbation", "computational_distance", "readout", "drop_blocks", "borderline"),
    *("convergence_indices", "effective_parameters", "weight_deviations", "fixed_point"),
    *("evaluate_routes", "shuffle_blocks", "lipschitz"),
)


def assert_frames_agree(frames, expected, dtype="float32", is_exact=True):
    assert list(frames) == list(expected)
    for name, frame in frames.items():
        if is_exact or name in FORWARD:
            if isinstance(frame, pd.DataFrame):
                pd.testing.assert_frame_equal(frame, expected[name], check_exact=True, obj=name)
            else:
                np.testing.assert_array_equal(frame, expected[name], err_msg=name)
        else:
            assert_close(frame, expected[name], 1e-5 if dtype == "float32" else 0.005, name)


def assert_close(frame, expected, allowed, name):
    """Numbers may differ by a share of the largest of their column."""
    if isinstance(frame, pd.DataFrame):
        assert frame.columns.tolist() == expected.columns.tolist()
        assert len(frame) == len(expected)
        columns = {column: (frame[column], expected[column]) for column in frame}
    else:
        columns = {"": (frame, expected)}
    for column, values in columns.items():
        values = [np.asarray(value) for value in values]
        if values[0].dtype.kind not in "fiu":
            np.testing.assert_array_equal(*values)
            continue
        np.testing.assert_array_equal(*map(np.isnan, values), err_msg=f"{name} {column}")
        largest = np.nanmax(np.abs(values[1]), initial=0)
        if column == "residual":
            # Shares of an eigenvalue.
            largest = max(largest, 1)
        difference = np.nanmax(np.abs(values[0] - values[1]), initial=0)
        assert difference <= allowed * largest, f"{name} {column}: {difference} of {largest}"


def is_exact(kind):
    return kind not in ("convergent", "bounded", "functional")


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.system) for name in DEFAULT),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in FURTHER),
    ],
)
def test_frames_of_a_saved_model_are_those_of_the_network(request, name):
    of = request.getfixturevalue("elsewhere" if name in DEFAULT else "further")
    kind, dtype = (DEFAULT | FURTHER)[name]
    expected, frames = frames_of(of.live[name], of.data), of.frames(name)
    assert_frames_agree(frames, expected, dtype, is_exact(kind))
    assert (frames["block_metrics"]["gradient_norm"] > 0).any()


@both
def test_the_chain_says_what_the_live_one_says(of, request):
    of = request.getfixturevalue(of)
    for name, net in of.live.items():
        live, loaded = tfr.chain(net), tfr.chain(of.folder / name)
        assert str(loaded) == str(live)
        assert loaded.input_shape == live.input_shape
        assert loaded.outputs == live.outputs
        assert [w.shape for w in loaded.weights] == [w.shape for w in live.weights]
        for block, other in zip(loaded.blocks, live.blocks, strict=True):
            assert block.keeps_shape == other.keeps_shape
            assert block.takes_anchor == other.takes_anchor
            assert list(block.weights) == list(other.weights)
            for role, weight in block.weights.items():
                np.testing.assert_array_equal(weight, other.weights[role])
                assert any(weight is known for known in loaded.weights)

    if "shared" not in of.live:
        return
    one, other = tfr.chain(of.folder / "shared").stages[1].blocks
    kernels = [role for role in one.weights if role.endswith("kernel")]
    assert kernels
    assert all(one.weights[role] is other.weights[role] for role in kernels)
    assert not all(one.weights[role] is other.weights[role] for role in one.weights)


@pytest.mark.system
def test_a_layer_by_hand_in_mixed_precision(tmp_path):
    net = functional_network(BFLOAT16)
    export(net, tmp_path / "net")
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    expected = net.predict(images, verbose=0)
    np.testing.assert_allclose(tfr.chain(tmp_path / "net")(images), expected, rtol=0.02)


# Small chains, one block each


INDICES = np.array([0, 2, 1, 2])
ROWS = np.eye(3, dtype="float32")[INDICES]
SEVERAL = np.float32([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
ANY_LABELS = (INDICES, INDICES.astype("int32"), INDICES[:, None], ROWS, ROWS.astype("int64"))


def squares_by_hand(labels, outputs):
    labels = keras.ops.cast(labels, outputs.dtype)
    return keras.ops.mean(keras.ops.square(labels - outputs), axis=-1)


def squares_of_floats(labels, outputs):
    return keras.ops.mean(keras.ops.square(labels - outputs), axis=-1)


def sparse_by_hand(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)


@keras.saving.register_keras_serializable("tests")
class OwnLoss(keras.losses.Loss):
    def call(self, labels, outputs):
        return squares_by_hand(labels, outputs)


of_name = keras.losses
# The loss, the labels it takes, and the last activation.
LOSSES = {
    "not compiled": (None, ANY_LABELS, "softmax"),
    "not compiled, logits": (None, ANY_LABELS, None),
    "not compiled, labels": (None, (SEVERAL,), "sigmoid"),
    "sparse": ("sparse_categorical_crossentropy", ANY_LABELS, "softmax"),
    "categorical": ("categorical_crossentropy", ANY_LABELS, "softmax"),
    "a function": (of_name.categorical_crossentropy, ANY_LABELS, "softmax"),
    "an object": (of_name.SparseCategoricalCrossentropy(), ANY_LABELS, "softmax"),
    "an object, logits": (
        of_name.CategoricalCrossentropy(from_logits=True),
        ANY_LABELS,
        None,
    ),
    "label smoothing": (
        of_name.CategoricalCrossentropy(label_smoothing=0.1),
        (ROWS, ROWS.astype("int64")),
        "softmax",
    ),
    "focal": (of_name.CategoricalFocalCrossentropy(gamma=1.5), (ROWS,), "softmax"),
    "binary": ("binary_crossentropy", (SEVERAL,), "sigmoid"),
    "binary, logits": (
        of_name.BinaryCrossentropy(from_logits=True, label_smoothing=0.2),
        (SEVERAL,),
        None,
    ),
    "several labels": (training.MultiLabelCrossentropy(), (SEVERAL,), "sigmoid"),
    "mse": ("mse", (ROWS,), "softmax"),
    "an object of squares": (of_name.MeanSquaredError(), (ROWS,), None),
    "by hand": (squares_by_hand, (ROWS,), "softmax"),
    "by hand, of floats": (squares_of_floats, (ROWS,), "softmax"),
    "by hand, of indices": (sparse_by_hand, (INDICES, INDICES[:, None]), "softmax"),
    "a class by hand": (OwnLoss(), (ROWS, ROWS.astype("int64")), "sigmoid"),
}
BY_HAND = ("by hand", "by hand, of floats", "by hand, of indices", "a class by hand")
# One that the layout names and one that is traced; `sparse_by_hand` follows below.
IN_DEFAULT = ("label smoothing", "a class by hand")


def loss_and_gradient(chain, labels, images):
    with tf.GradientTape() as tape:
        state = chain.stem(images)
        tape.watch(state)
        _, last = chain.walk(state)
        losses = chain.loss(tf.convert_to_tensor(labels), chain.head(last))
    assert losses.shape == (len(images),)
    return losses.numpy(), tape.gradient(losses, state).numpy()


def assert_losses_agree(chain, other, labels):
    images = small_images()
    values = loss_and_gradient(chain, labels, images)
    expected = loss_and_gradient(other, labels, images)
    for value, known in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, known, rtol=1e-6, atol=1e-7)
    assert np.abs(expected[1]).max() > 1e-3


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[] if name in IN_DEFAULT else [pytest.mark.nightly],
        )
        for name in LOSSES
    ],
)
def test_losses_are_those_of_the_network(tmp_path, name):
    loss, kinds, activation = LOSSES[name]
    net = small_network(activation, loss=loss)
    export(net, tmp_path / "net")
    loaded = tfr.chain(tmp_path / "net")
    for labels in kinds:
        assert_losses_agree(loaded, tfr.chain(net), labels)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_made_again_from_what_names_it(name):
    """Those by hand have no name."""
    loss, kinds, activation = LOSSES[name]
    net = small_network(activation, loss=loss)
    live = loss_of(net, kind_of(net))
    assert hasattr(live, "description") == (name not in BY_HAND)
    if name in BY_HAND:
        return
    again = loss_from(json.loads(json.dumps(live.description)))
    outputs = net(small_images())
    for labels in kinds:
        np.testing.assert_array_equal(again(labels, outputs), live(labels, outputs))


def test_a_function_that_is_called_like_one_of_keras_is_not_taken_for_it(tmp_path):
    def mean_squared_error(labels, outputs):
        return 3 * squares_by_hand(labels, outputs)

    net = small_network(loss=mean_squared_error)
    export(net, tmp_path / "net")
    assert_losses_agree(tfr.chain(tmp_path / "net"), tfr.chain(net), ROWS)


def test_labels_that_a_traced_loss_does_not_take(tmp_path):
    export(small_network(loss=sparse_by_hand), tmp_path / "net")
    chain = tfr.chain(tmp_path / "net")
    with refused("data"):
        chain.loss(tf.zeros((4, 3, 1)), chain(small_images()))


@pytest.mark.parametrize(
    ("loss", "labels"), [(None, (INDICES, ROWS)), (sparse_by_hand, (INDICES,))], ids=["", "traced"]
)
def test_a_sure_softmax_keeps_its_gradient(tmp_path, loss, labels):
    """The head carries the logits: probabilities of 1 would pass none."""
    net = small_network(loss=loss, scale=1000.0)
    export(net, tmp_path / "net")
    live, loaded = tfr.chain(net), tfr.chain(tmp_path / "net")
    assert np.max(net.predict(small_images(), verbose=0), axis=-1).min() == 1
    for given in labels:
        assert_losses_agree(loaded, live, given)


# Chains that are exported again


def exported_and_opened(chain, path):
    export(chain, path)
    return tfr.chain(path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ordinary, float32", "convergent, float32"])
def test_a_chain_of_a_saved_model_is_exported_again(further, tmp_path, name):
    first = tfr.chain(further.folder / name)
    again = exported_and_opened(first, tmp_path / "again")
    assert str(again) == str(first)
    layouts = [
        json.loads((folder / LAYOUT_FILE).read_text())
        for folder in (further.folder / name, tmp_path / "again")
    ]
    assert layouts[0] == layouts[1]
    frames, expected = (
        {key: of[key]() for key in ("lipschitz", *CHEAP) if key in of}
        for of in (probes_of(chain, further.data) for chain in (again, first))
    )
    assert_frames_agree(frames, expected)


def routes_of(chain):
    return {
        "a block less": routes.drop(chain, (2, 0)),
        "no block": routes.drop(chain, (1, 0)),
        "repeated": routes.repeat_last_block(chain, 2, 2),
        "repeated, scaled": routes.repeat_last_block(chain, 2, 1, scale=0.5),
        "shuffled": routes.swap(chain, 2, 0, 1),
    }


@pytest.mark.system
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("loaded", "repeated, scaled"),
        pytest.param("loaded", "no block", marks=pytest.mark.nightly),
        pytest.param("live", "no block", marks=pytest.mark.nightly),
        pytest.param("live", "repeated, scaled", marks=pytest.mark.nightly),
    ],
)
def test_a_route_is_exported_as_a_chain(elsewhere, tmp_path, source, name):
    live = tfr.chain(elsewhere.live["shared"])
    start = live if source == "live" else tfr.chain(elsewhere.folder / "shared")
    followed = routes.follow(start, routes_of(start)[name])
    opened = exported_and_opened(followed, tmp_path / "net")
    images, labels = elsewhere.data
    expected = routes.follow(live, routes_of(live)[name])(images)
    np.testing.assert_allclose(opened(images), expected, rtol=2e-6, atol=1e-7)
    assert opened.name == routes_of(start)[name].name
    assert [len(stage.blocks) for stage in opened.stages] == [
        len(stage.blocks) for stage in followed.stages
    ]
    frames = [probes.readout(chain, (images, labels)) for chain in (opened, followed)]
    pd.testing.assert_frame_equal(*frames, rtol=1e-5)


@pytest.mark.system
def test_blocks_in_another_order_are_read_in_that_order(tmp_path):
    from reference.random_network import random_network

    chain = tfr.chain(random_network(input_shape=(4, 4, 1), blocks=2, widths=(2,)))
    (stage,) = chain.stages
    stages = (Stage(1, stage.blocks[::-1], stage.transition),)
    turned = dataclasses.replace(chain, stages=stages, compiled={})
    with refused("chain"):
        export(turned, tmp_path / "net")
    turned = dataclasses.replace(turned, reference=None)
    export(turned, tmp_path / "net")
    loaded = tfr.chain(tmp_path / "net")
    np.testing.assert_array_equal(loaded(small_images()), tf.function(turned)(small_images()))
    assert np.abs(loaded(small_images()) - chain(small_images())).max() > 1e-3


def test_a_chain_by_hand(tmp_path):
    """Without a branch, weights or a known loss, and with an anchor."""
    blocks = (
        Block(1, 0, True, lambda state, anchor: anchor + tf.tanh(state), takes_anchor=True),
        Block(1, 1, True, lambda state: 2 * state),
    )
    chain = Chain(
        name="by hand",
        stem=lambda images: tf.cast(images, tf.float32),
        stages=(Stage(1, blocks),),
        head=lambda state: tf.reduce_mean(state, [1, 2]),
        loss=lambda labels, outputs: tf.reduce_sum(tf.square(outputs - labels), -1),
        input_shape=(None, None, 3),
        outputs="values",
        notes=("a note",),
    )
    opened = exported_and_opened(chain, tmp_path / "net")
    assert str(opened) == str(chain)
    data = np.random.default_rng(0).normal(size=(4, 5, 6, 3)).astype("float32"), ROWS
    np.testing.assert_array_equal(opened(data[0]), chain(data[0]))
    frames = [probes.block_metrics(of, data) for of in (opened, chain)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    assert opened.weights == ()


# Memory


def bytes_of_image(chain):
    """What the evaluator reckons with for an image, on routes of several kinds."""
    chosen = [routes.unperturbed(chain), routes.drop(chain, (1, 0))]
    chosen.append(routes.repeat_last_block(chain, 1, 2, scale=0.5))
    images = tf.zeros([1, *chain.input_shape])
    runner = evaluator._Runner(
        chain, plan_of(chain, chosen), False, np.inf, images, tf.zeros([1], tf.int64)
    )
    return runner.bytes_per_image


@pytest.mark.system
def test_nothing_of_a_chain_that_is_dropped_stays(tmp_path):
    """TensorFlow alone keeps some 20,000 objects per SavedModel, 30 MB.

    The gradients of another one, which is in use meanwhile, can be computed after that.
    """
    net = tfr.networks.ResidualNetwork((4, 4, 1), 2, blocks=1, widths=(2,))
    export(net, tmp_path / "net")
    data = small_images(IMAGES), np.arange(IMAGES) % 2
    kept, counts = tfr.chain(tmp_path / "net"), []
    # What was there before is not looked at: it takes long after many tests.
    gc.freeze()
    for _ in range(3):
        tfr.chain(tmp_path / "net")
        gc.collect()
        counts.append(len(gc.get_objects()))
    gc.unfreeze()
    assert counts[-1] - counts[0] < 2 * 100
    pd.testing.assert_frame_equal(
        probes.block_metrics(kept, data), probes.block_metrics(net, data), rtol=1e-5
    )


@both
def test_memory_is_estimated_as_for_the_network(of, request):
    of = request.getfixturevalue(of)
    for name, net in of.live.items():
        live, loaded = tfr.chain(net), tfr.chain(of.folder / name)
        assert bytes_of_image(loaded) == pytest.approx(bytes_of_image(live), rel=0.3), name


# Folders that cannot be opened


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "net"
    export(small_network(), path)
    return path


@pytest.fixture
def damaged(saved, tmp_path):
    """A copy to be damaged."""
    shutil.copytree(saved, tmp_path / "net")
    return tmp_path / "net"


def assert_refused(path, words="damaged or incomplete", error=ValueError):
    with pytest.raises(error) as raised:
        tfr.chain(path)
    message = str(raised.value)
    assert message.startswith("Argument `source` must be ")
    assert words in message
    assert message[message.rindex("Received: ") :].startswith(f"Received: source={str(path)!r}")
    assert "\n" not in message


def test_what_is_no_exported_network(damaged, tmp_path):
    assert tfr.chain(str(damaged)).name == "small"
    assert_refused(tmp_path / "nothing", "does not exist", FileNotFoundError)
    assert_refused(tmp_path, "there is no saved_model.pb in it")
    (tmp_path / "file").write_text("mine")
    assert_refused(tmp_path / "file", ".keras file")
    (tmp_path / "folder.keras").mkdir()
    assert_refused(tmp_path / "folder.keras", "there is no saved_model.pb in it")
    small_network().export(tmp_path / "keras", verbose=False)
    tf.saved_model.save(tf.Module(), str(tmp_path / "tf"))
    for name in ("keras", "tf"):
        assert_refused(tmp_path / name, "only these hold what probes need")
    export(small_network(), tmp_path / "to_serve", probing=False)
    assert_refused(tmp_path / "to_serve", "exported with `probing=False`")
    (damaged / LAYOUT_FILE).unlink()
    assert_refused(damaged, "This one has no assets.extra/tfresidual.json")


def change_layout(folder, **changes):
    layout = json.loads((folder / LAYOUT_FILE).read_text())
    (folder / LAYOUT_FILE).write_text(json.dumps(layout | changes))


def change_block(layout, **changes):
    layout["stages"][0]["blocks"][0] |= changes


def without(layout, part):
    layout["pieces"] = [name for name in layout["pieces"] if not name.endswith(part)]


VALUE = "damaged or incomplete (ValueError: tfresidual.json: "
# Changes of the layout, and what the error says.
CHANGES = {
    "another format": ({"format": 3, "tfresidual": "9.8.7"}, "tfresidual 9.8.7 wrote a newer one"),
    "pieces that are not there": ({"pieces": ["stem", "head", "nothing"]}, VALUE),
    "fewer pieces": ({"pieces": ["stem"]}, VALUE),
    "pieces that are no names": ({"pieces": [3]}, "damaged"),
    "no list of pieces": ({"pieces": None}, VALUE),
    "more parameters": ({"parameters": 99}, "damaged"),
    "fewer parameters": ({"parameters": 1}, VALUE),
    "parameters that are no number": ({"parameters": "many"}, VALUE),
    "stages that are none": ({"stages": "xy"}, VALUE),
    "no stages": ({"stages": None}, VALUE),
    "no shape": ({"input_shape": None}, VALUE),
    "a block that lacks keys": ({"stages": [{"stage": 1, "blocks": [{}]}]}, "damaged"),
    "a stage too few": ({"stages": []}, VALUE),
    "a format that is no number": ({"format": "1"}, VALUE),
    "a format that is none": ({"format": True}, VALUE),
    "the format before the first": ({"format": 0}, VALUE),
    "another kind of outputs": ({"outputs": "numbers"}, VALUE),
    "no name": ({"name": None}, VALUE),
    "a shape of letters": ({"input_shape": "abc"}, VALUE),
    "one note": ({"notes": "abc"}, VALUE),
    "neither with probes nor without": ({"probing": "false"}, VALUE),
    "a loss that is none": ({"loss": "mse"}, VALUE),
    "an arrangement of nothing": ({"arrangement": [3]}, VALUE),
    "another stage": (lambda layout: layout["stages"][0].update(stage=7), VALUE),
    "a stage by name": (lambda layout: layout["stages"][0].update(stage="1"), VALUE),
    "no blocks": (lambda layout: layout["stages"][0].update(blocks=None), VALUE),
    "a stage less": (lambda layout: layout["stages"].pop(), VALUE),
    "a shape kept by name": (lambda layout: change_block(layout, keeps_shape="no"), VALUE),
    "an anchor by name": (lambda layout: change_block(layout, takes_anchor=None), VALUE),
    "a negative index of a weight": (lambda layout: change_block(layout, weights={"a": -1}), VALUE),
    "a weight too many": (lambda layout: change_block(layout, weights={"a": 99}), VALUE),
    "a bound of nothing": (lambda layout: change_block(layout, lipschitz=3), VALUE),
    "a bound of text": (lambda layout: change_block(layout, lipschitz={"kernel": "1"}), VALUE),
    "no whole block": (lambda layout: without(layout, "block0/apply"), VALUE),
    "no join": (lambda layout: without(layout, "block0/join"), VALUE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_layouts_with_one_thing_wrong(damaged, name):
    change, words = CHANGES[name]
    layout = json.loads((damaged / LAYOUT_FILE).read_text())
    layout.update(change) if isinstance(change, dict) else change(layout)
    change_layout(damaged, **layout)
    assert_refused(damaged, words)


def test_layouts_that_lack_a_key(damaged):
    whole = json.loads((damaged / LAYOUT_FILE).read_text())
    # These came later: a SavedModel without them is older.
    for key in whole.keys() - {"arrangement", "outputs_at_positions"}:
        rest = {name: value for name, value in whole.items() if name != key}
        (damaged / LAYOUT_FILE).write_text(json.dumps(rest))
        assert_refused(damaged, f"damaged or incomplete (KeyError: '{key}')")


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "3", "{}", '{"format": 1}', b"\xff\xfe\x00{"]
)
def test_layouts_that_are_none(damaged, text):
    (damaged / LAYOUT_FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_refused(damaged)


def test_a_layout_with_a_key_twice(damaged):
    text = (damaged / LAYOUT_FILE).read_text()
    (damaged / LAYOUT_FILE).write_text(text.replace("{", '{"stages": [], ', 1))
    assert_refused(damaged, "'stages' twice")


def halved(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def changed(path):
    content = bytearray(path.read_bytes())
    content[5] ^= 255
    path.write_bytes(content)


def replaced(path, make):
    path.unlink()
    make(path)


DAMAGES = {
    "half a graph": lambda net: halved(net / "saved_model.pb"),
    "most of a graph": lambda net: halved(net / "saved_model.pb", 0.999),
    "an empty graph": lambda net: halved(net / "saved_model.pb", 0),
    "no graph": lambda net: (net / "saved_model.pb").unlink(),
    "half of the values": lambda net: halved(next(net.glob("variables/*data*"))),
    "no values": lambda net: next(net.glob("variables/*data*")).unlink(),
    "changed values": lambda net: changed(next(net.glob("variables/*data*"))),
    "half of an index": lambda net: halved(net / "variables" / "variables.index"),
    "no index": lambda net: (net / "variables" / "variables.index").unlink(),
    "no variables": lambda net: shutil.rmtree(net / "variables"),
    # It is not waited for.
    "a pipe": lambda net: replaced(net / "saved_model.pb", os.mkfifo),
    "a folder": lambda net: replaced(net / LAYOUT_FILE, os.mkdir),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_folders(damaged, name):
    DAMAGES[name](damaged)
    assert_refused(damaged)


EXECUTED = {"module": "os", "class_name": "system", "config": {"command": "touch executed"}}
COUPLING = {"inner": "sgd", "coupling": 0.5}
# What no loss is called: name and settings.
NO_LOSSES = {
    "a function of Python": ("os.system", None),
    "nothing of this package": ("tfresidual>Nothing", None),
    "nothing of Keras": ("nothing", {}),
    "a module": ("keras", None),
    "inside of a module": ("__builtins__", None),
    "no name": (3, None),
    "another config": ("MeanSquaredError", {"command": "touch executed"}),
    "a dtype": ("MeanSquaredError", {"dtype": EXECUTED}),
    "settings of ours": ("cross_entropy", {"code": "touch executed"}),
    "what finds losses": ("get", None),
    "what makes objects": ("deserialize", {"name": EXECUTED}),
    "what writes objects": ("serialize", None),
    "a network": ("tfresidual>ResidualNetwork", {"input_shape": [8, 8, 1], "classes": 3}),
    "an optimizer": ("tfresidual>GradientCoupling", COUPLING),
    "no config": {"loss": "mse"},
    "a list": ["mse"],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] * (i % 3 > 0)) for i, n in enumerate(NO_LOSSES)],
)
def test_a_layout_cannot_name_what_is_no_loss(damaged, monkeypatch, name):
    monkeypatch.chdir(damaged.parent)
    loss = NO_LOSSES[name]
    loss = dict(zip(("loss", "config"), loss, strict=True)) if isinstance(loss, tuple) else loss
    change_layout(damaged, loss=loss)
    assert_refused(damaged)
    assert [path.name for path in damaged.parent.iterdir()] == ["net"]


def test_a_layout_without_a_loss_needs_the_functions(damaged):
    """That of a network whose loss is traced, of which the functions are gone."""
    change_layout(damaged, loss=None)
    chain = tfr.chain(damaged)
    with refused("chain"):
        probes.block_metrics(chain, (small_images(), INDICES))
    assert len(probes.perturbation(chain, (small_images(), INDICES))) == 1


if __name__ == "__main__":
    open_and_probe(*sys.argv[1:])
