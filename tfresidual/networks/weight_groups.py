"""Which weights of a network's blocks belong together."""

import dataclasses
import re

import keras

from tfresidual.arguments import check_int

# The layers of a block are named by `ResidualNetwork`; models around it put names before.
BLOCK = re.compile(
    r"(?:(?P<network>.+?)/)?stage(?P<stage>[1-9]\d*)_block(?P<step>\d+)/(?P<role>.+)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockWeights:
    """The weights that one block owns.

    Attributes:
        network: str, what stands before the block's name in the paths of its weights, or `""`.
        stage: int from 1.
        step: int from 0, place of the block in its stage.
        weights: the variables by their role, the path behind the block's name, such as
            `"convolution1/kernel"`.
    """

    network: str
    stage: int
    step: int
    weights: dict[str, keras.Variable]


@dataclasses.dataclass(frozen=True, eq=False)
class WeightGroup:
    """The weights of one role in the blocks of one stage.

    Attributes:
        network: str, see `BlockWeights`.
        stage: int from 1.
        role: str, such as `"convolution1/kernel"`.
        steps: ints, ascending, places of the blocks that own the variables.
        variables: the variables, all of one shape.
    """

    network: str
    stage: int
    role: str
    steps: tuple[int, ...]
    variables: tuple[keras.Variable, ...]


def blocks_of(variables):
    """The blocks that own some of the variables, by the paths of these.

    A block's weights have paths such as `"stage1_block0/convolution1/kernel"`, with or without
    the names of models before it: `"outer/resnet20/stage1_block0/convolution1/kernel"`. Other
    names before it are another network. Variables outside of blocks are passed over, those of a
    transition between stages among them.

    Args:
        variables: `keras.Variable`s, most often the `trainable_variables` of a model.

    Returns:
        A list of `BlockWeights`, in the order of network, stage and step.

    Raises:
        ValueError: if two different variables have the same path.
    """
    blocks = {}
    for variable in variables:
        match = BLOCK.fullmatch(getattr(variable, "path", ""))
        if match is None:
            continue
        place = (match["network"] or "", int(match["stage"]), int(match["step"]))
        weights = blocks.setdefault(place, {})
        if weights.setdefault(match["role"], variable) is not variable:
            raise ValueError(
                "Argument `variables` must not hold two variables of the same path: it does not "
                "tell which network they belong to. Hand in those of one network at a time. "
                f"Received: two variables of path {variable.path!r}"
            )
    return [BlockWeights(*place, blocks[place]) for place in sorted(blocks)]


def groups_of(blocks, first_block=0):
    """The weights of the same role in the blocks of a stage, where they can be coupled.

    A block is left out with all of its weights where they show that it changes the shape of the
    state: if one of them has another shape than in the last block of the stage that has one of
    this role, or if it has one of a role that no other block of the stage has, such as a
    projection's. The latter does not count against the last block of the stage that owns a
    kernel, a variable of two or more axes: with shared convolutions it is the block whose kernels
    the later ones apply, which own at most their normalizations.

    Args:
        blocks: `BlockWeights`, see `blocks_of`.
        first_block: int, blocks of an earlier step are left out.

    Returns:
        A list of `WeightGroup`, also those of one variable. A variable that several blocks share
        is there once, with the step of the first.

    Raises:
        ValueError: if `first_block` is not an int of at least 0.
    """
    first_block = check_int("first_block", first_block, at_least=0)
    stages = {}
    for block in sorted(blocks, key=lambda block: (block.network, block.stage, block.step)):
        stages.setdefault((block.network, block.stage), []).append(block)
    groups = []
    for (network, stage), members in stages.items():
        roles = {}
        seen = set()
        for block in members:
            if block.step < first_block or _changes_shape(block, members):
                continue
            for role, variable in block.weights.items():
                if id(variable) not in seen:
                    seen.add(id(variable))
                    roles.setdefault(role, []).append((block.step, variable))
        for role, found in roles.items():
            groups.append(WeightGroup(network, stage, role, *zip(*found, strict=True)))
    return groups


def _changes_shape(block, members):
    """Whether the weights of a block show that it changes the shape of the state."""
    owners = [
        other
        for other in members
        if any(len(variable.shape) > 1 for variable in other.weights.values())
    ]
    for role, variable in block.weights.items():
        same_role = [other for other in members if role in other.weights]
        if tuple(variable.shape) != tuple(same_role[-1].weights[role].shape):
            return True
        if len(same_role) == 1 and (not owners or block is not owners[-1]):
            return True
    return False
