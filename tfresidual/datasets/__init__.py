"""Datasets, ready for `model.fit` and the probes.

`load` returns `tf.data` pipelines; it and `save` need TensorFlow, and load it. `load_file` returns
arrays in memory for every backend of Keras.
"""

import importlib
from typing import TYPE_CHECKING

from tfresidual.datasets.arrays import ArrayDataset
from tfresidual.datasets.description import PIXELS, Description, describe
from tfresidual.datasets.epochs import plain, set_epoch
from tfresidual.datasets.image_file import load_file
from tfresidual.datasets.inverse_problem import inverse_problem

if TYPE_CHECKING:
    from tfresidual.datasets.digitclutter import Digitclutter, DigitclutterConfig
    from tfresidual.datasets.loading import load, save

__all__ = [
    "PIXELS",
    "ArrayDataset",
    "Description",
    "Digitclutter",
    "DigitclutterConfig",
    "describe",
    "inverse_problem",
    "load",
    "load_file",
    "plain",
    "save",
    "set_epoch",
]

# TensorFlow, tensorflow-datasets, Pillow and matplotlib are imported only when first needed.
_ELSEWHERE = {
    "Digitclutter": "digitclutter",
    "DigitclutterConfig": "digitclutter",
    "load": "loading",
    "save": "loading",
}
_PACKAGES = {"tensorflow": "tensorflow", "tensorflow_datasets": "tensorflow-datasets"}


def __getattr__(name):
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise ImportError(
            f"`tfresidual.datasets.{name}` needs {_PACKAGES[error.name]}, which is not installed: "
            f"pip install {_PACKAGES[error.name]}. Without it, `tfresidual.datasets.load_file` "
            "reads the file that `tfresidual data NAME --to FILE.npz` writes on another machine"
        ) from error
