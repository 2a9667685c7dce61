"""What a probe sees of a network, whatever its source: stem, stages of blocks, head."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

from keras import ops

# What a head can return, see `Chain`.
OUTPUT_KINDS = ("probabilities", "logits", "label_probabilities", "label_logits", "values")


@dataclasses.dataclass(frozen=True)
class Block:
    """One residual block: takes a state, returns the next.

    A block of a properly convergent stage joins its branch not to the state but to the stage's
    anchor: the state with which the blocks that keep its shape began.

    Attributes:
        stage: int, the stage it stands in, counted from 1.
        step: int, its place in the stage, counted from 0.
        keeps_shape: whether it returns states of the shape it takes. Only such a block has
            `F(h) = next - h`, and can be dropped, repeated or moved.
        apply: the function `state -> next state`, at inference; of a block that takes the anchor
            `(state, anchor) -> next state`.
        branch: the function `state -> branch`, what the block computes before it is joined; `None`
            where that cannot be told from the rest, and the block is taken for the sum of its
            branch and the state (or the anchor).
        join: the function `(base, branch) -> next state`, where the base is the state, or the
            anchor; `None` like `branch`.
        takes_anchor: whether the branch is joined to the anchor.
        weights: its parameters, trainable or frozen, as a dict from role to variable. Blocks that
            share weights hold the same variables.
        lipschitz: the function `() -> dict` of what is known of the branch's Lipschitz constant,
            see `tfresidual.layers.ResidualUnit.lipschitz_bound`; `None` where nothing bounds it.
        shortcut: what joins the branch: `"identity"`, the state itself; `"projection"`, a path
            with weights; `"resampling"`, one without weights to another shape; `"weightless"`,
            any other without weights; `"two branches"`, where the two paths cannot be told apart;
            or the name of a shortcut of `tfresidual.layers.ResidualUnit`. `None` where that is
            not known.
        name: what the block is called in the model: the name of the layer or operation that ends
            it; `None` where it has none.
    """

    stage: int
    step: int
    keeps_shape: bool
    apply: Callable = dataclasses.field(repr=False)
    branch: Callable | None = dataclasses.field(default=None, repr=False)
    join: Callable | None = dataclasses.field(default=None, repr=False)
    takes_anchor: bool = False
    weights: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)
    lipschitz: Callable | None = dataclasses.field(default=None, repr=False)
    shortcut: str | None = None
    name: str | None = None

    def __call__(self, state, anchor=None, scale=None):
        """The next state, with the branch multiplied by `scale`."""
        if scale is not None:
            return self.changed(state, anchor, functools.partial(multiplied, scale))
        if self.takes_anchor:
            return self.apply(state, anchor)
        return self.apply(state)

    def changed(self, state, anchor, change):
        """The next state where a function is applied to the branch before it is joined."""
        base = anchor if self.takes_anchor else state
        if self.join is not None:
            return self.join(base, change(self.branch(state)))
        return base + change(self(state, anchor) - base)

    def __str__(self):
        return f"stage {self.stage} block {self.step}"


def multiplied(scale, branch):
    """A branch times a number, in the branch's dtype."""
    return ops.cast(scale, branch.dtype) * branch


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
            image has several; `"values"` where the outputs are no classes, which routes are not
            scored on.
        weights: all parameters of the network, trainable or frozen, each of them once, as a tuple
            of variables.
        prepare: the function that brings up to date what the network keeps of its weights beside
            them; called before a probe runs. `None` where there is nothing of the kind.
        reference: the function `images -> outputs` of the network itself, at inference. Probes
            and `tfresidual.export` compare the chain with it and refuse one that gives anything
            else. `None` where nothing is compared: in chains made by hand, and in those whose
            functions were replaced on purpose.
        notes: what of the network the chain does not show, as a tuple of str.
    """

    name: str
    stem: Callable = dataclasses.field(repr=False)
    stages: tuple[Stage, ...]
    head: Callable = dataclasses.field(repr=False)
    loss: Callable = dataclasses.field(repr=False)
    input_shape: tuple[int | None, ...]
    outputs: str = "logits"
    weights: tuple = dataclasses.field(default=(), repr=False, compare=False)
    prepare: Callable | None = dataclasses.field(default=None, repr=False)
    reference: Callable | None = dataclasses.field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = ()
    # The graphs of functions that were compiled elsewhere, by the functions' names.
    graphs: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # Functions compiled for this chain, by what they compute and on which shapes.
    compiled: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # The reference, compiled, and on what images the chain was compared with it.
    compared: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # How many numbers a head returns for an image, as far as that was found out.
    widths: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

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
        steps, last, _ = self._walk(state, until=until)
        return steps, last

    def lead_to(self, state, stage, step):
        """Leads the stem's output to a block.

        Returns:
            A tuple `(state, anchor)` as the block takes them.
        """
        _, before, anchor = self._walk(state, until=(stage, step))
        return before, anchor

    def lead_on(self, state, anchor, stage, step):
        """Leads the state before a block to the end of the walk, which the head takes."""
        _, last, _ = self._walk(state, since=(stage, step), anchor=anchor)
        return last

    def _walk(self, state, since=None, until=None, anchor=None):
        steps = []
        for stage in self.stages[since[0] - 1 if since else 0 :]:
            blocks = stage.blocks
            if since and stage.index == since[0]:
                blocks = blocks[since[1] :]
            else:
                state = anchor = state if stage.transition is None else stage.transition(state)
            for block in blocks:
                if (block.stage, block.step) == until:
                    return steps, state, anchor
                before, state = state, block(state, anchor)
                anchor = anchor if block.keeps_shape else state
                steps.append((before, state))
        return steps, state, anchor

    def __call__(self, images):
        """The outputs of the unperturbed network."""
        _, last = self.walk(self.stem(images))
        return self.head(last)

    def __str__(self):
        blocks, stages = _counted(self.blocks, "block"), _counted(self.stages, "stage")
        lines = [f"{self.name}: {blocks} in {stages}"]
        for stage in self.stages:
            line = f"  stage {stage.index}: {_counted(stage.blocks, 'block')}"
            line += ", entered by a transition" if stage.transition is not None else ""
            lines += [line, *map("    {}".format, _overview(stage))]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def checked_chain(chain):
    """Returns an argument that must be a `Chain`; raises a `ValueError` if it is something else."""
    if not isinstance(chain, Chain):
        raise ValueError(
            "Argument `chain` must be a `tfresidual.routing.Chain`, as `tfresidual.chain` makes it "
            f"of a network. Received: chain={chain!r} of type {type(chain).__name__}"
        )
    return chain


def _counted(things, name):
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _overview(stage):
    """What the blocks of a stage are and can undergo, neighbours that are alike in one line."""
    for keeps_shape, part in itertools.groupby(stage.blocks, lambda block: block.keeps_shape):
        part = list(part)
        for (shortcut, is_exit), run in itertools.groupby(
            part, lambda block: (block.shortcut, block.step in stage.exits)
        ):
            run = list(run)
            first, last = run[0].step, run[-1].step
            name = f"block {first}" if first == last else f"blocks {first} to {last}"
            names = [block.name for block in run if block.name is not None]
            called = " to ".join(dict.fromkeys([*names[:1], *names[-1:]]))
            known = ", ".join(part for part in (shortcut, called) if part)
            name += f" ({known})" if known else ""
            routes = ["drop"] if keeps_shape else ["changes the shape"]
            routes += ["move"] if keeps_shape and len(part) > 1 else []
            routes += ["read out behind"] if is_exit else []
            is_repeated = stage.can_repeat and run[-1] is stage.blocks[-1]
            routes += [f"repeat block {last}"] if is_repeated else []
            yield f"{name}: {', '.join(routes)}"
