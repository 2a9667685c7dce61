"""Networks as SavedModels: their signatures to a process with TensorFlow alone, and the files.

`test_reader.py` opens them as chains.

Not covered: TensorFlow Serving itself, and SavedModels on a GPU.
"""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from reference.random_network import random_network
from reference.small_networks import BFLOAT16, functional_network, small_images, small_network

import tfresidual as tfr
from tfresidual import probes
from tfresidual.routing import Block, Chain, Stage, evaluate, routes
from tfresidual.saved_model import pieces, signatures, writer
from tfresidual.saved_model.format import LAYOUT_FILE
from tfresidual.sources.exporting import export

TWO_STAGES = {"blocks": (1, 2), "widths": (2, 3), "transition": "convolution"}
NETWORKS = {
    # Its second stage begins with a change of the shape.
    "ordinary": {"blocks": (2, 2), "widths": (2, 3)},
    "several labels, bfloat16": TWO_STAGES
    | {"classifier_activation": "sigmoid", "dtype": BFLOAT16, "lipschitz": 0.95, "anchor": "input"},
    "functional": None,
    "several labels": TWO_STAGES | {"classifier_activation": "sigmoid", "share_from": 0},
    "bounded": {"blocks": (2, 2), "widths": (2, 3), "lipschitz": 0.95, "anchor": "input"},
    "ordinary, bfloat16": {"blocks": (2, 2), "widths": (2, 3), "dtype": BFLOAT16},
    "images of any size": {"blocks": (2, 2), "widths": (2, 3), "input_shape": (None, None, 3)},
}
# The second one has labels and shared weights; the others are nightly.
IN_DEFAULT = ("ordinary", "several labels")
IMAGES = 6

PROGRAM = """
import json, os, pathlib, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

with open(sys.argv[1]) as file:
    tasks = json.load(file)
for task in tasks:
    loaded = tf.saved_model.load(task["path"])
    signatures = loaded.signatures
    given = dict(np.load(task["inputs"]))
    images, labels = tf.constant(given["images"]), tf.constant(given["labels"])
    found, errors, shapes = {}, {}, {}
    for name, function in signatures.items():
        _, taken = function.structured_input_signature
        shapes[name] = {
            "takes": {key: [spec.shape.as_list(), spec.dtype.name] for key, spec in taken.items()},
            "returns": {
                key: [spec.shape.as_list(), spec.dtype.name]
                for key, spec in function.structured_outputs.items()
            },
        }
    serve = signatures["serving_default"]
    for size in (1, 2, len(images)):
        found[f"serving_default {size}"] = serve(images=images[:size])["outputs"]
    for name, calls in task["calls"].items():
        function, numbers = signatures[calls.pop("signature")], {}
        for key, value in calls.items():
            numbers[key] = tf.constant(value, tf.float32 if key == "scale" else tf.int32)
        try:
            found[name] = function(images=images, **numbers)["outputs"]
        except Exception as error:
            errors[name] = [type(error).__name__, str(error)]
    for name, values in (
        ("states", signatures["states"](images=images)),
        ("block_metrics", signatures["block_metrics"](images=images, labels=labels)),
    ):
        found |= {f"{name} {key}": value for key, value in values.items()}
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = serve(images=images)["outputs"]
        target = tf.reduce_sum(outputs[:, 0])
    found["gradient"] = tape.gradient(target, images)
    state = loaded.pieces["stem"](images)
    with tf.GradientTape() as tape:
        tape.watch(state)
        behind = loaded.pieces[task["branch"]](state)
        target = tf.reduce_sum(behind)
    found["gradient of a piece"] = tape.gradient(target, state)
    found = {key: tf.cast(value, tf.float32).numpy() for key, value in found.items()}
    np.savez(task["outputs"], **found)
    pathlib.Path(task["outputs"] + ".json").write_text(json.dumps([errors, shapes]))
others = {name.split(".")[0] for name in sys.modules} & {"tfresidual", "reference"}
assert not others, others
"""


