"""The settings of a study, and the network, the data and the training that they describe."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfresidual import datasets, layers, networks, training
from tfresidual.arguments import (
    check_bool,
    check_choice,
    check_epsilon,
    check_int,
    check_number,
    checked_path,
)
from tfresidual.datasets.description import sizes_of
from tfresidual.datasets.image_file import array_datasets, open_file, reader_of
from tfresidual.layers.shortcuts import get_shortcut
from tfresidual.machine.backends import BACKEND
from tfresidual.machine.console import say
from tfresidual.machine.memory import TooLargeError, check_fits
from tfresidual.networks import weight_groups
from tfresidual.networks.residual_network import TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rich.console import Console

    from tfresidual.datasets import ArrayDataset
    from tfresidual.types import (
        Anchor,
        BatchNorm,
        CouplingKernel,
        Dataset,
        DatasetName,
        Layout,
        Pixels,
        RecipeName,
        ShortcutName,
        StrPath,
        Transition,
    )

# Largest number of layers, or of blocks per stage; a larger network takes hours to build.
MOST_BLOCKS = 10_000
# Networks whose stages can have any number of blocks; there can be any number of stages.
ANY_DEPTH = ("resnet", "hauser", "resnet101")
# The width used if the setting `width` is `None`, of networks that can have any.
WIDTHS = {
    "resnet": 16,
    "hauser": 16,
    "resnet101": 16,
    "single_representation": 100,
    "avg_pooling": 150,
    "wide": 160,
}
# What the settings of a network's size are for networks that can have them; others have their own.
OF_NETWORKS = {
    "depth": ANY_DEPTH,
    "stages": ANY_DEPTH,
    "width": tuple(WIDTHS),
    "transition": ("resnet", "resnet110", "resnet164", "resnet1001", "avg_pooling", "wide"),
}
# The arguments of shortcuts that are settings, and the shortcuts that have them.
OF_SHORTCUTS = {
    "gate_bias": ("bias", ("exclusive_gate", "shortcut_only_gate")),
    "shortcut_scale": ("scale", ("scaled",)),
    "branch_scale": ("branch_scale", ("scaled",)),
}
# Where the images are, which does not change what they are.
SOURCES = ("data_dir", "data_file")
# The depth used if the setting `depth` is `None`.
DEPTHS = {"resnet": 20, "hauser": 6, "resnet101": 16}
# The number of stages used if the setting `stages` is `None`.
STAGES = 3


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a study; the same settings and seed give the same numbers.

    Attributes:
        data: name of a dataset, see `tfresidual.datasets.load`.
        digits: number of digits on an image of Digitclutter.
        data_dir: folder of tensorflow-datasets, or `None` for its default.
        data_file: file that `tfresidual data` wrote, from which the images are read instead, or
            `None`.
        network: name of a function in `tfresidual.networks`.
        depth: number of layers of `"resnet"`, or of blocks per stage of `"hauser"` and
            `"resnet101"`; `None` for 20, 6 and 16, respectively.
        width: number of channels of the first stage, doubled from stage to stage (except in
            `"single_representation"` and `"avg_pooling"`, which have one width); `None` for the
            network's own: 16, or 100, 150 and 160 for `"single_representation"`, `"avg_pooling"`
            and `"wide"`.
        stages: number of stages of `"resnet"`, `"hauser"` and `"resnet101"`; `None` for 3.
        transition: how the stages after the first begin, see `tfresidual.networks.ResidualNetwork`;
            `None` for the network's own: `"avg_pooling"` with `"max_pooling"` is a variant of the
            paper. `"hauser"` and `"resnet101"` have no other.
        layout: layout of the residual units.
        shortcut: shortcut of the residual units.
        gate_bias: initial value of the bias of the gates of the shortcuts `"exclusive_gate"` and
            `"shortcut_only_gate"`; `None` for -6.
        shortcut_scale: factor of the state in the shortcut `"scaled"`; `None` for 0.5.
        branch_scale: factor of the branch in the shortcut `"scaled"`; `None` for 1.
        gamma: initial scale of the units' batch normalization; `None` for 0.1 if `batch_norm` is
            `"unshared"`, else 1.
        share_from: block index from which the blocks of a stage are one shared block, or `None`.
        batch_norm: which parts of batch normalization every application of a shared block has for
            itself, see `tfresidual.networks.ResidualNetwork`.
        recurrent: whether the blocks of a stage begin with equal weights.
        coupling: strength of the coupling between the gradients of a stage's blocks, from 0 to 1,
            see `tfresidual.training.GradientCoupling`; `None` for an optimizer without coupling.
        kernel: how the coupling decreases with the distance between two blocks.
        coupling_from: block index of the first block of a stage that is coupled.
        lipschitz: the largest Lipschitz constant of the blocks' branches, or `None` for no bound.
        anchor: the state to which blocks add their branch, `"previous"` or `"input"`.
        epochs: number of epochs of training.
        batch_size: images per step.
        recipe: name of a recipe, see `tfresidual.training.recipe`; `None` for the dataset's own.
        train_size: number of training images, `None` for the dataset's default.
        validation: number of images held out to choose the best epoch.
        test_size: number of test images, `None` for the dataset's default.
        epsilon: the largest mean scaled perturbation that meets the stopping rule.
        dtype: dtype policy of the network.
        seed: determines the initial weights, the order of the images and their augmentation.
    """

    data: DatasetName = "digitclutter"
    digits: int = 3
    data_dir: str | None = None
    data_file: str | None = None
    network: str = "resnet"
    depth: int | None = None
    width: int | None = None
    stages: int | None = None
    transition: Transition | None = None
    layout: Layout = "full_preactivation"
    shortcut: ShortcutName = "identity"
    gate_bias: float | None = None
    shortcut_scale: float | None = None
    branch_scale: float | None = None
    gamma: float | None = None
    share_from: int | None = None
    batch_norm: BatchNorm = "shared"
    recurrent: bool = False
    coupling: float | None = None
    kernel: CouplingKernel = "uniform"
    coupling_from: int = 0
    lipschitz: float | None = None
    anchor: Anchor = "previous"
    epochs: int = 4
    batch_size: int = 64
    recipe: RecipeName | None = None
    train_size: int | None = None
    validation: int = 2000
    test_size: int | None = None
    epsilon: float = 0.1
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in SOURCES:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        for field in dataclasses.fields(self):
            # JSON cannot hold NumPy numbers.
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())


