"""Units of one kind share compiled functions, which take their weights as arguments.

TensorFlow would otherwise trace, optimize and keep the same operations once per block.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json

import keras
import tensorflow as tf

from tfresidual.layers import (
    BatchNormalization,
    LayerScale,
    ResidualUnit,
    ReZero,
    ScalarBias,
    fused_batch_norm,
)
from tfresidual.layers.pointwise_convolution import PointwiseConvolution
from tfresidual.layers.shortcuts import SHORTCUTS
from tfresidual.layers.subsampling import Subsampling
from tfresidual.machine.compiled import concrete

# The layers of a unit that compute with nothing but their settings and weights.
KNOWN = (
    *(keras.layers.Conv2D, PointwiseConvolution, BatchNormalization, LayerScale, ReZero),
    *(ScalarBias, Subsampling, *SHORTCUTS.values()),
)

# What a chain calls of a unit, by the name of the part of a block.
METHODS = {
    "apply": lambda unit, *states: unit(*states, training=False),
    "branch": lambda unit, state: unit.branch(state, training=False),
    "join": lambda unit, base, branch: unit.join(base, branch, training=False),
}
_HAVE_GRADIENTS = contextvars.ContextVar("have_gradients", default=False)
# Settings of a layer that change nothing at inference.
IDLE = ("name", "trainable", "initializer", "regularizer", "constraint")


@contextlib.contextmanager
def gradients_of_weights():
    """Inside, units are called as they are, one by one: their weights have gradients."""
    before = _HAVE_GRADIENTS.set(True)
    try:
        yield
    finally:
        _HAVE_GRADIENTS.reset(before)


class SharedCalls:
    """The functions of the residual units of one chain, compiled once per kind of unit.

    They are not inlined. Weights are arguments without gradients: probes ask only for gradients of
    states; see `gradients_of_weights`.

    Attributes:
        called: dict of the compiled functions, by their names.
    """

    def __init__(self):
        self.called = {}
        self._compiled = {}

    def parts(self, unit):
        """Returns the functions of a unit by the name of the part of a block."""
        return {name: SharedCall(self, unit, name) for name in METHODS}

    def compiled(self, unit, name, variables, states):
        """Returns the compiled function of states and weights of a unit's kind."""
        known = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
        key = name, _kind_of(unit), *((tuple(spec.shape), spec.dtype) for spec in [*states, *known])
        if key not in self._compiled:
            function = concrete(
                functools.partial(_with_weights, unit, name, variables, len(states)),
                [*states, *known],
                experimental_attributes={"_noinline": True},
            )
            self.called[function.name.decode()] = function
            self._compiled[key] = function
        return self._compiled[key]


class SharedCall:
    """A function of a unit: plain calls of its layers or, in a graph, the shared function."""

    def __init__(self, calls, unit, name):
        self._calls, self._unit, self._name = calls, unit, name

    def __call__(self, *states):
        are_shared = tf.inside_function() and not _HAVE_GRADIENTS.get()
        in_graph = are_shared and all(isinstance(state, tf.Tensor) for state in states)
        shared = None
        if in_graph:
            shared = self.shared([tf.TensorSpec(state.shape, state.dtype) for state in states])
        if shared is None:
            return METHODS[self._name](self._unit, *states)
        function, values = shared
        return function(*states, *values())

    def shared(self, states):
        """Returns the function of states and weights, and one that returns these; or `None`."""
        layers = _layers_of(self._unit)
        if layers is None:
            return None
        # In the order that all units of the kind have.
        variables = [
            variable
            for _, layer in sorted(layers.items())
            for variable in sorted(layer.variables, key=lambda one: one.path.split("/")[-1])
        ]
        function = self._calls.compiled(self._unit, self._name, variables, states)
        return function, lambda: [tf.convert_to_tensor(one.value) for one in variables]


def _with_weights(unit, name, variables, count, *arguments):
    """Returns what a unit computes with other weights: `count` states, then the weights."""
    states, values = arguments[:count], arguments[count:]
    values = [tf.stop_gradient(value) for value in values]
    mapping = list(zip(variables, values, strict=True))
    with keras.StatelessScope(state_mapping=mapping), fused_batch_norm.constant_weights():
        return METHODS[name](unit, *states)


def _layers_of(unit):
    """Returns the layers of a unit by role; `None` if some may compute with more than weights."""
    if type(unit) is not ResidualUnit or unit.lipschitz is not None:
        return None
    layers = unit.layers_by_role()
    return layers if all(type(layer) in KNOWN for layer in layers.values()) else None


def _kind_of(unit):
    """Returns a text that is the same for units that differ only in their weights."""
    layers = {}
    for role, layer in _layers_of(unit).items():
        config = layer.get_config().items()
        settings = {name: value for name, value in config if not name.endswith(IDLE)}
        layers[role] = [type(layer).__name__, settings]
    own = [unit.layout, unit.strides, unit.dtype_policy.name, unit.data_format, layers]
    return json.dumps(own, sort_keys=True, default=repr)
