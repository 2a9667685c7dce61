"""What a chain can be made of."""

from tfresidual.sources.dispatch import chain

__all__ = ["chain"]
