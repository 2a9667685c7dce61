"""What the head predicts from the state after every block. TensorFlow only."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, check_choice
from tfresidual.networks.readouts import HEAD
from tfresidual.probes.measure import joined_splits
from tfresidual.probes.predictions import (
    COUNTED,
    check_positions,
    frame_of,
    label_check,
    labels_of,
    logits_of,
    over_positions,
    scored_chain,
)
from tfresidual.routing.data import splits_of
from tfresidual.routing.readouts import check_readouts, of_control, places_of, states_of
from tfresidual.routing.readouts import read as read_out
from tfresidual.routing.runs import WEIGHTS, run_over
from tfresidual.sources.normalizations import (
    Setting,
    check_normalizations,
    frozen_normalizations,
    with_statistics,
)

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.networks import Readouts
    from tfresidual.routing import Chain

# Whose statistics the normalizations of the head use.
OWN, FINAL = "own", "final"
SETTING = Setting(f"`normalize` must be {OWN!r}", f"normalize={FINAL!r}")
METRICS = ("cross_entropy", "rank", "probability", "kl", "agreement", "entropy")
# The most numbers per image, of states or of logits, that go through the head as one batch.
NUMBERS_AT_ONCE = 2**17
# The predicted class, of single positions.
PREDICTED = "predicted"


def lens(
    chain: Chain | ChainSource,
    data: Data,
    *,
    normalize: Literal["own", "final"] = "own",
    readouts: Readouts | None = None,
    per_image: bool = False,
    per_position: bool = False,
    progress: bool = False,
) -> Frame:
    """Applies the head to the state after every block, and measures what it predicts there.

    For language models, this is the logit lens. All metrics are computed per image (or per position
    that counts) and averaged; docs/concepts/probes.md says which count, which logits are read, and
    what `normalize` does.

    - `cross_entropy`: between labels and prediction, in nats, 0 or more. With several labels per
      image, it is summed over the classes.
    - `rank`: 1 plus the number of classes with a higher output than the label, from 1 (the
      prediction is right) to the number of classes; an equal output counts as a half. With several
      labels, it is 1 plus the number of classes that are no labels and have a higher output than
      the lowest of the labels. NaN if an output is NaN or plus infinity.
    - `probability`: of the label, in [0, 1]; with several labels, the lowest of theirs.
    - `kl`: the Kullback-Leibler divergence of the prediction here from that of the network, the
      sum over the classes of p log(p / q) with p the final prediction and q the one here, in nats,
      0 or more, and 0 after the last block. With several labels per image, it is that of every
      label, yes or no, summed over the labels.
    - `agreement`: 1 if the predicted class is that of the network, otherwise 0; with n labels per
      image, the n highest outputs. A prediction that is not finite agrees with nothing.
    - `entropy`: of the prediction, in nats, 0 or more, summed over the labels if there are several.

    With `readouts`, what was trained for a state reads it: with affine read-outs, this is the tuned
    lens. The last state is read by the head of the network. `control_cross_entropy` and so on are
    the same metrics of what the controls read: with affine read-outs, of the lens without them;
    with heads, of heads that were trained with the labels of other images.

    Example:

    >>> frame = lens(tfresidual.chain(net), test)
    >>> bool(frame["kl"].iloc[-1] == 0)
    True

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        normalize: whose statistics the normalizations in the head use: `"own"`, those of each
            state, or `"final"`, those of the last state, which needs a chain of a Keras model with
            layer or RMS normalization in the head.
        readouts: what `tfresidual.training.fit_readouts` returned for this network.
        per_image: whether to return the values of every image instead of their means; of outputs
            per position, the means over the positions of the image.
        per_position: whether to return the values of every position that counts.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0, and -1 for the
        state before the first block of the stage) and the metrics. They are NaN where the state
        does not have the shape of the one that the head takes in the network, unless a `"head"`
        among `readouts` reads it. If `data` is a dict, `split` is the first column. With
        `per_image`, `image` (from 0) comes after `block`; with `per_position`, `image` and
        `position`, and after the metrics `predicted`, the class with the highest output, unless a
        position has several labels. With `readouts`, the metrics of the controls are the last
        columns, NaN for the last state.

    Raises:
        ValueError: if an argument cannot be used, or the outputs of the network are not classes;
            with `normalize="final"`, if no normalization of every state by itself is seen in the
            head, as in SavedModels and chains by hand, or if `"head"`s read the states.

    Reference:
        nostalgebraist 2020, "interpreting GPT: the logit lens"; Jastrzebski et al. 2018, section
        4.2 and fig. 5, for the last stage of a network for images; Belrose et al. 2023,
        https://arxiv.org/abs/2303.08112, for the tuned lens.
    """
    check_choice("normalize", normalize, (OWN, FINAL))
    chain = scored_chain(chain)
    if readouts is not None:
        check_readouts("readouts", readouts, chain)
        if normalize == FINAL and readouts.kind == HEAD:
            raise ArgumentError("normalize", f"be {OWN!r} for heads after every block", FINAL)
    # The kind of outputs is part of the name, since a copy of a chain that declares another kind
    # shares what is compiled.
    name = f"lens of {chain.outputs}{' per position' if per_position else ''}"
    name += f" with {normalize} statistics" if normalize != OWN else ""
    function = functools.partial(_batch_values, chain, per_position, normalize, readouts)
    key, frames = (readouts,), {}
    places = pd.DataFrame(places_of(chain), columns=["stage", "block"])
    for split, part in splits_of(data).items():
        check = label_check(chain)
        values = run_over(
            chain, name, function, part, progress, check=check, with_losses=False, key=key
        )
        of_examples = values.pop(COUNTED), values.pop(WEIGHTS)
        frames[split] = frame_of(places, values, *of_examples, per_image, per_position)
    return joined_splits(frames)


def _batch_values(chain, per_position, normalize, readouts, images, labels):
    """Returns all metrics of a batch, each `(images, [positions,] states)`, by name."""
    chain = chain.with_context(images)
    at_places, last = states_of(chain, images)
    final = chain.head(last)
    logits, has_several = logits_of(chain.outputs, final)
    check_positions(per_position, logits)
    read = labels_of(chain, labels, final, logits, has_several)
    kind = _Sigmoids if has_several else _Softmax
    network = kind(logits, read)
    with_class = per_position and not has_several

    def all_of(prediction):
        found = prediction.metrics(network)
        if with_class:
            named = tf.cast(prediction.named, found.dtype)
            named = tf.where(prediction.is_finite, named, float("nan"))
            found = tf.concat([found, named[..., None]], axis=-1)
        return found

    of_network = all_of(network)
    # By place and whether it is the control: metrics, and states that the head is to read.
    measured, others = {}, {}
    for at, state in at_places.items():
        # The head has been applied to the last state.
        if state is last or (readouts is not None and at not in readouts.places):
            continue
        for control in (False,) if readouts is None else (False, True):
            if readouts is not None and readouts.kind == HEAD:
                outputs = read_out(chain, readouts, at, state, final, control)
                measured[at, control] = all_of(kind(logits_of(chain.outputs, outputs)[0], read))
            elif state.shape[1:] == last.shape[1:]:
                taken = state if readouts is None else readouts.read(at, state, control=control)
                others[at, control] = tf.cast(taken, last.dtype)
    if others:
        # Groups of equal size, the last one filled up with its last state.
        rounds = -(-len(others) // (1 if normalize == FINAL else _states_at_once(last, logits)))
        size = -(-len(others) // rounds)
        head = chain.repeat(size).head
        if normalize == FINAL:
            head = _with_statistics_of(chain, last)
        states = [*others.values()]
        states += states[-1:] * (rounds * size - len(states))
        batches = [tf.concat(states[at : at + size], 0) for at in range(0, len(states), size)]

        def metrics_of(batch):
            of_batch, _ = logits_of(chain.outputs, head(batch))
            shape = tf.concat([[size], tf.shape(logits)], 0)
            return all_of(kind(tf.reshape(of_batch, shape), read))

        # A loop: the head is traced once, and the outputs of one group are kept at a time.
        stacked = tf.map_fn(
            metrics_of,
            tf.stack(batches),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec([size, *of_network.shape], of_network.dtype),
        )
        stacked = tf.reshape(stacked, tf.concat([[len(states)], tf.shape(of_network)], 0))
        measured |= zip(others, tf.unstack(stacked, num=len(states)), strict=False)
    undefined = tf.fill(tf.shape(of_network), tf.constant(float("nan"), of_network.dtype))
    names = (*METRICS, PREDICTED) if with_class else METRICS

    def named(control):
        """Returns metrics by name, each `(images, [positions,] states)`."""
        columns = [
            of_network if state is last and not control else measured.get((at, control), undefined)
            for at, state in at_places.items()
        ]
        # (..., metrics, states)
        table = tf.stack(columns, axis=-1)
        if not per_position:
            table = over_positions(table, read.counted)
        return dict(zip(names, tf.unstack(table, axis=-2), strict=True))

    values = named(control=False)
    if readouts is not None:
        of_controls = named(control=True)
        values |= {of_control(name): of_controls[name] for name in METRICS}
    return values | {COUNTED: read.counted}


def _states_at_once(state, logits):
    """Returns how many states go through the head as one batch: few products of rows are slow."""
    numbers = [math.prod(size or 1 for size in one.shape[1:]) for one in (state, logits)]
    return max(1, NUMBERS_AT_ONCE // max(numbers))


def _with_statistics_of(chain, last):
    """Returns the head with the statistics of normalizations that it has at the last state."""
    with frozen_normalizations(SETTING) as found:
        chain.head(last)
    check_normalizations(found, chain.name, SETTING)

    def head(state):
        with with_statistics(found):
            return chain.head(state)

    return head


class _Softmax:
    """The prediction of one class at one state, computed from its logits less their maximum."""

    def __init__(self, logits, read):
        self.read = read
        self.named = tf.argmax(logits, axis=-1)
        # Minus infinity becomes a large number, so that its product with 0 is 0.
        highest = tf.gather(logits, self.named[..., None], batch_dims=len(logits.shape) - 1)
        self.shifted = tf.maximum(logits - highest, logits.dtype.min)
        powers = tf.exp(self.shifted)
        total = tf.reduce_sum(powers, axis=-1)
        self.log_total = tf.math.log(total)
        self.negative_entropy = _product(powers, self.shifted) / total - self.log_total
        self.p = powers / total[..., None]
        label = tf.argmax(read.rows, axis=-1) if read.indices is None else read.indices
        label = tf.broadcast_to(label, tf.shape(total))
        of_label = tf.gather(logits, label[..., None], batch_dims=len(total.shape)) - highest
        self.of_label, self.log_p = of_label, of_label[..., 0] - self.log_total
        self.is_bounded = tf.math.is_finite(tf.reduce_min(logits, axis=-1))
        self.is_finite = self.is_bounded & tf.math.is_finite(total)

    def metrics(self, network):
        """Returns the metrics, `(..., metrics)`, in the order of `METRICS`."""
        read = self.read
        cross_entropy = -self.log_p
        if read.indices is None:
            weight = tf.reduce_sum(read.rows, axis=-1)
            cross_entropy = weight * self.log_total - self._expected(read.rows)
        # Those ahead less those behind: n - 1 if all others are ahead, 0 if all are equal.
        of_label = tf.maximum(self.of_label, self.of_label.dtype.min)
        balance = tf.reduce_sum(tf.sign(self.shifted - of_label), axis=-1)
        kl = network.negative_entropy - self._expected(network.p) + self.log_total
        # Not below 0 by rounding, and exactly 0 for the network itself; NaN stays NaN.
        is_zero = ~tf.math.is_nan(kl) if self is network else kl < 0
        return _stacked(
            cross_entropy=cross_entropy,
            rank=(balance + self.shifted.shape[-1] + 1) / 2,
            probability=tf.exp(self.log_p),
            kl=tf.where(is_zero, tf.zeros_like(kl), kl),
            agreement=tf.cast(
                (self.named == network.named) & self.is_finite & network.is_finite, kl.dtype
            ),
            entropy=-self.negative_entropy,
        )

    def _expected(self, shares):
        """Returns the sum of shifted logits times shares; a share of minus infinity counts."""
        result = _product(shares, self.shifted)

        def with_excluded():
            is_excluded = (shares > 0) & (self.shifted == self.shifted.dtype.min)
            is_infinite = tf.reduce_any(is_excluded, axis=-1) & ~self.is_bounded
            # NaN stays NaN.
            return tf.where(is_infinite, result - np.inf, result)

        return tf.cond(tf.reduce_all(self.is_bounded), lambda: result, with_excluded)


class _Sigmoids:
    """The predictions of all labels at one state, each of them yes or no."""

    def __init__(self, logits, read):
        self.logits, self.read = logits, read
        self.logs = [-tf.nn.softplus(-logits), -tf.nn.softplus(logits)]
        self.p = [tf.exp(log) for log in self.logs]
        # The n highest logits for n labels; of equal ones, those of the lower classes.
        ranks = tf.argsort(tf.argsort(-logits, axis=-1, stable=True), axis=-1)
        count = tf.reduce_sum(tf.cast(read.sets, tf.int32), axis=-1, keepdims=True)
        self.named = ranks < count
        self.is_finite = tf.reduce_all(tf.math.is_finite(logits), axis=-1)

    def metrics(self, network):
        """Returns the metrics, `(..., metrics)`, in the order of `METRICS`."""
        read, logits = self.read, self.logits
        infinite = tf.constant(float("inf"), logits.dtype)
        lowest = tf.reduce_min(tf.where(read.sets, logits, infinite), axis=-1, keepdims=True)
        # 2 for every other class ahead of the lowest label, 1 for each that is level with it.
        balance = tf.where(read.sets, tf.zeros_like(logits), 1 + tf.sign(logits - lowest))
        log_p = tf.where(read.sets, self.logs[0], tf.zeros_like(logits))
        agrees = tf.reduce_all(self.named == network.named, axis=-1)
        differences = [own - log for own, log in zip(network.logs, self.logs, strict=True)]
        return _stacked(
            cross_entropy=-_expected([read.rows, 1 - read.rows], self.logs),
            rank=1 + tf.reduce_sum(balance, axis=-1) / 2,
            probability=tf.exp(tf.reduce_min(log_p, axis=-1)),
            kl=_expected(network.p, differences),
            agreement=tf.cast(agrees & self.is_finite & network.is_finite, logits.dtype),
            entropy=-_expected(self.p, self.logs),
        )


def _product(left, right):
    return tf.reduce_sum(left * right, axis=-1)


def _expected(shares, logs):
    """Returns the sum of logarithms times their shares; a share of 0 adds nothing."""
    products = map(tf.math.multiply_no_nan, logs, shares)
    return sum(tf.reduce_sum(product, axis=-1) for product in products)


def _stacked(**values):
    return tf.stack([values[name] for name in METRICS], axis=-1)
