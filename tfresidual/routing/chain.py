"""The chain: a network from any source as stem, stages of blocks, and head."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.data import in_structure

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfresidual.definitions.types import OutputKind, Tensor
    from tfresidual.routing.data import Place

# The kinds of outputs that a head can return, see `Chain`.
OUTPUT_KINDS = ("probabilities", "logits", "label_probabilities", "label_logits", "values")
# The functions of a block.
BLOCK_FUNCTIONS = ("apply", "branch", "join")


@dataclasses.dataclass(frozen=True)
class Block:
    """One residual block, which maps a state to the next state.

    In a chain with a context (see `Chain`), its functions take that as their last argument. A block
    of a properly convergent stage joins its branch to the anchor of the stage instead of the state:
    the input of the first of the blocks that keep the shape of the state.

    Attributes:
        stage: int, the stage of the block, counted from 1.
        index: int, the block index, its place in the stage, counted from 0.
        keeps_shape: whether the block returns states of the shape of its input. Only such a block
            has `F(h) = next - h`, and can be dropped, repeated or moved.
        apply: the function `state -> next state`, at inference; `(state, anchor) -> next state` for
            a block that takes the anchor.
        branch: the function `state -> branch`, before it is joined; `None` if the branch cannot be
            separated. The block is then treated as the sum of its branch and the state (or the
            anchor).
        join: the function `(base, branch) -> next state`, where the base is the state or the
            anchor; `None` if `branch` is `None`.
        takes_anchor: whether the branch is joined to the anchor.
        weights: the parameters of the block, trainable or frozen, by role. Blocks that share
            weights hold the same variables.
        variables: tuple of all weights of the layers of the block, also those that are not learned;
            empty in a chain without layers, such as that of a SavedModel.
        lipschitz: the function `() -> dict` of estimates and bounds of the Lipschitz constant of
            the branch, see `tfresidual.layers.ResidualUnit.lipschitz_bound`; `None` without a
            bound.
        shortcut: the path that the branch is joined to: `"identity"`, the state itself;
            `"projection"`, a path with weights; `"resampling"`, a path without weights to another
            shape; `"weightless"`, any other path without weights; `"two branches"`, if the two
            paths cannot be told apart; or the name of a shortcut of
            `tfresidual.layers.ResidualUnit`. `None` if it is not known.
        name: the name of the layer or operation that ends the block; `None` if it has none.
        inside: tuple of the layers that hold the block, from the outermost on: those that were
            opened, or the layer that is the block.
    """

    stage: int
    index: int
    keeps_shape: bool
    apply: Callable[..., Tensor] = dataclasses.field(repr=False)
    branch: Callable[[Tensor], Tensor] | None = dataclasses.field(default=None, repr=False)
    join: Callable[[Tensor, Tensor], Tensor] | None = dataclasses.field(default=None, repr=False)
    takes_anchor: bool = False
    weights: dict[str, keras.Variable] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    variables: tuple[keras.Variable, ...] = dataclasses.field(default=(), repr=False, compare=False)
    lipschitz: Callable[[], dict[str, float] | None] | None = dataclasses.field(
        default=None, repr=False
    )
    shortcut: str | None = None
    name: str | None = None
    inside: tuple[keras.layers.Layer, ...] = dataclasses.field(
        default=(), repr=False, compare=False
    )

    def __call__(
        self, state: Tensor, anchor: Tensor | None = None, scale: float | Tensor | None = None
    ) -> Tensor:
        """Returns the next state, with the branch multiplied by `scale`."""
        if scale is not None:
            return self.changed(state, anchor, functools.partial(multiplied, scale))
        if self.takes_anchor:
            return self.apply(state, anchor)
        return self.apply(state)

    def changed(
        self, state: Tensor, anchor: Tensor | None, change: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Returns the next state, with `change` applied to the branch before it is joined."""
        base = anchor if self.takes_anchor else state
        if self.join is not None:
            assert self.branch is not None, "a block has both branch and join, or neither"
            return self.join(base, change(self.branch(state)))
        return base + change(self(state, anchor) - base)

    def __str__(self) -> str:
        return f"stage {self.stage} block {self.index}"


