"""Chains from SavedModels: the frames of all probes, losses, memory, and damaged folders.

    python test_reader.py FOLDER

is what the tests start as another process: it opens FOLDER/net, without the code that builds
networks, and writes the frames of all probes on it. They are compared with those of the live
network, number by number: they are equal, but for gradients that TensorFlow adds up in another
order, where blocks take an anchor and in models by hand. There they agree to 1e-5 of the largest
number of a column, in bfloat16 to 0.5 %.

Not covered: SavedModels that another version of TensorFlow or of this package wrote.
"""

import gc
import json
import pathlib
import pickle
import shutil
import sys

import keras
import numpy as np
import pandas as pd
import processes
import pytest
import tensorflow as tf
from reference.small_networks import small_images, small_network
from refusals import refused
from saved_model.cases import WITH_CONTEXT, params

import tfresidual as tfr
from tfresidual import probes, training
from tfresidual.routing import routes
from tfresidual.sources.exporting import export
from tfresidual.sources.saved_model.format import LAYOUT_FILE


def probes_of(chain, data):
    """Probes by name, as functions without arguments that return a frame or an array."""
    found = {
        "block_metrics": lambda: probes.block_metrics(chain, data, per_image=True),
        "perturbation": lambda: probes.perturbation(chain, data),
        "readout": lambda: probes.readout(chain, data),
        "drop_blocks": lambda: probes.drop_blocks(chain, data),
        "repeat_last_block, scaled": lambda: probes.repeat_last_block(
            chain, data, times=2, scale=0.5
        ),
        "signal_propagation": lambda: probes.signal_propagation(chain, data, per_image=True),
    }
    if chain.context is not None:
        return found
    images, _ = data
    block = chain.blocks[1]
    place = {"stage": block.stage, "block": block.index}
    state, _ = chain.walk_to(chain.stem(images), *place.values())
    vectors = np.random.default_rng(2).normal(size=state.shape).astype("float32")
    chosen = [routes.unperturbed(chain), routes.drop(chain, (1, 0)), routes.readout(chain, 1, 0)]
    found |= {
        "computational_distance": lambda: probes.computational_distance(chain, data),
        "repeat_last_block": lambda: probes.repeat_last_block(chain, data, times=2),
        "convergence_indices": lambda: probes.convergence_frames(
            chain, data, times=2, at_chance="nan"
        )[1],
        "borderline": lambda: probes.borderline(chain, data, blocks=2, times=2),
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


def open_and_probe(folder):
    """What the other process does."""

    def refuse(*args, **kwargs):
        raise AssertionError("a SavedModel is opened without the code of its network")

    # What the chain of a SavedModel has no need for.
    tfr.networks.ResidualNetwork.__init__ = tfr.layers.ResidualUnit.__init__ = refuse
    tfr.layers.ResidualUnit.__call__ = tfr.layers.BatchNormalization.__call__ = refuse
    keras.saving.load_model = keras.Model.__init__ = refuse
    folder = pathlib.Path(folder)
    frames = frames_of(folder / "net", pickle.loads((folder / "data").read_bytes()))
    (folder / "frames").write_bytes(pickle.dumps(frames))


# Of what gradients are not a part.
FORWARD = (
    *("perturbation", "computational_distance", "readout", "drop_blocks", "borderline"),
    *("convergence_indices", "effective_parameters", "weight_deviations", "fixed_point"),
    *("evaluate_routes", "shuffle_blocks", "lipschitz"),
)


def assert_frames_agree(frames, expected, allowed, exact):
    """Numbers but those of exact probes may differ by a share of the largest of their column."""
    assert list(frames) == list(expected)
    for name, frame in frames.items():
        columns, others = (
            dict(one) if isinstance(one, pd.DataFrame) else {"": one}
            for one in (frame, expected[name])
        )
        assert list(columns) == list(others)
        for column, other in others.items():
            values, other = np.asarray(columns[column]), np.asarray(other)
            assert values.dtype == other.dtype
            if name in exact or other.dtype.kind not in "fiu":
                np.testing.assert_array_equal(values, other, err_msg=f"{name} {column}")
                continue
            # Residuals are shares of an eigenvalue.
            largest = np.nanmax(np.abs(other), initial=column == "residual")
            np.testing.assert_allclose(
                values, other, rtol=0, atol=allowed * largest, err_msg=f"{name} {column}"
            )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", params("masked", "per position"), indirect=True, ids=str)
def test_frames_of_a_saved_model_are_those_of_the_network(case):
    folder, kind = case.path.parent, case.kind
    (folder / "data").write_bytes(pickle.dumps(case.data))
    result = processes.run(pathlib.Path(__file__), folder)
    assert result.returncode == 0, result.stderr
    frames = pickle.loads((folder / "frames").read_bytes())
    exact = FORWARD if kind in ("convergent", "bounded", "functional") else frames
    exact = () if kind in WITH_CONTEXT else exact
    allowed = 1e-5 if case.is_exact else 0.005
    assert_frames_agree(frames, frames_of(case.net, case.data), allowed, exact)
    assert (frames["block_metrics"]["gradient_norm"] > 0).any()


@pytest.mark.sampled(2)
def test_the_chain_says_what_the_live_one_says_and_is_exported_again(case, tmp_path):
    live, loaded = tfr.chain(case.net), tfr.chain(case.path)
    # A SavedModel knows its loss; of a model that was not compiled, a line says which is taken.
    assert str(live).startswith(str(loaded))
    more = str(live).removeprefix(str(loaded)).splitlines()[1:]
    assert len(more) == (not case.net.compiled)
    for name in ("input_shape", "input_dtype", "outputs"):
        assert getattr(loaded, name) == getattr(live, name)
    assert [w.shape for w in loaded.weights] == [w.shape for w in live.weights]
    for block, other in zip(loaded.blocks, live.blocks, strict=True):
        assert (block.keeps_shape, block.takes_anchor) == (other.keeps_shape, other.takes_anchor)
        assert list(block.weights) == list(other.weights)
        for role, weight in block.weights.items():
            np.testing.assert_array_equal(weight, other.weights[role])
            assert any(weight is known for known in loaded.weights)
    if live.context is not None:
        images = keras.tree.map_structure(tf.constant, case.data[0])
        np.testing.assert_array_equal(loaded.reference(images), loaded(images))
        contexts = [chain.context(images) for chain in (loaded, live)]
        assert set(contexts[0]) == set(contexts[1])
        for key, value in contexts[0].items():
            assert value.dtype == contexts[1][key].dtype
            np.testing.assert_array_equal(value, contexts[1][key])
    if case.kind == "shared":
        one, other = (block.weights for block in loaded.stages[1].blocks)
        shared = [role for role in one if one[role] is other[role]]
        assert {role for role in one if role.endswith("kernel")} <= set(shared) < set(one)
    again = exported_and_opened(loaded, tmp_path / "again", case.data[0])
    assert str(again) == str(loaded)
    layouts = [(path / LAYOUT_FILE).read_text() for path in (case.path, tmp_path / "again")]
    assert layouts[0] == layouts[1]
    found, expected = (probes.drop_blocks(chain, case.data) for chain in (again, loaded))
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def exported_and_opened(chain, path, inputs=None):
    export(chain, path, inputs=inputs)
    return tfr.chain(path)


# Small chains, one block each


INDICES = np.array([0, 2, 1, 2])
ROWS = np.eye(3, dtype="float32")[INDICES]
SEVERAL = np.float32([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
ANY_LABELS = (INDICES, INDICES.astype("int32"), INDICES[:, None], ROWS, ROWS.astype("int64"))


def squares_by_hand(labels, outputs):
    labels = keras.ops.cast(labels, outputs.dtype)
    return keras.ops.mean(keras.ops.square(labels - outputs), axis=-1)


def sparse_by_hand(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)


def mean_squared_error(labels, outputs):
    """A function called like one of Keras."""
    return 3 * squares_by_hand(labels, outputs)


@keras.saving.register_keras_serializable("tests")
class OwnLoss(keras.losses.Loss):
    def call(self, labels, outputs):
        return squares_by_hand(labels, outputs)


SMOOTHED = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
FOCAL = keras.losses.CategoricalFocalCrossentropy(gamma=1.5, from_logits=True)
# The loss, the labels it takes, the last activation, and whether it is traced.
LOSSES = {
    "not compiled": (None, ANY_LABELS, "softmax", False),
    "a name": ("sparse_categorical_crossentropy", ANY_LABELS, "softmax", False),
    "label smoothing": (SMOOTHED, (ROWS,), "softmax", False),
    "an object, logits": (FOCAL, (ROWS,), None, False),
    "several labels": (training.MultiLabelCrossentropy(), (SEVERAL,), "sigmoid", False),
    "by hand": (squares_by_hand, (ROWS,), "softmax", True),
    "by hand, of indices": (sparse_by_hand, (INDICES, INDICES[:, None]), "softmax", True),
    "by hand, with a name of Keras": (mean_squared_error, (ROWS,), "softmax", True),
    "a class by hand": (OwnLoss(), (ROWS,), "sigmoid", True),
}
IN_DEFAULT = ("label smoothing", "a class by hand", "by hand, with a name of Keras")


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in IN_DEFAULT else [pytest.mark.nightly]) for n in LOSSES],
)
def test_losses_are_those_of_the_network(tmp_path, name):
    loss, kinds, activation, is_traced = LOSSES[name]
    net = small_network(activation, loss=loss)
    export(net, tmp_path / "net")
    layout = json.loads((tmp_path / "net" / LAYOUT_FILE).read_text())
    assert (layout["loss"] is None) == is_traced
    for labels in kinds:
        assert_losses_agree(tfr.chain(tmp_path / "net"), tfr.chain(net), labels)


