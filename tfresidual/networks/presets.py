"""The networks of the papers by name, with the parameter counts of the papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_ints,
    is_int,
)
from tfresidual.networks.residual_network import ResidualNetwork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, Unpack

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

CIFAR_SHAPE = (32, 32, 3)
LAYERS_PER_BLOCK = {False: 2, True: 3}


class _Options(TypedDict, total=False):
    """The arguments of `ResidualNetwork` that every preset takes beside its own."""

    layout: Layout
    shortcut: ShortcutName | Shortcut | dict[str, Any]
    classifier_activation: str | Callable[..., Any] | None
    gamma_initializer: Initializer | None
    share_from: int | None
    batch_norm: BatchNorm
    recurrent_initialization: bool
    lipschitz: float | None
    anchor: Anchor
    normalization: Normalization
    multiplier: MultiplierName | LayerScale | dict[str, Any] | None
    stochastic_depth: float
    data_format: DataFormat | None
    dtype: DType | None
    name: str


class _WithStem(_Options, total=False):
    stem_width: int | None


class _OfResnet(_WithStem, total=False):
    widths: Iterable[int]
    transition: Transition
    pooling: Literal["global"] | int


class _OfPooling8(_WithStem, total=False):
    bottleneck: bool
    transition: Transition


class _OfResnet101(_WithStem, total=False):
    bottleneck: bool
    pooling: Literal["global"] | int


class _OfHauser(_OfResnet101, total=False):
    widths: Iterable[int]


class _OfWide(_Options, total=False):
    bottleneck: bool
    transition: Transition
    pooling: Literal["global"] | int


def resnet(
    depth: int = 20,
    input_shape: Shape = CIFAR_SHAPE,
    classes: int = 10,
    *,
    bottleneck: bool = False,
    **kwargs: Unpack[_OfResnet],
) -> ResidualNetwork:
    """Builds a ResNet of three stages of equal depth from its number of layers.

    Args:
        depth: int, number of layers with weights: `6 n + 2` for `n` blocks per stage, or `9 n + 2`
            with bottlenecks; 101 without bottlenecks gives `resnet101`. With another number of
            `widths`, there are as many stages, and a third of 6 or 9 counts for each.
        input_shape: (height, width, channels) of one image.
        classes: int, number of outputs.
        bottleneck: bool, whether the blocks are bottlenecks of 64, 128 and 256 channels instead
            of pairs of 3x3 convolutions of 16, 32 and 64.
        **kwargs: further arguments of `ResidualNetwork`.

    Returns:
        A `ResidualNetwork`.

    Raises:
        ValueError: if no number of blocks per stage gives the depth.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, section 3 and appendix.
    """
    if depth == 101 and not bottleneck:
        options: dict[str, Any] = {"transition": "downsampling_block", "widths": (16, 32, 64)}
        options |= {"name": "resnet101"} | kwargs
        return ResidualNetwork(input_shape, classes, blocks=16, **options)
    kwargs.setdefault("widths", (64, 128, 256) if bottleneck else (16, 32, 64))
    kwargs["widths"] = widths = check_ints("widths", kwargs["widths"], at_least=1)
    stages = len(widths)
    layers = stages * LAYERS_PER_BLOCK[bottleneck]
    if not is_int(depth) or depth <= 2 or (depth - 2) % layers:
        raise ArgumentError(
            "depth",
            f"be {layers} n + 2, for {stages} stage{'' if stages == 1 else 's'} of n "
            f"{'bottlenecks' if bottleneck else 'blocks'}: {layers + 2}, {2 * layers + 2}, "
            f"{3 * layers + 2}, ...",
            depth,
        )
    kwargs.setdefault("name", f"resnet{depth}")
    return ResidualNetwork(
        input_shape, classes, blocks=(depth - 2) // layers, bottleneck=bottleneck, **kwargs
    )


def resnet110(
    input_shape: Shape = CIFAR_SHAPE, classes: int = 10, **kwargs: Unpack[_OfResnet]
) -> ResidualNetwork:
    """Builds ResNet-110: 3 x 18 blocks of 16, 32 and 64 channels; 1,742,762 parameters on CIFAR-10.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4, architecture 1.
    """
    return resnet(110, input_shape, classes, **kwargs)


def resnet164(
    input_shape: Shape = CIFAR_SHAPE, classes: int = 10, **kwargs: Unpack[_OfResnet]
) -> ResidualNetwork:
    """Builds ResNet-164: 54 bottlenecks of 64, 128 and 256 channels.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, table 2.
    """
    return resnet(164, input_shape, classes, bottleneck=True, **kwargs)


def resnet1001(
    input_shape: Shape = CIFAR_SHAPE, classes: int = 10, **kwargs: Unpack[_OfResnet]
) -> ResidualNetwork:
    """Builds ResNet-1001: 333 bottlenecks of 64, 128 and 256 channels.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, table 3.
    """
    return resnet(1001, input_shape, classes, bottleneck=True, **kwargs)


def single_representation(
    input_shape: Shape = CIFAR_SHAPE,
    classes: int = 10,
    width: int = 100,
    **kwargs: Unpack[_OfPooling8],
) -> ResidualNetwork:
    """Builds one stage of 10 blocks of 100 channels; 1,829,210 parameters on CIFAR-10.

    Args:
        input_shape: (height, width, channels) of one image.
        classes: int, number of outputs.
        width: int, channels of all blocks; 100 in the paper.
        **kwargs: further arguments of `ResidualNetwork`.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4, architecture 2.
    """
    kwargs.setdefault("name", "single_representation")
    return ResidualNetwork(input_shape, classes, blocks=10, widths=(width,), pooling=8, **kwargs)


def average_pooling_resnet(
    input_shape: Shape = CIFAR_SHAPE,
    classes: int = 10,
    width: int = 150,
    **kwargs: Unpack[_OfPooling8],
) -> ResidualNetwork:
    """Builds 3 x 10 blocks of 150 channels, average pooling between stages; 12,201,310 parameters.

    With `transition="max_pooling"` it is the variant that the paper mentions without results.

    Args:
        input_shape: (height, width, channels) of one image.
        classes: int, number of outputs.
        width: int, channels of all blocks; 150 in the paper.
        **kwargs: further arguments of `ResidualNetwork`.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4, architecture 3.
    """
    kwargs.setdefault("name", "average_pooling_resnet")
    kwargs.setdefault("transition", "average_pooling")
    return ResidualNetwork(
        input_shape, classes, blocks=10, widths=(width, width, width), pooling=8, **kwargs
    )


def wide_resnet(
    input_shape: Shape = CIFAR_SHAPE,
    classes: int = 10,
    width: int = 160,
    **kwargs: Unpack[_OfWide],
) -> ResidualNetwork:
    """Builds a wide ResNet: 4, 5 and 5 blocks of 160, 320 and 640 channels; 45,732,842 parameters.

    The paper states four blocks per stage, but its parameter count is that of 4, 5 and 5.

    Args:
        input_shape: (height, width, channels) of one image.
        classes: int, number of outputs.
        width: int, channels of the first stage, doubled from stage to stage; 160 in the paper.
        **kwargs: further arguments of `ResidualNetwork`.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4, architecture 4.
    """
    kwargs.setdefault("name", "wide_resnet")
    return ResidualNetwork(
        input_shape,
        classes,
        blocks=(4, 5, 5),
        widths=(width, 2 * width, 4 * width),
        stem_width=16,
        **kwargs,
    )


def resnet101(
    input_shape: Shape = CIFAR_SHAPE,
    classes: int = 10,
    width: int = 16,
    *,
    stages: int = 3,
    blocks: int | Iterable[int] = 16,
    **kwargs: Unpack[_OfResnet101],
) -> ResidualNetwork:
    """Builds ResNet-101: stages of 16 blocks with separate downsampling blocks between them.

    Args:
        input_shape: (height, width, channels) of one image.
        classes: int, number of outputs.
        width: int, channels of the first stage (8, 16, 32 or 64 in the paper), doubled from stage
            to stage.
        stages: int, number of stages: 3 in the paper, 1 for MNIST.
        blocks: int, blocks per stage, or one int per stage.
        **kwargs: further arguments of `ResidualNetwork`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        section 3 and appendix A.
    """
    kwargs.setdefault("name", "resnet101")
    return ResidualNetwork(
        input_shape,
        classes,
        blocks=blocks,
        widths=tuple(width * 2**stage for stage in range(stages)),
        transition="downsampling_block",
        **kwargs,
    )


def hauser_resnet(
    blocks: int | Iterable[int],
    input_shape: Shape = CIFAR_SHAPE,
    classes: int = 10,
    **kwargs: Unpack[_OfHauser],
) -> ResidualNetwork:
    """Builds 3 stages with 1x1 stride-2 filters between them: `6 * blocks + 2` layers.

    Args:
        blocks: int, blocks per stage (2 to 100 in the paper), or one int per stage.
        input_shape: (height, width, channels) of one image.
        classes: int, number of outputs.
        **kwargs: further arguments of `ResidualNetwork`.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", section 3.
    """
    kwargs.setdefault("name", "hauser_resnet")
    return ResidualNetwork(input_shape, classes, blocks=blocks, transition="convolution", **kwargs)


# The presets by name.
PRESETS: dict[str, Callable[..., ResidualNetwork]] = {
    function.__name__: function
    for function in (
        resnet,
        hauser_resnet,
        resnet101,
        resnet110,
        resnet164,
        resnet1001,
        single_representation,
        average_pooling_resnet,
        wide_resnet,
    )
}
