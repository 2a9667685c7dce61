"""Routes of all kinds, drawn at random."""

from hypothesis import strategies as st
from keras import ops

from tfresidual.routing import Block, Chain, Route, Stage
from tfresidual.routing.routes import (
    Application,
)


def plane_chain(*stages, transitions=True):
    """A chain in the plane: stages of as many blocks, each adding 1, with transitions between."""
    return Chain(
        name="plane",
        stem=lambda images: images,
        stages=tuple(
            Stage(
                stage,
                tuple(Block(stage, index, True, lambda h: h + 1) for index in range(length)),
                (lambda h: -h) if transitions and stage > 1 else None,
            )
            for stage, length in enumerate(stages, start=1)
        ),
        head=lambda state: ops.reshape(state, (-1, 2)),
        loss=lambda labels, outputs: ops.sum(outputs, axis=-1),
        input_shape=(1, 1, 2),
    )


CHAIN = plane_chain(4, 3, 2)


def is_given_up_at_once(plan):
    last_use = {}
    for number, step in enumerate(plan.steps):
        for place in (step.source, step.target, step.reference):
            last_use[place] = number
    return all(last_use[p] == n for n, step in enumerate(plan.steps) for p in step.frees)


@st.composite
def wild_routes(draw, chain=CHAIN):
    """Routes of any blocks in any order, by hand."""
    stages = [
        st.lists(
            st.builds(
                Application,
                st.integers(0, len(stage.blocks) - 1),
                st.sampled_from([1.0, 1.0, 0.5]),
            ),
            max_size=4,
        ).map(tuple)
        for stage in chain.stages
    ]
    return draw(st.lists(st.tuples(*stages).map(lambda s: Route("wild", s)), max_size=12))
