"""Layers of residual networks. This package does not depend on `tfresidual.networks`."""

from tfresidual.layers.applications import forward_pass
from tfresidual.layers.batch_normalization import BatchNormalization
from tfresidual.layers.bounded import Bounded
from tfresidual.layers.divisor import fixed_norms
from tfresidual.layers.layer_scale import LayerScale, ReZero
from tfresidual.layers.pointwise_convolution import PointwiseConvolution
from tfresidual.layers.repeated import Repeated
from tfresidual.layers.residual_unit import ResidualUnit
from tfresidual.layers.scalar_bias import ScalarBias
from tfresidual.layers.shortcuts import (
    ConvolutionShortcut,
    DropoutShortcut,
    ExclusiveGateShortcut,
    IdentityShortcut,
    ScaledShortcut,
    Shortcut,
    ShortcutOnlyGateShortcut,
)
from tfresidual.layers.spectral_normalization import SpectralNormalization
from tfresidual.layers.stochastic_depth import StochasticDepth
from tfresidual.layers.subsampling import Subsampling
from tfresidual.layers.unshared_batch_normalization import UnsharedBatchNormalization

__all__ = [
    "BatchNormalization",
    "Bounded",
    "ConvolutionShortcut",
    "DropoutShortcut",
    "ExclusiveGateShortcut",
    "IdentityShortcut",
    "LayerScale",
    "PointwiseConvolution",
    "ReZero",
    "Repeated",
    "ResidualUnit",
    "ScalarBias",
    "ScaledShortcut",
    "Shortcut",
    "ShortcutOnlyGateShortcut",
    "SpectralNormalization",
    "StochasticDepth",
    "Subsampling",
    "UnsharedBatchNormalization",
    "fixed_norms",
    "forward_pass",
]
