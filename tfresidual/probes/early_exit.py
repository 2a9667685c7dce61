"""What a network saves, and loses, if images leave it once a read-out is sure. TensorFlow only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, check_number, is_number
from tfresidual.definitions.averages import STANDARD_ERRORS, rise_over, weighted_mean
from tfresidual.machine.compiled import compiled, concrete
from tfresidual.probes.predictions import COUNTED, label_check, scored_chain
from tfresidual.probes.readout import CONFIDENCE, exit_values
from tfresidual.routing.costs import flops_in, shortest_of
from tfresidual.routing.data import shape_of_outputs, sliced, spec_of
from tfresidual.routing.readouts import (
    check_one_row,
    check_readouts,
    exits_of,
    leave_early,
    read,
    states_of,
)
from tfresidual.routing.runs import WEIGHTS
from tfresidual.routing.scores import OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import ChainSource, Frame, Images
    from tfresidual.networks import Readouts
    from tfresidual.routing import Chain

# The default thresholds are over these shares of the confidences on validation images.
SHARES = np.arange(0, 1, 0.05)


def early_exit(
    model: Chain | ChainSource,
    readouts: Readouts,
    validation: Images,
    test: Images,
    *,
    most_rise: float = 0.01,
    thresholds: Iterable[float] | None = None,
    progress: bool = False,
) -> Frame:
    """Measures error and costs if images leave a network at the first block that is sure enough.

    An image leaves after the first block whose read-out gives its prediction a probability of the
    threshold or more: that of the class or, with several labels per image, the product over the
    labels of the probability of yes or no, whichever is predicted. Others go to the end, where the
    head of the network reads them.

    `chosen` is the lowest threshold that is safe on the validation images, and with it all higher
    ones: the error rises by `most_rise` at most, with two standard errors to spare. The last row is
    that of the network without read-outs, which is chosen if no threshold is safe.

    Example:

    >>> heads = training.fit_readouts(net, train, kind="head", epochs=5)
    >>> frame = early_exit(net, heads, train, test, thresholds=[0.5, 0.9])
    >>> frame["threshold"].tolist(), int(frame["chosen"].sum())
    ([0.5, 0.9, inf], 1)

    Args:
        model: a chain, or anything that `tfresidual.chain` accepts, with one row of outputs per
            image.
        readouts: what `tfresidual.training.fit_readouts` returned for it.
        validation: images and labels, on which the threshold is chosen; neither those of the
            training nor those of the test.
        test: images and labels, on which everything else is measured.
        most_rise: the largest rise of the error over that of the network, from 0 to 1.
        thresholds: probabilities, from 0 to 1; by default, 20 numbers over 0, 5, ..., 95 % of all
            confidences on the validation images.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with a row per threshold, from the lowest to infinity, and the columns

        - `threshold`, and `chosen`, bool.
        - `error`, on the test images, in [0, 1]; `error_rise` over that of the network, with its
          standard error `error_rise_se`, on the same images.
        - `random_error`, the control: the error if as many images left after every block, whichever
          they are. If it is not above `error`, the confidence says nothing of the images.
        - `blocks`: the mean number of blocks applied.
        - `flops`: the mean FLOPs of an image, with those of the read-outs it passes, two per
          multiplication in convolutions and matrix products; `flops_share`, over those of the
          network. NaN if a shape is not known.
        - `milliseconds`: the mean time of an image by itself, in the SavedModel that
          `tfresidual.export(..., exits=readouts)` writes: of each place, the shortest of several
          calls.
        - `validation_error`, `validation_error_rise` and `validation_error_rise_se`.

    Raises:
        ValueError: if an argument cannot be used, or the network has more than one row of outputs
            per image.

    Reference:
        Teerapittayanon et al. 2016, https://arxiv.org/abs/1709.01686; Kaya et al. 2019,
        https://arxiv.org/abs/1810.07052, for classifiers and their confidence; Angelopoulos et al.
        2021, https://arxiv.org/abs/2110.01052, for thresholds tested in their order.
    """
    check_number("most_rise", most_rise, at_least=0, at_most=1)
    chain = scored_chain(model)
    check_readouts("readouts", readouts, chain)
    places = exits_of(chain, readouts)
    own = _Images(chain, readouts, places, validation, progress)
    others = _Images(chain, readouts, places, test, progress)
    if thresholds is None:
        thresholds = np.quantile(own.confidence[:, :-1], SHARES, method="higher")
    thresholds = _checked(thresholds)
    flops, whole_flops = _flops(chain, readouts, others.one)
    times, whole_time = _milliseconds(chain, readouts, others.one, len(places))
    applied = np.array([(block.stage, block.index) in places for block in chain.blocks]).nonzero()
    rows = []
    for threshold in thresholds:
        costs = {"blocks": applied[0] + 1, "flops": flops, "milliseconds": times}
        if threshold == np.inf:
            ends = {"flops": whole_flops, "milliseconds": whole_time}
            costs |= {name: np.full(len(places), end) for name, end in ends.items()}
        of_validation = own.outcome(threshold, {})
        rows.append(
            {"threshold": threshold, "chosen": False}
            | others.outcome(threshold, costs)
            | {f"validation_{name}": of_validation[name] for name in _OF_VALIDATION}
        )
    frame = pd.DataFrame(rows)
    frame.insert(list(frame).index("milliseconds"), "flops_share", frame["flops"] / whole_flops)
    highest = frame["validation_error_rise"] + STANDARD_ERRORS * frame["validation_error_rise_se"]
    is_safe = (highest <= most_rise).to_numpy(copy=True)
    is_safe[-1] = True
    # The last of those that are safe, from the highest down.
    frame.loc[len(frame) - np.argmin([*is_safe[::-1], False]), "chosen"] = True
    return frame


_OF_VALIDATION = ("error", "error_rise", "error_rise_se")


def _checked(thresholds):
    """Returns thresholds in their order, and infinity; raises a `ValueError` for others."""
    thresholds = list(thresholds)
    if not all(is_number(one) and 0 <= one <= 1 for one in thresholds):
        raise ArgumentError("thresholds", "be probabilities, from 0 to 1", thresholds)
    # In the precision of the confidences.
    return [*map(float, np.unique(np.float32(thresholds))), np.inf]


class _Images:
    """Which images are wrong at which exits, and how sure of their predictions these are."""

    def __init__(self, chain, readouts, places, data, progress):
        check_labels, self.one = label_check(chain), None

        def check(images, labels):
            check_labels(images, labels)
            if self.one is None:
                check_one_row("model", shape_of_outputs(chain, images))
                self.one = sliced(images, slice(1))

        values = exit_values(chain, readouts, data, progress, check)
        is_exit = [(block.stage, block.index) in places for block in chain.blocks]
        is_counted = values[COUNTED]
        self.weights = values[WEIGHTS][is_counted]
        self.wrong = values["error"][is_counted][:, is_exit]
        self.confidence = values[CONFIDENCE][is_counted][:, is_exit]

    def outcome(self, threshold, costs):
        """Returns the means of errors and of costs, which are arrays `(exits,)`, by name."""
        is_sure = self.confidence >= threshold
        is_sure[:, -1] = True
        left = np.argmax(is_sure, axis=1)
        wrong, whole = self.wrong[np.arange(len(left)), left], self.wrong[:, -1]
        rise, standard_error = rise_over(wrong, whole, self.weights)
        shares = weighted_mean(left[:, None] == np.arange(is_sure.shape[1]), self.weights)
        return {
            "error": weighted_mean(wrong, self.weights),
            "error_rise": rise,
            "error_rise_se": standard_error,
            "random_error": float(shares @ weighted_mean(self.wrong, self.weights)),
        } | {name: float(shares @ cost) for name, cost in costs.items()}


def _flops(chain, readouts, image):
    """Returns the FLOPs of one image that leaves at each exit, and those of the network."""

    def outputs(image):
        own = chain.with_context(image)
        states, last = states_of(own, image)
        final = own.head(last)
        exits = exits_of(chain, readouts)[:-1]
        return [*(read(own, readouts, place, states[place], final) for place in exits), final]

    specs = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), image)
    graph = concrete(outputs, [specs]).graph
    outputs = graph.outputs
    flops = [flops_in(graph, outputs[: place + 1]) for place in range(len(outputs))]
    return np.array(flops), flops_in(graph, outputs[-1:])


def _milliseconds(chain, readouts, image, exits):
    """Returns the times of one image that leaves at each exit, and that of the network."""
    spec = spec_of(image)
    run = leave_early(chain, readouts, spec)
    of_thresholds = tf.TensorSpec([exits - 1], tf.float32)
    early = compiled(lambda *given: run(*given)[OUTPUTS], [spec, of_thresholds])
    whole = compiled(lambda image: chain(image), [spec])

    def leaving_at(place):
        thresholds = np.full(exits, np.inf, np.float32)
        thresholds[place] = 0
        thresholds = tf.constant(thresholds[:-1])
        return lambda: early(image, thresholds)

    *times, of_whole = shortest_of([*map(leaving_at, range(exits)), lambda: whole(image)])
    return np.array(times), of_whole
