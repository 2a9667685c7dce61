"""The literals of types are the names that functions take; `make style` runs mypy on passes.py."""

import typing

import pytest

from tfresidual import datasets
from tfresidual.definitions import types
from tfresidual.layers import layer_scale, residual_unit, shortcuts
from tfresidual.networks import specification
from tfresidual.probes.borderline import GROUPINGS
from tfresidual.probes.convergence_indices import CHANCES, READINGS
from tfresidual.routing import chain
from tfresidual.training import gradient_coupling


@pytest.mark.parametrize(
    ("literal", "names"),
    [
        (types.Layout, residual_unit.LAYOUTS),
        (types.Resize, residual_unit.RESIZES),
        (types.BatchNorm, residual_unit.BATCH_NORMS),
        (types.ShortcutName, shortcuts.SHORTCUTS),
        (types.MultiplierName, layer_scale.MULTIPLIERS),
        (typing.get_args(types.Normalization)[0], residual_unit.NORMALIZATIONS),
        (types.Transition, specification.TRANSITIONS),
        (types.Anchor, specification.ANCHORS),
        (types.CouplingKernel, gradient_coupling.KERNELS),
        (types.Pixels, datasets.PIXELS),
        (types.OutputKind, chain.OUTPUT_KINDS),
        (typing.get_args(types.Chance)[1], CHANCES),
        (types.Reading, READINGS),
        (types.BorderlineGroups, GROUPINGS),
    ],
)
def test_literals_are_the_names_that_the_functions_take(literal, names):
    assert set(typing.get_args(literal)) == set(names)