def network_of(name):
    keras.utils.set_random_seed(3)
    return functional_network() if NETWORKS[name] is None else random_network(**NETWORKS[name])


def data_of(net, chain):
    size = [side or 8 for side in chain.input_shape]
    images = np.random.default_rng(1).normal(size=(IMAGES, *size)).astype("float32")
    rng = np.random.default_rng(2)
    classes = net.output_shape[-1]
    if chain.outputs.startswith("label"):
        return images, rng.integers(0, 2, (IMAGES, classes)).astype("float32")
    return images, rng.integers(0, classes, IMAGES)


def calls_of(chain):
    """Calls by name: arguments of a signature, with the route that is the same, or `None`."""
    count, first_fixed = len(chain.blocks), None
    ones = [1] * count
    found = {"unperturbed": ({"signature": "route", "applications": ones}, routes.unperturbed)}
    for index, block in enumerate(chain.blocks):
        for times in (0, 3) if block.keeps_shape else ():
            changed = [*ones[:index], times, *ones[index + 1 :]]
            found[f"{block} applied {times} times"] = (
                {"signature": "route", "applications": changed},
                lambda chain, changed=changed: applied(chain, changed),
            )
        if not block.keeps_shape:
            first_fixed = index
    for stage in chain.stages:
        for block in range(len(stage.blocks)):
            found[f"stage {stage.index} read out after {block}"] = (
                {"signature": "readout", "stage": stage.index, "block": block},
                (lambda chain, at=(stage.index, block): routes.readout(chain, *at))
                if block in stage.exits
                else None,
            )
        for times, scale in ((0, 1.0), (1, 0.0), (2, 0.5)):
            found[f"stage {stage.index} {times} times by {scale}"] = (
                {
                    "signature": "repeat_last_block",
                    "stage": stage.index,
                    "times": times,
                    "scale": scale,
                },
                (lambda chain, a=(stage.index, times, scale): repeated(chain, *a))
                if stage.can_repeat
                else None,
            )
    everything = [2 * block.keeps_shape or 1 for block in chain.blocks]
    found["every block twice"] = (
        {"signature": "route", "applications": everything},
        lambda chain: applied(chain, everything),
    )
    return found | impossible_calls(chain, first_fixed)


def impossible_calls(chain, fixed):
    count, last = len(chain.blocks), len(chain.stages)
    found = {
        "a negative count": {"signature": "route", "applications": [-1] + [1] * (count - 1)},
        "no stage": {"signature": "readout", "stage": 0, "block": 0},
        "a stage too many": {"signature": "readout", "stage": last + 1, "block": 0},
        "a block too many": {"signature": "readout", "stage": 1, "block": 17},
        "a negative block": {"signature": "readout", "stage": 1, "block": -1},
        "no repeated stage": {
            **{"signature": "repeat_last_block", "stage": 0, "times": 1, "scale": 1.0},
        },
        "negative times": {
            **{"signature": "repeat_last_block", "stage": last, "times": -1, "scale": 1.0},
        },
        "too few counts": {"signature": "route", "applications": [1] * (count - 1)},
    }
    if fixed is not None:
        for times in (0, 2):
            changed = [1] * count
            changed[fixed] = times
            found[f"a change of shape {times} times"] = {
                "signature": "route",
                "applications": changed,
            }
    return {name: (call, None) for name, call in found.items()}


def applied(chain, counts):
    """The route that applies every block so often."""
    counts, stages = iter(counts), []
    for stage in chain.stages:
        order = [index for block in stage.blocks for index in [block.index] * next(counts)]
        stages.append(tuple(map(routes.Application, order)))
    return routes.Route("applied", tuple(stages))


def repeated(chain, stage, times, scale):
    if times == 0:
        return routes.unperturbed(chain)
    return routes.repeat_last_block(chain, stage, times, scale)


