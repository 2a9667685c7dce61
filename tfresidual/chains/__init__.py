"""The chain: one face for every residual network, whatever it was built with."""

from tfresidual.chains.chain import Block, Chain, Stage
from tfresidual.chains.sources import chain

__all__ = ["Block", "Chain", "Stage", "chain"]
