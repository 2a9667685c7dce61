"""What the measurements of a search depend on: its networks, and how they are trained.

Searches in one folder are compared by it, whatever the process, the names of layers and the
machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings

import numpy as np
import tensorflow as tf

from tfresidual.routing.losses import weights_of_losses

# Arguments of `fit` that affect what a trial measures, with their defaults.
OF_FIT = {
    **{"x": None, "y": None, "batch_size": None, "epochs": 1, "validation_split": 0.0},
    **{"validation_data": None, "shuffle": True, "class_weight": None, "sample_weight": None},
    **{"initial_epoch": 0, "steps_per_epoch": None},
}
# Arguments of `fit` that may be given by position.
POSITIONAL = ("x", "y", "batch_size", "epochs")
DATA = ("x", "y", "sample_weight", "validation_data", "probe_data")
# Rows of an array that are compared.
MOST_ROWS = 256
# Parts of configurations that do not matter; `paths` are of weights that are coupled, see
# `tfresidual.training.GradientCoupling`.
LEFT_OUT = {"module", "registered_name", "build_config", "shared_object_id", "paths", "seed"}

# Where configurations hold names of operations.
NAMES = ("name", "keras_history", "input_layers", "output_layers")


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


def of_network(network):
    """Returns hashes of the configurations of a compiled network, its optimizer and its loss.

    They do not depend on the names of layers and weights, nor on seeds.
    """
    layers = list(network._flatten_layers())
    operations = [one for layer in layers for one in getattr(layer, "operations", ())]
    places = {one.name: f"#{place}" for place, one in enumerate([*layers, *operations])}
    optimizer = getattr(network, "optimizer", None)
    with warnings.catch_warnings():
        # Keras warns that a lambda cannot be loaded safely.
        warnings.simplefilter("ignore")
        parts = {
            "network": [
                [f"{w.shape}, {w.dtype}, {w.trainable}" for w in network.weights],
                [[type(layer).__name__, _config(layer)] for layer in layers],
            ],
            "optimizer": [type(optimizer).__name__, _config(optimizer)],
            "loss": [_of_loss(getattr(network, "loss", None)), weights_of_losses(network)],
        }
    return {name: _hash(_plain(part, places)) for name, part in parts.items()}


def _config(thing):
    # A layer of one's own need not have a configuration.
    with contextlib.suppress(NotImplementedError, AttributeError):
        return dict(thing.get_config())
    return {}


def _of_loss(loss):
    if isinstance(loss, dict):
        return {name: _of_loss(part) for name, part in loss.items()}
    if isinstance(loss, (tuple, list)):
        return [_of_loss(part) for part in loss]
    if isinstance(loss, str):
        return loss
    return [getattr(loss, "__name__", type(loss).__name__), _config(loss)]


def _plain(value, places, is_name=False):
    """Returns a configuration without made-up names, origins, seeds and what is unset.

    The names of operations become their places.
    """
    if isinstance(value, dict):
        kind = str(value.get("class_name"))
        if kind == "__lambda__":
            # Its code holds its place in a file.
            return "lambda"
        is_policy = kind.endswith("DTypePolicy")
        return {
            str(name): _plain(part, places, name in NAMES or is_policy)
            for name, part in value.items()
            if part is not None
            and name not in LEFT_OUT
            and (name != "name" or is_name or part in places)
        }
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(part, places, is_name) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, str):
        return places.get(value, value) if is_name else value
    is_plain = value is None or isinstance(value, (bool, int, float))
    return value if is_plain else type(value).__name__


def _hash(value):
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_json(value):
    return json.loads(json.dumps(value, default=str))
