"""What a probe sees of a network, whatever its source: stem, stages of blocks, head."""

import dataclasses
from collections.abc import Callable

from keras import ops


@dataclasses.dataclass(frozen=True)
class Block:
    """One residual block: takes a state, returns the next.

    Attributes:
        stage: int, the stage it stands in, counted from 1.
        step: int, its place in the stage, counted from 0.
        keeps_shape: whether it returns states of the shape it takes. Only such a block has
            `F(h) = next - h`, and can be dropped, repeated or moved.
        apply: the function `state -> next state`, at inference.
        apply_scaled: the function `(state, scale) -> next state` with the branch times `scale`;
            `None` for a block whose branch is all of F: `h + scale * F(h)`.
    """

    stage: int
    step: int
    keeps_shape: bool
    apply: Callable = dataclasses.field(repr=False)
    apply_scaled: Callable | None = dataclasses.field(default=None, repr=False)

    def __call__(self, state, scale=None):
        if scale is None:
            return self.apply(state)
        if self.apply_scaled is not None:
            return self.apply_scaled(state, scale)
        return state + ops.cast(scale, state.dtype) * (self.apply(state) - state)

    def __str__(self):
        return f"stage {self.stage} block {self.step}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """Blocks whose states have one shape, and what leads into them.

    Attributes:
        index: int, counted from 1.
        blocks: tuple of `Block`.
        transition: the function that leads from the previous stage's last state into this one,
            or `None` where the first block does so itself, or no stage precedes.
    """

    index: int
    blocks: tuple[Block, ...]
    transition: Callable | None = dataclasses.field(default=None, repr=False)

    @property
    def exits(self):
        """The steps of the blocks behind which the stage can be left, as a tuple.

        No later block changes the shape of the state: what follows needs the new one.
        """
        last_change = max((b.step for b in self.blocks if not b.keeps_shape), default=0)
        return tuple(block.step for block in self.blocks[last_change:])

    @property
    def can_repeat(self):
        """Whether its last block can be applied again."""
        return bool(self.blocks) and self.blocks[-1].keeps_shape


@dataclasses.dataclass(frozen=True)
class Chain:
    """A network as `stem -> stages of blocks -> head`, at inference.

    Every function of a chain takes and returns tensors with a leading axis of images, runs
    eagerly or inside a graph, and changes neither weights nor moving statistics.

    Attributes:
        name: str, name of the network.
        stem: the function `images -> first state`.
        stages: tuple of `Stage`.
        head: the function `last state -> outputs`.
        loss: the function `(labels, outputs) -> losses`, one loss an image.
        input_shape: (height, width, channels) of one image.
        outputs: what the head returns: `"probabilities"` or `"logits"` of classes that exclude
            one another, or `"label_probabilities"` or `"label_logits"`, one a label, where an
            image has several.
    """

    name: str
    stem: Callable = dataclasses.field(repr=False)
    stages: tuple[Stage, ...]
    head: Callable = dataclasses.field(repr=False)
    loss: Callable = dataclasses.field(repr=False)
    input_shape: tuple[int | None, ...]
    outputs: str = "logits"
    # Functions compiled for this chain, by what they compute and on which shapes.
    compiled: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def blocks(self):
        """All blocks in the order of the data, as a tuple."""
        return tuple(block for stage in self.stages for block in stage.blocks)

    def walk(self, state, until=None):
        """Leads the stem's output through the blocks.

        Args:
            state: the stem's output, `(images, height, width, channels)`.
            until: (stage, step) of the block before which the walk ends; by default it goes
                through all blocks.

        Returns:
            A tuple `(steps, last)`: `steps` holds for every block applied, in order, the pair of
            states before and after it; `last` is the state at the end of the walk, which the head
            takes.
        """
        steps = []
        for stage in self.stages:
            if stage.transition is not None:
                state = stage.transition(state)
            for block in stage.blocks:
                if (block.stage, block.step) == until:
                    return steps, state
                before, state = state, block(state)
                steps.append((before, state))
        return steps, state

    def __call__(self, images):
        """The outputs of the unperturbed network."""
        _, last = self.walk(self.stem(images))
        return self.head(last)

    def __str__(self):
        lines = [f"{self.name}: {len(self.blocks)} blocks in {len(self.stages)} stages"]
        for stage in self.stages:
            fixed = [block.step for block in stage.blocks if not block.keeps_shape]
            line = f"  stage {stage.index}: {len(stage.blocks)} blocks"
            line += ", entered by a transition" if stage.transition is not None else ""
            line += f", shape changed by block {fixed[0]}" if fixed else ""
            lines.append(line)
        return "\n".join(lines)
