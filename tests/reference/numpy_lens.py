"""What a head predicts at a state, and what a state does elsewhere, in plain NumPy and float64.

Written from the definitions, one example after the other.
"""

import numpy as np

from reference.numpy_network import NumpyNetwork, analyse, weights_of


def lens_metrics(logits, final, label):
    """The metrics of one example by name.

    Args:
        logits: array (classes,) at the state.
        final: the same of the network.
        label: int, or zeros and ones (classes,) if an example has several labels.
    """
    has_several = np.ndim(label) == 1
    labels = set(np.flatnonzero(label)) if has_several else {int(label)}
    p, q = (distributions(z, has_several) for z in (final, logits))
    wanted = [[c in labels, c not in labels] for c in range(len(logits))]
    if not has_several:
        wanted = [[c in labels for c in range(len(logits))]]
    others = [c for c in range(len(logits)) if c not in labels]
    lowest = min(logits[c] for c in labels)
    ahead = sum(logits[c] > lowest for c in others) + sum(logits[c] == lowest for c in others) / 2
    named = [set(np.argsort(z)[len(z) - len(labels) :]) for z in (logits, final)]
    of_labels = [q[c][0] if has_several else q[0][c] for c in labels]
    return {
        "cross_entropy": -sum(
            np.log(share)
            for row, are_wanted in zip(q, wanted, strict=True)
            for share, is_wanted in zip(row, are_wanted, strict=True)
            if is_wanted
        ),
        "rank": 1 + ahead,
        "probability": min(of_labels),
        "kl": sum(np.sum(a * np.log(a / b)) for a, b in zip(p, q, strict=True)),
        "agreement": float(named[0] == named[1]),
        "entropy": -sum(np.sum(row * np.log(row)) for row in q),
    }


def distributions(logits, has_several):
    """Of several labels the distribution (yes, no) of each; otherwise one over all classes."""
    if has_several:
        return [np.array([1 / (1 + np.exp(-z)), 1 / (1 + np.exp(z))]) for z in logits]
    powers = np.exp(logits - logits.max())
    return [powers / powers.sum()]


def gradient_of(function, point, step=1e-5):
    """The gradient of a function of an array to a number, by central differences."""
    gradient = np.zeros_like(point)
    for place in np.ndindex(point.shape):
        move = np.zeros_like(point)
        move[place] = step
        gradient[place] = (function(point + move) - function(point - move)) / (2 * step)
    return gradient


class Images:
    """A network for images and a batch: its states by place, its head, and the rest of it."""

    def __init__(self, net, images, labels):
        config, weights = net.get_config(), weights_of(net)
        self.net = NumpyNetwork(config, weights)
        run = analyse(config, weights, images, labels)
        self.logits = run.logits
        # The first state of every stage, and that after every block.
        self.states = {}
        for s, (states, last) in enumerate(zip(run.states, run.last_states, strict=True), start=1):
            self.states |= {(s, t - 1): state for t, state in enumerate([*states, last])}

    def head(self, state):
        return self.net.head(state)[0]

    def head_gradient(self, state, weights):
        """That of the sum of the logits times the weights, per image."""
        return self.net.head(state)[1](weights)

    def continue_from(self, state, stage, block):
        """The logits from the state after a block on, in a network without anchors."""
        for s in range(stage - 1, len(self.net.units)):
            begin = block + 1 if s == stage - 1 else 0
            if s > stage - 1:
                state, _ = self.net.transitions[s](state)
            for unit in self.net.units[s][begin:]:
                state, _ = unit(state, 1.0)
        return self.head(state)
