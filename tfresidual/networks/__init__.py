"""Residual networks, including the networks of the papers by name."""

from tfresidual.networks.inverse_problem import (
    DenseBlock,
    InverseProblemNetwork,
    error_correcting_network,
    error_correction,
)
from tfresidual.networks.presets import (
    PRESETS,
    average_pooling_resnet,
    hauser_resnet,
    resnet,
    resnet101,
    resnet110,
    resnet164,
    resnet1001,
    single_representation,
    wide_resnet,
)
from tfresidual.networks.readouts import Readouts
from tfresidual.networks.residual_network import ResidualNetwork

__all__ = [
    "PRESETS",
    "DenseBlock",
    "InverseProblemNetwork",
    "Readouts",
    "ResidualNetwork",
    "average_pooling_resnet",
    "error_correcting_network",
    "error_correction",
    "hauser_resnet",
    "resnet",
    "resnet101",
    "resnet110",
    "resnet164",
    "resnet1001",
    "single_representation",
    "wide_resnet",
]