def check(settings: Settings) -> None:
    """Raises a `ValueError` unless every setting can be used; builds nothing.

    What depends on the network or the data is checked by `build` and `tfresidual.datasets.load`.
    """
    for name in ("epochs", "batch_size", "validation"):
        check_int(name, getattr(settings, name), at_least=1)
    for name in ("width", "train_size", "test_size", "stages"):
        check_int(name, getattr(settings, name), at_least=1, or_none=True)
    if settings.transition is not None:
        check_choice("transition", settings.transition, TRANSITIONS)
    check_int("depth", settings.depth, at_least=1, at_most=MOST_BLOCKS, or_none=True)
    check_int("seed", settings.seed, at_least=0, at_most=2**32 - 1)
    check_bool("recurrent", settings.recurrent)
    check_epsilon(settings.epsilon)
    describe(settings)
    recipe_of(settings)
    check_int("coupling_from", settings.coupling_from, at_least=0)
    coupling = check_number("coupling", settings.coupling, at_least=0, at_most=1, or_none=True)
    training.coupling_kernel([0, 1], coupling or 0.0, settings.kernel)
    for name in ("kernel", "coupling_from"):
        if settings.coupling is None and getattr(settings, name) != getattr(Settings, name):
            raise ValueError(
                f"Argument `{name}` must be given together with `coupling`: it says how gradients "
                f"are coupled. Received: {name}={getattr(settings, name)!r}, coupling=None"
            )
    for name in ("gamma", *OF_SHORTCUTS):
        check_number(name, getattr(settings, name), at_least=-1e9, at_most=1e9, or_none=True)
    for name, (_, shortcuts) in OF_SHORTCUTS.items():
        if getattr(settings, name) is not None and settings.shortcut not in shortcuts:
            raise ValueError(
                f"Argument `{name}` must be given together with `shortcut` as "
                f"{' or '.join(map(repr, shortcuts))}: no other shortcut has it. Received: "
                f"{name}={getattr(settings, name)!r}, shortcut={settings.shortcut!r}"
            )
    check_number("lipschitz", settings.lipschitz, at_least=1e-9, at_most=1e9, or_none=True)
    for name in SOURCES:
        if getattr(settings, name) is not None:
            checked_path(name, getattr(settings, name))
    if settings.data_dir is not None and settings.data_file is not None:
        raise ValueError(
            "Arguments `data_dir` and `data_file` must not be given together: each says where the "
            f"images are. Received: data_dir={settings.data_dir!r}, "
            f"data_file={settings.data_file!r}"
        )


