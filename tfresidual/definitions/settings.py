"""The settings of commands and of jobs, as data.

A field says what it means, what its default is, and what it may be. The options of the command line
are made of that, and so are checks, messages and the reference. `--help` needs this module, which
therefore imports nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from tfresidual.definitions import data_sets

if TYPE_CHECKING:
    from tfresidual.definitions.types import (
        Anchor,
        AtChance,
        BatchNorm,
        Chance,
        CouplingKernel,
        DatasetName,
        Layout,
        RecipeName,
        ShortcutName,
        Transition,
    )

ANCHORS = ("previous", "input")
BATCH_NORMS = ("shared", "unshared_statistics", "unshared_scale", "unshared")
DATASETS, RECIPES = tuple(data_sets.DATA_SETS), tuple(data_sets.RECIPES)
CHANCES = ("uniform", "largest class")
KERNELS = ("uniform", "triangular", "triangular_printed")
LAYOUTS = (
    "full_preactivation",
    "relu_only_preactivation",
    "relu_before_addition",
    "bn_after_addition",
    "original",
)
NETWORKS = (
    "resnet",
    "hauser_resnet",
    "resnet101",
    "resnet110",
    "resnet164",
    "resnet1001",
    "single_representation",
    "average_pooling_resnet",
    "wide_resnet",
)
SHORTCUTS = ("identity", "scaled", "exclusive_gate", "shortcut_only_gate", "conv1x1", "dropout")
TRANSITIONS = (
    "projection",
    "convolution",
    "average_pooling",
    "max_pooling",
    "downsampling_block",
)
# The largest count allowed, so that sums and products of a few counts fit into 64 bits.
LARGEST_COUNT = 10**9
# The largest number of layers, or of blocks per stage: a larger network takes hours to build.
MOST_BLOCKS = 10_000
MOST_TIMES = 1000
EPSILON = 0.1
MEMORY_LIMIT = 1024
# Of positive numbers: quotients of them fit into 64 bits.
BOUNDS: dict[str, Any] = {"at_least": 1e-9, "at_most": 1e9}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a setting means and may be.

    Attributes:
        meaning: one sentence.
        kind: the type of its values: `int`, `float`, `bool` or `str`; `os.PathLike` for paths.
        shown: its default in words, if it is not shown as it is.
        choices: all possible values, of a number those besides the ones in its bounds.
        at_least: the smallest number.
        at_most: the largest number.
        over: a number that is too small; with `at_least`, what the command line says instead.
        offered: those of the possible values that the command line offers, if not all.
        metavar: what a value is called in `--help`.
    """

    meaning: str
    kind: type
    shown: str = ""
    choices: tuple[Any, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    over: float | None = None
    offered: tuple[Any, ...] = ()
    metavar: str = ""


def _field(default, *described, **also):
    return dataclasses.field(default=default, metadata={"setting": Setting(*described, **also)})


def _count(default: Any, meaning: str, shown: str = "", most: int = LARGEST_COUNT) -> Any:
    return _field(default, meaning, int, shown, at_least=1, at_most=most, metavar="N")


def _index(default: Any, meaning: str, shown: str = "") -> Any:
    return _field(default, meaning, int, shown, at_least=0, at_most=LARGEST_COUNT, metavar="K")


def _number(default: Any, meaning: str, shown: str = "", **bounds: float) -> Any:
    return _field(default, meaning, float, shown, metavar="X", **bounds)


def _name(default: Any, meaning: str, choices: tuple[str, ...], shown: str = "") -> Any:
    return _field(default, meaning, str, shown, choices, metavar="NAME")


def of(field: dataclasses.Field[Any]) -> Setting:
    """Returns what a field of a class of settings says of itself."""
    setting: Setting = field.metadata["setting"]
    return setting


def check_fields(settings: Any) -> None:
    """Raises an `ArgumentError` unless each setting can be used, whatever the others are."""
    from tfresidual.definitions.arguments import (
        check_bool,
        check_choice,
        check_int,
        check_number,
        checked_path,
    )

    for field in dataclasses.fields(settings):
        setting, value = of(field), getattr(settings, field.name)
        if value is None and field.default is None:
            continue
        if setting.choices and (setting.kind is str or isinstance(value, str)):
            check_choice(field.name, value, setting.choices)
        elif setting.kind is int:
            check_int(field.name, value, int(setting.at_least or 0), int(setting.at_most or 0))
        elif setting.kind is float and value not in setting.choices:
            over = setting.over if setting.at_least is None else None
            check_number(field.name, value, over, setting.at_least, at_most=setting.at_most)
        elif setting.kind is bool:
            check_bool(field.name, value)
        elif setting.kind is os.PathLike:
            checked_path(field.name, value)


def _documented(cls):
    """Adds the attributes of a class of settings to its docstring."""
    lines = []
    for field in dataclasses.fields(cls):
        setting = of(field)
        named = f": {', '.join(map(repr, setting.choices))}" if setting.choices else ""
        default = setting.shown or f"{field.default!r}"
        lines.append(f"    {field.name}: {setting.meaning.rstrip('.')}{named}. Default: {default}.")
    cls.__doc__ = "\n".join([cls.__doc__.rstrip(), "", "Attributes:", *lines])
    return cls


@_documented
@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a study; the same settings and seed give the same numbers."""

    data: DatasetName = _name("digitclutter", "Dataset.", DATASETS)
    digits: int = _field(
        3, "Digits per image of digitclutter.", int, "", (3, 4, 5), at_least=3, at_most=5
    )
    data_dir: str | None = _field(
        None,
        "Folder of tensorflow-datasets.",
        os.PathLike,
        "~/tensorflow_datasets",
        metavar="DIR",
    )
    data_file: str | None = _field(
        None,
        "File that `tfresidual data --to` wrote, to read the images from.",
        os.PathLike,
        "none",
        metavar="FILE",
    )
    network: str = _field(
        "resnet",
        "A paper's network, or resnet of any depth and width.",
        str,
        "",
        NETWORKS,
        metavar="NAME",
    )
    depth: int | None = _count(
        None,
        "Layers of resnet, 6 n + 2, or blocks per stage of hauser_resnet and resnet101.",
        "20, 6 and 16",
        MOST_BLOCKS,
    )
    width: int | None = _count(
        None,
        "Channels of the first stage.",
        "16; 100, 150 and 160 of single_representation, average_pooling_resnet and wide_resnet",
    )
    stages: int | None = _count(
        None, "Stages of resnet (of 2 n layers each), hauser_resnet and resnet101.", "3"
    )
    transition: Transition | None = _name(
        None,
        "What leads to the next stage of networks but hauser_resnet and resnet101.",
        TRANSITIONS,
        "the network's own",
    )
    layout: Layout = _name("full_preactivation", "Order of the operations in a block.", LAYOUTS)
    shortcut: ShortcutName = _name("identity", "Shortcut of the blocks.", SHORTCUTS)
    gate_bias: float | None = _number(
        None,
        "Initial bias of the gates of exclusive_gate and shortcut_only_gate.",
        "-6",
        at_least=-1e9,
        at_most=1e9,
    )
    shortcut_scale: float | None = _number(
        None, "Factor of the state in the shortcut scaled.", "0.5", at_least=-1e9, at_most=1e9
    )
    branch_scale: float | None = _number(
        None, "Factor of the branch in the shortcut scaled.", "1", at_least=-1e9, at_most=1e9
    )
    gamma: float | None = _number(
        None,
        "Initial scale of batch normalization.",
        "0.1 with --batch-norm unshared, else 1",
        at_least=-1e9,
        at_most=1e9,
    )
    share_from: int | None = _index(
        None, "First block of a stage that is shared by all later ones, from 0.", "none"
    )
    batch_norm: BatchNorm = _name(
        "shared",
        "What each application of a shared block has of its own (statistics, scale and offset).",
        BATCH_NORMS,
    )
    gain: float | None = _number(
        None, "Factor of the first weights of the blocks' convolutions.", "1", over=0, **BOUNDS
    )
    recurrent: bool = _field(False, "Initialize the blocks of a stage with equal weights.", bool)
    coupling: float | None = _number(
        None,
        "How much the blocks of a stage share their gradients: 0 ordinary, 1 recurrent.",
        "none",
        at_least=0,
        at_most=1,
    )
    kernel: CouplingKernel = _name("uniform", "How the coupling falls off between blocks.", KERNELS)
    coupling_from: int = _index(0, "First block of a stage that is coupled, from 0.")
    lipschitz: float | None = _number(
        None, "Largest Lipschitz constant of the blocks' branches.", "none", over=0, **BOUNDS
    )
    anchor: Anchor = _name(
        "previous",
        "What a block adds its branch to: the previous block's state, or the input of the stage.",
        ANCHORS,
    )
    epochs: int = _count(4, "Number of epochs to train.")
    batch_size: int = _count(64, "Images per training step.")
    recipe: RecipeName | None = _name(
        None, "Learning rates of a paper.", RECIPES, "the dataset's own"
    )
    learning_rate: float | None = _number(
        None,
        "Highest learning rate; the recipe's others change by the same factor.",
        "the recipe's own",
        over=0,
    )
    weight_decay: float | None = _number(
        None, "Decoupled weight decay.", "the recipe's own", at_least=0, at_most=1
    )
    l2: float | None = _number(
        None, "Weight decay as part of the loss (L2).", "the recipe's own", at_least=0, at_most=1
    )
    augment: bool = _field(
        True, "Flip and crop training images at random, if data set and recipe do.", bool
    )
    train_size: int | None = _count(None, "Images to train on.", "20000 of digitclutter, else all")
    validation: int = _count(2000, "Images held out to choose the best epoch.")
    test_size: int | None = _count(
        None, "Images of the test set.", "2000 of digitclutter, else all"
    )
    epsilon: float = _number(
        EPSILON, "Mean scaled perturbation of the stopping rule.", over=0, **BOUNDS
    )
    dtype: str = _field(
        "float32", "Precision of the network.", str, offered=("float32", "mixed_bfloat16")
    )
    seed: int = _field(
        0,
        "Random seed; the same seed gives the same numbers.",
        int,
        at_least=0,
        at_most=2**32 - 1,
        metavar="N",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if of(field).kind is os.PathLike and value is not None:
                object.__setattr__(self, field.name, os.fspath(value))
            elif "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
                # JSON cannot hold NumPy numbers.
                object.__setattr__(self, field.name, value.item())
        check_fields(self)


@_documented
@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Settings of a search for the depth; see `tfresidual.tuning.DepthSearch`.

    Numbers of blocks are one int, or one int per stage.
    """

    start: int | tuple[int, ...] = _field(
        4, "Number of blocks per stage to start with.", tuple, metavar="N[,N...]"
    )
    min_blocks: int | tuple[int, ...] = _field(
        1, "The smallest depth of a stage.", tuple, metavar="N[,N...]"
    )
    max_blocks: int | tuple[int, ...] = _field(
        128, "The largest depth of a stage.", tuple, metavar="N[,N...]"
    )
    tolerance: int = _field(
        0,
        "Number of blocks by which a stage may be deeper than necessary.",
        int,
        at_least=0,
        at_most=LARGEST_COUNT,
        metavar="N",
    )
    executions: int = _count(1, "Trainings per depth, whose measurements are averaged.")
    max_trials: int | None = _count(
        None, "Largest number of depths to train.", "as many as it takes"
    )
    warm_start: bool = _field(
        False, "Initialize each network with the weights of a shallower one.", bool
    )

    def __post_init__(self) -> None:
        for name in ("start", "min_blocks", "max_blocks"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_fields(self)


# The criteria of `tfresidual.probes.block_importance`, with the columns by which they order blocks;
# the block with the lowest value is needed least.
CRITERIA = {
    "loss": "cross_entropy_rise",
    "influence": "influence",
    "angular": "angular_distance",
    "first_order": "predicted_rise",
    "l2_ratio": "l2_ratio",
}


@_documented
@dataclasses.dataclass(frozen=True)
class PruningSettings:
    """Settings of a pruning; see `tfresidual.surgery.prune`.

    Raises:
        ValueError: if one of them cannot be used.
    """

    blocks: int | None = _count(None, "How many blocks go, or layers that hold them.", "none")
    speed: float | None = _number(
        None, "Blocks go until a batch of 256 is this much faster.", "none", over=1, at_most=1e9
    )
    most_error: float | None = _number(
        None,
        "Blocks go while the error on the validation images rises by no more than this.",
        "none",
        at_least=0,
        at_most=1,
    )
    by: str = _name("loss", "What the blocks are chosen by.", tuple(CRITERIA))
    compare: bool = _field(True, "Measure the curves of the other criteria, too.", bool)
    statistics: bool = _field(
        True, "Measure the statistics of batch normalization again on training images.", bool
    )
    tuning_epochs: int = _index(0, "Epochs of training without the blocks.")
    tuning_rate: float | None = _number(
        None, "Learning rate of this training.", "a tenth of that of the recipe", over=0, **BOUNDS
    )

    def __post_init__(self) -> None:
        check_fields(self)


@_documented
@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """Options shared by the probes, in addition to chain and images.

    Raises:
        ValueError: if one of them cannot be used.
    """

    times: int = _count(16, "Extra applications of a stage's last block.", most=MOST_TIMES)
    scale: float = _number(
        1.0,
        "Factor of its branch in these applications; the indices are measured without it.",
        at_least=-3e38,
        at_most=3e38,
    )
    chance: Chance = _field(
        "uniform",
        "The error of guessing: uniform, 'largest class', or a number.",
        float,
        choices=CHANCES,
        over=0,
        at_most=1,
        metavar="X",
    )
    at_chance: AtChance = _field(
        "raise",
        "What the indices are if the error of the network is at chance or above: an error, or NaN.",
        str,
        choices=("raise", "nan"),
    )
    epsilon: float | None = _number(
        None, "Mean scaled perturbation of the stopping rule.", "that of the run", over=0, **BOUNDS
    )
    memory_limit: float = _field(
        MEMORY_LIMIT,
        "Memory for the states of images, in MiB.",
        float,
        choices=(math.inf,),
        over=0,
        metavar="MIB",
    )
    seed: int | None = _field(
        None,
        "Seed of shuffled blocks, permuted labels, noise and untrained networks.",
        int,
        "that of the run",
        at_least=0,
        at_most=2**32 - 1,
    )
    first_block: int | None = _index(
        None, "First block of a stage that counts as coupled.", "that of the run, or 0"
    )

    def __post_init__(self) -> None:
        check_fields(self)
