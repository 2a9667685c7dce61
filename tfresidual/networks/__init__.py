"""Residual networks, including the networks of the papers by name."""

from tfresidual.networks.inverse_problem import (
    DenseBlock,
    InverseProblemNetwork,
    error_correcting_network,
    error_correction,
)
from tfresidual.networks.presets import (
    PRESETS,
    avg_pooling,
    hauser,
    resnet,
    resnet101,
    resnet110,
    resnet164,
    resnet1001,
    single_representation,
    wide,
)
from tfresidual.networks.residual_network import ResidualNetwork

__all__ = [
    "PRESETS",
    "DenseBlock",
    "InverseProblemNetwork",
    "ResidualNetwork",
    "avg_pooling",
    "error_correcting_network",
    "error_correction",
    "hauser",
    "resnet",
    "resnet101",
    "resnet110",
    "resnet164",
    "resnet1001",
    "single_representation",
    "wide",
]
