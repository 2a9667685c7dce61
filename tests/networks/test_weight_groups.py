"""Which weights belong together: real networks, and blocks named by hand.

Networks whose blocks share convolutions are written here as the paths that their weights have.
"""

import contextlib

import keras
import numpy as np
import pytest
from refusals import refused

from tfresidual.layers import ResidualUnit
from tfresidual.networks import ResidualNetwork
from tfresidual.networks.weight_groups import blocks_of, groups_of

NORMALIZATIONS = [f"normalization{i}/{name}" for i in (1, 2) for name in ("gamma", "beta")]
CONVOLUTIONS = [f"convolution{i}/{name}" for i in (1, 2) for name in ("kernel", "bias")]
PROJECTION = ["projection/kernel", "projection/bias"]


def network(blocks=3, widths=(4, 8), **kwargs):
    return ResidualNetwork((8, 8, 3), 5, blocks=blocks, widths=widths, **kwargs)


def variable(path, shape=None):
    """A variable of a path; kernels have two axes, everything else has one."""
    *scopes, name = path.split("/")
    shape = shape or ((3, 3) if name == "kernel" else (3,))
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        made = keras.Variable(np.zeros(shape), name=name)
    assert made.path == path
    return made


def blocks_by_role(groups, stage=1, network=""):
    return {g.role: g.blocks for g in groups if (g.stage, g.network) == (stage, network)}


def owning(stage, roles_by_block):
    """The variables of the blocks of a stage, by the roles that each of them owns."""
    return [
        variable(f"stage{stage}_block{index}/{role}")
        for index, roles in roles_by_block.items()
        for role in roles
    ]


ALL = NORMALIZATIONS + CONVOLUTIONS


@pytest.mark.parametrize(
    ("kwargs", "second"),
    [
        # The first block of a later stage changes the shape only where the transition is in it.
        ({"transition": "projection"}, (1, 2)),
        ({"transition": "convolution"}, (0, 1, 2)),
        ({"transition": "downsampling_block"}, (0, 1, 2)),
        ({"transition": "projection", "layout": "original"}, (1, 2)),
        # Of equal width only the projection tells that the stride is 2.
        ({"transition": "projection", "widths": (4, 4)}, (1, 2)),
        ({"transition": "average_pooling", "widths": (4, 4)}, (0, 1, 2)),
    ],
)
def test_the_groups_of_networks(kwargs, second):
    net = network(**kwargs)
    groups = groups_of(blocks_of(net.trainable_variables))
    assert blocks_by_role(groups) == dict.fromkeys(ALL, (0, 1, 2))
    assert blocks_by_role(groups, stage=2) == dict.fromkeys(ALL, second)
    assert len(groups) == 16
    for group in groups:
        layer, name = group.role.split("/")
        units = [net.get_layer(f"stage{group.stage}_block{index}") for index in group.blocks]
        expected = [getattr(getattr(unit, layer), name) for unit in units]
        assert all(a is b for a, b in zip(group.variables, expected, strict=True))


@pytest.mark.parametrize(
    ("kwargs", "roles"),
    [
        ({"bottleneck": True}, {"convolution3/kernel", "convolution3/bias", "normalization3/beta"}),
        ({"shortcut": "exclusive_gate"}, {"shortcut/gate/kernel", "shortcut/gate/bias"}),
        # The block with the projection has no convolution in its shortcut.
        ({"shortcut": "conv1x1"}, {"shortcut/convolution/kernel", "shortcut/convolution/bias"}),
    ],
)
def test_further_roles(kwargs, roles):
    groups = groups_of(blocks_of(network(**kwargs).trainable_variables))
    for stage, blocks in ((1, (0, 1, 2)), (2, (1, 2))):
        if kwargs.get("bottleneck") and stage == 1:
            blocks = (1, 2)  # the stem is a quarter as wide, the first block projects
        found = blocks_by_role(groups, stage)
        assert roles | set(CONVOLUTIONS) <= set(found)
        assert set(found.values()) == {blocks}


