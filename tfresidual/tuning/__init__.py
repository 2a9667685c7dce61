"""How deep a network must be."""

from tfresidual.tuning.stopping_rule import depth_for

__all__ = ["depth_for"]
