"""The settings of a study: what they are, which can be used, what `None` stands for."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfresidual import datasets, networks, training
from tfresidual.arguments import (
    ArgumentError,
    check_bool,
    check_choice,
    check_epsilon,
    check_int,
    check_number,
    checked_path,
)
from tfresidual.datasets.description import sizes_of
from tfresidual.datasets.image_file import open_file
from tfresidual.layers.residual_unit import BATCH_NORMS, LAYOUTS
from tfresidual.layers.shortcuts import get_shortcut
from tfresidual.networks.residual_network import ANCHORS, TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tfresidual.types import (
        Anchor,
        BatchNorm,
        CouplingKernel,
        DatasetName,
        Layout,
        RecipeName,
        ShortcutName,
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
# What settings with a name must be one of; others are looked up by what they name.
CHOICES = {
    "network": networks.PRESETS,
    "transition": TRANSITIONS,
    "layout": tuple(LAYOUTS),
    "batch_norm": tuple(BATCH_NORMS),
    "anchor": ANCHORS,
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
        learning_rate: first learning rate, with which the recipe's others change by the same
            factor, as for other batches than the paper's; `None` for the recipe's own.
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
    learning_rate: float | None = None
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
    check_names(settings)
    check_int("share_from", settings.share_from, at_least=0, or_none=True)
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
            raise ArgumentError(
                name,
                "be given together with `coupling`: it says how gradients are coupled",
                said=f"{name}={getattr(settings, name)!r}, coupling=None",
            )
    for name in ("gamma", *OF_SHORTCUTS):
        check_number(name, getattr(settings, name), at_least=-1e9, at_most=1e9, or_none=True)
    for name, (_, shortcuts) in OF_SHORTCUTS.items():
        if getattr(settings, name) is not None and settings.shortcut not in shortcuts:
            raise ArgumentError(
                name,
                f"be given together with `shortcut` as {' or '.join(map(repr, shortcuts))}: no "
                "other shortcut has it",
                said=f"{name}={getattr(settings, name)!r}, shortcut={settings.shortcut!r}",
            )
    check_number("lipschitz", settings.lipschitz, at_least=1e-9, at_most=1e9, or_none=True)
    for name in SOURCES:
        if getattr(settings, name) is not None:
            checked_path(name, getattr(settings, name))
    if settings.data_dir is not None and settings.data_file is not None:
        raise ArgumentError(
            ("data_dir", "data_file"),
            "not be given together: each says where the images are",
            data_dir=settings.data_dir,
            data_file=settings.data_file,
        )


def check_names(settings: Settings) -> None:
    """Raises a `ValueError` unless the names in the settings of a network are known."""
    for name, choices in CHOICES.items():
        if getattr(settings, name) is not None:
            check_choice(name, getattr(settings, name), choices)
    try:
        keras.dtype_policies.get(settings.dtype)
    except ValueError as error:
        raise ArgumentError(
            "dtype",
            "be a dtype policy of Keras, such as 'float32' or 'mixed_bfloat16'",
            settings.dtype,
        ) from error


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
    name = settings.data if settings.recipe is None else settings.recipe
    return training.recipe(name, settings.learning_rate)


def stages_of(settings: Settings) -> int:
    """Returns the number of stages of a network that can have any number of them."""
    return settings.stages or STAGES


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
    recipe = recipe_of(settings)
    values = dataclasses.asdict(settings) | {
        "depth": settings.depth or DEPTHS.get(settings.network),
        "width": settings.width or WIDTHS.get(settings.network),
        "stages": stages_of(settings),
        "recipe": recipe.name,
        "learning_rate": recipe.rates[0][1],
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