def multiplied(scale, branch):
    """Returns a branch times a number, in the dtype of the branch."""
    return ops.cast(scale, branch.dtype) * branch


@dataclasses.dataclass(frozen=True)
class Stage:
    """Blocks whose states have one shape, and the transition into them.

    Attributes:
        index: int, counted from 1.
        blocks: tuple of `Block`.
        transition: the function that maps the last state of the previous stage to the first state
            of this one; `None` if the first block does so itself, or if this is the first stage.
    """

    index: int
    blocks: tuple[Block, ...]
    transition: Callable[[Tensor], Tensor] | None = dataclasses.field(default=None, repr=False)

    @property
    def exits(self) -> tuple[int, ...]:
        """The indices of the blocks after which no block of the stage changes the shape."""
        last_change = max((b.index for b in self.blocks if not b.keeps_shape), default=0)
        return tuple(block.index for block in self.blocks[last_change:])

    @property
    def can_repeat(self) -> bool:
        """Whether the last block of the stage can be applied again."""
        return self.can_repeat_last(1)

    def can_repeat_last(self, count: int) -> bool:
        """Returns whether so many blocks at the end of the stage can be applied again together."""
        last = self.blocks[-count:]
        return len(last) == count and all(block.keeps_shape for block in last)


class Source(NamedTuple):
    """The Keras model that a chain was made of, and what `tfresidual.chain` was given with it."""

    model: keras.Model
    blocks: Any = None
    expand_nested: Any = None
    inputs: Any = None
    padding: str | bool | None = None
    output: str | int | None = None