class Called:
    """What a process with TensorFlow alone got out of SavedModels."""

    def __init__(self, folder, names):
        self.live, self.data, tasks = {}, {}, []
        for place, name in enumerate(names):
            net = self.live[name] = network_of(name)
            chain = tfr.chain(net)
            self.data[name] = images, labels = data_of(net, chain)
            export(net, folder / name)
            np.savez(folder / f"{place}.npz", images=images, labels=labels)
            tasks.append(
                {
                    "path": str(folder / name),
                    "inputs": str(folder / f"{place}.npz"),
                    "outputs": str(folder / f"out{place}.npz"),
                    "calls": {key: call for key, (call, _) in calls_of(chain).items()},
                    "branch": "stage1/block0/branch",
                }
            )
        (folder / "tasks.json").write_text(json.dumps(tasks))
        result = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, str(folder / "tasks.json")],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        self.values, self.errors, self.shapes = {}, {}, {}
        for task, name in zip(tasks, names, strict=True):
            self.values[name] = dict(np.load(task["outputs"]))
            text = pathlib.Path(task["outputs"] + ".json").read_text()
            self.errors[name], self.shapes[name] = json.loads(text)


@pytest.fixture(scope="module")
def called_at_all(tmp_path_factory):
    """What every group of networks gave, by whether it is that of every run."""
    return functools.cache(
        lambda is_default: Called(
            tmp_path_factory.mktemp("called"),
            [name for name in NETWORKS if (name in IN_DEFAULT) == is_default],
        )
    )


@pytest.fixture
def called(called_at_all, name):
    return called_at_all(name in IN_DEFAULT)


all_networks = pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.system if n in IN_DEFAULT else pytest.mark.nightly)
        for n in NETWORKS
    ],
)


@all_networks
def test_serving_is_predict(called, name):
    images, _ = called.data[name]
    for size in (1, 2, IMAGES):
        # The same batch: kernels round differently for other sizes.
        expected = called.live[name].predict(images[:size], batch_size=size, verbose=0)
        outputs = called.values[name][f"serving_default {size}"]
        np.testing.assert_array_equal(outputs, expected)


@all_networks
def test_names_and_shapes(called, name):
    chain = tfr.chain(called.live[name])
    images = {"images": [[None, *chain.input_shape], "float32"]}
    classes = called.live[name].output_shape[-1]
    shapes = called.shapes[name]
    several = chain.outputs.startswith("label")
    labels = [[None, classes], "float32"] if several else [[None], "int64"]
    number = [[], "int32"]
    takes = {
        "serving_default": images,
        "states": images,
        "block_metrics": images | {"labels": labels},
        "route": images | {"applications": [[len(chain.blocks)], "int32"]},
        "readout": images | {"stage": number, "block": number},
        "repeat_last_block": images | {"stage": number, "times": number, "scale": [[], "float32"]},
    }
    assert {key: value["takes"] for key, value in shapes.items()} == takes
    for signature in ("serving_default", "route", "readout", "repeat_last_block"):
        assert shapes[signature]["returns"] == {"outputs": [[None, classes], "float32"]}
    blocks = [f"stage{block.stage}/block{block.index}" for block in chain.blocks]
    assert set(shapes["states"]["returns"]) == {"stem", *blocks}
    metrics = shapes["block_metrics"]["returns"]
    assert set(metrics) == set(metric_names())
    assert all(shape[1] == len(blocks) for shape, _ in metrics.values())


def metric_names():
    net = small_network()
    frame = probes.block_metrics(net, (small_images(), np.zeros(4, int)), per_image=True)
    return [column for column in frame if column not in ("stage", "block", "image")]


