"""Arguments of the public functions: wrong types are refused by name, those of NumPy are taken.

Nothing is trained here, and no probe runs: arguments are looked at before the work.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.random_network import random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks, datasets, layers, networks, probes, training
from tfresidual.datasets import DigitclutterConfig
from tfresidual.datasets.augmentation import random_crop
from tfresidual.datasets.digitclutter import sample_scene
from tfresidual.definitions.arguments import (
    check_bool,
    check_choice,
    check_int,
    check_ints,
    check_number,
)
from tfresidual.jobs.settings import Settings, check
from tfresidual.probes.running import ProbeOptions
from tfresidual.routing import evaluate, routes

# What is no bool, no int from 0 on, and no number over 0.
NO_BOOLS = ["yes", 1, 0.0, [True]]
NO_INTS = [True, np.True_, 1.5, np.float64(2), "2", -1, [1], np.array([1])]
NO_NUMBERS = [True, np.True_, "0.1", -1, np.nan, np.inf, 1j, [0.1], 10**400]
KINDS = {"bool": NO_BOOLS, "int": NO_INTS, "number": NO_NUMBERS}

IMAGES = np.zeros((4, 8, 8, 3), "float32")
DATA = (IMAGES, np.zeros(4, int))
SHAPE = (8, 8, 3)


@pytest.fixture(scope="module")
def chain():
    return tfr.chain(random_network(blocks=2, widths=(4,)))


def of_network(**kwargs):
    return networks.ResidualNetwork(SHAPE, **{"classes": 2, "blocks": 1, "widths": (4,)} | kwargs)


def of_settings(**kwargs):
    check(Settings(**kwargs))


def of_route(function, chain, **kwargs):
    return function(chain, DATA, [routes.unperturbed(chain)], **kwargs)


STEPS = {"epochs": 1, "steps_per_epoch": 1}
NOWHERE = {"data_dir": "nowhere"}
BLOCK = {"stage": 1, "block": 0}
CHAIN = object()
OF_CHAIN = [CHAIN, DATA]
# A function, what it is given first, where `CHAIN` is a chain, what else it needs, and its
# arguments by kind. An argument that may be None has a question mark.
CALLS = [
    (layers.ResidualUnit, [], {"filters": 4}, "int: filters strides; bool: bottleneck"),
    (layers.ResidualUnit, [], {"filters": 4}, "number: lipschitz?"),
    (layers.PointwiseConvolution, [], {"filters": 4}, "int: filters"),
    (layers.Subsampling, [], {"filters": 4}, "int: filters strides"),
    (layers.DropoutShortcut, [], {}, "number: rate; int: seed?; bool: rescale"),
    (of_network, [], {}, "int: classes stem_width? pooling share_from?; number: lipschitz?"),
    (of_network, [], {}, "bool: bottleneck recurrent_initialization"),
    (networks.resnet, [], {}, "int: depth classes; bool: bottleneck"),
    (networks.resnet101, [], {}, "int: width stages"),
    (networks.DenseBlock, [], {"hidden": 4}, "int: hidden; bool: shortcut"),
    (networks.InverseProblemNetwork, ["residual"], {}, "int: blocks width hidden"),
    (networks.error_correction, [np.ones((1, 2))], {}, "int: steps"),
    (networks.error_correcting_network, [], {}, "int: steps"),
    (training.coupling_kernel, [[0, 1]], {}, "number: coupling"),
    (training.GradientCoupling, ["sgd"], {"coupling": 0.5}, "number: coupling; int: first_block"),
    (training.compile_network, [None, "mnist"], STEPS, "int: epochs steps_per_epoch"),
    (training.compile_network, [None, "mnist"], STEPS, "bool: multi_label; number: coupling?"),
    (training.recipe("mnist").schedule, [], STEPS, "int: epochs steps_per_epoch"),
    (training.hauser_batch_size, [], {"blocks": 2}, "int: blocks"),
    (training.train, [None, None, None, "nowhere"], {"metric": "accuracy"}, "int: epochs"),
    (random_crop, [IMAGES, (0, 1)], {}, "int: padding"),
    (datasets.load, ["mnist"], NOWHERE, "int: batch_size seed train_size? test_size?"),
    (datasets.load, ["mnist"], NOWHERE, "bool: augment? shuffle download"),
    (datasets.describe, ["digitclutter"], {}, "int: digits"),
    (datasets.inverse_problem, [], {"count": 1}, "int: count seed; number: limit"),
    (DigitclutterConfig, [], {}, "int: digits train_size validation_size test_size seed"),
    (sample_scene, [], {"index": 0}, "int: index digits seed"),
    (routes.repeat_last_block, [CHAIN], {"stage": 1, "times": 1}, "int: stage times"),
    (routes.readout, [CHAIN], {"stage": 1, "after": 0}, "int: stage after"),
    (routes.shuffle, [CHAIN], {"stage": 1}, "int: stage seed swaps?"),
    (of_route, [evaluate, CHAIN], {}, "bool: with_outputs with_losses progress"),
    (of_route, [evaluate, CHAIN], {}, "number: memory_limit"),
    (of_route, [probes.evaluate_routes, CHAIN], {}, "bool: per_image progress"),
    (of_route, [probes.evaluate_routes, CHAIN], {}, "number: memory_limit"),
    (probes.block_metrics, OF_CHAIN, {}, "bool: per_image progress"),
    (probes.perturbation, OF_CHAIN, {}, "bool: per_image progress"),
    (probes.signal_propagation, OF_CHAIN, {}, "bool: per_image progress"),
    (probes.line_element, OF_CHAIN, {}, "bool: per_image progress"),
    (probes.computational_distance, OF_CHAIN, {}, "bool: progress"),
    (probes.path_lengths, OF_CHAIN, {}, "bool: progress"),
    (probes.drop_blocks, OF_CHAIN, {}, "bool: progress; number: memory_limit"),
    (probes.block_importance, OF_CHAIN, {}, "int: run; bool: progress; number: memory_limit"),
    (probes.readout, OF_CHAIN, {}, "bool: progress; number: memory_limit"),
    (probes.first_order, OF_CHAIN, {}, "bool: per_image progress; number: memory_limit"),
    (probes.lens, OF_CHAIN, {}, "bool: per_image per_position progress"),
    (probes.attribution, OF_CHAIN, {}, "bool: per_image per_position progress"),
    (probes.patching, OF_CHAIN, {}, "bool: per_image progress"),
    (probes.repeat_last_block, OF_CHAIN, {}, "int: times; bool: block_metrics progress"),
    (probes.repeat_last_block, OF_CHAIN, {}, "number: memory_limit"),
    (probes.convergence_indices, OF_CHAIN, {}, "int: times; number: chance memory_limit"),
    (probes.convergence_indices, OF_CHAIN, {}, "bool: progress"),
    (probes.borderline, OF_CHAIN, {}, "int: blocks times; number: probability memory_limit"),
    (probes.borderline, OF_CHAIN, {}, "bool: progress"),
    (probes.shuffle_blocks, OF_CHAIN, {}, "int: draws seed; number: memory_limit; bool: progress"),
    (probes.fixed_point, OF_CHAIN, {}, "int: times; bool: progress"),
    (probes.lipschitz, [CHAIN], {}, "bool: progress"),
    (probes.weight_deviations, [CHAIN], {}, "int: first_block"),
    (probes.effective_parameters, [CHAIN], {}, "int: first_block"),
    (probes.metric_eigenvalues, OF_CHAIN, BLOCK, "int: stage block count most_iterations"),
    (probes.metric_eigenvalues, OF_CHAIN, BLOCK, "number: tolerance; bool: progress"),
    (probes.line_between, [CHAIN, IMAGES, IMAGES], {}, "int: stage block points; bool: progress"),
    *(
        (kind, [DATA], {}, "int: every")
        for kind in (
            *(callbacks.Attribution, callbacks.BlockMetrics, callbacks.DropBlocks, callbacks.Lens),
            *(callbacks.Readout, callbacks.SignalPropagation),
        )
    ),
    (callbacks.Borderline, [DATA], {}, "int: every blocks; number: probability"),
    (callbacks.ConvergenceIndices, [DATA], {}, "int: every times; number: chance"),
    (callbacks.Perturbation, [DATA], {}, "int: every; number: epsilon"),
    (callbacks.Lipschitz, [], {}, "int: every"),
    (callbacks.ExportForProbing, ["nowhere"], {}, "int: every; bool: overwrite"),
    (tfr.export, [CHAIN, "nowhere"], {}, "bool: probing overwrite"),
    (of_settings, [], {}, "int: width? epochs batch_size validation depth? train_size? seed"),
    (of_settings, [], {}, "bool: recurrent; number: epsilon coupling?"),
    (ProbeOptions, [], {}, "int: times first_block?; number: chance memory_limit"),
]


@pytest.mark.parametrize(("function", "first", "given", "arguments"), CALLS)
def test_wrong_types_are_refused_by_name(
    function, first, given, arguments, chain, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    first = [chain if part is CHAIN else part for part in first]
    for kind, _, names in (part.partition(": ") for part in arguments.split("; ")):
        for argument in names.split():
            argument, may_be_none = argument.rstrip("?"), argument.endswith("?")
            for value in [*KINDS[kind], None]:
                # Without a limit.
                is_endless = value is np.inf and argument == "memory_limit"
                if is_endless or (value is None and may_be_none):
                    continue
                with pytest.raises(ValueError) as error:
                    function(*first, **given | {argument: value})
                message = str(error.value)
                assert f"`{argument}`" in message, (argument, value, message)
                assert f"Received: {argument}=" in message, (argument, value, message)
                assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [True, "2", None, [0.1]], ids=str)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (layers.ScaledShortcut, "scale"),
        (layers.ScaledShortcut, "branch_scale"),
        (layers.ExclusiveGateShortcut, "bias"),
        (layers.ShortcutOnlyGateShortcut, "bias"),
    ],
)
def test_numbers_of_any_sign(make, name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must be a finite number\. Received: {name}="):
        make(**{name: value})
    assert make(**{name: -1}).get_config()[name] == -1


@pytest.mark.parametrize(
    "layer", [layers.ResidualUnit, layers.PointwiseConvolution, layers.Subsampling]
)
def test_layers_without_filters(layer):
    with refused("filters"):
        layer(0)


@pytest.mark.parametrize("value", [(), (0,), (4, 8.0), (True,), "44", 4.0, None, {4: 8}], ids=str)
@pytest.mark.parametrize("name", ["widths", "blocks"])
def test_ints_of_stages(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must .*Received: {name}="):
        of_network(**{name: value})


# Each with an argument of NumPy, and the same of Python.
TWINS = {
    "unit": (
        lambda i, f, b: layers.ResidualUnit(
            i(8), bottleneck=b(True), strides=i(2), lipschitz=f(0.5), data_format="channels_last"
        )
    ),
    "pointwise": lambda i, f, b: layers.PointwiseConvolution(i(8), strides=i(2), name="p"),
    "pointwise, two strides": lambda i, f, b: layers.PointwiseConvolution(
        i(8), strides=(i(2), i(1)), name="p"
    ),
    "subsampling": lambda i, f, b: layers.Subsampling(i(8), i(3)),
    "scaled": lambda i, f, b: layers.ScaledShortcut(f(0.25), f(2)),
    "gate": lambda i, f, b: layers.ExclusiveGateShortcut(f(-2)),
    "dropout": lambda i, f, b: layers.DropoutShortcut(f(0.25), seed=i(3), rescale=b(True)),
    "dense": lambda i, f, b: networks.DenseBlock(i(4), shortcut=b(False)),
    "inverse problem": lambda i, f, b: networks.InverseProblemNetwork(
        "recurrent", blocks=i(2), width=i(4), hidden=i(4)
    ),
    "network": lambda i, f, b: networks.ResidualNetwork(
        (i(8), i(8), i(3)),
        i(5),
        blocks=i(2),
        widths=(i(4), i(8)),
        stem_width=i(4),
        bottleneck=b(False),
        pooling=i(2),
        share_from=i(0),
        recurrent_initialization=b(True),
        lipschitz=f(0.5),
    ),
    "coupling": lambda i, f, b: training.GradientCoupling("sgd", f(0.5), first_block=i(1)),
}


@pytest.mark.parametrize("name", TWINS)
def test_arguments_of_numpy_leave_configs_of_python(name):
    ours, theirs = (
        TWINS[name](*types) for types in ((np.int64, np.float32, np.bool_), (int, float, bool))
    )
    kind = type(ours)
    configs = [one.get_config() | {"name": "same", "branch_initializer": 0, "inner": 0}
               for one in (ours, theirs)]  # fmt: skip
    assert json.dumps(configs[0]) == json.dumps(configs[1])
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(ours)))
    again = keras.saving.deserialize_keras_object(serialized)
    assert type(again) is kind
    assert json.dumps(again.get_config()) == json.dumps(ours.get_config())


def test_numbers_of_numpy_are_taken(chain, tmp_path):
    check(Settings(epochs=np.int64(2), gamma=np.float32(0.5), recurrent=np.True_))
    assert json.dumps(Settings(seed=np.int32(3)).seed) == "3"
    assert DigitclutterConfig(digits=np.int64(4)).name == DigitclutterConfig(digits=4).name
    assert sample_scene(np.int64(7), np.int8(3)) == sample_scene(7, 3)
    assert networks.resnet(np.int64(8), (8, 8, 3), np.int32(2)).name == "resnet8"
    assert type(callbacks.BlockMetrics(DATA, every=np.int64(2)).every) is int
    callback = callbacks.ExportForProbing(tmp_path, epochs=np.arange(3), overwrite=np.False_)
    assert callback.epochs == {0, 1, 2} and callback.overwrite is False
    route = routes.repeat_last_block(chain, np.int64(1), np.int64(2), np.float32(0.5))
    assert route == routes.repeat_last_block(chain, 1, 2, 0.5)
    assert training.recipe("mnist").schedule(np.int64(2), np.int64(3)).boundaries
    assert random_crop(tf.zeros((1, 4, 4, 1)), (0, 1), np.int64(1)).shape == (1, 4, 4, 1)


@pytest.mark.parametrize("argument", ["routes", "data"])
def test_errors_do_not_show_a_whole_data_set(chain, argument):
    images = tf.random.stateless_normal((64, 8, 8, 1), (0, 1))
    with pytest.raises(ValueError, match=f"Argument `{argument}`") as caught:
        if argument == "routes":
            evaluate(chain, (images, images[:, 0, 0, 0]), (images, images))
        else:
            probes.drop_blocks(chain, [[images.numpy()]])
    assert len(str(caught.value)) < 2000


def test_the_checks():
    assert check_int("n", np.uint8(3), at_least=3, at_most=3) == 3
    assert check_int("n", None, at_least=1, or_none=True) is None
    assert check_ints("n", iter([1, np.int8(2)]), at_least=1) == (1, 2)
    assert type(check_number("x", np.float32(0.5), over=0, at_most=1)) is float
    assert check_number("x", 0, at_least=0, below=1) == 0
    assert check_bool("b", np.True_) is True
    check_choice("c", "a", ("a", "b"))
    for value, bounds, text in (
        (0, {"over": 0}, "over 0"),
        (2, {"at_least": 0, "at_most": 1}, "of at least 0 and at most 1"),
        (1, {"at_least": 0, "below": 1}, "of at least 0 and under 1"),
        ("1", {"over": 0, "or_none": True}, "over 0, or None"),
    ):
        with pytest.raises(ValueError) as error:
            check_number("x", value, **bounds)
        message = f"Argument `x` must be a finite number {text}. Received: x={value!r}"
        assert str(error.value) == message
    for value in (["a"], None, "ab", np.array(["a", "b"])):
        with pytest.raises(ValueError, match=r"`c` must be one of 'a', 'b'\. Received: c="):
            check_choice("c", value, ("a", "b"))


def test_bounds_beyond_the_precision_of_a_number():
    assert check_number("epsilon", np.float16(0.5), at_most=1e9) == 0.5
    with pytest.raises(ValueError, match=r"`epsilon` must be a finite number at most 1e\+09"):
        check_number("epsilon", np.float32(2e9), at_most=1e9)
