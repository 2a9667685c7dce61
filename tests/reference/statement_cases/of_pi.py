"""The statements of PI."""

import math

from reference.statement_cases.book import Book, grid

PI = Book()
SEEDS, DATA, BLOCKS = (0, 1), ("CIFAR-10", "MNIST"), (2, 4, 8, 16, 24)
WRONG = 9.0


@PI.told("PI-1", 1.1, {"times": 1.3})
def _(times=1.1):
    published = {"CIFAR-10": 0.0875, "MNIST": 0.005}
    values = {"error": lambda row: published[row.data] * (times + (row.blocks != 16))}
    return {"summary": grid(values, {"data": DATA, "blocks": BLOCKS, "seed": SEEDS})}


def steps(step, scaled=None, blocks=BLOCKS, data=DATA):
    """Frames with a step of every block, from a function of a row with stage, block and blocks."""
    values = {"perturbation": step, "scaled_perturbation": scaled or (lambda row: WRONG * row.seed)}
    labels = {"data": data, "blocks": blocks, "seed": SEEDS}
    keys = {"split": ("test",), "stage": (1, 2, 3), "block": range(max(blocks))}
    frame = grid(values, labels, **keys)
    return {"perturbation": frame[frame["block"] < frame["blocks"]].reset_index(drop=True)}


@PI.told("PI-2", 1, {"first": 1}, {"second": 1}, {"third": -1}, {"third": 1})
def _(first=-1, second=-1, third=None):
    def step(row):
        middle = row.blocks / 2
        if row.stage == 3 and third is None:
            return 30 + abs(row.block - middle)
        return 30 + {1: first, 2: second, 3: third}[row.stage] * row.block

    return steps(step, blocks=(8, 16, 24))


def of_distance(distance, **kwargs):
    """Frames with equal steps of a network, of which those of a section add up to a distance."""
    return steps(lambda row: distance(row) / row.blocks, **kwargs)


def saturates(first, last):
    """A distance that grows by one factor per doubling of the depth up to 8, then by another."""

    def distance(row):
        doublings = math.log2(row.blocks)
        return first ** min(doublings, 3) * last ** max(doublings - 3, 0)

    return distance


@PI.told("PI-3a", 1.2, {"last": 1.8}, {"first": 1.2})
def _(first=2.0, last=1.2):
    return of_distance(saturates(first, last))


@PI.told("PI-3b", 2, {"mnist": 5})
def _(mnist=2):
    return of_distance(lambda row: {"CIFAR-10": 4, "MNIST": mnist}[row.data], blocks=(24,))


@PI.told("PI-4", 1 / 12, {"power": 0}, {"power": 2})
def _(power=-1):
    return steps(lambda row: (1 + row.stage) * row.blocks**power)


@PI.told("PI-6", 1.2, {"last": 1.8}, {"first": 1.2})
def _(first=2.0, last=1.2):
    distance = saturates(first, last)
    return steps(lambda row: WRONG, lambda row: distance(row) / row.blocks)


@PI.told("PI-7", -1, {"power": -0.5, "at_24": 0.1}, {"power": -1.5}, {"at_24": 0.25})
def _(power=-1, at_24=1 / 6):
    return steps(lambda row: WRONG, lambda row: at_24 * (row.blocks / 24) ** power)


# A distance of 4 at every depth: the mean is 0.2, which is epsilon, at a depth of 20.
@PI.told("PI-R", 1, {"power": 0}, {"power": -2}, {"distance": 1.0, "power": 0})
def _(distance=4, power=-1):
    return steps(lambda row: WRONG, lambda row: distance / 8 * (row.blocks / 8) ** power)


@PI.told("PI-M", 2, {"two": 0.9})
def _(two=2.0):
    def length(row):
        if row.stage > 1:
            return WRONG if row.classes == "one class" else 1
        return two if row.classes == "two classes" else 1

    labels = {"data": DATA, "blocks": (8,), "seed": SEEDS}
    keys = {"stage": (1, 2, 3), "classes": ("one class", "two classes")}
    return {"lines": grid({"length": length}, labels, **keys)}
