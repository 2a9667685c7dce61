"""Layers of residual networks. This package does not depend on `tfresidual.networks`."""

from tfresidual.layers.batch_normalization import BatchNormalization
from tfresidual.layers.pointwise_convolution import PointwiseConvolution
from tfresidual.layers.residual_unit import ResidualUnit
from tfresidual.layers.shortcuts import (
    ConvolutionShortcut,
    DropoutShortcut,
    ExclusiveGateShortcut,
    IdentityShortcut,
    ScaledShortcut,
    Shortcut,
    ShortcutOnlyGateShortcut,
)
from tfresidual.layers.subsampling import Subsampling

__all__ = [
    "BatchNormalization",
    "ConvolutionShortcut",
    "DropoutShortcut",
    "ExclusiveGateShortcut",
    "IdentityShortcut",
    "PointwiseConvolution",
    "ResidualUnit",
    "ScaledShortcut",
    "Shortcut",
    "ShortcutOnlyGateShortcut",
    "Subsampling",
]