def with_data_of_file(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of `Settings` completed by what their `data_file` holds.

    Example: `Settings(**with_data_of_file({"data_file": "mnist.npz", "epochs": 10}))`.

    Args:
        changes: dict of fields of `Settings`; those it gives are kept. Without a `data_file`,
            nothing is added.

    Raises:
        ValueError: if the file is damaged or something else.
        OSError: if there is no such file, or it cannot be read.
    """
    if changes.get("data_file") is None:
        return dict(changes)
    file = open_file(changes["data_file"])
    train_size, validation, test_size = file.sizes.values()
    found: dict[str, Any] = {
        "data": file.name,
        "train_size": train_size,
        "validation": validation,
        "test_size": test_size,
    }
    # The numbers that `None` stands for, so that a run on the same images has the same settings.
    held_out = changes.get("validation", validation)
    usual_train, _, usual_test = sizes_of(file.name, None, held_out, None)
    found |= {"train_size": None} if train_size == usual_train else {}
    found |= {"test_size": None} if test_size == usual_test else {}
    found |= {} if file.digits is None else {"digits": file.digits}
    return found | dict(changes)


def describe(settings: Settings) -> datasets.Description:
    """Returns the description of a study's data, see `tfresidual.datasets.describe`."""
    return datasets.describe(settings.data, digits=settings.digits)


def recipe_of(settings: Settings) -> training.Recipe:
    """Returns the training recipe of a study, a `tfresidual.training.Recipe`."""
    return training.recipe(settings.data if settings.recipe is None else settings.recipe)


def build(settings: Settings, blocks: tuple[int, ...] | None = None) -> networks.ResidualNetwork:
    """Returns the untrained network of a study.

    Args:
        settings: a `Settings`.
        blocks: tuple of ints, the number of blocks of each stage, used instead of the setting
            `depth`; only for networks that can have any depth.

    Returns:
        A `tfresidual.networks.ResidualNetwork`.

    Raises:
        ValueError: if a setting cannot be used.
    """
    description = describe(settings)
    check_choice("network", settings.network, networks.PRESETS)
    try:
        keras.dtype_policies.get(settings.dtype)
    except ValueError as error:
        raise ValueError(
            "Argument `dtype` must be a dtype policy of Keras, such as 'float32' or "
            f"'mixed_bfloat16'. Received: dtype={settings.dtype!r}"
        ) from error
    share_from, batch_norm = settings.share_from, settings.batch_norm
    if blocks is not None and share_from is not None and share_from >= max(blocks):
        # A search begins with networks that are too shallow to share anything.
        share_from, batch_norm = None, "shared"
    kwargs: dict[str, Any] = {
        "input_shape": description.input_shape,
        "classes": description.classes,
        "classifier_activation": "sigmoid" if description.multi_label else "softmax",
        "layout": settings.layout,
        "shortcut": _shortcut(settings),
        "share_from": share_from,
        "batch_norm": batch_norm,
        "recurrent_initialization": settings.recurrent,
        "lipschitz": settings.lipschitz,
        "anchor": settings.anchor,
        "dtype": settings.dtype,
    }
    if settings.gamma is not None:
        kwargs["gamma_initializer"] = keras.initializers.Constant(settings.gamma)
    if blocks is not None:
        check_any_depth(settings)
    kwargs |= _size(settings, blocks, description.input_shape)
    if settings.network == "resnet" and blocks is not None:
        return networks.ResidualNetwork(name="resnet", **kwargs)
    try:
        return getattr(networks, settings.network)(**kwargs)
    except TooLargeError as error:
        raise ValueError(
            "Arguments `depth` and `width` must fit into the memory of this machine: the weights "
            f"{error.amounts}. Received: depth={settings.depth!r}, width={settings.width!r}"
        ) from error


def _shortcut(settings):
    """Returns the shortcut of a network's units, by name or, with settings of its own, a layer."""
    given = {
        argument: getattr(settings, name)
        for name, (argument, _) in OF_SHORTCUTS.items()
        if getattr(settings, name) is not None
    }
    if not given:
        return settings.shortcut
    config = get_shortcut(settings.shortcut).get_config()
    return type(get_shortcut(settings.shortcut)).from_config(config | given)


def _size(settings, blocks, input_shape):
    """Returns the arguments of a network that determine its depth, its width and its stages.

    Args:
        settings: a `Settings`.
        blocks: the number of blocks of each stage, or `None`, as in `build`.
        input_shape: (height, width, channels) of one image.

    Raises:
        ValueError: if the settings give something to a network that has its own, or more stages
            than can halve the images.
    """
    for name, having in OF_NETWORKS.items():
        if settings.network not in having and getattr(settings, name) != getattr(Settings, name):
            raise ValueError(
                f"Argument `{name}` must not be given: {settings.network} has its own. Received: "
                f"{name}={getattr(settings, name)!r}"
            )
    between = {} if settings.transition is None else {"transition": settings.transition}
    if settings.network not in WIDTHS:
        return between
    width = settings.width or WIDTHS[settings.network]
    if settings.network not in ANY_DEPTH:
        return {"width": width, **between}
    stages = stages_of(settings)
    if between and stages == 1:
        raise ValueError(
            "Argument `transition` must not be given to a network of one stage: it is between two. "
            f"Received: transition={settings.transition!r}, stages={settings.stages!r}"
        )
    rows, columns, _ = input_shape
    # The largest power of two that divides both.
    most = (math.gcd(rows, columns) & -math.gcd(rows, columns)).bit_length()
    if stages > most:
        raise ValueError(
            f"Argument `stages` must be {most} or less for images of {rows}x{columns}: every stage "
            f"but the first halves height and width. Received: stages={settings.stages!r}"
        )
    depth = settings.depth or DEPTHS[settings.network]
    if settings.network == "resnet101":
        return {"width": width, "stages": stages, "blocks": blocks or depth}
    widths = tuple(width * 2**stage for stage in range(stages))
    if settings.network == "hauser":
        return {"widths": widths, "blocks": blocks or depth}
    if blocks is not None:
        return {"widths": widths, "blocks": blocks} | between
    return {"widths": widths, "depth": depth} | between


def stages_of(settings: Settings) -> int:
    """Returns the number of stages of a network that can have any number of them."""
    return settings.stages or STAGES


def check_training_fits(network: networks.ResidualNetwork, settings: Settings) -> None:
    """Raises a `ValueError` if training a network takes more memory than the machine has.

    The estimate is a lower bound. It counts weights, gradients and momentum, and what every layer
    keeps of a batch for the backward pass. A residual unit keeps at least three states and counts
    as three.
    """
    train_size, _, _ = sizes_of(
        settings.data, settings.train_size, settings.validation, settings.test_size
    )
    images = min(settings.batch_size, train_size)
    bytes_each = 4 if network.compute_dtype == "float32" else 2
    kept = sum(
        math.prod(layer.output.shape[1:]) * (3 if isinstance(layer, layers.ResidualUnit) else 1)
        for layer in network.layers
    )
    named = {"width": settings.width, "depth": settings.depth, "batch_size": settings.batch_size}
    check_fits(
        network.count_params() * 4 * 3 + images * kept * bytes_each,
        f"Arguments {', '.join(f'`{name}`' for name in named)} must fit into the memory of this "
        "machine: the training",
        ", ".join(f"{name}={value!r}" for name, value in named.items()),
    )


def used(settings: Settings) -> dict[str, Any]:
    """Returns the settings that a study used, with the defaults in place of `None`.

    Args:
        settings: a `Settings` that passes `check`.

    Returns:
        A dict. Settings that are off, or had no effect, are left out.
    """
    train_size, _, test_size = sizes_of(
        settings.data, settings.train_size, settings.validation, settings.test_size
    )
    values = dataclasses.asdict(settings) | {
        "depth": settings.depth or DEPTHS.get(settings.network),
        "width": settings.width or WIDTHS.get(settings.network),
        "stages": stages_of(settings),
        "recipe": recipe_of(settings).name,
        "train_size": train_size,
        "test_size": test_size,
    }
    shortcut = get_shortcut(settings.shortcut).get_config()
    values |= {
        name: shortcut[argument] if getattr(settings, name) is None else getattr(settings, name)
        for name, (argument, shortcuts) in OF_SHORTCUTS.items()
        if settings.shortcut in shortcuts
    }
    without_effect = set()
    if describe(settings).digits is None:
        without_effect.add("digits")
    without_effect |= {
        name for name, having in OF_NETWORKS.items() if settings.network not in having
    }
    if settings.coupling is None:
        without_effect |= {"kernel", "coupling_from"}
    return {
        name: value
        for name, value in values.items()
        if value is not None and name not in without_effect
    }


def compile_for(network: networks.ResidualNetwork, settings: Settings, steps: int) -> str:
    """Compiles a network for the training of a study.

    Args:
        network: the network that `build` returned.
        settings: a `Settings`.
        steps: int, optimizer steps per epoch.

    Returns:
        The name of the metric.
    """
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
        settings.epochs,
        steps,
        describe(settings).multi_label,
        **coupling,
    )