# Chains that are exported again


@pytest.mark.system
@pytest.mark.parametrize("case", [("shared", "float32")], indirect=True, ids=str)
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("loaded", "repeated, scaled"),
        pytest.param("loaded", "no block", marks=pytest.mark.nightly),
        pytest.param("live", "no block", marks=pytest.mark.nightly),
        pytest.param("live", "repeated, scaled", marks=pytest.mark.nightly),
    ],
)
def test_a_route_is_exported_as_a_chain(case, tmp_path, source, name):
    def followed(chain):
        is_drop = name == "no block"
        route = (
            routes.drop(chain, (1, 0)) if is_drop else routes.repeat_last_block(chain, 2, 1, 0.5)
        )
        return route.name, routes.follow(chain, route)

    expected_name, start = followed(tfr.chain(case.net if source == "live" else case.path))
    opened = exported_and_opened(start, tmp_path / "net")
    _, expected = followed(tfr.chain(case.net))
    images = case.data[0]
    np.testing.assert_allclose(opened(images), expected(images), rtol=2e-6, atol=1e-7)
    assert opened.name == expected_name
    assert [len(one.blocks) for one in opened.stages] == [len(one.blocks) for one in start.stages]
    frames = [probes.readout(chain, case.data) for chain in (opened, start)]
    pd.testing.assert_frame_equal(*frames, rtol=1e-5)


# Memory


@pytest.mark.system
def test_nothing_of_a_chain_that_is_dropped_stays(tmp_path):
    """TensorFlow alone keeps some 20,000 objects per SavedModel, 30 MB.

    The gradients of another one, which is in use meanwhile, can be computed after that.
    """
    net = tfr.networks.ResidualNetwork((4, 4, 1), 2, blocks=1, widths=(2,))
    export(net, tmp_path / "net")
    data = small_images(), np.arange(4) % 2
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


def change_layout(folder, **changes):
    layout = json.loads((folder / LAYOUT_FILE).read_text())
    (folder / LAYOUT_FILE).write_text(json.dumps(layout | changes))


DAMAGES = {
    "no layout": lambda net: (net / LAYOUT_FILE).unlink(),
    "another format": lambda net: change_layout(net, format=9),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_folders(damaged, name):
    DAMAGES[name](damaged)
    with refused("source"):
        tfr.chain(damaged)


if __name__ == "__main__":
    open_and_probe(*sys.argv[1:])
