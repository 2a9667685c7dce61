"""The arguments of a `ResidualNetwork`, checked and completed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_int,
    check_ints,
    check_number,
    is_int,
)
from tfresidual.definitions.settings import ANCHORS, TRANSITIONS
from tfresidual.layers.layer_scale import get_multiplier
from tfresidual.layers.residual_unit import BATCH_NORMS, BOTTLENECK_REDUCTION, NORMALIZATIONS
from tfresidual.layers.shortcuts import get_shortcut
from tfresidual.machine.memory import check_fits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from tfresidual.definitions.types import (
        Anchor,
        BatchNorm,
        DataFormat,
        DType,
        Initializer,
        Layout,
        MultiplierName,
        Normalization,
        Shape,
        ShortcutName,
        Transition,
    )
    from tfresidual.layers import LayerScale, Shortcut

POOLINGS = {
    "average_pooling": keras.layers.AveragePooling2D,
    "max_pooling": keras.layers.MaxPooling2D,
}
CHOICES = {
    "transition": TRANSITIONS,
    "batch_norm": BATCH_NORMS,
    "anchor": ANCHORS,
    "normalization": NORMALIZATIONS,
}
BOOLS = ("bottleneck", "recurrent_initialization")
# Initial value of all scales with unshared batch normalization (Jastrzebski et al. 2018, 4.5).
UNSHARED_GAMMA = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Specification:
    """Everything that determines a `ResidualNetwork`, under the names of its arguments.

    The fields are the arguments, in the order of a configuration.
    """

    input_shape: Shape
    classes: int
    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    stem_width: int
    layout: Layout
    bottleneck: bool
    shortcut: ShortcutName | Shortcut | dict[str, Any]
    transition: Transition
    pooling: Literal["global"] | int
    classifier_activation: str | Callable[..., Any] | None
    gamma_initializer: Initializer
    share_from: int | None
    batch_norm: BatchNorm
    recurrent_initialization: bool
    lipschitz: float | None
    anchor: Anchor
    normalization: Normalization
    multiplier: MultiplierName | LayerScale | dict[str, Any] | None
    stochastic_depth: float
    data_format: DataFormat
    dtype: DType

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Specification:
        """Returns the specification for arguments as they were given, by name.

        Raises:
            ValueError: if an argument is invalid.
        """
        values = {name: given[name] for name in FIELDS} | _checked(given)
        if values["gamma_initializer"] is None:
            share_from = values["share_from"]
            is_shared = share_from is not None and share_from < max(values["blocks"]) - 1
            is_small = is_shared and values["batch_norm"] == "unshared"
            values["gamma_initializer"] = (
                keras.initializers.Constant(UNSHARED_GAMMA) if is_small else "ones"
            )
        if values["stem_width"] is None:
            values["stem_width"] = values["widths"][0] // (4 if values["bottleneck"] else 1)
        specification = cls(**values)
        specification._check_sharing()
        specification._check_grid()
        specification._check_size()
        return specification

    def _check_sharing(self) -> None:
        blocks, share_from, batch_norm = self.blocks, self.share_from, self.batch_norm
        if share_from is None and batch_norm != "shared":
            raise ArgumentError(
                "batch_norm",
                "be given together with `share_from`: it says what each application of a shared "
                "block has of its own",
                batch_norm=batch_norm,
                share_from=share_from,
            )
        if self.normalization != "batch" and batch_norm != "shared":
            raise ArgumentError(
                "normalization",
                'be "batch" if `batch_norm` says what blocks do not share of it',
                normalization=self.normalization,
                batch_norm=batch_norm,
            )
        if share_from is not None and share_from >= max(blocks):
            raise ArgumentError(
                "share_from",
                "be one of the blocks of a stage, counted from 0",
                share_from=share_from,
                blocks=blocks,
            )

    def _check_grid(self) -> None:
        shape, pooling, stages = self.input_shape, self.pooling, len(self.widths)
        strides = 2 ** (stages - 1)
        sizes = shape[:2] if self.data_format == "channels_last" else shape[1:]
        if any(size is not None and (size < 1 or size % strides) for size in sizes):
            raise ArgumentError(
                "input_shape",
                f"have a height and width divisible by {strides}: {stages} stages halve them "
                f"{stages - 1} times",
                shape,
            )
        if pooling != "global" and any(size is None or size // strides % pooling for size in sizes):
            raise ArgumentError(
                "pooling",
                "divide the height and width of the last stage, which are those of `input_shape` "
                f"divided by {strides}",
                pooling=pooling,
                input_shape=shape,
            )

    def _check_size(self) -> None:
        """Raises a `TooLargeError` if the weights do not fit into the memory of the machine."""

        def of_unit(entering: int, width: int) -> int:
            if not self.bottleneck:
                return 9 * entering * width + 9 * width**2
            inner = width // BOTTLENECK_REDUCTION
            return entering * inner + 9 * inner**2 + inner * width

        channels = self.input_shape[-1 if self.data_format == "channels_last" else 0]
        entering = self.stem_width
        weights = 9 * (channels or 0) * entering
        for depth, width in zip(self.blocks, self.widths, strict=True):
            # The input of the first block has the channels of the previous stage.
            own = depth if self.share_from is None else min(depth, self.share_from + 1)
            weights += of_unit(entering, width) + (own - 1) * of_unit(width, width)
            entering = width
        check_fits(
            # Variables are float32 under every policy.
            4 * (weights + entering * self.classes),
            "Arguments `blocks` and `widths` must describe a network that fits into the memory of "
            "this machine: its weights",
            f"blocks={self.blocks}, widths={self.widths}",
        )


FIELDS = tuple(field.name for field in dataclasses.fields(Specification))


def serialized(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of fields as JSON can hold them."""
    shortcut, multiplier = values["shortcut"], values["multiplier"]
    if not isinstance(shortcut, str):
        shortcut = keras.saving.serialize_keras_object(get_shortcut(shortcut))
    if multiplier is not None and not isinstance(multiplier, str):
        multiplier = keras.saving.serialize_keras_object(get_multiplier(multiplier, -1))
    initializer = keras.initializers.get(values["gamma_initializer"])
    return {
        **values,
        "shortcut": shortcut,
        "multiplier": multiplier,
        "gamma_initializer": keras.initializers.serialize(initializer),
        "dtype": keras.dtype_policies.serialize(values["dtype"]),
    }