@dataclasses.dataclass(frozen=True)
class Chain:
    """A network as `stem -> stages of blocks -> head`, at inference.

    Every function of a chain takes and returns tensors with a leading axis of images, runs eagerly
    or inside a graph, and changes neither weights nor moving statistics. An image is one input of
    the network: pixels, the tokens of a sequence, or a dict, tuple or list of these.

    What blocks, transitions or the head read beside the state (a padding mask, positions, a second
    input) is the context of the chain. It is computed once from the images, and all functions but
    the stem take it as their last argument. `with_context` returns a chain for some images, whose
    functions take states alone.

    Attributes:
        name: str, the name of the network.
        stem: the function `images -> first state`.
        stages: tuple of `Stage`.
        head: the function `last state -> outputs`.
        loss: the function `(labels, outputs) -> losses`, one loss per image. For outputs `(images,
            positions, classes)`, it is the mean over the positions that count, see
            `tfresidual.routing.positions`.
        input_shape: the shape of one image, such as (height, width, channels), or a dict, tuple or
            list of such shapes if the network has several inputs.
        outputs: the kind of outputs of the head: `"probabilities"` or `"logits"` for mutually
            exclusive classes; `"label_probabilities"` or `"label_logits"`, one output per label, if
            an image can have several labels; `"values"` if the outputs are not classes, and routes
            cannot be scored.
        weights: tuple of all parameters of the network, trainable or frozen, each of them once.
        prepare: the function that updates values which the network derives from its weights and
            stores separately, called before a probe runs; or `None`.
        reference: the function `images -> outputs` of the network itself, at inference. Probes and
            `tfresidual.export` raise an error if the outputs of the chain differ. `None` if nothing
            is compared, as in chains built by hand or whose functions were replaced on purpose.
        reference_loss: the function `() -> loss` of what the network is trained with now, a
            function `(labels, outputs) -> loss` of one image, or `None` if that is not known.
            Probes that read the loss raise an error if the losses of the chain differ.
        notes: tuple of descriptions of the parts of the network that the chain does not show.
        context: the function `images -> context`, a dict of tensors with a leading axis of images;
            `None` if blocks read nothing but the state. Under the name `VALID_POSITIONS`, it may
            hold which positions of the states are not padding, bool, `(images, positions)`.
        variables: tuple of all variables of the network's layers, also those that are not learned;
            empty if they are not known.
        is_compiled: whether the loss is that of `compile`, or known otherwise.
        outputs_at_positions: whether outputs `(images, positions, classes)` are those of the
            positions of the last state, in their order. If not, padding of the states says nothing
            about labels.
        input_dtype: the dtype that the network declares for its input, a str, or a dict, tuple or
            list of these. Integers become float32 unless it is an integer.
        input_names: tuple of the names of the inputs, by which a dict of them may be read.
        label_place: which of several outputs the chain has, whose labels and sample weights it
            takes; `None` for a network with one.
        strategy: the `tf.distribute.MirroredStrategy` over whose replicas probes share out the
            images of a batch; `None` for the usual devices.
        source: the `Source` that the chain was made of, which `tfresidual.surgery` cuts; `None` for
            one without a Keras model.
    """

    name: str
    stem: Callable[[Tensor], Tensor] = dataclasses.field(repr=False)
    stages: tuple[Stage, ...]
    head: Callable[[Tensor], Tensor] = dataclasses.field(repr=False)
    loss: Callable[[Tensor, Tensor], Tensor] = dataclasses.field(repr=False)
    input_shape: Any
    outputs: OutputKind = "logits"
    weights: tuple[keras.Variable, ...] = dataclasses.field(default=(), repr=False, compare=False)
    prepare: Callable[[], object] | None = dataclasses.field(default=None, repr=False)
    reference: Callable[[Tensor], Tensor] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    reference_loss: Callable[[], Callable[[Tensor, Tensor], Tensor] | None] | None = (
        dataclasses.field(default=None, repr=False, compare=False)
    )
    notes: tuple[str, ...] = ()
    context: Callable[[Any], dict[str, Tensor]] | None = dataclasses.field(default=None, repr=False)
    outputs_at_positions: bool = True
    input_dtype: Any = "float32"
    variables: tuple[keras.Variable, ...] = dataclasses.field(default=(), repr=False, compare=False)
    is_compiled: bool = dataclasses.field(default=True, repr=False, compare=False)
    input_names: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)
    label_place: Place | None = dataclasses.field(default=None, repr=False, compare=False)
    strategy: tf.distribute.MirroredStrategy | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    source: Source | None = dataclasses.field(default=None, repr=False, compare=False)
    # The compiled functions that functions of the chain call, by their names.
    called: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # The functions compiled for this chain, by what they compute and for which shapes.
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # The compiled outputs that are compared with those of the network, by kind of images.
    compared: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # The functions that these were compiled for.
    compiled_for: Any = dataclasses.field(default=None, repr=False, compare=False)
    # The shape of the outputs for one image, by head and kind of images, as far as it is known.
    output_shapes: dict[Any, Any] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    # The context that `bind` has put into the functions, and the chain that it was called on.
    known: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    origin: Chain | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # `dataclasses.replace` hands on what was compiled, perhaps for other functions.
        own = (
            *(self.stem, self.stages, self.head, self.loss, self.context),
            *(self.outputs, self.outputs_at_positions, self.strategy),
        )
        if self.compiled_for is not None and self.compiled_for != own:
            for name in ("compiled", "compared", "output_shapes"):
                object.__setattr__(self, name, {})
        object.__setattr__(self, "compiled_for", own)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in the order in which they are applied, as a tuple."""
        return tuple(block for stage in self.stages for block in stage.blocks)

    def with_context(self, inputs: Any) -> Chain:
        """Returns the chain for some images, whose functions after the stem take states alone."""
        return self if self.context is None else self.bind(self.context(inputs))

    def bind(self, context: dict[str, Tensor]) -> Chain:
        """Returns the chain for the images that a context was computed from, see `with_context`."""
        if self.context is None:
            return self
        stages = tuple(
            dataclasses.replace(
                stage,
                blocks=tuple(_block_within(block, context) for block in stage.blocks),
                transition=_within(stage.transition, context),
            )
            for stage in self.stages
        )
        return dataclasses.replace(
            self,
            stages=stages,
            head=_within(self.head, context),
            context=None,
            known=context,
            origin=self,
            compiled={},
            output_shapes={},
        )

    def repeat(self, count: int) -> Chain:
        """Returns the chain for `count` copies of the images given to `with_context`."""
        if not self.known:
            return self
        assert self.origin is not None
        copies = {
            name: ops.concatenate([tensor] * count, axis=0) for name, tensor in self.known.items()
        }
        return self.origin.bind(copies)

    def walk(
        self, state: Tensor, until: tuple[int, int] | None = None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Applies the blocks to the output of the stem, up to the block (stage, block) `until`.

        Returns the pairs of states before and after every block applied, and the last state.
        """
        pairs, last, _ = self._walk(state, until=until)
        return pairs, last

    def walk_to(self, state: Tensor, stage: int, block: int) -> tuple[Tensor, Tensor | None]:
        """Applies the blocks before a block to the output of the stem; returns state and anchor."""
        _, before, anchor = self._walk(state, until=(stage, block))
        return before, anchor

    def continue_from(self, state: Tensor, anchor: Tensor | None, stage: int, block: int) -> Tensor:
        """Applies a block and all blocks after it, and returns the last state, the head's input."""
        _, last, _ = self._walk(state, since=(stage, block), anchor=anchor)
        return last

    def _walk(self, state, since=None, until=None, anchor=None):
        pairs = []
        for stage in self.stages[since[0] - 1 if since else 0 :]:
            blocks = stage.blocks
            if since and stage.index == since[0]:
                blocks = blocks[since[1] :]
            else:
                state = anchor = state if stage.transition is None else stage.transition(state)
            for block in blocks:
                if (block.stage, block.index) == until:
                    return pairs, state, anchor
                before, state = state, block(state, anchor)
                anchor = anchor if block.keeps_shape else state
                pairs.append((before, state))
        return pairs, state, anchor

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the outputs of the unperturbed network."""
        images = in_structure(images, self.input_dtype, self.input_names)
        chain = self.with_context(images)
        _, last = chain.walk(chain.stem(images))
        return chain.head(last)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A chain cannot be pickled or copied: keep its network, by `tfresidual.export(chain, "
            f"path)` or `model.save`, and make another chain. Received: a chain of {self.name}"
        )

    def __str__(self) -> str:
        blocks, stages = plural(len(self.blocks), "block"), plural(len(self.stages), "stage")
        lines = [f"{self.name}: {blocks} in {stages}"]
        for stage in self.stages:
            line = f"  stage {stage.index}: {plural(len(stage.blocks), 'block')}"
            line += ", entered by a transition" if stage.transition is not None else ""
            lines += [line, *map("    {}".format, _overview(stage))]
        lines += [f"  note: {note}" for note in self.notes]
        has_note = any("`compile`" in note for note in self.notes)
        if not self.is_compiled and not has_note:
            lines.append("  note: not compiled; probes take the cross-entropy of its outputs")
        return "\n".join(lines)


def _within(function, context):
    """Returns a function of states from one that also takes a context; `None` for `None`."""
    return function and (lambda *states: function(*states, context))


def _block_within(block, context):
    functions = {name: _within(getattr(block, name), context) for name in BLOCK_FUNCTIONS}
    return dataclasses.replace(block, **functions)


def checked_chain(chain):
    """Returns a `Chain`, or raises a `ValueError`."""
    if not isinstance(chain, Chain):
        raise ArgumentError(
            "chain",
            "be a `tfresidual.routing.Chain`, as `tfresidual.chain` returns it",
            received=f"chain={chain!r} of type {type(chain).__name__}",
        )
    return chain


def plural(count, noun):
    """Returns a number of things in words."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _overview(stage):
    """Yields a line for every run of blocks of one kind, and the routes they allow."""
    for keeps_shape, part in itertools.groupby(stage.blocks, lambda block: block.keeps_shape):
        part = list(part)
        for (shortcut, is_exit), run in itertools.groupby(
            part, lambda block: (block.shortcut, block.index in stage.exits)
        ):
            run = list(run)
            first, last = run[0].index, run[-1].index
            name = f"block {first}" if first == last else f"blocks {first} to {last}"
            names = [block.name for block in run if block.name is not None]
            called = " to ".join(dict.fromkeys([*names[:1], *names[-1:]]))
            known = ", ".join(part for part in (shortcut, called) if part)
            name += f" ({known})" if known else ""
            routes = ["drop"] if keeps_shape else ["changes the shape"]
            routes += ["move"] if keeps_shape and len(part) > 1 else []
            routes += ["read out after"] if is_exit else []
            is_repeated = stage.can_repeat and run[-1] is stage.blocks[-1]
            routes += [f"repeat block {last}"] if is_repeated else []
            yield f"{name}: {', '.join(routes)}"
