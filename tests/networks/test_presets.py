"""The papers' networks: the parameter counts they print, their blocks and layers."""

import functools

import keras
import numpy as np
import pytest
from refusals import refused

from tfresidual import networks
from tfresidual.layers import ResidualUnit, Subsampling

pytestmark = pytest.mark.eager


@functools.cache
def built(preset):
    """The network of a preset, which tests only look at."""
    return preset()


def trainable(net):
    return sum(int(np.prod(weight.shape)) for weight in net.trainable_weights)


def convolutions(net):
    return [
        layer
        for layer in net._flatten_layers()
        if isinstance(layer, keras.layers.Conv2D) and layer.built
    ]


@pytest.mark.parametrize(
    "preset, total",
    [
        pytest.param(networks.resnet110, 1_742_762, marks=pytest.mark.nightly),
        (networks.single_representation, 1_829_210),
        (networks.average_pooling_resnet, 12_201_310),
        (networks.wide_resnet, 45_732_842),
    ],
)
@pytest.mark.system
def test_total_parameters_of_iterative_inference(preset, total):
    net = built(preset)
    assert net.count_params() == total
    assert net.name == preset.__name__
    assert net.output_shape == (None, 10)


# Table 1 of Jastrzebski et al. 2018: depth, trainable parameters on CIFAR-10 and CIFAR-100.
@pytest.mark.parametrize(
    "depth, blocks, cifar10, cifar100",
    [
        (32, 5, 467_946, 473_796),
        pytest.param(38, 6, 565_386, 571_236, marks=pytest.mark.nightly),
        pytest.param(56, 9, 857_706, 863_556, marks=pytest.mark.nightly),
        pytest.param(110, 18, 1_734_666, 1_740_516, marks=pytest.mark.nightly),
    ],
)
def test_trainable_parameters_of_iterative_inference(depth, blocks, cifar10, cifar100):
    net = networks.resnet(depth)
    assert trainable(net) == cifar10
    assert net.blocks == (blocks,) * 3
    assert trainable(networks.resnet(depth, classes=100)) == cifar100


@pytest.mark.parametrize("blocks", [2, 7])
def test_hauser_has_6_blocks_and_2_layers(blocks):
    net = networks.hauser_resnet(blocks)
    # The paper counts layers of 3x3 filters and the classifier, not the filters between stages.
    sizes = [layer.kernel_size[0] for layer in convolutions(net)]
    assert sizes.count(3) + 1 == 6 * blocks + 2
    assert sizes.count(1) == 2
    between = [transition for transition, _ in net.sections()[1]]
    assert between[0] is None
    assert [layer.strides for layer in between[1:]] == [(2, 2), (2, 2)]
    # Weights by hand: stem, blocks, 1x1 filters between, batch norm of the head, classifier.
    count = 3 * 9 * 16 + 16
    for width in (16, 32, 64):
        count += blocks * 2 * (9 * width**2 + width + 2 * width)
    count += (16 * 32 + 32) + (32 * 64 + 64) + 2 * 64 + (64 * 10 + 10)
    assert trainable(net) == count
    # Every block keeps its shape.
    for _, units in net.sections()[1]:
        assert [unit.resizing for unit in units] == [None] * blocks


def test_resnet101_has_101_convolutions_and_blocks_that_all_keep_their_shape():
    net = networks.resnet101()
    assert net.blocks == (16, 16, 16)
    assert net.widths == (16, 32, 64)
    # The projections of other networks would be among them.
    assert len(convolutions(net)) == 101
    assert {layer.kernel_size for layer in convolutions(net)} == {(3, 3)}
    _, stages, _ = net.sections()
    assert stages[0][0] is None
    for transition, units in stages[1:]:
        assert isinstance(transition, ResidualUnit)
        assert isinstance(transition.resizing, Subsampling)
        assert transition.strides == 2
        assert len(units) == 16
        assert all(unit.resizing is None for unit in units)


@pytest.mark.system
def test_resnet164():
    net = networks.resnet164()
    assert net.blocks == (18, 18, 18)
    assert net.widths == (64, 128, 256)
    assert (net.bottleneck, net.stem_width, net.name) == (True, 16, "resnet164")
    # Stem, 54 bottlenecks of three layers, classifier; and three projections.
    assert len(convolutions(net)) - 3 + 1 == 164


@pytest.mark.nightly
def test_resnet1001():
    net = networks.resnet1001()
    assert sum(net.blocks) == 333
    assert len(convolutions(net)) - 3 + 1 == 1001


def test_the_variant_with_max_pooling():
    net = networks.average_pooling_resnet(transition="max_pooling")
    assert net.count_params() == built(networks.average_pooling_resnet).count_params()
    between = [transition for transition, _ in net.sections()[1]]
    assert between[0] is None
    assert all(isinstance(layer, keras.layers.MaxPooling2D) for layer in between[1:])
    assert [layer.pool_size for layer in between[1:]] == [(2, 2), (2, 2)]


def test_wide_resnet_projects_in_every_stage():
    net = built(networks.wide_resnet)
    _, stages, _ = net.sections()
    assert [len(units) for _, units in stages] == [4, 5, 5]
    for stride, (_, units) in zip((1, 2, 2), stages, strict=True):
        assert units[0].resizing.strides == (stride, stride)
        assert all(unit.resizing is None for unit in units[1:])


@pytest.mark.parametrize(
    ("name", "value", "preset"),
    [
        *(("depth", depth, networks.resnet) for depth in (21, 2, 110.0)),
        ("depth", 14, functools.partial(networks.resnet, bottleneck=True)),
    ],
)
def test_bad_arguments(name, value, preset):
    with refused(name):
        preset(**{name: value})


def test_presets_by_name():
    assert all(getattr(networks, name) is preset for name, preset in networks.PRESETS.items())
    assert set(networks.PRESETS) < set(networks.__all__)
