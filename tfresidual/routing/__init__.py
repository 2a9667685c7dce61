"""The chain, a common view of every residual network, and the routes through it."""

import tfresidual.machine.on_tensorflow  # noqa: F401
from tfresidual.routing import routes
from tfresidual.routing.chain import Block, Chain, Stage
from tfresidual.routing.evaluator import evaluate
from tfresidual.routing.gradients import Walk, walk_with_gradients
from tfresidual.routing.plan import plan_of
from tfresidual.routing.routes import Route

__all__ = [
    "Block",
    "Chain",
    "Route",
    "Stage",
    "Walk",
    "evaluate",
    "plan_of",
    "routes",
    "walk_with_gradients",
]
