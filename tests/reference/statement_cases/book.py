"""Frames made by hand, in which a published statement holds, and what makes it fail."""

import dataclasses
import itertools
import types

import pandas as pd


def grid(values, labels, **keys):
    """Returns a frame with a row for every combination of labels and keys, and a name.

    Args:
        values: dict of columns, each a number or a function from a row to one.
        labels: dict of the labels of the networks, each with its values.
        **keys: what tells the rows of a network apart, each with its values.
    """
    rows = [
        dict(zip([*labels, *keys], of, strict=True))
        for of in itertools.product(*labels.values(), *keys.values())
    ]
    frame = pd.DataFrame(rows)
    for column, value in values.items():
        frame[column] = [
            value(types.SimpleNamespace(**row)) if callable(value) else value for row in rows
        ]
    return frame.assign(name=["-".join(str(row[label]) for label in labels) for row in rows])


@dataclasses.dataclass(frozen=True)
class Told:
    """A statement with frames in which it is true beyond noise.

    Attributes:
        id: the statement.
        frames: function that returns the frames; its arguments are what can be otherwise.
        effect: the effect of every case.
        refuted: dicts of arguments, with each of which every case is false beyond noise.
        otherwise: dicts of arguments, with each of which some case is not true.
        undecidable: dicts of arguments with which the gate is not met; empty if there is none.
    """

    id: str
    frames: callable
    effect: float
    refuted: tuple
    otherwise: tuple = ()
    undecidable: tuple = ()


class Book(dict):
    """The statements of a paper by id, each a `Told`."""

    def told(self, id, effect, *refuted, otherwise=(), undecidable=()):
        """Decorator: adds a statement, whose frames the function returns."""

        def add(frames):
            if id in self or not refuted:
                raise ValueError(f"{id} is told already, or nothing refutes it.")
            self[id] = Told(id, frames, effect, refuted, otherwise, undecidable)
            return frames

        return add
