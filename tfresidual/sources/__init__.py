"""The sources from which a chain can be made."""

from tfresidual.sources.dispatch import chain, numbered

__all__ = ["chain", "numbered"]
