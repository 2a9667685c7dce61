"""What the measurements of a search depend on: its networks, and how they are trained.

Searches in one folder are compared by it, whatever the process, the names of layers and the
machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
import random
import types
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfresidual.machine.settings import CALLS, written_by
from tfresidual.networks import ResidualNetwork

# Arguments of `fit` that affect what a trial measures, with their defaults.
OF_FIT = {
    **{"x": None, "y": None, "batch_size": None, "epochs": 1, "validation_split": 0.0},
    **{"validation_data": None, "shuffle": True, "class_weight": None, "sample_weight": None},
    **{"initial_epoch": 0, "steps_per_epoch": None},
}
# Arguments of `fit` that may be given by position.
POSITIONAL = ("x", "y", "batch_size", "epochs")
DATA = ("x", "y", "sample_weight", "validation_data", "probe_data")
# Rows of an array that are compared, and numbers of a network's output.
MOST_ROWS, MOST_OUTPUTS = 256, 32
# Size that stands for an unknown one.
UNKNOWN = 32
TOLERANCE = {"float16": 0.05, "bfloat16": 0.1}
# What the blocks of a network are.
CHAIN = "blocks of the chain"
# The code of a function is compared only between equal versions of Python.
CODE = f"code in Python {'.'.join(platform.python_version_tuple()[:2])}"
# How a network is trained, and what functions and methods read around them: what earlier versions
# did not record.
TRAINING, READS = "training", "reads"
# The methods by which a network of a class of its own is trained.
OF_TRAINING = ("train_step", "compute_loss")
# Parts of configurations that do not matter; the last one is of weights that are coupled, see
# `tfresidual.training.GradientCoupling`.
LEFT_OUT = {"module", "registered_name", "build_config", "shared_object_id", "paths"}


def of_fit(args, kwargs, probe_data):
    """Returns what of the arguments of `fit` affects the measurements, as JSON can hold it."""
    given = {**OF_FIT, **dict(zip(POSITIONAL, args, strict=False)), **kwargs}
    given = {name: given[name] for name in OF_FIT} | {"probe_data": probe_data}
    return _as_json({n: _of_data(v) if n in DATA else v for n, v in given.items()})


def _of_data(data):
    if data is None:
        return None
    if isinstance(data, dict):
        return {str(name): _of_data(value) for name, value in data.items()}
    if isinstance(data, tf.data.Dataset):
        return f"{data.element_spec}, {int(data.cardinality())} batches"
    if isinstance(data, (tuple, list)) and any(hasattr(part, "shape") for part in data):
        return [_of_data(part) for part in data]
    if isinstance(data, (tuple, list)) or (hasattr(data, "shape") and hasattr(data, "__getitem__")):
        with contextlib.suppress(TypeError, ValueError):
            return _of_array(data)
    return f"of type {type(data).__name__}"


def _of_array(data):
    """Returns the shape of an array, and a hash of rows that are spread over it."""
    if hasattr(data, "iloc"):
        data = data.to_numpy()
    count = len(data)
    places = np.unique(np.linspace(0, max(count - 1, 0), min(count, MOST_ROWS)).astype(int))
    rows = [np.asarray(data[int(place)]) for place in places]
    hashed = hashlib.sha256()
    for row in rows:
        # The bytes of objects are where they lie in memory.
        is_plain = row.dtype != object
        hashed.update(np.ascontiguousarray(row).tobytes() if is_plain else f"{row!r}".encode())
    shape = [count, *(rows[0].shape if rows else ())]
    return f"{shape}, {rows[0].dtype if rows else None}, {hashed.hexdigest()[:16]}"


def of_network(build, chain_of=None):
    """Returns the fingerprint of a network, as JSON can hold it, or `None` if it is no network.

    It has the configuration of the layers, the optimizer and the loss, the shapes of the weights,
    the outputs for fixed weights and inputs and, for networks not of this package, what their
    blocks are.

    Args:
        build: function without arguments that returns the compiled network. It is called again if
            the network has seeds, to find those that differ each time.
        chain_of: function of the network that returns its chain, or `None` for no chain.
    """
    found = {}
    before = random.getstate()
    try:
        random.seed(0)
        network = build()
        if not isinstance(network, keras.Model):
            return None
        if chain_of is not None and not isinstance(network, ResidualNetwork):
            # A network that cannot be measured is refused by its trial. This builds a subclassed
            # one.
            with contextlib.suppress(ValueError):
                found[CHAIN] = [
                    [f"{b.shortcut}{'' if b.keeps_shape else ', another shape'}" for b in blocks]
                    for blocks in (stage.blocks for stage in chain_of(network).stages)
                ]
        described = _described(network)
        if '"seed": ' in json.dumps(described):
            random.seed(1)
            described = _common_seeds(described, _described(build()))
    finally:
        random.setstate(before)
    described |= {"output": _response(network), "precision": network.compute_dtype}
    return described | found


def _described(network):
    with warnings.catch_warnings():
        # Keras warns that a lambda cannot be loaded safely.
        warnings.simplefilter("ignore")
        return _as_json(_plain(_configuration(network)))


def _configuration(network):
    layers = [
        layer
        for layer in network._flatten_layers(include_self=False)
        if next(iter(layer._flatten_layers(include_self=False)), None) is None
    ]
    config = _config(network)
    described = {
        "class": type(network).__name__,
        "network": {name: v for name, v in config.items() if not name.endswith("layers")},
        "layers": [{"class": type(layer).__name__, **_config(layer)} for layer in layers],
        "weights": [f"{w.shape}, {w.dtype}, {w.trainable}" for w in network.weights],
        "input": [f"{tensor.shape}, {tensor.dtype}" for tensor in _inputs(network)],
    }
    described[TRAINING] = _of_reads(written_by(network, OF_TRAINING))
    if network.compiled:
        optimizer = network.optimizer
        described["optimizer"] = {"class": type(optimizer).__name__, **_config(optimizer)}
        described["loss"] = _of_loss(network.loss)
        with contextlib.suppress(TypeError, ValueError, AttributeError, NotImplementedError):
            described["loss_weights"] = network.get_compile_config().get("loss_weights")
    return described


def _config(thing):
    try:
        return dict(thing.get_config())
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return {}


def _of_loss(loss):
    if isinstance(loss, dict):
        return {str(name): _of_loss(part) for name, part in loss.items()}
    if isinstance(loss, (tuple, list)):
        return [_of_loss(part) for part in loss]
    if isinstance(loss, keras.losses.Loss):
        function = getattr(loss, "fn", None)
        reads = written_by(loss, CALLS) if function is None else written_by(function)
        described = {"class": type(loss).__name__, **_config(loss), **_of_function(function)}
        return described | _of_reads(reads)
    if isinstance(loss, types.FunctionType):
        return {"name": loss.__name__, **_of_function(loss)} | _of_reads(written_by(loss))
    if callable(loss):
        return {"class": type(loss).__name__} | _of_reads(written_by(loss))
    return loss


def _of_reads(reads):
    """Returns what is read as text, code as its hash."""
    found = {}
    for path, one in reads.items():
        is_code = isinstance(one, types.CodeType)
        found[f"{path} {CODE}".strip() if is_code else path.strip()] = (
            _of_code(one) if is_code else one
        )
    return {READS: found}


def _of_function(function):
    """Returns the code of a function that is not part of Keras, without its place in a file."""
    if not isinstance(function, types.FunctionType) or function.__module__.startswith("keras."):
        return {"function": getattr(function, "__name__", None)}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [v for v in (*cells, *(function.__defaults__ or ())) if _is_plain(v)]
    return {"function": function.__name__, "values": values, CODE: _of_code(function.__code__)}


def _of_code(code):
    constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
    inner = [_of_code(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    parts = repr((code.co_code, code.co_names, constants, inner))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _is_plain(value):
    return value is None or isinstance(value, (bool, int, float, str))


def _plain(value, keeps_name=False):
    """Returns a configuration without names, origins and what is unset."""
    if isinstance(value, dict):
        kind = str(value.get("class_name", ""))
        if kind == "__lambda__" or value.keys() == {"value"}:
            # The code of a lambda contains its place in a file. What it does shows in the outputs.
            return "lambda"
        return {
            str(name): _plain(part, kind.endswith("DTypePolicy"))
            for name, part in value.items()
            if part is not None and name not in LEFT_OUT and (keeps_name or name != "name")
        }
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value if _is_plain(value) else type(value).__name__


def _common_seeds(described, other):
    """Leaves out the seeds that differ between two networks that one function built."""
    if isinstance(described, dict):
        return {
            name: _common_seeds(part, other.get(name))
            for name, part in described.items()
            if name != "seed" or part == other.get(name)
        }
    if isinstance(described, list):
        return [_common_seeds(a, b) for a, b in zip(described, other, strict=True)]
    return described


def _inputs(network):
    return list(getattr(network, "inputs", None) or ())


def _response(network):
    """Returns outputs for fixed inputs and weights, which overwrite those of the network."""
    rng = np.random.default_rng(0)
    for weight in network.weights:
        if "float" in weight.dtype:
            fan_in = max(math.prod(weight.shape[:-1]), 1)
            drawn = rng.normal(size=weight.shape) / math.sqrt(fan_in)
            weight.assign(drawn if len(weight.shape) > 1 else 1 + 0.1 * drawn)
    inputs = []
    for tensor in _inputs(network):
        shape = [2, *(UNKNOWN if size is None else size for size in tensor.shape[1:])]
        numbers = rng.normal(size=shape) if "float" in tensor.dtype else rng.integers(0, 2, shape)
        inputs.append(tf.cast(numbers, tensor.dtype))
    if not inputs:
        return None
    structure = getattr(network, "_inputs_struct", None)
    if isinstance(structure, dict):
        by_name = dict(zip([tensor.name for tensor in _inputs(network)], inputs, strict=True))
        inputs = {key: by_name[tensor.name] for key, tensor in structure.items()}
    elif len(inputs) == 1:
        (inputs,) = inputs
    outputs = tf.nest.flatten(network(inputs, training=False))
    numbers = np.concatenate([np.ravel(tf.cast(output, tf.float32)) for output in outputs])
    return [float(v) if math.isfinite(v) else None for v in numbers[:MOST_OUTPUTS]]


def difference(before, now):
    """Returns in which way two fingerprints of networks differ, as text, or `None`."""
    # Earlier versions did not record the chain.
    left_out = {"output"} if CHAIN in before and CHAIN in now else {"output", CHAIN}
    is_of_earlier = TRAINING not in before or TRAINING not in now
    parts = ({k: v for k, v in part.items() if k not in left_out} for part in (before, now))
    old, new = (dict(_flat(part)) for part in parts)
    for place in old | new:
        is_known = place in old and place in new
        is_code = "code in Python" in place and not is_known
        is_later = READS in place.split() and not is_known and is_of_earlier
        pair = old.get(place, "not set"), new.get(place, "not set")
        if pair[0] != pair[1] and not is_code and not is_later:
            return _told(place, *pair)
    outputs = before.get("output"), now.get("output")
    if None in outputs:
        return None
    if len(outputs[0]) != len(outputs[1]):
        return _told("the number of outputs", *map(len, outputs))
    limit = TOLERANCE.get(before.get("precision"), 1e-3)
    limit *= max((abs(v) for v in outputs[0] if v is not None), default=0.0)
    for one, two in zip(*outputs, strict=True):
        if (one is None) != (two is None) or not (one is None or abs(one - two) <= limit):
            return _told("what it computes with the same weights", one, two)
    return None


def _told(what, before, now):
    return f"{what} ({before} before, {now} now)"


def _flat(value, place=""):
    """Yields the parts of a description with their places."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(part, f"{place} {name}".strip())
    elif isinstance(value, list):
        yield f"the number of {place}", len(value)
        for number, part in enumerate(value):
            yield from _flat(part, f"{place} {number}")
    else:
        yield place, value


def _as_json(value):
    return json.loads(json.dumps(value, default=str))