@all_networks
def test_states_are_those_of_the_walk(called, name):
    chain = tfr.chain(called.live[name])
    images, _ = called.data[name]

    @tf.function(autograph=False)
    def walk(images):
        state = chain.stem(images)
        return state, [after for _, after in chain.walk(state)[0]]

    stem, states = walk(tf.constant(images))
    values = called.values[name]
    np.testing.assert_array_equal(values["states stem"], tf.cast(stem, tf.float32))
    for block, state in zip(chain.blocks, states, strict=True):
        measured = values[f"states stage{block.stage}/block{block.index}"]
        state = tf.cast(state, tf.float32).numpy()
        # TensorFlow joins other operations where it compiles all of the walk.
        allowed = 0.01 if "bfloat16" in name else 0
        assert np.linalg.norm(measured - state) <= allowed * np.linalg.norm(state)


@all_networks
def test_block_metrics_are_those_of_the_probe(called, name):
    frame = probes.block_metrics(called.live[name], called.data[name], per_image=True)
    for metric in metric_names():
        measured = called.values[name][f"block_metrics {metric}"]
        expected = frame[metric].to_numpy().reshape(-1, IMAGES).T
        np.testing.assert_array_equal(np.isnan(measured), np.isnan(expected), err_msg=metric)
        scale = np.nanmax(np.abs(expected), initial=0)
        # Gradients are added up in another order.
        allowed = (0.005 if "bfloat16" in name else 3e-6) * scale
        difference = np.nanmax(np.abs(measured - expected), initial=0)
        assert difference <= allowed, metric


@all_networks
def test_routes_are_those_of_the_evaluator(called, name):
    chain = tfr.chain(called.live[name])
    calls = {key: route for key, (_, route) in calls_of(chain).items() if route is not None}
    chosen = [route(chain) for route in calls.values()]
    expected = evaluate(chain, called.data[name], chosen, with_outputs=True).outputs
    for key, outputs in zip(calls, expected, strict=True):
        np.testing.assert_allclose(
            called.values[name][key], outputs, err_msg=key, rtol=1e-6, atol=1e-7
        )
    served = called.values[name][f"serving_default {IMAGES}"]
    np.testing.assert_allclose(called.values[name]["unperturbed"], served, rtol=1e-6)
    dropped = called.values[name]["stage 1 block 0 applied 0 times"]
    assert np.abs(dropped - served).max() > 1e-3


@all_networks
def test_impossible_numbers_are_errors(called, name):
    chain = tfr.chain(called.live[name])
    expected = {key for key, (_, route) in calls_of(chain).items() if route is None}
    assert set(called.errors[name]) == expected
    assert len(expected) >= 8
    for key, (kind, message) in called.errors[name].items():
        if key == "too few counts":
            continue
        assert kind == "InvalidArgumentError", key
        assert "Arguments must be valid: `" in message
        assert "Received:" in message
    messages = {key: message for key, (_, message) in called.errors[name].items()}
    assert "`applications` must be 0 or more for each block" in messages["a negative count"]
    assert "`stage` (from 1) and `block` (from 0) must name" in messages["a block too many"]
    assert "`times` 0 or more" in messages["negative times"]


@all_networks
def test_gradients_flow_through_what_was_loaded(called, name):
    chain = tfr.chain(called.live[name])
    images = tf.constant(called.data[name][0])
    with tf.GradientTape() as tape:
        tape.watch(images)
        target = tf.reduce_sum(chain(images)[:, 0])
    state = chain.stem(images)
    with tf.GradientTape() as inner:
        inner.watch(state)
        behind = tf.reduce_sum(chain.blocks[0].branch(state))
    for key, expected in (
        ("gradient", tape.gradient(target, images)),
        ("gradient of a piece", inner.gradient(behind, state)),
    ):
        measured, expected = called.values[name][key], tf.cast(expected, tf.float32).numpy()
        size = np.linalg.norm(expected)
        assert size > 1e-4
        # One is compiled, the other is not.
        allowed = 0.05 if "bfloat16" in name else 1e-5
        assert np.linalg.norm(measured - expected) <= allowed * size, key


# What is written