def has_blocks_to_couple(network: networks.ResidualNetwork, settings: Settings) -> bool:
    """Returns whether a network has two blocks that the coupling of the settings couples."""
    blocks = weight_groups.blocks_of(network.trainable_variables)
    groups = weight_groups.groups_of(blocks, settings.coupling_from)
    return any(len(group.variables) > 1 for group in groups)


def nothing_to_couple(settings: Settings, where: str) -> ValueError:
    """Returns the error for a coupling that has no two blocks to couple.

    Args:
        settings: a `Settings` with a coupling.
        where: str, the argument that determines the network, as `name=value`.
    """
    return ValueError(
        "Argument `coupling` must be used with a network that has at least two blocks to couple "
        "in a stage: blocks from `coupling_from` on that keep the shape of the state. Received: "
        f"coupling={settings.coupling!r}, coupling_from={settings.coupling_from!r}, {where}"
    )


def check_any_depth(settings: Settings) -> None:
    """Raises a `ValueError` unless the stages of the network can have any number of blocks."""
    if settings.network not in ANY_DEPTH:
        raise ValueError(
            f"Argument `network` must be one of {', '.join(map(repr, ANY_DEPTH))} for a depth "
            f"search. Received: network={settings.network!r}"
        )
    if settings.depth is not None:
        raise ValueError(
            "Argument `depth` must not be given for a depth search. Received: "
            f"depth={settings.depth!r}"
        )


