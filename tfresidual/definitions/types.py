"""Types that arguments and results of several parts have; none of the libraries is imported.

`Images` are what `fit` takes: a `tf.data.Dataset` or `keras.utils.PyDataset` of batches `(images,
labels)` or `(images, labels, weights)`, or such a tuple of arrays. Weights are those of images, or
0 and 1 for positions. Where labels are not read, batches or a tuple of images alone are enough.
Several inputs of a model are a dict or list in the place of the images: `({"left": a, "right": b},
labels)`.

`Data` is what probes take: `Images`, or a dict of them by the name of the split, such as `{"train":
train, "test": (images, labels)}`, which is then the first column of their frames.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import keras
    import numpy as np
    import pandas as pd
    import tensorflow as tf
    from matplotlib import figure
    from numpy import typing as npt

StrPath: TypeAlias = str | os.PathLike[str]

Array: TypeAlias = "np.ndarray[Any, Any]"
ArrayLike: TypeAlias = "npt.ArrayLike"
Tensor: TypeAlias = "tf.Tensor | keras.KerasTensor"
# With the axis of images; `None` for a size that is not known.
Shape: TypeAlias = tuple[int | None, ...]
DType: TypeAlias = "str | keras.DTypePolicy"
Initializer: TypeAlias = "str | dict[str, Any] | keras.initializers.Initializer"

Frame: TypeAlias = "pd.DataFrame"
Figure: TypeAlias = "figure.Figure"

Dataset: TypeAlias = "tf.data.Dataset"
Images: TypeAlias = "tf.data.Dataset | keras.utils.PyDataset | Sequence[ArrayLike]"
Data: TypeAlias = "Images | Mapping[str, Images]"
# What `tfresidual.chain` makes a chain of, beside a chain.
ChainSource: TypeAlias = "keras.Model | StrPath"

DataFormat: TypeAlias = Literal["channels_last", "channels_first"]
Layout: TypeAlias = Literal[
    "original",
    "bn_after_addition",
    "relu_before_addition",
    "relu_only_preactivation",
    "full_preactivation",
]
ShortcutName: TypeAlias = Literal[
    "identity", "scaled", "exclusive_gate", "shortcut_only_gate", "conv1x1", "dropout"
]
Resize: TypeAlias = Literal["projection", "zero_padding"]
MultiplierName: TypeAlias = Literal["layer_scale", "rezero"]
# What is in the places of normalization; `None` for nothing.
Normalization: TypeAlias = Literal["batch", "fixup"] | None
BatchNorm: TypeAlias = Literal["shared", "unshared_statistics", "unshared_scale", "unshared"]
Transition: TypeAlias = Literal[
    "projection", "convolution", "average_pooling", "max_pooling", "downsampling_block"
]
Anchor: TypeAlias = Literal["previous", "input"]
CouplingKernel: TypeAlias = Literal["uniform", "triangular", "triangular_printed"]
# Names in `tfresidual/definitions/data_sets.py`.
RecipeName: TypeAlias = str
DatasetName: TypeAlias = str
Pixels: TypeAlias = Literal["standardized", "0-1", "0-255"]
OutputKind: TypeAlias = Literal[
    "probabilities", "logits", "label_probabilities", "label_logits", "values"
]
# The error of guessing.
Chance: TypeAlias = float | Literal["uniform", "largest class"]
AtChance: TypeAlias = Literal["raise", "nan"]
# What determines the groups of images near the decision boundary.
BorderlineGroups: TypeAlias = Literal["fixed", "next block"]
# What the convergence index is of the read-outs of a stage.
Reading: TypeAlias = Literal["all blocks", "all but last", "trapezoid"]
# What a callback does when it fails after training has begun.
OnError: TypeAlias = Literal["warn", "raise"]
