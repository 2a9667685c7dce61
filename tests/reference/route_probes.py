"""Networks and calls for the tests of all probes of routes."""

import functools

import numpy as np
import pytest
from keras import ops

from reference import numpy_network, numpy_routes
from reference.random_network import random_batch, random_network, sample
from tfresidual.routing import Block, Chain, Stage

METRICS = ["error", "cross_entropy", "entropy", "agreement", "distance"]


TOLERANCE = {"rtol": 2e-4, "atol": 1e-5}


# Every layout and transition, one to three stages, one label per image and several, stages whose
# only or whose first block changes the shape of the state.
NETWORKS = {
    "original": {"layout": "original", "blocks": (2, 3)},
    "only block changes shape": {
        "blocks": (3, 1, 2),
        "widths": (4, 8, 12),
        "shortcut": "dropout",
    },
    "bn_after_addition": {
        "layout": "bn_after_addition",
        "shortcut": "conv1x1",
        "transition": "convolution",
        "blocks": (2, 3),
        "widths": (4, 8),
    },
    "several labels": {
        "layout": "relu_before_addition",
        "shortcut": "exclusive_gate",
        "transition": "average_pooling",
        "blocks": (3, 2),
        "widths": (4, 6),
        "classifier_activation": "sigmoid",
    },
    "bottleneck logits": {
        "layout": "relu_only_preactivation",
        "shortcut": "scaled",
        "transition": "downsampling_block",
        "bottleneck": True,
        "blocks": (2, 3),
        "widths": (8, 8),
        "classifier_activation": None,
    },
    "one stage, several labels": {
        "shortcut": "shortcut_only_gate",
        "blocks": (4,),
        "widths": (4,),
        "classifier_activation": "sigmoid",
        "pooling": 4,
    },
}


# Every kind of sharing, with and without bounds, joined to the last state and to the stage's input;
# two stages, the second of which begins with a change of the shape, or has no other block.
CONSTRAINED_NETWORKS = {
    # Normalized step by step.
    "bounded": {
        "blocks": (3, 3),
        "widths": (4, 8),
        "share_from": 0,
        "batch_norm": "unshared",
        "anchor": "input",
        "lipschitz": 0.9,
    },
    "bounded, several labels": {
        "blocks": (3, 3),
        "widths": (4, 8),
        "share_from": 1,
        "batch_norm": "unshared_scale",
        "lipschitz": 3.0,
        "layout": "original",
        "transition": "convolution",
        "classifier_activation": "sigmoid",
    },
    # The second stage has one block that keeps the shape, whose state is the anchor too.
    "at its anchor": {
        "blocks": (3, 2),
        "widths": (4, 8),
        "share_from": 1,
        "batch_norm": "unshared_statistics",
        "anchor": "input",
        "shortcut": "shortcut_only_gate",
        "layout": "relu_only_preactivation",
    },
    "shared": {
        "blocks": (4,),
        "widths": (4,),
        "share_from": 0,
        "anchor": "input",
        "layout": "bn_after_addition",
    },
}
CONSTRAINED_NETWORKS = {
    name: settings | {"input_shape": (8, 4, 3)} for name, settings in CONSTRAINED_NETWORKS.items()
}


def constrained(*names, mark=pytest.mark.system):
    """Parameters for `pytest.mark.parametrize`: constrained networks, all with one mark."""
    return [
        pytest.param(CONSTRAINED_NETWORKS[name], id=f"constrained {name}", marks=mark)
        for name in names
    ]


def all_networks(*names, others=pytest.mark.system):
    """Marks a test of `settings`: those of all networks, and of these constrained ones.

    Args:
        others: the mark of all but the first of every three networks.
    """
    return pytest.mark.parametrize(
        "settings", [*sample(NETWORKS, 3, others), *constrained(*names, mark=others)]
    )


def network(settings, images=7):
    """A random network and a batch for it; of several labels, neither none nor all."""
    net = random_network(seed=4, **settings)
    pictures, labels = random_batch(net, images=images)
    if labels.ndim == 2:
        labels[:, 0], labels[:, 1] = 1, 0
    return net, (pictures, labels)