def prepare(
    settings: Settings | None = None,
    console: Console | None = None,
    download: bool = False,
    pixels: Pixels = "standardized",
) -> tuple[Dataset, Dataset, Dataset] | tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
    """Loads the data of a study; Digitclutter is generated if it is not on the disk.

    Args:
        settings: a `Settings`, by default those of the embedded study.
        console: a `rich.console.Console` for progress, or `None` for no output.
        download: whether tensorflow-datasets may download missing data.
        pixels: format of the pixels, see `tfresidual.datasets.load`.

    Returns:
        A tuple `(train, validation, test)` of `tf.data.Dataset` on TensorFlow, and of
        `tfresidual.datasets.ArrayDataset` on other backends.

    Raises:
        ValueError: if a setting cannot be used, or `data_file` is damaged or does not hold the
            images of the settings.
        FileNotFoundError: if the dataset is not on the disk.
    """
    settings = settings or Settings()
    check(settings)
    say(console, f"preparing {settings.data}")
    sizes = sizes_of(settings.data, settings.train_size, settings.validation, settings.test_size)
    if settings.data_file is not None:
        file = open_file(settings.data_file)
        read = reader_of(file, settings.data, settings.digits, *sizes)
    else:
        loading = _loading(settings.data_dir)
        read = loading.reader(settings.data, settings.digits, sizes, settings.data_dir, download)
    batched = array_datasets
    if BACKEND == "tensorflow":
        batched = _loading(settings.data_dir).pipelines
    return batched(
        read,
        settings.data,
        digits=settings.digits,
        batch_size=settings.batch_size,
        # A recipe with augmentation leaves the choice to the dataset: digits are not augmented.
        augment=None if recipe_of(settings).augment else False,
        shuffle=True,
        seed=settings.seed,
        pixels=pixels,
    )


def write_file(
    settings: Settings, path: StrPath, console: Console | None = None, download: bool = False
) -> None:
    """Writes the data of a study into one file, see `tfresidual.datasets.save`."""
    check(settings)
    say(console, f"preparing {settings.data}")
    _loading(settings.data_dir).save(
        path,
        settings.data,
        digits=settings.digits,
        train_size=settings.train_size,
        validation=settings.validation,
        test_size=settings.test_size,
        data_dir=settings.data_dir,
        download=download,
    )


def _loading(data_dir):
    """Returns the module that reads the files of tensorflow-datasets, with TensorFlow."""
    try:
        from tfresidual.datasets import loading
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "tensorflow_datasets"):
            raise
        raise ValueError(
            "Images are read from the files of tensorflow-datasets only where it and TensorFlow "
            "are installed. Elsewhere, the setting data_file (--data-file) must name a file that "
            f"`tfresidual data NAME --to FILE.npz` wrote. Received: data_dir={data_dir!r}"
        ) from error
    return loading
