"""The network of a study: built from its settings, and compiled for its training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras

from tfresidual import networks, training
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.jobs.settings import (
    ANY_DEPTH,
    DEPTHS,
    OF_NETWORKS,
    OF_SHORTCUTS,
    WIDTHS,
    Settings,
    describe,
    recipe_of,
    stages_of,
)
from tfresidual.layers.shortcuts import get_shortcut
from tfresidual.networks import weight_groups

if TYPE_CHECKING:
    from typing import Any


def build(settings: Settings, blocks: tuple[int, ...] | None = None) -> networks.ResidualNetwork:
    """Returns the untrained `tfresidual.networks.ResidualNetwork` of a study.

    Args:
        settings: a `Settings`; a `ValueError` says which cannot be used.
        blocks: tuple of ints, the number of blocks of each stage, used instead of the setting
            `depth`; only for networks that can have any depth.
    """
    description = describe(settings)
    share_from, batch_norm = settings.share_from, settings.batch_norm
    if blocks is not None and share_from is not None and share_from >= max(blocks):
        # A search begins with networks that are too shallow to share anything.
        share_from, batch_norm = None, "shared"
    kwargs: dict[str, Any] = {
        "input_shape": description.input_shape,
        "classes": description.classes,
        "classifier_activation": "sigmoid" if description.multi_label else "softmax",
        "layout": settings.layout,
        "shortcut": settings.shortcut,
        "share_from": share_from,
        "batch_norm": batch_norm,
        "recurrent_initialization": settings.recurrent,
        "lipschitz": settings.lipschitz,
        "anchor": settings.anchor,
        "dtype": settings.dtype,
    }
    of_shortcut = {
        argument: getattr(settings, name)
        for name, (argument, _) in OF_SHORTCUTS.items()
        if getattr(settings, name) is not None
    }
    if of_shortcut:
        usual = get_shortcut(settings.shortcut)
        kwargs["shortcut"] = usual.from_config(usual.get_config() | of_shortcut)
    if settings.gamma is not None:
        kwargs["gamma_initializer"] = keras.initializers.Constant(settings.gamma)
    if blocks is not None:
        check_any_depth(settings)
    kwargs |= _size(settings, blocks, description.input_shape)
    if settings.network == "resnet" and blocks is not None:
        network = networks.ResidualNetwork(name="resnet", **kwargs)
    else:
        network = networks.PRESETS[settings.network](**kwargs)
    if settings.gain is not None:
        _scale_convolutions(network, settings.gain)
    return network


def _scale_convolutions(network, gain):
    """Multiplies the kernels of all branches, each of them once if it is shared."""
    units = [unit for _, units in network.sections()[1] for unit in units]
    kernels = {
        id(variable): variable
        for unit in units
        for role, variable in unit.weights_by_role().items()
        if role.startswith("convolution") and role.endswith("/kernel")
    }
    for kernel in kernels.values():
        kernel.assign(gain * kernel)
    for unit in units:
        unit.converge(training=True)


def _size(settings, blocks, input_shape):
    """Returns the arguments of a network for its depth, width and stages; see `build`."""
    for name, having in OF_NETWORKS.items():
        if settings.network not in having and getattr(settings, name) != getattr(Settings, name):
            raise ArgumentError(
                name, f"not be given: {settings.network} has its own", getattr(settings, name)
            )
    between = {} if settings.transition is None else {"transition": settings.transition}
    if settings.network not in WIDTHS:
        return between
    width = settings.width or WIDTHS[settings.network]
    if settings.network not in ANY_DEPTH:
        return {"width": width, **between}
    stages = stages_of(settings)
    if between and stages == 1:
        raise ArgumentError(
            "transition",
            "not be given to a network of one stage: it is between two",
            transition=settings.transition,
            stages=settings.stages,
        )
    rows, columns, _ = input_shape
    # The largest power of two that divides both.
    most = (math.gcd(rows, columns) & -math.gcd(rows, columns)).bit_length()
    if stages > most:
        raise ArgumentError(
            "stages",
            f"be {most} or less for images of {rows}x{columns}: every stage but the first halves "
            "height and width",
            settings.stages,
        )
    depth = settings.depth or DEPTHS[settings.network]
    if settings.network == "resnet101":
        return {"width": width, "stages": stages, "blocks": blocks or depth}
    widths = tuple(width * 2**stage for stage in range(stages))
    if settings.network == "hauser_resnet":
        return {"widths": widths, "blocks": blocks or depth}
    if blocks is not None:
        return {"widths": widths, "blocks": blocks} | between
    return {"widths": widths, "depth": depth} | between


def compile_for(network: networks.ResidualNetwork, settings: Settings, steps: int) -> str:
    """Compiles a study's network for `steps` steps per epoch; returns the name of the metric."""
    coupling: dict[str, Any] = {}
    # A search begins with networks that are too shallow to couple anything.
    if settings.coupling is not None and has_blocks_to_couple(network, settings):
        coupling = {
            "coupling": settings.coupling,
            "kernel": settings.kernel,
            "first_block": settings.coupling_from,
        }
    return training.compile_network(
        network,
        recipe_of(settings).name,
        epochs=settings.epochs,
        steps_per_epoch=steps,
        multi_label=describe(settings).multi_label,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        l2=settings.l2,
        **coupling,
    )


def has_blocks_to_couple(network: networks.ResidualNetwork, settings: Settings) -> bool:
    """Returns whether a network has two blocks that the coupling of the settings couples."""
    blocks = weight_groups.blocks_of(network.trainable_variables)
    groups = weight_groups.groups_of(blocks, settings.coupling_from)
    return any(len(group.variables) > 1 for group in groups)


def nothing_to_couple(settings: Settings, where: str) -> ValueError:
    """Returns the error for a coupling without two blocks; `where` is the argument that decides."""
    return ArgumentError(
        "coupling",
        "be used with a network that has at least two blocks to couple in a stage: blocks from "
        "`coupling_from` on that keep the shape of the state",
        received=f"coupling={settings.coupling!r}, coupling_from={settings.coupling_from!r}, "
        f"{where}",
    )


def check_any_depth(settings: Settings) -> None:
    """Raises a `ValueError` unless the stages of the network can have any number of blocks."""
    if settings.network not in ANY_DEPTH:
        raise ArgumentError(
            "network",
            f"be one of {', '.join(map(repr, ANY_DEPTH))} for a depth search",
            settings.network,
        )
    if settings.depth is not None:
        raise ArgumentError("depth", "not be given for a depth search", settings.depth)