def test_values_are_no_classes_and_have_no_metrics(tmp_path):
    inputs = keras.Input((4, 4, 1))
    state = keras.layers.Conv2D(2, 3, padding="same")(inputs)
    state = state + keras.layers.Conv2D(2, 3, padding="same")(state)
    net = keras.Model(inputs, keras.layers.Conv2D(1, 1)(state))
    export(net, tmp_path / "net")
    loaded = tf.saved_model.load(str(tmp_path / "net"))
    assert "block_metrics" not in loaded.signatures
    assert set(loaded.signatures) >= {"serving_default", "states", "route"}
    outputs = loaded.signatures["serving_default"](images=small_images())["outputs"]
    np.testing.assert_array_equal(outputs, net.predict(small_images(), verbose=0))


@pytest.mark.system
def test_block_metrics_of_a_loss_of_rows(tmp_path):
    net = small_network(loss="mse")
    export(net, tmp_path / "net")
    function = tf.saved_model.load(str(tmp_path / "net")).signatures["block_metrics"]
    rows = np.eye(3, dtype="float32")[[0, 2, 1]]
    images = small_images(3)
    expected = probes.block_metrics(net, (images, rows), per_image=True)
    _, taken = function.structured_input_signature
    labels = rows if taken["labels"].shape.rank == 2 else np.array([0, 2, 1])
    measured = function(images=images, labels=labels)["gradient_norm"][:, 0]
    np.testing.assert_allclose(measured, expected["gradient_norm"], rtol=1e-5)


def test_serving_alone(tmp_path):
    net = small_network()
    export(net, tmp_path / "net", probing=False)
    loaded = tf.saved_model.load(str(tmp_path / "net"))
    assert list(loaded.signatures) == ["serving_default"]
    for size in (1, 4):
        images = small_images(size)
        outputs = loaded.signatures["serving_default"](images=images)["outputs"]
        np.testing.assert_array_equal(outputs, net.predict(images, verbose=0))
    assert not hasattr(loaded, "pieces")
    with pytest.raises(ValueError, match=r"exported with `probing=False`.*Received: source="):
        tfr.chain(tmp_path / "net")
    layout = json.loads((tmp_path / "net" / LAYOUT_FILE).read_text())
    assert layout["probing"] is False
    assert layout["tfresidual"] == tfr.__version__


