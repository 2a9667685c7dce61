"""Residual networks, including the networks of the papers by name."""

from typing import TYPE_CHECKING

from tfresidual.definitions.settings import RENAMED_NETWORKS
from tfresidual.definitions.warning import warn
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
from tfresidual.networks.residual_network import ResidualNetwork

__all__ = [
    "PRESETS",
    "DenseBlock",
    "InverseProblemNetwork",
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

if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in RENAMED_NETWORKS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn(f"`{__name__}.{name}` is called `{RENAMED_NETWORKS[name]}` now.", DeprecationWarning)
        return PRESETS[RENAMED_NETWORKS[name]]
