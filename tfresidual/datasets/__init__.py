"""Datasets as `tf.data` pipelines, ready for `model.fit` and the probes."""

from typing import TYPE_CHECKING

from tfresidual.datasets.inverse_problem import inverse_problem
from tfresidual.datasets.load import PIXELS, Description, describe, load, plain, set_epoch

if TYPE_CHECKING:
    from tfresidual.datasets.digitclutter import Digitclutter, DigitclutterConfig

__all__ = [
    "PIXELS",
    "Description",
    "Digitclutter",
    "DigitclutterConfig",
    "describe",
    "inverse_problem",
    "load",
    "plain",
    "set_epoch",
]


def __getattr__(name):
    # tensorflow-datasets, Pillow and matplotlib are imported only when first needed.
    if name in ("Digitclutter", "DigitclutterConfig"):
        from tfresidual.datasets import digitclutter

        return getattr(digitclutter, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
