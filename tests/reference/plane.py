"""Chains in the plane, whose probes can be solved by hand."""

import numpy as np
from keras import ops

from tfresidual.routing import Block, Chain, Stage

# Relative to the size of the number; cosines, which cancel, also absolutely.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


def plane_chain(*changes):
    """A chain in the plane: block t adds `changes[t](h)`, and the loss is |h|^2 / 2 at the end."""
    blocks = tuple(
        Block(1, index, True, lambda h, change=change: h + change(h))
        for index, change in enumerate(changes)
    )
    return Chain(
        name="plane",
        stem=lambda images: ops.convert_to_tensor(images),
        stages=(Stage(1, blocks),),
        head=lambda state: ops.reshape(state, (-1, 2)),
        loss=lambda labels, outputs: ops.sum(ops.square(outputs), axis=-1) / 2,
        input_shape=(1, 1, 2),
    )


def at(*point):
    return np.array([[[point]]], "float32"), np.zeros(1, "int32")


def chain_of(*blocks, head=lambda state: ops.reshape(state, (-1, 2))):
    """Blocks in the plane, and the loss |h|^2 / 2 at the end; its gradient there is h."""
    return Chain(
        name="plane",
        stem=lambda images: ops.convert_to_tensor(images),
        stages=(Stage(1, blocks),),
        head=head,
        loss=lambda labels, outputs: ops.sum(ops.square(outputs), axis=-1) / 2,
        input_shape=(1, 1, 2),
    )


def anchored_chain(slope, blocks):
    """The chain z -> x + slope * z with x the anchor, which begins as z."""
    return chain_of(
        *(
            Block(1, index, True, lambda z, x: x + slope * z, takes_anchor=True)
            for index in range(blocks)
        )
    )
