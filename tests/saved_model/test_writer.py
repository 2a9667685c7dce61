"""Networks as SavedModels: what their signatures compute, and what is written.

`test_reader.py` opens them as chains; files and targets are in `test_targets.py`.

Not covered: TensorFlow Serving itself, and SavedModels on a GPU.
"""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.small_networks import BFLOAT16
from saved_model.cases import WITH_CONTEXT, data_of

from tfresidual import probes
from tfresidual.routing import evaluate, routes
from tfresidual.routing.block_values import BLOCK_METRICS

# What signatures take of images that are no array, by their names.
INPUTS = {
    "masked": {"ids": ([None, None], "int32"), "mask": ([None, None], "bool")},
    "per position": {"images_0": ([None, None], "int64"), "images_1": ([None, 2], "float32")},
}


@pytest.fixture(scope="module")
def loaded(case):
    return tf.saved_model.load(str(case.path))


@pytest.fixture
def call(case, loaded):
    """Calls a signature with images, by default those of the case, and with other arguments."""

    def call(signature, images=None, **given):
        images = case.data[0] if images is None else images
        given = by_name(images) | given
        taken = loaded.signatures[signature].structured_input_signature[1]
        return loaded.signatures[signature](
            **{name: tf.constant(value, taken[name].dtype) for name, value in given.items()}
        )

    return call


def by_name(images):
    if isinstance(images, tuple):
        return {f"images_{place}": part for place, part in enumerate(images)}
    return images if isinstance(images, dict) else {"images": images}


def tensors(images):
    return keras.tree.map_structure(tf.constant, images)


