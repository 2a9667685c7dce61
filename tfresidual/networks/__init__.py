"""Residual networks, and those of the papers by name."""

from tfresidual.networks.presets import (
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
    "ResidualNetwork",
    "avg_pooling",
    "hauser",
    "resnet",
    "resnet101",
    "resnet110",
    "resnet164",
    "resnet1001",
    "single_representation",
    "wide",
]
