"""Groups of weights with the same role in the blocks of a network."""

import dataclasses
import re

import keras

from tfresidual.definitions.arguments import ArgumentError, check_int

# The names of a block's layers come from `ResidualNetwork`; enclosing models prepend their names.
BLOCK = re.compile(
    r"(?:(?P<network>.+?)/)?stage(?P<stage>[1-9]\d*)_block(?P<block>\d+)/(?P<role>.+)"
)


def plain_name(name):
    """Returns the name of a weight without the number that Keras adds to names that are taken."""
    return re.sub(r"_?\d+$", "", name)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockWeights:
    """The weights that one block owns.

    Attributes:
        network: str, the part of the weights' paths before the block's name, or `""`.
        stage: int from 1.
        index: int from 0, block index.
        weights: the variables by their role, which is the path after the block's name, such as
            `"convolution1/kernel"`.
    """

    network: str
    stage: int
    index: int
    weights: dict[str, keras.Variable]


@dataclasses.dataclass(frozen=True, eq=False)
class WeightGroup:
    """The weights of one role in the blocks of one stage.

    Attributes:
        network: str, see `BlockWeights`.
        stage: int from 1.
        role: str, such as `"convolution1/kernel"`.
        blocks: ints, ascending, block indices of the blocks that own the variables.
        variables: the variables, all of the same shape.
    """

    network: str
    stage: int
    role: str
    blocks: tuple[int, ...]
    variables: tuple[keras.Variable, ...]

    def among(self, variables):
        """Returns the group with those of its variables that are among others."""
        known = set(map(id, variables))
        kept = [
            pair for pair in zip(self.blocks, self.variables, strict=True) if id(pair[1]) in known
        ]
        blocks, owned = zip(*kept, strict=True) if kept else ((), ())
        return dataclasses.replace(self, blocks=blocks, variables=owned)


def blocks_of(variables):
    """Returns the blocks that own some of the variables, determined by the paths of the variables.

    A block's weights have paths such as `"stage1_block0/convolution1/kernel"`, optionally preceded
    by the names of models: `"outer/resnet20/stage1_block0/convolution1/kernel"`. Different
    preceding names mean different networks. Variables outside blocks, including those of a
    transition between stages, are skipped.

    Args:
        variables: `keras.Variable`s, usually the `trainable_variables` of a model.

    Returns:
        A list of `BlockWeights`, sorted by network, stage and block index.

    Raises:
        ValueError: if two different variables have the same path.
    """
    blocks = {}
    for variable in variables:
        match = BLOCK.fullmatch(getattr(variable, "path", ""))
        if match is None:
            continue
        place = (match["network"] or "", int(match["stage"]), int(match["block"]))
        weights = blocks.setdefault(place, {})
        if weights.setdefault(match["role"], variable) is not variable:
            raise ArgumentError(
                "variables",
                "not hold two variables with the same path, which does not show to which network "
                "they belong. Pass the variables of one network at a time",
                received=f"two variables of path {variable.path!r}",
            )
    return [BlockWeights(*place, blocks[place]) for place in sorted(blocks)]


def groups_of(blocks, first_block=0):
    """Returns groups of weights with the same role in the blocks of a stage that can be coupled.

    A block is left out with all of its weights if they show that it changes the shape of the state.
    This is so if one of its weights has a different shape than most weights of the same role in the
    stage (of two shapes that are equally common, that of the later block counts), or if it has a
    role that no other block of the stage has, such as that of a projection. The second criterion
    does not apply to the last block of the stage that owns a kernel (a variable of two or more
    axes): with shared convolutions, this is the block whose kernels the later blocks apply; those
    own at most their batch normalizations.

    Args:
        blocks: `BlockWeights`, see `blocks_of`.
        first_block: int, blocks with a lower block index are left out.

    Returns:
        A list of `WeightGroup`, including groups of a single variable. A variable that several
        blocks share appears once, with the index of the first of these blocks.

    Raises:
        ValueError: if `first_block` is not an int of at least 0.
    """
    first_block = check_int("first_block", first_block, at_least=0)
    stages = {}
    for block in sorted(blocks, key=lambda block: (block.network, block.stage, block.index)):
        stages.setdefault((block.network, block.stage), []).append(block)
    groups = []
    for (network, stage), members in stages.items():
        roles = {}
        seen = set()
        for block in members:
            if block.index < first_block or _changes_shape(block, members):
                continue
            for role, variable in block.weights.items():
                if id(variable) not in seen:
                    seen.add(id(variable))
                    roles.setdefault(role, []).append((block.index, variable))
        for role, found in roles.items():
            groups.append(WeightGroup(network, stage, role, *zip(*found, strict=True)))
    return groups


def _changes_shape(block, members):
    """Returns whether the weights of a block show that it changes the shape of the state."""
    owners = [
        other
        for other in members
        if any(len(variable.shape) > 1 for variable in other.weights.values())
    ]
    for role, variable in block.weights.items():
        same_role = [other for other in members if role in other.weights]
        shapes = [tuple(other.weights[role].shape) for other in reversed(same_role)]
        if tuple(variable.shape) != max(shapes, key=shapes.count):
            return True
        if len(same_role) == 1 and (not owners or block is not owners[-1]):
            return True
    return False