def trained_applications(net):
    """What the unperturbed network applies: for every stage its (block, scale)."""
    return [[(block, 1.0) for block in range(depth)] for depth in net.get_config()["blocks"]]


def with_stage(net, stage, applications):
    """The same with other applications in one stage, counted from 1."""
    stages = trained_applications(net)
    stages[stage - 1] = applications
    return stages


def shape_changing(net, images):
    """The (stage, block) whose state comes out in another shape, by the NumPy version."""
    plain = numpy_network.NumpyNetwork(net.get_config(), numpy_network.weights_of(net))
    state, _ = plain.stem(images[:1].astype(float))
    found = set()
    for stage, (transition, units) in enumerate(
        zip(plain.transitions, plain.units, strict=True), start=1
    ):
        state, _ = transition(state)
        for block, unit in enumerate(units):
            before, (state, _) = state.shape, unit(state)
            if state.shape != before:
                found.add((stage, block))
    return found


def numpy_values(net, batch, stages):
    """Every value per image of one route by the NumPy version, under the names of the frames."""
    values = numpy_routes.analyse(net.get_config(), numpy_network.weights_of(net), [stages], *batch)
    values = {name: value[0] for name, value in values.items()}
    return values | {"error": values["wrong"]}


def numpy_means(net, batch, stage, stages):
    """The means in the order of `METRICS`; the distance is that of a stage. NaN for no route."""
    if stages is None:
        return [np.nan] * len(METRICS)
    values = numpy_values(net, batch, stages)
    values["distance"] = values["distance"][:, stage - 1]
    return [values[name].mean() for name in METRICS]


def assert_equals_numpy(frame, expected):
    """Compares the metrics of a frame with rows of `numpy_means`."""
    for index, name in enumerate(METRICS):
        wanted = [row[index] for row in expected]
        np.testing.assert_allclose(frame[name].astype(float), wanted, **TOLERANCE, err_msg=name)


def counting_chain(share_wrong, *depths, changes=(), classes=4, outputs="logits"):
    """A chain whose blocks count how often they were applied, and whose head errs as asked.

    The state holds an image's row of labels, its place in the data from 0 to 1, and a count for
    each block. A wrong prediction names the classes after the right ones.

    Args:
        share_wrong: `counts -> share`, of the counts of all blocks `(images, blocks)`, how much
            of the data is wrong; the first images are.
        *depths: number of blocks of each stage.
        changes: the (stage, block) that change the shape of the state.
    """
    total = sum(depths)

    def apply(index, is_changing, state):
        counts = np.zeros(classes + 1 + total, "float32")
        counts[classes + 1 + index] = 1
        state = state + counts
        return ops.repeat(state, 2, axis=1) if is_changing else state

    stages, index = [], 0
    for stage, depth in enumerate(depths, start=1):
        blocks = []
        for place in range(depth):
            is_changing = (stage, place) in changes
            function = functools.partial(apply, index, is_changing)
            blocks.append(Block(stage, place, not is_changing, function))
            index += 1
        stages.append(Stage(stage, tuple(blocks)))

    def head(state):
        state = state[:, 0, 0]
        hot, place = state[:, :classes], state[:, classes]
        is_wrong = place < ops.cast(share_wrong(state[:, classes + 1 :]), "float32")
        return 20 * ops.where(is_wrong[:, None], ops.roll(hot, 1, axis=1), hot) - 10

    return Chain(
        name="counting",
        stem=lambda images: ops.pad(images, [(0, 0), (0, 0), (0, 0), (0, total)]),
        stages=tuple(stages),
        head=head,
        loss=lambda labels, outputs: ops.sum(outputs, axis=-1),
        input_shape=(1, 1, classes + 1),
        outputs=outputs,
    )


def counted(labels, classes=4):
    """Images for a `counting_chain` and their labels: class indices, or k-hot rows."""
    labels = np.asarray(labels)
    hot = np.eye(classes)[labels] if labels.ndim == 1 else labels
    places = (np.arange(len(labels)) + 0.5) / len(labels)
    images = np.concatenate([hot, places[:, None]], axis=1)
    return images.astype("float32")[:, None, None, :], labels
