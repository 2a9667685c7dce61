"""Networks with read-outs, and these in plain NumPy and float64.

case = CASES["encoder"]()
case.chain, case.data                   # what the package takes
case.states, case.head(state)           # by place; the logits of the network's own head
case.read(kind, place, state, kernel, bias)
"""

import types

import numpy as np

import tfresidual as tfr
from reference import sequences
from reference.numpy_lens import Images, distributions
from reference.random_network import random_batch, random_network


class Case:
    """A network: `several` says whether an example has several labels, `valid` what is no padding.

    Examples that count are `counted`, bool, with the axes of the logits but the last.
    """

    def __init__(self, chain, data, states, head, valid=None, several=False):
        self.chain, self.data, self.states, self.head = chain, data, states, head
        self.valid, self.several = valid, several
        self.last = list(states)[-1]
        self.final = head(states[self.last])
        self.per_position = self.final.ndim == 3
        self.counted = np.ones(self.final.shape[:-1], bool)
        if self.per_position:
            self.counted = np.asarray(data[1]) >= 0

    def places(self, kind):
        """All but the last; for affine read-outs, those of states of the last one's shape."""
        shape = self.states[self.last].shape
        return [
            place
            for place, state in self.states.items()
            if place != self.last and (kind == "head" or state.shape == shape)
        ]

    def taken(self, kind, state):
        if kind == "affine" or self.per_position:
            return state
        if self.valid is not None:
            rows = zip(state, self.valid, strict=True)
            return np.array([own[is_valid].mean(axis=0) for own, is_valid in rows])
        return state.mean(axis=tuple(range(1, state.ndim - 1)))

    def sizes(self, kind, state):
        """What the read-outs subtract and multiply by, from the states of a first batch."""
        # Padding is among them: they only say where the training begins.
        is_whole = kind == "affine" or self.per_position
        taken = state if is_whole else state.mean(axis=tuple(range(1, state.ndim - 1)))
        shift = taken.mean(axis=tuple(range(taken.ndim - 1)))
        return shift, 1 / np.sqrt(((taken - shift) ** 2).mean())

    def read(self, kind, place, kernel, bias):
        """The logits at a place."""
        state = self.states[place]
        shift, scale = self.sizes(kind, state)
        found = (self.taken(kind, state) - shift) * scale @ kernel + bias
        return self.head(state + found / scale) if kind == "affine" else found

    def labels(self, control):
        """Those of the data or, for a control, to every example that of one half a batch away."""
        labels = np.array(self.data[1])
        if control:
            own = labels[self.counted]
            labels[self.counted] = np.roll(own, len(own) // 2, axis=0)
        return labels

    def loss(self, kind, logits, control=False):
        """The mean divergence from the network, or the mean cross-entropy with the labels."""
        losses = []
        for place in zip(*np.nonzero(self.counted), strict=True):
            p, q = (distributions(z[place], self.several) for z in (self.final, logits))
            if kind == "head":
                label = self.labels(control)[place]
                rows = (
                    np.array([label, 1 - label]).T if self.several else [np.eye(len(q[0]))[label]]
                )
                losses.append(-sum(np.sum(a * np.log(b)) for a, b in zip(rows, q, strict=True)))
            else:
                losses.append(sum(np.sum(a * np.log(a / b)) for a, b in zip(p, q, strict=True)))
        return np.mean(losses)


def images(**settings):
    net = random_network(seed=4, blocks=(1, 3), widths=(2, 3), classes=4, **settings)
    data = random_batch(net, images=5)
    if data[1].ndim == 2:
        data[1][:, 0], data[1][:, 1] = 1, 0
    run = Images(net, *data)
    several = net.classifier_activation == "sigmoid"
    return Case(tfr.chain(net), data, run.states, run.head, several=several)


def tokens(kind):
    weights, data = sequences.random_weights(), sequences.batch(kind)
    chain = sequences.sequence_chain(kind)
    valid = data[0] > 0
    bound = chain.with_context(data[0])
    pairs, _ = bound.walk(bound.stem(data[0]))
    states = {(1, -1): pairs[0][0]} | {(1, t): after for t, (_, after) in enumerate(pairs)}
    states = {place: np.asarray(state, np.float64) for place, state in states.items()}

    def head(state):
        if kind == "decoder":
            return state @ weights["head"]
        means = [own[is_valid].mean(axis=0) for own, is_valid in zip(state, valid, strict=True)]
        return np.array(means) @ weights["head"]

    return Case(chain, data, states, head, valid)


CASES = types.MappingProxyType(
    {
        "images": lambda: images(),
        "several labels": lambda: images(classifier_activation="sigmoid"),
        "decoder": lambda: tokens("decoder"),
        "encoder": lambda: tokens("encoder"),
    }
)
