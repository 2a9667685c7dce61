"""The chain: one face for every residual network, and the routes through it."""

from tfresidual.chains import routes
from tfresidual.chains.chain import Block, Chain, Stage
from tfresidual.chains.evaluator import evaluate
from tfresidual.chains.plan import plan_of
from tfresidual.chains.routes import Route
from tfresidual.chains.sources import chain

__all__ = ["Block", "Chain", "Route", "Stage", "chain", "evaluate", "plan_of", "routes"]