def folder_size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.system
@pytest.mark.parametrize("probing", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_no_variable_is_stored_twice(tmp_path, probing):
    net = random_network(blocks=(2,), widths=(96,), share_from=0, batch_norm="unshared")
    weights = sum(variable.numpy().nbytes for variable in net.variables)
    # That of the seed generators, and names, are not worth a word.
    assert weights > 300_000
    export(net, tmp_path / "net", probing=probing)
    (values,) = (tmp_path / "net" / "variables").glob("*data*")
    assert 0.95 * weights < values.stat().st_size < 1.1 * weights
    assert folder_size(tmp_path / "net") < 1.3 * weights + 10 * 2**20
    stored = tf.train.list_variables(str(tmp_path / "net" / "variables" / "variables"))
    sizes = [int(np.prod(shape)) for name, shape in stored if "CHECKPOINTABLE" not in name]
    assert sum(sizes) <= sum(int(np.prod(v.shape)) for v in net.variables)


@pytest.mark.nightly
def test_a_deep_network_is_exported_within_its_bounds(tmp_path):
    net = tfr.networks.resnet(110)
    begun = time.process_time()
    export(net, tmp_path / "net")
    assert time.process_time() - begun < 120
    weights = sum(variable.numpy().nbytes for variable in net.variables)
    assert folder_size(tmp_path / "net") < 1.3 * weights + 10 * 2**20
    assert len(tfr.chain(tmp_path / "net").blocks) == 54


@pytest.mark.system
def test_a_chain_without_a_known_height(tmp_path):
    net = random_network(blocks=(1,), widths=(2,), input_shape=(None, None, 3))
    export(net, tmp_path / "net")
    loaded = tf.saved_model.load(str(tmp_path / "net"))
    for size in ((2, 8, 8, 3), (1, 4, 12, 3)):
        images = np.random.default_rng(0).normal(size=size).astype("float32")
        for call in (
            loaded.signatures["serving_default"](images=images),
            loaded.signatures["route"](images=images, applications=tf.constant([1])),
        ):
            np.testing.assert_allclose(call["outputs"], net(images, training=False), rtol=1e-6)


@pytest.mark.system
def test_later_weights_are_exported_without_compiling_anew(tmp_path, monkeypatch):
    net = small_network()
    chain = tfr.chain(net)
    export(chain, tmp_path / "one")
    for module in (pieces, signatures, writer):
        monkeypatch.setattr(module, "compile_function", None)
    net.layers[1].kernel.assign(-2 * net.layers[1].kernel)
    export(chain, tmp_path / "two")
    outputs = [tfr.chain(tmp_path / name)(small_images()).numpy() for name in ("one", "two")]
    assert not np.allclose(*outputs, atol=1e-3)
    np.testing.assert_array_equal(outputs[1], net.predict(small_images(), verbose=0))


@pytest.mark.nightly
def test_bounds_are_those_of_later_weights(tmp_path):
    net = random_network(blocks=(1,), widths=(2,), lipschitz=0.9)
    chain = tfr.chain(net)
    export(chain, tmp_path / "one")
    for weight in chain.blocks[0].weights.values():
        weight.assign(3 * weight)
    export(chain, tmp_path / "two")
    expected = probes.lipschitz(net)
    opened = [probes.lipschitz(tmp_path / name) for name in ("one", "two")]
    np.testing.assert_allclose(opened[1]["divisor"], expected["divisor"], rtol=1e-3)
    assert opened[1]["divisor"][0] > opened[0]["divisor"][0]


def test_the_network_is_left_as_it_was(tmp_path):
    net = random_network(blocks=(1,), widths=(2,), shortcut="dropout")
    before, count = net.get_weights(), len(net.variables)
    export(net, tmp_path / "net")
    assert len(net.variables) == count
    for old, new in zip(before, net.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


# Files


@pytest.fixture(scope="module")
def chain():
    """Compiled for the first export, and then only written."""
    return tfr.chain(small_network())


def content_of(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
@pytest.mark.parametrize("moment", ["graph", "layout", "move"])
@pytest.mark.parametrize(
    "error", [OSError, pytest.param(KeyboardInterrupt, marks=pytest.mark.nightly)]
)
def test_a_failure_leaves_the_target_as_it_was(chain, tmp_path, monkeypatch, there, moment, error):
    path = tmp_path / "net"
    if there:
        export(chain, path, probing=False)
    before = content_of(path)

    def fail(*args, **kwargs):
        raise error("no space left")

    def half(root, folder, signatures):
        pathlib.Path(folder, "saved_model.pb").write_bytes(b"half")
        fail()

    if moment == "graph":
        monkeypatch.setattr(tf.saved_model, "save", half)
    elif moment == "layout":
        monkeypatch.setattr(json, "dumps", fail)
    else:
        replace = os.replace

        def moved(source, target):
            if pathlib.Path(target) == path and pathlib.Path(source).name == "net":
                fail()
            replace(source, target)

        monkeypatch.setattr(os, "replace", moved)
    with pytest.raises(error, match="no space left"):
        export(chain, path, overwrite=True)
    monkeypatch.undo()
    assert content_of(path) == before
    assert os.listdir(tmp_path) == ["net"] * there


def test_a_network_that_fails_leaves_nothing(tmp_path):
    def head(state):
        raise RuntimeError("a head that fails")

    block = Block(1, 0, True, lambda state: state + 1)
    failing = Chain("failing", lambda images: images, (Stage(1, (block,)),), head, None, (4, 4, 1))
    for probing in (True, False):
        with pytest.raises(RuntimeError, match="a head that fails"):
            export(failing, tmp_path / "below" / "net", probing=probing)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, pathlib, signal, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import tfresidual.jobs.probing  # all that is imported later
from tfresidual.routing import Block, Chain, Stage
from tfresidual.sources.exporting import export

def end():
    os.kill(os.getpid(), signal.SIGKILL)

def before_move(count):
    left = count
    def watch(event, arguments):
        nonlocal left
        if event == "os.rename" and sys.argv[1] in os.fsdecode(arguments[0]):
            left -= 1
            if not left:
                end()
    sys.addaudithook(watch)

def in_the_graph(save=tf.saved_model.save):
    def half(root, folder, signatures):
        save(root, folder, signatures)
        path = pathlib.Path(folder, "saved_model.pb")
        path.write_bytes(path.read_bytes()[:1000])
        end()
    tf.saved_model.save = half

def before_the_layout():
    def watch(event, arguments):
        if event == "open" and "tfresidual.json" in os.fsdecode(arguments[0]):
            end()
    sys.addaudithook(watch)

MOMENTS = {
    "graph": in_the_graph,
    "layout": before_the_layout,
    "first move": lambda: before_move(1),
    "second move": lambda: before_move(2),
    "never": lambda: None,
}
for moment in sys.argv[2:]:
    child = os.fork()
    if not child:
        block = Block(1, 0, True, lambda state: state + 2)
        chain = Chain("new", tf.identity, (Stage(1, (block,)),),
                      lambda state: tf.reduce_sum(state, [1, 2]),
                      lambda labels, outputs: tf.reduce_sum(outputs, -1), (4, 4, 1))
        MOMENTS[moment]()
        export(chain, pathlib.Path(sys.argv[1], moment, "net"), overwrite=True)
        os._exit(0)
    print(moment, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
MOMENTS = ("graph", "layout", "first move", "second move", "never")


def run_killed(folder, *moments):
    result = processes.run(KILLED, folder, *moments)
    assert result.returncode == 0, result.stderr
    return dict(line.rsplit(" ", 1) for line in result.stdout.splitlines())


@pytest.mark.system
def test_a_killed_process_leaves_no_half_of_a_target(chain, tmp_path):
    """The old one, none, or the new one; and the next export works."""
    for moment in MOMENTS:
        export(chain, tmp_path / moment / "net")
    ends = run_killed(tmp_path, *MOMENTS)
    assert ends == {moment: "0" if moment == "never" else "-9" for moment in MOMENTS}
    names = {}
    for moment in MOMENTS:
        path = tmp_path / moment / "net"
        names[moment] = tfr.chain(path).name if path.exists() else None
        # The file of a lock stays where its holder was killed; the lock does not.
        own = ("net", ".net.lock")
        others = [other for other in path.parent.iterdir() if other.name not in own]
        assert all(other.name.startswith(".net-") for other in others)
        assert len(others) == (moment != "never")
        if moment == "second move":
            # Both are there, whole, beside the file of a lock.
            found = {tfr.chain(path).name for path in others[0].iterdir() if path.is_dir()}
            assert found == {"small", "new"}
    expected = dict.fromkeys(MOMENTS, "small") | {"second move": None, "never": "new"}
    assert names == expected
    # The next export puts the new one into its place first.
    path = tmp_path / "second move" / "net"
    with pytest.raises(FileExistsError, match="which already exists"):
        export(chain, path)
    assert tfr.chain(path).name == "new"
    assert [other.name for other in path.parent.iterdir()] == ["net"]
    export(chain, path, overwrite=True)
    assert tfr.chain(path).name == "small"


@pytest.mark.nightly
def test_kills_at_any_time(chain, tmp_path):
    path = tmp_path / "never" / "net"
    export(chain, path)
    seen = set()
    rng = np.random.default_rng(0)
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED, str(tmp_path), *["never"] * 200],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        process.stdout.readline()
        time.sleep(rng.uniform(0, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if path.exists():
            seen.add(tfr.chain(path).name)
        else:
            export(chain, path)
    assert seen <= {"small", "new"}
