"""Coupled SGD with momentum, weight by weight in NumPy: what gradient coupling is compared with."""

from fractions import Fraction

import keras
import numpy as np

# The same in every type.
RATE, MOMENTUM = 0.0625, 0.875


def momentum_sgd():
    return keras.optimizers.SGD(RATE, momentum=MOMENTUM)


def slow_kernel(blocks, coupling, kernel="uniform"):
    """The paper's kernels in fractions, entry by entry."""
    coupling, count = Fraction(coupling), len(blocks)
    rows = []
    for t in blocks:
        row = []
        for s in blocks:
            if kernel == "uniform":
                row.append((1 - coupling if s == t else 0) + coupling / count)
            elif coupling == 0:
                row.append(Fraction(s == t))
            elif coupling >= Fraction(1, 2):
                row.append(max(Fraction(0), 1 - 2 * (1 - coupling) * abs(s - t) / count))
            else:
                row.append(max(Fraction(0), 1 - abs(s - t) / (2 * coupling * count)))
        rows.append([entry / sum(row) for entry in row] if kernel == "triangular" else row)
    return np.array(rows, dtype=np.float64)


class NumpyMomentum:
    """SGD with momentum and gradient coupling.

    Args:
        model: gives the weights with which it begins.
        groups: lists of pairs of a block index and the path of its weight.
        coupling: see `GradientCoupling`.
        kernel: likewise.
    """

    def __init__(self, model, groups, coupling, kernel="uniform"):
        self.values = {v.path: v.numpy() for v in model.trainable_variables}
        self.velocities = {path: np.zeros_like(value) for path, value in self.values.items()}
        self.groups = groups
        self.rows = [slow_kernel([block for block, _ in g], coupling, kernel) for g in groups]

    def step(self, gradients):
        """Takes a step with the gradients by path."""
        updates = dict(gradients)
        for group, rows in zip(self.groups, self.rows, strict=True):
            for (_, path), row in zip(group, rows, strict=True):
                updates[path] = sum(
                    share * gradients[other] for share, (_, other) in zip(row, group, strict=True)
                )
        for path, update in updates.items():
            self.velocities[path] = MOMENTUM * self.velocities[path] - RATE * update
            self.values[path] = self.values[path] + self.velocities[path]
