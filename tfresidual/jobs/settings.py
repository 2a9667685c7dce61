"""Which settings can be used together, and what `None` stands for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras

from tfresidual import datasets, training
from tfresidual.datasets.description import is_augmented, sizes_of
from tfresidual.datasets.image_file import open_file
from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.settings import Settings as Settings
from tfresidual.layers.shortcuts import get_shortcut

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Networks whose stages can have any number of blocks; there can be any number of stages.
ANY_DEPTH = ("resnet", "hauser_resnet", "resnet101")
# The width used if the setting `width` is `None`, of networks that can have any.
WIDTHS = {
    "resnet": 16,
    "hauser_resnet": 16,
    "resnet101": 16,
    "single_representation": 100,
    "average_pooling_resnet": 150,
    "wide_resnet": 160,
}
# What the settings of a network's size are for networks that can have them; others have their own.
OF_NETWORKS = {
    "depth": ANY_DEPTH,
    "stages": ANY_DEPTH,
    "width": tuple(WIDTHS),
    "transition": (
        *("resnet", "resnet110", "resnet164", "resnet1001"),
        *("average_pooling_resnet", "wide_resnet"),
    ),
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
DEPTHS = {"resnet": 20, "hauser_resnet": 6, "resnet101": 16}
# The number of stages used if the setting `stages` is `None`.
STAGES = 3


def check(settings: Settings) -> None:
    """Raises a `ValueError` unless every setting can be used; builds nothing.

    What depends on the network or the data is checked by `build` and `tfresidual.datasets.load`.
    """
    keras.dtype_policies.get(settings.dtype)
    describe(settings)
    recipe_of(settings)
    for name in ("kernel", "coupling_from"):
        if settings.coupling is None and getattr(settings, name) != getattr(Settings, name):
            raise ArgumentError(
                name,
                "be given together with `coupling`: it says how gradients are coupled",
                received=f"{name}={getattr(settings, name)!r}, coupling=None",
            )
    for name, (_, shortcuts) in OF_SHORTCUTS.items():
        if getattr(settings, name) is not None and settings.shortcut not in shortcuts:
            raise ArgumentError(
                name,
                f"be given together with `shortcut` as {' or '.join(map(repr, shortcuts))}: no "
                "other shortcut has it",
                received=f"{name}={getattr(settings, name)!r}, shortcut={settings.shortcut!r}",
            )
    if settings.data_dir is not None and settings.data_file is not None:
        raise ArgumentError(
            ("data_dir", "data_file"),
            "not be given together: each says where the images are",
            data_dir=settings.data_dir,
            data_file=settings.data_file,
        )


def with_data_of_file(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of `Settings` completed by what their `data_file` holds, if they have one.

    Example: `Settings(**with_data_of_file({"data_file": "mnist.npz", "epochs": 10}))`. What is
    given is kept. A damaged file is a `ValueError`.
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


def split_sizes(settings: Settings) -> tuple[int, int, int]:
    """Returns the numbers of images for training, validation and test of a study."""
    return sizes_of(settings.data, settings.train_size, settings.validation, settings.test_size)


def recipe_of(settings: Settings) -> training.Recipe:
    """Returns the training recipe of a study, a `tfresidual.training.Recipe`."""
    name = settings.data if settings.recipe is None else settings.recipe
    return training.recipe(
        name,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        l2=settings.l2,
    )


def augments(settings: Settings) -> bool:
    """Returns whether training images are flipped and cropped: as settings, recipe and data say."""
    is_usual = is_augmented(settings.data, None)
    return settings.augment and recipe_of(settings).augment and is_usual


def stages_of(settings: Settings) -> int:
    """Returns the number of stages of a network that can have any number of them."""
    return settings.stages or STAGES


def used(settings: Settings) -> dict[str, Any]:
    """Returns the settings that a study used, a dict, with the defaults in place of `None`.

    They must pass `check`. Settings that are off, or had no effect, are left out.
    """
    train_size, _, test_size = split_sizes(settings)
    recipe = recipe_of(settings)
    values = dataclasses.asdict(settings) | {
        "depth": settings.depth or DEPTHS.get(settings.network),
        "width": settings.width or WIDTHS.get(settings.network),
        "stages": stages_of(settings),
        "recipe": recipe.name,
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay or None,
        "l2": recipe.l2 or None,
        "augment": augments(settings),
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