def _checked(given):
    """Returns the arguments that have a check of their own, checked."""
    widths, blocks, pooling = given["widths"], given["blocks"], given["pooling"]
    widths = check_ints("widths", widths, at_least=1)
    if not np.iterable(blocks):
        blocks = [check_int("blocks", blocks, at_least=1)] * len(widths)
    blocks = check_ints("blocks", blocks, at_least=1)
    if len(blocks) != len(widths):
        raise ArgumentError(
            ("blocks", "widths"), "name the same number of stages", blocks=blocks, widths=widths
        )
    for name, choices in CHOICES.items():
        if name != "normalization" or given[name] is not None:
            check_choice(name, given[name], choices)
    if pooling != "global" and (not is_int(pooling) or pooling < 1):
        raise ArgumentError("pooling", 'be "global" or an int, 1 or more', pooling)
    dropped = check_number("stochastic_depth", given["stochastic_depth"], at_least=0, below=1)
    return {
        "widths": widths,
        "blocks": blocks,
        "pooling": pooling if pooling == "global" else int(pooling),
        "input_shape": tuple(given["input_shape"]),
        "classes": given["classes"],
        "stem_width": given["stem_width"],
        "share_from": check_int("share_from", given["share_from"], at_least=0, or_none=True),
        "lipschitz": check_number("lipschitz", given["lipschitz"], over=0, or_none=True),
        "stochastic_depth": dropped,
        **{name: bool(given[name]) for name in BOOLS},
        "data_format": given["data_format"] or keras.config.image_data_format(),
        "dtype": keras.dtype_policies.get(given["dtype"] or keras.config.dtype_policy()),
    }