@pytest.mark.sampled(2)
def test_serving_is_predict(case, call):
    kind = case.kind
    # Sizes that a network leaves open are open.
    is_open = kind in (*WITH_CONTEXT, "any size")
    for images in (case.data[0], *([data_of(kind, 12, 8)[0]] if is_open else [])):
        outputs = call("serving_default", images)["outputs"]
        if kind in WITH_CONTEXT:
            expected = case.chain(tensors(images))
            np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
        else:
            for size in (1, 2, len(images)):
                # The same batch: kernels round differently for other sizes.
                expected = case.net.predict(images[:size], batch_size=size, verbose=0)
                found = call("serving_default", images[:size])["outputs"]
                # TensorFlow joins other operations of one network, whose last stage is a block.
                allowed = 0.01 if (kind, case.is_exact) == ("ordinary", False) else 0
                np.testing.assert_allclose(found, expected, rtol=allowed, atol=0)
        route = call("route", images, applications=[1] * len(case.chain.blocks))["outputs"]
        np.testing.assert_allclose(route, outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(3)
def test_names_and_shapes(case, loaded):
    def said(specs):
        return {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in specs.items()}

    kind, chain, number = case.kind, case.chain, ([], "int32")
    images = INPUTS.get(kind)
    if images is None:
        images = {"images": ([None, *chain.input_shape], "float32")}
    outputs = [None, 3 if kind in WITH_CONTEXT else 5]
    labels = {"several labels": (outputs, "float32"), "per position": ([None, None], "int64")}
    labels = labels.get(kind, ([None], "int64"))
    outputs = [None, *outputs] if kind == "per position" else outputs
    functions, count = loaded.signatures, len(chain.blocks)
    assert {name: said(one.structured_input_signature[1]) for name, one in functions.items()} == {
        "serving_default": images,
        "states": images,
        "block_metrics": images | {"labels": labels},
        "route": images | {"applications": ([count], "int32")},
        "readout": images | {"stage": number, "block": number},
        "repeat_last_block": images | {"stage": number, "times": number, "scale": ([], "float32")},
    }
    returned = {name: said(one.structured_outputs) for name, one in functions.items()}
    for signature in ("serving_default", "route", "readout", "repeat_last_block"):
        assert returned[signature] == {"outputs": (outputs, "float32")}
    blocks = [f"stage{block.stage}/block{block.index}" for block in chain.blocks]
    assert set(returned["states"]) == {"stem", *blocks}
    assert set(returned["block_metrics"]) == set(BLOCK_METRICS)
    assert all(shape[1] == count for shape, _ in returned["block_metrics"].values())


PROGRAM = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

path, inputs, outputs = sys.argv[1:]
given, found = np.load(inputs), {}
for name, function in tf.saved_model.load(path).signatures.items():
    taken = {key: tf.constant(given[key]) for key in function.structured_input_signature[1]}
    for key, value in function(**taken).items():
        found[f"{name} {key}"] = tf.cast(value, tf.float32).numpy()
np.savez(outputs, **found)
others = {name.split(".")[0] for name in sys.modules} & {"tfresidual", "reference"}
assert not others, others
"""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(("several labels", "float32"), marks=pytest.mark.nightly),
        pytest.param(("convergent", BFLOAT16), marks=pytest.mark.nightly),
    ],
    indirect=True,
)
def test_a_process_with_tensorflow_alone(case, loaded, tmp_path):
    numbers = {"applications": np.ones(len(case.chain.blocks)), "stage": 2, "block": 0, "times": 2}
    given = {name: np.int32(value) for name, value in numbers.items()}
    given |= {"images": case.data[0], "labels": case.data[1], "scale": np.float32(0.5)}
    np.savez(tmp_path / "inputs.npz", **given)
    files = [tmp_path / name for name in ("inputs.npz", "outputs.npz")]
    command = [sys.executable, "-P", "-c", PROGRAM, case.path, *files]
    result = subprocess.run(
        list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found = np.load(files[1])
    for name, function in loaded.signatures.items():
        taken = function.structured_input_signature[1]
        for key, value in function(**{key: tf.constant(given[key]) for key in taken}).items():
            measured = found[f"{name} {key}"]
            np.testing.assert_allclose(measured, tf.cast(value, tf.float32), rtol=1e-5, atol=1e-6)


def test_states_are_those_of_the_walk(case, call):
    @tf.function(autograph=False)
    def walk(images):
        chain = case.chain.with_context(images)
        state = chain.stem(images)
        return state, [after for _, after in chain.walk(state)[0]]

    stem, states = walk(tensors(case.data[0]))
    values = call("states")
    np.testing.assert_array_equal(*(tf.cast(one, tf.float32) for one in (values["stem"], stem)))
    allowed = (1e-6 if case.kind in WITH_CONTEXT else 0) if case.is_exact else 0.01
    for block, state in zip(case.chain.blocks, states, strict=True):
        measured = tf.cast(values[f"stage{block.stage}/block{block.index}"], tf.float32)
        state = tf.cast(state, tf.float32)
        # TensorFlow joins other operations where it compiles all of the walk.
        assert tf.norm(measured - state) <= allowed * tf.norm(state)


@pytest.mark.sampled(3)
def test_block_metrics_are_those_of_the_probe(case, call):
    labels = case.data[1]
    frame = probes.block_metrics(case.net, case.data, per_image=True)
    found = call("block_metrics", labels=labels)
    for metric, measured in found.items():
        expected = frame[metric].to_numpy().reshape(len(case.chain.blocks), -1).T
        # Gradients are added up in another order.
        allowed = (3e-6 if case.is_exact else 0.005) * np.nanmax(np.abs(expected), initial=0)
        np.testing.assert_allclose(measured, expected, rtol=0, atol=allowed, err_msg=metric)
    if case.kind == "per position":
        # Padding is known from the context too.
        again = call("block_metrics", labels=np.maximum(labels, 0))
        for metric, values in found.items():
            np.testing.assert_array_equal(again[metric], values)


def calls_of(chain):
    """Yields signatures, their arguments, and the route that is the same; `None` if none is."""
    stages = chain.stages
    free, fixed = (
        [index for index, block in enumerate(chain.blocks) if block.keeps_shape == keeps]
        for keeps in (True, False)
    )

    def counts(times, *places):
        return [times if index in places else 1 for index in range(len(chain.blocks))]

    for given in (counts(1), counts(2, *free), *(counts(n, i) for i in free for n in (0, 3))):
        yield "route", {"applications": given}, applied(chain, given)
    for given in (counts(-1, 0), counts(1)[1:], *(counts(n, i) for i in fixed for n in (0, 2))):
        yield "route", {"applications": given}, None
    for stage in stages:
        for block in range(len(stage.blocks)):
            place = {"stage": stage.index, "block": block}
            yield (
                "readout",
                place,
                routes.readout(chain, *place.values()) if (block in stage.exits) else None,
            )
        for times, scale in ((0, 1.0), (1, 0.0), (2, 0.5)):
            given = {"stage": stage.index, "times": times, "scale": scale}
            route = None
            if stage.can_repeat and times:
                route = routes.repeat_last_block(chain, *given.values())
            elif stage.can_repeat:
                route = routes.unperturbed(chain)
            yield "repeat_last_block", given, route
    for stage, block in ((0, 0), (len(stages) + 1, 0), (1, 17), (1, -1)):
        yield "readout", {"stage": stage, "block": block}, None
    for stage, times in ((0, 1), (len(stages), -1)):
        yield "repeat_last_block", {"stage": stage, "times": times, "scale": 1.0}, None


def applied(chain, counts):
    """The route that applies every block so often."""
    counts, stages = iter(counts), []
    for stage in chain.stages:
        order = [index for block in stage.blocks for index in [block.index] * next(counts)]
        stages.append(tuple(map(routes.Application, order)))
    return routes.Route("applied", tuple(stages))


@pytest.mark.sampled(3)
def test_routes_are_those_of_the_chain(case, call):
    calls = [one for one in calls_of(case.chain) if one[-1] is not None]
    chosen = [route for *_, route in calls]
    expected = evaluate(case.chain, case.data, chosen, with_outputs=True).outputs
    is_counted = case.data[1] >= 0 if case.kind == "per position" else slice(None)
    allowed = {"rtol": 1e-5, "atol": 1e-6} if case.kind in WITH_CONTEXT else {"rtol": 1e-6}
    for (signature, given, _), outputs in zip(calls, expected, strict=True):
        measured = call(signature, **given)["outputs"].numpy()[is_counted]
        np.testing.assert_allclose(
            measured, outputs, err_msg=str(given), **{"atol": 1e-7} | allowed
        )
    served = call("serving_default")["outputs"].numpy()[is_counted]
    np.testing.assert_allclose(expected[0], served, **allowed)
    assert np.abs(expected[2] - served).max() > 1e-3


@pytest.mark.sampled(3)
def test_gradients_flow_through_what_was_loaded(case, loaded):
    if case.kind in WITH_CONTEXT:
        pytest.skip("takes ids")
    images = tf.constant(case.data[0])
    state = case.chain.stem(images)
    served = loaded.signatures["serving_default"]
    piece = loaded.pieces["stage1/block0/branch"]
    for start, functions in (
        (images, (lambda x: served(images=x)["outputs"][:, 0], lambda x: case.chain(x)[:, 0])),
        (state, (piece, case.chain.blocks[0].branch)),
    ):
        found = []
        for function in functions:
            with tf.GradientTape() as tape:
                tape.watch(start)
                # Both are compiled: in bfloat16, other roundings would be a tenth of the gradient.
                target = tf.reduce_sum(tf.function(function, autograph=False)(start))
            found.append(tf.cast(tape.gradient(target, start), tf.float32).numpy())
        measured, expected = found
        size = np.linalg.norm(expected)
        assert size > 1e-4
        assert np.linalg.norm(measured - expected) <= (1e-6 if case.is_exact else 0.01) * size


# What is written
