"""Arguments that would give a wrong number: the error names them. Nothing is trained or probed.

tests/probes/test_refusals.py has those of probes; what Python, Keras or NumPy refuse is theirs.
"""

import json

import numpy as np
import pytest
from reference.random_network import random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks, datasets, layers, networks, probes, training
from tfresidual.definitions.arguments import check_choice, check_int, check_ints, check_number
from tfresidual.jobs.settings import Settings, check
from tfresidual.probes.running import ProbeOptions
from tfresidual.routing import evaluate, routes

IMAGES = np.zeros((4, 8, 8, 3), "float32")
DATA = (IMAGES, np.zeros(4, int))


@pytest.fixture(scope="module")
def chain():
    return tfr.chain(random_network(blocks=2, widths=(4,)))


def of_network(**kwargs):
    return networks.ResidualNetwork(
        (8, 8, 3), **{"classes": 2, "blocks": 1, "widths": (4,)} | kwargs
    )


def of_settings(**kwargs):
    check(Settings(**kwargs))


def of_repetition(chain, stage=1, times=1, scale=1.0):
    return routes.repeat_last_block(chain, stage, times, scale)


CHAIN = object()
OF_CHAIN = [CHAIN, DATA]
# A function, what it is given first, where `CHAIN` is a chain, and wrong values by argument.
CALLS = [
    (of_network, [], {"widths": [(), (0,), (4, 8.0), "44"], "blocks": [0, None, (1, 2)]}),
    (of_network, [], {"layout": ["none"], "share_from": [-1, 1], "batch_norm": ["unshared"]}),
    (of_network, [], {"lipschitz": [0, np.nan], "stochastic_depth": [1], "pooling": [0, 3]}),
    (layers.DropoutShortcut, [], {"rate": [-1, 1, "0.1", True]}),
    (networks.resnet, [], {"depth": [7, 8.5, 2]}),
    (networks.error_correcting_network, [], {"slopes": [0, (1, 0)], "rates": [(1, -1)]}),
    (training.coupling_kernel, [[0, 1]], {"coupling": [-0.1, 1.1, np.nan]}),
    (training.GradientCoupling, ["sgd", 0.5], {"kernel": ["wide"], "first_block": [-1]}),
    (training.recipe, [], {"name": ["imagenet"]}),
    (datasets.load, ["mnist"], {"train_size": [0, -1], "test_size": [0, 1.5, 10**6]}),
    (datasets.describe, ["digitclutter"], {"digits": [2, 3.5]}),
    (of_repetition, [CHAIN], {"stage": [0, 2], "times": [-1], "scale": [np.inf]}),
    (routes.readout, [CHAIN, 1], {"after": [-3, 2, 1.5]}),
    (evaluate, [*OF_CHAIN, []], {"memory_limit": [0, "1"]}),
    (probes.weight_deviations, [CHAIN], {"first_block": [-1]}),
    (callbacks.Borderline, [DATA], {"probability": [0, 2]}),
    (callbacks.ConvergenceIndices, [DATA], {"chance": [0, "largest_class"]}),
    (callbacks.ExportForProbing, ["nowhere"], {"overwrite": ["no"]}),
    (tfr.export, [CHAIN, "nowhere"], {"overwrite": ["no"]}),
    (of_settings, [], {"epochs": [0, 1.5, True, "2"], "seed": [-1, 2**32], "recurrent": ["yes"]}),
    (of_settings, [], {"coupling": [2, np.nan], "network": ["resnet50"]}),
    (of_settings, [], {"kernel": ["triangular"], "gate_bias": [1.0], "data_dir": [""]}),
    (ProbeOptions, [], {"times": [0, 1001], "chance": [2, "none"], "memory_limit": [0]}),
]


@pytest.mark.parametrize(("function", "first", "arguments"), CALLS)
def test_wrong_values_are_refused_by_name(function, first, arguments, chain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = [chain if part is CHAIN else part for part in first]
    for argument, values in arguments.items():
        for value in values:
            with refused(argument):
                function(*first, **{argument: value})
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_are_taken(chain):
    check(Settings(epochs=np.int64(2), gamma=np.float32(0.5), recurrent=np.True_))
    assert json.dumps(Settings(seed=np.int32(3)).seed) == "3"
    route = routes.repeat_last_block(chain, np.int64(1), np.int64(2), np.float32(0.5))
    assert route == routes.repeat_last_block(chain, 1, 2, 0.5)


def test_the_checks():
    assert check_int("n", np.uint8(3), at_least=3, at_most=3) == 3
    assert check_int("n", None, at_least=1, or_none=True) is None
    assert check_ints("n", iter([1, np.int8(2)]), at_least=1) == (1, 2)
    assert type(check_number("x", np.float32(0.5), over=0, at_most=1)) is float
    assert check_number("x", np.float16(0.5), at_least=0, at_most=1e9) == 0.5
    for value, bounds in ((0, {"over": 0}), (2, {"at_most": 1}), (1, {"below": 1}), ("1", {})):
        with refused("x"):
            check_number("x", value, **bounds)
    for value in (["a"], None, "ab", np.array(["a", "b"])):
        with refused("c"):
            check_choice("c", value, ("a", "b"))
