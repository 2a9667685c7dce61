"""What every route through a network gives, in plain NumPy and float64, from the definitions.

A route is here what `tfresidual.routing.Route` holds: for every stage the pairs (block, scale) of
the blocks applied. Every route is run by itself, from the images on.

    values = analyse(net.get_config(), weights_of(net), routes, images, labels)
    values["cross_entropy"][1]  # per image, of the second route
"""

import numpy as np

from reference.numpy_network import NumpyNetwork, norm, sigmoid, softmax


def run(net, stages, images):
    """The last state of every stage, and the logits, of a `NumpyNetwork` along a route."""
    state, _ = net.stem(np.asarray(images, np.float64))
    last_states = []
    for s, applied in enumerate(stages):
        (*_, state), _ = net.stage(s, state, applied)
        last_states.append(state)
    logits, _ = net.head(state)
    return last_states, logits


def several_labels(net):
    return net.config["classifier_activation"] == "sigmoid"


def named(net, logits, labels):
    """The classes that are named, a set for every image: as many as the image has labels."""
    counts = labels.sum(axis=1) if several_labels(net) else np.ones(len(labels), int)
    return [
        {int(i) for i in np.argsort(row)[len(row) - n :]}
        for row, n in zip(logits, counts, strict=True)
    ]


def scores(net, logits, labels):
    """Values per image by name; labels as in `analyse`."""
    rows = []
    for z, label, found in zip(logits, labels, named(net, logits, labels), strict=True):
        if several_labels(net):
            right = {int(i) for i in np.flatnonzero(label)}
            p = sigmoid(z)
            # Of every label: what was said of what is the case, and of the contrary.
            both = np.stack([p, sigmoid(-z)])
            surprise = sum(-np.log(both[0 if i in right else 1, i]) for i in range(len(z)))
        else:
            right = {int(label)}
            p = both = softmax(z[None])[0]
            surprise = -np.log(p[int(label)])
        rows.append(
            {
                "wrong": float(found != right),
                "cross_entropy": surprise,
                "entropy": -np.sum(both * np.log(both)),
                "margin": min(p[i] for i in right)
                - max(p[i] for i in range(len(z)) if i not in right),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def analyse(config, weights, routes, images, labels):
    """All values of some routes.

    Args:
        config: `net.get_config()`.
        weights: `weights_of(net)`.
        routes: for every route, what its stages apply. The distances and the agreement are to
            the network as it is, whether it is among them or not.
        images: array (images, height, width, channels).
        labels: ints (images,), or zeros and ones (images, classes) for sigmoids, neither none
            nor all of them ones.

    Returns:
        A dict of arrays whose first axes are route and image, by the names of
        `tfresidual.routing.evaluator.RouteValues`.
    """
    net = NumpyNetwork(config, weights)
    plain = [[(block, 1.0) for block in range(len(units))] for units in net.units]
    plain_states, plain_logits = run(net, plain, images)
    plain_names = named(net, plain_logits, labels)
    rows = []
    for stages in routes:
        states, logits = run(net, stages, images)
        row = scores(net, logits, labels)
        names = named(net, logits, labels)
        row["agreement"] = np.array([a == b for a, b in zip(names, plain_names, strict=True)])
        row["distance"] = np.stack(
            [norm(a - b) for a, b in zip(states, plain_states, strict=True)], axis=1
        )
        row["outputs"] = net.activated(logits)
        rows.append(row)
    return {name: np.stack([row[name] for row in rows]).astype(float) for name in rows[0]}