class Around(keras.Model):
    """Two units, whose weights get the name of this model before theirs."""

    def __init__(self, name):
        super().__init__(name=name)
        self.units = [ResidualUnit(3, name=f"stage1_block{index}") for index in range(2)]

    def call(self, state):
        for unit in self.units:
            state = unit(state)
        return state


def test_another_prefix_is_another_network():
    inputs = keras.Input((4, 4, 3))
    first, second = Around("first"), Around("second")
    model = keras.Model(inputs, second(first(inputs)))
    variables = model.trainable_variables
    assert variables[0].path == "first/stage1_block0/convolution1/kernel"
    groups = groups_of(blocks_of(variables))
    assert [group.network for group in groups] == ["first"] * 8 + ["second"] * 8
    for group in groups:
        assert group.blocks == (0, 1)
        own = {"first": first, "second": second}[group.network].trainable_variables
        assert {id(v) for v in group.variables} <= {id(v) for v in own}
    (block,) = blocks_of([variable("outer/resnet20/stage3_block12/convolution1/kernel")])
    assert (block.network, block.stage, block.index) == ("outer/resnet20", 3, 12)
    assert list(block.weights) == ["convolution1/kernel"]


def test_two_variables_of_one_path_are_an_error():
    inputs = keras.Input((8, 8, 3))
    nets = [network(blocks=2, widths=(4,), name=name) for name in ("one", "two")]
    model = keras.Model(inputs, [net(inputs) for net in nets])
    with refused("variables"):
        blocks_of(model.trainable_variables)
    # One after the other they are no problem, nor is a variable that is there twice.
    for net in nets:
        assert len(blocks_of(net.trainable_variables * 2)) == 2


# Blocks that share their convolutions from block k on; batch normalization shared or not.


SHORTCUT = ["shortcut/convolution/kernel"]


@pytest.mark.parametrize(
    ("owned", "groups"),
    [
        (
            {0: ALL, 1: ALL, 2: ALL, 3: NORMALIZATIONS, 7: NORMALIZATIONS},
            [(CONVOLUTIONS, (0, 1, 2)), (NORMALIZATIONS, (0, 1, 2, 3, 7))],
        ),
        (
            {0: ALL, 1: NORMALIZATIONS, 2: NORMALIZATIONS},
            [(CONVOLUTIONS, (0,)), (NORMALIZATIONS, (0, 1, 2))],
        ),
        # The first block projects; the later ones share their shortcuts, too.
        (
            {0: ALL + PROJECTION, 1: ALL, 2: NORMALIZATIONS, 3: NORMALIZATIONS},
            [(CONVOLUTIONS, (1,)), (NORMALIZATIONS, (1, 2, 3))],
        ),
        (
            {0: ALL + PROJECTION, 1: ALL + SHORTCUT, 2: NORMALIZATIONS, 3: NORMALIZATIONS},
            [(CONVOLUTIONS + SHORTCUT, (1,)), (NORMALIZATIONS, (1, 2, 3))],
        ),
        ({0: ALL}, [(ALL, (0,))]),
        ({0: ALL + PROJECTION, 1: ALL}, [(ALL, (1,))]),
    ],
)
def test_blocks_that_share_their_convolutions(owned, groups):
    expected = {role: blocks for roles, blocks in groups for role in roles}
    assert blocks_by_role(groups_of(blocks_of(owning(1, owned)))) == expected


@pytest.mark.parametrize(("first_block", "kept"), [(0, (0, 1, 2)), (1, (1, 2)), (2, (2,))])
def test_first_block(first_block, kept):
    blocks = blocks_of(network(widths=(4,)).trainable_variables)
    assert blocks_by_role(groups_of(blocks, first_block)) == dict.fromkeys(ALL, kept)
    assert groups_of(blocks, 3) == []
