"""Networks with blocks taken out, repeated or in another order, as Keras models."""

from tfresidual.surgery.models import reordered, repeated, without_blocks
from tfresidual.surgery.planning import plan
from tfresidual.surgery.pruning import Pruned, prune
from tfresidual.surgery.quantizing import quantized
from tfresidual.surgery.statistics import update_statistics

__all__ = [
    "Pruned",
    "plan",
    "prune",
    "quantized",
    "reordered",
    "repeated",
    "update_statistics",
    "without_blocks",
]
