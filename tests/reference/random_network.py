"""Small networks and batches from a seed, for comparisons with the NumPy version."""

import numpy as np
import pytest

from tfresidual.networks import ResidualNetwork

LAYOUTS = (
    "original",
    "bn_after_addition",
    "relu_before_addition",
    "relu_only_preactivation",
    "full_preactivation",
)
SHORTCUTS = (
    "identity",
    "scaled",
    "exclusive_gate",
    "shortcut_only_gate",
    "conv1x1",
    "dropout",
)
TRANSITIONS = ("projection", "convolution", "average_pooling", "downsampling_block")

# Every pair of layout and transition, and with them every pair of layout and shortcut; each value
# of everything with and without bottleneck. 30 networks instead of 240.
CASES = [
    {
        "layout": layout,
        "shortcut": shortcut,
        "transition": TRANSITIONS[(i + j) % 4],
        "bottleneck": bool((i + j // 2 + j // 4) % 2),
    }
    for i, layout in enumerate(LAYOUTS)
    for j, shortcut in enumerate(SHORTCUTS)
]

# The places of a few of these that have every layout, shortcut and transition, with and without
# bottleneck.
OF_EVERY_KIND = (0, 5, 7, 14, 16, 23, 27)

SHARINGS = (
    {},
    {"share_from": 0},
    {"share_from": 1, "batch_norm": "shared"},
    {"share_from": 0, "batch_norm": "unshared_statistics"},
    {"share_from": 1, "batch_norm": "unshared_scale"},
    {"share_from": 0, "batch_norm": "unshared"},
)
ANCHORS = ("previous", "input")
# A bound under those of all random branches, and one between them.
LIPSCHITZ = (None, 0.9, 6.0)

# Every pair of two of these settings but two: shortcuts with kinds of sharing and with transitions.
# Three blocks a stage; where the first one changes the shape, the second is the first to be shared.
# Images are small, since the NumPy version takes the singular values of matrices.
CONSTRAINED_CASES = [
    {
        "input_shape": (8, 4, 3),
        "blocks": 3,
        "layout": layout,
        **sharing,
        "transition": TRANSITIONS[(2 * i - j - i // 2) % 4],
        "shortcut": SHORTCUTS[(i + j + 2 * (i // 2 + j // 2)) % 6],
        "anchor": ANCHORS[(i + j + j // 2) % 2],
        "lipschitz": LIPSCHITZ[(2 * j + i // 2 + j // 2) % 3],
        "bottleneck": bool((i + j + i // 2) % 2),
    }
    for i, layout in enumerate(LAYOUTS)
    for j, sharing in enumerate(SHARINGS)
]


def case_id(case):
    """A name for `pytest.mark.parametrize(..., ids=case_id)`."""
    return "-".join(
        "bottleneck" if value is True else str(value).replace(" ", "")
        for value in case.values()
        if value is not False and value is not None
    )


def sample(cases, every, others=pytest.mark.system):
    """Parameters for `pytest.mark.parametrize`, of which one in so many runs in every run.

    Args:
        cases: dict of cases by name, or a list of dicts.
        every: int.
        others: the mark of the other cases.
    """
    if not isinstance(cases, dict):
        cases = {case_id(case): case for case in cases}
    return [
        pytest.param(case, id=str(name), marks=[others] if i % every else [])
        for i, (name, case) in enumerate(cases.items())
    ]


def of_every_kind(others=pytest.mark.system):
    """`CASES` for `pytest.mark.parametrize`: a few that have everything, and the other ones.

    Args:
        others: the mark of the other cases.
    """
    return [
        pytest.param(case, id=case_id(case), marks=[] if i in OF_EVERY_KIND else [others])
        for i, case in enumerate(CASES)
    ]


def random_network(seed=0, input_shape=(8, 8, 3), classes=5, blocks=2, widths=(4, 8), **kwargs):
    """A `ResidualNetwork` all of whose weights and statistics are drawn from a seed.

    Args:
        seed: int.
        **kwargs: further arguments of `ResidualNetwork`.
    """
    net = ResidualNetwork(input_shape, classes, blocks=blocks, widths=widths, **kwargs)
    randomise(net, seed)
    net.converge()
    return net


def randomise(layer, seed=0):
    """Draws every weight and statistic of a built layer or network, in the order of its paths."""
    rng = np.random.default_rng(seed)
    for variable in layer.variables:
        shape, name = variable.shape, variable.path.split("/")[-1]
        if name == "moving_variance":
            values = rng.uniform(0.5, 2, shape)
        elif name == "gamma":
            values = rng.uniform(0.5, 1.5, shape)
        elif name in ("beta", "moving_mean", "bias"):
            values = rng.normal(0, 0.3, shape)
        elif name == "kernel":
            values = rng.normal(0, np.sqrt(1.5 / np.prod(shape[:-1])), shape)
        else:  # the state of a seed generator, and the vectors of power iterations
            continue
        variable.assign(values)


def random_batch(net, images=3, seed=1):
    """Images and labels that fit a network: integers, or k-hot where it ends in sigmoids."""
    rng = np.random.default_rng(seed)
    size = [n or 8 for n in net.input_shape[1:]]
    pictures = rng.normal(size=(images, *size)).astype("float32")
    if net.classifier_activation == "sigmoid":
        return pictures, rng.integers(0, 2, (images, net.classes))
    return pictures, rng.integers(0, net.classes, images)


def states_of(net, images):
    """The states of a Keras network by applying its layers one after the other.

    Returns:
        A tuple of the states (a list over stages of lists of block inputs), the last state of
        every stage, and the outputs.
    """
    stem, stages, head = net.sections()
    state = images
    for layer in stem:
        state = layer(state)
    states, last_states = [], []
    for transition, units in stages:
        if transition is not None:
            state = transition(state)
        states.append([])
        anchor = state
        for unit in units:
            states[-1].append(state)
            if unit.resizing is not None:
                state = anchor = unit(state)
            else:
                state = unit(state, anchor if net.anchor == "input" else None)
        last_states.append(state)
    for layer in head:
        state = layer(state)
    return states, last_states, state
