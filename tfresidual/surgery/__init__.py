"""Networks with blocks taken out, repeated or in another order, as Keras models."""

from tfresidual.surgery.models import reordered, repeated, without_blocks

__all__ = ["reordered", "repeated", "without_blocks"]
