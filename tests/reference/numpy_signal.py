"""How much of the gradient comes through the shortcuts, and stages whose last block is repeated.

In plain NumPy and float64, with the blocks of `numpy_network`. A block that is given a state to
join its branch to pulls a gradient back in two parts: through the branch, and to that state.

    through_shortcuts(net, run)[2][0]    # at the first block of the third stage, per image
"""

import numpy as np

from reference import numpy_network

METRICS = (
    "state_norm",
    "state_l1",
    "state_gradient_norm",
    "gradient_ratio",
    "shortcut_share",
    "shortcut_norm",
    "shortcut_product",
    "sum_deviation",
)


def analyse(net, images, labels):
    """The `NumpyNetwork` of a Keras network, and the `Run` of a batch through it."""
    config, weights = net.get_config(), numpy_network.weights_of(net)
    plain = numpy_network.NumpyNetwork(config, weights)
    return plain, numpy_network.analyse(config, weights, images, labels)


def bases_of(net, run, stage):
    """The index of the state that each block of a stage joins its branch to."""
    first = max(net.changes[stage], default=-1) + 1
    count = len(run.states[stage])
    if net.config["anchor"] == "input":
        return [index if index < first else first for index in range(count)]
    return list(range(count))


def through_shortcuts(net, run):
    """The gradients at the blocks' inputs, from the end of their stage through no branch.

    Every way from block t to the end of the stage is walked by itself.
    """
    stages = []
    for s, states in enumerate(run.states):
        bases, pulls = bases_of(net, run, s), []
        for index, base in enumerate(bases):
            _, pull = net.units[s][index](states[index], anchor=states[base])
            pulls.append(lambda gradient, pull=pull: pull(gradient)[1])
        # The shortcut of block t leads from the state bases[t] to the state t + 1.
        arriving = []
        for index in range(len(states)):
            gradient, place = run.last_gradients[s], len(states)
            while place > index:
                gradient, place = pulls[place - 1](gradient), bases[place - 1]
            arriving.append(gradient if place == index else np.zeros_like(states[index]))
        stages.append(arriving)
    return stages


def sum_deviations(net, run):
    """How far each state is from the first one of its stage plus all branches, relative to it."""
    stages = []
    for s, states in enumerate(run.states):
        first, after = max(net.changes[s], default=-1) + 1, [*states[1:], run.last_states[s]]
        branches = [net.units[s][t].branch(h) for t, h in enumerate(states)]
        stages.append([np.full(len(run.losses), np.nan)] * first)
        for t in range(first, len(states)):
            expected = states[first] + np.sum(branches[first : t + 1], axis=0)
            distance = numpy_network.norm(after[t] - expected)
            stages[-1].append(distance / numpy_network.norm(after[t]))
    return stages


def signal_metrics(net, run):
    """Every metric of the probe by name, `(images, blocks)`."""
    columns = {name: [] for name in METRICS}
    first = numpy_network.norm(run.gradients[0][0])
    shortcuts, sums = through_shortcuts(net, run), sum_deviations(net, run)
    for s, states in enumerate(run.states):
        after = [*states[1:], run.last_states[s]]
        gradients_after = [*run.gradients[s][1:], run.last_gradients[s]]
        for index, gradient in enumerate(run.gradients[s]):
            size, arriving = numpy_network.norm(gradient), shortcuts[s][index]
            last = numpy_network.norm(run.last_gradients[s])
            products = [np.vdot(a, b) for a, b in zip(arriving, gradient, strict=True)]
            with np.errstate(divide="ignore", invalid="ignore"):
                values = (
                    numpy_network.norm(after[index]),
                    np.array([np.abs(image).sum() for image in after[index]]),
                    numpy_network.norm(gradients_after[index]),
                    np.where(size > 0, first / size, 0),
                    np.where(size > 0, products / size**2, 0),
                    np.where(size > 0, numpy_network.norm(arriving) / size, 0),
                    np.where(last > 0, numpy_network.norm(arriving) / last, 0),
                    sums[s][index],
                )
            for name, value in zip(METRICS, values, strict=True):
                columns[name].append(value)
    return {name: np.stack(values, axis=1) for name, values in columns.items()}


def applied_on(net, run, times):
    """The states of the stages whose last block can be applied again.

    Returns:
        A dict from stage (from 0) to a list: the state before the last block, the state after it,
        and those after each of `times` extra applications.
    """
    stages = {}
    for s, states in enumerate(run.states):
        last = len(states) - 1
        if last in net.changes[s]:
            continue
        stages[s], anchor = [states[last]], states[bases_of(net, run, s)[last]]
        for _ in range(times + 1):
            state = stages[s][-1]
            base = anchor if net.config["anchor"] == "input" else state
            stages[s].append(net.units[s][last](state, anchor=base)[0])
    return stages
