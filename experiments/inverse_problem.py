"""Networks for the inverse problem of IC, section 3: x = (3/2 z1, 3/4 z2)."""

from __future__ import annotations

import dataclasses
import functools

import keras
import numpy as np
import pandas as pd
from catalogue import Network

from tfresidual import datasets, networks, probes
from tfresidual.machine.files import replacing
from tfresidual.routing import routes

# The algorithm has weights set by hand; the others are trained.
KINDS = {
    "algorithm": None,
    "feed-forward": "feedforward",
    "ResNet": "residual",
    "recurrent ResNet": "recurrent",
}
EXTRA = 16
# Points on which the estimates are measured.
POINTS = 500
# The solutions that are drawn: the point that the axes of the paper's figure suggest, and two more.
SOLUTIONS = np.float32([[1.0, 1.0], [-1.2, 0.4], [0.6, -1.5]])
TEST_SEED = 10**6


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of a training. The paper does not say how its networks were trained.

    Attributes:
        kind: kind of the network, or `None` for the algorithm.
        seed: determines the initial weights and the points.
        epochs: number of epochs of 2,048 points; 0 for a network as it is built.
    """

    kind: str | None
    seed: int
    epochs: int


class PointNetwork(Network):
    """A network that takes points in the plane."""

    def train(self, folder, console=None):
        path = folder / "model.keras"
        if not path.exists():
            network = trained(self.settings)
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as beside:
                network.save(beside)
        return TrainedOnPoints(self, folder)

    def untrained(self):
        """Returns the same network, to be measured before its training; the algorithm has none."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, epochs=0))

    def operations(self):
        """Returns 0: its training takes seconds."""
        return 0


class TrainedOnPoints:
    """A trained network for the inverse problem."""

    def __init__(self, network, folder):
        self.network, self.folder = network, folder

    @functools.cached_property
    def chain(self):
        """The chain of the network."""
        network = keras.saving.load_model(self.folder / "model.keras")
        return probes.inverse_problem_chain(network)

    def frames(self, inputs):
        """Returns the estimates on the unperturbed route, without blocks, with repetitions."""
        blocks = [(block.stage, block.index) for block in self.chain.blocks]
        asked = {
            "readout": None,
            "dropped": [routes.drop(self.chain, block) for block in blocks],
            "repeated": [routes.repeat_last_block(self.chain, 1, EXTRA)],
        }
        return {name: probes.trajectories(self.chain, inputs, routes=asked[name]) for name in asked}


def trained(settings):
    """Returns a trained network."""
    if settings.kind is None:
        return networks.error_correcting_network()
    keras.utils.set_random_seed(settings.seed)
    network = networks.InverseProblemNetwork(settings.kind)
    if not settings.epochs:
        return network
    x, z = datasets.inverse_problem(2048, seed=settings.seed)
    steps = settings.epochs * len(x) // 64
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    network.compile(keras.optimizers.Adam(rate), "mse", steps_per_execution=32)
    network.fit(x, z, batch_size=64, epochs=settings.epochs, verbose=0)
    return network


def trajectories(trained):
    """How the estimates of a network move, as numbers, on `POINTS` points."""
    x, z = datasets.inverse_problem(POINTS, seed=TEST_SEED)
    return probes.trajectory_summary(**trained.frames(x), solutions=z)


def drawn_trajectories(trained):
    """The estimates for a few points, which are drawn."""
    points = SOLUTIONS * np.float32(networks.inverse_problem.SLOPES)
    return pd.concat(frame.assign(kind=kind) for kind, frame in trained.frames(points).items())
