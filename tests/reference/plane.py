"""Chains in the plane, whose probes can be solved by hand."""

import numpy as np
from keras import ops

from tfresidual.routing import Block, Chain, Stage

# Relative to the size of the number; cosines, which cancel, also absolutely.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


def chain_of(*blocks, head=lambda state: ops.reshape(state, (-1, 2)), **settings):
    """A stage of blocks, by default in the plane with the loss |h|^2 / 2, whose gradient is h."""
    usual = {
        "name": "plane",
        "stem": lambda images: ops.convert_to_tensor(images),
        "loss": lambda labels, outputs: ops.sum(ops.square(outputs), axis=-1) / 2,
        "input_shape": (1, 1, 2),
    }
    return Chain(stages=(Stage(1, blocks),), head=head, **usual | settings)


def blocks_of(*functions):
    """Blocks that keep the shape, each a function of the state."""
    return [
        Block(1, index, True, lambda h, function=function: function(h))
        for index, function in enumerate(functions)
    ]


def plane_chain(*changes):
    """A chain in the plane: block t adds `changes[t](h)`."""
    return chain_of(*blocks_of(*[lambda h, change=change: h + change(h) for change in changes]))


def at(*point):
    return np.array([[[point]]], "float32"), np.zeros(1, "int32")


def anchored_chain(slope, blocks):
    """The chain z -> x + slope * z with x the anchor, which begins as z."""
    return chain_of(
        *(
            Block(1, index, True, lambda z, x: x + slope * z, takes_anchor=True)
            for index in range(blocks)
        )
    )
