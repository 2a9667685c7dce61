"""What the measurements of a search depend on: its networks, and how they are trained.

Searches in one folder are compared by it, whatever the process and the machine.
"""

from __future__ import annotations

import hashlib
import json

import keras
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


def of_fit(args, kwargs, probe_data):
    """Returns what of the arguments of `fit` affects the measurements, as JSON can hold it."""
    given = {**OF_FIT, **dict(zip(POSITIONAL, args, strict=False)), **kwargs}
    given = {name: given[name] for name in OF_FIT} | {"probe_data": probe_data}
    given = {n: _of_data(v) if n in DATA else v for n, v in given.items()}
    return json.loads(json.dumps(given, default=str))


def _of_data(data):
    if data is None:
        return None
    if isinstance(data, dict):
        return {name: _of_data(value) for name, value in data.items()}
    if isinstance(data, tf.data.Dataset):
        return f"{data.element_spec}, {int(data.cardinality())} batches"
    if isinstance(data, tuple) or (isinstance(data, list) and hasattr(data[0], "shape")):
        return [_of_data(part) for part in data]
    if not isinstance(data, list) and not hasattr(data, "shape"):
        return f"of type {type(data).__name__}"
    # The shape, and a hash of rows that are spread over the array.
    rows = np.asarray(data[:: -(-len(data) // MOST_ROWS)])
    # The bytes of objects are where they lie in memory.
    rows = rows.astype(str) if rows.dtype == object else rows
    return f"{len(data)} of {rows.shape[1:]}, {rows.dtype}, {_hash(rows.tobytes())}"


def of_network(network):
    """Returns hashes of the configurations of a compiled network, its optimizer and its loss."""
    weights = [f"{w.path}, {w.shape}, {w.dtype}, {w.trainable}" for w in network.weights]
    layers = [_config(layer) for layer in network._flatten_layers()]
    loss = keras.tree.map_structure(_config, getattr(network, "loss", None))
    parts = {
        "network": [weights, layers],
        "optimizer": _config(getattr(network, "optimizer", None)),
        "loss": [loss, weights_of_losses(network)],
    }
    texts = {name: json.dumps(_lasting(part), default=_plain) for name, part in parts.items()}
    return {name: _hash(text.encode()) for name, text in texts.items()}


def _lasting(part):
    """Returns a configuration without seeds, which may be drawn, and without code of lambdas."""
    if isinstance(part, dict):
        if part.get("class_name") == "__lambda__":
            return "lambda"
        return {name: _lasting(one) for name, one in part.items() if name != "seed"}
    return [_lasting(one) for one in part] if isinstance(part, (list, tuple)) else part


def _config(one):
    """Returns the class and the configuration, if there is one; strings and functions as such."""
    if isinstance(one, str):
        return one
    try:
        return [type(one).__name__, one.get_config()]
    except (AttributeError, NotImplementedError):
        return _plain(one)


def _plain(value):
    """Returns what stands for a value of which JSON knows nothing, without its address."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return getattr(value, "__name__", type(value).__name__)


def _hash(data):
    return hashlib.sha256(data).hexdigest()[:16]
